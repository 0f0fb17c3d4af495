"""Adaptive filters: LMS, NLMS and Kaczmarz, one filter per value channel.

Longer than most: three rules and their cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from engine import ops
from engine.api import Array, Card, Gain, hookimpl
from engine.linear import LinearRule, Token


@dataclass(frozen=True)
class LMS(LinearRule):
    """S <- S + mu k (v - S^T k)^T.

    Least mean squares (Widrow and Hoff 1960), without a factor 2: the delta rule with beta = mu.
    I - mu k k^T contracts iff 0 <= mu |k|^2 <= 2. S (key, value), mu one number.
    """

    card: ClassVar[Card] = Card(
        history="recent pairs overwrite older ones along their keys",
        model="linear, S^T q",
        inner="one gradient step on the newest pair",
        error="no decay",
        stable="0 <= mu |k|^2 <= 2",
        retained="dk*dv",
        write="2*dk*dv",
        query="dk*dv",
        lost="what was erased along a later key",
        diverges={"mu": 3.0},
    )

    def token(self, k: Array, v: Array, *, mu: Gain = 1.0) -> Token:
        """Return w = mu k, addressed by k."""
        return Token(write=k, value=v, address=k, strength=mu)


def normalised(k: Array, v: Array, mu: Array, eps: float) -> Token:
    """Return the token of an LMS step divided by eps + k.k; a zero key writes nothing."""
    return Token(write=ops.divide(mu * k, eps + ops.dot(k, k)), value=v, address=k)


@dataclass(frozen=True)
class NLMS(LinearRule):
    """S <- S + mu k (v - S^T k)^T / (eps + k.k).

    Normalised LMS (Nagumo and Noda 1967): stable for 0 <= mu <= 2 whatever the keys' norms. mu = 1,
    eps = 1 / beta is Longhorn. A key whose square is 0 (or underflows) at eps = 0 writes nothing.
    S (key, value), mu one number.

    Parameters
    ----------
    eps : float
        Added to k.k, at least 0: keys much shorter than its root write little.
    """

    eps: float = 1e-8
    card: ClassVar[Card] = replace(
        LMS.card, inner="one gradient step, its size divided by eps + k.k", stable="0 <= mu <= 2"
    )

    def __post_init__(self) -> None:
        if not self.eps >= 0:
            raise ValueError(f"eps = {self.eps} must be at least 0")

    def token(self, k: Array, v: Array, *, mu: Gain = 1.0) -> Token:
        """Return w = mu k / (eps + k.k), addressed by k."""
        return normalised(k, v, mu, self.eps)


@dataclass(frozen=True)
class Kaczmarz(LinearRule):
    """S <- S + mu k (v - S^T k)^T / k.k.

    Projection onto the newest equation S^T k = v (Kaczmarz 1937), exact at mu = 1, relaxed
    otherwise; NLMS with eps = 0. Stable for 0 <= mu <= 2. A key whose square is 0 (or underflows)
    writes nothing. S (key, value), mu one number.
    """

    card: ClassVar[Card] = replace(
        NLMS.card, inner="projection onto S^T k = v of the newest pair, exact at mu = 1"
    )

    def token(self, k: Array, v: Array, *, mu: Gain = 1.0) -> Token:
        """Return w = mu k / k.k, addressed by k."""
        return normalised(k, v, mu, 0.0)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the adaptive filters."""
    return {"lms": LMS, "nlms": NLMS, "kaczmarz": Kaczmarz}

"""Linear attention that forgets: RetNet, lightning attention, GLA, Mamba-2.

Longer than most: four rules and their cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from array_api_compat import array_namespace

from engine.api import Array, Card, Decay, Gain, KeyDecay, hookimpl
from engine.linear import LinearRule, Token


def fading(k: Array, v: Array, gamma: Array) -> Token:
    """Return the token of S <- Diag(gamma) S + k v^T: decay, then write; nothing is erased."""
    return Token(write=k, value=v, decay=gamma)


@dataclass(frozen=True)
class RetNet(LinearRule):
    """S <- gamma S + k v^T.

    Retention (Sun et al. 2023, arXiv:2307.08621): a pair of age a weighs gamma^a. Head h = 0, 1,
    ... of the model has the constant gamma_h = 1 - 2^(-5-h); the default is head 0. Bounded for
    gamma < 1; gamma = 1 is linear attention. S (key, value), gamma one number.
    """

    card: ClassVar[Card] = Card(
        history="exponential in age: gamma^a",
        model="linear, S^T q",
        inner="nothing is solved: a decayed sum of k v^T",
        error="no error",
        stable="gamma < 1; at gamma = 1 S grows with the number of pairs",
        retained="dk*dv",
        write="2*dk*dv",
        query="dk*dv",
        lost="single pairs: only their decayed sum is kept",
    )

    def token(self, k: Array, v: Array, *, gamma: Decay = 1.0 - 2.0**-5) -> Token:
        """Return w = k, decayed by gamma."""
        return fading(k, v, gamma)


@dataclass(frozen=True)
class Lightning(LinearRule):
    """S <- gamma S + k v^T, gamma fixed by head and layer.

    Lightning attention (Qin et al. 2024, arXiv:2401.04658): retention with another table of decays.
    Head h of H in layer l of L has the constant gamma_h = exp(-(8 / H) (1 - l / L) h): head 0, the
    default, never forgets. Bounded for gamma < 1. S (key, value), gamma one number.
    """

    card: ClassVar[Card] = RetNet.card

    def token(self, k: Array, v: Array, *, gamma: Decay = 1.0) -> Token:
        """Return w = k, decayed by gamma."""
        return fading(k, v, gamma)


@dataclass(frozen=True)
class GLA(LinearRule):
    """S <- Diag(gamma) S + k v^T.

    Gated linear attention (Yang et al. 2023, arXiv:2312.06635): each key channel forgets at its own
    rate, chosen per token. Bounded for gamma < 1. S (key, value), gamma (key), on the rows of S.
    """

    card: ClassVar[Card] = replace(
        RetNet.card, history="exponential in age, per key channel and token"
    )

    def token(self, k: Array, v: Array, *, gamma: KeyDecay = 1.0) -> Token:
        """Return w = k, each row decayed by its gamma."""
        return fading(k, v, gamma)


@dataclass(frozen=True)
class Mamba2(LinearRule):
    """S <- exp(dt A) S + k (dt v)^T.

    The scalar state space model (Dao and Gu 2024, arXiv:2405.21060) with k = B, q = C, v = x; the
    step size dt scales the write as well as the decay. Bounded for A < 0. S (key, value), dt one
    number.

    Parameters
    ----------
    A : float
        Rate of decay per unit of dt, at most 0.
    """

    A: float = -1.0
    card: ClassVar[Card] = replace(
        RetNet.card,
        history="exponential in elapsed time: dt exp(A sum of later dt)",
        stable="A < 0; at A = 0 S grows with the number of pairs",
    )

    def __post_init__(self) -> None:
        if not self.A <= 0:
            raise ValueError(f"A = {self.A} must be at most 0: exp(dt A) is a decay")

    def token(self, k: Array, v: Array, *, dt: Gain = 1.0) -> Token:
        """Return w = k, value dt v, decayed by exp(dt A)."""
        return fading(k, dt * v, array_namespace(k).exp(dt * self.A))


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the decayed sums."""
    return {"retnet": RetNet, "lightning": Lightning, "gla": GLA, "mamba2": Mamba2}

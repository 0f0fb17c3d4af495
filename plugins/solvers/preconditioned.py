"""Preconditioned delta rules: key channels that were written much take smaller steps.

Longer than most: two rules and their card; the second only fixes the type of a decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Decay, Gain, KeyDecay, Space, hookimpl
from engine.linear import Token, step


class PreconditionedState(NamedTuple):
    """The fit S, and A: the decayed energy of each key channel."""

    S: Annotated[Array, "key value"]
    A: Annotated[Array, "key"]


@dataclass(frozen=True)
class PreconditionedKDA:
    """A <- gamma_a A + beta_a k*k; S^ = Diag(gamma) S; S <- S^ + beta (m(A)*k) (v - S^^T k)^T.

    KDA with a diagonal preconditioner (Tumma, Loo and Rus 2026, arXiv:2604.21100):
    m = base^(-r / (1 + |r|)) with r = log(A + eps) - centre, so every m lies in (1/base, base).
    A repeated key stays bounded iff 0 <= beta k.(m*k) <= 2, so surely for beta |k|^2 <= 2 / base.
    S (key, value), A and gamma (key), the others one number each.

    Parameters
    ----------
    centre : float
        log A at which m = 1.
    base : float
        Bound on m and 1 / m, at least 1; 1 is KDA.
    eps : float
        Added to A, above 0: an unused channel has a finite r.
    """

    centre: float = -0.2
    base: float = 1.5
    eps: float = 1e-6
    card: ClassVar[Card] = Card(
        history="exponential in age per key channel, and recent pairs overwrite older ones",
        model="linear, S^T q",
        inner="one diagonally preconditioned gradient step from the decayed fit",
        error="after decay",
        stable="0 <= beta |k|^2 <= 2 / base",
        retained="dk*dv + dk",
        write="3*dk*dv",
        query="dk*dv",
        lost="what was decayed, or erased along a later key; how key channels vary together",
        diverges={"beta": 6.0},
    )

    def __post_init__(self) -> None:
        if not self.base >= 1:
            raise ValueError(f"base = {self.base} must be at least 1")
        if not self.eps > 0:
            raise ValueError(f"eps = {self.eps} must be above 0: log(A + eps) is taken of A = 0")

    def init(self, space: Space) -> PreconditionedState:
        """Return S = 0, A = 0."""
        return PreconditionedState(space.zeros("key value"), space.zeros("key"))

    def write(
        self,
        s: PreconditionedState,
        k: Array,
        v: Array,
        *,
        beta: Gain = 1.0,
        gamma: KeyDecay = 1.0,
        beta_a: Gain = 1.0,
        gamma_a: Decay = 1.0,
    ) -> PreconditionedState:
        """Measure the keys, forget, then correct along m*k."""
        xp = array_namespace(s.A)
        A = gamma_a * s.A + beta_a * k * k
        r = xp.log(A + self.eps) - self.centre
        m = self.base ** (-r / (1.0 + xp.abs(r)))
        token = Token(m * k, v, k, strength=beta, decay=gamma, forgets_first=True)
        return PreconditionedState(step(s.S, token), A)

    def read(self, s: PreconditionedState, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


@dataclass(frozen=True)
class PreconditionedGatedDelta(PreconditionedKDA):
    """A <- gamma_a A + beta_a k*k; S^ = gamma S; S <- S^ + beta (m(A)*k) (v - S^^T k)^T.

    `PreconditionedKDA` with one decay for all key channels; same hyperparameters. Its reference
    l2-normalises keys and queries first; here that is left to the view `unit`.
    """

    card: ClassVar[Card] = replace(
        PreconditionedKDA.card,
        history="exponential in age, and recent pairs overwrite older ones along their keys",
    )

    def write(
        self,
        s: PreconditionedState,
        k: Array,
        v: Array,
        *,
        beta: Gain = 1.0,
        gamma: Decay = 1.0,
        beta_a: Gain = 1.0,
        gamma_a: Decay = 1.0,
    ) -> PreconditionedState:
        """Measure the keys, forget, then correct along m*k."""
        return super().write(s, k, v, beta=beta, gamma=gamma, beta_a=beta_a, gamma_a=gamma_a)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the preconditioned delta rules."""
    return {
        "preconditioned_kda": PreconditionedKDA,
        "preconditioned_gated_delta": PreconditionedGatedDelta,
    }

"""Delta rules with momentum: Titans with a linear memory, and the momentum delta rule.

Longer than most: two rules and their cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from engine.api import Array, Card, Coefficient, Decay, Gain, KeyVector, hookimpl
from engine.linear import MomentumRule, Token

Fraction = Annotated[Array, Coefficient(low=0.0, high=1.0)]


@dataclass(frozen=True)
class Titans(MomentumRule):
    """U <- eta U + 2 theta k (v - S^T k)^T; S <- (1 - alpha) S + U.

    Titans (Behrouz et al. 2024, arXiv:2501.00663) with a linear memory: gradient descent on
    |S^T k - v|^2, hence the 2, with momentum eta and weight decay alpha; the gradient is taken
    before the decay. eta = alpha = 0 is the delta rule with beta = 2 theta. A key revisited every n
    steps, r = 1 - alpha, is stable iff 2 theta |k|^2 (r^n - eta^n) / (r - eta) <
    (1 + r^n) (1 + eta^n): momentum narrows the range, so at alpha = 0 only theta |k|^2 <= 1 - eta
    is safe at every n. S, U (key, value), coefficients one number each.
    """

    card: ClassVar[Card] = Card(
        history="recent pairs overwrite older ones along their keys, carried on by momentum",
        model="linear, S^T q",
        inner="one gradient step with momentum and weight decay",
        error="before decay",
        stable="theta |k|^2 <= 1 - eta at alpha = 0; 2 theta |k|^2 <= 2 - alpha at eta = 0",
        retained="2*dk*dv",
        write="4*dk*dv",
        query="dk*dv",
        lost="what was decayed, or erased along a later key",
        diverges={"theta": 1.5},
    )

    def token(
        self,
        k: Array,
        v: Array,
        *,
        theta: Gain = 0.5,
        eta: Fraction = 0.0,
        alpha: Fraction = 0.0,
    ) -> Token:
        """Return w = 2 theta k, addressed by k."""
        return Token(k, v, k, strength=2.0 * theta, decay=1.0 - alpha, momentum=eta)


@dataclass(frozen=True)
class MomentumDelta(MomentumRule):
    """U <- mu U + eta k (v - S^T p)^T; S <- gamma S + beta U, p the erase key.

    The momentum delta rule (Huang et al. 2026, arXiv:2605.05838), which carries the descent
    direction M = -U. The error is read through p before the decay, which leaves velocity alone.
    p = k and beta = 1 is Titans with 2 theta, eta, alpha = eta, mu, 1 - gamma; p = gamma k,
    beta = 1 and mu = 0 is the gated delta rule. At mu = 0, gamma = 1 a repeated key stays bounded
    iff 0 <= beta eta k.p <= 2; momentum narrows that. S, U (key, value), p (key), the others one
    number each.
    """

    card: ClassVar[Card] = Card(
        history="exponential in age, and recent pairs overwrite older ones, carried on by momentum",
        model="linear, S^T q",
        inner="one gradient step with momentum, its error read through a second key",
        error="before decay",
        stable="0 <= beta eta k.p <= 2 at mu = 0, gamma = 1; less with momentum",
        retained="2*dk*dv",
        write="5*dk*dv",
        query="dk*dv",
        lost="what was decayed, or erased along a later key",
        diverges={"eta": 3.0, "erase_key": 1.0},
    )

    def token(
        self,
        k: Array,
        v: Array,
        *,
        erase_key: KeyVector,
        eta: Gain = 1.0,
        mu: Fraction = 0.0,
        beta: Gain = 1.0,
        gamma: Decay = 1.0,
    ) -> Token:
        """Return w = eta k, addressed by p."""
        return Token(k, v, erase_key, strength=eta, decay=gamma, momentum=mu, gain=beta)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the rules with momentum."""
    return {"titans": Titans, "momentum_delta": MomentumDelta}

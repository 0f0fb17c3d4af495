"""Longhorn with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from engine import ops
from engine.api import Array, Card, Coefficient, Gain, hookimpl
from engine.linear import MomentumRule, Token


@dataclass(frozen=True)
class LonghornMomentum(MomentumRule):
    """U <- eta U + D k (v - S^T k)^T; S <- S + U, D = beta / (1 + beta k.k).

    The implicit step (Liu et al. 2024, arXiv:2407.14207) with momentum, which ends its
    unconditional stability: a key that returns is safe at every gap iff D |k|^2 <= 2 (1 - eta), so
    at every beta only up to eta = .5; for random keys see `engine.measure.laws.momentum_bound`.
    S, U (key, value), coefficients one number each. Equals the momentum delta rule with step size
    D, mu = eta and p = k.
    """

    card: ClassVar[Card] = Card(
        history="recent pairs overwrite older ones along their keys, carried on by momentum",
        model="linear, S^T q",
        inner="an implicit step on the newest pair, with momentum",
        error="no decay",
        stable="beta |k|^2 / (1 + beta |k|^2) <= 2 (1 - eta)",
        retained="2*dk*dv",
        write="4*dk*dv",
        query="dk*dv",
        lost="what was erased along a later key",
    )

    def token(
        self,
        k: Array,
        v: Array,
        *,
        beta: Gain = 1.0,
        eta: Annotated[Array, Coefficient(low=0.0, high=1.0)] = 0.0,
    ) -> Token:
        """Return w = D k, addressed by k."""
        return Token(k, v, k, strength=beta / (1.0 + beta * ops.dot(k, k)), momentum=eta)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return Longhorn with momentum."""
    return {"longhorn_momentum": LonghornMomentum}

"""Longhorn: the implicit step on each pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine import ops
from engine.api import Array, Card, Gain, hookimpl
from engine.linear import LinearRule, Token


@dataclass(frozen=True)
class Longhorn(LinearRule):
    """S <- S + D k (v - S^T k)^T with D = beta / (1 + beta k.k).

    The exact minimiser of |S - S_old|^2 + beta |S^T k - v|^2 (Liu et al. 2024, arXiv:2407.14207,
    equation 5), so stable for every beta >= 0: along k the eigenvalue is 1 / (1 + beta k.k), in
    (0, 1]. Equals NLMS with unit step and eps = 1 / beta.
    """

    card: ClassVar[Card] = Card(
        history="recent pairs overwrite older ones along their keys",
        model="linear, S^T q",
        inner="exact minimiser of |S - S_old|^2 + beta |S^T k - v|^2 on the newest pair",
        error="no decay",
        stable="every beta >= 0",
        retained="dk*dv",
        write="2*dk*dv",
        query="dk*dv",
        lost="what was erased along a later key",
    )

    def token(self, k: Array, v: Array, *, beta: Gain = 1.0) -> Token:
        """Return w = D k, addressed by k."""
        return Token(k, v, address=k, strength=beta / (1.0 + beta * ops.dot(k, k)))


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return Longhorn."""
    return {"longhorn": Longhorn}

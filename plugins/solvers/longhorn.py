"""Longhorn: the implicit step on each pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine import ops
from engine.api import Array, Gain, hookimpl
from engine.linear import LinearRule, Token


@dataclass(frozen=True)
class Longhorn(LinearRule):
    """S <- S + D k (v - S^T k)^T with D = beta / (1 + beta k.k).

    The exact minimiser of |S - S_old|^2 + beta |S^T k - v|^2 (Liu et al. 2024, arXiv:2407.14207,
    equation 5), so stable for every beta >= 0: along k the eigenvalue is 1 / (1 + beta k.k), in
    (0, 1]. Equals NLMS with unit step and eps = 1 / beta.
    """

    def token(self, k: Array, v: Array, *, beta: Gain = 1.0) -> Token:
        """Return w = D k, addressed by k."""
        return Token(write=beta / (1.0 + beta * ops.dot(k, k)) * k, value=v, address=k)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return Longhorn."""
    return {"longhorn": Longhorn}

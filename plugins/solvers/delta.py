"""The delta rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.api import Array, Card, Gain, hookimpl
from engine.linear import LinearRule, Token


@dataclass(frozen=True)
class Delta(LinearRule):
    """S <- S + beta k (v - S^T k)^T.

    One gradient step on |S^T k - v|^2 / 2 per pair (Widrow and Hoff 1960; Schlag et al. 2021,
    arXiv:2102.11174). The error is taken before the write. I - beta k k^T contracts iff
    0 <= beta |k|^2 <= 2; above 1 it over-corrects, beyond 2 it diverges.
    """

    card: ClassVar[Card] = Card(
        history="recent pairs overwrite older ones along their keys",
        model="linear, S^T q",
        inner="one gradient step on the newest pair",
        error="no decay",
        stable="0 <= beta |k|^2 <= 2",
        retained="dk*dv",
        write="2*dk*dv",
        query="dk*dv",
        lost="what was erased along a later key",
        diverges={"beta": 3.0},
    )

    def token(self, k: Array, v: Array, *, beta: Gain = 1.0) -> Token:
        """Return w = beta k, addressed by k."""
        return Token(write=k, value=v, address=k, strength=beta)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the delta rule."""
    return {"delta": Delta}

"""The rule new_solver, of the linear family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.api import Array, Card, Decay, Gain, hookimpl
from engine.linear import LinearRule, Token


@dataclass(frozen=True)
class NewSolver(LinearRule):
    """S^ = gamma S; S <- S^ + beta k (v - S^^T k)^T.

    One gradient step on |S^T k - v|^2 / 2 from the decayed fit (Yang et al. 2024,
    arXiv:2412.06464). Stable iff gamma |1 - beta |k|^2| <= 1, surely for 0 <= beta |k|^2 <= 2.
    """

    card: ClassVar[Card] = Card(
        history="exponential in age, and recent pairs overwrite older ones along their keys",
        model="linear, S^T q",
        inner="one gradient step on the newest pair",
        error="after decay",
        stable="0 <= beta |k|^2 <= 2",
        retained="dk*dv",
        write="3*dk*dv",
        query="dk*dv",
        lost="what decayed, and what was erased along a later key",
        diverges={"beta": 3.0, "gamma": 1.0},
    )

    def token(self, k: Array, v: Array, *, beta: Gain = 0.5, gamma: Decay = 1.0) -> Token:
        """Return one pair's terms in S <- gamma S + beta k (v - S^T k)^T: the rest is derived.

        Its state, write, read and fast forms all follow from the token, a pure function of a pair.
        """
        return Token(write=k, value=v, address=k, strength=beta, decay=gamma, forgets_first=True)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the rule by its name."""
    return {"new_solver": NewSolver}

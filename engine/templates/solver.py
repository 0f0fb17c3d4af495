"""The rule new_solver: the delta rule, its error bounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from engine import ops
from engine.api import Array, Card, Gain, Space, hookimpl


class NewSolverState(NamedTuple):
    """The fit. An annotation names the dims of its array, here and in every store."""

    S: Annotated[Array, "key value"]


@dataclass(frozen=True)
class NewSolver:
    """S <- S + beta k (e min(1, limit / |e|))^T, e = v - S^T k.

    One gradient step on Huber's loss of the error (Huber 1964, doi:10.1214/aoms/1177703732): a pair
    that is off by more than `limit` moves the fit as far as one that is off by `limit`. Errors
    below it shrink iff 0 < beta |k|^2 < 2, as the delta rule's.

    Parameters
    ----------
    limit : float
        Largest |e| that counts in full.
    """

    limit: float = 1.0
    card: ClassVar[Card] = Card(
        history="recent pairs overwrite older ones along their keys",
        model="linear, S^T q",
        inner="one gradient step on the newest pair, of bounded length",
        error="no decay",
        stable="0 <= beta |k|^2 <= 2; beyond, steps of length up to beta |k| limit",
        retained="dk*dv",
        write="2*dk*dv",
        query="dk*dv",
        lost="what was erased along a later key",
    )

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ValueError(f"limit = {self.limit} must be above 0")

    def init(self, space: Space) -> NewSolverState:
        """Return S = 0."""
        return NewSolverState(space.zeros("key value"))

    def write(self, s: NewSolverState, k: Array, v: Array, *, beta: Gain = 0.5) -> NewSolverState:
        """Fold in one pair; `beta` comes with every step, from whatever a scenario binds it to."""
        e = v - ops.vecmat(k, s.S)
        size = ops.dot(e, e) ** 0.5
        e = ops.where(size > self.limit, self.limit * ops.divide(e, size), e)
        return NewSolverState(s.S + ops.outer(beta * k, e))

    def read(self, s: NewSolverState, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the rule by its name."""
    return {"new_solver": NewSolver}

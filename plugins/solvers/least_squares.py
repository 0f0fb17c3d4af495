"""Least squares over running statistics.

Longer than most: a state of three variables, its card and its checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from engine import ops
from engine.api import Array, Card, Decay, Space, hookimpl


class LeastSquaresState(NamedTuple):
    """Decayed sums of k k^T and k v^T, and the fit they give, kept so that a read is cheap."""

    A: Annotated[Array, "key key_2"]
    B: Annotated[Array, "key value"]
    S: Annotated[Array, "key value"]


@dataclass(frozen=True)
class LeastSquares:
    """A <- gamma A + k k^T, B <- gamma B + k v^T, S = (A + ridge I)^-1 B.

    The exact minimiser of sum_i gamma^(t-i) |S^T k_i - v_i|^2 + ridge |S|^2 at every step, by a
    solve of its normal equations (Gauss 1809; Haykin, Adaptive Filter Theory, ch. 9). Unlike `rls`,
    the ridge does not decay. gamma = 0 keeps only the newest pair. Stable for gamma in [0, 1].
    A (key, key), B and S (key, value), gamma one number.

    Parameters
    ----------
    ridge : float
        Weight of |S|^2, above 0 so that the system is never singular.
    """

    ridge: float = 1e-6
    card: ClassVar[Card] = Card(
        history="exponential in age: gamma^a",
        model="linear, S^T q",
        inner="the weighted least-squares problem over all pairs, from running sums",
        error="no error",
        stable="0 <= gamma <= 1",
        retained="dk*dk + 2*dk*dv",
        write="2*dk*dk + 2*dk*dv + dk**3/3 + dk*dk*dv",
        query="dk*dv",
        lost="single pairs: only second moments are kept",
    )

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise ValueError(
                f"ridge = {self.ridge} must be above 0: the first systems are singular"
            )

    def init(self, space: Space) -> LeastSquaresState:
        """Return zeros."""
        A, B = space.zeros("key key_2"), space.zeros("key value")
        return LeastSquaresState(A, B, B)

    def write(
        self, s: LeastSquaresState, k: Array, v: Array, *, gamma: Decay = 1.0
    ) -> LeastSquaresState:
        """Fold in one pair and solve."""
        A = ops.scale_rows(gamma, s.A) + ops.outer(k, k)
        B = ops.scale_rows(gamma, s.B) + ops.outer(k, v)
        return LeastSquaresState(A, B, ops.ridge_solve(A, B, self.ridge))

    def read(self, s: LeastSquaresState, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return least squares."""
    return {"least_squares": LeastSquares}

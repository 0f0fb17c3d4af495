"""Recursive least squares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Coefficient, Space, hookimpl

Forgetting = Annotated[Array, Coefficient(low=0.0, high=1.0, above=True)]


class RLSState(NamedTuple):
    """The fit and the inverse of the (weighted, regularised) covariance of the keys."""

    S: Annotated[Array, "key value"]
    P: Annotated[Array, "key key_2"]


@dataclass(frozen=True)
class RLS:
    """P <- (P - P k k^T P / (gamma + k.P k)) / gamma; S <- S + P k (v - S^T k)^T.

    Ridge regression, exact at every step when gamma = 1 (Haykin, Adaptive Filter Theory, ch. 10).
    With gamma < 1 it minimises sum_i gamma^(t-i) |S^T k_i - v_i|^2 + ridge gamma^t |S|^2: the prior
    is forgotten too. Stable for gamma in (0, 1]; gamma = 0 would divide by zero and is refused.

    Parameters
    ----------
    ridge : float
        P starts at I / ridge.
    limit : float, optional
        Bound on P as a multiple of its start. Directions that no key excites inflate by 1 / gamma
        per step; a step that would cross the bound does not inflate P. Default: 1 / sqrt(machine
        epsilon), beyond which the update would cancel to noise.
    """

    ridge: float = 1e-3
    limit: float | None = None

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise ValueError(f"ridge = {self.ridge} must be above 0: P starts at I / ridge")
        if self.limit is not None and not self.limit > 1:
            raise ValueError(f"limit = {self.limit} must be above 1")

    def init(self, space: Space) -> RLSState:
        """Return S = 0, P = I / ridge."""
        return RLSState(space.zeros("key value"), space.eye("key") / self.ridge)

    def write(self, s: RLSState, k: Array, v: Array, *, gamma: Forgetting = 1.0) -> RLSState:
        """Fold in one pair by a rank-one update."""
        xp = array_namespace(s.P)
        Pk = ops.matvec(s.P, k)
        den = gamma + ops.dot(k, Pk)
        # outer(Pk, Pk) is symmetric to the last bit; outer(Pk / den, Pk) is not, and drifts apart.
        P = s.P - ops.scale_rows(1.0 / den, ops.outer(Pk, Pk))
        grown = ops.scale_rows(1.0 / gamma, P)
        limit = xp.finfo(P.dtype).eps ** -0.5 if self.limit is None else self.limit
        top = xp.max(xp.abs(grown), axis=(-2, -1), keepdims=True)
        P = xp.where(top > limit / self.ridge, P, grown)
        return RLSState(s.S + ops.outer(Pk / den, v - ops.vecmat(k, s.S)), P)

    def read(self, s: RLSState, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return recursive least squares."""
    return {"rls": RLS}

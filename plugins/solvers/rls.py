"""Recursive least squares.

Longer than most: rounding could make P indefinite, and unexcited directions could inflate it; both
are bounded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Coefficient, Space, hookimpl

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
        per step; where P crosses the bound the prior, long forgotten, is renewed: P takes in the
        axis as a key of weight `ridge`, with the value that S gives it. Default: machine epsilon
        ^ -1/4 (8192; 54 in float32), beyond which rounding soon makes P indefinite.
    """

    compiled: ClassVar[str] = "covariance"  # engine/compiled.py has this rule step for step
    ridge: float = 1e-3
    limit: float | None = None
    card: ClassVar[Card] = Card(
        history="exponential in age: gamma^a",
        model="linear, S^T q",
        inner="the weighted ridge problem over all pairs, by a rank-one update",
        error="no decay",
        stable="0 < gamma <= 1",
        retained="dk*dk + dk*dv",
        write="3*dk*dk + 2*dk*dv",
        query="dk*dv",
        lost="single pairs: only the fit and the keys' covariance are kept",
    )

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
        eps = float(xp.finfo(s.P.dtype).eps)
        Pk = ops.matvec(s.P, k)
        kPk = ops.dot(k, Pk)
        den = gamma + kPk
        # outer(Pk, Pk) is symmetric to the last bit; outer(Pk / den, Pk) is not, and drifts apart.
        P = s.P - ops.scale_rows(1.0 / den, ops.outer(Pk, Pk))
        # That leaves k.P k = gamma kPk / den, while rounding moves every entry by up to eps max(P),
        # as large as other directions are. Where it could hide what is left along k, P may turn
        # indefinite, or 0 for good; there the rounding's bound joins the diagonal: P stays
        # positive, and k.P k does not fall much below 8 eps max(P) k.k.
        noise = 2.0 * eps * xp.max(s.P, axis=(-2, -1))[..., None]
        lost = gamma * kPk < 4.0 * noise * den * ops.dot(k, k)
        if xp.any(lost):
            P = xp.where(lost[..., None], ops.add_diagonal(P, noise), P)
        P = ops.scale_rows(1.0 / gamma, P)
        bound = (eps**-0.25 if self.limit is None else self.limit) / self.ridge
        if xp.any(P > bound):
            P = self._renewed(P, bound)
        return RLSState(s.S + ops.outer(Pk / den, v - ops.vecmat(k, s.S)), P)

    def _renewed(self, P: Array, bound: float) -> Array:
        """Return P with the prior renewed along the axes on which it is above the bound."""
        xp = array_namespace(P)
        for i in range(P.shape[-1]):
            top = P[..., i, i, None]
            column = P[..., :, i] / xp.sqrt(1.0 / self.ridge + top)
            P = xp.where((top > bound)[..., None], P - ops.outer(column, column), P)
        return P

    def read(self, s: RLSState, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return recursive least squares."""
    return {"rls": RLS}

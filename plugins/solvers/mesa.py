"""MesaNet: least squares from running sums, solved at the read.

Longer than most: a conjugate gradient beside the direct solve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Decay, Gain, Space, hookimpl


class MesaState(NamedTuple):
    """Decayed sums of beta k k^T and beta k v^T."""

    H: Annotated[Array, "key key_2"]
    G: Annotated[Array, "key value"]


@dataclass(frozen=True)
class Mesa:
    """H <- gamma H + beta k k^T; G <- gamma G + beta k v^T; reads G^T (H + Diag(ridge))^-1 q.

    MesaNet (von Oswald et al. 2025, arXiv:2506.05233): the read is that of the least-squares fit to
    all pairs, weighted by beta and decay. The ridge is added at the read alone and never decays, so
    gamma < 1 is not `rls`; at gamma = beta = 1 both are ridge regression. Any beta >= 0 and gamma
    in [0, 1] is stable. H (key, key), G (key, value), beta and gamma one number each.

    Parameters
    ----------
    ridge : float or tuple of float, shape (key,)
        Above 0, so that an empty H can be solved with.
    iterations : int, optional
        Conjugate gradient steps of the read. Default: a direct solve.
    """

    ridge: float | tuple[float, ...] = 1.0
    iterations: int | None = None
    card: ClassVar[Card] = Card(
        history="exponential in age, times beta",
        model="linear, G^T (H + Diag(ridge))^-1 q",
        inner="a linear system at the read, directly or by conjugate gradients",
        error="no error",
        stable="gamma < 1; at gamma = 1 H and G grow with the number of pairs, the read does not",
        retained="dk*dk + dk*dv",
        write="2*dk*dk + 2*dk*dv",
        query="dk**3/3 + dk*dv",
        lost="single pairs: only second moments are kept",
    )

    def __post_init__(self) -> None:
        numbers = self.ridge if isinstance(self.ridge, tuple) else (self.ridge,)
        if not all(x > 0 for x in numbers):
            raise ValueError(f"ridge = {self.ridge} must be above 0: H starts at 0")
        if self.iterations is not None and self.iterations < 0:
            raise ValueError(f"iterations = {self.iterations} must be at least 0")

    def init(self, space: Space) -> MesaState:
        """Return H = 0, G = 0."""
        given, wanted = self.ridge, space.sizes["key"]
        if isinstance(given, tuple) and len(given) != wanted:
            raise ValueError(f"ridge has {len(given)} numbers, expected one per key: {wanted}")
        return MesaState(space.zeros("key key_2"), space.zeros("key value"))

    def write(
        self, s: MesaState, k: Array, v: Array, *, beta: Gain = 1.0, gamma: Decay = 1.0
    ) -> MesaState:
        """Fold in one pair."""
        # k k^T first: beta k k^T would be symmetric to rounding only.
        H = ops.scale_rows(gamma, s.H) + ops.scale_rows(beta, ops.outer(k, k))
        return MesaState(H, ops.scale_rows(gamma, s.G) + ops.outer(beta * k, v))

    def read(self, s: MesaState, q: Array) -> Array:
        """Return the fit's answer, by a solve for this query."""
        ridge = ops.channels(self.ridge, q)
        if self.iterations is None:
            return ops.vecmat(ops.ridge_solve(s.H, q[..., None], ridge)[..., 0], s.G)
        return ops.vecmat(self._conjugate_gradient(ops.add_diagonal(s.H, ridge), q), s.G)

    def _conjugate_gradient(self, M: Array, q: Array) -> Array:
        """Solve M x = q as the authors' decoding step does: 1e-5 in both denominators, no stop."""
        x = q / array_namespace(M).linalg.diagonal(M)
        r = p = q - ops.matvec(M, x)
        square = ops.dot(r, r)
        for _ in range(self.iterations or 0):
            Mp = ops.matvec(M, p)
            size = square / (ops.dot(p, Mp) + 1e-5)
            x, r = x + size * p, r - size * Mp
            before, square = square, ops.dot(r, r)
            p = r + square / (before + 1e-5) * p
        return x


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the mesa layer."""
    return {"mesa": Mesa}

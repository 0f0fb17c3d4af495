"""Affine projection: NLMS on the last few pairs at once.

Longer than most: two options to check, and keys that are zero or equal to each other to survive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Gain, Space, hookimpl


class AffineProjectionState(NamedTuple):
    """The fit S and the last pairs, newest first; rows not yet written are zero."""

    S: Annotated[Array, "key value"]
    K: Annotated[Array, "order key"]
    V: Annotated[Array, "order value"]


@dataclass(frozen=True)
class AffineProjection:
    """S <- S + mu K^T (K K^T + eps I)^-1 (V - K S), K and V the last `order` pairs.

    Affine projection (Ozeki and Umeda 1984), a regularised block Kaczmarz step: at mu = 1, eps -> 0
    it is the least change of S that reads the last pairs exactly. order = 1 is NLMS; a larger order
    learns faster from correlated keys and amplifies noise. Stable for 0 <= mu <= 2. S (key, value),
    K (order, key), V (order, value), mu one number.

    Parameters
    ----------
    order : int
        Pairs per step, at least 1; beyond the key's length eps alone makes the system solvable.
    eps : float
        Added to the diagonal, at least 0: what the keys' energy is compared with.
    """

    order: int = 4
    eps: float = 1e-3
    card: ClassVar[Card] = Card(
        history="recent pairs overwrite older ones along their keys",
        model="linear, S^T q",
        inner="projection onto the last `order` equations S^T k = v, regularised",
        error="no decay",
        stable="0 <= mu <= 2",
        retained="dk*dv + order*(dk + dv)",
        write="order*order*(dk + dv) + 2*order*dk*dv + order**3/3",
        query="dk*dv",
        lost="what was erased along later keys",
        diverges={"mu": 3.0},
    )

    def __post_init__(self) -> None:
        if not self.order >= 1:
            raise ValueError(f"order = {self.order} must be at least 1")
        if not self.eps >= 0:
            raise ValueError(f"eps = {self.eps} must be at least 0")

    def init(self, space: Space) -> AffineProjectionState:
        """Return S = 0 and no pairs."""
        n = self.order
        K, V = space.zeros("order key", order=n), space.zeros("order value", order=n)
        return AffineProjectionState(space.zeros("key value"), K, V)

    def write(
        self, s: AffineProjectionState, k: Array, v: Array, *, mu: Gain = 1.0
    ) -> AffineProjectionState:
        """Take in one pair and step towards the last ones."""
        xp = array_namespace(s.S)
        K = xp.concat([k[..., None, :], s.K[..., :-1, :]], axis=-2)
        V = xp.concat([v[..., None, :], s.V[..., :-1, :]], axis=-2)
        turned = xp.matrix_transpose(K)
        gram = K @ turned
        energy = xp.linalg.diagonal(gram)
        # A key that is zero, or not there yet, has an equation of its own, 1 x = error, and moves
        # nothing. Equal keys stay apart by the rounding of their products, whatever eps is.
        least = float(xp.finfo(K.dtype).eps) * xp.sum(energy, axis=-1, keepdims=True)
        load = self.eps + least + xp.astype(energy == 0, K.dtype)
        step = xp.linalg.solve(ops.add_diagonal(gram, load), V - K @ s.S)
        return AffineProjectionState(s.S + ops.scale_rows(mu, turned @ step), K, V)

    def read(self, s: AffineProjectionState, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return affine projection."""
    return {"affine_projection": AffineProjection}

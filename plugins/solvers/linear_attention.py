"""Linear attention: the sum of all pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from engine import ops
from engine.api import Array, Card, Space, hookimpl


class LinearAttentionState(NamedTuple):
    """The sum of k v^T and the sum of k: sufficient statistics of the whole history."""

    S: Annotated[Array, "key value"]
    z: Annotated[Array, "key"]


@dataclass(frozen=True)
class LinearAttention:
    """S <- S + k v^T, z <- z + k; reads S^T q, or S^T q / (z.q + eps) when normalised.

    Hebbian storage (Katharopoulos et al. 2020, arXiv:2006.16236). Feature maps of keys and queries
    are views; the normaliser wants positive ones (`elu1`, `exp`, `relu`). A zero normaliser reads
    zeros.

    Parameters
    ----------
    normalise : bool
        Divide the read by z.q, so that it is a weighted mean of the values.
    scale : float
        Factor on the query.
    eps : float
        Added to the normaliser; 0 keeps the mean exact.
    """

    normalise: bool = False
    scale: float = 1.0
    eps: float = 0.0
    card: ClassVar[Card] = Card(
        history="all pairs alike",
        model="linear, S^T q, or a weighted mean of the values when normalised",
        inner="nothing is solved: a sum of k v^T",
        error="no error",
        stable="always; S grows with the number of pairs",
        retained="dk*dv + dk",
        write="dk*dv",
        query="dk*dv",
        lost="single pairs: only their sum is kept",
    )

    def init(self, space: Space) -> LinearAttentionState:
        """Return S = 0, z = 0."""
        return LinearAttentionState(space.zeros("key value"), space.zeros("key"))

    def write(self, s: LinearAttentionState, k: Array, v: Array) -> LinearAttentionState:
        """Add one pair."""
        return LinearAttentionState(s.S + ops.outer(k, v), s.z + k)

    def read(self, s: LinearAttentionState, q: Array) -> Array:
        """Return the sum, or the weighted mean, of the stored values."""
        q = self.scale * q
        total = ops.vecmat(q, s.S)
        return ops.divide(total, ops.dot(q, s.z) + self.eps) if self.normalise else total


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return linear attention."""
    return {"linear_attention": LinearAttention}

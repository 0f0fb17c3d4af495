"""Softmax attention: keep every pair, average at the read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from engine.api import Array, Card, Rows, Space, attend, hookimpl


class SoftmaxState(NamedTuple):
    """All `keys` and `values` written so far."""

    keys: Annotated[Rows, "row key"]
    values: Annotated[Rows, "row value"]


@dataclass(frozen=True)
class SoftmaxAttention:
    """Append (k, v); read sum_j softmax_j(scale q.k_j) v_j.

    A kernel regression with exponential kernel (Vaswani et al. 2017, arXiv:1706.03762). The state
    grows by one row per step. An empty memory reads zeros.

    Parameters
    ----------
    scale : float
        Factor on the scores. Models use dk^-1/2, which is too soft for exact recall of unit keys.
    """

    scale: float = 1.0

    tiled: ClassVar[bool] = True  # a block can be read at once
    card: ClassVar[Card] = Card(
        history="uniform",
        model="kernel average, exp(scale q.k)",
        inner="weighted mean at the read",
        error="no error",
        stable="always",
        retained="t*(dk+dv)",
        write="0",
        query="t*(dk+dv)",
        lost="nothing",
    )

    def init(self, space: Space) -> SoftmaxState:
        """Return no rows."""
        return SoftmaxState(space.rows("key"), space.rows("value"))

    def write(self, s: SoftmaxState, k: Array, v: Array) -> SoftmaxState:
        """Append one pair."""
        return SoftmaxState(s.keys.append(k), s.values.append(v))

    def read(self, s: SoftmaxState, q: Array) -> Array:
        """Return the values' mean, weighted by the softmax of the scores."""
        return attend(s.keys, s.values, q, self.scale)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return softmax attention."""
    return {"softmax_attention": SoftmaxAttention}

"""Softmax attention: keep every pair, average at the read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Rows, Space, each_length, hookimpl


class SoftmaxState(NamedTuple):
    """Every pair written so far."""

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

    def init(self, space: Space) -> SoftmaxState:
        """Return no rows."""
        return SoftmaxState(space.rows("key"), space.rows("value"))

    def write(self, s: SoftmaxState, k: Array, v: Array) -> SoftmaxState:
        """Append one pair."""
        return SoftmaxState(s.keys.append(k), s.values.append(v))

    def read(self, s: SoftmaxState, q: Array) -> Array:
        """Return the values' mean, weighted by the softmax of the scores."""
        return each_length(self._attend, s.keys, s.values, q)

    def _attend(self, keys: Array, values: Array, q: Array) -> Array:
        if keys.shape[1] == 0:
            return array_namespace(values).sum(values, axis=1)
        return ops.vecmat(ops.softmax(ops.matvec(keys, self.scale * q)), values)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return softmax attention."""
    return {"softmax_attention": SoftmaxAttention}

"""Forgetting attention: softmax attention whose rows fade.

Longer than most by its notes on the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from engine import ops
from engine.api import Array, Card, Decay, Rows, Space, each_length, fade, hookimpl


class ForgettingState(NamedTuple):
    """All `keys` and `values` written so far; `bias`: a row's sum of log gamma since its write."""

    keys: Annotated[Rows, "row key"]
    values: Annotated[Rows, "row value"]
    bias: Annotated[Rows, "row"]


@dataclass(frozen=True)
class ForgettingAttention:
    """b_j <- b_j + log gamma; append (k, v, 0); read sum_j softmax_j(scale q.k_j + b_j) v_j.

    The forgetting transformer, FoX (Lin et al. 2025, arXiv:2503.02130): a pair written a steps ago
    has lost the factor gamma^a in the softmax's numerator. The gate is not scaled. gamma = 1 is
    softmax attention; gamma = 0 forgets every earlier pair. Stable for every gamma in [0, 1]. The
    state grows by one row per step. An empty memory reads zeros.

    Parameters
    ----------
    scale : float
        Factor on the scores q.k, not on the gate. Models use dk^-1/2.
    """

    scale: float = 1.0

    tiled: ClassVar[bool] = True  # softmax attention but for the biases of its rows
    card: ClassVar[Card] = Card(
        history="product of gamma since the write",
        model="kernel average, exp(scale q.k)",
        inner="weighted mean at the read",
        error="no error",
        stable="0 <= gamma <= 1",
        retained="t*(dk+dv+1)",
        write="t",
        query="t*(dk+dv)",
        lost="nothing while gamma > 0; all earlier pairs at gamma = 0",
    )

    def init(self, space: Space) -> ForgettingState:
        """Return no rows."""
        return ForgettingState(space.rows("key"), space.rows("value"), space.rows(""))

    def write(
        self, s: ForgettingState, k: Array, v: Array, *, gamma: Decay = 1.0
    ) -> ForgettingState:
        """Fade every row, then append the pair unfaded."""
        bias = fade(s.bias, gamma, k)
        return ForgettingState(s.keys.append(k), s.values.append(v), bias)

    def read(self, s: ForgettingState, q: Array) -> Array:
        """Return the values' mean, weighted by the softmax of the faded scores."""
        return each_length(self._attend, s.keys, s.values, s.bias, q)

    def _attend(self, keys: Array, values: Array, bias: Array, q: Array) -> Array:
        return ops.vecmat(ops.softmax(ops.matvec(keys, self.scale * q) + bias), values)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return forgetting attention."""
    return {"forgetting_attention": ForgettingAttention}

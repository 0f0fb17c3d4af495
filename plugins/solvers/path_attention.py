"""PaTH attention: softmax attention whose stored keys are turned by every later token.

Longer than most: a turn for every stored key, a read and a card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from engine import ops
from engine.api import Array, Card, Decay, Gain, KeyVector, Rows, Space, each_length, fade, hookimpl


class PathState(NamedTuple):
    """`keys` as later tokens turned them, `values`, and `bias`, the sums of log gamma since."""

    keys: Annotated[Rows, "row key"]
    values: Annotated[Rows, "row value"]
    bias: Annotated[Rows, "row"]


@dataclass(frozen=True)
class PathAttention:
    """k_j <- (I - beta w w^T) k_j; append (k, v); read sum_j softmax_j(scale (q.k_j + b_j)) v_j.

    Position encoding by accumulated Householder transformations (Yang et al. 2025,
    arXiv:2505.16381), with its forget gate b_j <- b_j + log gamma, b = 0 when written. The score of
    pair j is q.(H_t ... H_{j+1} k_j), H = I - beta w w^T. Unlike forgetting attention's the gate is
    scaled. H contracts iff 0 <= beta |w|^2 <= 2; beyond 2 the stored keys grow without bound. Every
    write turns every row: O(t dk). An empty memory reads zeros.

    Parameters
    ----------
    scale : float
        Factor on scores and gate, above 0. Models use dk^-1/2.
    """

    scale: float = 1.0

    card: ClassVar[Card] = Card(
        history="product of gamma^scale since the write",
        model="kernel average, exp(scale q.H..H k)",
        inner="weighted mean at the read",
        error="no error",
        stable="0 <= beta |w|^2 <= 2, 0 <= gamma <= 1",
        retained="t*(dk+dv+1)",
        write="t*(2*dk+1)",
        query="t*(dk+dv)",
        lost="at beta |w|^2 = 1 the part of every earlier key along w; at gamma = 0 earlier pairs",
        diverges={"beta": 4.0},
    )

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"scale = {self.scale} must be above 0: it multiplies log gamma")

    def init(self, space: Space) -> PathState:
        """Return no rows."""
        return PathState(space.rows("key"), space.rows("value"), space.rows(""))

    def write(
        self, s: PathState, k: Array, v: Array, *,
        beta: Gain = 1.0, gamma: Decay = 1.0, householder_key: KeyVector = None,
    ) -> PathState:  # fmt: skip
        """Turn and fade every row, then append the pair as it is; w is k unless given."""
        w = k if householder_key is None else householder_key

        def turn(keys: Array) -> Array:
            # A product per row, so that a trial's bits do not depend on how many rows others hold.
            return keys - ops.dot(keys, w[..., None, :]) * (beta * w)[..., None, :]

        bias = fade(s.bias, gamma, k)
        return PathState(s.keys.map(turn).append(k), s.values.append(v), bias)

    def read(self, s: PathState, q: Array) -> Array:
        """Return the values' mean, weighted by the softmax of the scaled scores."""
        return each_length(self._attend, s.keys, s.values, s.bias, q)

    def _attend(self, keys: Array, values: Array, bias: Array, q: Array) -> Array:
        return ops.vecmat(ops.softmax(self.scale * (ops.matvec(keys, q) + bias)), values)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return PaTH attention."""
    return {"path_attention": PathAttention}

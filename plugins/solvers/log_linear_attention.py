"""Log-linear attention: a decayed linear memory per power of two of age.

Longer than most: the merge of levels, by trial, is written out as one matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Coefficient, Decay, Space, hookimpl

LevelVector = Annotated[Array, Coefficient("level")]


class LogLinearState(NamedTuple):
    """S: a sum of k v^T per level of a Fenwick tree; `count`: the number of pairs written."""

    S: Annotated[Array, "level key value"]
    count: Annotated[Array, ""]


@dataclass(frozen=True)
class LogLinearAttention:
    """S_l <- gamma S_l; merge full levels; S_0 <- k v^T; read sum_l level_scales_l S_l^T q.

    A Fenwick tree of linear memories (Guo et al. 2025, arXiv:2506.04761). After pair t, counted
    from 0, pair t is in level 0 and pair j < t in level bit_length(t XOR j): writing t moves levels
    0 to r into level r + 1, where 2^r is the largest power of two that divides t. A trial merges by
    what it has written itself. With equal level_scales it is linear attention with decay. Stable
    for gamma in [0, 1); at 1 it grows like a sum. An empty memory reads zeros.

    Parameters
    ----------
    levels : int
        Levels kept, at least 2. The first 2^(levels - 1) pairs are exact; later ones keep merging
        into the last level, which then holds everything older.
    """

    levels: int = 12

    card: ClassVar[Card] = Card(
        history="product of gamma since the write, times a scale per level of age",
        model="linear, one map per level",
        inner="sum of outer products",
        error="no error",
        stable="0 <= gamma < 1; grows like a sum at gamma = 1",
        retained="levels*dk*dv+1",
        write="levels**2*dk*dv",
        query="levels*dk*dv",
        lost="which pairs a level was made of; past 2^(levels-1) pairs, the level of the oldest",
    )

    def __post_init__(self) -> None:
        if not 2 <= self.levels <= 62:
            raise ValueError(f"levels = {self.levels} must be from 2 to 62: pairs are counted")

    def init(self, space: Space) -> LogLinearState:
        """Return empty levels and no pairs."""
        xp = space.xp
        count = xp.zeros(space.shape(""), dtype=xp.int64, device=space.device)
        return LogLinearState(space.zeros("level key value", level=self.levels), count)

    def write(self, s: LogLinearState, k: Array, v: Array, *, gamma: Decay = 1.0) -> LogLinearState:
        """Decay all levels, merge those that are full, and put the pair into level 0."""
        xp = array_namespace(s.S)
        size = 2 ** xp.arange(self.levels, dtype=xp.int64, device=s.count.device)
        step = xp.clip(s.count & -s.count, max=2 ** (self.levels - 2))[..., None]
        full, target = size <= step, size == 2 * step  # levels 0 .. r, and level r + 1
        moves = xp.where(full[..., None, :], target[..., :, None], size[:, None] == size)
        moves = ops.scale_rows(gamma, xp.astype(moves, s.S.dtype))
        S = xp.reshape(moves @ xp.reshape(s.S, (*s.S.shape[:-2], -1)), s.S.shape)
        S[..., 0, :, :] = ops.outer(k, v)  # empty after the move
        return LogLinearState(S, s.count + 1)

    def read(self, s: LogLinearState, q: Array, *, level_scales: LevelVector = 1.0) -> Array:
        """Return the scaled sum of every level's read."""
        reads = ops.vecmat(q[..., None, :], s.S)
        return array_namespace(reads).sum(ops.scale_rows(level_scales, reads), axis=-2)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return log-linear attention."""
    return {"log_linear_attention": LogLinearAttention}

"""RWKV-6: read before write, with a bonus on the newest token.

Longer than most: the read comes before the write, so the state has two matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace, device

from engine import ops
from engine.api import Array, Card, KeyDecay, Space, hookimpl


class RWKV6State(NamedTuple):
    """The decayed sum S of all pairs, and R, what the newest token reads."""

    S: Annotated[Array, "key value"]
    R: Annotated[Array, "key value"]


@dataclass(frozen=True)
class RWKV6:
    """R <- S + Diag(bonus) k v^T, then S <- Diag(gamma) S + k v^T; reads R^T q.

    Finch (Peng et al. 2024, arXiv:2404.05892): a token's output sees the pairs before it, not yet
    decayed by its own gamma, and its own pair through the bonus alone. So the state carries both S
    and R, which the read needs. Mind that a prediction (the read at k before the write) sees the
    previous token's R. Bounded for gamma < 1. S, R (key, value), gamma (key). With gamma = 1 and
    bonus = 1, R = S is linear attention.

    Parameters
    ----------
    bonus : float or tuple of float, shape (key,)
        Weight of a token's own pair in its output, per key channel.
    """

    bonus: float | tuple[float, ...] = 1.0
    card: ClassVar[Card] = Card(
        history="exponential in age, per key channel and token; the newest pair by the bonus",
        model="linear, R^T q",
        inner="nothing is solved: a decayed sum of k v^T",
        order="before its own write, and its own pair through the bonus",
        error="no error",
        stable="gamma < 1; at gamma = 1 S grows with the number of pairs",
        retained="2*dk*dv",
        write="3*dk*dv",
        query="dk*dv",
        lost="single pairs: only their decayed sum is kept",
    )

    def init(self, space: Space) -> RWKV6State:
        """Return S = 0, R = 0."""
        given, wanted = self.bonus, space.sizes["key"]
        if isinstance(given, tuple) and len(given) != wanted:
            raise ValueError(
                f"bonus has {len(given)} numbers, expected one per key channel: {wanted}"
            )
        return RWKV6State(space.zeros("key value"), space.zeros("key value"))

    def write(self, s: RWKV6State, k: Array, v: Array, *, gamma: KeyDecay = 1.0) -> RWKV6State:
        """Form what this token reads, then fold its pair in."""
        bonus = self.bonus
        if isinstance(bonus, tuple):
            bonus = array_namespace(k).asarray(bonus, dtype=k.dtype, device=device(k))
        R = s.S + ops.outer(bonus * k, v)
        return RWKV6State(ops.scale_rows(gamma, s.S) + ops.outer(k, v), R)

    def read(self, s: RWKV6State, q: Array) -> Array:
        """Return R^T q."""
        return ops.vecmat(q, s.R)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return RWKV-6."""
    return {"rwkv6": RWKV6}

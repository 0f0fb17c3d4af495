"""Parallax: softmax attention with a local-linear correction.

Longer than most by its notes on a second query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, KeyVector, Rows, Space, each_length, hookimpl


class ParallaxState(NamedTuple):
    """All `keys` and `values` written so far."""

    keys: Annotated[Rows, "row key"]
    values: Annotated[Rows, "row value"]


@dataclass(frozen=True)
class Parallax:
    """Append (k, v); read sum_j p_j (1 + c - c_j) v_j, p = softmax(scale q.k), c_j = r.k_j.

    c = sum_j p_j c_j. Local linear regression without its solve (Zuo et al. 2026,
    arXiv:2605.29157): the kernel average less the covariance, under p, of v and r.k, with a second
    query r that probes it and is not scaled. r = 0 is softmax attention. The state grows by one row
    per step. An empty memory reads zeros.

    Parameters
    ----------
    scale : float
        Factor on the scores q.k only. Models use dk^-1/2.
    """

    scale: float = 1.0

    tiled: ClassVar[bool] = True  # softmax attention but for the second query
    card: ClassVar[Card] = Card(
        history="uniform",
        model="kernel average, exp(scale q.k), with a linear correction along r",
        inner="weighted mean and covariance at the read",
        error="no error",
        stable="every r",
        retained="t*(dk+dv)",
        write="0",
        query="t*(2*dk+dv)",
        lost="nothing",
    )

    def init(self, space: Space) -> ParallaxState:
        """Return no rows."""
        return ParallaxState(space.rows("key"), space.rows("value"))

    def write(self, s: ParallaxState, k: Array, v: Array) -> ParallaxState:
        """Append one pair."""
        return ParallaxState(s.keys.append(k), s.values.append(v))

    def read(self, s: ParallaxState, q: Array, *, second_query: KeyVector = None) -> Array:
        """Return the values' mean less their covariance with r.k; r is 0 unless given."""
        r = array_namespace(q).zeros_like(q) if second_query is None else second_query
        return each_length(self._attend, s.keys, s.values, q, r)

    def _attend(self, keys: Array, values: Array, q: Array, r: Array) -> Array:
        p, c = ops.softmax(ops.matvec(keys, self.scale * q)), ops.matvec(keys, r)
        return ops.vecmat(p * (1.0 + (ops.dot(p, c) - c)), values)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return Parallax."""
    return {"parallax": Parallax}

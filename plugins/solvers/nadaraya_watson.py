"""Nadaraya-Watson regression with a Gaussian kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Rows, Space, each_length, hookimpl


class NadarayaWatsonState(NamedTuple):
    """All `keys` and `values` written so far."""

    keys: Annotated[Rows, "row key"]
    values: Annotated[Rows, "row value"]


@dataclass(frozen=True)
class NadarayaWatson:
    """Append (k, v); read sum_j w_j v_j / sum_j w_j, w_j = exp(-|k_j - q|^2 / (2 bandwidth^2)).

    Kernel regression (Nadaraya 1964; Watson 1964). With keys of one length it is softmax attention
    at scale = bandwidth^-2. A narrow bandwidth reads the nearest pair's value, never 0 / 0. The
    state grows by one row per step. An empty memory reads zeros.

    Parameters
    ----------
    bandwidth : float
        Width of the kernel, in units of the keys; `engine.measure.bandwidth` learns one.
    """

    bandwidth: float = 1.0

    card: ClassVar[Card] = Card(
        history="uniform",
        model="kernel average, exp(-|k - q|^2 / (2 bandwidth^2))",
        inner="weighted mean at the read",
        error="no error",
        stable="always",
        retained="t*(dk+dv)",
        write="0",
        query="t*(2*dk+dv)",
        lost="nothing",
    )

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < math.inf:
            raise ValueError(f"bandwidth = {self.bandwidth} must be above 0 and finite")

    def init(self, space: Space) -> NadarayaWatsonState:
        """Return no rows."""
        return NadarayaWatsonState(space.rows("key"), space.rows("value"))

    def write(self, s: NadarayaWatsonState, k: Array, v: Array) -> NadarayaWatsonState:
        """Append one pair."""
        return NadarayaWatsonState(s.keys.append(k), s.values.append(v))

    def read(self, s: NadarayaWatsonState, q: Array) -> Array:
        """Return the values' mean, weighted by the kernel at the query."""
        return each_length(self._average, s.keys, s.values, q)

    def _average(self, keys: Array, values: Array, q: Array) -> Array:
        # Differences, not |k|^2 - 2 k.q + |q|^2: that cancels when keys are close.
        away = keys - q[..., None, :]
        square = array_namespace(away).sum(away * away, axis=-1)
        return ops.vecmat(ops.kernel_weights(square, self.bandwidth), values)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return Nadaraya-Watson regression."""
    return {"nadaraya_watson": NadarayaWatson}

"""DeltaFormer: softmax attention that stores what it could not yet recall.

Longer than most by its notes on what addresses a write, and what bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from engine.api import Array, Card, Gain, KeyVector, Rows, Space, attend, hookimpl


class DeltaFormerState(NamedTuple):
    """All `keys` written so far; `values` are theirs less what was recalled in their place."""

    keys: Annotated[Rows, "row key"]
    values: Annotated[Rows, "row value"]


@dataclass(frozen=True)
class DeltaFormer:
    """u = v - beta sum_j softmax_j(scale a.k_j) u_j; append (k, u); read sum_j softmax_j(..) u_j.

    The delta rule with a softmax memory (Zhong et al. 2025, arXiv:2505.19488). The correction is
    addressed with a, by default the key itself; the reference implementation uses the token's
    query. The first pair has no correction. For beta < 1 a stored value is at most max |v| /
    (1 - beta); at the default beta = 1 it grows at most linearly in t. beta = 0 is softmax
    attention. The state grows by one row per step. An empty memory reads zeros.

    Parameters
    ----------
    scale : float
        Factor on the scores, of correction and read alike. Models use dk^-1/2.
    """

    scale: float = 1.0

    card: ClassVar[Card] = Card(
        history="uniform, less what was recalled before",
        model="kernel average, exp(scale q.k)",
        inner="one correction by the present read",
        error="no decay",
        stable="0 <= beta < 1: |u| <= max |v| / (1 - beta); beta = 1: |u| <= t max |v|",
        retained="t*(dk+dv)",
        write="t*(dk+dv)",
        query="t*(dk+dv)",
        lost="nothing, given beta and what addressed each write",
    )

    def init(self, space: Space) -> DeltaFormerState:
        """Return no rows."""
        return DeltaFormerState(space.rows("key"), space.rows("value"))

    def write(
        self, s: DeltaFormerState, k: Array, v: Array, *,
        beta: Gain = 1.0, address: KeyVector = None,
    ) -> DeltaFormerState:  # fmt: skip
        """Append the key with the part of its value that `address` does not recall."""
        recalled = self.read(s, k if address is None else address)
        return DeltaFormerState(s.keys.append(k), s.values.append(v - beta * recalled))

    def read(self, s: DeltaFormerState, q: Array) -> Array:
        """Return the corrected values' mean, weighted by the softmax of the scores."""
        return attend(s.keys, s.values, q, self.scale)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return DeltaFormer."""
    return {"deltaformer": DeltaFormer}

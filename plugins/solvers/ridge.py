"""Ridge regression from scratch at every step: what the recursive solvers are measured against.

Longer than most: a state of three variables, its card and its checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Rows, Space, each_length, hookimpl


class RidgeState(NamedTuple):
    """All `keys` and `values` written so far, and S, the fit to them."""

    keys: Annotated[Rows, "row key"]
    values: Annotated[Rows, "row value"]
    S: Annotated[Array, "key value"]


@dataclass(frozen=True)
class Ridge:
    """Append (k, v); S = (K^T K + ridge I)^-1 K^T V over all rows.

    Batch ridge regression (Hoerl and Kennard 1970) at every prefix. Nothing is carried over from
    the last fit, so no rounding is: `rls` at gamma = 1 and `mesa` at gamma = beta = 1 should equal
    it, and what they differ by is their own error. Always stable. K (row, key), V (row, value),
    S (key, value).

    Parameters
    ----------
    ridge : float
        Weight of |S|^2, above 0 so that the system is never singular.
    """

    ridge: float = 1e-3
    card: ClassVar[Card] = Card(
        history="uniform",
        model="linear, S^T q",
        inner="a least-squares problem over all pairs per write",
        error="no error",
        stable="always",
        retained="t*(dk + dv) + dk*dv",
        write="t*dk*(dk + dv) + dk**3/3 + dk*dk*dv",
        query="dk*dv",
        lost="nothing",
    )

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise ValueError(
                f"ridge = {self.ridge} must be above 0: the first systems are singular"
            )

    def init(self, space: Space) -> RidgeState:
        """Return no rows and S = 0."""
        return RidgeState(space.rows("key"), space.rows("value"), space.zeros("key value"))

    def write(self, s: RidgeState, k: Array, v: Array) -> RidgeState:
        """Append one pair and fit all of them anew."""
        keys, values = s.keys.append(k), s.values.append(v)
        return RidgeState(keys, values, each_length(self._fit, keys, values))

    def _fit(self, keys: Array, values: Array) -> Array:
        turned = array_namespace(keys).matrix_transpose(keys)
        return ops.ridge_solve(turned @ keys, turned @ values, self.ridge)

    def read(self, s: RidgeState, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return batch ridge regression."""
    return {"ridge": Ridge}

"""The gated Oja rule: a delta rule on the value axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine import ops
from engine.api import Array, Card, Gain, Space, ValueDecay, hookimpl
from engine.linear import LinearState


@dataclass(frozen=True)
class Oja:
    """S^ = S Diag(gamma); S <- S^ + beta (k - S^ v) v^T.

    Oja's rule (Oja 1982, J. Math. Biology 15, 267) as a fast weight rule, with the decay of gated
    models on the columns of S: one gradient step on |S v - k|^2 / 2, keys from values, the gated
    delta rule with the roles swapped. I - beta v v^T contracts iff 0 <= beta |v|^2 <= 2, so it is
    the values that want unit norm. S (key, value), gamma (value), beta one number.
    """

    card: ClassVar[Card] = Card(
        history="exponential in age per value channel, and recent pairs overwrite older ones",
        model="linear, S^T q, fitted the other way: S v = k",
        inner="one gradient step on |S v - k|^2 / 2 from the decayed fit",
        error="after decay",
        stable="0 <= beta |v|^2 <= 2",
        retained="dk*dv",
        write="3*dk*dv",
        query="dk*dv",
        lost="what was decayed, or erased along a later value",
        diverges={"beta": 3.0},
    )

    def init(self, space: Space) -> LinearState:
        """Return S = 0."""
        return LinearState(space.zeros("key value"))

    def write(
        self, s: LinearState, k: Array, v: Array, *, beta: Gain = 1.0, gamma: ValueDecay = 1.0
    ) -> LinearState:
        """Forget by columns, then correct what S^ says of v's key."""
        S = ops.scale_columns(s.S, gamma)
        return LinearState(S + ops.outer(beta * (k - ops.matvec(S, v)), v))

    def read(self, s: LinearState, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the gated Oja rule."""
    return {"oja": Oja}

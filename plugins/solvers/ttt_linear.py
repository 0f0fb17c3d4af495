"""TTT-Linear: a linear memory under layer norm, trained by mini-batches of tokens.

Longer than most: the gradient through the layer norm is written out by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Gain, Space, hookimpl


class TTTState(NamedTuple):
    """The fit at the mini-batch's start, and the n gradients summed since."""

    S: Annotated[Array, "key value"]
    c: Annotated[Array, "value"]
    dS: Annotated[Array, "key value"]
    dc: Annotated[Array, "value"]
    n: Annotated[Array, ""]


@dataclass(frozen=True)
class TTTLinear:
    """dS <- dS + k r^T; dc <- dc + r; reads y + LN(y), y = (S - eta dS)^T q + c - eta dc.

    TTT-Linear (Sun et al. 2024, arXiv:2407.04620), with the output y + LN(y) of the flash-linear-
    attention reference (the paper adds LN(y) to q). r is the gradient of |LN(z) - (v - k)|^2 / 2 at
    z = S^T k + c, where S and c are those of the mini-batch's start. The token that completes a
    mini-batch moves them, S <- S - eta dS, by its own eta; until then a read applies the reading
    token's eta to all gradients. LN(z) = ln_weight (z - mean) / sqrt(var + 1e-6) + ln_bias. Steps
    shrink as 1 / |z|, so no eta diverges. Needs dk = dv. S (key, value), c (value), eta one number.

    Parameters
    ----------
    minibatch : int
        Tokens whose gradients are taken at the same S; 1 is fully online.
    ln_weight, ln_bias : float or tuple of float, shape (value,)
        Of the layer norm. An empty memory reads ln_bias.
    """

    minibatch: int = 16
    ln_weight: float | tuple[float, ...] = 1.0
    ln_bias: float | tuple[float, ...] = 0.0
    card: ClassVar[Card] = Card(
        history="recent pairs overwrite older ones along their keys, a mini-batch at a time",
        model="linear under layer norm, y + LN(y) with y = S^T q + c",
        inner="one gradient step per mini-batch",
        error="no decay",
        stable="always: a step shrinks as 1 / |S^T k + c|",
        retained="2*dk*dv + 2*dv + 1",
        write="3*dk*dv",
        query="2*dk*dv",
        lost="what was erased along a later key, and the size of v - k",
    )

    def __post_init__(self) -> None:
        if not self.minibatch >= 1:
            raise ValueError(f"minibatch = {self.minibatch} must be at least 1")

    def init(self, space: Space) -> TTTState:
        """Return zeros."""
        wanted = space.sizes["value"]
        if space.sizes["key"] != wanted:
            raise ValueError(
                f"keys of {space.sizes['key']} and values of {wanted} channels: ttt_linear learns "
                "v - k, so they must be equal"
            )
        for name in ("ln_weight", "ln_bias"):
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) != wanted:
                raise ValueError(f"{name} has {len(given)} numbers, expected one per value channel")
        S, c = space.zeros("key value"), space.zeros("value")
        n = space.xp.zeros(space.lead, dtype=space.xp.int64, device=space.device)
        return TTTState(S, c, S, c, n)

    def write(self, s: TTTState, k: Array, v: Array, *, eta: Gain = 0.1) -> TTTState:
        """Add one token's gradient; after `minibatch` of them, step."""
        r = self._gradient(ops.vecmat(k, s.S) + s.c, v - k)
        dS, dc, n = s.dS + ops.outer(k, r), s.dc + r, s.n + 1
        full = n == self.minibatch
        row, matrix = full[..., None], full[..., None, None]
        return TTTState(
            ops.where(matrix, s.S - ops.scale_rows(eta, dS), s.S),
            ops.where(row, s.c - eta * dc, s.c),
            ops.where(~matrix, dS, 0.0),
            ops.where(~row, dc, 0.0),
            ops.where(~full, n, 0),
        )

    def read(self, s: TTTState, q: Array, *, eta: Gain = 0.1) -> Array:
        """Return y + LN(y)."""
        y = ops.vecmat(q, s.S) + s.c - eta * (ops.vecmat(q, s.dS) + s.dc)
        return y + self._weight(y) * _standard(y)[0] + ops.channels(self.ln_bias, y)

    def _weight(self, like: Array) -> Array | float:
        return ops.channels(self.ln_weight, like)

    def _gradient(self, z: Array, target: Array) -> Array:
        """Return d/dz |ln_weight LN(z) + ln_bias - target|^2 / 2."""
        x, deviation = _standard(z)
        weight = self._weight(z)
        g = weight * (weight * x + ops.channels(self.ln_bias, z) - target)
        mean = array_namespace(z).mean
        along = mean(g * x, axis=-1, keepdims=True)
        return (g - mean(g, axis=-1, keepdims=True) - along * x) / deviation


def _standard(z: Array) -> tuple[Array, Array]:
    """Return (z - mean) / sqrt(var + 1e-6) over the channels, and that root."""
    xp = array_namespace(z)
    z = z - xp.mean(z, axis=-1, keepdims=True)
    deviation = xp.sqrt(xp.mean(z * z, axis=-1, keepdims=True) + 1e-6)
    return z / deviation, deviation


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return TTT with a linear memory."""
    return {"ttt_linear": TTTLinear}

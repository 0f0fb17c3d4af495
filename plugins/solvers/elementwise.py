"""Rules that decay every entry of S on its own: Mamba and the diagonal Longhorn.

Longer than most: two rules and their cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace, device

from engine import ops
from engine.api import Array, Card, Space, ValueGain, hookimpl
from engine.linear import LinearState


class Entrywise:
    """What both rules share: S (key, value) starts at 0 and is read by S^T q."""

    def init(self, space: Space) -> LinearState:
        """Return S = 0."""
        return LinearState(space.zeros("key value"))

    def read(self, s: LinearState, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


@dataclass(frozen=True)
class Mamba(Entrywise):
    """S_ij <- exp(dt_j A_ji) S_ij + k_i dt_j v_j.

    The selective state space model (Gu and Dao 2023, arXiv:2312.00752) with k = B, q = C, v = x: i
    is a key (state) channel, j a value channel. dt scales the write as well as the decay. Bounded
    for A < 0. S (key, value), dt (value).

    Parameters
    ----------
    A : float or tuple of tuples of float, shape (value, key), optional
        Rates of decay per unit of dt, at most 0. Default: A_ji = -(i + 1), i from 0 (S4D-real,
        Gu et al. 2022, arXiv:2206.11893).
    """

    A: float | tuple[tuple[float, ...], ...] | None = None
    card: ClassVar[Card] = Card(
        history="exponential in elapsed time, per key and value channel",
        model="linear, S^T q",
        inner="nothing is solved: a decayed sum of k (dt v)^T",
        error="no error",
        stable="A < 0; at A = 0 S grows with the number of pairs",
        retained="dk*dv",
        write="3*dk*dv",
        query="dk*dv",
        lost="single pairs: only their decayed sum is kept",
    )

    def __post_init__(self) -> None:
        rows = self.A if isinstance(self.A, tuple) else ((self.A or 0.0,),)
        if len({len(row) for row in rows}) != 1:
            raise ValueError("A must have rows of one length: its shape is (value, key)")
        for rate in (rate for row in rows for rate in row):
            if not rate <= 0:
                raise ValueError(f"A has {rate}, must be at most 0: exp(dt A) is a decay")

    def init(self, space: Space) -> LinearState:
        """Return S = 0."""
        wanted = space.sizes["value"], space.sizes["key"]
        if isinstance(self.A, tuple) and (len(self.A), len(self.A[0])) != wanted:
            found = len(self.A), len(self.A[0])
            raise ValueError(f"A has shape {found}, expected (value, key) = {wanted}")
        return super().init(space)

    def rates(self, k: Array) -> Array | float:
        """Return A transposed, such that it broadcasts against (key, value)."""
        xp = array_namespace(k)
        if self.A is None:
            return -xp.arange(1, k.shape[-1] + 1, dtype=k.dtype, device=device(k))[:, None]
        if isinstance(self.A, tuple):
            return xp.asarray(self.A, dtype=k.dtype, device=device(k)).T
        return self.A

    def write(self, s: LinearState, k: Array, v: Array, *, dt: ValueGain = 1.0) -> LinearState:
        """Decay every entry at its own rate and add k (dt v)^T."""
        decay = array_namespace(k).exp(dt[..., None, :] * self.rates(k))
        return LinearState(decay * s.S + ops.outer(k, dt * v))


@dataclass(frozen=True)
class LonghornDiagonal(Entrywise):
    """S_ij <- (1 - D_j k_i^2) S_ij + D_j k_i v_j with D_j = beta_j / (1 + beta_j k.k).

    Longhorn as its authors' code runs it (Liu et al. 2024, arXiv:2407.14207): I - D k k^T of the
    exact implicit step is replaced by its diagonal, so S fits Mamba's scan. Equal to the exact step
    for keys with one non-zero channel, far from it for others. Stable for every beta >= 0: the
    factors lie in (0, 1]. S (key, value), beta (value).
    """

    card: ClassVar[Card] = Card(
        history="recent pairs replace older ones in the channels of their keys",
        model="linear, S^T q",
        inner="implicit step on the newest pair, its matrix cut to the diagonal",
        error="no error",
        stable="every beta >= 0",
        retained="dk*dv",
        write="3*dk*dv",
        query="dk*dv",
        lost="single pairs, and what lay across key channels when it was overwritten",
    )

    def write(self, s: LinearState, k: Array, v: Array, *, beta: ValueGain = 1.0) -> LinearState:
        """Replace the share D_j k_i^2 of every entry."""
        D = beta / (1.0 + beta * ops.dot(k, k))
        return LinearState((1.0 - ops.outer(k * k, D)) * s.S + ops.outer(k, D * v))


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the entrywise rules."""
    return {"mamba": Mamba, "longhorn_diagonal": LonghornDiagonal}

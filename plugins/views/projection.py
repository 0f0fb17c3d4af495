"""Fixed projections of keys and queries: what a layer would learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from engine import ops
from engine.api import Array, Draws, View, hookimpl

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Projection(View):
    """Keys W_K k and queries W_Q q, by fixed matrices: drawn from a seed, or given.

    Drawn entries are N(0, 1/m), m rows: E|W x|^2 = |x|^2, and with W_Q = W_K also
    E[(W q).(W k)] = q.k. Two independent matrices make what is asked unrelated to what was written,
    as in a layer before training. Values are not touched: a view maps keys and queries only, so a
    W_V has to be applied to the stream.

    Parameters
    ----------
    features : int, optional
        Rows m of drawn matrices, the mapped length. Default: that of the keys.
    seed : int
        Seed of drawn matrices, at least 0; for one length of x the same in every backend.
    tie : bool
        Whether queries go through W_K too.
    w_k, w_q : tuple of rows, optional
        The matrices, a row per mapped entry, of equal shape; w_q only if not tied.
    """

    features: int | None = None
    seed: int = 0
    tie: bool = True
    w_k: Matrix | None = None
    w_q: Matrix | None = None

    def __post_init__(self) -> None:
        if self.features is not None and self.features < 1:
            raise ValueError(f"features = {self.features} must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed} must be at least 0")
        if self.tie and self.w_q is not None:
            raise ValueError("tie = True has no use for w_q: give w_k alone, or set tie = False")
        if not self.tie and (self.w_k is None) != (self.w_q is None):
            raise ValueError("tie = False needs w_k and w_q, or neither to have both drawn")
        if self.w_k is not None and self.features is not None:
            raise ValueError(f"features = {self.features} is for drawn matrices: leave it out")
        shapes = {name: _shape(name, getattr(self, name)) for name in ("w_k", "w_q")}
        if shapes["w_q"] not in (None, shapes["w_k"]):
            raise ValueError(f"w_q is {shapes['w_q']} and w_k {shapes['w_k']}: they must agree")

    def __call__(self, x: Array) -> Array:
        """Map keys x (..., n) to W_K x (..., size(n))."""
        return self._project(x, "w_k")

    def queries(self, x: Array) -> Array:
        """Map queries x (..., n) to W_Q x (..., size(n)), or W_K x if tied."""
        return self._project(x, "w_k" if self.tie else "w_q")

    def size(self, n: int) -> int:
        """Return the number of rows; ValueError if given matrices are not for vectors of n."""
        if self.w_k is None:
            return n if self.features is None else self.features
        if len(self.w_k[0]) != n:
            raise ValueError(f"w_k has rows of {len(self.w_k[0])} numbers and keys have {n}")
        return len(self.w_k)

    def _project(self, x: Array, name: str) -> Array:
        n, given = x.shape[-1], getattr(self, name)
        m = self.size(n)
        if given is None:
            normal = Draws(self.seed, trials=1)(f"view {name} {n}").normal(m, n)[:, 0]
            matrix = normal / math.sqrt(m)
        else:
            matrix = np.array(given, dtype=np.float64)
        xp = array_namespace(x)
        return ops.matvec(xp.asarray(matrix, dtype=x.dtype, device=device(x)), x)


def _shape(name: str, matrix: Matrix | None) -> tuple[int, int] | None:
    """Return rows and columns; ValueError unless it is a matrix of finite numbers."""
    if matrix is None:
        return None
    lengths = sorted({len(row) for row in matrix})
    if len(lengths) != 1 or lengths == [0]:
        raise ValueError(f"{name} has rows of lengths {lengths}: it must have equal rows")
    for i, row in enumerate(matrix):
        for entry in row:
            if not math.isfinite(entry):
                raise ValueError(f"{name}: row {i} holds {entry}; entries must be finite")
    return len(matrix), lengths[0]


@hookimpl
def engine_views() -> Mapping[str, type]:
    """Return fixed projections."""
    return {"projection": Projection}

"""Fixed projections of keys, queries and values: what a layer would learn."""

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
    """Keys W_K k, queries W_Q q and values W_V v, by fixed matrices: drawn from a seed, or given.

    Drawn entries are N(0, 1/m), m rows: E|W x|^2 = |x|^2, and with W_Q = W_K also
    E[(W q).(W k)] = q.k. Two independent matrices make what is asked unrelated to what was written,
    as in a layer before training. Values are left as they are unless `value_features` or `w_v` is
    given.

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
    value_features : int, optional
        Rows of a drawn W_V, the mapped length of values.
    w_v : tuple of rows, optional
        W_V, a row per mapped entry.
    """

    features: int | None = None
    seed: int = 0
    tie: bool = True
    w_k: Matrix | None = None
    w_q: Matrix | None = None
    value_features: int | None = None
    w_v: Matrix | None = None

    def __post_init__(self) -> None:
        for name, matrix in (("features", self.w_k), ("value_features", self.w_v)):
            rows = getattr(self, name)
            if rows is not None and rows < 1:
                raise ValueError(f"{name} = {rows} must be at least 1")
            if rows is not None and matrix is not None:
                raise ValueError(f"{name} = {rows} is for drawn matrices: leave it out")
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed} must be at least 0")
        if self.tie and self.w_q is not None:
            raise ValueError("tie = True has no use for w_q: give w_k alone, or set tie = False")
        if not self.tie and (self.w_k is None) != (self.w_q is None):
            raise ValueError("tie = False needs w_k and w_q, or neither to have both drawn")
        shapes = {name: _shape(name, getattr(self, name)) for name in ("w_k", "w_q", "w_v")}
        if shapes["w_q"] not in (None, shapes["w_k"]):
            raise ValueError(f"w_q is {shapes['w_q']} and w_k {shapes['w_k']}: they must agree")

    def __call__(self, x: Array) -> Array:
        """Map keys x (..., n) to W_K x (..., size(n))."""
        return self._project(x, "w_k", self.size(x.shape[-1]))

    def queries(self, x: Array) -> Array:
        """Map queries x (..., n) to W_Q x (..., size(n)), or W_K x if tied."""
        return self._project(x, "w_k" if self.tie else "w_q", self.size(x.shape[-1]))

    def values(self, v: Array) -> Array:
        """Map values v (..., n) to W_V v (..., value_size(n)), or leave them without a W_V."""
        if self.value_features is None and self.w_v is None:
            return v
        return self._project(v, "w_v", self.value_size(v.shape[-1]))

    def size(self, n: int) -> int:
        """Return the number of rows; ValueError if given matrices are not for vectors of n."""
        return _rows("w_k", self.w_k, self.features, "keys", n)

    def value_size(self, n: int) -> int:
        """Return the number of rows of W_V, n without one; ValueError as for keys."""
        return _rows("w_v", self.w_v, self.value_features, "values", n)

    def _project(self, x: Array, name: str, m: int) -> Array:
        n, given = x.shape[-1], getattr(self, name)
        if given is None:
            normal = Draws(self.seed, trials=1)(f"view {name} {n}").normal(m, n)[:, 0]
            matrix = normal / math.sqrt(m)
        else:
            matrix = np.array(given, dtype=np.float64)
        xp = array_namespace(x)
        return ops.matvec(xp.asarray(matrix, dtype=x.dtype, device=device(x)), x)


def _rows(name: str, matrix: Matrix | None, drawn: int | None, what: str, n: int) -> int:
    """Return the length to which vectors of n are mapped; ValueError if a matrix is for others."""
    if matrix is None:
        return n if drawn is None else drawn
    if len(matrix[0]) != n:
        raise ValueError(f"{name} has rows of {len(matrix[0])} numbers and {what} have {n}")
    return len(matrix)


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

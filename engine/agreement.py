"""When two computations of the same numbers agree: bit for bit, or up to rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def tolerance(dtype: Any, steps: int, width: int) -> float:
    """Return how far two orders of the same operations may part in `steps` steps, relatively.

    Parameters
    ----------
    dtype : dtype
        Floating; anything else must agree exactly, so 0.
    steps, width : int
        Steps taken; terms of a step's longest sum (the key's length).

    Notes
    -----
    A step of a rule that does not expand rounds sums of `width` terms, each by at most eps / 2 of
    the largest number so far, and passes on what was there. Independent roundings of `steps` such
    sums add up to eps / 2 sqrt(steps width); the bound is 64 times that, for a step has several
    sums. A rule that expands does so to the scale that the difference is measured by, too.

    >>> round(tolerance("float64", 10_000, 64) / 2**-52 / 800, 6)
    32.0
    """
    dtype = np.dtype(dtype)
    if dtype.kind != "f":
        return 0.0
    return 32.0 * float(np.finfo(dtype).eps) * math.sqrt(max(steps, 1) * max(width, 1))


def bits_differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return where two arrays of one dtype and shape are not the same bits (any NaN is a NaN)."""
    if one.dtype.kind != "f":
        return np.asarray(one != other)
    raw = f"u{one.dtype.itemsize}"
    a, b = np.ascontiguousarray(one), np.ascontiguousarray(other)
    return np.asarray((a.view(raw) != b.view(raw)) & ~(np.isnan(a) & np.isnan(b)))


@dataclass
class Comparison:
    """Stored rows of one variable against recomputed ones, in order.

    Parameters
    ----------
    allowed : float
        0: bit for bit. Else the largest difference, relative to the largest finite number stored
        so far (at least 1); axis 0 is time.
    worst : float
        Largest such difference seen.
    """

    allowed: float = 0.0
    worst: float = 0.0
    _scale: float = field(default=1.0, repr=False)

    def first(self, stored: np.ndarray, found: np.ndarray) -> tuple[int, ...] | None:
        """Return the index of the first number that does not agree, None if all do."""
        if stored.shape != found.shape or stored.dtype != found.dtype:
            raise ValueError(
                f"{found.dtype} {found.shape} against {stored.dtype} {stored.shape} as stored"
            )
        bad = bits_differ(stored, found)
        if not bad.any():
            self._note(stored)
            return None
        if stored.dtype.kind == "f":
            bad &= self._apart(stored, found)
        if not bad.any():
            return None
        return tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))

    def _note(self, stored: np.ndarray) -> None:
        if self.allowed and stored.size and stored.dtype.kind == "f":
            finite = np.abs(stored, where=np.isfinite(stored), out=np.zeros_like(stored))
            self._scale = max(self._scale, float(finite.max()))

    def _apart(self, stored: np.ndarray, found: np.ndarray) -> np.ndarray:
        """Return where the difference is more than is allowed, row by row of axis 0."""
        x = stored.reshape(len(stored) if stored.ndim else 1, -1).astype(np.float64)
        y = found.reshape(x.shape).astype(np.float64)
        both = np.isfinite(x) & np.isfinite(y)
        size = np.where(np.isfinite(x), np.abs(x), 0.0).max(axis=1, initial=0.0)
        scale = np.maximum.accumulate(np.maximum(size, self._scale))
        with np.errstate(over="ignore", invalid="ignore"):
            share = np.where(both, np.abs(x - y) / scale[:, None], 0.0)
        self._scale = float(scale[-1]) if len(scale) else self._scale
        self.worst = max(self.worst, float(share.max(initial=0.0)))
        apart = np.where(both, share > self.allowed, ~((x == y) | (np.isnan(x) & np.isnan(y))))
        return np.asarray(apart.reshape(stored.shape))

"""Exact comparison, and the size of the examples that checks use."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

STEPS, TRIALS, KEY, VALUE = 24, 3, 6, 5


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], what: str) -> None:
    """Raise AssertionError unless both hold the same numbers under the names of `one`."""
    for name in one:
        if not np.array_equal(one[name], other[name], equal_nan=True):
            difference = np.nanmax(np.abs(np.asarray(one[name], float) - other[name]))
            raise AssertionError(
                f"{what}: {name!r} differs by {difference:.3g}; it must not at all"
            )

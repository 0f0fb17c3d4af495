"""What a memory can still recall."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.measure.lift import lift


def recalled(read: Any, book: Any, wanted: Any) -> Any:
    """Return whether the entry of `book` nearest to each read is the wanted one, as 0.0 or 1.0.

    Parameters
    ----------
    read : array (..., value), or DataArray with dim value
        What a memory answered.
    book : array (..., entry, value), or DataArray with dims entry and value
        Every value it might have meant; entries that are not finite are left out.
    wanted : array of int (...)
        Index of the right entry; where it is negative there is none, and the result is NaN.

    Returns
    -------
    array (...), or DataArray without these dims

    Notes
    -----
    Nearest in Euclidean distance; a read that is not finite recalls nothing.
    """

    def nearest(x: np.ndarray, entries: np.ndarray, index: np.ndarray) -> np.ndarray:
        # |x - e|^2 = |x|^2 - 2 x.e + |e|^2, and |x|^2 is the same for every entry.
        distance = np.sum(entries**2, axis=-1) - 2.0 * _products(x, entries)
        finite = np.isfinite(x).all(-1)
        distance = np.where(np.isfinite(entries).all(-1), distance, np.inf)
        hit = (np.argmin(np.where(finite[..., None], distance, 0.0), axis=-1) == index) & finite
        return np.where(index < 0, np.nan, hit.astype(np.float64))

    return lift(nearest, [["value"], ["entry", "value"], []], read, book, wanted)


def _products(x: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Return x.e for every entry: (query, trial, value) and (1, trial, entry, value), or alike."""
    if x.ndim == 3 and entries.ndim == 4 and len(entries) == 1:  # one matrix product per trial
        return np.swapaxes(np.swapaxes(x, 0, 1) @ np.swapaxes(entries[0], -1, -2), 0, 1)
    return np.asarray(np.einsum("...v,...ev->...e", x, entries))

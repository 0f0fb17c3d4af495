"""What an answer means: the nearest of a book of values."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.measure.lift import lift

SCORES = 2**18
"""Numbers of a table of queries against entries that is in memory at a time."""


def _products(x: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Return x.e for every entry, (..., entry); a matrix product if the first axis has one book."""
    if x.ndim < entries.ndim - 1 or x.ndim == 1 or (entries.ndim > x.ndim and len(entries) > 1):
        return np.asarray((entries @ x[..., None])[..., 0])
    entries = entries[0] if entries.ndim > x.ndim else entries
    turned = np.moveaxis(x, 0, -2)
    return np.asarray(np.moveaxis(turned @ np.swapaxes(entries, -1, -2), -2, 0))


def _scores(x: np.ndarray, entries: np.ndarray, by: str) -> np.ndarray:
    """Return how far each entry is from each read, up to what is the same for every entry."""
    square = np.sum(entries**2, axis=-1)
    product = _products(x, entries)
    if by == "distance":  # |x - e|^2 = |x|^2 - 2 x.e + |e|^2
        product *= -2.0
        product += square
        return product
    if by == "cosine":
        return np.asarray(-product / np.sqrt(np.where(square > 0, square, 1.0)))
    if by == "dot":
        return -product
    raise ValueError(f"by = {by!r} must be 'distance', 'dot' or 'cosine'")


def decoded(
    read: np.ndarray, book: np.ndarray, wanted: np.ndarray, /, by: str = "distance"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest entry to each read, and how many entries are nearer than the right one.

    `decode`, `rank` and `recalled` are this by name; their reads are taken a few at a time.

    Parameters
    ----------
    read : array (..., value)
        What a memory answered.
    book : array (..., entry, value)
        What it might have meant; entries that are not finite are left out.
    wanted : array of int (...)
        Index of the right entry; negative where there is none.
    by : "distance", "dot" or "cosine"
        Nearest by Euclidean distance, inner product or cosine.

    Returns
    -------
    nearest, rank : array of int (...)
        nearest is -1 where the read is not finite, rank where nothing is wanted. Rank 0 is
        recall; of entries equally near the first counts as the nearest; a read that is not finite
        ranks behind every entry.

    Examples
    --------
    >>> book = np.array([[1.0, 0.0], [0.0, 3.0]])
    >>> [int(decoded(np.array([2.0, 1.0]), book, np.array(0), by)[0])
    ...  for by in ("distance", "dot", "cosine")]
    [0, 1, 0]
    """
    read, book, wanted = np.asarray(read), np.asarray(book), np.asarray(wanted)
    shape = np.broadcast_shapes(read.shape[:-1], book.shape[:-2], wanted.shape)
    nearest, place = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
    there = np.isfinite(book).all(-1)
    book = np.where(there[..., None], book, 0.0)
    count = book.shape[-2]

    def fill(x: np.ndarray, entries: np.ndarray, known: np.ndarray, w: np.ndarray, at: Any) -> None:
        sound = np.isfinite(x).all(-1)
        scores = _scores(np.where(sound[..., None], x, 0.0), entries, by)
        scores = scores if known.all() else np.where(known, scores, np.inf)
        size = nearest[at].shape
        scores, sound = np.broadcast_to(scores, (*size, count)), np.broadcast_to(sound, size)
        nearest[at] = np.where(sound & known.any(-1), np.argmin(scores, axis=-1), -1)
        if not np.any(w >= 0):
            place[at] = -1
            return
        right = np.broadcast_to(np.maximum(w, 0), size)[..., None]
        aim = np.take_along_axis(scores, right, axis=-1)
        ahead = (scores < aim) | ((scores == aim) & (np.arange(count) < right))
        place[at] = np.where(w < 0, -1, np.where(sound, ahead.sum(-1), known.sum(-1)))

    if not count:
        return np.full(shape, -1), np.where(wanted < 0, -1, np.zeros(shape, dtype=np.int64))
    if not shape:
        fill(read, book, there, wanted, ...)
    each = int(np.prod(shape[1:], dtype=int)) * count
    rows = max(1, SCORES // max(each, 1))
    for start in range(0, shape[0] if shape else 0, rows):
        at = slice(start, start + rows)
        cut = (
            y[at] if y.ndim == len(shape) + more and len(y) > 1 else y
            for y, more in ((read, 1), (book, 2), (there, 1), (wanted, 0))
        )
        x, entries, known, w = cut
        fill(x, entries, known, w, at)
    return nearest, place


def decode(read: Any, book: Any, /, by: str = "distance") -> Any:
    """Return the index of the entry of `book` that is nearest to each read.

    Parameters
    ----------
    read : array (..., value), or DataArray with dim value
        What a memory answered.
    book : array (..., entry, value), or DataArray with dims entry and value
        Every value it might have meant; entries that are not finite are left out.
    by : "distance", "dot" or "cosine"
        Nearest by Euclidean distance, inner product or cosine.

    Returns
    -------
    array of int (...), or DataArray without these dims
        -1 where the read is not finite.
    """
    return lift(
        lambda x, e: decoded(x, e, np.array(-1), by)[0],
        [["value"], ["entry", "value"]], read, book, dtype=np.int64,
    )  # fmt: skip


def rank(read: Any, book: Any, wanted: Any, /, by: str = "distance") -> Any:
    """Return how many entries of `book` are nearer to each read than the right one; 0 is recall.

    Parameters
    ----------
    read : array (..., value), or DataArray with dim value
        What a memory answered.
    book : array (..., entry, value), or DataArray with dims entry and value
        Every value it might have meant; entries that are not finite are left out.
    wanted : array of int (...)
        Index of the right entry; where it is negative there is none, and the result is -1.
    by : "distance", "dot" or "cosine"
        Nearest by Euclidean distance, inner product or cosine.

    Returns
    -------
    array of int (...), or DataArray without these dims
        A read that is not finite ranks behind every entry.
    """
    return lift(
        lambda x, e, w: decoded(x, e, w, by)[1],
        [["value"], ["entry", "value"], []], read, book, wanted, dtype=np.int64,
    )  # fmt: skip


def recalled(read: Any, book: Any, wanted: Any, /, by: str = "distance") -> Any:
    """Return whether the entry of `book` nearest to each read is the wanted one, as 0.0 or 1.0.

    Parameters
    ----------
    read : array (..., value), or DataArray with dim value
        What a memory answered.
    book : array (..., entry, value), or DataArray with dims entry and value
        Every value it might have meant; entries that are not finite are left out.
    wanted : array of int (...)
        Index of the right entry (of the latest binding, where keys are bound anew); where it is
        negative there is none, and the result is NaN.
    by : "distance", "dot" or "cosine"
        Nearest by Euclidean distance, inner product or cosine.

    Returns
    -------
    array (...), or DataArray without these dims
        A read that is not finite recalls nothing.
    """

    def hit(x: np.ndarray, e: np.ndarray, w: np.ndarray) -> np.ndarray:
        nearest, _ = decoded(x, e, np.array(-1), by)  # a rank costs as much again
        return np.where(w < 0, np.nan, (nearest == w).astype(np.float64))

    return lift(hit, [["value"], ["entry", "value"], []], read, book, wanted)


def intruded(read: Any, book: Any, wanted: Any, older: Any, /, by: str = "distance") -> Any:
    """Return whether a read decodes to what its key held before, as 0.0 or 1.0.

    Parameters
    ----------
    read : array (..., value), or DataArray with dim value
        What a memory answered.
    book : array (..., entry, value), or DataArray with dims entry and value
        Every value it might have meant; entries that are not finite are left out.
    wanted : array of int (...)
        Index of the right entry; where it is negative there is none, and the result is NaN.
    older : array of bool (..., entry), or DataArray with dim entry
        Where an entry was ever bound to the key that is asked for; the right one does not count.
    by : "distance", "dot" or "cosine"
        Nearest by Euclidean distance, inner product or cosine.

    Returns
    -------
    array (...), or DataArray without these dims
    """

    def old(x: np.ndarray, e: np.ndarray, w: np.ndarray, o: np.ndarray) -> np.ndarray:
        nearest, _ = decoded(x, e, w, by)
        held = np.broadcast_to(o, (*nearest.shape, o.shape[-1]))
        found = np.take_along_axis(held, np.maximum(nearest, 0)[..., None], axis=-1)[..., 0]
        return np.where(w < 0, np.nan, found & (nearest >= 0) & (nearest != w))

    dims = [["value"], ["entry", "value"], [], ["entry"]]
    return lift(old, dims, read, book, wanted, older)

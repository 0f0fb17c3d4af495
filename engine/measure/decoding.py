"""What an answer means: the nearest of a book of values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.cores import share
from engine.errors import InputError
from engine.measure.lift import lift

SCORES = 2**16
"""Numbers of a table of queries against entries that is computed at a time: it stays in cache."""

PRODUCT = 2**18
"""Multiplications of one matrix product: beyond it BLAS wakes threads that wait for one another."""

TILES = 2
"""Tiles that are worth a thread."""


def _squares(entries: np.ndarray, by: str) -> np.ndarray:
    """Return |e|^2 of every entry, a row of numbers for a table; by product nothing is needed."""
    if by not in ("distance", "dot", "cosine"):
        raise InputError(f"by = {by!r} must be 'distance', 'dot' or 'cosine'")
    if by == "dot":
        return np.zeros((*entries.shape[:-2], 1, entries.shape[-2]))
    return np.asarray(np.einsum("...ij,...ij->...i", entries, entries)[..., None, :])


def _scores(x: np.ndarray, entries: np.ndarray, square: np.ndarray, by: str) -> np.ndarray:
    """Return how far each entry is from each read, up to what is the same for every entry."""
    scores = np.matmul((-2.0 if by == "distance" else -1.0) * x, np.swapaxes(entries, -1, -2))
    if by == "distance":  # |x - e|^2 = |x|^2 - 2 x.e + |e|^2
        scores += square
    elif by == "cosine":
        scores /= np.sqrt(np.where(square > 0, square, 1.0))
    return np.asarray(scores)


def _tiles(shape: tuple[int, ...], count: int, width: int) -> Iterator[tuple[Any, ...]]:
    """Yield slices of the first and the last axis of reads, of which each has `SCORES` scores."""
    *rest, n = shape
    reads = max(1, min(n, PRODUCT // max(count * width, 1)))
    each = reads * count * int(np.prod(rest[1:], dtype=int))
    books = max(1, SCORES // max(each, 1))
    for first in range(0, rest[0], books) if rest else (None,):
        for i in range(0, n, reads):
            last = slice(i, i + reads)
            yield (last,) if first is None else (slice(first, first + books), ..., last)


def _finite(x: np.ndarray) -> np.ndarray | None:
    """Return which vectors are finite; None if all are."""
    each = np.isfinite(x)
    return None if each.all() else np.asarray(each.all(-1))


def _ahead(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return how many entries come before the right one; of equals, the first comes first."""
    right = right[..., None]
    aim = np.take_along_axis(scores, right, axis=-1)
    ahead, equal = scores < aim, scores == aim
    if np.count_nonzero(equal) > right.size:
        ahead |= equal & (np.arange(scores.shape[-1]) < right)
    # Eight to a byte: a sum along an axis of bools takes three times as long.
    bits = np.bitwise_count(np.packbits(ahead, axis=-1))
    return np.asarray(np.einsum("...i->...", bits, dtype=np.int64))


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
    *lead, count, width = book.shape
    shape = np.broadcast_shapes(read.shape[:-1], tuple(lead), wanted.shape)
    if not count:
        return np.full(shape, -1), np.where(wanted < 0, -1, np.zeros(shape, dtype=np.int64))
    x, w = np.broadcast_to(read, (*shape, width)), np.broadcast_to(wanted, shape)
    # The reads of the first axis are the rows of a matrix, if they have one book.
    shared = bool(shape) and (len(lead) < len(shape) or lead[0] == 1)
    if shared:
        x, w = np.moveaxis(x, 0, -2), np.moveaxis(w, 0, -1)
        book = book[0] if len(lead) == len(shape) else book
    else:
        x, w = x[..., None, :], w[..., None]
    there = _finite(book)
    if there is not None:
        book = np.where(there[..., None], book, 0.0)
    square = _squares(book, by)
    nearest, place = np.empty(w.shape, dtype=np.int64), np.empty(w.shape, dtype=np.int64)
    many = book.ndim - 1 == w.ndim > 1 and len(book) > 1

    def place_tile(at: tuple[Any, ...]) -> None:
        own = at[0] if many else ...
        entries = book[own], square[own], None if there is None else there[own]
        nearest[at], place[at] = _placed(x[(*at, slice(None))], *entries, w[at], by)

    tiles = list(_tiles(w.shape, count, width))
    share(place_tile, tiles, len(tiles) // TILES)
    if shared:
        return np.moveaxis(nearest, -1, 0), np.moveaxis(place, -1, 0)
    return nearest[..., 0], place[..., 0]


def _placed(
    x: np.ndarray, entries: np.ndarray, square: np.ndarray, known: np.ndarray | None,
    wanted: np.ndarray, by: str,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return `decoded` of reads (..., read, value) and books (..., entry, value)."""
    sound = _finite(x)
    x = x if sound is None else np.where(sound[..., None], x, 0.0)
    scores = _scores(x, entries, square, by)
    if known is not None:
        scores = np.where(known[..., None, :], scores, np.inf)
    nearest = np.argmin(scores, axis=-1)
    if known is not None:
        nearest = np.where(np.any(known, -1, keepdims=True), nearest, -1)
    right = np.maximum(wanted, 0)
    missed = (wanted >= 0) & (nearest != wanted)
    rank = _ahead(scores, right) if missed.any() else np.zeros_like(nearest)
    if sound is not None:
        last = entries.shape[-2] if known is None else np.sum(known, -1, keepdims=True)
        nearest, rank = np.where(sound, nearest, -1), np.where(sound, rank, last)
    return nearest, np.where(wanted < 0, -1, rank)


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

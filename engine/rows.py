"""Append-only rows: the state of memories that keep every pair, shared between their states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from engine import ops

Array = Any


class _Buffer:
    """Storage of shape (trial, capacity, ...) and, per trial, how many of its rows are taken."""

    def __init__(self, array: Array, taken: np.ndarray, rewritten: bool = False) -> None:
        self.array, self.taken, self.rewritten = array, taken, rewritten

    def reserve(self, rows: int) -> None:
        trials, capacity, *shape = self.array.shape
        if rows > capacity:
            xp = array_namespace(self.array)
            room = (trials, max(rows, 2 * capacity, 16) - capacity, *shape)
            device = getattr(self.array, "device", None)
            more = xp.zeros(room, dtype=self.array.dtype, device=device)
            self.array = xp.concat([self.array, more], axis=1)


class Rows:
    """The first `length` rows, per trial, of a buffer that states share.

    Appending returns a new `Rows` and copies nothing unless another state already took the place
    behind this one's last row: then the buffer is copied first, so no state ever changes.

    Parameters
    ----------
    array : array, shape (trial, row, ...)
        The rows to begin with.
    length : array of int, shape (trial,), optional
        How many of them each trial holds (default: all).
    """

    def __init__(self, array: Array, length: Any = None, _buffer: _Buffer | None = None) -> None:
        full = np.full(array.shape[0], array.shape[1], dtype=np.int64)
        self.length: np.ndarray = full if length is None else np.array(length, dtype=np.int64)
        # A given array is the giver's: every place of it is taken, so appending copies it first.
        self._buffer = _buffer or _Buffer(array, full)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Rows, (self.array, self.length))

    @property
    def array(self) -> Array:
        """The rows as one array (trial, longest length, ...); those past a trial's own are void."""
        return self._buffer.array[:, : int(self.length.max(initial=0)), ...]

    @property
    def rewritten(self) -> bool:
        """Whether rows were changed since they were appended: earlier states are not in these."""
        return self._buffer.rewritten

    def append(self, row: Array) -> Rows:
        """Return the rows with `row`, of shape (trial, ...), added at every trial's end."""
        buffer, length = self._buffer, self.length
        if np.any(buffer.taken > length):
            xp = array_namespace(buffer.array)
            buffer = _Buffer(xp.asarray(buffer.array, copy=True), length.copy(), buffer.rewritten)
        buffer.reserve(int(length.max(initial=0)) + 1)
        if length.size and np.all(length == length[0]):
            buffer.array[:, int(length[0]), ...] = row
        else:
            for trial, end in enumerate(length.tolist()):
                buffer.array[trial, end, ...] = row[trial, ...]
        buffer.taken = length + 1
        return Rows(buffer.array, length + 1, buffer)

    def extend(self, rows: Array, mask: np.ndarray | None = None) -> Rows:
        """Return the rows with `rows`, (step, trial, ...), added; `mask` (step, trial) says which.

        They are what `append` would give, step by step.
        """
        buffer, length = self._buffer, self.length
        xp = array_namespace(buffer.array)
        if np.any(buffer.taken > length):
            buffer = _Buffer(xp.asarray(buffer.array, copy=True), length.copy())
        more = np.full(len(length), rows.shape[0]) if mask is None else mask.sum(axis=0)
        end = length + more
        buffer.reserve(int(end.max(initial=0)))
        if np.all(length == length[:1]) and (more == rows.shape[0]).all():
            by_trial = xp.permute_dims(rows, (1, 0, *range(2, rows.ndim)))
            buffer.array[:, int(length[0]) : int(end[0]), ...] = by_trial
        else:
            for trial, (first, last) in enumerate(zip(length.tolist(), end.tolist(), strict=True)):
                own = rows[:, trial, ...]
                if mask is not None:
                    index = np.flatnonzero(mask[:, trial])
                    where = getattr(own, "device", None)
                    own = xp.take(own, xp.asarray(index, device=where), axis=0)
                buffer.array[trial, first:last, ...] = own
        buffer.taken = end
        return Rows(buffer.array, end, buffer)

    def map(self, function: Callable[[Array], Array]) -> Rows:
        """Return rows of their own with `function` applied to all of them: O(rows) work.

        `function` takes an array (trial, row, ...), void rows included, and returns a new one; it
        must act row by row.
        """
        old = self._buffer.array
        new = function(old)  # with its spare room, so that appending copies nothing
        if new is old or (isinstance(new, np.ndarray) and np.may_share_memory(new, old)):
            new = array_namespace(old).asarray(new, copy=True)
        return Rows(new, self.length, _Buffer(new, self.length.copy(), rewritten=True))

    def where(self, mask: np.ndarray, old: Rows) -> Rows:
        """Return these rows where `mask` (trial,) is true and `old` elsewhere.

        These rows must have come from `old` by `append` or `map` and be dropped by the caller, as a
        loop does with a masked write: the places they took are free again.
        """
        length = np.where(mask, self.length, old.length)
        if self._buffer is not old._buffer:
            mixed = self._mixed(mask, old)
            rewritten = self.rewritten or old.rewritten
            return Rows(mixed, length, _Buffer(mixed, length.copy(), rewritten))
        # Only places that these rows took are freed: one behind `old` may be another state's.
        freed = ~mask & (self.length > old.length)
        self._buffer.taken = np.where(freed, old.length, self._buffer.taken)
        return Rows(self._buffer.array, length, self._buffer)

    def _mixed(self, mask: np.ndarray, old: Rows) -> Array:
        """Return one array whose trials come from these rows or from the old ones."""
        new, past = self.array, old.array
        xp = array_namespace(new)
        device = getattr(new, "device", None)
        shape = (new.shape[0], max(new.shape[1], past.shape[1]), *new.shape[2:])
        mixed = xp.zeros(shape, dtype=new.dtype, device=device)
        for trial, from_new in enumerate(mask.tolist()):
            rows = new if from_new else past
            mixed[trial, : rows.shape[1], ...] = rows[trial, ...]
        return mixed


def each_length(read: Callable[..., Array], rows: Rows, *arrays: Array | Rows) -> Array:
    """Return `read(row array, ...)` for trials whose memories may differ in length.

    Parameters
    ----------
    read : callable
        Takes arrays with a leading trial axis and returns one (trial, ...). Rows arrive trimmed.
    rows, *arrays : Rows or array, leading axis trial
        What `read` is given, in order.

    Notes
    -----
    Trials of unequal length are read one by one, exactly as each would be alone: padding never
    enters a sum, so a trial's bits do not depend on its neighbours.
    """
    given = (rows, *arrays)
    if all(np.all(x.length == x.length[0]) for x in given if isinstance(x, Rows)):
        return read(*(x.array if isinstance(x, Rows) else x for x in given))
    parts = []
    for b in range(len(rows.length)):
        parts.append(
            read(
                *(
                    x._buffer.array[b : b + 1, : int(x.length[b]), ...]
                    if isinstance(x, Rows)
                    else x[b : b + 1, ...]
                    for x in given
                )
            )
        )
    return array_namespace(parts[0]).concat(parts, axis=0)


def attend(keys: Rows, values: Rows, q: Array, scale: float) -> Array:
    """Return sum_j softmax_j(scale q.k_j) v_j, (..., value): the read of softmax attention."""

    def read(k: Array, v: Array, x: Array) -> Array:
        return ops.vecmat(ops.softmax(ops.matvec(k, scale * x)), v)

    return each_length(read, keys, values, q)


def fade(bias: Rows, gamma: Array | float, k: Array) -> Rows:
    """Return rows of log weights, each plus log gamma, and a new one of 0 for the key `k`."""
    now = array_namespace(k).zeros_like(k[..., 0])
    return bias.map(lambda b: b + ops.log(gamma)).append(now)

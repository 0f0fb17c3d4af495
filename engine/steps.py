"""The step loop: read, write, read, one step at a time, for any rule on any array library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from engine.api import Array, Rows, Solver
from engine.backend import Backend
from engine.errors import RunError

ASKED = 2**19  # numbers of states, counted for every query, that are read at a time


@dataclass(frozen=True)
class Block:
    """Consecutive steps as a solver sees them, in its dtype and on its device.

    Parameters
    ----------
    start : int
        First step.
    keys, values, queries : array (step, trial, ...)
        Tokens; keys and queries as the view maps them.
    mask : NumPy array of bool (step, trial), optional
        False skips the write.
    writes, reads : mapping of str to array (step or 1, trial or 1, axis or 1)
        Coefficients of `write` and of `read`.
    record : bool
        Whether the states on the way are wanted.
    silent : bool
        Whether the step loop may leave out the reads: only the state after the block is wanted.
    """

    start: int
    keys: Array
    values: Array
    queries: Array
    mask: np.ndarray | None
    writes: Mapping[str, Array]
    reads: Mapping[str, Array]
    record: bool = True
    silent: bool = False

    def cut(self, n: int) -> Iterator[Block]:
        """Yield the pieces that end where a multiple of `n` steps is done; a last one may not."""
        stop, begin = self.start + self.keys.shape[0], self.start
        while True:
            end = min(begin - begin % n + n, stop)
            rows = slice(begin - self.start, end - self.start)

            def own(x: Array, rows: slice = rows) -> Array:
                return x if x.shape[0] == 1 else x[rows, ...]

            yield replace(
                self, start=begin, keys=self.keys[rows, ...], values=self.values[rows, ...],
                queries=self.queries[rows, ...],
                mask=None if self.mask is None else self.mask[rows],
                writes={name: own(x) for name, x in self.writes.items()},
                reads={name: own(x) for name, x in self.reads.items()},
            )  # fmt: skip
            begin = end
            if begin >= stop:
                return


class Advanced(NamedTuple):
    """What a block came to: the state after it, both reads, and every state on the way.

    `states` maps state variables (and `rows`) to arrays (step, trial, ...); it may be empty if the
    block did not ask for them. `finite` says that all of it is known to be finite; `correction` is
    the largest share of its error that a write took back (`linear.correction`), and its step, where
    the form has seen to that.
    """

    state: Any
    prediction: Array
    output: Array
    states: Mapping[str, Array]
    finite: bool = False
    correction: tuple[float, int] | None = None


def recorded(state: Any) -> dict[str, Any]:
    """Return what is recorded of a state: its arrays, and `rows`, the rows held."""
    fields = zip(state._fields, state, strict=True)
    return dict(("rows", x.length) if isinstance(x, Rows) else (n, x) for n, x in fields)


def advance(solver: Solver, state: Any, block: Block, backend: Backend) -> Advanced:
    """Run a block step by step.

    Raises
    ------
    RunError
        If the rule fails; it names the step.
    """
    xp, device = backend.xp, backend.device
    n, trials, _ = block.keys.shape
    shape, dtype = (n, trials, block.values.shape[-1]), block.keys.dtype
    prediction, output = (xp.zeros(shape, dtype=dtype, device=device) for _ in range(2))
    states: dict[str, Any] = {
        name: np.empty((n, trials), dtype=np.int64)
        if name == "rows"
        else xp.empty((n, *x.shape), dtype=x.dtype, device=device)
        for name, x in recorded(state).items()
    }
    reads = {name: _spread(xp, x, n, trials) for name, x in block.reads.items()}
    writes = {name: _spread(xp, x, n, trials) for name, x in block.writes.items()}
    mask, i = block.mask, 0
    try:
        for i in range(n):
            k, v, q = block.keys[i, ...], block.values[i, ...], block.queries[i, ...]
            for_read = {name: x[i, ...] for name, x in reads.items()}
            if not block.silent:
                store(prediction, i, solver.read(state, k, **for_read), "read")
            skip = mask is not None and not mask[i].all()
            old = copied(xp, state) if skip else state
            new = solver.write(state, k, v, **{name: x[i, ...] for name, x in writes.items()})
            if type(new) is not type(state):
                raise TypeError(f"write gave {type(new).__name__}, not {type(state).__name__}")
            state = _select(xp, device, mask[i], new, old) if mask is not None and skip else new
            if not block.silent:
                store(output, i, solver.read(state, q, **for_read), "read")
            for name, x in zip(state._fields, state, strict=True):
                if isinstance(x, Rows):
                    states["rows"][i] = x.length
                else:
                    store(states[name], i, x, name)
    except KeyboardInterrupt as asked:
        asked.add_note(f"interrupted at step {block.start + i}")
        raise
    # A rule may raise anything, an exit too; the run says which and where.
    except (Exception, SystemExit) as error:
        raise RunError(
            f"failed at step {block.start + i}: {type(error).__name__}: {error}"
        ) from error
    return Advanced(state, prediction, output, states)


def store(into: Any, i: int, array: Any, what: str) -> None:
    """Copy a step's array into its row; assignment alone would broadcast or cast silently."""
    _expect(array, into.shape[1:], into.dtype, what)
    into[i, ...] = array


def _expect(array: Any, shape: tuple[int, ...], dtype: Any, what: str) -> None:
    if getattr(array, "shape", None) != shape or array.dtype != dtype:
        found = f"{array.dtype} {array.shape}" if hasattr(array, "dtype") else type(array).__name__
        raise TypeError(f"{what} gave {found}, expected {dtype} {shape}")


def ask(solver: Solver, state: Any, queries: Array, reads: Mapping[str, Array], out: Array) -> None:
    """Read a state at every query (query, trial, key) into `out` (query, trial, value).

    Many queries at a time, one more leading axis, which is nobody's business; one at a time where
    the state holds rows, whose one leading axis is the trials.
    """
    if any(isinstance(x, Rows) for x in state):
        for i in range(queries.shape[0]):
            store(out, i, solver.read(state, queries[i, ...], **reads), "read")
        return
    xp = array_namespace(queries)
    numbers = sum(math.prod(x.shape) for x in state)
    size = max(1, ASKED // max(numbers, 1))
    for start in range(0, queries.shape[0], size):
        part = queries[start : start + size, ...]

        def wide(x: Array, n: int = part.shape[0]) -> Array:
            return xp.broadcast_to(x, (n, *x.shape))

        each = {name: wide(x) for name, x in reads.items()}
        read = solver.read(type(state)(*map(wide, state)), part, **each)
        _expect(read, (part.shape[0], *out.shape[1:]), out.dtype, "read")
        out[start : start + size, ...] = read


def _spread(xp: Any, x: Array, steps: int, trials: int) -> Array:
    return xp.broadcast_to(x, (steps, trials, x.shape[-1]))


def copied(xp: Any, state: Any) -> Any:
    """Return a state that outlives a write in place; rows never change."""
    return type(state)(*(x if isinstance(x, Rows) else xp.asarray(x, copy=True) for x in state))


def _select(xp: Any, device: Any, mask: np.ndarray, new: Any, old: Any) -> Any:
    """Return the new state where the mask is true, the old one, bit for bit, elsewhere."""

    def pick(a: Any, b: Any) -> Any:
        if isinstance(a, Rows):
            return a.where(mask, b)
        chosen = mask.reshape(-1, *([1] * (a.ndim - 1)))
        return xp.where(xp.asarray(chosen, device=device), a, b)

    return type(new)(*(pick(a, b) for a, b in zip(new, old, strict=True)))

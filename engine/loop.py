"""The loop: tokens through solvers, block by block. Read this first.

A `Source` yields blocks of tokens; each `Track` folds a block into its solver's state and says what
happened at every step; a `Frame` carries both. Recording, printing and measuring are consumers of
frames: the loop does not know that it is watched.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from engine import signatures
from engine.api import Rows, Solver, Space, View
from engine.backend import Backend
from engine.coefficients import Binding
from engine.errors import InputError, RunError
from engine.frames import Frame, Trace
from engine.sources import Source, Tokens


class Track:
    """One solver on one stream: its state, and how tokens reach it.

    Parameters
    ----------
    label : str
        Name in frames and stores.
    solver : Solver
        The rule.
    source : Source
        The stream that it will be given.
    bindings : mapping of str to Binding
        Every coefficient of the rule.
    view : View, optional
        Applied to keys and queries.
    backend, dtype
        Where and in what precision to compute.
    """

    def __init__(
        self, label: str, solver: Solver, source: Source, bindings: Mapping[str, Binding],
        view: View | None, backend: Backend, dtype: str,
    ) -> None:  # fmt: skip
        self.label, self.solver, self.bindings, self.view = label, solver, bindings, view
        self.backend, self.dtype = backend, np.dtype(dtype)
        self.kernel = "loop"
        self.seconds, self.steps, self.trials = 0.0, 0, source.trials
        key, value = source.sample["keys"].shape[-1], source.sample["values"].shape[-1]
        where = (self.trials,), backend.xp, backend.dtype(dtype), backend.device
        try:
            self.sizes = {"key": view.size(key) if view else key, "value": value}
            self.state = solver.init(Space(self.sizes, *where))
        except ValueError as error:  # an option that does not fit the stream's sizes
            raise InputError(str(error)) from error
        except Exception as error:  # a rule may raise anything
            raise RunError(
                f"{type(solver).__name__}.init failed: {type(error).__name__}: {error}"
            ) from error
        self.diverged_at = np.full(self.trials, -1, dtype=np.int64)
        self.state_dims = self._check()
        declared = signatures.coefficients(type(solver))
        given = [(name, d.methods) for name, d in declared.items() if name in bindings]
        self._last: dict[str, np.ndarray] = {}
        self._reads = [name for name, methods in given if "read" in methods]
        self._writes = [name for name, methods in given if methods - {"read"}]

    def _check(self) -> dict[str, tuple[str, ...]]:
        """Check shapes against declared dims, learn the sizes of dims that the rule brings."""
        rule, dims = type(self.solver).__name__, signatures.state_dims(type(self.state))
        taken = {"prediction", "output", "diverged_at", "rows", "mask", "step", "trial", "row"}
        taken = taken.union(self.bindings, *dims.values())
        for name, own in dims.items():
            if name in taken:
                raise InputError(
                    f"{rule}: the state variable {name!r} has a name that a coefficient, a dim or "
                    "the host uses; rename it"
                )
            if len({"step", "trial", *own}) < 2 + len(own):
                raise InputError(
                    f"{rule}: the dims {' '.join(own)!r} of {name} must differ from each other and "
                    'from step and trial; a second "key" is "key_2"'
                )
        for name, array in zip(self.state._fields, self.state, strict=True):
            if isinstance(array, Rows):
                continue
            shape = tuple(array.shape)
            for dim, n in zip(dims[name], shape[1:], strict=False):
                self.sizes.setdefault(dim.removesuffix("_2"), n)
            wanted = (self.trials, *(self.sizes.get(d.removesuffix("_2")) for d in dims[name]))
            if shape != wanted:
                raise InputError(
                    f"{rule}.init: {name} has shape {shape}, but its dims {' '.join(dims[name])!r} "
                    f"and {self.trials} trials say {wanted}"
                )
        for name, binding in self.bindings.items():
            axis, source = binding.spec.axis, binding.source
            width = source.shape[-1] if isinstance(source, np.ndarray) else 1
            if axis in self.sizes and width not in (1, self.sizes[axis]):
                raise InputError(
                    f"{name} has {width} numbers per step, {rule} has {self.sizes[axis]} {axis} "
                    "channels"
                )
        return dims

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the present state as NumPy arrays, (trial, ...), or (row, trial, ...) for rows."""
        get, fields = self.backend.get, zip(self.state._fields, self.state, strict=True)
        return {
            n: get(x.array).swapaxes(0, 1) if isinstance(x, Rows) else get(x) for n, x in fields
        }

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """Dims of every variable of a trace, "step" first where it has one."""
        read = ("step", "trial", "value")
        dims: dict[str, tuple[str, ...]] = {"prediction": read, "output": read}
        for name, array in zip(self.state._fields, self.state, strict=True):
            if isinstance(array, Rows):
                dims["rows"] = ("step", "trial")
            else:
                dims[name] = ("step", "trial", *self.state_dims[name])
        return {**dims, **{name: b.dims for name, b in self.bindings.items()}}

    def ask(self, queries: np.ndarray) -> np.ndarray:
        """Return the present state's reads at host queries (query, trial, key); nothing changes.

        Coefficients of `read` are those of the last step.
        """
        asked = self._through("queries", self._lend(queries), queries.shape[:2])
        first = Tokens(0, {"keys": queries[:1]})
        reads = {}
        for name in self._reads:
            values = self._last[name] if self._last else self.bindings[name].block(first)
            reads[name] = self._spread(name, values, 1)[0, ...]
        out = self._empty((*queries.shape[:2], self.sizes["value"]))
        with np.errstate(all="ignore"):
            for i in range(len(queries)):
                _store(out, i, self.solver.read(self.state, asked[i, ...], **reads), "read")
        return self.backend.get(out)

    def advance(self, tokens: Tokens) -> Trace:
        """Fold a block of tokens into the state and return what happened at every step."""
        began = time.perf_counter()
        with np.errstate(all="ignore"):  # what overflows is found below and named
            try:
                coefficients = {name: b.block(tokens) for name, b in self.bindings.items()}
            except InputError as error:  # a side channel that left the bounds under way
                raise RunError(f"solver {self.label!r}: {error}") from error
            prediction, output, states = self._steps(tokens, coefficients)
        if len(tokens):
            self._last = {name: coefficients[name][-1:] for name in self._reads}
        self._note_divergence(tokens, prediction, output, states)
        elapsed = time.perf_counter() - began
        self.seconds, self.steps = self.seconds + elapsed, self.steps + len(tokens)
        kept = {name: self.bindings[name].recorded(x) for name, x in coefficients.items()}
        return Trace(prediction, output, states, kept, self.dims, elapsed)

    def _steps(
        self, tokens: Tokens, coefficients: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Run read, write, read for every step of a block."""
        keys, values, queries = self._put(tokens)
        n, trials = keys.shape[:2]
        mask = tokens.arrays.get("mask")
        prediction, output = (self._empty((n, trials, self.sizes["value"])) for _ in range(2))
        states: dict[str, Any] = {
            name: np.empty((n, trials), dtype=np.int64)
            if name == "rows"
            else self._empty((n, *x.shape), x.dtype)
            for name, x in self.recorded().items()
        }
        spread = {name: self._spread(name, x, n) for name, x in coefficients.items()}
        state, i = self.state, 0
        try:
            for i in range(n):
                reads = {name: spread[name][i, ...] for name in self._reads}
                writes = {name: spread[name][i, ...] for name in self._writes}
                _store(prediction, i, self.solver.read(state, keys[i, ...], **reads), "read")
                skip = mask is not None and not mask[i].all()
                old = self._copied(state) if skip else state
                new = self.solver.write(state, keys[i, ...], values[i, ...], **writes)
                if type(new) is not type(state):
                    raise TypeError(f"write gave {type(new).__name__}, not {type(state).__name__}")
                state = self._select(mask[i], new, old) if mask is not None and skip else new
                _store(output, i, self.solver.read(state, queries[i, ...], **reads), "read")
                for name, x in zip(state._fields, state, strict=True):
                    if isinstance(x, Rows):
                        states["rows"][i] = x.length
                    else:
                        _store(states[name], i, x, name)
        # A rule may raise anything, an exit too; the run says which and where.
        except (Exception, SystemExit) as error:
            raise RunError(
                f"solver {self.label!r} failed at step {tokens.start + i}: "
                f"{type(error).__name__}: {error}"
            ) from error
        self.state = state
        got = {name: x if name == "rows" else self.backend.get(x) for name, x in states.items()}
        prediction, output = self.backend.get(prediction), self.backend.get(output)
        if mask is not None:
            prediction[~mask] = np.nan  # nothing was to be predicted
            if "queries" not in tokens.arrays:
                output[~mask] = np.nan  # nothing was asked
        return prediction, output, got

    def _put(self, tokens: Tokens) -> tuple[Any, Any, Any]:
        """Return keys, values and queries on the device, keys and queries through the view."""
        keys, lead = tokens.arrays["keys"], tokens.arrays["keys"].shape[:2]
        asked = tokens.arrays.get("queries", keys)
        try:
            return (
                self._through("keys", self._lend(keys), lead),
                self._lend(tokens.arrays["values"]),
                self._through("queries", self._lend(asked), lead),
            )
        except Exception as error:  # a view may raise anything
            raise RunError(
                f"the view of solver {self.label!r} failed at steps {tokens.start} to "
                f"{tokens.start + len(tokens) - 1}: {type(error).__name__}: {error}"
            ) from error

    def _lend(self, array: np.ndarray) -> Any:
        """Return a stream's array on the device; on the host nobody can write into it."""
        lent = self.backend.put(np.broadcast_to(array, array.shape), self.dtype)
        if isinstance(lent, np.ndarray):
            lent.flags.writeable = False
        return lent

    def _through(self, what: str, x: Any, lead: tuple[int, ...]) -> Any:
        """Return keys or queries as the solver sees them."""
        if self.view is None:
            return x
        seen = self.view(x) if what == "keys" else self.view.queries(x)
        shape = (*lead, self.sizes["key"])
        if tuple(seen.shape) != shape or seen.dtype != x.dtype:
            raise TypeError(f"{what} became {seen.dtype} {seen.shape}, expected {x.dtype} {shape}")
        return seen

    def _empty(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        dtype = dtype or self.backend.dtype(self.dtype.name)
        return self.backend.xp.empty(shape, dtype=dtype, device=self.backend.device)

    def recorded(self) -> dict[str, Any]:
        """Return what is recorded of the present state: its arrays, and `rows`, the rows held."""
        fields = zip(self.state._fields, self.state, strict=True)
        return dict(("rows", x.length) if isinstance(x, Rows) else (n, x) for n, x in fields)

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set the state from host arrays as `arrays` and `recorded` give them.

        Raises
        ------
        InputError
            If a state variable is missing or has the wrong shape.
        """
        fields: dict[str, Any] = {}
        for name, x in zip(self.state._fields, self.state, strict=True):
            if name not in arrays:
                raise InputError(
                    f"state: no {name!r}; it must give {', '.join(self.state._fields)}"
                )
            # A copy: a rule that writes in place must not reach the caller's arrays.
            array = np.array(arrays[name])
            if isinstance(x, Rows):
                fields[name] = self._rows(name, array.swapaxes(0, 1), x, arrays.get("rows"))
            elif array.shape != tuple(x.shape):
                raise InputError(
                    f"state: {name!r} has shape {array.shape}, expected {tuple(x.shape)}"
                )
            else:
                fields[name] = self.backend.put(array, self.backend.get(x).dtype)
        lengths = {n: x.length.tolist() for n, x in fields.items() if isinstance(x, Rows)}
        if len({str(length) for length in lengths.values()}) > 1:
            raise InputError(f"state: {lengths} must be equal numbers of rows")
        self.state = type(self.state)(**fields)

    def _rows(self, name: str, array: np.ndarray, empty: Rows, held: np.ndarray | None) -> Rows:
        """Return rows (trial, row, ...) of which each trial holds the first `held` (None: all)."""
        wanted = (self.trials, *empty.array.shape[2:])
        if (array.shape[0], *array.shape[2:]) != wanted:
            found = (array.shape[1], array.shape[0], *array.shape[2:])
            raise InputError(
                f"state: {name!r} has shape {found}, expected (rows, {str(wanted)[1:]}"
            )
        count = array.shape[1]
        length = np.full(self.trials, count) if held is None else np.asarray(held)
        if length.shape != (self.trials,) or np.any((length < 0) | (length > count)):
            raise InputError(
                f"state: 'rows' = {length.tolist()} must be {self.trials} counts from 0 to the "
                f"{count} rows of {name!r}"
            )
        return Rows(self.backend.put(array, self.dtype), length)

    def _spread(self, name: str, values: np.ndarray, steps: int) -> Any:
        """Return a coefficient on the device, (step, trial, its axis or 1)."""
        axis = self.bindings[name].spec.axis
        width = (self.sizes.get(axis) or values.shape[-1]) if axis else 1
        return self.backend.put(np.broadcast_to(values, (steps, self.trials, width)), self.dtype)

    def _copied(self, state: Any) -> Any:
        """Return a state that outlives a write in place; rows never change."""
        xp = self.backend.xp
        return type(state)(*(x if isinstance(x, Rows) else xp.asarray(x, copy=True) for x in state))

    def _select(self, mask: np.ndarray, new: Any, old: Any) -> Any:
        """Return the new state where the mask is true, the old one, bit for bit, elsewhere."""
        xp, device = self.backend.xp, self.backend.device

        def pick(a: Any, b: Any) -> Any:
            if isinstance(a, Rows):
                return a.where(mask, b)
            chosen = mask.reshape(-1, *([1] * (a.ndim - 1)))
            return xp.where(xp.asarray(chosen, device=device), a, b)

        return type(new)(*(pick(a, b) for a, b in zip(new, old, strict=True)))

    def _note_divergence(
        self,
        tokens: Tokens,
        prediction: np.ndarray,
        output: np.ndarray,
        states: Mapping[str, np.ndarray],
    ) -> None:
        """Note, per trial, the first step with a non-finite state, or read of a finite query."""
        mask = tokens.arrays.get("mask")
        if mask is None:
            mask = np.ones(output.shape[:2], dtype=bool)
        asked = (
            np.isfinite(tokens.arrays["queries"]).all(-1) if "queries" in tokens.arrays else mask
        )
        bad = (asked & ~np.isfinite(output).all(-1)) | (mask & ~np.isfinite(prediction).all(-1))
        for x in states.values():
            if x.dtype.kind == "f":
                bad |= ~np.isfinite(x).reshape(*bad.shape, -1).all(-1)
        first = np.where(bad.any(0), tokens.start + bad.argmax(0), -1) if len(tokens) else -1
        self.diverged_at = np.where(self.diverged_at < 0, first, self.diverged_at)


def _store(into: Any, i: int, array: Any, what: str) -> None:
    """Copy a step's array into its row; assignment alone would broadcast or cast silently."""
    if getattr(array, "shape", None) != into.shape[1:] or array.dtype != into.dtype:
        found = f"{array.dtype} {array.shape}" if hasattr(array, "dtype") else type(array).__name__
        raise TypeError(f"{what} gave {found}, expected {into.dtype} {into.shape[1:]}")
    into[i, ...] = array


def loop(source: Source, tracks: Sequence[Track], block: int) -> Iterator[Frame]:
    """Stream a source through tracks and yield a frame per block of steps.

    Parameters
    ----------
    source : Source
        The stream.
    tracks : sequence of Track
        The solvers; each keeps its state between frames.
    block : int
        Steps per frame; it changes no number.
    """
    for tokens in source.blocks(block):
        yield Frame(tokens, {track.label: track.advance(tokens) for track in tracks})

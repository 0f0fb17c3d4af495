"""One solver on one stream: its state, and how tokens reach it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from engine import kernels, signatures
from engine.api import Rows, Solver, Space, View
from engine.backend import Backend
from engine.coefficients import Binding
from engine.errors import InputError, RunError
from engine.frames import Trace
from engine.linear import correction, is_plain
from engine.measure import mapped
from engine.sources import Source, Tokens
from engine.steps import Block, ask, copied, recorded


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
        Applied to keys, queries and values.
    backend, dtype
        Where and in what precision to compute.
    record : bool
        Whether every state is wanted, or only the last.
    keyframes : int
        Steps between states that are wanted where not every one is; 0: none of them.
    kernel : str
        "auto", or the name of a form of the recurrence: "loop", "numba", "chunk", "tile".
    """

    dropped_at: int | None = None
    """The first step without this solver, and `why`: see `engine.drop`."""
    why = ""

    def __init__(
        self, label: str, solver: Solver, source: Source, bindings: Mapping[str, Binding],
        view: View | None, backend: Backend, dtype: str, record: bool = True, kernel: str = "auto",
        keyframes: int = 0,
    ) -> None:  # fmt: skip
        self.label, self.solver, self.view = label, solver, view
        self.bindings = {name: b.on(source.sample) for name, b in bindings.items()}
        self.backend, self.dtype = backend, np.dtype(dtype)
        self.silent = False  # whether only the state is wanted, not what it answers on the way
        self.record, self.keyframes = record, 0 if record else keyframes
        self.seconds, self.steps, self.trials = 0.0, 0, source.trials
        key, value = source.sample["keys"].shape[-1], source.sample["values"].shape[-1]
        where = (self.trials,), backend.xp, backend.dtype(dtype), backend.device
        try:
            if view is not None:
                key, value = view.size(key), getattr(view, "value_size", int)(value)
            self.sizes = {"key": key, "value": value}
            self.state = solver.init(Space(self.sizes, *where))
        except ValueError as error:  # an option that does not fit the stream's sizes
            raise InputError(str(error)) from error
        except Exception as error:  # a rule may raise anything
            raise RunError(
                f"{type(solver).__name__}.init failed: {type(error).__name__}: {error}"
            ) from error
        self.diverged_at = np.full(self.trials, -1, dtype=np.int64)
        self.correction = 0.0, 0  # the largest share of an error that a write took back, and when
        self.state_dims = self._check()
        self.kernel = kernels.choose(solver, self.state, backend, kernel)
        self._advance = kernels.find(self.kernel)
        self._last: dict[str, np.ndarray] = {}
        self.bind({})

    def bind(self, bindings: Mapping[str, Binding]) -> None:
        """Bind some coefficients anew, from the next step on."""
        self.bindings = {**self.bindings, **bindings}
        declared = signatures.coefficients(type(self.solver))
        given = [(name, d.methods) for name, d in declared.items() if name in self.bindings]
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
        asked = self.through(
            "queries", self.backend.lend(queries, self.dtype, queries), queries.shape[:2]
        )
        first = Tokens(0, {"keys": queries[:1]})
        reads = {}
        for name in self._reads:
            values = self._last[name] if self._last else self.bindings[name].block(first)
            spread = np.broadcast_to(values, (1, self.trials, values.shape[-1]))
            reads[name] = self._on_device(name, spread)[0, ...]
        xp, shape = self.backend.xp, (*queries.shape[:2], self.sizes["value"])
        out = xp.empty(shape, dtype=asked.dtype, device=self.backend.device)
        try:
            with np.errstate(all="ignore"):
                ask(self.solver, self.state, asked, reads, out)
        except Exception as error:  # a rule may raise anything
            raise RunError(
                f"solver {self.label!r} failed at a probe: {type(error).__name__}: {error}"
            ) from error
        return self.backend.get(out)

    def twin(self) -> Track:
        """Return a track in the same state, to be run and asked without touching this one."""
        twin = copy(self)
        twin.state = copied(self.backend.xp, self.state)
        twin.record, twin.keyframes = False, 0
        return twin

    def advance(self, tokens: Tokens) -> Trace:
        """Fold a block of tokens into the state and return what happened at every step."""
        began = time.perf_counter()
        with np.errstate(all="ignore"):  # what overflows is found and named
            try:
                coefficients = {name: b.block(tokens) for name, b in self.bindings.items()}
            except InputError as error:  # a side channel that left the bounds under way
                raise RunError(f"solver {self.label!r}: {error}") from error
            keys, values, queries = self._put(tokens)
            device = {name: self._on_device(name, x) for name, x in coefficients.items()}
            writes = {name: device[name] for name in self._writes}
            reads = {name: device[name] for name in self._reads}
            mask = tokens.arrays.get("mask")
            block = Block(
                tokens.start, keys, values, queries, mask, writes, reads, self.record, self.silent
            )
            if self.keyframes:
                prediction, output, states, frames = self._by_keyframes(block, tokens)
            else:
                (prediction, output, states), frames = self._steps(block, tokens), {}
        if len(tokens):
            self._last = {name: coefficients[name][-1:] for name in self._reads}
        elapsed = time.perf_counter() - began
        self.seconds, self.steps = self.seconds + elapsed, self.steps + len(tokens)
        kept = {name: self.bindings[name].recorded(x) for name, x in coefficients.items()}
        return Trace(prediction, output, states, kept, self.dims, elapsed, frames)

    def _by_keyframes(
        self, block: Block, tokens: Tokens
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Run a block from keyframe to keyframe; return both reads, no states, and keyframes."""
        n, parts = self.keyframes, []
        held = {name: self.backend.get(x) for name, x in self.recorded().items()}
        room = (block.start + len(tokens)) // n - block.start // n
        frames = {name: np.empty((room, *x.shape), x.dtype) for name, x in held.items()}
        for piece in block.cut(n):
            begin = piece.start - block.start
            end = begin + piece.keys.shape[0]
            part = Tokens(piece.start, {k: x[begin:end] for k, x in tokens.arrays.items()})
            parts.append(self._steps(piece, part)[:2])
            if (block.start + end) % n == 0:
                for name, x in self.recorded().items():
                    frames[name][(block.start + end) // n - block.start // n - 1] = (
                        self.backend.get(x)
                    )
        prediction, output = (np.concatenate(x) for x in zip(*parts, strict=True))
        return prediction, output, {}, frames

    def _steps(
        self, block: Block, tokens: Tokens
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Run a block and return both reads and the states on the way, as NumPy arrays."""
        mask, get = block.mask, self.backend.get
        try:
            done = self._advance(self.solver, self.state, block, self.backend)
            if not (done.finite or done.states or all(_finite(get(x)) for x in done.state)):
                # Something overflowed unseen by the reads: the states on the way say where.
                done = self._advance(
                    self.solver, self.state, replace(block, record=True), self.backend
                )
        except RunError as error:
            raise RunError(f"solver {self.label!r} {error}") from error
        except KeyboardInterrupt as asked:
            asked.add_note(f"in solver {self.label!r}")
            raise
        self.state = done.state
        if done.correction is not None:
            self.correction = max(self.correction, done.correction, key=lambda found: found[0])
        elif is_plain(self.solver):
            self._note_correction(block)
        came = {"prediction": done.prediction, "output": done.output}
        states = self.backend.fetch({**done.states, **came})
        prediction, output = states.pop("prediction"), states.pop("output")
        if mask is not None:
            prediction[~mask] = np.nan  # nothing was to be predicted
            if "queries" not in tokens.arrays:
                output[~mask] = np.nan  # nothing was asked
        if not done.finite:
            self._note_divergence(tokens, prediction, output, states)
        return prediction, output, states

    def _put(self, tokens: Tokens) -> tuple[Any, Any, Any]:
        """Return keys, values and queries on the device, through the view."""
        keys, lead = tokens.arrays["keys"], tokens.arrays["keys"].shape[:2]
        asked, lend = tokens.arrays.get("queries", keys), self.backend.lend
        try:
            return (
                self.through("keys", lend(keys, self.dtype, tokens), lead),
                self.through("values", lend(tokens.arrays["values"], self.dtype, tokens), lead),
                self.through("queries", lend(asked, self.dtype, tokens), lead),
            )
        except Exception as error:  # a view may raise anything
            raise RunError(
                f"the view of solver {self.label!r} failed at steps {tokens.start} to "
                f"{tokens.start + len(tokens) - 1}: {type(error).__name__}: {error}"
            ) from error

    def through(self, what: str, x: Any, lead: tuple[int, ...]) -> Any:
        """Return keys, queries or values as the solver sees them."""
        if self.view is None:
            return x
        if what == "values":
            seen = mapped(self.view, x)
        else:
            seen = self.view(x) if what == "keys" else self.view.queries(x)
        shape = (*lead, self.sizes["value" if what == "values" else "key"])
        if tuple(seen.shape) != shape or seen.dtype != x.dtype:
            raise TypeError(f"{what} became {seen.dtype} {seen.shape}, expected {x.dtype} {shape}")
        return seen

    def recorded(self) -> dict[str, Any]:
        """Return what is recorded of the present state: its arrays, and `rows`, the rows held."""
        return recorded(self.state)

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

    def _on_device(self, name: str, values: np.ndarray) -> Any:
        """Return a coefficient (step or 1, trial or 1, its axis or 1), its own axis in full."""
        axis = self.bindings[name].spec.axis
        width = (self.sizes.get(axis) or values.shape[-1]) if axis else 1
        return self.backend.put(np.broadcast_to(values, (*values.shape[:2], width)), self.dtype)

    def _note_correction(self, block: Block) -> None:
        """Note the largest correction so far: beyond 2 a rule expands what it should correct."""
        token = self.solver.token(block.keys, block.values, **block.writes)  # type: ignore[attr-defined]
        found = correction(token)
        if found is None or not block.keys.shape[0]:
            return
        sizes = self.backend.get(found)[..., 0]
        sizes = np.broadcast_to(sizes, block.keys.shape[:2])
        wanted = np.where(block.mask, sizes, 0.0) if block.mask is not None else sizes
        step = int(np.argmax(np.nan_to_num(wanted).max(axis=1)))
        largest = float(np.nan_to_num(wanted[step]).max())
        if largest > self.correction[0]:
            self.correction = largest, block.start + step

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
        if any(isinstance(x, Rows) for x in self.state):  # rows are the tokens themselves
            for name in ("keys", "values"):
                bad |= mask & np.isnan(tokens.arrays[name]).any(-1)
        for x in states.values():
            if x.dtype.kind == "f":
                bad |= ~np.isfinite(x).reshape(*bad.shape, -1).all(-1)
        first = np.where(bad.any(0), tokens.start + bad.argmax(0), -1) if len(tokens) else -1
        self.diverged_at = np.where(self.diverged_at < 0, first, self.diverged_at)


def _finite(x: Any) -> bool:
    return isinstance(x, Rows) or x.dtype.kind != "f" or bool(np.isfinite(x).all())

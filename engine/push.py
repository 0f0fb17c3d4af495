"""`engine.memory`: a memory pushed pair by pair from a caller's own loop."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine import factories, registry, signatures
from engine.api import Rows, Solver, View
from engine.backend import backend as get_backend
from engine.coefficients import Binding
from engine.errors import InputError, RunError, nearest, whole
from engine.simulation import as_float, as_host, as_state, precision, state_dims
from engine.sources import ArraySource, Tokens
from engine.steps import copied
from engine.track import Track

_NOW = Tokens(0, {"keys": np.empty((1, 1, 1))})


@dataclass(frozen=True)
class Snapshot:
    """A memory at a moment; it can be pickled.

    Parameters
    ----------
    solver : Solver
        The rule.
    writes : int
        Pairs written so far.
    state : mapping of str to array
        As `Memory.state` gives it.
    reads : mapping of str to array
        Coefficients that the next read takes unless it is given others.
    """

    solver: Solver
    writes: int
    state: Mapping[str, np.ndarray]
    reads: Mapping[str, np.ndarray]


class Memory:
    """A solver and its state, made by `engine.memory`.

    Attributes
    ----------
    writes : int
        Pairs written so far.
    """

    def __init__(
        self, track: Track, key: int, value: int, trials: int | None, given: Mapping[str, Any]
    ) -> None:
        self._track, self._solver, self._single = track, track.solver, trials is None
        lead = () if trials is None else (trials,)
        self._shapes = {"key": (*lead, key), "value": (*lead, value)}
        self._answers, self._dtype = (track.trials, track.sizes["value"]), track.dtype
        # On the host and without a view, what a caller gives is what the rule sees.
        self._plain = track.view is None and track.backend.name == "numpy"
        self._fields = [
            (i, name, x.shape, x.dtype)
            for i, (name, x) in enumerate(zip(track.state._fields, track.state, strict=True))
            if not isinstance(x, Rows)
        ]
        self.writes = 0
        self._known: dict[str, tuple[float, Any]] = {}
        self._declared = signatures.coefficients(type(track.solver))
        defaults = {
            n: d.default if given.get(n) is None else given[n] for n, d in self._declared.items()
        }
        made = {n: self._coefficient(n, x) for n, x in defaults.items() if x is not None}
        self._writing = {n for n, d in self._declared.items() if d.methods - {"read"}}
        self._reading = {n for n, d in self._declared.items() if "read" in d.methods}
        self._for_write, self._for_read = _some(made, self._writing), _some(made, self._reading)
        self._first_read = self._for_read

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Copies of the state variables on the host, by name: no later write changes them.

        Shapes are those of `engine.simulate` without its steps, whose `state` takes them: such as
        (key, value), or (trial, key, value). A memory of rows gives them as (row, ...) or
        (row, trial, ...), and `rows`, how many each trial holds.
        """
        track = self._track
        dims = state_dims(track)
        now = {**track.recorded(), **track.arrays()}
        found = {n: np.array(track.backend.get(now[n])) for n in dims}
        if self._single:
            found = {n: x.take(0, dims[n].index("trial")) for n, x in found.items()}
        return found

    def write(self, k: Any, v: Any, /, **coefficients: Any) -> None:
        """Fold one pair into the state.

        Parameters
        ----------
        k : array, shape (key,), or (trial, key) if the memory has trials
            The key. It is copied: the caller may use the array again.
        v : array, shape (value,) or (trial, value)
            The value.
        **coefficients : number or array
            Of this write, instead of those that the memory was made with: a number, (trial,) if
            the memory has trials, or with the coefficient's own axis behind. What a read takes
            stays so until the next write.

        Raises
        ------
        InputError
            If an argument does not fit; the state is as it was.
        RunError
            If the rule fails; the state is as it was.
        """
        key, value = self._array("k", k, "key"), self._array("v", v, "value")
        writes, reads = self._for_write, self._first_read
        if coefficients:
            given = {name: self._coefficient(name, x) for name, x in coefficients.items()}
            writes = {**writes, **_some(given, self._writing)}
            reads = {**reads, **_some(given, self._reading)}
        if len(writes) < len(self._writing):
            self._need(self._writing, writes, "write")
        state = self._track.state
        try:
            with np.errstate(all="ignore"):
                if not self._plain:
                    key, value = self._seen("keys", key), self._seen("values", value)
                new = self._solver.write(state, key, value, **writes)
            if type(new) is not type(state):
                raise TypeError(f"write gave {type(new).__name__}, not {type(state).__name__}")
            for i, name, shape, dtype in self._fields:
                _as_declared(new[i], name, shape, dtype)
        except (Exception, SystemExit) as error:  # a rule may raise anything, an exit too
            raise self._failed("write", error) from error
        self._track.state = new
        self.writes += 1
        self._for_read = reads

    def read(self, q: Any, /, **coefficients: Any) -> np.ndarray:
        """Return the answer to a query; nothing changes.

        Parameters
        ----------
        q : array, shape (key,), or (trial, key) if the memory has trials
            The query.
        **coefficients : number or array
            As in `write`; those not given are those of the last write.

        Returns
        -------
        array, shape (value,) or (trial, value)
            The caller's own. Not finite where the memory has diverged.
        """
        return self._answer("q", "queries", q, coefficients)

    def predict(self, k: Any, /, **coefficients: Any) -> np.ndarray:
        """Return what the memory answers to a key `k` that is yet to be written.

        It takes `coefficients` as `read` does, and differs from it only behind a view that maps
        keys and queries differently.
        """
        return self._answer("k", "keys", k, coefficients)

    def snapshot(self) -> Snapshot:
        """Return a copy of the present state, to `restore` later or elsewhere."""
        get = self._track.backend.get
        reads = {n: np.array(get(x)) for n, x in self._for_read.items()}
        return Snapshot(self._solver, self.writes, self.state, reads)

    def restore(self, state: Any) -> None:
        """Go back, or over, to a state.

        Parameters
        ----------
        state : Snapshot, mapping of str to array, or Dataset
            A snapshot of a memory of the same rule and sizes; every state variable by name; or a
            result of `engine.simulate`, whose last state is taken.

        Raises
        ------
        InputError
            If it does not fit; the state is as it was.
        """
        snapshot = isinstance(state, Snapshot)
        if snapshot and state.solver != self._solver:
            raise InputError(f"the snapshot is of {state.solver}; this memory is {self._solver}")
        arrays = state.state if snapshot else state
        self._track.restore(as_state(arrays, self._track, not self._single))
        if snapshot:
            put, dtype = self._track.backend.put, self._track.dtype
            self.writes = state.writes
            self._for_read = {n: put(x, dtype) for n, x in state.reads.items()}

    def clone(self) -> Memory:
        """Return a memory of its own that begins in this one's state."""
        new = copy.copy(self)
        new._track, new._known = copy.copy(self._track), dict(self._known)
        new._track.state = copied(self._track.backend.xp, self._track.state)
        return new

    def __repr__(self) -> str:
        sizes = [f"{what}={shape[-1]}" for what, shape in self._shapes.items()]
        sizes += [] if self._single else [f"trials={self._track.trials}"]
        return f"<memory of {self._solver}: {', '.join(sizes)}, {self.writes} writes>"

    def _answer(self, name: str, what: str, x: Any, coefficients: Mapping[str, Any]) -> np.ndarray:
        asked, reads = self._array(name, x, "key"), self._for_read
        if coefficients:
            given = {n: self._coefficient(n, y) for n, y in coefficients.items()}
            reads = {**reads, **_some(given, self._reading)}
        if len(reads) < len(self._reading):
            self._need(self._reading, reads, "read")
        try:
            with np.errstate(all="ignore"):
                if not self._plain:
                    asked = self._seen(what, asked)
                out = self._solver.read(self._track.state, asked, **reads)
            _as_declared(out, "read", self._answers, asked.dtype)
        except (Exception, SystemExit) as error:
            raise self._failed("read", error) from error
        found: np.ndarray = out if self._plain else self._track.backend.get(out)
        return np.array(found[0] if self._single else found)

    def _array(self, name: str, x: Any, what: str) -> np.ndarray:
        """Return a key or a value as an array of its own, (trial, ...), in the memory's dtype."""
        if type(x) is not np.ndarray or x.dtype.kind not in "biuf":
            x = as_host(name, x, (what,) if self._single else ("trial", what))
        if x.shape != self._shapes[what]:
            wanted = f"({what},)" if self._single else f"(trial, {what})"
            raise InputError(
                f"{name} has shape {x.shape}, expected {wanted} = {self._shapes[what]}"
            )
        if x.dtype == self._dtype:
            own: np.ndarray = x.copy()
        else:
            with np.errstate(over="ignore"):  # an inf shows in what is read
                own = np.array(x, dtype=self._dtype, order="C")
        return own[None] if self._single else own

    def _coefficient(self, name: str, value: Any) -> Any:
        """Return a coefficient (trial, its axis or 1) where the rule computes, checked."""
        known = self._known.get(name)
        if known is not None and type(value) is float and known[0] == value:
            return known[1]
        if name not in self._declared:
            rule = type(self._solver).__name__
            advice = nearest(name, self._declared)
            raise InputError(f"{rule} takes no coefficient {name!r}; {advice}")
        spec, track = self._declared[name].spec, self._track
        dims = (*(() if self._single else ("trial",)), *((spec.axis,) if spec.axis else ()))
        x = as_float(as_host(name, value, dims))
        given = x.shape[-1] if spec.axis and x.ndim == len(dims) else 1
        width = track.sizes.get(spec.axis) or given
        sizes = tuple(track.trials if d == "trial" else width for d in dims)
        if x.shape != sizes[: x.ndim]:
            lengths = range(1, len(dims) + 1)
            forms = ["a number", *(f"({', '.join(dims[:n])}) = {sizes[:n]}" for n in lengths)]
            raise InputError(f"{name} has shape {x.shape}, expected {' or '.join(forms)}")
        x = x.reshape((*x.shape, *[1] * (2 - x.ndim)) if "trial" in dims else (1, x.size))
        along = ("trial",) if x.shape[0] > 1 else ()
        Binding(name, spec, x[None], along).block(_NOW)
        full = np.broadcast_to(x, (track.trials, width))
        with np.errstate(over="ignore"):  # an inf shows in what is read
            ready = track.backend.put(full, track.dtype)
        if isinstance(ready, np.ndarray):
            ready.flags.writeable = False  # it is used again
        if type(value) is float:
            self._known[name] = value, ready
        return ready

    def _seen(self, what: str, x: np.ndarray) -> Any:
        """Return a key, a query or a value on the device, through the view."""
        return self._track.through(what, self._track.backend.put(x, self._track.dtype), x.shape[:1])

    def _need(self, names: set[str], given: Mapping[str, Any], what: str) -> None:
        """Refuse a call without a coefficient that has no default."""
        for name in sorted(names - set(given)):
            if self._declared[name].required:
                rule = type(self._solver).__name__
                raise InputError(f"{rule} needs the coefficient {name!r} at every {what}")

    def _failed(self, what: str, error: BaseException) -> RunError:
        return RunError(
            f"memory {self._track.label!r}: {what} failed after {self.writes} writes: "
            f"{type(error).__name__}: {error}"
        )


def _some(arrays: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {n: x for n, x in arrays.items() if n in names}


def _as_declared(x: Any, name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse an array that is not what it was: a rule keeps shapes and dtypes."""
    if not hasattr(x, "dtype") or x.shape != shape or x.dtype != dtype:
        found = f"{x.dtype} {x.shape}" if hasattr(x, "dtype") else type(x).__name__
        raise TypeError(f"{name} gave {found}, expected {dtype} {shape}")


def memory(
    solver: str | Solver,
    *,
    key: int,
    value: int,
    trials: int | None = None,
    dtype: str = "float64",
    backend: str = "numpy",
    view: str | View | None = None,
    **options: Any,
) -> Memory:
    """Return an empty memory, to be written and read one pair at a time.

    What it answers has the bits of `engine.simulate` with kernel "loop", step by step.

    Parameters
    ----------
    solver : str or Solver
        Name of a solver, or one made by `engine.solver`.
    key, value : int
        Lengths of keys and of values.
    trials : int, optional
        How many memories to hold side by side: every array then has a first axis of this length.
    dtype : "float32" or "float64"
        Precision.
    backend : "numpy" or "cupy"
        Where to compute. What is given and what is answered is NumPy.
    view : str or View, optional
        What the rule sees keys, values and queries through: the name of a view, or one made by
        `engine.view`.
    **options
        Hyperparameters, if `solver` is a name, and coefficients, which each write may replace.

    Returns
    -------
    Memory
        With `write`, `read`, `predict`, `state`, `snapshot`, `restore` and `clone`.

    Raises
    ------
    InputError
        If anything does not fit; the message names it.

    Examples
    --------
    >>> m = memory("delta", key=2, value=1, beta=0.5)
    >>> m.write([1.0, 0.0], [4.0])
    >>> m.read([1.0, 0.0]).tolist()
    [2.0]
    >>> m.write([1.0, 0.0], [4.0], beta=1.0)
    >>> m.read([1.0, 0.0]).tolist(), m.writes
    ([4.0], 2)
    """
    sizes = {"key": whole("key", key), "value": whole("value", value)}
    count = 1 if trials is None else whole("trials", trials)
    cls = registry.default().get("solver", solver).cls if isinstance(solver, str) else type(solver)
    if isinstance(solver, type) or not all(hasattr(cls, n) for n in ("init", "write", "read")):
        raise InputError(f"solver = {solver!r} must be a name, or made by engine.solver")
    declared = signatures.coefficients(cls)
    given = {n: x for n, x in options.items() if n in declared}
    hyper = {n: x for n, x in options.items() if n not in declared}
    if isinstance(solver, str):
        for name in hyper:
            if name not in signatures.options(cls):
                known = [*declared, *signatures.options(cls)]
                raise InputError(f"{solver} takes no {name!r}; {nearest(name, known)}")
        rule = factories.build("solver", solver, hyper)
    elif hyper:
        name = next(iter(hyper))
        raise InputError(
            f"{cls.__name__} takes no coefficient {name!r}; {nearest(name, declared)} "
            "(hyperparameters are given to engine.solver)"
        )
    else:
        rule = solver
    seen = factories.build("view", view, {}) if isinstance(view, str) else view
    source = ArraySource({f"{n}s": np.empty((0, count, size)) for n, size in sizes.items()})
    label = solver if isinstance(solver, str) else cls.__name__.lower()
    track = Track(label, rule, source, {}, seen, get_backend(backend), precision(dtype, []))
    return Memory(track, sizes["key"], sizes["value"], trials, given)

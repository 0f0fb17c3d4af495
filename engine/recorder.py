"""Recording: a consumer of frames that lays every variable out along one step axis."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from engine.api import Rows
from engine.frames import Frame
from engine.sources import Source, Tokens
from engine.track import Track

if TYPE_CHECKING:
    import xarray as xr

States = Literal["every", "final", "keyframes"]
SHARD_BYTES = 16 * 2**20  # three are in memory: computed, waiting, and being written
SHARD_STEPS = 2**16
BLOCK_STEPS = 2**10  # where Python steps, a block takes long enough to be worth watching


@dataclass(frozen=True)
class Variable:
    """One array of a run: where it belongs, its dims, shape, dtype and attributes."""

    group: str
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    every: int = 1
    """Steps per row."""
    fill: int = 0
    """What rows that were never written read as, where they cannot be NaN."""
    attrs: Mapping[str, Any] = field(default_factory=dict, compare=False)
    handed: bool = field(default=False, compare=False)
    """Whether its rows are handed over: nobody else holds the arrays that they come in."""

    @property
    def advances(self) -> bool:
        """Whether it is written as the run goes on."""
        return self.dims[:1] in (("step",), ("keyframe",))

    def rows(self, steps: int) -> int:
        """Return how many of its rows are known after this many steps."""
        return steps // self.every

    @property
    def path(self) -> str:
        """Group and name."""
        return f"{self.group}/{self.name}"

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


class Sink(Protocol):
    """Where recorded arrays go."""

    def create(self, variable: Variable) -> None:
        """Make room for a variable along the whole step axis."""

    def write(self, variable: Variable, start: int, rows: np.ndarray) -> None:
        """Write rows from `start` on; the first axis is step (or whatever comes first)."""

    def describe(self, group: str, attrs: Mapping[str, Any]) -> None:
        """Add attributes to a group."""

    def commit(self, steps: int) -> None:
        """Declare the first `steps` steps complete for every variable."""

    def close(self, status: str) -> None:
        """End the run: "complete" or "failed"."""


class MemorySink:
    """Keeps everything in memory and gives it as a DataTree.

    Parameters
    ----------
    left_out : collection of str
        Groups that are not kept.
    """

    def __init__(self, left_out: Collection[str] = ()) -> None:
        self._left_out = left_out
        self.arrays: dict[str, dict[str, tuple[tuple[str, ...], np.ndarray]]] = {}
        self.attrs: dict[str, dict[str, Any]] = {"": {}}

    def create(self, variable: Variable) -> None:
        """Make room for a variable."""
        if variable.group in self._left_out:
            return
        # No room before it is needed: rows that are all there is need none.
        array = np.broadcast_to(np.zeros((), dtype=variable.dtype), variable.shape)
        self.arrays.setdefault(variable.group, {})[variable.name] = (variable.dims, array)

    def write(self, variable: Variable, start: int, rows: np.ndarray) -> None:
        """Copy rows in, or keep them as they are where they are all there is and handed over."""
        if variable.group in self._left_out:
            return
        kept = self.arrays[variable.group]
        array = kept[variable.name][1]
        if rows.shape == array.shape:
            own = variable.handed and rows.dtype == array.dtype and rows.flags.c_contiguous
            rows = rows if own else np.array(rows, array.dtype, order="C")
            kept[variable.name] = (variable.dims, rows)
            return
        if not array.flags.writeable:
            array = np.zeros(variable.shape, dtype=variable.dtype)
            kept[variable.name] = (variable.dims, array)
        array[start : start + len(rows)] = rows

    def describe(self, group: str, attrs: Mapping[str, Any]) -> None:
        """Add attributes to a group."""
        self.attrs.setdefault(group, {}).update(attrs)

    def commit(self, steps: int) -> None:
        """Note how many steps are complete."""
        self.describe("", {"committed": steps})

    def close(self, status: str) -> None:
        """Note how the run ended."""
        self.describe("", {"status": status})

    def dataset(self, group: str) -> xr.Dataset:
        """Return one group as a Dataset."""
        import xarray as xr

        attrs = dict(self.attrs.get(group, {}))
        given = ["step", "trial"] if not group else attrs.pop("coordinates", "").split()
        arrays = {n: xr.Variable(*x, fastpath=True) for n, x in self.arrays.get(group, {}).items()}
        coords = {n: arrays.pop(n) for n in given if n in arrays}
        return xr.Dataset(arrays, coords, attrs)

    def tree(self) -> xr.DataTree:
        """Return everything as a DataTree, laid out as a store is."""
        import xarray as xr

        inside: dict[str, dict[str, None]] = {}
        for group in dict.fromkeys([*self.attrs, *self.arrays]):
            parent = ""
            for name in filter(None, group.split("/")):
                inside.setdefault(parent, {})[name] = None
                parent = f"{parent}/{name}".lstrip("/")

        def grow(node: xr.DataTree, group: str) -> xr.DataTree:
            # From the root outwards: a node is checked against its parent when it has no children.
            paths = {name: f"{group}/{name}".lstrip("/") for name in inside.get(group, {})}
            node.children = {name: xr.DataTree(self.dataset(path)) for name, path in paths.items()}
            for name, path in paths.items():
                grow(node.children[name], path)
            return node

        return grow(xr.DataTree(self.dataset("")), "")


def layout(source: Source, tracks: Sequence[Track], states: States) -> Iterator[Variable]:
    """Yield every variable of a run that has a step axis, or one of keyframes.

    Parameters
    ----------
    source, tracks
        What will be run; the source must have a length.
    states : "every", "final" or "keyframes"
        Which states are kept. Between keyframes nothing of a solver is: it follows from the stream.
    """
    assert source.steps is not None
    lead = (source.steps, source.trials)
    for name, array in source.sample.items():
        dims = ("step", "trial", *source.dims[name])
        yield Variable("stream", name, dims, (*lead, *array.shape[2:]), array.dtype)
    for track in tracks if states == "keyframes" else ():
        n = track.keyframes
        for name, x in track.recorded().items():
            dims = ("keyframe", *track.dims[name][1:])
            shape = (source.steps // n, *x.shape)
            yield Variable(f"keyframes/{track.label}", name, dims, shape, _numpy_dtype(x), n)
    for track in tracks if states != "keyframes" else ():
        shapes = {
            name: ((*lead, track.sizes["value"]), track.dtype) for name in ("prediction", "output")
        }
        if states == "every":
            for name, x in track.recorded().items():
                shapes[name] = ((source.steps, *x.shape), _numpy_dtype(x))
        for name, binding in track.bindings.items():
            if "step" in binding.dims:
                sizes = {"step": source.steps, "trial": source.trials, **track.sizes}
                shapes[name] = (tuple(sizes[d] for d in binding.dims), np.dtype(np.float64))
        for name, (shape, dtype) in shapes.items():
            # What was computed for this run; a coefficient may be an array of the caller's.
            handed = track.backend.name == "numpy" and name not in track.bindings
            where = f"solvers/{track.label}", name, track.dims[name]
            yield Variable(*where, shape, dtype, handed=handed)


def _numpy_dtype(array: Any) -> np.dtype[Any]:
    return np.dtype(str(array.dtype).rpartition(".")[2])


def shard_steps(variables: Sequence[Variable], steps: int) -> int:
    """Return how many steps to buffer, about 16 MiB over all variables.

    A power of two, times the steps between keyframes if it holds some: then whole ones are written.
    """
    row = math.ceil(sum(v.row_bytes / v.every for v in variables)) or 1
    fits = max(1, min(SHARD_BYTES // row, SHARD_STEPS))
    n = max((v.every for v in variables), default=1)
    n = n if n <= min(fits, steps) else 1
    return int(
        n * min(2 ** int(math.log2(fits // n)), 2 ** math.ceil(math.log2(max(steps / n, 1))))
    )


def block_steps(source: Source, tracks: Sequence[Track]) -> int:
    """Return how many steps to run at a time, so that what a block holds fits into memory."""
    stepped = [track for track in tracks if track.kernel == "loop"]
    held = [track for track in tracks if track.record or track in stepped]
    variables = [*layout(source, tracks, "final"), *layout(source, held, "every")]
    if any(track.keyframes for track in tracks):
        variables += [v for v in layout(source, tracks, "keyframes") if v.every > 1]
    fits = shard_steps(variables, source.steps or 0)
    return min(fits, BLOCK_STEPS) if stepped else fits


class Recorder:
    """Writes frames into a sink, whole shards at a time, and the final facts at the end.

    Shards are written by a thread of its own while the next one is computed; there is never more
    than one waiting, so a slow disk slows the run instead of filling the memory.

    Parameters
    ----------
    sink : Sink
        Where to.
    source, tracks
        What is being run.
    states : "every", "final" or "keyframes"
        Whether states are kept at every step, only at the end, or after every n steps.
    shard : int, optional
        Steps per write. None writes each frame as it comes, at once.
    first : int
        The first step to come; the source then counts the steps from there on.
    """

    def __init__(
        self,
        sink: Sink,
        source: Source,
        tracks: Sequence[Track],
        states: States,
        shard: int | None = None,
        first: int = 0,
    ) -> None:
        self._sink, self._tracks, self._states, self._shard = sink, tracks, states, shard
        self.variables = list(layout(source, tracks, states))
        for variable in self.variables:
            sink.create(variable)
        self._buffers: dict[str, np.ndarray] = {}
        self._first, self._start, self._filled, self.committed = first, first, 0, 0
        self._writer = ThreadPoolExecutor(1, "writer") if shard else None
        self._pending: Future[None] | None = None
        self._handed: tuple[Mapping[str, np.ndarray], int] | None = None
        self.put("", "step", ("step",), np.arange(first, first + (source.steps or 0)))
        self.put("", "trial", ("trial",), np.arange(source.trials))
        for name, fact in source.facts.items():
            self.put("stream", name, ("trial", *source.dims[name]), fact)
        none = Tokens(0, source.sample)
        for track in tracks:
            if states == "keyframes":
                n, group = track.keyframes, f"keyframes/{track.label}"
                sink.describe(f"solvers/{track.label}", {"keyframes": n})
                sink.describe(group, {"keyframes": n, "coordinates": "keyframe_step"})
                marks = n * np.arange(1, (source.steps or 0) // n + 1)
                self.put(group, "keyframe_step", ("keyframe",), marks)
            for name, binding in track.bindings.items():
                if "step" not in binding.dims:
                    values = binding.recorded(binding.block(none))
                    self.put(f"solvers/{track.label}", name, binding.dims, values)

    def put(self, group: str, name: str, dims: tuple[str, ...], array: np.ndarray) -> None:
        """Record an array that has no step axis to be filled."""
        variable = Variable(group, name, dims, array.shape, array.dtype)
        self._sink.create(variable)
        self._sink.write(variable, 0, array)

    def write(self, frame: Frame) -> None:
        """Record a frame; frames must come in order, without gaps."""
        if frame.start != self._start + self._filled:
            raise ValueError(
                f"frame starts at step {frame.start}, expected {self._start + self._filled}"
            )
        sources: dict[str, Mapping[str, np.ndarray]] = {"stream": frame.tokens.arrays}
        sources |= {f"solvers/{label}": trace.variables for label, trace in frame.traces.items()}
        sources |= {f"keyframes/{label}": trace.keyframes for label, trace in frame.traces.items()}
        done, n = 0, len(frame.tokens)
        while done < n:
            room = (self._shard or n) - self._filled
            take = min(n - done, room)
            start, rows = frame.start + done, {}
            for v in self.variables:
                first = v.rows(frame.start)
                span = slice(v.rows(start) - first, v.rows(start + take) - first)
                rows[v.path] = sources[v.group][v.name][span]
            if take == room and not self._filled:
                # A whole shard as it stands: only the stream's arrays are copied, for a generator
                # may use them again while they wait to be written.
                waiting = [v for v in self.variables if v.group == "stream" and self._writer]
                self._hand_over({**rows, **{v.path: rows[v.path].copy() for v in waiting}}, take)
            else:
                self._keep(rows, take)
            done += take

    def _keep(self, rows: Mapping[str, np.ndarray], count: int) -> None:
        """Copy rows into the buffers, and hand these over when they are full."""
        assert self._shard is not None
        for v in self.variables:
            first, at = v.rows(self._start), v.rows(self._start + self._filled)
            if not self._filled:
                # New ones each time: the last may still be waiting to be written.
                room = v.rows(self._start + self._shard) - first
                self._buffers[v.path] = np.empty((room, *v.shape[1:]), dtype=v.dtype)
            self._buffers[v.path][at - first : at - first + len(rows[v.path])] = rows[v.path]
        self._filled += count
        if self._filled == self._shard:
            self.flush()

    def flush(self) -> None:
        """Hand over what is buffered."""
        if self._filled:
            count, self._filled = self._filled, 0
            known = {v: v.rows(self._start + count) - v.rows(self._start) for v in self.variables}
            self._hand_over({v.path: self._buffers[v.path][:n] for v, n in known.items()}, count)

    def _hand_over(self, rows: Mapping[str, np.ndarray], count: int) -> None:
        self._wait()
        if self._writer is None:
            self._commit(rows, count)
        else:
            self._handed = rows, count
            self._pending = self._writer.submit(self._commit, rows, count)
        self._start += count

    def _wait(self) -> None:
        """Wait for the write that is under way; an error of it is raised here, once."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
            self._handed = None

    def _commit(self, rows: Mapping[str, np.ndarray], count: int) -> None:
        """Write rows of every variable, then move the mark."""
        for v in self.variables:
            self._sink.write(v, v.rows(self.committed), rows[v.path])
        self._sink.commit(self.committed + count)
        self.committed += count  # only now: where the mark could not be moved, all is repeated

    def close(self, complete: bool = True) -> None:
        """Write the rest, and what is only known at the end.

        Of a run that was cut short, solvers may be ahead of what was written: no final states.
        """
        try:
            if self._handed and not self._pending:
                self._commit(*self._handed)  # it failed once, and what follows must not come first
            self.flush()
            self._wait()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
        if not self.committed:
            self._sink.commit(0)
        final = complete and self._states == "final"
        for track in self._tracks:
            group = f"solvers/{track.label}"
            known = np.where(track.diverged_at < self._start, track.diverged_at, -1)
            self.put(group, "diverged_at", ("trial",), known)
            rows = {
                n
                for n, x in zip(track.state._fields, track.state, strict=True)
                if isinstance(x, Rows)
            }
            for name, array in track.arrays().items():
                if name in rows and self._states != "keyframes":
                    self.put(group, name, ("row", "trial", *track.state_dims[name][1:]), array)
                elif final:
                    self.put(group, name, ("trial", *track.state_dims[name]), array)
            if rows and final:
                self.put(group, "rows", ("trial",), track.recorded()["rows"])
            if rows and self._states == "keyframes":  # the rows follow from the stream
                held = int(track.recorded()["rows"].max(initial=0))
                self._sink.describe(group, {"rows_held": held})

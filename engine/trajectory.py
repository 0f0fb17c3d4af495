"""Every state of a run that stored only keyframes: recomputed from the nearest one when read.

The state after step t is a pure function of a keyframe and the stored stream, and every kernel
gives the same bits however a stream is cut into blocks. So what is read here is what recording
every step would have stored.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from engine import experiment, store
from engine.agreement import Comparison, tolerance
from engine.api import Rows
from engine.errors import DamageError, InputError, ReplayWarning
from engine.recorded import RunStream, maker, maker_now, restored, told
from engine.track import Track

CACHE_BYTES = 256 * 2**20
PIECE_BYTES = 32 * 2**20
READ_STEPS = 2**10
"""Steps recomputed at a time where only reads are asked for."""


class Cache:
    """Recomputed pieces, the least recently used dropped when they are more than `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self._pieces: OrderedDict[Any, dict[str, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> dict[str, np.ndarray] | None:
        """Return a piece if it is there."""
        with self._lock:
            if key in self._pieces:
                self._pieces.move_to_end(key)
            return self._pieces.get(key)

    def put(self, key: Any, piece: dict[str, np.ndarray]) -> None:
        """Keep a piece, unless it alone is more than the limit."""
        size = sum(x.nbytes for x in piece.values())
        with self._lock:
            if key in self._pieces or size > self.limit:
                return
            self._pieces[key], self.held = piece, self.held + size
            while self.held > self.limit:
                _, old = self._pieces.popitem(last=False)
                self.held -= sum(x.nbytes for x in old.values())


CACHE = Cache(CACHE_BYTES)
"""What was recomputed lately, by every trajectory of this process."""


@dataclass(frozen=True)
class Shape:
    """One variable of a trajectory."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Trajectory:
    """What one solver of a keyframed run did at every step.

    Parameters
    ----------
    path : Path
        The run's store.
    label : str
        The solver's label.

    Raises
    ------
    InputError
        If the solver cannot be made again, as when its plugin is not installed.
    """

    def __init__(self, path: Path, label: str) -> None:
        self.path, self.label = path, label
        self._lock = threading.RLock()
        root = store.group(path)
        self._attrs: dict[str, Any] = root.attrs.asdict()
        self._keyframes: dict[str, Any] = dict(root[f"keyframes/{label}"].arrays())
        self.n = int(root[f"keyframes/{label}"].attrs["keyframes"])
        self._solver: dict[str, Any] = root[f"solvers/{label}"].attrs.asdict()
        self._stream = RunStream(path)
        self.steps = self._stream.steps or 0
        self._stamp = (str(path.resolve()), (path / "zarr.json").stat().st_mtime_ns, label)
        self._track, self._at = self._new(), 0
        self._stream = RunStream(path, self._needed())
        # Of a memory that grows: the longest state written from the start, and whether the present
        # one was (or is the beginning of a longer one, whose unused rows may hold anything).
        self._grown: tuple[int, Any] = 0, self._track.state
        self._whole = True
        self._warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Trajectory, (self.path, self.label)

    def _new(self) -> Track:
        """Return the solver in its empty state, in the form that ran where it is installed."""
        stream = RunStream(self.path)  # all of it: the state may begin as a fact of the stream
        set_to = {"record": "every", "kernel": self._solver["kernel"], "probes": {}}
        try:
            made = restored(self.path, self._attrs, [self.label], set_to)
            (track,) = experiment.tracks(made, stream)
        except InputError:  # what fails in any form fails here again
            made = restored(self.path, self._attrs, [self.label], {**set_to, "kernel": "auto"})
            (track,) = experiment.tracks(made, stream)
        track.dropped_at = self._solver.get("dropped_at")
        return track

    def _needed(self) -> set[str]:
        """Return what of the stream the solver looks at: reading the rest would take as long."""
        sources = [b.source for b in self._track.bindings.values()]
        channels = {getattr(x, n) for x in sources for n in ("channel", "gate") if hasattr(x, n)}
        return {"keys", "values", "queries", "mask", *channels}

    @cached_property
    def _grows(self) -> bool:
        return any(isinstance(x, Rows) for x in self._track.state)

    @cached_property
    def variables(self) -> dict[str, Shape]:
        """Dims, shape and dtype of everything that is recomputed."""
        track, lead = self._track, (self.steps, self._stream.trials)
        read = (*lead, track.sizes["value"])
        found = {n: Shape(track.dims[n], read, track.dtype) for n in ("prediction", "output")}
        for name, x in track.recorded().items():
            dtype = np.dtype(str(x.dtype).rpartition(".")[2])
            found[name] = Shape(track.dims[name], (self.steps, *x.shape), dtype)
        sizes = {"step": self.steps, "trial": self._stream.trials, **track.sizes}
        for name, b in track.bindings.items():
            if "step" in b.dims:
                shape = tuple(sizes[d] for d in b.dims)
                found[name] = Shape(b.dims, shape, np.dtype(np.float64))
        held = self._solver.get("rows_held")  # said at the end of a run
        for name, x in zip(track.state._fields, track.state, strict=True):
            if isinstance(x, Rows) and held is not None:
                dims = ("row", "trial", *track.state_dims[name][1:])
                shape = (int(held), self._stream.trials, *x.array.shape[2:])
                found[name] = Shape(dims, shape, track.dtype)
        return found

    def piece_steps(self, name: str) -> int:
        """Return how many steps are recomputed at a time: of states no more than are asked for."""
        if self._is_read(name) and not self._grows:
            return self.n * max(1, READ_STEPS // self.n)
        row = sum(x.nbytes for x in self._track.arrays().values()) or 1
        return min(self.n, max(1, PIECE_BYTES // row))

    def _is_read(self, name: str) -> bool:
        """Whether it can be had without keeping the states on the way."""
        return name not in self._track.recorded() and self._track.kernel != "loop"

    def read(self, name: str, rows: np.ndarray, rest: tuple[Any, ...] = ()) -> np.ndarray:
        """Return a variable at some steps.

        Parameters
        ----------
        name : str
            One of `variables`.
        rows : array of int
            Steps, or rows of what a memory holds at the end; in any order.
        rest : tuple of int, slice or array of int
            What to take along the other axes, each on its own.

        Returns
        -------
        array
            Its first axis is as long as `rows`.
        """
        like = self.variables[name]
        out = _taken(np.empty((0, *like.shape[1:]), like.dtype), rest)
        out = np.empty((len(rows), *out.shape[1:]), like.dtype)
        size = self.piece_steps(name) if like.dims[0] == "step" else max(like.shape[0], 1)
        pieces = rows // size
        for p in np.unique(pieces).tolist():
            here = pieces == p
            out[here] = _taken(self._piece(name, p, size)[name][rows[here] - p * size], rest)
        return out

    def _piece(self, name: str, p: int, size: int) -> dict[str, np.ndarray]:
        """Return what was recorded from step p * size on, from memory or anew."""
        kind = "reads" if self._is_read(name) else "states"
        kind = "rows" if self.variables[name].dims[0] == "row" else kind
        key = (*self._stamp, kind, size, p)
        piece = CACHE.get(key)
        if piece is None:
            with self._lock:  # a track is one place in time
                piece = self._recompute(p * size, min((p + 1) * size, self.steps), kind)
            CACHE.put(key, piece)
        return piece

    def _recompute(self, start: int, stop: int, kind: str) -> dict[str, np.ndarray]:
        if kind == "rows":
            return self._rows()
        self._seek(start)
        self._track.record = kind == "states"
        trace = self._track.advance(self._stream.read(start, stop))
        self._at = stop
        if stop % self.n == 0:
            self._check(stop)
        return {n: trace.variables[n] for n in self.variables if n in trace.variables}

    def _seek(self, step: int) -> None:
        """Put the solver where it was before a step."""
        nearest = step - step % self.n
        if not nearest <= self._at <= step:
            self._restore(nearest)
        self._skip(step)

    def _skip(self, step: int) -> None:
        """Go on to a step; what the solver answers on the way is not wanted."""
        track = self._track
        track.record, track.silent = False, True
        while self._at < step:
            stop = min(self._at + READ_STEPS, step)
            track.advance(self._stream.read(self._at, stop))
            self._at = stop
        track.silent = False

    def _rows(self) -> dict[str, np.ndarray]:
        """Return the rows of a memory that grows, as the run left them."""
        (self._at, self._track.state), self._whole = self._grown, True
        self._skip(self.steps)
        return {n: x for n, x in self._track.arrays().items() if n in self.variables}

    def _restore(self, step: int) -> None:
        """Put the solver at a keyframe."""
        if self._grows:
            self._grow(step)
        elif step:
            self._track.restore({n: self._stored(n, step) for n in self._track.state._fields})
            self._at = step
        else:
            self._track, self._at = self._new(), 0

    def _grow(self, step: int) -> None:
        """Put a memory that grows at a keyframe, or before it: its rows are what the stream wrote.

        Rows that are never rewritten are the first of those of any later state, so the longest
        state so far is kept. A memory that rewrites its rows has to be written anew.
        """
        if self._whole and self._at > self._grown[0]:
            self._grown = self._at, self._track.state
        at, state = self._grown
        rewritten = any(x.rewritten for x in state if isinstance(x, Rows))
        if at >= step > 0 and not rewritten:
            track = self._track
            track.state = state
            held = self._stored("rows", step)
            arrays = {n: x[: held.max(initial=0)] for n, x in track.arrays().items()}
            track.restore({**arrays, "rows": held})
            self._at, self._whole = step, False
        elif at <= step:
            self._track.state, self._at, self._whole = state, at, True
        else:
            self._track, self._at, self._whole = self._new(), 0, True

    def _stored(self, name: str, step: int) -> np.ndarray:
        """Return a state variable as the keyframe after `step` steps holds it."""
        return np.asarray(self._keyframes[name][step // self.n - 1])

    def _check(self, step: int) -> None:
        """Compare the state that was arrived at with the keyframe that was stored there.

        Raises
        ------
        DamageError
            If they differ: by a bit, where what computes now is what computed then; else by more
            than rounding.
        """
        then, now = maker(self._attrs, self._solver["kernel"]), maker_now(self._track)
        same = then == now
        if not same and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.path}: states of {self.label!r} are recomputed by {told(now)}; they were "
                f"made by {told(then)}: equal up to rounding, not bit for bit",
                ReplayWarning,
                stacklevel=2,
            )
        for name, x in self._track.recorded().items():
            got, stored = np.asarray(self._track.backend.get(x)), self._stored(name, step)
            width = self._stream.sample["keys"].shape[-1]
            allowed = 0.0 if same else tolerance(stored.dtype, self.n, width)
            differs = Comparison(allowed).first(stored[None], got[None])
            if differs:
                at, self._at = differs[1:], -1  # nothing goes on from here
                raise DamageError(
                    f"{self.path}: replaying {self.label!r} from the keyframe after step "
                    f"{step - self.n} does not arrive at the one after step {step}: "
                    f"{name}{list(at)} is stored as {stored[at]!r} and recomputed as "
                    f"{got[at]!r}; stored by {told(then)}, recomputed by {told(now)}"
                )


def _taken(x: np.ndarray, rest: tuple[Any, ...]) -> np.ndarray:
    """Return part of an array along every axis but the first."""
    for axis in range(len(rest), 0, -1):  # from the last: a number removes its axis
        x = x[(slice(None),) * axis + (rest[axis - 1],)]
    return x

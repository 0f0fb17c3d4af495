"""`engine.stream`: a scenario step by step, watched and steered by whoever takes its frames."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from engine import coefficients, signatures
from engine.answers import Written
from engine.building import plain
from engine.errors import InputError, at, nearest, whole
from engine.experiment import Plan, prepare
from engine.frames import Frame
from engine.liveframes import LiveFrame
from engine.midway import Recording
from engine.recorder import BLOCK_STEPS
from engine.scenario import native
from engine.sources import Tokens


class Stream(Iterator[LiveFrame]):
    """A scenario under way: an iterator of frames, made by `engine.stream`.

    A step is computed when its frame is asked for, and not before.

    Attributes
    ----------
    step : int
        The next step.
    every : int
        Steps per frame; it may be changed between frames.
    """

    def __init__(self, plan: Plan, every: int) -> None:
        self.plan, self.step, self.every = plan, 0, every
        self.written = {q.name: Written(plan.source, q) for q in plan.questions}
        self._tracks = {track.label: track for track in plan.tracks}
        self._size = size = [every]  # of the next block
        self._blocks = plan.source.blocks(lambda: size[0])
        self._resolved = copy.deepcopy(plan.scenario.resolved)
        self._recording: Recording | None = None
        self._closed = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> LiveFrame:
        began = time.perf_counter()
        every = whole("every", self.every)
        frame = None if self._closed else self._advance(every)
        if frame is None:
            self.close()
            raise StopIteration
        moments = {label: copy.copy(track) for label, track in self._tracks.items()}
        elapsed = time.perf_counter() - began
        return LiveFrame(frame.tokens, frame.traces, elapsed, self, moments)

    def skip(self, steps: int) -> int:
        """Go on by some steps without making frames.

        They are computed as all others, and a recording stores them; what is saved is the room and
        the time that states on the way would take.

        Returns
        -------
        int
            How many there were: fewer where the stream ends.
        """
        first, left = self.step, whole("steps", steps, 0)
        wanted = self._recording is not None
        self._keep_states(wanted)
        try:
            while left and not self._closed:
                frame = self._advance(min(left, BLOCK_STEPS))
                if frame is None:
                    self.close()
                else:
                    left -= len(frame.tokens)
        finally:
            self._keep_states(True)
        return self.step - first

    def set(self, label: str, /, **values: Any) -> None:
        """Bind coefficients of a solver anew, from the next step on.

        Parameters
        ----------
        label : str
            The solver's label.
        **values : number, list or table
            What a scenario binds a coefficient to: ``beta=0.5``, ``beta={"trials": [0.1, 0.2]}``.
            A schedule counts the stream's steps, not those from here.

        Raises
        ------
        InputError
            As for a scenario; nothing is changed.
        """
        where = self.plan.scenario.where
        if label not in self._tracks:
            advice = nearest(label, self._tracks)
            raise InputError(f"{where}: no solver has the label {label!r}; {advice}")
        track, bindings = self._tracks[label], {}
        declared = signatures.coefficients(type(track.solver))
        for name, value in native(values).items():
            with at(f"{where}: solvers.{label}.{name} = {value!r}"):
                if name in signatures.options(type(track.solver)):
                    raise InputError(
                        "a hyperparameter is fixed while a stream runs; coefficients are "
                        f"{', '.join(declared) or 'none'}"
                    )
                if name not in declared:
                    rule = self.plan.scenario.entries[label].name
                    raise InputError(f"{rule} takes no {name!r}; {nearest(name, declared)}")
                d, sample = declared[name], self.plan.source.sample
                made = coefficients.parse(name, d.spec, value, "read" in d.methods).on(sample)
                coefficients.check(made, sample, track.trials, track.sizes)
                if self._recording:
                    self._recording.admit(label, made)
                bindings[name] = made
        track.bind(bindings)
        self._resolved["solvers"][label].update(plain(values))

    def record(self, path: str | Path, steps: int | None = None, force: bool = False) -> None:
        """Store what follows, from the next step on, as `engine.run` does.

        The store's `step` coordinate holds the stream's own steps. Every coefficient is stored at
        every step.

        Parameters
        ----------
        path : str or Path
            Where to.
        steps : int, optional
            How many steps at most; default: all that are left. An endless stream needs it: room is
            made first. The recording ends by itself when it is full.
        force : bool
            Replace a run that is there.

        Raises
        ------
        InputError
            If the path is taken, or a recording is under way; nothing was written.
        """
        if self._recording is not None:
            raise InputError(
                f"{self._recording.path} is being recorded; end that with stop_recording()"
            )
        left = None if self.plan.source.steps is None else self.plan.source.steps - self.step
        if self._closed or left == 0:
            raise InputError(f"{path}: the stream has ended, so there is nothing to record")
        wanted = left if steps is None else whole("steps", steps)
        if wanted is None:
            raise InputError(
                f"{path}: the stream is endless; say for how many steps to make room, as "
                "record(path, steps=100_000)"
            )
        room = wanted if left is None else min(wanted, left)
        plan, resolved = self.plan, copy.deepcopy(self._resolved)
        self._recording = Recording(plan, resolved, Path(path), self.step, room, force)

    def stop_recording(self) -> None:
        """End a recording, if one is under way: its store is complete with the steps so far."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.close(self.written)

    def close(self) -> None:
        """End the stream, and a recording of it. Nothing is computed any more."""
        self._end()
        self.stop_recording()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._fail()

    def __del__(self) -> None:
        if getattr(self, "_recording", None) is not None:
            self.close()  # what waits to be written in whole shards is not lost

    def _advance(self, size: int) -> Frame | None:
        """Return the next steps, at most `size`; None at the end."""
        self._size[0] = size
        try:
            tokens = next(self._blocks, None)
            if tokens is None:
                return None
            # Copies: a generator may use its arrays again, and a frame stays as it was.
            tokens = Tokens(tokens.start, {n: x.copy() for n, x in tokens.arrays.items()})
            frame = Frame(tokens, {n: track.advance(tokens) for n, track in self._tracks.items()})
            self.step = frame.stop
            for written in self.written.values():
                written(frame.tokens)
            if self._recording is not None and self._recording.write(frame):
                self.stop_recording()
        except BaseException:  # some solvers are ahead of others: there is no next step
            self._fail()
            raise
        return frame

    def _keep_states(self, wanted: bool) -> None:
        for track in self._tracks.values():
            track.record = wanted

    def _end(self) -> None:
        self._closed = True
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()

    def _fail(self) -> None:
        """End the stream; a recording keeps what is complete, with status "failed"."""
        self._end()
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.close({}, complete=False)


def stream(scenario: str | Path | Mapping[str, Any], every: int = 1, **overrides: Any) -> Stream:
    """Return live frames of a scenario, `every` steps each; nothing is stored.

    Parameters
    ----------
    scenario : str, Path or mapping
        Path of a TOML file, name of a shipped scenario, or what such a file would hold.
    every : int
        Steps per frame.
    **overrides
        As for `run`.

    Returns
    -------
    Stream
        An iterator of frames: ``frame.step``, ``frame.traces[label]`` as arrays, ``frame[label]``
        as a Dataset, ``frame.measures[label]``. A stream whose generator is endless goes on until
        the caller stops. It can `skip`, `set` coefficients, `record` and `close`.

    Raises
    ------
    InputError
        If anything is wrong with the scenario or with `every`.

    Notes
    -----
    A step is computed when its frame is asked for: a slow consumer costs no memory. A scenario
    with probes keeps every pair that they may ask for; a recording answers those at the end.

    Examples
    --------
    >>> frame = next(stream("attention", every=4))
    >>> frame.step, frame.traces["delta"].output.shape
    (3, (4, 3, 32))
    """
    every = whole("every", every)
    return Stream(prepare(scenario, overrides, live=True), every)

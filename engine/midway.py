"""Recording a stream that is under way: from its next step on, under its own step numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from engine.answers import Written, answered
from engine.coefficients import Binding
from engine.drop import tell
from engine.errors import InputError, RunError
from engine.experiment import Plan, describe, end, store_sink
from engine.frames import Frame, Trace
from engine.interrupts import uninterrupted
from engine.recorder import Recorder
from engine.sources import Fingerprint, Source, Tokens
from engine.track import Track


class Changing:
    """A track as a recorder sees it where any coefficient may be changed: all vary by step."""

    def __init__(self, track: Track) -> None:
        self._track = track
        self.bindings = {name: self._by_step(b) for name, b in track.bindings.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._track, name)

    def _by_step(self, binding: Binding) -> Binding:
        axis = binding.spec.axis
        if axis and axis not in self._track.sizes:
            return binding
        along = ("step", "trial", *([axis] if axis else []))
        return replace(binding, source=np.empty((0, 1, 1)), along=along)

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """Dims of every variable, coefficients along all that they may vary in."""
        return {**self._track.dims, **{name: b.dims for name, b in self.bindings.items()}}

    def trace(self, trace: Trace) -> Trace:
        """Return a trace with its coefficients along those dims."""
        steps, sizes, full = len(trace.output), self._track.sizes, {}
        for name, x in trace.coefficients.items():
            dims = self.bindings[name].dims
            where = tuple(slice(None) if d in trace.dims[name] else None for d in dims)
            shape = [{"step": steps, "trial": self._track.trials, **sizes}[d] for d in dims]
            full[name] = np.broadcast_to(x[where], shape) if dims else x
        return replace(trace, coefficients=full, dims=self.dims)


class Recording:
    """A store that is being filled from a stream under way.

    Parameters
    ----------
    plan : Plan
        What runs.
    resolved : dict
        The scenario's resolved form, with the coefficients of now.
    path : Path
        Where to.
    first, steps : int
        The first step to come, and how many to make room for.
    force : bool
        Replace a run that is there.
    """

    def __init__(
        self, plan: Plan, resolved: dict[str, Any], path: Path, first: int, steps: int, force: bool
    ) -> None:
        self.path, self._first, self._steps = path.expanduser(), first, steps
        source = plan.source
        rest = SimpleNamespace(
            steps=steps, trials=source.trials, sample=source.sample, facts=source.facts,
            dims=source.dims,
        )  # fmt: skip
        self._tracks = {track.label: Changing(track) for track in plan.tracks}
        table = plan.scenario.table.model_copy(update={"record": "every"})
        self._plan = Plan(
            replace(plan.scenario, table=table, resolved=resolved),
            cast(Source, rest),
            cast(list[Track], list(self._tracks.values())),
            [q for q in plan.questions if q.once],
        )
        self._sink = store_sink(self._plan, self.path, force)
        self._fingerprint = Fingerprint()
        with uninterrupted():
            describe(self._plan, self._sink)
            self._recorder = Recorder(
                self._sink, self._plan.source, self._plan.tracks, "every", self._sink.shard, first
            )
            self._sink.describe("", {"first_step": first})

    def admit(self, label: str, binding: Binding) -> None:
        """Refuse a binding that the store has no room for."""
        known = self._tracks[label].bindings.get(binding.name)
        if known is None or "step" not in known.dims:
            raise InputError(
                f"{self.path}, which is being recorded, has no room for it; end the recording first"
            )

    def write(self, frame: Frame) -> bool:
        """Store a frame, and return whether the store is full."""
        left = self._first + self._steps - frame.start
        traces = {label: self._tracks[label].trace(x) for label, x in frame.traces.items()}
        whole = Frame(frame.tokens, traces)
        part = whole if left >= len(frame.tokens) else _head(whole, left)
        self._fingerprint.update(part.tokens)
        try:
            with uninterrupted():
                self._recorder.write(part)
        except OSError as error:
            raise self._unwritten(error) from error
        return left <= len(frame.tokens)

    def close(self, written: Mapping[str, Written], complete: bool = True) -> None:
        """Write the rest and end; a complete store holds the steps that were recorded and no more.

        `written` holds what the scenario's probes ask about; those at the end are asked now.
        """
        status = "failed"
        try:
            with uninterrupted():
                self._recorder.close(complete)
                tell(self._plan.tracks, self._sink)
                for q in self._plan.questions if complete else ():
                    for row in answered(q, written[q.name].asked(), self._plan.tracks):
                        self._recorder.put(*row)
                self._sink.describe("stream", {"sha256": self._fingerprint.hexdigest()})
                if complete and self._recorder.committed < self._steps:
                    self._sink.fit(self._recorder.committed)
            status = "complete" if complete else "failed"
        except OSError as error:
            raise self._unwritten(error) from error
        finally:
            with uninterrupted():
                end(self._sink, status)

    def _unwritten(self, error: OSError) -> RunError:
        done = self._recorder.committed
        return RunError(
            f"{self.path} could not be written, {done} of {self._steps} steps are stored: {error}"
        )


def _head(frame: Frame, steps: int) -> Frame:
    """Return the first steps of a frame."""
    tokens = Tokens(frame.start, {n: x[:steps] for n, x in frame.tokens.arrays.items()})

    def cut(arrays: Mapping[str, np.ndarray], dims: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {n: x[:steps] if "step" in dims[n] else x for n, x in arrays.items()}

    traces = {
        label: replace(
            t, prediction=t.prediction[:steps], output=t.output[:steps],
            states=cut(t.states, t.dims), coefficients=cut(t.coefficients, t.dims),
        )
        for label, t in frame.traces.items()
    }  # fmt: skip
    return Frame(tokens, traces)

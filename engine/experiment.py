"""Scenarios put to work: live frames, or a recorded run."""

from __future__ import annotations

import dataclasses
import math
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import coefficients, sealed
from engine.answers import Prober
from engine.api import Generator
from engine.backend import backend as get_backend
from engine.drop import Droppable, tell
from engine.errors import InputError, RunError, at
from engine.frames import Frame
from engine.initial import begin
from engine.interrupts import Interrupts, uninterrupted
from engine.loop import loop
from engine.probes import Question, question
from engine.recorder import MemorySink, Recorder, Sink, block_steps, layout, shard_steps
from engine.scenario import Scenario, load
from engine.sources import Fingerprint, GeneratorSource, Source
from engine.track import Track

if TYPE_CHECKING:
    import xarray as xr

    from engine.store import ZarrSink

CONVENTIONS = {
    "prediction": "the read at k_t from the state before write t",
    "output": "the read at q_t from the state after write t",
    "state": "index t is the state after write t; a fit S is (key, value), its read S^T q",
    "decay": "a plain multiplier in [0, 1]",
    "mask": "a masked step leaves the state bit for bit unchanged; its prediction is NaN",
    "rows": "a memory that grows holds rows[t] rows at step t; they are stored once, as they end",
}


@dataclass(frozen=True)
class Plan:
    """A scenario ready to run: its stream, its solvers in their empty state, its probes.

    `parent` says which run is replayed; `sealed_stream` is the seal of a run whose stream is read.
    """

    scenario: Scenario
    source: Source
    tracks: list[Track]
    questions: list[Question] = dataclasses.field(default_factory=list)
    parent: Mapping[str, Any] | None = None
    sealed_stream: Mapping[str, Any] | None = None

    @property
    def seal(self) -> dict[str, Any]:
        """What the run says under ``sealed``: of its own opening, or of the run that it reads."""
        opened = self.scenario.seal
        found = opened.attrs if opened else self.sealed_stream
        return {"sealed": dict(found)} if found else {}


def prepare(
    scenario: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any],
    live: bool = False,
    sealed: bool = False,
) -> Plan:
    """Return a plan; everything that can be wrong with a scenario is found here.

    `live` plans keep every state, whatever the scenario records; `sealed` ones use sealed seeds.

    Raises
    ------
    InputError
        Before anything is written.
    """
    return plan(load(scenario, overrides, sealed), live)


def plan(made: Scenario, live: bool = False) -> Plan:
    """Return the plan of a checked scenario, as `prepare` does."""
    assert not isinstance(made.generator, Path)
    with at(f"{made.where}: stream"):
        source = GeneratorSource(made.generator, made.table.seed, made.table.trials, made.steps)
    seal = sealed.of_streams((path for _, path in _files(made.generator)), made.resolved)
    return Plan(made, source, tracks(made, source, live), questions(made, source), None, seal)


def tracks(made: Scenario, source: Source, live: bool = False) -> list[Track]:
    """Return the solvers of a scenario in their empty state, ready for a stream.

    Raises
    ------
    InputError
        If a solver or a coefficient does not fit the stream.
    """
    table, found = made.table, []
    record = live or table.record == "every"
    with at(f"{made.where}: backend = {table.backend!r}"):
        backend = get_backend(table.backend)
    for label, entry in made.entries.items():
        with at(f"{made.where}: solvers.{label}"):
            kind = Droppable if table.on_error == "drop" else Track
            track = kind(
                label, entry.solver, source, entry.bindings, entry.view, backend, table.dtype,
                record, table.kernel, table.keyframes,
            )  # fmt: skip
            begin(track, source, entry.state)
        for name, binding in entry.bindings.items():
            value = made.resolved["solvers"][label][name]
            with at(f"{made.where}: solvers.{label}.{name} = {value!r}"):
                coefficients.check(binding, source.sample, source.trials, track.sizes)
        found.append(track)
    return found


def questions(made: Scenario, source: Source) -> list[Question]:
    """Return the probes of a scenario, put to a stream."""
    found = []
    for name, probe in made.table.probes.items():
        with at(f"{made.where}: probes.{name}"):
            found.append(question(name, probe, source))
    return found


def run(
    scenario: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    sealed: bool = False,
    resume: bool = False,
    **overrides: Any,
) -> xr.DataTree:
    """Run a scenario and record it.

    Parameters
    ----------
    scenario : str, Path or mapping
        Path of a TOML file, name of a shipped scenario, or what such a file would hold.
    out : str or Path, optional
        Where to store the run; None keeps it in memory.
    sealed : bool
        Open the scenario's sealed seed and run with it; the opening is written to the ledger
        beside the scenario, NAME.ledger.jsonl (of a shipped one: in ``runs``).
    resume : bool
        Go on with the run at `out` that ended early, to exactly the run that it would have been.
    **overrides
        Values for keys of the scenario, nested ones by dotted path:
        ``run("drift", seed=1, **{"solvers.implicit.beta": 0.5})``.

    Returns
    -------
    DataTree
        Groups `stream` and `solvers/<label>`; lazy when stored. Of a scenario with a ``[sweep]``,
        one such tree per part: `parts/0`, `parts/1`, ...

    Raises
    ------
    InputError
        If the scenario is wrong or `out` is taken; nothing was written.
    RunError
        If a solver or generator failed; the store keeps what was complete, with status "failed".
    """
    from engine import sweep

    if swept := sweep.prepare(scenario, overrides, sealed):
        return sweep.run(swept, Path(out) if out is not None else None, resume=resume)
    plan = prepare(scenario, overrides, sealed=sealed)
    if out is None:
        if resume:
            raise InputError("resume = True needs out, the store of the run")
        sink = MemorySink()
        _length(plan)
        if plan.scenario.seal:
            plan.scenario.seal.record(None)
        execute(plan, sink)
        return sink.tree()
    from engine import opening

    if resume:
        from engine.resume import sink as resumed

        rest = resumed(plan, Path(out))
    else:
        rest = store_sink(plan, Path(out))
    if rest is not None:
        execute(plan, rest)
    return opening.open(out)


def store_sink(plan: Plan, path: Path, force: bool = False) -> ZarrSink:
    """Return a new store for a plan; of a sealed one, the seeds are open from here on.

    Raises
    ------
    InputError
        If the path is taken, cannot be written, has no room, or is what the stream is read from.
    """
    from engine.lock import check_free
    from engine.store import ZarrSink

    path = path.expanduser()
    steps = _length(plan)
    check_free(path, force)
    check_not_read(plan, path)
    variables = list(layout(plan.source, plan.tracks, plan.scenario.table.states))
    redraws = plan.scenario.table.redraws and plan.parent is None
    with at(f"{plan.scenario.where}: stream.steps"):
        kept = [v for v in variables if not (redraws and v.group == "stream")]
        _check_room(path, steps, math.ceil(sum(v.row_bytes / v.every for v in kept)))
    if plan.scenario.seal:
        plan.scenario.seal.record(path)
    sink = None
    try:
        with uninterrupted():
            sink = ZarrSink(path, shard_steps(variables, steps), force, redraws)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    except KeyboardInterrupt:
        if sink:  # nothing is in it yet
            shutil.rmtree(path.resolve())
        raise
    return sink


def check_not_read(plan: Plan, path: Path) -> None:
    """Refuse to replace what a plan's stream is read from."""
    path = path.expanduser()
    for name, given in _files(plan.scenario.generator):
        if path.exists() and given.resolve().is_relative_to(path.resolve()):
            raise InputError(
                f"{path} holds what the stream is read from ({name} = {given}); choose another "
                "place"
            )


def _files(generator: Generator | Path) -> Iterator[tuple[str, Path]]:
    """Yield the files that a stream is read from, each with the name of its option."""
    if isinstance(generator, Path):
        yield "run", generator
        return
    for field in dataclasses.fields(generator):  # type: ignore[arg-type]
        given = getattr(generator, field.name)
        if isinstance(given, Path):
            yield f"stream.{field.name}", given


def _check_room(path: Path, steps: int, row_bytes: int) -> None:
    """Refuse a run that does not fit on the disk."""
    folder = next((p for p in path.absolute().parents if p.is_dir()), Path())
    free = shutil.disk_usage(folder).free
    free += sum(f.stat().st_size for f in path.rglob("*") if f.is_file())  # what --force replaces
    if steps * row_bytes > free:
        raise InputError(
            f"{steps:,} steps of {row_bytes:,} bytes do not fit into the {free:,} bytes that are "
            f'free in {folder}; take fewer steps or trials, record = "final", or keyframes'
        )


def _length(plan: Plan) -> int:
    if plan.source.steps is None:
        raise InputError(
            f"{plan.scenario.where}: stream.steps: missing; this generator is endless, and a "
            "recorded run needs a length"
        )
    return plan.source.steps


def execute(plan: Plan, sink: Sink, watch: Callable[[Frame], None] | None = None) -> None:
    """Run a plan into a sink, calling `watch` with every frame."""
    with Interrupts() as interrupts:
        _execute(plan, sink, watch, interrupts.held)


def _execute(
    plan: Plan, sink: Sink, watch: Callable[[Frame], None] | None,
    uninterrupted: Callable[[], AbstractContextManager[None]],
) -> None:  # fmt: skip
    steps, scenario = _length(plan), plan.scenario
    shard: int | None = getattr(sink, "shard", None)  # memory takes frames as they come
    block = block_steps(plan.source, plan.tracks)
    if shard:
        block = getattr(sink, "block", None) or math.gcd(block, shard)
    fingerprint, dropped = Fingerprint(), set[str]()
    complete, status, recorder = False, "failed", None
    try:
        with uninterrupted():
            describe(plan, sink)
            recorder = Recorder(sink, plan.source, plan.tracks, scenario.table.states, shard)
            prober = Prober(plan.questions, plan.source, plan.tracks, sink)
            if shard:  # from here on a run that is killed can be resumed
                sink.describe("", {"block": block})
        try:
            for frame in loop(plan.source, plan.tracks, block):
                fingerprint.update(frame.tokens)
                try:
                    prober(frame)
                finally:  # a probe that fails loses no step
                    with uninterrupted():
                        recorder.write(frame)
                dropped = tell(plan.tracks, sink, dropped)
                if watch:
                    watch(frame)
            complete = True
        finally:
            with uninterrupted():
                recorder.close(complete)
                tell(plan.tracks, sink)  # all again: resumed, those stored before are known
        sink.describe("stream", {"sha256": fingerprint.hexdigest()})
        status = "complete"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    except OSError as error:
        done = recorder.committed if recorder else 0
        raise RunError(
            f"the run could not be written, {done} of {steps} steps are stored: {error}"
        ) from error
    finally:
        with uninterrupted():
            end(sink, status)


def end(sink: Sink, status: str) -> None:
    """Close a sink. On a disk that is full even that may fail: the run's own error says more."""
    try:
        sink.close(status)
    except OSError as error:
        if status == "complete":
            raise RunError(
                f"every step is stored, but not that the run is complete: {error}"
            ) from error


def describe(plan: Plan, sink: Sink) -> None:
    """Say what is being run before anything of it is stored."""
    scenario = plan.scenario
    sink.describe("", {
        "scenario": {"name": scenario.name, "text": scenario.text, "resolved": scenario.resolved},
        **plan.seal,
        "provenance": provenance(backend=scenario.table.backend, seed=scenario.table.seed),
        **({"parent": dict(plan.parent)} if plan.parent else {}),
    })  # fmt: skip
    for track in plan.tracks:
        entry, resolved = scenario.entries[track.label], scenario.resolved["solvers"][track.label]
        hyper = {
            n: x
            for n, x in resolved.items()
            if n not in ("solver", "view", "state", *entry.bindings)
        }
        sink.describe(f"solvers/{track.label}", {
            "solver": entry.name, "plugin": entry.source, "view": resolved["view"],
            "hyperparameters": hyper, "kernel": track.kernel,
        })  # fmt: skip


@cache
def versions() -> dict[str, str]:
    """Return the versions that a run's numbers may depend on."""
    libraries = ["ttr-engine", "numpy", "xarray", "zarr", "pluggy"]
    libraries += [name for name in ("numba",) if find_spec(name)]
    return {"python": platform.python_version(), **{name: version(name) for name in libraries}}


def provenance(**facts: Any) -> dict[str, Any]:
    """Return what wrote a store: versions, platform, conventions, and the facts given."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "byteorder": sys.byteorder,
        **facts,
        "conventions": CONVENTIONS,
    }

"""Scenarios put to work: live frames, or a recorded run."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import coefficients
from engine.backend import backend as get_backend
from engine.errors import InputError
from engine.loop import Frame, Track, loop
from engine.probes import Written, ask
from engine.recorder import MemorySink, Recorder, layout, shard_steps
from engine.scenario import Scenario, load
from engine.sources import Fingerprint, GeneratorSource, Source

if TYPE_CHECKING:
    import xarray as xr

    from engine.store import ZarrSink

BLOCK = 1024
"""Most steps per frame of a recorded run. It changes no number."""

CONVENTIONS = {
    "prediction": "the read at k_t from the state before write t",
    "output": "the read at q_t from the state after write t",
    "state": "index t is the state after write t; a fit S is (key, value), its read S^T q",
    "decay": "a plain multiplier in [0, 1]",
    "mask": "a masked step leaves the state bit for bit unchanged; its prediction is NaN",
    "rows": "a memory that grows holds the first rows[t] rows at step t",
}


@dataclass(frozen=True)
class Plan:
    """A scenario ready to run: its stream and its solvers in their empty state."""

    scenario: Scenario
    source: Source
    tracks: list[Track]


def prepare(scenario: str | Path | Mapping[str, Any], overrides: Mapping[str, Any]) -> Plan:
    """Return a plan; everything that can be wrong with a scenario is found here.

    Raises
    ------
    InputError
        Before anything is written.
    """
    made = load(scenario, overrides)
    where = scenario if isinstance(scenario, (str, Path)) else "scenario"
    try:
        source = GeneratorSource(made.generator, made.table.seed, made.table.trials, made.steps)
    except InputError as error:
        raise InputError(f"{where}: stream: {error}") from error
    try:
        backend = get_backend(made.table.backend)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    tracks = []
    for label, entry in made.entries.items():
        track = Track(
            label, entry.solver, source, entry.bindings, entry.view, backend, made.table.dtype
        )
        for name, binding in entry.bindings.items():
            try:
                coefficients.check(binding, source.sample, source.trials, track.sizes)
            except InputError as error:
                value = made.resolved["solvers"][label][name]
                raise InputError(f"{where}: solvers.{label}.{name} = {value!r}: {error}") from error
        tracks.append(track)
    return Plan(made, source, tracks)


def stream(
    scenario: str | Path | Mapping[str, Any], every: int = 1, **overrides: Any
) -> Iterator[Frame]:
    """Yield live frames of a scenario; nothing is stored.

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
    iterator of Frame
        ``frame.tokens``, ``frame.traces[label]`` as arrays, ``frame[label]`` as a Dataset. A
        stream whose generator is endless goes on until the caller stops.

    Examples
    --------
    >>> frame = next(stream("rebinding", every=4))
    >>> frame.stop, frame.traces["delta"].output.shape
    (4, (4, 50, 64))
    """
    if every < 1:
        raise InputError(f"every = {every} must be at least 1")
    plan = prepare(scenario, overrides)
    return loop(plan.source, plan.tracks, every)


def run(
    scenario: str | Path | Mapping[str, Any], out: str | Path | None = None, **overrides: Any
) -> xr.DataTree:
    """Run a scenario and record it.

    Parameters
    ----------
    scenario : str, Path or mapping
        Path of a TOML file, name of a shipped scenario, or what such a file would hold.
    out : str or Path, optional
        Where to store the run; None keeps it in memory.
    **overrides
        Values for keys of the scenario, nested ones by dotted path:
        ``run("drift", seed=1, **{"solvers.implicit.beta": 0.5})``.

    Returns
    -------
    DataTree
        Groups `stream` and `solvers/<label>`; lazy when stored.

    Raises
    ------
    InputError
        If the scenario is wrong or `out` is taken; nothing was written.
    RunError
        If a solver or generator failed; the store keeps what was complete, with status "failed".
    """
    plan = prepare(scenario, overrides)
    if out is None:
        sink = MemorySink()
        execute(plan, sink)
        return sink.tree()
    from engine import store

    execute(plan, store_sink(plan, Path(out)))
    return store.open(out)


def store_sink(plan: Plan, path: Path, force: bool = False) -> ZarrSink:
    """Return a new store for a plan."""
    from engine.store import ZarrSink, check_free

    check_free(path, force)
    _length(plan)
    variables = list(layout(plan.source, plan.tracks, plan.scenario.table.record))
    return ZarrSink(path, shard_steps(variables, _length(plan)), force)


def _length(plan: Plan) -> int:
    if plan.source.steps is None:
        raise InputError(
            f"{plan.scenario.name}: stream.steps: missing; this generator is endless, and a "
            "recorded run needs a length"
        )
    return plan.source.steps


def execute(
    plan: Plan, sink: MemorySink | ZarrSink, watch: Callable[[Frame], None] | None = None
) -> None:
    """Run a plan into a sink, calling `watch` with every frame."""
    steps, scenario = _length(plan), plan.scenario
    shard = None if isinstance(sink, MemorySink) else sink.shard
    recorder = Recorder(sink, plan.source, plan.tracks, scenario.table.record, shard)
    sink.describe("", {
        "scenario": {"name": scenario.name, "text": scenario.text, "resolved": scenario.resolved},
        "provenance": _provenance(scenario),
    })  # fmt: skip
    for track in plan.tracks:
        entry, resolved = scenario.entries[track.label], scenario.resolved["solvers"][track.label]
        hyper = {n: x for n, x in resolved.items() if n not in ("solver", "view", *entry.bindings)}
        sink.describe(f"solvers/{track.label}", {
            "solver": entry.name, "plugin": entry.source, "view": resolved["view"],
            "hyperparameters": hyper, "kernel": track.kernel,
        })  # fmt: skip
    fingerprint, written = Fingerprint(), Written(plan.source)
    consumers: list[Callable[[Frame], None]] = [watch] if watch else []
    if scenario.table.probes:
        consumers.append(written)
    status = "failed"
    try:
        for frame in loop(plan.source, plan.tracks, min(BLOCK, max(steps, 1))):
            fingerprint.update(frame.tokens)
            recorder.write(frame)
            for consumer in consumers:
                consumer(frame)
        _probe(plan, recorder, written)
        status = "complete"
    finally:
        recorder.close()
        sink.describe("stream", {"sha256": fingerprint.hexdigest()})
        sink.close(status)


def _probe(plan: Plan, recorder: Recorder, written: Written) -> None:
    """Ask what the scenario's probes ask and record the answers."""
    for name in plan.scenario.table.probes if plan.source.steps else ():
        asked = written.asked()
        recorder.put(f"probes/{name}", "keys", ("query", "trial", "key"), asked.keys)
        recorder.put(f"probes/{name}", "wanted", ("query", "trial"), asked.wanted)
        for track in plan.tracks:
            for variable, (dims, array) in ask(track, asked).items():
                recorder.put(f"probes/{name}/{track.label}", variable, dims, array)


def _provenance(scenario: Scenario) -> dict[str, Any]:
    libraries = ("ttr-engine", "numpy", "xarray", "zarr", "pluggy")
    return {
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in libraries},
        },
        "platform": platform.platform(),
        "machine": platform.machine(),
        "byteorder": sys.byteorder,
        "backend": scenario.table.backend,
        "seed": scenario.table.seed,
        "conventions": CONVENTIONS,
    }

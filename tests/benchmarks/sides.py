"""The engine's side of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import engine
from engine import signatures
from engine.backend import backend
from engine.coefficients import Binding
from engine.loop import loop
from engine.sources import ArraySource
from engine.track import Track
from tests.benchmarks.rules import Stream

BLOCK = 1024


def track(stream: Stream, solver: Any, kernel: str = "auto", record: bool = False) -> Track:
    """Return a track of the engine on a stream, in its empty state."""
    declared = signatures.coefficients(type(solver))
    bindings = {}
    for name, x in stream.coefficients.items():
        d = declared[name]
        dims = ("step", "trial", *([d.spec.axis] if d.spec.axis else []))
        bindings[name] = Binding(name, d.spec, x, dims, "read" in d.methods)
    for name, d in declared.items():
        if name not in bindings and d.default is not None:
            bindings[name] = Binding(name, d.spec, d.default, (), "read" in d.methods)
    return Track(
        "solver", solver, source(stream), bindings, None, backend("numpy"), stream.keys.dtype.name,
        record, kernel,
    )  # fmt: skip


def source(stream: Stream) -> ArraySource:
    """Return a stream as the engine takes it."""
    return ArraySource({"keys": stream.keys, "values": stream.values, "queries": stream.queries})


def engine_loop(stream: Stream, solver: Any, kernel: str = "auto") -> Callable[[], list[Any]]:
    """Return a call of the engine's loop without recording; it gives every frame's two reads."""

    def run() -> list[Any]:
        one = track(stream, solver, kernel)
        traces = (frame.traces["solver"] for frame in loop(source(stream), [one], BLOCK))
        return [(trace.prediction, trace.output) for trace in traces]

    return run


def engine_simulate(stream: Stream, solver: Any, **options: Any) -> Callable[[], Any]:
    """Return a call of `engine.simulate` that records the last state only."""
    wide = {"gamma"} if stream.rule == "kda" else set()
    given: Mapping[str, np.ndarray] = {
        name: x if name in wide else x[..., 0] for name, x in stream.coefficients.items()
    }
    return lambda: engine.simulate(
        solver,
        stream.keys,
        stream.values,
        stream.queries,
        **{"record": "final", **options},
        **given,
    )

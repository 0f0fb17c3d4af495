"""`engine stream`: frames of a scenario, or answers to pairs from standard input, as JSON lines."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from engine.commands import completing
from engine.commands.options import Assign, PluginsDir, assignment, use_plugins
from engine.errors import InputError, nearest, whole
from engine.printing import pipe, progress

if TYPE_CHECKING:
    from engine.frames import Trace
    from engine.liveframes import LiveFrame

Reads = Literal["last", "every"]


def stream(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A TOML file, the name of a shipped scenario, or - for pairs as JSON lines on "
            "standard input.",
            autocompletion=completing.scenarios,
        ),
    ] = "",
    every: Annotated[int, typer.Option(help="Steps per line.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Stop after so many steps.")] = None,
    solver: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:LABEL]",
            autocompletion=completing.solvers,
            help="With -, a solver, may be repeated; else a label of the scenario to keep.",
        ),
    ] = None,
    reads: Annotated[
        Reads, typer.Option(help="Reads to print: of a line's last step, or of every one.")
    ] = "last",
    assign: Assign = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of the lines and exit.")
    ] = False,
    plugins_dir: PluginsDir = None,
) -> None:
    """Stream a scenario, or pairs on standard input, as JSON.

    One line of JSON per frame; nothing is stored.
    """
    use_plugins(plugins_dir)
    if schema:
        print(json.dumps(_described(), indent=2))
        return
    if not scenario:
        raise InputError("give a scenario, or - for pairs on standard input")
    whole("--every", every)
    if steps is not None:
        whole("--steps", steps)
    overrides = dict(assignment(text) for text in assign or [])
    # Between lines on a terminal a bar would only be in the way.
    hidden = sys.stdout.isatty()
    with pipe():
        if scenario == "-":
            _answer(solver or [], overrides, every, steps, reads)
            return
        from engine.experiment import prepare
        from engine.live import Stream

        plan = prepare(scenario, overrides, live=True)
        for label in solver or []:
            if label not in plan.scenario.entries:
                advice = nearest(label, plan.scenario.entries)
                raise InputError(f"--solver {label!r}: the scenario has no such label; {advice}")
        kept = [track for track in plan.tracks if not solver or track.label in solver]
        source = Stream(replace(plan, tracks=kept), every)
        length = [n for n in (steps, plan.source.steps) if n is not None]
        name = plan.scenario.name
        bar = progress(name, min(length, default=None)) if not hidden else nullcontext(_nothing)
        with source, bar as done:
            _frames(source, steps, reads, done)


def _nothing(done: int) -> None:
    """Show nothing."""


def _frames(source: Any, steps: int | None, reads: Reads, done: Callable[[int], None]) -> None:
    """Print a line per frame of a scenario."""
    from engine.lines import SCHEMA, encoded

    every = source.every
    while steps is None or source.step < steps:
        source.every = every if steps is None else min(every, steps - source.step)
        frame = next(source, None)
        if frame is None:
            return
        solvers = {}
        for label, trace in frame.traces.items():
            known = frame.moments[label].diverged_at
            told = _reads(trace, reads)
            told["diverged_at"] = int(known[known >= 0].min()) if (known >= 0).any() else None
            solvers[label] = {**told, **_measured(frame, label)}
        line = {"schema": SCHEMA, "start": frame.start, "stop": frame.stop}
        _put(encoded({**line, "seconds": frame.seconds, "solvers": solvers}))
        done(frame.stop)


def _measured(frame: LiveFrame, label: str) -> dict[str, Any]:
    """Return the measures of a solver: means over trials."""
    measures = frame.measures[label]
    told: dict[str, Any] = {"prediction_error": _mean(measures.prediction_error.values)}
    if measures.tracking_error is not None:
        told["tracking_error"] = _mean(measures.tracking_error.values[-1])
    norms = measures.state_norm
    told["state_norm"] = {str(n): _mean(x.values[-1]) for n, x in norms.items()}
    if measures.recall:
        told["recall"] = {name: _mean(x.values) for name, x in measures.recall.items()}
    return told


def _mean(x: Any) -> float | None:
    """Return the mean over what is known; None where nothing is, or it is not finite."""
    known = x[x == x]
    found = float(known.mean()) if known.size else math.nan
    return found if math.isfinite(found) else None


def _reads(trace: Trace, reads: Reads, single: bool = False) -> dict[str, Any]:
    """Return prediction and output as lists: of the last step, or of every step."""
    step: Any = -1 if reads == "last" else slice(None)
    trial: Any = 0 if single else slice(None)
    both = {"prediction": trace.prediction, "output": trace.output}
    return {name: x[step][..., trial, :].tolist() for name, x in both.items()}


def _answer(
    names: list[str], overrides: Mapping[str, Any], every: int, steps: int | None, reads: Reads
) -> None:
    """Read pairs from standard input and print a line for every so many."""
    from engine import lines
    from engine.scenario import solvers

    table, entries = solvers(_labels(names), overrides)
    feed: lines.Feed | None = None
    waiting: list[lines.Pair] = []
    bad: lines.BadLine | None = None

    def work(block: list[lines.Pair]) -> None:
        assert feed is not None
        said = []
        try:
            for frame in feed.frames(block, every):
                told: dict[str, Any] = {}
                for label, trace in frame.traces.items():
                    told[label] = _reads(trace, reads, single=True)
                    told[label]["diverged_at"] = feed.diverged(label, frame.stop)
                line = {"schema": lines.SCHEMA, "start": frame.start, "stop": frame.stop}
                said.append(lines.encoded({**line, "solvers": told}))
        finally:
            _put("".join(said))

    number = 1
    for batch in lines.arriving(sys.stdin.fileno()):
        try:
            waiting += lines.pairs(batch, number)
        except lines.BadLine as error:
            bad, waiting = error, waiting + error.pairs
        number += len(batch)
        if feed is None and waiting:
            feed = lines.Feed(entries, table, waiting[0])
        if feed is not None:
            if steps is not None:
                waiting = waiting[: steps - feed.step]
            ready = len(waiting) // every * every
            block, waiting = waiting[:ready], waiting[ready:]
            if block:
                work(block)
            if steps is not None and feed.step + len(waiting) >= steps:
                break
        if bad is not None:
            raise bad
    if waiting:
        work(waiting)


def _labels(names: list[str]) -> dict[str, str]:
    """Return solvers' names by label."""
    if not names:
        raise InputError("- needs a solver: --solver NAME, or NAME:LABEL")
    labels: dict[str, str] = {}
    for text in names:
        name, colon, label = text.partition(":")
        label = label if colon else name
        if label in labels:
            raise InputError(
                f"--solver {text!r}: the label {label!r} is taken; write {name}:ANOTHER"
            )
        labels[label] = name
    return labels


def _put(text: str) -> None:
    """Print at once: whoever reads is waiting for it."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _described() -> dict[str, Any]:
    """Return the JSON Schema of the lines that are written, and of those that are read."""
    from engine.lines import SCHEMA

    number = {"type": ["number", "null"], "description": "null where it is not finite"}
    reads = {
        "type": "array",
        "description": "numbers, nested by step (with --reads every), by trial (of a scenario), "
        "by value",
    }
    vector = {"type": "array", "items": {"type": "number"}}
    means = "a mean over trials at the last step"
    solver = {
        "type": "object",
        "required": ["prediction", "output", "diverged_at"],
        "properties": {
            "prediction": {**reads, "title": "the read at the key before the write"},
            "output": {**reads, "title": "the read at the query after the write"},
            "diverged_at": {
                "type": ["integer", "null"],
                "description": "first step at which a state or read was not finite",
            },
            "prediction_error": {**number, "title": "a mean over the steps and trials"},
            "tracking_error": {**number, "title": means},
            "state_norm": {"type": "object", "additionalProperties": number, "title": means},
            "recall": {"type": "object", "additionalProperties": number, "title": "by probe"},
        },
    }
    return {
        "schema": SCHEMA,
        "output": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "a line for every so many steps",
            "type": "object",
            "required": ["schema", "start", "stop", "solvers"],
            "properties": {
                "schema": {"const": SCHEMA},
                "start": {"type": "integer", "description": "first step of the line"},
                "stop": {"type": "integer", "description": "one past its last step"},
                "seconds": {"type": "number", "description": "wall time; of a scenario only"},
                "solvers": {"type": "object", "additionalProperties": solver},
            },
        },
        "input": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "a pair",
            "type": "object",
            "required": ["key"],
            "properties": {
                "key": vector,
                "value": {**vector, "description": "may be left out where mask is false"},
                "query": {**vector, "description": "default: the key"},
                "mask": {"type": "boolean", "description": "false: only ask, do not write"},
            },
            "additionalProperties": {
                "type": ["number", "array"],
                "description": "a coefficient, NAME of every solver that has it or LABEL.NAME",
            },
        },
    }

"""`engine run`: a scenario run, recorded, and what it came to."""

from __future__ import annotations

import sys
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.commands import completing
from engine.commands.options import (
    AsJson,
    Assign,
    PluginsDir,
    assignment,
    ends_when_asked,
    use_plugins,
)
from engine.commands.report import show_claims
from engine.errors import EngineError, InputError, RunError, Terminated
from engine.printing import pipe, print_json, progress, table

if TYPE_CHECKING:
    from engine.experiment import Plan
    from engine.recorder import Sink
    from engine.summary import Row
    from engine.sweep import Sweep


def run(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A TOML file, or the name of a shipped scenario.",
            autocompletion=completing.scenarios,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to store it [default: runs/NAME.zarr]."),
    ] = None,
    assign: Assign = None,
    seed: Annotated[int | None, typer.Option(help="Override the seed.")] = None,
    trials: Annotated[int | None, typer.Option(help="Override the number of trials.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="numpy or cupy.", autocompletion=completing.backends)
    ] = None,
    on_error: Annotated[
        str | None,
        typer.Option(
            help="stop, or drop: go on without a solver that fails.",
            autocompletion=completing.on_error,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that ended early.")
    ] = False,
    sealed: Annotated[
        bool, typer.Option("--sealed", help="Open the sealed seed; a ledger keeps every opening.")
    ] = False,
    as_json: AsJson = False,
    plugins_dir: PluginsDir = None,
) -> None:
    """Run a scenario, record it, and print what it came to."""
    use_plugins(plugins_dir)
    from engine import experiment, sweep

    given = {"seed": seed, "trials": trials, "backend": backend, "on_error": on_error}
    overrides = {key: value for key, value in given.items() if value is not None}
    overrides |= dict(assignment(text) for text in assign or [])
    if resume and (force or not out):
        raise InputError("--resume goes on with the run named by --out; leave --force out")
    if swept := sweep.prepare(scenario, overrides, sealed):
        path = out.expanduser() if out else free(Path("runs"), swept.name)
        record_sweep(swept, path, force, as_json, resume)
        return
    plan = experiment.prepare(scenario, overrides, sealed=sealed)
    path = out.expanduser() if out else free(Path("runs"), plan.scenario.name)
    record(plan, path, force, as_json, resume)


def record(plan: Plan, path: Path, force: bool, as_json: bool, resume: bool = False) -> None:
    """Run a plan into a store and print what it came to."""
    from engine import experiment, opening, publishing
    from engine.summary import summarise

    if resume:
        from engine.resume import sink as resumed

        rest = resumed(plan, path)
        if rest is None:
            print(f"{path} is complete; there is nothing to resume", file=sys.stderr)
            return
        sink: Sink = rest
    else:
        sink = experiment.store_sink(plan, path, force)
    try:
        with ends_when_asked(), progress(plan.scenario.name, plan.source.steps) as done:
            experiment.execute(plan, sink, lambda frame: done(frame.stop))
    except RunError as error:
        raise RunError(f"{error}\n  {_kept(path)}") from error
    except KeyboardInterrupt as asked:
        print(f"{_where(asked)}: {_kept(path)}", file=sys.stderr)
        if isinstance(asked, Terminated):
            raise SystemExit(143) from None
        raise
    rows = summarise(opening.open(path), plan.tracks)
    with pipe():
        if as_json:
            facts = {"store": str(path), "steps": plan.source.steps, "trials": plan.source.trials}
            print_json({**facts, **plan.seal, "solvers": [row.plain() for row in rows]})
        else:
            _print_rows(plan, rows)
            try:
                if plan.scenario.table.report and plan.source.steps:
                    show_claims(publishing.said(opening.open(path), figures=False))
            finally:  # whatever its report says, the run is there
                print(f"stored in {path}")


def record_sweep(
    swept: Sweep, path: Path, force: bool, as_json: bool, resume: bool = False
) -> None:
    """Run every part of a sweep and print what they came to together."""
    from engine import opening, publishing, sweep

    try:
        with ends_when_asked(), progress(swept.name, len(swept.plans), "parts") as advance:
            tree = sweep.run(swept, path, force, advance, resume)
    except (RunError, KeyboardInterrupt) as error:
        done = f"{path} keeps {opening.open(path).attrs['committed']} of {len(swept.plans)} parts"
        if isinstance(error, RunError):
            raise RunError(f"{error}\n  {done}") from error
        print(f"{_where(error)}: {done}", file=sys.stderr)
        if isinstance(error, Terminated):
            raise SystemExit(143) from None
        raise
    try:
        said = publishing.said(tree, figures=False)
    except RunError as error:
        raise RunError(f"{error}\n  all {len(swept.plans)} parts are stored in {path}") from error
    with pipe():
        if as_json:
            claims = [{**asdict(claim), "holds": claim.holds} for claim in said.claims]
            print_json({"store": str(path), "parts": swept.settings, "claims": claims})
            return
        print(": ".join(filter(None, (swept.name, swept.plans[0].scenario.table.title))))
        show_claims(said)
        print(f"{len(swept.plans)} parts, stored in {path}")


def _where(asked: KeyboardInterrupt) -> str:
    """Say in which step and solver a run was interrupted, if it was in one."""
    said = " ".join(getattr(asked, "__notes__", []))
    return said if said.startswith("interrupted") else f"interrupted {said}".rstrip()


def _kept(path: Path) -> str:
    """Say what a run that ended early leaves behind."""
    from engine import store

    try:
        attrs = store.group(path).attrs
    except EngineError:
        return f"{path} holds no steps yet"
    return f"{path} keeps the first {attrs['committed']} steps, with status {attrs['status']!r}"


def free(folder: Path, name: str) -> Path:
    """Return runs/NAME.zarr, or the first of NAME-2.zarr, ... that is not taken."""
    names = (f"{name}.zarr" if i == 1 else f"{name}-{i}.zarr" for i in count(1))
    return next(folder / n for n in names if not (folder / n).exists())


def _number(x: float) -> str:
    """Return four decimals, or the size of a number too large for them."""
    return f"{x:.4f}" if abs(x) < 1e5 else f"{x:.3g}"


def _print_rows(plan: Plan, rows: list[Row]) -> None:
    from engine.sealed import mark

    kinds = sorted({row.error_kind for row in rows})
    probes = list(rows[0].recall)
    columns = ["solver", *kinds, *probes, "diverged", "state bytes", "steps/s"]
    lines = []
    for row in rows:
        diverged = "-" if row.diverged_at is None else f"at step {row.diverged_at}"
        if row.diverged_trials not in (0, plan.source.trials):
            diverged += f" ({row.diverged_trials} of {plan.source.trials} trials)"
        error = "-" if row.error is None else _number(row.error)
        error += f" +- {_number(row.error_half)}" if row.error_half is not None else ""
        errors = [error if kind == row.error_kind else "-" for kind in kinds]
        shares = [(row.recall[name], row.recall_half[name]) for name in probes]
        recall = [
            "-" if x is None else f"{x:.3f}" + (f" +- {half:.3f}" if half is not None else "")
            for x, half in shares
        ]
        lines.append(
            [
                row.solver,
                *errors,
                *recall,
                diverged,
                f"{row.state_bytes:,}",
                f"{row.steps_per_second:,.0f}",
            ]
        )
    steps, trials = plan.source.steps or 0, plan.source.trials
    print(": ".join(filter(None, (plan.scenario.name, plan.scenario.table.title))))
    print(f"{steps} steps, trials {trials}, seed {plan.scenario.table.seed}")
    if told := mark(plan.seal):
        print(told)
    table("", columns, lines, right=1)
    for row in rows:
        if row.overshoots:
            print(
                f"{row.solver}: a write took back {row.correction:.3g} times its error; stable to 2"
            )
    for row in rows:
        if row.dropped_at is not None:
            print(f"{row.solver}: dropped at step {row.dropped_at}: {row.dropped_because}")
    if trials > 1:
        print("+-: half the 95 % interval over trials")
    print(f"errors: mean over trials and the last {steps // 4 if steps >= 4 else steps} steps")

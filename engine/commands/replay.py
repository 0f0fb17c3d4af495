"""`engine replay`: a stored stream once more, or a run verified."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.commands import completing
from engine.commands.options import AsJson, Assign, PluginsDir, assignment, use_plugins
from engine.commands.run import free, record
from engine.errors import InputError
from engine.printing import pipe, print_json, progress

if TYPE_CHECKING:
    from engine.verify import Verification


def replay(
    run: Annotated[Path, typer.Argument(help="A run's store.")],
    solver: Annotated[
        list[str] | None,
        typer.Option(
            "--solver",
            metavar="NAME",
            autocompletion=completing.solvers,
            help="A label of the run, or a registered solver; repeat it.",
        ),
    ] = None,
    assign: Assign = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to store it [default: runs/NAME-replay.zarr]."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Store nothing: compare with what the run stored.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there.")] = False,
    as_json: AsJson = False,
    plugins_dir: PluginsDir = None,
) -> None:
    """Send a stored stream through its solvers, or others."""
    use_plugins(plugins_dir)
    overrides = dict(assignment(text) for text in assign or [])
    from engine.rerun import kernels, prepare

    if not verify:
        plan = prepare(run, solver or None, overrides)
        path = out.expanduser() if out else free(Path("runs"), f"{plan.scenario.name}-replay")
        record(plan, path, force, as_json)
        with pipe():
            for line in kernels(plan) if not as_json else ():
                print(line)
        return
    for what, given in (("--solver", solver), ("--out", out), ("--force", force)):
        if given:
            raise InputError(f"{what} makes a new run, --verify compares; give one of them")
    from engine.verify import verify as check

    plan = prepare(run, None, overrides)
    with progress(plan.scenario.name, plan.source.steps) as done:
        found = check(run, overrides, lambda frame: done(frame.stop))
    with pipe():
        if as_json:
            print_json({"run": str(run), **found.plain()})
        else:
            _print(run, found)
    raise typer.Exit(int(bool(found.differences)))


def _print(run: Path, found: Verification) -> None:
    """Print what verifying came to; a difference with its place and what made each side."""
    for line in found.lines():
        print(line)
    if not found.differences:
        print(f"{run}: all {found.compared:,} numbers agree")
        return
    print(f"{run}: {len(found.differences)} variables differ; first {found.first}")

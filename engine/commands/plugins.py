"""`engine plugins`: what there is, how the solvers compare, and whether one keeps the contract."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from engine.commands import completing
from engine.commands.options import AsJson, Assign, PluginsDir, assignment, use_plugins
from engine.printing import print_json, table

if TYPE_CHECKING:
    from engine.registry import PluginInfo

Kind = Literal["solver", "linear-solver", "generator", "view"]

app = typer.Typer(
    help="What solvers, generators, views and reports there are.", no_args_is_help=True
)


@app.command("list")
def list_plugins(
    compare: Annotated[
        bool,
        typer.Option("--table", help="Compare the solvers by what they fit and cost."),
    ] = False,
    as_json: AsJson = False,
    plugins_dir: PluginsDir = None,
) -> None:
    """List every solver, generator, view and report, broken ones included."""
    use_plugins(plugins_dir)
    from engine import registry

    found = registry.default()
    if compare:
        _compare(list(found.names("solver").values()), as_json)
        return
    infos = [info for kind in registry.KINDS for info in found.names(kind).values()]
    rows = [[i.name, i.kind, i.source, i.rule] for i in infos]
    for i in found.ambiguous():
        rows.append([i.name, i.kind, i.source, "NOT USABLE: another plugin has this name"])
    rows += [[b.name, "?", b.source, f"NOT LOADED: {b.cause}"] for b in found.broken]
    columns = ["name", "kind", "source", "rule"]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        table("", columns, rows)


def _compare(infos: list[PluginInfo], as_json: bool) -> None:
    """Print what every solver's card says."""
    texts = ("history", "model", "inner", "order", "error", "stable", "lost")
    costs = ("retained", "write", "query")
    cards = {info.name: getattr(info.cls, "card", None) for info in infos}
    if as_json:
        plain = {
            name: {key: getattr(card, key) for key in (*texts, *costs, "diverges")}
            if card
            else None
            for name, card in cards.items()
        }
        print_json(plain)
        return
    told = {name: card for name, card in cards.items() if card}
    rows = [[name, *(getattr(c, key) for key in texts[:-1])] for name, c in told.items()]
    table("What each solver fits", ["solver", *texts[:-1]], rows)
    rows = [[name, *(getattr(c, key) for key in costs), c.lost] for name, c in told.items()]
    columns = ["solver", "numbers retained", "multiply-adds per write", "per read", "lost"]
    table("What it costs (dk, dv: key and value length; t: pairs written)", columns, rows)
    silent = sorted(set(cards) - set(told))
    if silent:
        print(f"without a card: {', '.join(silent)}")


@app.command("check")
def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="PLUGIN",
            help="A name, a file (mine/lazy.py), or a class that can be imported (module:Class).",
            autocompletion=completing.plugins,
        ),
    ],
    assign: Assign = None,
    plugins_dir: PluginsDir = None,
) -> None:
    """Run the contract on a plugin: exit 0 if it keeps it, 1 if not.

    What fails is shown with the smallest stream on which it still fails.
    """
    use_plugins(plugins_dir)
    from engine import factories, loading, testing

    options = dict(assignment(text) for text in assign or [])
    failed = False
    for info in loading.plugins(target):
        plugin = factories.made(info, options)
        checks: dict[str, Callable[[Any], list[testing.Outcome]]] = {
            "solver": testing.check_solver,
            "generator": testing.check_generator,
            "view": testing.check_view,
            # What a report must have was checked as it was loaded; what it says needs its run.
            "report": lambda _: [testing.Outcome("loads", "passed")],
        }
        outcomes = checks[info.kind](plugin)
        rows = [[o.name, o.result, o.reason] for o in outcomes]
        table(f"{info.kind} {info.name}", ["check", "result", ""], rows)
        small = [o for o in outcomes if o.smallest]
        if small:
            print("smallest input that fails:")
            for text in dict.fromkeys(o.smallest for o in small):
                print(f"  {', '.join(o.name for o in small if o.smallest == text)}: {text}")
        failed |= any(o.result == "failed" for o in outcomes)
    raise typer.Exit(int(failed))


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits, _.")],
    kind: Annotated[Kind, typer.Option(help="What it is to be.")] = "solver",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder to write into [default: NAME; with --single-file the folder of plugins, "
            "else this one].",
        ),
    ] = None,
    single_file: Annotated[
        bool,
        typer.Option("--single-file", help="One file for --plugins-dir instead of a package."),
    ] = False,
    plugins_dir: PluginsDir = None,
) -> None:
    """Write a plugin to start from, which works and passes its own tests."""
    use_plugins(plugins_dir)
    from engine import authoring

    if single_file:
        folder = out or Path(os.environ.get("ENGINE_PLUGINS_DIR") or ".")
        written = authoring.write(folder, {f"{name}.py": authoring.module(name, kind)})
    else:
        folder = out or Path(name)
        written = authoring.write(folder, authoring.package(name, kind))
    for path in written:
        print(f"wrote {path}")
    place = shlex.quote(str(written[0] if single_file else folder))
    print(f"check it:   engine plugins check {name} --plugins-dir {place}")
    if not single_file:
        print(f"install it: pip install -e {shlex.quote(str(folder) + '[test]')}")

"""`engine tune`: the best settings of every solver, found on the development seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.commands import completing
from engine.commands.options import AsJson, Assign, PluginsDir, assignment, use_plugins
from engine.errors import InputError
from engine.printing import pipe, print_json, table

if TYPE_CHECKING:
    from engine.tuning import Tuned


def tune(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A TOML file, or the name of a shipped scenario.",
            autocompletion=completing.scenarios,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the scenario with the best settings here."),
    ] = None,
    solver: Annotated[str | None, typer.Option(help="Tune this label only.")] = None,
    assign: Assign = None,
    as_json: AsJson = False,
    plugins_dir: PluginsDir = None,
) -> None:
    """Find every solver's best settings.

    The candidates of the scenario's [tune] all meet the same streams, of the development seed.
    """
    use_plugins(plugins_dir)
    from engine import fill, tuning

    overrides = dict(assignment(text) for text in assign or [])
    if out is not None:
        out = out.expanduser()
        fill.check_out(scenario, out)
    found = tuning.tune(scenario, overrides, solver)
    best = {f"solvers.{t.label}.{n}": x for t in found for n, x in t.best.settings.items()}
    if out is not None:
        try:
            out.write_text(fill.filled(scenario, {**overrides, **best}), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{out} cannot be written: {error.strerror or error}") from error
    with pipe():
        if as_json:
            print_json({"best": best, "out": str(out) if out else None,
                        "solvers": [_plain(t) for t in found]})  # fmt: skip
            return
        for tuned in found:
            _print(tuned)
        if found[0].best.score.n > 1:
            print("intervals: 95 %, over trials; behind: paired, on the same streams")
        else:
            print("one trial: no intervals; take more, as --set trials=20")
        if out is not None:
            print(f"written to {out}")


def _plain(tuned: Tuned) -> dict[str, Any]:
    rows = [
        {"settings": c.settings, "score": c.score.plain(), "behind": c.behind.plain()}
        for c in tuned.candidates
    ]
    edges = {"edges": tuned.edges}
    return {"solver": tuned.label, "measure": tuned.measure, "best": tuned.best.settings,
            **edges, "candidates": rows}  # fmt: skip


def _print(tuned: Tuned) -> None:
    names = list(tuned.best.settings)
    rows = []
    for c in tuned.candidates:
        told = [f"{x:.6g}" if isinstance(x, float) else str(x) for x in c.settings.values()]
        if c.score.value != c.score.value:
            rows.append([*told, "diverged", "", ""])
            continue
        interval, behind = "-", f"{c.behind.value:+.4f}"
        if c.score.n > 1:
            interval = f"{c.score.low:.4f} .. {c.score.high:.4f}"
            behind += f" ({c.behind.low:+.4f} .. {c.behind.high:+.4f})"
        best = c is tuned.best
        rows.append([*told, f"{c.score.value:.4f}", interval, "best" if best else behind])
    table(tuned.label, [*names, tuned.measure, "interval", "behind the best"], rows)
    for name in tuned.edges:
        print(f"{tuned.label}: the best {name} is an end of its candidates; widen them")

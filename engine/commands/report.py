"""`engine report`: pictures and tables of a run, and what its study claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.commands.options import PluginsDir, use_plugins
from engine.printing import pipe, table

if TYPE_CHECKING:
    from engine.publishing import Said


def report(
    run: Annotated[Path, typer.Argument(help="A run's store.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report.")],
    plugins_dir: PluginsDir = None,
) -> None:
    """Write a run's report.

    Figures (PNG and SVG), tables (CSV), and report.html, which shows all of it offline.
    """
    use_plugins(plugins_dir)
    from engine import opening, publishing, store

    store.group(run)  # of one that has only begun there is nothing to report
    opened = opening.open(run)
    paths = publishing.publish(opened, out)
    with pipe():
        for mark in publishing.marks(opened):
            print(mark)
        show_claims(publishing.said(opened, figures=False))
        for path in paths:
            print(path)


def show_claims(said: Said) -> None:
    """Print what a study published beside what was found."""
    from engine.publishing import table as as_table
    from engine.publishing import told

    if said.claims:
        claims = as_table(said.claims)
        rows = [[told(x) for x in row] for row in claims.rows]
        table(claims.title, list(claims.columns), rows)

"""Tables on standard output."""

from __future__ import annotations

import sys


def table(title: str, columns: list[str], rows: list[list[str]], right: int = 0) -> None:
    """Print a table; columns from `right` on are aligned right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        grid.add_column(
            column, justify="right" if right and i >= right else "left", overflow="fold"
        )
    for row in rows:
        grid.add_row(*row)
    # In a pipe there is no width to fit: lines must not be cut.
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(grid)

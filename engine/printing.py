"""Tables and JSON on standard output."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def print_json(value: Any) -> None:
    """Print a value as JSON, which has no word for numbers that are not finite: they are null."""

    def plain(x: Any) -> Any:
        if isinstance(x, dict):
            return {key: plain(y) for key, y in x.items()}
        if isinstance(x, list):
            return [plain(y) for y in x]
        return None if isinstance(x, float) and not math.isfinite(x) else x

    print(json.dumps(plain(value), allow_nan=False))


@contextmanager
def pipe() -> Iterator[None]:
    """Print where nobody may be reading any more: the work is done, so that is no failure."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich makes the first into the second
        # Python flushes once more as it ends; there is nobody to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def progress(name: str, total: int | None, unit: str = "steps") -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many steps (or parts) are done; yield what is told how many."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(unit, total=total)
        yield lambda done: bar.update(task, completed=done)


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
    # In a pipe there is no width to fit: what is one line must stay one line.
    Console(width=None if sys.stdout.isatty() else 10_000, markup=False).print(grid)

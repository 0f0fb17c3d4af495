"""`engine report`: pictures and tables of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="A run's store.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the picture and the table.")],
) -> None:
    """Draw a run's error curves and write them as a table."""
    from engine import store
    from engine.figures import report as draw

    for path in draw(store.open(run), out):
        print(path)

"""Options that several commands share, and how their text is read."""

from __future__ import annotations

import os
import signal
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.errors import InputError, Terminated

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
PluginsDir = Annotated[
    Path | None,
    typer.Option(
        "--plugins-dir", help="Folder of one-file plugins, or one file [env: ENGINE_PLUGINS_DIR]."
    ),
]
Assign = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Set a value, as solvers.delta.beta=0.5."),
]


def use_plugins(folder: Path | None) -> None:
    """Let the registry look for one-file plugins in a folder."""
    if folder is not None:
        from engine import registry

        registry.one_files(folder, "--plugins-dir")
        os.environ["ENGINE_PLUGINS_DIR"] = str(folder)


def assignment(text: str) -> tuple[str, Any]:
    """Split PATH=VALUE; the value is read as TOML, and as a plain string if it is not."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {text!r}: expected PATH=VALUE, as solvers.delta.beta=0.5")
    try:
        read = tomllib.loads(f"x = {value}")
    except tomllib.TOMLDecodeError:
        return key.strip(), value
    return key.strip(), read["x"] if len(read) == 1 else value


@contextmanager
def ends_when_asked() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does: what is written is whole, and the store says so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        raise Terminated

    old = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)

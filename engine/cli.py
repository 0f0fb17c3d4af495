"""The command line, put together from `engine.commands`."""

from __future__ import annotations

import io
import re
import sys
import warnings
from typing import Any

import typer

from engine.commands import completions, ingest, plugins, replay, report, run, show, stream, tune
from engine.errors import (
    DroppedWarning,
    InputError,
    PluginWarning,
    ReplayWarning,
    RunError,
    StabilityWarning,
)

app = typer.Typer(
    help="Stream key-value pairs through test-time regression solvers and record every state.",
    no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False,
    rich_markup_mode=None,  # else [names] in brackets are taken for markup and vanish
)  # fmt: skip
COMMANDS = (
    run.run,
    replay.replay,
    stream.stream,
    ingest.ingest,
    tune.tune,
    show.show,
    report.report,
    completions.completions,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(plugins.app, name="plugins")


# Typer's own errors: it has moved the library that they come from into itself.
_UsageError: Any = typer.BadParameter.__base__
_WORDS = {
    r"Input should be a valid integer.*": "must be a whole number",
    r"Input should be a valid number.*": "must be a number",
}


def _warn(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    place = (
        "" if issubclass(category, (DroppedWarning, PluginWarning)) else f" ({category.__name__})"
    )
    print(f"warning: {message}{place}", file=sys.stderr)


def _refuse(error: Any) -> int:
    """Say what is wrong with a command line; without arguments, print the help."""
    command = error.ctx.command_path if error.ctx else "engine"
    text = str(error.format_message()).replace("Value error, ", "").rstrip(".")
    if error.ctx and text == error.ctx.get_help().rstrip("."):
        print(text)
        return 2
    for wrong, said in _WORDS.items():
        text = re.sub(wrong, said, text)
    print(f"error: {text}; see {command} --help", file=sys.stderr)
    return 2


def main() -> None:
    """Run the command line.

    Exit 0 done, 1 the run failed, 2 bad input, 130 interrupted, 143 terminated.
    """
    warnings.showwarning = _warn
    for file in (sys.stdout, sys.stderr):
        if isinstance(file, io.TextIOWrapper):  # a letter that it has no code for ends no run
            file.reconfigure(errors="backslashreplace")
    try:
        raise SystemExit(app(prog_name="engine", standalone_mode=False))
    except _UsageError as error:
        raise SystemExit(_refuse(error)) from None
    except (InputError, PluginWarning) as error:  # a warning, where the user makes them errors
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (RunError, OSError, DroppedWarning, ReplayWarning, StabilityWarning) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None

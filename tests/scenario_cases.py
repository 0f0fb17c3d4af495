"""A good scenario, changes of it, and how a bad one is refused."""

import sys
import warnings
from pathlib import Path

import pytest

from engine import cli

GOOD = """title = "good"
[stream]
generator = "random"
steps = 20
key = 4
value = 3
priority = 0.5
[solvers.delta]
beta = 0.5
"""
LABEL = "cannot be a label; use letters, digits, '_' and '-', a letter first"


def tree(folder):
    """Return every file below a folder with what is in it."""
    return {p: p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def refused(capsys, monkeypatch, *args):
    """Run the command line on bad input; return its one message."""
    before = tree(Path.cwd())
    monkeypatch.setattr(sys, "argv", ["engine", *args])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert "Traceback" not in err and "pydantic" not in err and "Input should" not in err
    lines = [line for line in err.splitlines() if not line.startswith("warning: plugin ")]
    assert lines[0].startswith("error: ") and err.count("error:") == 1
    assert tree(Path.cwd()) == before, "something was written"
    return err


def stream(old, new):
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def top(line):
    return stream('title = "good"', line)


def beta(value):
    return stream("beta = 0.5", f"beta = {value}")


def more(text):
    return GOOD + text

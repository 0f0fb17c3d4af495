"""Run the benchmarks: `python -m tests.benchmarks [--quick] [--only NAME] [--out FILE]`."""

from __future__ import annotations

import argparse
import datetime
import importlib
import subprocess
import time
from pathlib import Path

from tests.benchmarks import timing

timing.pin()

GROUPS = (
    "linear",
    "filters",
    "recording",
    "keyframes",
    "capacity",
    "memory",
    "analysis",
    "scaling",
    "startup",
    "streaming",
)
RESULTS = Path(__file__).with_name("RESULTS.md")
INTRODUCTION = """\
Every ratio is of two medians measured inside one run, on the same two cores, one call of each side
in turn (A B A B ...) after a warm-up of both: how many times longer the other side takes. `make
bench` writes this file.
"""


def main() -> None:
    """Run the groups asked for and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and few: does it work?")
    only = f"one group, may be repeated: {', '.join(GROUPS)}"
    parser.add_argument("--only", action="append", choices=GROUPS, metavar="NAME", help=only)
    out = "where to write; default: RESULTS.md for a full run, else nowhere"
    parser.add_argument("--out", type=Path, help=out)
    given = parser.parse_args()
    names, facts = given.only or GROUPS, timing.machine()
    rows: list[timing.Row] = []
    details: list[str] = []
    print(timing.HEAD, flush=True)
    for name in names:
        began = time.perf_counter()
        more, lines = importlib.import_module(f"tests.benchmarks.{name}").run(given.quick)
        rows, details = rows + more, details + lines
        print(*more, sep="\n", flush=True)
        print(f"({name}: {time.perf_counter() - began:.0f} s)", flush=True)
    out = given.out or (None if given.quick or given.only else RESULTS)
    if out:
        out.write_text(document(rows, details, facts, given.quick))
    missed = [row.what for row in rows if row.met is False]
    print(
        f"{len(missed)} of {sum(row.met is not None for row in rows)} goals missed",
        *missed,
        sep="\n  ",
    )


def document(rows: list[timing.Row], details: list[str], facts: list[str], quick: bool) -> str:
    """Return the results as Markdown."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    noisy = ["A quick run: its numbers mean little.", ""] if quick else []
    return "\n".join([
        "# Benchmarks", "", INTRODUCTION, *noisy, f"- Date: {date}, commit {commit()}", *facts, "",
        timing.HEAD, *map(str, rows), "", *details,
    ]).rstrip() + "\n"  # fmt: skip


def commit() -> str:
    """Return the short commit, marked if the tree has changes."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()

"""How long it takes to start, and what is loaded by then."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.timing import Row, interleaved, seconds

HEAVY = (
    "xarray", "zarr", "scipy", "pandas", "numba", "matplotlib", "dask", "distributed", "cupy",
    "jax", "torch",
)  # fmt: skip
IMPORT = "import engine"
HELP = "import sys; sys.argv = ['engine', '--help']; from engine.cli import main"
LOADED = f"""
import contextlib, io, sys
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    {{body}}
print(*[name for name in {HEAVY!r} if name in sys.modules])
"""


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows; times are of whole processes, the interpreter's own start included."""
    command = Path(sys.executable).with_name("engine")
    calls = {
        "python -c 'import engine'": [sys.executable, "-c", IMPORT],
        "engine --help": [str(command), "--help"],
        "python -c pass": [sys.executable, "-c", "pass"],
    }

    def call(arguments: list[str]) -> None:
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)

    timed = {name: (lambda arguments=x: call(arguments)) for name, x in calls.items()}
    took = interleaved(timed, 3 if quick else 10)
    bare, goals = took.pop("python -c pass"), (0.5, 0.7)
    rows = [
        Row(
            name, "a bare interpreter", f"{x / bare:.1f}", seconds(x), seconds(bare),
            f"under {goal} s", x < goal,
        )
        for (name, x), goal in zip(took.items(), goals, strict=True)
    ]  # fmt: skip
    for name, body in (("import engine", IMPORT), ("engine --help", f"{HELP}; main()")):
        heavy = loaded(body)
        rows.append(Row(
            f"heavy libraries loaded by {name}", ", ".join(HEAVY), str(len(heavy)),
            " ".join(heavy) or "none", "", "none", not heavy,
        ))  # fmt: skip
    return rows, []


def loaded(body: str) -> list[str]:
    """Return the heavy libraries that a fresh interpreter holds after running `body`."""
    script = LOADED.replace("{body}", body)
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    time.sleep(0.005)
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    return done.stdout.split()

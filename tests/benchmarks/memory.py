"""Peak memory and time per step of long runs: neither may grow with the stream.

A run writes faster than a disk. Once the system's page cache has as many unwritten pages as it
takes, every writer waits for the disk, and a virtual machine pays its host for every page that it
takes anew: time in the system grows, whoever writes. So there are rows of processor time, whose
user part is the engine's own, and of bare writes of as many bytes.

Run as a script with a number of steps, it makes one run and prints what it took; with "bare", the
writes alone.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.benchmarks.timing import CORES, Row, seconds

D = 32
KINDS = ("clock", "user", "processor")
STEP = 8 * (D * D + 4 * D)  # bytes of a state, key, value, prediction and output
FILE, PIECE = 64 * 2**20, 4 * 2**20
Mark = tuple[int, float, float, float]  # steps done; seconds by the clock, of user, of both


def peak() -> float:
    """Return this process's peak resident memory in MB.

    Linux hands `ru_maxrss` of a large parent on to its children; VmHWM starts anew.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def record(steps: int) -> dict[str, float]:
    """Record every state of a delta rule and return peak memory and times per step."""
    from engine.experiment import execute, prepare, store_sink

    table = {
        "trials": 1, "record": "every", "dtype": "float64",
        "stream": {"generator": "random", "steps": steps, "key": D, "value": D},
        "solvers": {"delta": {"beta": 0.5}},
    }  # fmt: skip
    marks: list[Mark] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        plan = prepare(table, {})
        sink = store_sink(plan, Path(folder) / "run")
        execute(plan, sink, lambda frame: marks.append(mark(frame.stop)))
    return {"peak": peak(), **rates(marks)}


def write(steps: int) -> dict[str, float]:
    """Write as many bytes as `record` does, nothing else, and return times per step."""
    piece = np.random.default_rng(0).bytes(PIECE)
    marks = [mark(0)]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for start in range(0, steps * STEP, FILE):
            with open(Path(folder) / str(start), "wb", buffering=0) as file:
                for at in range(start, min(start + FILE, steps * STEP), PIECE):
                    file.write(piece)
                    marks.append(mark((at + PIECE) // STEP))
    return rates(marks)


def mark(steps: int) -> Mark:
    """Return how far a run is now."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return steps, time.perf_counter(), spent.ru_utime, spent.ru_utime + spent.ru_stime


def rates(marks: list[Mark]) -> dict[str, float]:
    """Return times per step, and how much longer those of the last tenth are than the first's."""
    # The first frame loads and compiles; a step costs what the frames after it say.
    tenth = max(len(marks) // 10, 1)
    found = {}
    for name, part in (("first", marks[: tenth + 1]), ("last", marks[-tenth - 1 :])):
        steps, *took = (b - a for a, b in zip(part[0], part[-1], strict=True))
        found |= {f"{name} {kind}": x / steps for kind, x in zip(KINDS, took, strict=True)}
    return found


def measured(steps: int, *words: str) -> dict[str, float]:
    """Return what a fresh process prints about so many steps."""
    if hasattr(os, "sync"):
        os.sync()  # what the last one wrote is not to wait for
    here = [sys.executable, "-m", "tests.benchmarks.memory", str(steps), *words]
    done = subprocess.run(here, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows."""
    short, long = (5_000, 20_000) if quick else (50_000, 200_000)
    measured(short)  # compiles and fills caches
    tries = [(measured(short), measured(long), measured(long, "bare")) for _ in range(3)]

    def median(side: int, name: str) -> float:
        return statistics.median(found[side][name] for found in tries)

    what = f"{long:,} steps, dk = dv = {D}, float64, all states to zarr, {CORES} cores"
    a, b = median(0, "peak"), median(1, "peak")
    rows = [
        Row(
            f"peak memory: {what}", f"{short:,} steps", f"{b / a:.3f}", f"{b:.0f} MB",
            f"{a:.0f} MB", "under 300 MB and 1.05", b < 300 and b / a <= 1.05,
        ),
    ]  # fmt: skip
    kinds = (
        ("time per step", 1, "clock", 1.2),
        ("processor time per step, user", 1, "user", 1.2),
        ("processor time per step, user and system", 1, "processor", None),
        ("control, bare writes of as many bytes: time per step", 2, "clock", None),
        ("control, bare writes: processor time per step", 2, "processor", None),
    )
    for text, side, kind, most in kinds:
        first, last = median(side, f"first {kind}"), median(side, f"last {kind}")
        ratio = statistics.median(x[side][f"last {kind}"] / x[side][f"first {kind}"] for x in tries)
        rows.append(Row(
            f"{text} of the last tenth: {what}", "the first tenth", f"{ratio:.2f}", seconds(last),
            seconds(first), f"at most {most}" if most else "", ratio <= most if most else None,
        ))  # fmt: skip
    return rows, []


if __name__ == "__main__":
    print(json.dumps((write if "bare" in sys.argv else record)(int(sys.argv[1]))))

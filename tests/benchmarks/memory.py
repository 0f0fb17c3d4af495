"""Peak memory and time per step of long runs: neither may grow with the stream.

Run as a script with a number of steps, it makes one run and prints what it took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.timing import CORES, Row, seconds

D = 32


def peak() -> float:
    """Return this process's peak resident memory in MB.

    Linux hands `ru_maxrss` of a large parent on to its children; VmHWM starts anew.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    import resource

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
    marks: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        plan = prepare(table, {})
        sink = store_sink(plan, Path(folder) / "run")
        began = time.perf_counter()
        execute(plan, sink, lambda frame: marks.append((frame.stop, time.perf_counter())))
        total = time.perf_counter() - began

    # The first frame loads and compiles; a step costs what the frames after it say.
    tenth = max(len(marks) // 10, 1)

    def rate(part: list[tuple[int, float]]) -> float:
        """Return the seconds per step from the first of these frames to the last."""
        return (part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0])

    first, last = rate(marks[: tenth + 1]), rate(marks[-tenth - 1 :])
    return {"peak": peak(), "first": first, "last": last, "total": total}


def measured(steps: int) -> dict[str, float]:
    """Return `record(steps)` of a fresh process."""
    here = [sys.executable, "-m", "tests.benchmarks.memory", str(steps)]
    done = subprocess.run(here, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows."""
    short, long = (5_000, 20_000) if quick else (50_000, 200_000)
    measured(short)  # compiles and fills caches
    a, b = measured(short), measured(long)
    growth, slower = b["peak"] / a["peak"], b["last"] / b["first"]
    what = f"{long:,} steps, dk = dv = {D}, float64, all states to zarr, {CORES} cores"
    return [
        Row(
            f"peak memory: {what}", f"{short:,} steps", f"{growth:.3f}", f"{b['peak']:.0f} MB",
            f"{a['peak']:.0f} MB", "under 300 MB and 1.05", b["peak"] < 300 and growth <= 1.05,
        ),
        Row(
            f"time per step of the last tenth: {what}", "the first tenth", f"{slower:.2f}",
            seconds(b["last"]), seconds(b["first"]), "at most 1.2", slower <= 1.2,
        ),
    ], []  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(record(int(sys.argv[1]))))

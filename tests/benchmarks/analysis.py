"""Peak memory of measuring a run of 5 GB, in a process of its own.

Run as a script with the path of a store, it measures it and prints what that took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.memory import peak
from tests.benchmarks.timing import CORES, Row, seconds

D, TRIALS, BYTES_PER_STEP = 32, 8, 3 * 8 * 32 * 32 * 8  # S, P and the target map


def measure(path: str) -> dict[str, float]:
    """Measure every state of a run in blocks of steps; return the peak memory and the time."""
    import engine
    from engine.measure import divergence, optimum, state, tracking

    began = time.perf_counter()
    run = engine.open(path)
    S, P, target = run["solvers/rls/S"], run["solvers/rls/P"], run["stream/target_map"]
    cov = ("key", "key_2")
    curves = [
        tracking.tracking_error(S, target), tracking.error_curve(run, "rls"), state.norm(S),
        state.effective_rank(S), state.condition(P, dims=cov), state.smallest_eigenvalue(P),
        optimum.against_optimum(run, "rls", decaying=True)["gap"],
    ]  # fmt: skip
    assert all(c.sizes == {"step": S.sizes["step"], "trial": TRIALS} for c in curves)
    lag = tracking.lag(S, target, longest=40)  # the median age of its weights, 22, up to noise
    assert ((lag > 10) & (lag < 40)).all(), lag
    assert divergence.explain(run, "rls") == []
    nbytes = sum(x.nbytes for x in (S, P, target))
    return {"peak": peak(), "seconds": time.perf_counter() - began, "bytes": nbytes}


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows."""
    import engine

    steps = (1 if quick else 5) * 10**9 // BYTES_PER_STEP
    table = {
        "trials": TRIALS,
        "stream": {"generator": "drifting", "steps": steps, "key": D, "value": D},
        "solvers": {"rls": {"gamma": 0.97}},
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "run.zarr"
        engine.run(table, path)
        here = [sys.executable, "-m", "tests.benchmarks.analysis", str(path)]
        done = subprocess.run(here, check=True, stdout=subprocess.PIPE, text=True)
    took = json.loads(done.stdout.splitlines()[-1])
    what = f"nine measures of {took['bytes'] / 1e9:.1f} GB of states, {CORES} cores"
    return [
        Row(
            f"peak memory: {what}", "the run itself", f"{took['peak'] * 1e6 / took['bytes']:.3f}",
            f"{took['peak']:.0f} MB, {seconds(took['seconds'])}", f"{took['bytes'] / 1e6:.0f} MB",
            "under 500 MB", took["peak"] < 500,
        ),
    ], []  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))

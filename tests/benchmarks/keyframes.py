"""Keyframes against every-step recording: bytes, time, and what reading a state then takes.

All runs are of full length, once each, where the disk has room for every step of them (28 GB).
Elsewhere a shorter run with every step is stored, its bytes are counted per step, and both are
timed at that length.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import engine
from engine import trajectory
from tests.benchmarks.timing import Row, interleaved, row, seconds

EVERY, TRIALS, D = 64, 8, 64
READS, LIMIT, ROOM = 200, 0.02, 36e9


def scenario(steps: int) -> dict[str, Any]:
    """Return one delta rule in float64."""
    return {
        "trials": TRIALS,
        "stream": {"generator": "random", "steps": steps, "key": D, "value": D},
        "solvers": {"delta": {"beta": 0.5}},
    }


def sizes(path: Path) -> tuple[int, int]:
    """Return the bytes of a store, and those of its stream."""
    files = [p for p in path.rglob("*") if p.is_file()]
    stream = sum(p.stat().st_size for p in files if p.is_relative_to(path / "stream"))
    return sum(p.stat().st_size for p in files), stream


def random_reads(path: Path, steps: int, reads: int) -> float:
    """Return the median seconds that one state of one trial takes, nothing of it being cached."""
    state = engine.open(path)["solvers/delta/S"].variable
    rng, taken = np.random.default_rng(0), []
    for _ in range(reads):
        trajectory.CACHE.__init__(trajectory.CACHE_BYTES)  # type: ignore[misc]
        at = {"step": int(rng.integers(steps)), "trial": int(rng.integers(TRIALS))}
        began = time.perf_counter()
        state.isel(at).to_numpy()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows."""
    steps, few = (4096, 512) if quick else (100_000, 8192)
    if not quick and shutil.disk_usage(tempfile.gettempdir()).free > ROOM:
        few = steps  # every step of them too: 28 GB, once
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "run"

        def clear() -> None:
            shutil.rmtree(path, ignore_errors=True)
            if hasattr(os, "sync"):
                os.sync()

        calls: dict[str, Callable[[], object]] = {
            "keyframes": lambda: engine.run(scenario(few), path, record={"keyframes": EVERY}),
            "redrawn": lambda: engine.run(
                scenario(few), path, record={"keyframes": EVERY, "stream": False}
            ),
            "every": lambda: engine.run(scenario(few), path),
        }
        warm = few < steps
        if not warm:
            engine.run(scenario(512))
        took = interleaved(calls, 2 if quick else 5 if warm else 1, before=clear, warm=warm)
        whole, stream = (n / few for n in sizes(path))  # what was stored last is every step
        clear()
        engine.run(scenario(steps), path, record={"keyframes": EVERY})
        kept, kept_stream = (n / steps for n in sizes(path))
        read = random_reads(path, steps, 20 if quick else READS)
        clear()
        engine.run(scenario(steps), path, record={"keyframes": EVERY, "stream": False})
        bare = sizes(path)[0] / steps
        redrawn = random_reads(path, steps, 20 if quick else READS)
    what = f"delta ({TRIALS}, {steps}, {D}), float64, keyframes every {EVERY}"
    own = (whole - stream) / (kept - kept_stream)
    bytes_ = [
        Row(
            f"bytes: {what}, {part}", f"every step ({few} steps stored, per step)",
            f"{ratio:.1f}", f"{ours:.0f} B a step", f"{theirs:.0f} B a step",
            "at least 30" if goal else "", ratio >= 30 if goal else None,
        )
        for part, ratio, ours, theirs, goal in (
            ("without the stream", own, kept - kept_stream, whole - stream, True),
            ("with it", whole / kept, kept, whole, False),
            ("the stream drawn again (stream = false)", whole / bare, bare, whole, True),
        )
    ]  # fmt: skip
    timed = [
        row(
            f"time: keyframes every {EVERY}{more}, delta ({TRIALS}, {few}, {D})", "every step",
            took[side], took["every"], 5,
        )
        for side, more in (("keyframes", ""), ("redrawn", ", stream = false"))
    ]  # fmt: skip
    one = [
        Row(
            f"one random state: {what}{more}, median of {20 if quick else READS}", "20 ms",
            f"{LIMIT / median:.2f}", seconds(median), "20 ms", "at least 1", median <= LIMIT,
        )
        for more, median in (("", read), (", stream = false", redrawn))
    ]  # fmt: skip
    return [*bytes_, *timed, *one], [
        "Where a stream is not stored, the first read of a process draws all that comes before it, "
        "and keeps the generator's state at 512 places: later reads start at the nearest."
    ]

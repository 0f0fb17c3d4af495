"""What a caller's own loop, a pipe and a live stream pay per step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

import engine
from tests.benchmarks.timing import Row, absent, installed, interleaved, row, seconds

CALLS = 256
PRODUCER = """
import math, sys
def pair(t):
    key = ", ".join(f"{math.cos(t * (i + 1)) / 4:.6f}" for i in range(16))
    value = ", ".join(f"{math.sin(t * (i + 2)):.6f}" for i in range(16))
    return '{"key": [' + key + '], "value": [' + value + ']}\\n'
pairs = [pair(t) for t in range(1000)]
for t in range(int(sys.argv[1])):
    sys.stdout.write(pairs[t % 1000])
"""
CONSUMER = """
import json, sys
count = 0
for line in sys.stdin:
    count, last = count + 1, line
print(count, json.loads(last)["stop"])
"""
ENGINE = """
import json, sys, time
from engine.cli import main
from tests.benchmarks.memory import peak
sys.argv = ["engine", "stream", "-", "--solver", "delta"]
try:
    main()
except SystemExit as stop:
    print(json.dumps([stop.code or 0, peak(), time.process_time()]), file=sys.stderr)
"""


def piped(pairs: int) -> tuple[float, float, float]:
    """Return seconds of producer | engine stream - | consumer, the engine's peak MB and CPU."""
    out = {"stdout": subprocess.PIPE, "text": True}
    began = time.perf_counter()
    producer = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, str(pairs)], stdout=subprocess.PIPE
    )
    ours = subprocess.Popen(
        [sys.executable, "-c", ENGINE], stdin=producer.stdout, stderr=subprocess.PIPE, **out
    )  # type: ignore[call-overload]
    consumer = subprocess.Popen([sys.executable, "-c", CONSUMER], stdin=ours.stdout, **out)
    assert producer.stdout and ours.stdout
    producer.stdout.close()
    ours.stdout.close()
    said, told = consumer.communicate()[0], ours.communicate()[1]
    took = time.perf_counter() - began
    code, peak, busy = json.loads(told.splitlines()[-1])
    assert (producer.wait(), code, said.split()) == (0, 0, [str(pairs), str(pairs)])
    return took, float(peak), float(busy)


def pipe(quick: bool) -> list[Row]:
    """Return the rows of the pipe, the interpreters' own start included."""
    pairs = 20_000 if quick else 100_000
    piped(1_000)  # compiles and fills caches
    small, large = piped(pairs // 10), piped(pairs)
    rate, growth = pairs / large[0], large[1] / small[1]
    what = f"a producer into engine stream - into a consumer, {pairs:,} pairs, delta, d = 16"
    return [
        Row(what, "", f"{rate:,.0f} pairs/s", f"{seconds(large[0])}, CPU {seconds(large[2])}", "",
            "at least 20,000 pairs/s", rate >= 20_000),
        Row(f"peak memory: {what}", f"{pairs // 10:,} pairs", f"{growth:.3f}",
            f"{large[1]:.0f} MB", f"{small[1]:.0f} MB", "at most 1.05", growth <= 1.05),
    ]  # fmt: skip


def calls(quick: bool) -> list[Row]:
    """Return the rows of `engine.memory`: seconds of one call."""
    rng, d, repetitions = np.random.default_rng(0), 64, 5 if quick else 20
    keys = rng.standard_normal((CALLS, d))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    values = rng.standard_normal((CALLS, d))

    def writes(name: str, value: int) -> Callable[[], None]:
        memory, given = engine.memory(name, key=d, value=value), values[:, :value].copy()

        def run() -> None:
            for k, v in zip(keys, given, strict=True):
                memory.write(k, v)

        return run

    def bare() -> None:
        S = np.zeros((d, d))
        for k, v in zip(keys, values, strict=True):
            S = S + np.outer(k, v - k @ S)

    sides: dict[str, Callable[[], object]] = {
        "delta": writes("delta", d), "bare": bare, "nlms": writes("nlms", 1),
    }  # fmt: skip
    if installed("padasip"):
        import padasip

        filtered = padasip.filters.FilterNLMS(n=d, mu=0.5, w="zeros")

        def adapt() -> None:
            for k, v in zip(keys, values[:, 0], strict=True):
                filtered.adapt(v, k)

        sides["padasip"] = adapt
    took = {name: x / CALLS for name, x in interleaved(sides, repetitions).items()}
    what = f"engine.memory('delta').write, dk = dv = {d}, float64"
    cost, other = took["delta"], took["bare"]
    rows = [
        Row(what, "S + outer(k, v - k @ S) in NumPy", f"{other / cost:.2f}", f"{cost * 1e6:.1f} us",
            f"{other * 1e6:.1f} us", "under 15 us", cost < 15e-6),
    ]  # fmt: skip
    against = "padasip FilterNLMS.adapt"
    if "padasip" in took:
        one = f"engine.memory('nlms').write, dk = {d}, dv = 1"
        rows.append(row(one, against, took["nlms"], took["padasip"]))
        rows.append(row(f"{what}: {d} outputs", f"{against}, 1 output", cost, took["padasip"]))
    else:
        rows.append(absent("engine.memory('nlms').write", against))
    return rows


def frames(quick: bool) -> list[Row]:
    """Return the rows of `engine.stream`: frames per second, states and all."""
    count, repetitions, rows = 50 if quick else 200, 2 if quick else 5, []
    for every in (1, 50):
        table = {
            "stream": {"generator": "random", "key": 16, "value": 16},
            "solvers": {"delta": {"beta": 0.5}},
        }  # fmt: skip

        def live(every: int = every, table: dict[str, object] = table) -> None:
            with engine.stream(table, every=every) as stream:
                for frame in islice(stream, count):
                    frame["delta"]

        def whole(every: int = every, table: dict[str, object] = table) -> None:
            engine.run(table, **{"stream.steps": every * count})

        took = interleaved({"live": live, "whole": whole}, repetitions)
        rows.append(
            Row(
                f"engine.stream, {every} steps a frame, delta, d = 16, with states",
                "engine.run into memory, as many steps",
                f"{count / took['live']:,.0f} frames/s",
                f"{seconds(took['live'] / count)} a frame",
                f"{seconds(took['whole'] / count)} for as many steps",
            )
        )
    return rows


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows."""
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
    return calls(quick) + pipe(quick) + frames(quick), []

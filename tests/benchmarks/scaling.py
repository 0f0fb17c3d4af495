"""How cost grows with steps, trials and d: slopes of a log-log fit. Tiles against steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import engine
from tests.benchmarks import rules, sides
from tests.benchmarks.timing import Row, interleaved, row, seconds


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the exponent p of time ~ size^p."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows."""
    linear, softmax = "gated_delta", "softmax_attention"
    # Rule, what grows, its sizes, (trials, steps, d) for each, and the exponent of theory.
    grows = [
        (linear, "steps", (4096, 8192, 16384, 32768), lambda n: (8, n, 64), 1),
        (linear, "trials", (16, 32, 64, 128), lambda n: (n, 1024, 64), 1),
        # Below 128 the reading of a token, linear in d, still shows beside its d^2.
        (linear, "d", (128, 256, 512, 1024), lambda n: (8, 512, n), 2),
        # Below, what a step costs besides its reads of the cache still shows.
        (softmax, "steps", (8192, 16384, 32768), lambda n: (1, n, 64), 2),
    ]
    rows = []
    for rule, what, sizes, shape, theory in grows:
        calls = {}
        if quick:
            sizes = [n // 4 for n in sizes[:3]]
        for n in sizes:
            stream = rules.draw(rule, *shape(n), "float32")
            calls[n] = sides.engine_loop(stream, engine.solver(rule))
        took = interleaved(calls, 2 if quick else 3 if rule == softmax else 5)
        p = slope(list(took), list(took.values()))
        last = list(took)[-1]
        rows.append(Row(
            f"{rule}: exponent of time in {what}, {sizes[0]} to {last}", "theory", f"{p:.2f}",
            f"{seconds(took[last])} at {last}", f"{theory}", f"{theory} within .25",
            abs(p - theory) <= 0.25,
        ))  # fmt: skip
    shape = (8, 256 if quick else 2048, 64)
    for dtype in ("float32", "float64"):
        stream = rules.draw(softmax, *shape, dtype)
        took = interleaved(
            {n: sides.engine_loop(stream, engine.solver(softmax), n) for n in ("auto", "loop")}, 3
        )
        rows.append(row(
            f"{softmax} {shape} {dtype}, by tiles", "the engine's step loop (kernel = loop)",
            took["auto"], took["loop"], 1.0,
        ))  # fmt: skip
    return rows, []

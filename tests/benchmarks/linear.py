"""The linear family without recording: predictions and outputs of a whole stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import engine
from tests.benchmarks import rules, sides, timing
from tests.benchmarks.timing import Row, absent, installed, interleaved, row, seconds

RULES = ("linear_attention", "gated_delta", "kda", "longhorn", "titans")
SIZES = (
    (1, 8192, 64), (30, 1024, 16), (150, 1024, 16), (30, 1024, 32), (30, 1024, 64), (8, 2048, 128),
)  # fmt: skip
SHORT = 64  # steps of the sides that take too long; their times are scaled up
# Side, its title, and what the geometric mean and the lowest cell must reach.
GOALS: dict[str, tuple[str, float | None, float | None]] = {
    "jax": ("JAX lax.scan, jit, vmap over trials", 2.5, 1.2),
    "batched": ("NumPy loop batched over trials", 5.0, None),
    "stepped": ("the engine's step loop (kernel = loop)", None, None),
    "per trial": ("NumPy loop per trial, 30 trials", 30.0, None),
    "torch": ("torch loop per token, batched", None, None),
}


@dataclass
class Cell:
    """One rule at one size and precision: seconds per whole stream of every side."""

    rule: str
    size: tuple[int, int, int]
    dtype: str
    took: dict[str, float] = field(default_factory=dict)

    def ratio(self, side: str) -> float:
        return self.took[side] / self.took["engine"]

    @property
    def flops(self) -> float:
        """Flops of the engine per second, two reads and a rank-one update: 6 d^2 per token."""
        trials, steps, d = self.size
        return 6.0 * d**2 * steps * trials / self.took["engine"]

    def line(self, gemm: float) -> str:
        """Return the cell as a line of the second table."""
        ratios = [f"{self.ratio(s):.2f}" if s in self.took else "" for s in (*GOALS, "simulate")]
        share = f"{self.flops / 1e9:.1f} ({self.flops / gemm:.0%})"
        cells = [self.rule, str(self.size), self.dtype, seconds(self.took["engine"])]
        return "| " + " | ".join([*cells, *ratios, share]) + " |"


def chosen(rule: str) -> str:
    """Return the rule to run: linear attention as RetNet without decay until it has a fast form."""
    if rule != "linear_attention":
        return rule
    probe = engine.simulate(rule, np.zeros((1, 1)), np.zeros((1, 1)))
    return rule if probe.attrs["kernel"] != "loop" else "retnet"


def cell(rule: str, size: tuple[int, int, int], dtype: str, quick: bool) -> Cell:
    """Measure one cell; every side must give the same outputs."""
    trials, steps, d = size
    solver, stream = engine.solver(rule), rules.draw(rule, *size, dtype)
    repetitions = 2 if quick else 5
    fast: dict[str, Callable[[], Any]] = {
        "engine": sides.engine_loop(stream, solver),
        "simulate": sides.engine_simulate(stream, solver),
    }
    if installed("jax"):
        fast["jax"] = rules.jax_scan(stream)
    wanted = np.concatenate([output for _, output in fast["engine"]()])
    if "jax" in fast:
        agree(rule, wanted, np.asarray(fast["jax"]()[0][1]))
    agree(rule, wanted, fast["simulate"]().output.values)
    found = Cell(rule, size, dtype, interleaved(fast, 2 if quick else 7))
    short = stream.first(min(steps, SHORT if trials > 1 else 8 * SHORT))
    slow: dict[str, Callable[[], Any]] = {
        "again": fast["engine"],
        "batched": lambda: rules.numpy_batched(short),
        "stepped": sides.engine_loop(short, solver, "loop"),
    }
    if installed("torch"):
        slow["torch"] = rules.torch_loop(short)
    if trials == 30:
        slow["per trial"] = lambda: rules.numpy_per_trial(short)
    agree(rule, wanted[: len(short.keys)], slow["batched"]()[1])
    took = interleaved(slow, repetitions)
    # These ratios are of the engine's time in their own rounds; shown times are of the first ones.
    scale = steps / len(short.keys) * found.took["engine"] / took.pop("again")
    found.took |= {side: x * scale for side, x in took.items()}
    return found


def agree(rule: str, a: np.ndarray, b: np.ndarray) -> None:
    """Raise if two sides do not compute the same thing."""
    tolerance = 1e-2 if a.dtype == np.float32 else 1e-8
    if not np.allclose(a, b, rtol=tolerance, atol=tolerance * float(np.abs(a).max())):
        raise AssertionError(f"{rule}: the sides differ by {np.abs(a - b).max()}")


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows of the linear family, and its cells."""
    cells, gemm = [], {dtype: timing.matmul_rate(dtype) for dtype in ("float32", "float64")}
    sizes = ((1, 512, 64), (30, 128, 16)) if quick else SIZES
    for rule in map(chosen, RULES):
        for size in sizes:
            for dtype in ("float32",) if quick else gemm:
                cells.append(cell(rule, size, dtype, quick))
                print(cells[-1].line(gemm[dtype]), flush=True)
    rows = []
    for side, (title, mean, low) in GOALS.items():
        rows += summary(cells, side, title, mean, low)
    rows += summary(
        cells, "simulate", "engine.simulate, record = final, against the loop", None, None
    )
    best = {c.dtype: c for c in sorted(cells, key=lambda c: c.flops)}
    for dtype, top in best.items():
        name = "sgemm" if dtype == "float32" else "dgemm"
        rows.append(Row(
            f"linear family, {dtype}: best cell, {top.rule} {top.size}", f"{name}, n = 1024",
            f"{top.flops / gemm[dtype]:.0%}", f"{top.flops / 1e9:.0f} Gflop/s",
            f"{gemm[dtype] / 1e9:.0f} Gflop/s",
        ))  # fmt: skip
    return rows, table(cells, gemm)


def summary(
    cells: list[Cell], side: str, title: str, mean: float | None, low: float | None
) -> list[Row]:
    """Return the geometric mean and the lowest cell against one side."""
    cells = [c for c in cells if side in c.took]
    if not cells:
        library = side if side in ("jax", "torch") else title
        return [absent(f"linear family against {title}", library)]
    average = timing.geometric([c.ratio(side) for c in cells])
    lowest = min(cells, key=lambda c: c.ratio(side))
    n = len(cells)
    return [
        Row(
            f"linear family: geometric mean of {n} cells", title, f"{average:.2f}",
            seconds(timing.geometric([c.took["engine"] for c in cells])),
            seconds(timing.geometric([c.took[side] for c in cells])),
            f"at least {mean:g}" if mean else "", average >= mean if mean else None,
        ),
        row(
            f"linear family: lowest cell, {lowest.rule} {lowest.size} {lowest.dtype}", title,
            lowest.took["engine"], lowest.took[side], low,
        ),
    ]  # fmt: skip


def table(cells: list[Cell], gemm: dict[str, float]) -> list[str]:
    """Return the table of cells."""
    titles = ("JAX", "NumPy batched", "step loop", "NumPy per trial", "torch", "simulate")
    return [
        "## The linear family, cell by cell", "",
        "Size is (trials, steps, d), dk = dv = d. Columns behind the engine's time are ratios: how "
        "many times longer that side takes. Every coefficient is drawn per token. The engine runs "
        "`Track` and `loop` without recording, `simulate` is `engine.simulate`, final state. "
        f"NumPy, step loop and torch run {SHORT} steps ({8 * SHORT} at one trial), scaled to all. "
        "Flops count two reads and one rank-one update, 2 d^2 each, so 6 d^2 per step and trial, "
        "whatever a rule does beyond that; the share is of NumPy's matrix product, n = 1024: "
        + ", ".join(f"{x / 1e9:.0f} Gflop/s in {dtype}" for dtype, x in gemm.items()) + ".", "",
        f"| rule | size | dtype | engine | {' | '.join(titles)} | Gflop/s (share of gemm) |",
        "|---|---|---|---:|" + "---:|" * (len(titles) + 1),
        *(c.line(gemm[c.dtype]) for c in cells), "",
    ]  # fmt: skip

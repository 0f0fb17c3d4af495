"""Measuring: interleaved medians, rows of the table, facts about the machine."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

CORES = 2
LIBRARIES = (
    "ttr-engine", "numpy", "numba", "scipy", "xarray", "zarr", "jax", "jaxlib", "torch", "padasip",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table; `met` says whether the goal is reached, None if there is none."""

    what: str
    against: str
    ratio: str
    engine: str = ""
    other: str = ""
    goal: str = ""
    met: bool | None = None

    def __str__(self) -> str:
        met = {None: "", True: "yes", False: "NO"}[self.met]
        cells = (self.what, self.against, self.ratio, self.goal, met, self.engine, self.other)
        return "| " + " | ".join(cells) + " |"


HEAD = (
    "| what | against | ratio | goal | met | engine | other |\n"
    "|---|---|---:|---|---|---:|---:|"
)  # fmt: skip


def row(what: str, against: str, engine: float, other: float, at_least: float | None = None) -> Row:
    """Return the row of two times: how many times faster the engine is."""
    ratio = other / engine
    return Row(
        what, against, f"{ratio:.2f}", seconds(engine), seconds(other),
        f"at least {at_least:g}" if at_least else "", ratio >= at_least if at_least else None,
    )  # fmt: skip


def absent(what: str, library: str) -> Row:
    """Return the row of a comparison whose library is missing."""
    return Row(what, library, "not installed")


def installed(library: str) -> bool:
    """Return whether a library can be imported."""
    return find_spec(library) is not None


def seconds(x: float) -> str:
    """Return a time in a unit that suits it."""
    return f"{x * 1e6:.0f} us" if x < 1e-3 else f"{x * 1e3:.3g} ms" if x < 1 else f"{x:.3g} s"


def interleaved(
    sides: Mapping[str, Callable[[], object]],
    repetitions: int,
    *,
    before: Callable[[], object] | None = None,
    warm: bool = True,
) -> dict[str, float]:
    """Return the median seconds of every side, run in turn (A B A B ...) after one warm-up each.

    `before` is called, untimed, ahead of each. A short pause keeps the threads that one side's
    library leaves spinning from slowing the next.
    """
    if warm:
        for call in sides.values():
            if before:
                before()
            call()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, call in sides.items():
            if before:
                before()
            time.sleep(0.005)
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in taken.items()}


def matmul_rate(dtype: str, repetitions: int = 5) -> float:
    """Return the flops per second of NumPy's matrix product (sgemm or dgemm), n = 1024."""
    n = 1024
    a, b = (np.random.default_rng(i).standard_normal((n, n)).astype(dtype) for i in range(2))
    out = np.empty_like(a)
    took = interleaved({"gemm": lambda: np.matmul(a, b, out=out)}, repetitions)
    return 2.0 * n**3 / took["gemm"]


def geometric(values: list[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def pin() -> None:
    """Keep this process, and so every library's threads, on two cores. Call before NumPy loads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def machine() -> list[str]:
    """Return lines that say what this was measured on."""
    model, memory = platform.processor() or platform.machine(), 0.0
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), model)
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    used = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f", load {os.getloadavg()[0]:.2f} at the start" if hasattr(os, "getloadavg") else ""
    versions = [f"python {platform.python_version()}"]
    for library in LIBRARIES:
        try:
            versions.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            versions.append(f"{library} not installed")
    return [
        f"- Machine: {model}, {used} of {os.cpu_count()} cores used, {memory:.0f} GiB of memory"
        f"{load}; {platform.platform()}",
        f"- Versions: {', '.join(versions)}",
    ]

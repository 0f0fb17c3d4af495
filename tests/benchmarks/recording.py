"""Every-step recording to zarr, against zarr itself, `numpy.memmap` and bare writes.

No side flushes: what all of them wrote is in the page cache when the clock stops, and goes to the
disk between them, untimed. The script checks nothing; the engine's chunks have checksums, and its
stream a SHA-256. The bare writes say what the machine lets through: no side can be faster that
hands its bytes to `write`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import engine
from tests.benchmarks.rules import batched, outer
from tests.benchmarks.timing import Row, interleaved, row

BETA = 0.5
FILE, PIECE = 64 * 2**20, 4 * 2**20


def scenario(steps: int, trials: int, d: int) -> dict[str, Any]:
    """Return a scenario that records the whole trajectory of one delta rule."""
    return {
        "trials": trials, "dtype": "float32", "record": "every",
        "stream": {"generator": "random", "steps": steps, "key": d, "value": d},
        "solvers": {"delta": {"beta": BETA}},
    }  # fmt: skip


class Copy:
    """A run's arrays held in memory, and how zarr keeps each of them."""

    def __init__(self, path: Path) -> None:
        group = zarr.open_group(str(path), mode="r")
        self.arrays = {name: x for name, x in group.members(max_depth=None) if hasattr(x, "shape")}
        self.bytes = {name: np.asarray(x[...]) for name, x in self.arrays.items()}

    @property
    def size(self) -> int:
        return sum(x.nbytes for x in self.bytes.values())

    def write(self, path: Path) -> None:
        """Write the same bytes into the same chunks and shards, whole shards at a time."""
        root = zarr.create_group(str(path), zarr_format=3)
        made = {
            name: root.create_array(
                name, shape=x.shape, dtype=x.dtype, chunks=x.chunks, shards=x.shards,
                compressors=x.compressors, fill_value=x.fill_value,
                dimension_names=x.metadata.dimension_names, config={"write_empty_chunks": True},
            )
            for name, x in self.arrays.items()
        }  # fmt: skip
        for name, to in made.items():
            if not to.shape:
                to[...] = self.bytes[name]
                continue
            rows = (to.shards or to.chunks or (1,))[0]
            for start in range(0, len(self.bytes[name]), rows):
                to[start : start + rows] = self.bytes[name][start : start + rows]

    def write_bare(self, path: Path) -> None:
        """Hand the same bytes to the system, 4 MiB at a time, into files of 64 MiB."""
        path.mkdir()
        for name, x in self.bytes.items():
            whole = memoryview(np.ascontiguousarray(x).reshape(-1).view(np.uint8))
            for i in range(0, len(whole), FILE):
                with open(path / f"{name.replace('/', '.')}.{i // FILE}", "wb", buffering=0) as f:
                    for j in range(i, min(i + FILE, len(whole)), PIECE):
                        f.write(whole[j : min(j + PIECE, i + FILE)])


def memmap_loop(path: Path, steps: int, trials: int, d: int) -> None:
    """Draw the stream, loop over steps and keep everything in files: what a script would do."""
    path.mkdir()
    rng = np.random.default_rng(0)
    keys, values = (rng.standard_normal((steps, trials, d)) for _ in range(2))
    for x in (keys, values):
        x /= np.linalg.norm(x, axis=-1, keepdims=True)

    def file(name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        return np.memmap(path / name, dtype, "w+", shape=shape)

    lead = (steps, trials, d)
    file("keys", lead, "float64")[:] = keys
    file("values", lead, "float64")[:] = values
    prediction, output, states = file("p", lead), file("o", lead), file("S", (*lead, d))
    keys, values = keys.astype(np.float32), values.astype(np.float32)
    S = np.zeros((trials, d, d), np.float32)
    for t in range(steps):
        k, v = keys[t], values[t]
        prediction[t] = batched(S, k)
        S = S + outer(np.float32(BETA) * k, v - prediction[t])
        output[t] = batched(S, k)
        states[t] = S


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows."""
    # In the large one a step is 128 KiB, and every side as fast as memory; in the small one 30 KiB.
    shapes = [(8, 512, 64), (30, 512, 16)] if quick else [(8, 8192, 64), (30, 8192, 16)]
    return [row for shape in shapes for row in rows(quick, *shape)], []


def rows(quick: bool, trials: int, steps: int, d: int) -> list[Row]:
    """Return the rows of one shape."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "run"
        table = scenario(steps, trials, d)
        engine.run(table, path)
        copy = Copy(path)

        def clear() -> None:
            """Leave neither files nor dirty pages of one side to the next, and memory at hand.

            A virtual machine gives free memory back to its host, and pays for each page when it
            wants it again: whoever writes first after a pause would pay for all.
            """
            shutil.rmtree(path, ignore_errors=True)
            if hasattr(os, "sync"):
                os.sync()
            np.ones(copy.size, np.uint8)

        calls: dict[str, Callable[[], object]] = {
            "engine": lambda: engine.run(table, path),
            "zarr": lambda: copy.write(path),
            "memmap": lambda: memmap_loop(path, steps, trials, d),
            "bare": lambda: copy.write_bare(path),
        }
        took = interleaved(calls, 2 if quick else 5, before=clear)
    what = f"every state to zarr, delta ({trials}, {steps}, {d}), {copy.size / 1e9:.2f} GB"

    def speed(side: str) -> str:
        return f"{copy.size / took[side] / 1e9:.2f} GB/s"

    return [
        row(
            what, f"zarr alone, the same bytes from memory ({speed('zarr')})",
            took["engine"], took["zarr"], 0.9,
        ),
        row(
            what, f"NumPy loop into numpy.memmap ({speed('memmap')})",
            took["engine"], took["memmap"], 1.5,
        ),
        row(
            what, f"control: write() of the same bytes from memory, nothing computed "
            f"({speed('bare')})",
            took["engine"], took["bare"],
        ),
    ]  # fmt: skip

"""The second reading: blocks, or whole sequences side by side, into a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.experiment import provenance
from engine.ingestion.readers import Columns
from engine.ingestion.roles import PAIRS, Roles, assemble, either, missing, sequence_ids, times
from engine.ingestion.scan import SCAN_ROWS, Scan
from engine.recorder import Variable, shard_steps
from engine.sources import STANDARD, Fingerprint, Tokens

BLOCK_BYTES = 8 * 2**20
TIME = {"units": "nanoseconds since 1970-01-01", "calendar": "proleptic_gregorian"}


def in_blocks(columns: Columns, roles: Roles, scan: Scan) -> Iterator[dict[str, np.ndarray]]:
    """Yield what is to be stored, (row, trial, ...)."""
    first = 0
    for block in columns.blocks(roles.names, _rows(scan)):
        made = _complete(block, roles, scan, first)
        first += len(next(iter(block.values())))
        wide = {n: len(s) == 2 for n, s in scan.shapes.items()}
        yield {
            n: x if wide.get(n) or _own_trial(n, x, scan) else np.repeat(x[:, None], scan.trials, 1)
            for n, x in made.items()
        }


def _own_trial(name: str, x: np.ndarray, scan: Scan) -> bool:
    return name not in PAIRS and x.shape[1:2] == (scan.trials,)


def _complete(
    block: Mapping[str, np.ndarray], roles: Roles, scan: Scan, first: int
) -> dict[str, np.ndarray]:
    """Return a block's arrays in their final dtypes, the mask and the time among them."""
    made = assemble(block, roles, first)
    made = {name: x.astype(scan.dtypes[name], copy=False) for name, x in made.items()}
    if scan.gaps or len(set(scan.counts.values())) > 1:
        gaps = missing(made)
        made["mask"] = ~either(gaps, ~made.get("mask", np.ones_like(gaps)))
    if roles.time is not None:
        made["time"] = times(roles.time, block[roles.time], first).astype(np.int64)
    return made


def _rows(scan: Scan) -> int:
    row = sum(
        scan.dtypes[n].itemsize * int(np.prod((scan.trials, *s[-1:])))
        for n, s in scan.shapes.items()
    )
    return max(1, min(BLOCK_BYTES // max(row, 1), SCAN_ROWS))


def as_batch(
    columns: Columns, roles: Roles, scan: Scan, folder: str
) -> Iterator[dict[str, np.ndarray]]:
    """Yield sequences as trials of one batch, by way of files that hold it on the disk."""
    place = {one: i for i, one in enumerate(scan.counts)}
    filled = np.zeros(len(place), dtype=np.int64)
    maps: dict[str, np.ndarray] = {}
    first = 0
    for block in columns.blocks(roles.names, _rows(scan)):
        made, ids = _complete(block, roles, scan, first), sequence_ids(block, roles, first)
        first += len(ids)
        trial = np.array([place[one] for one in ids])
        step = np.empty_like(trial)
        for one in np.unique(trial):
            rows = np.flatnonzero(trial == one)
            step[rows] = filled[one] + np.arange(len(rows))
            filled[one] += len(rows)
        for name, x in made.items():
            if name not in maps:
                maps[name] = np.lib.format.open_memmap(
                    f"{folder}/{name}.npy", "w+", x.dtype, (scan.steps, scan.trials, *x.shape[1:])
                )
                if _pad(name, x.dtype):
                    maps[name][...] = _pad(name, x.dtype)
            maps[name][step, trial] = x
    for start in range(0, scan.steps, _rows(scan)):
        yield {n: np.asarray(x[start : start + _rows(scan)]) for n, x in maps.items()}


def _pad(name: str, dtype: np.dtype[Any]) -> Any:
    """Return what stands where a sequence has ended: nothing that looks like a number."""
    if name == "time":
        return np.iinfo(np.int64).min  # not a time
    return np.nan if dtype.kind == "f" else 0


def write(
    path: Path, where: str, roles: Roles, scan: Scan, blocks: Iterator[dict[str, np.ndarray]],
    force: bool,
) -> None:  # fmt: skip
    """Write blocks of any size as whole shards."""
    from engine.store import ZarrSink

    blocks = iter(blocks)
    held = next(blocks)
    variables = [
        Variable(
            "stream", n, ("step", "trial", *STANDARD.get(n, "").split()),
            (scan.steps, *x.shape[1:]), x.dtype, attrs=TIME if n == "time" else {},
        )
        for n, x in held.items()
    ]  # fmt: skip
    sink = ZarrSink(path, shard_steps(variables, scan.steps), force)
    status, done, fingerprint = "failed", 0, Fingerprint()
    try:
        for variable in variables:
            sink.create(variable)
        for axis, n in (("step", scan.steps), ("trial", scan.trials)):
            coordinate = Variable("", axis, (axis,), (n,), np.dtype(np.int64))
            sink.create(coordinate)
            sink.write(coordinate, 0, np.arange(n))
        sink.describe("", _told(where, path, roles))
        names = [str(one) for one in scan.counts]
        sink.describe("stream", {"sequences": names} if names else {})
        for shard in _regrouped(held, blocks, sink.shard):
            fingerprint.update(Tokens(done, shard))
            for v in variables:
                sink.write(v, done, shard[v.name])
            done += len(shard["keys"])
            sink.commit(done)
        sink.describe("stream", {"sha256": fingerprint.hexdigest()})
        status = "complete"
    finally:
        sink.close(status)


def _told(where: str, path: Path, roles: Roles) -> dict[str, Any]:
    """Return where the numbers came from, laid out as a run says it."""
    taken = {"from": where, "columns": {n: [*c] for n, c in roles.columns.items()}}
    stream = {"ingested": {**taken, "time": roles.time, "sequence": roles.sequence}}
    resolved = {"title": f"ingested from {where}", "stream": stream, "solvers": {}}
    return {
        "scenario": {"name": path.stem, "text": "", "resolved": resolved},
        "provenance": provenance(),
    }


def _regrouped(
    held: dict[str, np.ndarray], blocks: Iterator[dict[str, np.ndarray]], size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield blocks of `size` rows, the last one shorter."""
    for block in blocks:
        while len(held["keys"]) >= size:
            yield {n: x[:size] for n, x in held.items()}
            held = {n: x[size:] for n, x in held.items()}
        held = {n: np.concatenate([held[n], x]) for n, x in block.items()}
    while len(held["keys"]):
        yield {n: x[:size] for n, x in held.items()}
        held = {n: x[size:] for n, x in held.items()}

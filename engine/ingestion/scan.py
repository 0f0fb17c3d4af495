"""The first reading: shapes, dtypes, what is missing, how long each sequence is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.errors import InputError
from engine.ingestion.readers import Columns
from engine.ingestion.roles import Roles, assemble, missing, sequence_ids, times

SCAN_ROWS = 2**14


@dataclass
class Scan:
    """What the first reading found."""

    rows: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, np.dtype[Any]] = field(default_factory=dict)
    gaps: bool = False
    counts: dict[Any, int] = field(default_factory=dict)
    last: dict[Any, np.datetime64] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        """Sequences, or the trial axis that the keys bring."""
        return len(self.counts) or (self.shapes["keys"][0] if len(self.shapes["keys"]) == 2 else 1)

    @property
    def steps(self) -> int:
        """Steps of the longest sequence."""
        return max(self.counts.values(), default=0) if self.counts else self.rows


def look_through(columns: Columns, roles: Roles) -> Scan:
    """Read everything once: shapes, dtypes, what is missing, how long each sequence is."""
    scan = Scan()
    for block in columns.blocks(roles.names, SCAN_ROWS):
        made = assemble(block, roles, scan.rows)
        for name, x in made.items():
            shape = scan.shapes.setdefault(name, x.shape[1:])
            if shape != x.shape[1:]:
                raise InputError(f"{name} has rows of shape {shape} and, later, {x.shape[1:]}")
            scan.dtypes[name] = np.result_type(scan.dtypes.get(name, x.dtype), x.dtype)
        _check_shapes(scan, roles)
        scan.gaps |= bool(missing(made).any()) or not made.get("mask", np.array(True)).all()
        ids = sequence_ids(block, roles, scan.rows)
        for one, n in zip(*np.unique(ids, return_counts=True), strict=True) if ids.size else ():
            scan.counts.setdefault(one, 0)
            scan.counts[one] += int(n)
        _check_times(block, roles, scan, ids)
        scan.rows += len(next(iter(block.values())))
    if not scan.rows:
        raise InputError("there are no rows")
    if roles.sequence is not None:  # in order of appearance, whatever their names
        order = dict.fromkeys(
            i
            for block in columns.blocks([roles.sequence], SCAN_ROWS)
            for i in sequence_ids(block, roles)
        )
        scan.counts = {one: scan.counts[one] for one in order}
    return scan


def _check_shapes(scan: Scan, roles: Roles) -> None:
    """Refuse axes of trials, or numbers of channels, that differ."""
    wide = {name: s for name, s in scan.shapes.items() if len(s) == 2}
    if wide and roles.sequence is not None:
        raise InputError(f"{next(iter(wide))} has a trial axis, and sequence asks for another")
    if len({s[0] for s in wide.values()}) > 1:
        raise InputError(f"trial axes differ: {', '.join(f'{n} {s}' for n, s in wide.items())}")
    keys, queries = scan.shapes["keys"][-1], scan.shapes.get("queries", scan.shapes["keys"])[-1]
    if keys != queries:
        raise InputError(f"queries have {queries} channels and keys {keys}")


def _check_times(
    block: Mapping[str, np.ndarray], roles: Roles, scan: Scan, ids: np.ndarray
) -> None:
    """Refuse times that are missing or do not increase."""
    if roles.time is None:
        return
    stamps = times(roles.time, block[roles.time], scan.rows)
    for i, stamp in enumerate(stamps):
        one = ids[i] if ids.size else None
        row, before = scan.rows + i, scan.last.get(one)
        if np.isnat(stamp) or (before is not None and stamp <= before):
            why = "is missing" if np.isnat(stamp) else f"({stamp}) does not follow {before}"
            raise InputError(f"time: column {roles.time!r}, row {row}: the time {why}")
        scan.last[one] = stamp

"""Whether a store holds what was written into it: every chunk read, every file accounted for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine import store
from engine.cut import strangers_ignored, unfinished
from engine.errors import DamageError, InputError
from engine.guard import BELOW, COPIES, SEAL, Fault, Guard, faults, read_json, written
from engine.shards import index_bytes, is_whole

REPHRASED = "says the same, but not in the letters that zarr writes"
PARTIAL = re.compile(r".*\.partial|.*\.tmp")


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong with a store.

    Parameters
    ----------
    what : str
        "missing", "damaged", "foreign", "metadata" or "mark".
    variable : str
        Path of the array, or of the file.
    steps : tuple of int, optional
        First and last row concerned: steps, or rows of what the variable's first dim is.
    dim : str
        That dim; "" if there is none.
    why : str
        What was found.
    """

    what: str
    variable: str
    steps: tuple[int, int] | None
    dim: str
    why: str

    def __str__(self) -> str:
        where = f", {self.dim} {self.steps[0]} to {self.steps[1]}" if self.steps else ""
        return f"{self.what}: {self.variable}{where}: {self.why}"

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**asdict(self), "steps": list(self.steps) if self.steps else None}


def check(path: str | Path) -> list[Damage]:
    """Return all that is wrong with a run's store; an empty list if nothing is.

    Parameters
    ----------
    path : str or Path
        A store that `engine run` wrote. One that is being written may seem to hold foreign files.

    Raises
    ------
    InputError
        If there is no store at `path`, or not even its first metadata can be read.
    """
    path = Path(path).expanduser()
    found = list(_metadata(path))
    try:
        with strangers_ignored():  # they are looked for below
            root = store.unsealed(path)
            known = {"zarr.json", *(f"{name}/zarr.json" for name in _groups(root))}
            if "parts" in root.attrs:
                found += _parts(path, root, known)
            else:
                found += _contents(path, root, known)
    except InputError as error:
        if not found:
            raise
        return [*found, Damage("metadata", "zarr.json", None, "", str(error))]
    except Exception as error:  # whatever comes of metadata that make no sense
        why = f"{type(error).__name__}: {error}"
        return found or [Damage("metadata", "zarr.json", None, "", why)]
    for file in sorted(p for p in path.rglob("*") if not p.is_dir()):
        name = file.relative_to(path).as_posix()
        if name not in known and not PARTIAL.fullmatch(file.name):
            found.append(Damage("foreign", name, None, "", "no run writes such a file"))
    return found


def _contents(path: Path, root: Any, known: set[str]) -> Iterator[Damage]:
    arrays = dict(_arrays(root))
    yield from _mark(root, int(root.attrs["committed"]), arrays)
    # What a kill left half written, of what is written once, is no damage, and not shown either.
    cut = unfinished(root) if root.attrs["status"] == "running" else []
    for name, array in arrays.items():
        known.add(f"{name}/zarr.json")
        found = list(_chunks(root.store.guard, name, array, known))
        yield from found if name not in cut else []


def _parts(path: Path, root: Any, known: set[str]) -> Iterator[Damage]:
    """Check every part of a sweep that has begun, each a store of its own."""
    committed, status = int(root.attrs["committed"]), root.attrs["status"]
    many = int(root.attrs["parts"])
    if not 0 <= committed <= many or (status == "complete" and committed != many):
        why = f"status is {status!r} and committed = {committed} of {many} parts"
        yield Damage("mark", "zarr.json", None, "", why)
    for i in range(many):
        part = path / "parts" / str(i)
        known.update(p.relative_to(path).as_posix() for p in part.rglob("*") if not p.is_dir())
        if i < committed or (part / "zarr.json").is_file():
            try:
                found = check(part)
            except (DamageError, InputError) as error:
                found = [Damage("missing", "zarr.json", None, "", str(error))]
            for one in found:
                yield replace(one, variable=f"parts/{i}/{one.variable}")


def _arrays(root: Any) -> Iterator[tuple[str, Any]]:
    for name, node in sorted(root.members(max_depth=None)):
        if hasattr(node, "shape"):
            yield name, node


def _groups(root: Any) -> Iterator[str]:
    for name, node in root.members(max_depth=None):
        if not hasattr(node, "shape"):
            yield name


def _chunks(guard: Guard, name: str, array: Any, known: set[str]) -> Iterator[Damage]:
    """Read every chunk that must be there, file by file, and note the files that may be."""
    kept = guard.kept(name)
    size = kept.chunk * kept.count
    many = -(-int(array.shape[0]) // size) if array.shape else 1
    rest = "/0" * max(len(array.shape) - 1, 0)
    for i in range(many if all(array.shape) else 0):
        file = f"{name}/c/{i}{rest}" if array.shape else f"{name}/c"
        known.add(file)
        span = kept.span(i, 0, kept.count)
        if kept.dim and not span:  # all of it is behind the mark
            continue
        try:
            if not span:
                array[...]
                continue
            for first in range(span[0], span[1] + 1, kept.chunk):  # one in memory at a time
                array[first : min(first + kept.chunk, span[1] + 1)]
            chunks = -(-(span[1] + 1 - span[0]) // kept.chunk)
            ended = chunks == kept.count or guard.attrs["status"] == "complete"
            last = index_bytes(kept.count) + chunks * kept.size
            if kept.sharded and ended and guard.path.joinpath(file).stat().st_size > last:
                yield Damage("foreign", name, span, kept.dim, "bytes stand behind its last chunk")
        except Exception as error:  # zarr, its codecs and the disk raise many kinds
            raw = guard.path / file
            data = np.fromfile(raw, np.uint8) if raw.is_file() else None
            told = [] if kept.redrawn and data is not None else [*faults(kept, i, data)]
            told = told or [Fault(span, f"{type(error).__name__}: {error}")]
            for fault in told:
                what = "damaged" if data is not None and fault.why != BELOW else "missing"
                yield Damage(what, name, fault.rows, kept.dim, fault.why)


def _mark(root: Any, committed: int, arrays: dict[str, Any]) -> Iterator[Damage]:
    """Check the mark and the status against the arrays."""
    steps, status = int(root["stream/keys"].shape[0]), root.attrs["status"]
    if not 0 <= committed <= steps:
        why = f"committed = {committed}, but the run has {steps} steps"
        yield Damage("mark", "zarr.json", None, "", why)
    elif status == "complete" and committed != steps:
        why = f"status is 'complete', but committed = {committed} of {steps} steps"
        yield Damage("mark", "zarr.json", None, "", why)
    if status not in ("running", "complete", "failed", "interrupted"):
        yield Damage("mark", "zarr.json", None, "", f"status = {status!r} is none that a run has")
    for name, array in arrays.items():
        dims = array.metadata.dimension_names or ()
        if dims[:1] == ("step",) and int(array.shape[0]) != steps:
            why = f"has {array.shape[0]} steps, stream/keys has {steps}"
            yield Damage("mark", name, None, "step", why)
    if "shard" in root.attrs and status != "complete":
        there, shard = _written(root, arrays), int(root.attrs["shard"])
        if there > committed + shard:  # a write is declared complete before the next begins
            why = f"committed = {committed}, but {there} steps are there, in writes of {shard}"
            yield Damage("mark", "zarr.json", None, "", why)


def _written(root: Any, arrays: dict[str, Any]) -> int:
    """Return how many steps the indexes of shards say are there, of the variable with most."""
    guard, most = root.store.guard, 0
    for name, array in arrays.items():
        kept, folder = guard.kept(name), guard.path / name / "c"
        files = [int(p.name) for p in folder.glob("*") if p.name.isdecimal()]
        if "/" in name and kept.sharded and kept.dim == "step" and files:  # not the axis itself
            last = folder.joinpath(str(max(files)), *["0"] * (len(array.shape) - 1))
            index = np.fromfile(last, np.uint8, index_bytes(kept.count))
            if len(index) == index_bytes(kept.count) and is_whole(index):
                most = max(most, min(written(kept, max(files), index), int(array.shape[0])))
    return most


def _metadata(path: Path) -> Iterator[Damage]:
    """Check the metadata's checksum, and the copies in the root of those in each node's file."""
    if not (path / "zarr.json").is_file():
        raise InputError(f"{path} is not a run's store: it has no zarr.json")
    try:
        guard = Guard(path)
        seal, told, form = guard.sealed, guard.attrs.get(SEAL), guard.attrs.get("format")
    except (DamageError, AttributeError, TypeError) as error:
        yield Damage("metadata", "zarr.json", None, "", f"{error}")
        return
    if seal is False and told is None:
        why = f"there is no {SEAL}, which the store of every run that has ended has"
        yield Damage("metadata", "zarr.json", None, "", why)
    elif seal is False:
        why = f"its attributes, or copies of metadata, are not those that {SEAL} was made of"
        yield Damage("metadata", "zarr.json", None, "", why)
    elif seal is None and told is not None:
        why = f"has {SEAL}, but format {form} and status {guard.attrs.get('status')!r} have none"
        yield Damage("metadata", "zarr.json", None, "", why)
    if not _as_written(path / "zarr.json"):
        yield Damage("metadata", "zarr.json", None, "", REPHRASED)
    for name, copy in sorted(guard.copies.items()):
        try:
            own = read_json(path / name / "zarr.json")
        except DamageError as error:
            yield Damage("metadata", f"{name}/zarr.json", None, "", f"{error}")
            continue
        own.pop(COPIES, None)
        if not _as_written(path / name / "zarr.json"):
            yield Damage("metadata", f"{name}/zarr.json", None, "", REPHRASED)
        if own != {k: x for k, x in copy.items() if k != COPIES}:
            why = "differs from the copy in the root's zarr.json"
            yield Damage("metadata", f"{name}/zarr.json", None, "", why)


def _as_written(path: Path) -> bool:
    """Whether a file of metadata is to the letter what it says: 1e-5 may have become 1E-5."""
    text = path.read_text()
    return text == json.dumps(json.loads(text), indent=2)

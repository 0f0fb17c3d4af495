"""What is checked before a store is believed: that a chunk is there, and every checksum.

zarr takes a chunk that is missing, or that its shard's index calls empty, for fill values. Here
every chunk is written before the mark passes it, and ends with a CRC-32C, so neither is right.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import DamageError, EngineError, InputError
from engine.shards import CHECKSUM, EMPTY, index_bytes, is_whole

FORMAT = 2
"""1 had neither checksums of metadata nor, around what is compressed, of chunks."""
SEAL = "metadata_sha256"
REDRAWN = "redrawn"
COPIES = "consolidated_metadata"
CHUNK = re.compile(r"(?P<name>.+)/c(?P<at>(/[0-9]+)*)")
WRONG = "its checksum is wrong"
OTHER = "it is not as long as a chunk of this variable is"
BELOW = "its shard's index says that it was never written"


@dataclass(frozen=True)
class Kept:
    """How an array lies in its files, along its first axis.

    Parameters
    ----------
    dim : str
        Name of that axis; "" if the array is one number.
    chunk, count : int
        Rows per chunk, chunks per file.
    rows : int
        How many of them must be there.
    sharded, summed : bool
        Whether its files have an index; whether its chunks end with a CRC-32C.
    size : int
        Bytes per chunk, its checksum included; 0 where chunks are compressed.
    redrawn : bool
        Whether its chunks are not stored, only their checksums: see `engine.redrawn`.
    """

    dim: str
    chunk: int
    count: int
    rows: int
    sharded: bool
    summed: bool
    size: int
    redrawn: bool = False

    def span(self, file: int, place: int = 0, chunks: int = 1) -> tuple[int, int] | None:
        """Return the first and last row that must be there in some chunks of a file, if any."""
        first = (file * self.count + place) * self.chunk
        last = min(first + chunks * self.chunk, self.rows) - 1
        return (first, last) if self.dim and first <= last else None


@dataclass(frozen=True)
class Fault:
    """Rows that cannot be believed, and why; no rows are one number, or an empty array."""

    rows: tuple[int, int] | None
    why: str


class Guard:
    """Looks at the bytes of a store before zarr makes numbers of them.

    Parameters
    ----------
    path : Path
        The store. What is committed, and how arrays lie, is read once.

    Raises
    ------
    DamageError
        If the root's metadata are not JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = read_json(path / "zarr.json")
        self.attrs: Mapping[str, Any] = self._table(self.root, "attributes")
        gathered = self._table(self.root, COPIES)
        self.copies: Mapping[str, dict[str, Any]] = self._table(gathered, "metadata")
        self._kept: dict[str, Kept] = {}

    def _table(self, of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        found = of.get(key) or {}
        if not isinstance(found, Mapping):
            raise DamageError(f"{self.path}/zarr.json: {key} is {found!r}, not what zarr writes")
        return found

    def check(self, key: str, data: Any, start: int | None) -> None:
        """Refuse what was read under a key from byte `start` on (None: all of it).

        Raises
        ------
        DamageError
            If it is not there, or not what was written there.
        """
        found = CHUNK.fullmatch(key)
        if not found:
            return
        name, file = found["name"], int((found["at"].split("/") + ["", "0"])[1] or 0)
        kept = self.kept(name)
        for fault in faults(kept, file, data, start):
            where = f", {kept.dim} {fault.rows[0]} to {fault.rows[1]}" if fault.rows else ""
            raise DamageError(
                f"{self.path}: {name}{where}: {fault.why}; `engine show --check` says what else "
                "is damaged"
            )

    def redrawn(self, key: str) -> tuple[str, tuple[int, int], int] | None:
        """Return which variable of a stream to draw, first and last step, and steps per chunk.

        None if what is under the key is stored, or behind the mark.
        """
        found = CHUNK.fullmatch(key)
        kept = self.kept(found["name"]) if found else None
        if not found or not kept or not kept.redrawn:
            return None
        span = kept.span(int(found["at"].split("/")[1]))
        return span and (found["name"].rpartition("/")[2], span, kept.chunk)

    def kept(self, name: str) -> Kept:
        """Return how an array lies in its files."""
        if name not in self._kept:
            self._kept[name] = self._lies(name)
        return self._kept[name]

    def _node(self, name: str) -> dict[str, Any]:
        return self.copies.get(name) or read_json(self.path / name / "zarr.json")

    def _lies(self, name: str) -> Kept:
        node = self._node(name)
        try:
            shape, codecs = node["shape"], node["codecs"]
            chunk = node["chunk_grid"]["configuration"]["chunk_shape"]
            count, sharded = 1, codecs[0]["name"] == "sharding_indexed"
            if sharded:
                inner = codecs[0]["configuration"]
                count = chunk[0] // inner["chunk_shape"][0]
                chunk, codecs = inner["chunk_shape"], inner["codecs"]
            dim = str((node.get("dimension_names") or ["row"])[0]) if shape else ""
            rows = self._rows(name, dim, int(shape[0])) if shape else 1
            summed = codecs[-1]["name"] == "crc32c"
            size = 0
            if [codec["name"] for codec in codecs] == ["bytes", "crc32c"]:
                size = math.prod(chunk) * np.dtype(node["data_type"]).itemsize + CHECKSUM
            first = int(chunk[0]) if chunk else 1
            redrawn = REDRAWN in node["attributes"]
            return Kept(dim, first, count, rows, sharded, summed, size, redrawn)
        except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
            raise DamageError(
                f"{self.path}: {name}/zarr.json is not what was written: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _rows(self, name: str, dim: str, length: int) -> int:
        """Return how many rows of an array must be there."""
        committed = int(self.attrs.get("committed", 0))
        if dim == "step" and "/" in name:
            return min(committed, length)
        if dim == "keyframe" and not name.endswith("/keyframe_step"):
            n = int(self._node(name.rpartition("/")[0])["attributes"]["keyframes"])
            return min(committed // n, length)
        if dim == "probe_step" and self.attrs.get("status") != "complete":
            return 0
        return length

    @property
    def sealed(self) -> bool | None:
        """Whether the metadata are those that the run ended with.

        None of one that has not ended, and of one that an older release wrote.
        """
        if self.attrs.get("status") == "running" or self.attrs.get("format") in range(FORMAT):
            return None
        return bool(self.attrs.get(SEAL) == seal(self.root))


def faults(kept: Kept, file: int, data: Any, start: int | None = None) -> Iterator[Fault]:
    """Yield what is wrong with the bytes of one of an array's files, read from `start` on.

    `start` is None for all of it, 0 for a shard's index, else the place of one of its chunks.
    """
    if data is None or not len(data):
        yield Fault(kept.span(file, 0, kept.count), "missing" if data is None else "empty")
        return
    if not kept.sharded or start:
        place = ((start or 0) - index_bytes(kept.count)) // kept.size if kept.sharded else 0
        if kept.size and not kept.sharded and len(data) != kept.size:
            yield Fault(kept.span(file), OTHER)
            return
        size = kept.size or len(data)
        for i in range(-(-len(data) // size) if kept.summed else 0):  # of a shard, maybe several
            if not is_whole(data[i * size : (i + 1) * size]):
                why = "what is drawn now is not what was drawn" if kept.redrawn else WRONG
                yield Fault(kept.span(file, place + i), why)
        return
    index = data[: index_bytes(kept.count)]
    if len(index) < index_bytes(kept.count) or not is_whole(index):
        why = "the checksum of its shard's index is wrong"
        yield Fault(kept.span(file, 0, kept.count), why)
        return
    entries = np.frombuffer(index[:-CHECKSUM], dtype="<u8").reshape(-1, 2).tolist()
    for place, (at, size) in enumerate(entries):
        span = kept.span(file, place)
        if not span:  # behind the mark; it may be half written
            return
        if at == EMPTY:
            yield Fault(span, BELOW)
        elif (at, size) != (index_bytes(kept.count) + place * kept.size, kept.size):
            yield Fault(span, OTHER)
        elif start is None and kept.summed and not is_whole(data[at : at + size]):
            yield Fault(span, WRONG)


def written(kept: Kept, file: int, data: Any) -> int:
    """Return how many rows the index of a shard, the array's `file`-th, says are there."""
    entries = np.frombuffer(data[: index_bytes(kept.count) - CHECKSUM], dtype="<u8")
    there = int((entries[::2] != EMPTY).sum())
    return (file * kept.count + there) * kept.chunk if there else 0


def seal(root: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a root's metadata, copies of the others' among them.

    The attribute that holds it is left out.
    """
    attrs = {n: x for n, x in (root.get("attributes") or {}).items() if n != SEAL}
    text = json.dumps({**root, "attributes": attrs}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def is_store(path: Path) -> bool:
    """Return whether a store of ours is at `path`."""
    try:
        return "format" in Guard(path).attrs
    except DamageError:  # or of somebody else
        return False


def readable(path: str | Path) -> Guard:
    """Return what guards a store, if this release can read it.

    Raises
    ------
    InputError
        If there is none at `path`, or it was written by a newer release.
    DamageError
        If its metadata cannot be read.
    """
    if not isinstance(path, (str, Path)):
        raise InputError(f"a run is the path of its store, not {type(path).__name__}")
    path = Path(path).expanduser()
    if not path.exists():
        raise InputError(f"{path} does not exist")
    guard = Guard(path) if (path / "zarr.json").is_file() else None
    if guard is None or "format" not in guard.attrs:
        raise InputError(
            f"{path} is not a run's store: it has no attribute 'format'; "
            "give the folder that was written, as runs/NAME.zarr"
        )
    told = guard.attrs["format"]
    if not isinstance(told, int) or told > FORMAT:
        raise InputError(
            f"{path} has format {told}, this release reads up to {FORMAT}; upgrade ttr-engine"
        )
    return guard


@contextmanager
def followed(path: str | Path) -> Iterator[None]:
    """Turn what zarr and xarray make of metadata that make no sense into an error of ours."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise  # the disk's trouble
        raise DamageError(
            f"{path}: its metadata cannot be followed: {type(error).__name__}: {error}"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Return a file of metadata.

    Raises
    ------
    DamageError
        If it is not there or not what zarr writes.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DamageError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise DamageError(f"{path} is not what zarr writes: {type(found).__name__}")
    return found

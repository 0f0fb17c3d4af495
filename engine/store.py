"""The store of a run: one zarr group that plain xarray opens. The only file that names zarr."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.group import GroupMetadata
from zarr.core.metadata import ArrayV3Metadata
from zarr.dtype import parse_dtype
from zarr.storage import LocalStore

from engine.cut import grown, laid_out, strangers_ignored
from engine.errors import DamageError, InputError
from engine.guard import FORMAT, REDRAWN, SEAL, Guard, followed, readable, seal
from engine.lock import Lock, check_free, claim
from engine.recorder import Variable
from engine.redrawn import CHUNK_STEPS, Checks, Redrawn
from engine.shards import CHECKSUM, Shards, are_there, chunks_per_shard, divisor, replace

CHUNK_BYTES = 4 * 2**20


class ZarrSink:
    """Writes a run's arrays into a new zarr v3 store.

    Parameters
    ----------
    path : Path
        A folder that does not exist yet.
    shard : int
        Steps per write: whole chunks of every variable with a step axis.
    force : bool
        Replace a store that is there. Anything else that is there is left alone.
    redraws : bool
        Of a stream, store only what tells whether it is drawn again as it was.

    Raises
    ------
    InputError
        If the path is taken.
    """

    _root: zarr.Group
    _redraws = False  # of a store that is there, what is there says so itself
    _around: Sequence[bytes] = ()  # the root's metadata before and behind what is committed

    def __init__(self, path: Path, shard: int, force: bool = False, redraws: bool = False) -> None:
        self._redraws = redraws
        self._path, self._root, self._lock = create(path, {"shard": shard}, force)
        self.shard = shard
        self._arrays: dict[str, Any] = {}
        self._shards: dict[str, Shards | Checks] = {}

    @classmethod
    def reopen(cls, path: Path) -> ZarrSink:
        """Return a sink over a store that is there; nothing of it is touched yet."""
        made = cls.__new__(cls)
        made._path, made._root, made._lock = reopen(path)
        made.shard, made._arrays, made._shards = int(made.attrs["shard"]), {}, {}
        return made

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of the root."""
        return self._root.attrs.asdict()

    def adopt(self, variable: Variable) -> bool:
        """Take up a variable as it is stored; False if there is none of its shape."""
        name = variable.path.lstrip("/")
        found: Any = self._root.get(name)
        if found is None or (found.shape, found.dtype) != (variable.shape, variable.dtype):
            return False
        self._arrays[variable.path] = found.with_config({"write_empty_chunks": True})
        if variable.advances:
            rest, chunk = found.chunks[1:], found.chunks[0]
            if REDRAWN in found.attrs:
                self._shards[variable.path] = Checks(self._path / name, chunk, rest, variable.dtype)
                return True
            self._shards[variable.path] = Shards(
                self._path / name, chunk, found.shards[0] // chunk, rest, variable.dtype,
                found.fill_value,
            )  # fmt: skip
        return True

    def read(self, path: str, start: int, like: np.ndarray) -> np.ndarray | None:
        """Return what is stored where `like` would be written; None if it is not there."""
        array = self._arrays.get(path)
        if array is None:
            return None
        size = int((array.shards or array.chunks or (1,))[0])
        count = len(like) if array.shape else None
        if not are_there(self._path / path.lstrip("/"), size, start, count):
            return None
        if isinstance(files := self._shards.get(path), Checks):
            return files.like(start, like)
        return np.asarray(array[start : start + len(like)] if array.shape else array[...])

    def begin_at(self, steps: int) -> None:
        """Go on behind the first `steps` steps: what only an end knows is taken away."""
        writer = {"host": platform.node(), "process": os.getpid()}
        self._around = ()
        self._root.metadata.attributes.pop(SEAL, None)  # what it seals is about to change
        self._root.update_attributes({"status": "running", "committed": steps, "writer": writer})
        with strangers_ignored():  # what a kill left half written
            for group in {path.rpartition("/")[0] for path in self._arrays}:
                grown(self._root, group)
            nodes = [(x, list(x.arrays())) for _, x in self._root["solvers"].groups()]  # type: ignore[union-attr]
        for node, arrays in nodes:
            for name, array in arrays:
                dims = getattr(array.metadata, "dimension_names", None) or ()
                if name == "diverged_at" or dims[:1] == ("row",):
                    del node[name]
                    self._arrays.pop(f"solvers/{node.basename}/{name}", None)

    def release(self) -> None:
        """Let others write, and leave the store as it is."""
        self._lock.release()

    def create(self, variable: Variable) -> None:
        """Preallocate a variable: appending would resize first and could be cut in between."""
        row, name = max(variable.row_bytes, 1), variable.path.lstrip("/")
        aligned = self.shard % variable.every == 0
        rows = max((*variable.shape[:1], 1))
        if variable.advances:  # where a write holds no whole rows, each row is a chunk
            rows = max(1, self.shard // variable.every) if aligned else 1
        elif variable.dims[:1] == ("probe_step",):  # written row by row
            rows = 1
        fits = max(1, CHUNK_BYTES // row)
        chunk = divisor(rows, fits) if variable.advances else min(rows, 2 ** int(math.log2(fits)))
        rest = tuple(max(n, 1) for n in variable.shape[1:])
        # Rows that were never written must not look like numbers.
        floating = variable.dtype.kind == "f"
        fill = float("nan") if floating else variable.fill
        folder, attrs, file = self._path / name, dict(variable.attrs), chunk
        # Trajectories do not compress; facts may. zstd's own checksum leaves its header out.
        packed = [] if floating or variable.advances else [ZstdCodec(level=1)]
        if variable.advances and variable.group == "stream" and self._redraws:
            file = chunk = divisor(rows, min(fits, CHUNK_STEPS))
            attrs[REDRAWN] = "drawn again when it is read; a chunk's file holds its checksum"
            self._shards[variable.path] = Checks(folder, chunk, rest, variable.dtype)
        elif variable.advances:
            count = chunks_per_shard(chunk * row, -(-variable.shape[0] // chunk))
            self._shards[variable.path] = Shards(folder, chunk, count, rest, variable.dtype, fill)
            file = chunk * count
        codecs: list[Any] = [BytesCodec(), *packed, Crc32cCodec()]
        if isinstance(self._shards.get(variable.path), Shards):
            inner = (chunk, *rest)
            codecs = [ShardingCodec(chunk_shape=inner, codecs=codecs, index_location="start")]
        files = (file, *rest) if variable.shape else ()
        if not (self._path / variable.group / "zarr.json").exists():
            grown(self._root, variable.group)
        self._arrays[variable.path] = declared(
            self._root.store_path / name, folder, variable, files, codecs, fill, attrs
        )

    def write(self, variable: Variable, start: int, rows: np.ndarray) -> None:
        """Write rows from `start` on."""
        array = self._arrays[variable.path]
        if variable.path in self._shards:
            self._shards[variable.path].write(start, rows)
        elif not variable.shape:
            array[...] = rows
        elif len(rows):
            array[start : start + len(rows)] = rows

    def describe(self, group: str, attrs: Mapping[str, Any]) -> None:
        """Add attributes to a group."""
        self._around = ()
        grown(self._root, group).update_attributes(dict(attrs))

    def commit(self, steps: int) -> None:
        """Move the mark: called after every variable is written."""
        attributes = self._root.metadata.attributes
        if not self._around:  # zarr's own way takes longer than writing a chunk
            attributes["committed"] = mark = uuid4().int
            self._around = text(self._root.metadata).split(str(mark).encode())
        attributes["committed"] = steps
        replace(self._path / "zarr.json", str(steps).encode().join(self._around))

    def fit(self, steps: int) -> None:
        """Give back the room behind the first `steps` steps."""
        for array in self._arrays.values():
            if array.metadata.dimension_names[:1] == ("step",):
                array.resize((steps, *array.shape[1:]))

    def close(self, status: str) -> None:
        """Set the final status; the metadata are gathered and sealed."""
        try:
            close(self._path, self._root.store, status)
        finally:
            self._lock.release()


def declared(
    at: Any,
    folder: Path,
    variable: Variable,
    files: tuple[int, ...],
    codecs: list[Any],
    fill: float,
    attrs: dict[str, Any],
) -> Any:
    """Write an array's metadata, and return it.

    `zarr.create_array` looks for whatever may be there, asks every parent, and waits for another
    thread to do so: with a dozen arrays, as long as a short run takes.

    Raises
    ------
    FileExistsError
        If there is an array of this name: names that differ in case may mean the same folder.
    """
    kind = parse_dtype(variable.dtype, zarr_format=3)
    metadata = ArrayV3Metadata(
        shape=variable.shape,
        data_type=kind,
        chunk_grid={"name": "regular", "configuration": {"chunk_shape": files}},
        chunk_key_encoding={"name": "default", "separator": "/"},
        fill_value=fill,
        codecs=codecs,
        attributes=attrs,
        dimension_names=variable.dims or None,
    )
    file = folder / "zarr.json"
    if file.exists():
        raise FileExistsError(f"{file} is there")
    replace(file, text(metadata))
    return zarr.Array(zarr.AsyncArray(metadata, at, {"write_empty_chunks": True}))


def create(path: Path, attrs: Mapping[str, Any], force: bool) -> tuple[Path, Any, Lock]:
    """Make the root of a store that is being written: its folder, its group, and a lock on it.

    Raises
    ------
    InputError
        If the path is taken.
    """
    check_free(path, force)
    path = path.resolve()  # the folder itself, where `path` is a link to one
    path.mkdir(parents=True, exist_ok=True)
    lock = claim(path)
    writer = {"host": platform.node(), "process": os.getpid()}
    own = {"format": FORMAT, "committed": 0, "status": "running", "writer": writer}
    # First this, at once: a kill at any moment leaves what is known as a store of ours.
    replace(path / "zarr.json", text(GroupMetadata(attributes={**own, **attrs}, zarr_format=3)))
    for old in path.iterdir():
        if old.name != "zarr.json":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    return path, zarr.open_group(str(path), mode="r+", use_consolidated=False), lock


def reopen(path: Path) -> tuple[Path, Any, Lock]:
    """Return the root of a store that is there, as `create` does of a new one."""
    path, lock = path.resolve(), claim(path)
    return path, zarr.open_group(str(path), mode="r+", use_consolidated=False), lock


def close(path: Path, store: Any, status: str) -> None:
    """Gather a store's metadata in its root, and put the status and the seal on them at once."""
    with strangers_ignored():  # what a kill left half written, and is being resumed
        # zarr warns that consolidated metadata is not part of the v3 specification; xarray reads
        # it, and warns when it is absent.
        warnings.filterwarnings("ignore", message="Consolidated metadata is currently not part")
        root = zarr.consolidate_metadata(store)
    attrs = root.metadata.attributes
    attrs.pop(SEAL, None)
    attrs["status"] = status
    attrs[SEAL] = seal(json.loads(text(root.metadata)))
    replace(path / "zarr.json", text(root.metadata))


def arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of any zarr group, whoever wrote it."""
    return dict(zarr.open_group(str(path), mode="r").arrays())


def text(metadata: GroupMetadata | ArrayV3Metadata) -> bytes:
    """Return metadata as zarr writes them."""
    (found,) = metadata.to_buffer_dict(default_buffer_prototype()).values()
    return bytes(found.to_bytes())


class Guarded(LocalStore):
    """A store on disk in which damage is an error, never fill values: see `engine.guard`."""

    def __init__(self, root: Path, *, read_only: bool = True) -> None:
        super().__init__(root, read_only=read_only)
        self.guard = Guard(Path(root))
        self._stream = Redrawn(self.guard.path, self.guard.attrs)

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return the bytes under a key, if they are those that were written."""
        got = await super().get(key, prototype, byte_range)
        place = self.guard.redrawn(key)
        if got is not None and place and len(got) == CHECKSUM:
            buffer = (prototype or default_buffer_prototype()).buffer
            got = buffer.from_bytes(self._stream.chunk(*place) + got.to_bytes())
        data = None if got is None else got.as_numpy_array()
        self.guard.check(key, data, getattr(byte_range, "start", None))
        return got


def unsealed(path: str | Path) -> Any:
    """Return the zarr group of a run, its chunks guarded, its metadata as they are.

    Raises
    ------
    InputError
        If there is no run at `path`, or it was written by a newer release.
    DamageError
        If its metadata cannot be read.
    """
    guard = readable(path)
    with followed(path), strangers_ignored():
        found: Any = zarr.open_group(Guarded(guard.path), mode="r")
        begun = "parts" in guard.attrs or (laid_out(guard.attrs) and "stream/keys" in found)
        if "scenario" not in guard.attrs or not begun:
            raise InputError(f"{path} has no stream: its run was killed, or has only just begun")
        if not guard.copies:  # else they were followed just now
            list(found.members(max_depth=None))
    return found


def group(path: str | Path) -> Any:
    """Return the zarr group of a run as it stands, for reading; damage is an error.

    Raises
    ------
    InputError
        If there is no run at `path`, or it was written by a newer release.
    DamageError
        If its metadata are not those that were written.
    """
    found = unsealed(path)
    with followed(path):
        sealed = found.store.guard.sealed
    if sealed is False:
        raise DamageError(
            f"{path}: its metadata are not those that its run ended with; `engine show --check` "
            'says more, and xarray (engine="zarr") opens it as it is'
        )
    return found

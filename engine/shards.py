"""Shard files of a zarr v3 array, filled chunk by chunk while a run goes on.

zarr writes a shard in one piece: large ones would have to be held in memory, and small ones make
thousands of files, each of which costs more than its bytes. But the format has an index, of fixed
size and here at the start of a file, that says where each chunk lies. So a chunk is put in its
place and then entered in the index: a reader sees whole chunks only. Chunks are plain bytes and a
CRC-32C, so that their places are known beforehand.

Source: Zarr v3 specification, codecs `sharding_indexed` (ZEP 2), `bytes` and `crc32c`.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

SHARD_BYTES = 64 * 2**20
MOST_CHUNKS = 128  # the index then fits into a page of memory, and is written at once
EMPTY = 2**64 - 1
ENTRY, CHECKSUM = 16, 4
SMALL = 2**16  # bytes that are copied sooner than the system is called


def chunks_per_shard(chunk_bytes: int, chunks: int) -> int:
    """Return how many chunks to put into one file: about 64 MiB, and no more than there will be."""
    return max(1, min(SHARD_BYTES // max(chunk_bytes, 1), MOST_CHUNKS, chunks))


def divisor(rows: int, wanted: int) -> int:
    """Return the divisor of `rows` nearest in size to `wanted`: a write is of whole chunks."""
    every = (d for d in range(1, rows + 1) if rows % d == 0)
    return min(every, key=lambda d: abs(math.log(d / min(wanted, rows))))


@dataclass(frozen=True)
class Shards:
    """The files of one array, each a run of `count` chunks of `chunk` steps.

    Parameters
    ----------
    folder : Path
        The array's.
    chunk, count : int
        Steps per chunk, chunks per shard.
    row : tuple of int
        Shape of one step.
    dtype : dtype
        Of the numbers.
    fill : float
        What stands behind the last step in a chunk that is not full.
    """

    folder: Path
    chunk: int
    count: int
    row: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: float

    def write(self, start: int, rows: np.ndarray) -> None:
        """Write rows from step `start` on, a multiple of `chunk`; they may end within a chunk."""
        if start % self.chunk:
            raise ValueError(f"step {start} is not the first of a chunk of {self.chunk}")
        for first in range(0, len(rows), self.chunk):
            self._write_chunk((start + first) // self.chunk, rows[first : first + self.chunk])

    def _write_chunk(self, number: int, rows: np.ndarray) -> None:
        data = np.ascontiguousarray(rows, dtype=self._stored)
        if len(data) < self.chunk:
            whole = np.full((self.chunk, *self.row), self.fill, dtype=data.dtype)
            whole[: len(data)] = data
            data = whole
        body = data.reshape(-1).view(np.uint8)
        shard, place = divmod(number, self.count)
        path = self._path.format(shard)
        if not place:
            replace(path, self._index(0))
        try:
            file = open(path, "r+b", buffering=0)
        except FileNotFoundError:
            replace(path, self._index(0))
            file = open(path, "r+b", buffering=0)
        with file:
            file.seek(self._header + place * self._size)
            if len(body) < SMALL:
                _write_all(file, body.tobytes() + checksum(body))
            else:
                _write_all(file, body)
                _write_all(file, checksum(body))
            file.seek(0)
            _write_all(file, self._index(place + 1))

    @cached_property
    def _stored(self) -> np.dtype[Any]:
        return self.dtype.newbyteorder("<")

    @cached_property
    def _header(self) -> int:
        return index_bytes(self.count)

    @cached_property
    def _size(self) -> int:
        return self.chunk * math.prod(self.row) * self.dtype.itemsize + CHECKSUM

    @cached_property
    def _path(self) -> str:
        """A shard's file, its number left open: a Path takes longer to make than the file."""
        folder = str(self.folder).replace("{", "{{").replace("}", "}}")
        return os.sep.join([folder, "c", "{}", *["0"] * len(self.row)])

    @cached_property
    def _places(self) -> bytes:
        """The entries of a full index: where each chunk lies, and how long it is."""
        index = np.full((self.count, 2), self._size, dtype="<u8")
        index[:, 0] = self._header + self._size * np.arange(self.count)
        return index.tobytes()

    def _index(self, known: int) -> bytes:
        """Return the index of a shard whose first `known` chunks are there."""
        text = self._places[: ENTRY * known].ljust(len(self._places), b"\xff")  # EMPTY
        return text + checksum(text)


def checksum(data: bytes | np.ndarray) -> bytes:
    """Return the CRC-32C that ends a chunk, or an index."""
    return int(google_crc32c.value(data)).to_bytes(CHECKSUM, "little")


def index_bytes(count: int) -> int:
    """Return how long the index of a shard of so many chunks is, its checksum included."""
    return ENTRY * count + CHECKSUM


def is_whole(data: np.ndarray) -> bool:
    """Return whether bytes end with their CRC-32C: those of a chunk, or of an index."""
    body = np.ascontiguousarray(data[:-CHECKSUM])
    return len(data) >= CHECKSUM and checksum(body) == data[-CHECKSUM:].tobytes()


def _write_all(file: Any, data: Any) -> None:
    """Write every byte: an unbuffered file may take a part, and says so."""
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]


def replace(path: str | Path, data: bytes) -> None:
    """Put a file in place as a whole."""
    part = f"{path}.partial"
    try:
        file = open(part, "wb", buffering=0)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(part), exist_ok=True)
        file = open(part, "wb", buffering=0)
    with file:
        _write_all(file, data)
    os.replace(part, path)


def are_there(folder: Path, size: int, start: int, count: int | None) -> bool:
    """Return whether files hold rows of an array, `size` a file; zarr reads fill values elsewhere.

    `count` is None for an array that is one number.
    """
    if count is None:
        return (folder / "c").is_file()
    files = range(start // size, -(-(start + count) // size))
    return all((folder / "c" / str(i)).exists() for i in files)

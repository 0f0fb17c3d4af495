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
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

SHARD_BYTES = 64 * 2**20
MOST_CHUNKS = 128  # the index then fits into a page of memory, and is written at once
EMPTY = 2**64 - 1
CHECKSUM = 4


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
        data = np.ascontiguousarray(rows, dtype=self.dtype.newbyteorder("<"))
        if len(data) < self.chunk:
            whole = np.full((self.chunk, *self.row), self.fill, dtype=data.dtype)
            whole[: len(data)] = data
            data = whole
        body = data.reshape(-1).view(np.uint8)
        shard, place = divmod(number, self.count)
        header, size = index_bytes(self.count), len(body) + CHECKSUM
        path = self.folder.joinpath("c", str(shard), *["0"] * len(self.row))
        if not place or not path.exists():
            replace(path, self._index(0, header, size))
        with path.open("r+b", buffering=0) as file:
            file.seek(header + place * size)
            _write_all(file, body)
            _write_all(file, checksum(body))
            file.seek(0)
            _write_all(file, self._index(place + 1, header, size))

    def _index(self, known: int, header: int, size: int) -> bytes:
        """Return the index of a shard whose first `known` chunks are there."""
        index = np.full((self.count, 2), EMPTY, dtype="<u8")
        index[:known, 0] = header + size * np.arange(known)
        index[:known, 1] = size
        text = index.tobytes()
        return text + checksum(text)


def checksum(data: bytes | np.ndarray) -> bytes:
    """Return the CRC-32C that ends a chunk, or an index."""
    return int(google_crc32c.value(data)).to_bytes(CHECKSUM, "little")


def index_bytes(count: int) -> int:
    """Return how long the index of a shard of so many chunks is, its checksum included."""
    return 16 * count + CHECKSUM


def is_whole(data: np.ndarray) -> bool:
    """Return whether bytes end with their CRC-32C: those of a chunk, or of an index."""
    body = np.ascontiguousarray(data[:-CHECKSUM])
    return len(data) >= CHECKSUM and checksum(body) == data[-CHECKSUM:].tobytes()


def _write_all(file: Any, data: Any) -> None:
    """Write every byte: an unbuffered file may take a part, and says so."""
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]


def replace(path: Path, data: bytes) -> None:
    """Put a file in place as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.partial")
    part.write_bytes(data)
    os.replace(part, path)


def are_there(folder: Path, size: int, start: int, count: int | None) -> bool:
    """Return whether files hold rows of an array, `size` a file; zarr reads fill values elsewhere.

    `count` is None for an array that is one number.
    """
    if count is None:
        return (folder / "c").is_file()
    files = range(start // size, -(-(start + count) // size))
    return all((folder / "c" / str(i)).exists() for i in files)

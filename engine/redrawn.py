"""Streams that are not stored: of every chunk a checksum, the numbers from the generator again.

With ``record = { keyframes = n, stream = false }`` a chunk's file holds the CRC-32C that would end
it. Whoever reads it gets the chunk drawn again, checksum behind it, so a generator, a seed or a
library that draws other numbers than it did then is damage, never a wrong number.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine import building
from engine.errors import at
from engine.shards import checksum, replace
from engine.sources import GeneratorSource

CHUNK_STEPS = 256
"""Steps that are drawn to read one, where they are not too many bytes."""
PLACES = 512
BLOCKS = 4


@dataclass(frozen=True)
class Checks:
    """The files of one array, each the checksum of a chunk of `chunk` steps.

    Parameters
    ----------
    folder : Path
        The array's.
    chunk : int
        Steps per chunk.
    row : tuple of int
        Shape of one step.
    dtype : dtype
        Of the numbers.
    """

    folder: Path
    chunk: int
    row: tuple[int, ...]
    dtype: np.dtype[Any]

    def _each(self, start: int, rows: np.ndarray) -> Any:
        """Yield the file of every chunk, and what belongs into it."""
        for first in range(0, len(rows), self.chunk):
            number = (start + first) // self.chunk
            path = self.folder.joinpath("c", str(number), *["0"] * len(self.row))
            yield path, checksum(padded(rows[first : first + self.chunk], self.chunk, self.dtype))

    def write(self, start: int, rows: np.ndarray) -> None:
        """Write the checksums of rows from step `start` on, a multiple of `chunk`."""
        for path, check in self._each(start, rows):
            replace(path, check)

    def like(self, start: int, rows: np.ndarray) -> np.ndarray:
        """Return `rows` if they are what was drawn there then, else other numbers."""
        if all(path.read_bytes() == check for path, check in self._each(start, rows)):
            return rows
        return np.invert(np.ascontiguousarray(rows).view(np.uint8)).view(rows.dtype)


def padded(rows: np.ndarray, chunk: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the bytes of a whole chunk; behind the last row there are zeros."""
    whole = np.zeros((chunk, *rows.shape[1:]), dtype.newbyteorder("<"))
    whole[: len(rows)] = rows
    return whole.reshape(-1).view(np.uint8)


class Redrawn:
    """Draws any steps of a run's stream again.

    Parameters
    ----------
    path : Path
        The run's store, for messages.
    attrs : mapping
        Its attributes; the generator is made when something is read.
    """

    def __init__(self, path: Path, attrs: Mapping[str, Any]) -> None:
        self._path, self._attrs, self._begun = path, attrs, False
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Redrawn, (self._path, self._attrs)

    def _begin(self) -> None:
        path, resolved = self._path, self._attrs["scenario"]["resolved"]
        with at(f"{path}: its stream is not stored and has to be drawn again"):
            generator, steps, _ = building.stream(resolved["stream"], Path())
            self._source = GeneratorSource(generator, resolved["seed"], resolved["trials"], steps)
        self._every = CHUNK_STEPS * max(1, (self._source.steps or 0) // (CHUNK_STEPS * PLACES))
        self._places = {0: self._source.begin()}
        self._step, self._now = 0, deepcopy(self._places[0])
        self._blocks: OrderedDict[tuple[int, int], Mapping[str, np.ndarray]] = OrderedDict()
        self._begun = True

    def chunk(self, name: str, span: tuple[int, int], size: int) -> bytes:
        """Return the bytes of a chunk of `size` steps, of which it has those of `span`.

        Raises
        ------
        InputError
            If the stream's generator is not installed.
        RunError
            If it fails.
        """
        rows = self._read(name, span[0], span[1] + 1)
        return padded(rows, size, rows.dtype).tobytes()

    def _read(self, name: str, start: int, stop: int) -> np.ndarray:
        with self._lock:
            if not self._begun:
                self._begin()
            if (start, stop) not in self._blocks:
                self._seek(start)
                drawn = self._draw(stop)
                # Copied, for a generator may use its arrays again.
                self._blocks[start, stop] = {n: x.copy() for n, x in drawn.items()}
                if len(self._blocks) > BLOCKS:
                    self._blocks.popitem(last=False)
            return self._blocks[start, stop][name]

    def _seek(self, step: int) -> None:
        """Go on to a step, from the nearest place before it where the generator's state is kept."""
        place = max(p for p in self._places if p <= step)
        if not place <= self._step <= step:
            self._step, self._now = place, deepcopy(self._places[place])
        while self._step < step:
            self._draw(min(step, self._step - self._step % self._every + self._every))

    def _draw(self, stop: int) -> Mapping[str, np.ndarray]:
        (state, draws), first = self._now, self._step
        self._step = -1  # should it fail, nothing goes on from here
        state, arrays = self._source.draw(state, draws, range(first, stop))
        self._step, self._now = stop, (state, draws)
        if stop % self._every == 0 and stop not in self._places:
            self._places[stop] = deepcopy(self._now)
        return arrays

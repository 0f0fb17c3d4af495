"""Probes: a read of a whole set of queries, and what each answer decodes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.frames import Frame
from engine.measure import mapped, recalled
from engine.sources import Source
from engine.track import Track


@dataclass(frozen=True)
class Asked:
    """A set of queries and what would be right.

    Parameters
    ----------
    keys : array (query, trial, key)
        What is asked.
    wanted : array of int (query, trial)
        Entry of the book that is bound to it now; -1 where the binding was replaced since.
    book : array (trial, entry, value)
        Every value that an answer may decode to; NaN marks none.
    """

    keys: np.ndarray
    wanted: np.ndarray
    book: np.ndarray


class Written:
    """A consumer of frames that keeps every pair, to ask for all of them at the end.

    A probe over the whole stream holds the whole stream: memory is linear in its length.
    """

    def __init__(self, source: Source) -> None:
        self._facts = source.facts
        self._kept: dict[str, list[np.ndarray]] = {
            n: [] for n in ("keys", "values", "key_id", "value_id", "mask")
        }

    def __call__(self, frame: Frame) -> None:
        """Keep a frame's pairs."""
        for name, parts in self._kept.items():
            if name in frame.tokens.arrays:
                # A copy: a generator may use its arrays again for the next block.
                parts.append(np.array(frame.tokens.arrays[name]))

    @property
    def blocks(self) -> int:
        """How many frames were kept."""
        return len(self._kept["keys"])

    def asked(self, blocks: int | None = None) -> Asked:
        """Return every key written so far, or up to that many frames, and its binding by then."""
        kept = {n: np.concatenate(parts[:blocks]) for n, parts in self._kept.items() if parts}
        keys = kept["keys"]
        steps = np.broadcast_to(np.arange(len(keys))[:, None], keys.shape[:2])
        written = kept.get("mask", np.ones_like(steps, dtype=bool))
        latest = _latest(kept.get("key_id", steps), written)
        if "value_book" in self._facts and "value_id" in kept:
            book, entry = self._facts["value_book"], kept["value_id"]
        else:  # without a book, the values that were written are one, in the order of writing
            values = np.where(written[..., None], kept["values"], np.nan)
            book, entry = np.swapaxes(values, 0, 1), steps
        return Asked(keys, np.where(latest, entry, -1), book)


def _latest(key_id: np.ndarray, written: np.ndarray) -> np.ndarray:
    """Return where a step is the last to write its key."""
    latest = np.zeros(key_id.shape, dtype=bool)
    for trial in range(key_id.shape[1]):
        rows = np.flatnonzero(written[:, trial])[::-1]
        _, first = np.unique(key_id[rows, trial], return_index=True)
        latest[rows[first], trial] = True
    return latest


def ask(track: Track, asked: Asked) -> Mapping[str, tuple[tuple[str, ...], np.ndarray]]:
    """Return what a solver's present state answers: `read` and `recalled`, with their dims."""
    read = track.ask(asked.keys)
    hit = recalled(read, mapped(track.view, asked.book)[None], asked.wanted)
    return {"read": (("query", "trial", "value"), read), "recalled": (("query", "trial"), hit)}

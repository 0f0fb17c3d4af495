"""Keys whose values change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from engine.api import Array, Draws, Extent, Generator, Visits, hookimpl


class RebindingState(NamedTuple):
    """Books (trial, entry, ...), what each key holds (trial, entry), visits made and to come."""

    key_book: Array
    value_book: Array
    held: Array
    visits: Visits
    order: Array


@dataclass(frozen=True)
class Rebinding(Generator):
    """A few keys, visited again and again, each bound to one unit random value after another.

    Without `probability` every key takes `rebindings` values of its own in turn, all visits in one
    shuffled order, and the stream ends. With it the stream is endless: each step visits a uniformly
    random key; its first visit binds a random value of a common book, and each later one rebinds it
    to another with this probability, or else repeats the value it holds.

    Parameters
    ----------
    entries : int
        Number of distinct keys.
    key, value : int
        Lengths of the vectors.
    basis : {"orthonormal", "random"}
        Keys: rows of a Haar-random orthogonal matrix (at most `key` of them), or unit random.
    rebindings : int
        Values per key; unused with `probability`. The r-th visit of key i binds value
        i * rebindings + r.
    order : {"random", "rotation"}
        Of the visits: as above, or one key after another, each every `entries` steps.
    probability : float, optional
        Chance in [0, 1] that a return to a key rebinds it.
    values : int, optional
        Size of the value book, with `probability` only. Default: 4 per key.

    Notes
    -----
    Exposes per step `key_id`, `value_id`, `binding` (the value that the key held before, -1: none),
    `age` (steps since the key was last written, -1: never), `rebind` (bool: this write replaces a
    different value); and `key_book` (trial, entry, key), `value_book` (trial, value_entry, value).
    """

    entries: int = 8
    key: int = 64
    value: int = 64
    basis: Literal["orthonormal", "random"] = "orthonormal"
    rebindings: int = 4
    order: Literal["random", "rotation"] = "random"
    probability: float | None = None
    values: int | None = None

    def __post_init__(self) -> None:
        for name in ("entries", "key", "value", "rebindings"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.basis == "orthonormal" and self.entries > self.key:
            raise ValueError(
                f"entries = {self.entries} must be at most key = {self.key}: no more vectors are "
                'orthonormal in that many dimensions; raise key, or set basis = "random"'
            )
        if self.probability is not None and not 0 <= self.probability <= 1:
            raise ValueError(f"probability = {self.probability} must be in [0, 1]")
        if self.values is not None and self.probability is None:
            raise ValueError(
                f"values = {self.values} needs probability: without it the value book has "
                f"entries * rebindings = {self.entries * self.rebindings} values"
            )
        if self.values is not None and self.values < 2:
            raise ValueError(f"values = {self.values} must be at least 2: rebinding needs another")

    @property
    def dims(self) -> Mapping[str, str]:
        """Dims of the two books."""
        return {"key_book": "entry key", "value_book": "value_entry value"}

    def extent(self) -> Extent:
        """Return the number of visits, or no limit with `probability`."""
        if self.probability is not None:
            return Extent()
        why = f"each of {self.entries} keys takes {self.rebindings} values, once each"
        return Extent(steps=self.entries * self.rebindings, why=why)

    def facts(self, state: RebindingState) -> dict[str, Array]:
        """Return the two books."""
        return {"key_book": state.key_book, "value_book": state.value_book}

    def start(self, draws: Draws, steps: int | None) -> RebindingState:
        """Draw the books and, where it is drawn at once, the order of all visits."""
        if self.basis == "orthonormal":
            key_book = draws("keys").orthogonal(1, self.key)[0][:, : self.entries]
        else:
            key_book = draws("keys").vectors("unit", 1, self.entries, self.key)[0]
        value_book = draws("values").vectors("unit", 1, self._book, self.value)[0]
        order = np.empty((0, draws.trials), dtype=np.int64)
        if self.probability is None and self.order == "random":
            order = draws("visits").permutation(self._book) // self.rebindings
        held = np.full((draws.trials, self.entries), -1, dtype=np.int64)
        visits = Visits(draws.trials, self.entries)
        return RebindingState(np.ascontiguousarray(key_book), value_book, held, visits, order)

    def draw(
        self, state: RebindingState, draws: Draws, steps: range
    ) -> tuple[RebindingState, dict[str, Array]]:
        """Visit the next keys."""
        n, trial, held = len(steps), np.arange(draws.trials), state.held.copy()
        if self.order == "rotation":
            key_id = np.arange(steps.start, steps.stop)[:, None] % self.entries
            key_id = np.repeat(key_id, draws.trials, axis=1)
        elif self.probability is None:
            key_id = state.order[steps.start : steps.stop].copy()
        else:
            key_id = draws("visits").integers(self.entries, n)
        if self.probability is None:
            first, jump = key_id * self.rebindings, np.ones_like(key_id)
        else:
            first = draws("first").integers(self._book, n)
            # A jump of 1 .. book-1 round the book reaches every other value with equal chance.
            jump = 1 + draws("other").integers(self._book - 1, n)
            jump[draws("rebind").uniform(n) >= self.probability] = 0
        value_id, binding = np.empty_like(key_id), np.empty_like(key_id)
        for i, key in enumerate(key_id):
            old = binding[i] = held[trial, key]
            value_id[i] = np.where(old < 0, first[i], (old + jump[i]) % self._book)
            held[trial, key] = value_id[i]
        return state._replace(held=held), {
            "keys": state.key_book[trial, key_id],
            "values": state.value_book[trial, value_id],
            "key_id": key_id,
            "value_id": value_id,
            "binding": binding,
            "age": state.visits.ages(key_id, steps),
            "rebind": (binding >= 0) & (binding != value_id),
        }

    @property
    def _book(self) -> int:
        if self.probability is None:
            return self.entries * self.rebindings
        return 4 * self.entries if self.values is None else self.values


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return keys whose values change."""
    return {"rebinding": Rebinding}

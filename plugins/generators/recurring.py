"""Facts that come back, some far more often than others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from engine.api import Array, Draws, Generator, Visits, hookimpl

Kind = Literal["unit", "gaussian", "sign"]


class RecurringState(NamedTuple):
    """Keys and values of the facts, (trial, entry, ...), and when each was visited."""

    key_book: Array
    value_book: Array
    visits: Visits


@dataclass(frozen=True)
class Recurring(Generator):
    """A fixed set of facts; each step writes one again, fact i with chance ~ (i + 1)^-exponent.

    Parameters
    ----------
    entries : int
        Number of facts.
    exponent : float
        Of Zipf's law, at least 0; 0 visits all facts alike.
    key, value : int
        Lengths of the vectors.
    keys, values : {"unit", "gaussian", "sign"}
        Law of each vector x in R^d: uniform on the sphere, entries N(0, 1/d), or +-1/sqrt(d).

    Notes
    -----
    Exposes per step `key_id` and `value_id` (the fact), `age` (steps since it was last written, -1:
    never) and `binding` (the value that its key held before, -1: none); and `key_book` (trial,
    entry, key), `value_book` (trial, entry, value).
    """

    entries: int = 64
    exponent: float = 1.0
    key: int = 16
    value: int = 16
    keys: Kind = "unit"
    values: Kind = "unit"

    def __post_init__(self) -> None:
        for name in ("entries", "key", "value"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if not 0 <= self.exponent < math.inf:
            raise ValueError(f"exponent = {self.exponent} must be finite and at least 0")

    @property
    def dims(self) -> Mapping[str, str]:
        """Dims of the two books."""
        return {"key_book": "entry key", "value_book": "entry value"}

    def facts(self, state: RecurringState) -> dict[str, Array]:
        """Return the two books."""
        return {"key_book": state.key_book, "value_book": state.value_book}

    def start(self, draws: Draws, steps: int | None) -> RecurringState:
        """Draw the facts."""
        return RecurringState(
            draws("keys").vectors(self.keys, 1, self.entries, self.key)[0],
            draws("values").vectors(self.values, 1, self.entries, self.value)[0],
            Visits(draws.trials, self.entries),
        )

    def draw(
        self, state: RecurringState, draws: Draws, steps: range
    ) -> tuple[RecurringState, dict[str, Array]]:
        """Visit the next facts."""
        trial = np.arange(draws.trials)
        fact = draws("visits").zipf(self.exponent, self.entries, len(steps))
        age = state.visits.ages(fact, steps)
        return state, {
            "keys": state.key_book[trial, fact],
            "values": state.value_book[trial, fact],
            "key_id": fact,
            "value_id": fact.copy(),
            "age": age,
            "binding": np.where(age < 0, -1, fact),
        }


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return facts that come back."""
    return {"recurring": Recurring}

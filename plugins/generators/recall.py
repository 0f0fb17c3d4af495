"""Pairs to remember, then questions about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from engine.api import Array, Draws, Extent, Generator, hookimpl

Kind = Literal["unit", "gaussian", "sign"]


class RecallState(NamedTuple):
    """Keys and values of the pairs, (trial, entry, ...)."""

    key_book: Array
    value_book: Array


@dataclass(frozen=True)
class Recall(Generator):
    """Multi-query associative recall: pairs are written one by one, then their keys are asked.

    The first `pairs` steps write; the mask is true there. Each later step writes nothing (mask
    false) and asks the pair of recency rank r = 1 .. pairs, 1 being the last written, with
    chance ~ r^-exponent, independently of what was asked before.

    Parameters
    ----------
    pairs : int
        Number of pairs written.
    queries : int
        Number of questions; the stream ends after them.
    exponent : float
        Of the power law of ranks, at least 0; 0 asks all pairs alike.
    key, value : int
        Lengths of the vectors.
    keys, values : {"unit", "gaussian", "sign"}
        Law of each vector x in R^d: uniform on the sphere, entries N(0, 1/d), or +-1/sqrt(d).

    Notes
    -----
    Draws `queries` at every step: the key asked, or at a write the key just written. At a question
    `keys` and `values` hold the pair asked for: what would be right. Exposes per step `key_id` and
    `value_id` (that pair) and `gap` (steps since it was written; -1 at a write); and `key_book`
    (trial, entry, key), `value_book` (trial, entry, value).

    After MQAR (Arora et al. 2023, arXiv:2312.04927), which has tokens for vectors and asks every
    key once, at a place drawn by a power law.
    """

    pairs: int = 16
    queries: int = 48
    exponent: float = 1.0
    key: int = 16
    value: int = 16
    keys: Kind = "unit"
    values: Kind = "unit"

    def __post_init__(self) -> None:
        for name, least in (("pairs", 1), ("queries", 0), ("key", 1), ("value", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least {least}")
        if not 0 <= self.exponent < math.inf:
            raise ValueError(f"exponent = {self.exponent} must be finite and at least 0")

    @property
    def dims(self) -> Mapping[str, str]:
        """Dims of the two books."""
        return {"key_book": "entry key", "value_book": "entry value"}

    def extent(self) -> Extent:
        """Return the writes and the questions."""
        why = f"{self.pairs} pairs are written and {self.queries} questions asked"
        return Extent(steps=self.pairs + self.queries, why=why)

    def facts(self, state: RecallState) -> dict[str, Array]:
        """Return the two books."""
        return state._asdict()

    def start(self, draws: Draws, steps: int | None) -> RecallState:
        """Draw the pairs."""
        return RecallState(
            draws("keys").vectors(self.keys, 1, self.pairs, self.key)[0],
            draws("values").vectors(self.values, 1, self.pairs, self.value)[0],
        )

    def draw(
        self, state: RecallState, draws: Draws, steps: range
    ) -> tuple[RecallState, dict[str, Array]]:
        """Write the next pairs, or ask."""
        trial, step = np.arange(draws.trials), np.arange(steps.start, steps.stop)
        pair = np.repeat(step[:, None], draws.trials, axis=1)
        write = pair < self.pairs
        asks = step >= self.pairs
        rank = draws("ranks").zipf(self.exponent, self.pairs, int(asks.sum()))
        pair[asks] = self.pairs - 1 - rank
        keys, values = state.key_book[trial, pair], state.value_book[trial, pair]
        return state, {
            "keys": keys,
            "values": values,
            "queries": keys.copy(),
            "mask": write,
            "key_id": pair,
            "value_id": pair.copy(),
            # Pair i is written at step i.
            "gap": np.where(write, -1, step[:, None] - pair),
        }


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return multi-query associative recall."""
    return {"recall": Recall}

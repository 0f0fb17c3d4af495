"""Pairs to remember, then one question about each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from engine.api import Array, Draws, Extent, Generator, hookimpl

Kind = Literal["unit", "gaussian", "sign"]


class RecallState(NamedTuple):
    """The pairs, (trial, entry, ...), and which of them every slot asks for (-1: none)."""

    key_book: Array
    value_book: Array
    asks: Array


@dataclass(frozen=True)
class Recall(Generator):
    """Multi-query associative recall: pairs are written one by one, then each is asked once.

    The first `pairs` steps write; the mask is true there. The `queries` slots that follow write
    nothing. Each pair is asked at one of them, drawn without replacement with chance ~
    (slot + 1)^(exponent - 1), slot = 0, 1, ...: the first pair's slot has exactly that law, a later
    pair's leaves out the slots taken before it. The other slots ask nothing.

    Parameters
    ----------
    pairs : int
        Number of pairs written.
    queries : int
        Number of slots, at least `pairs`; the stream ends after them.
    exponent : float
        Of the power law: 1 makes all slots alike, less favours the early ones.
    key, value : int
        Lengths of the vectors.
    keys, values : {"unit", "gaussian", "sign"}
        Law of each vector x in R^d: uniform on the sphere, entries N(0, 1/d), or +-1/sqrt(d).

    Notes
    -----
    Draws `queries` at every step: the key asked, at a write the key just written, and at a slot
    that asks nothing a random unit vector. At a question `keys` and `values` hold the pair asked
    for: what would be right; where nothing is asked they are the query and zeros. Exposes per step
    `key_id` and `value_id` (the pair written or asked; -1 for none), `asked`, and `gap` (steps
    since the pair asked was written; -1 where none is); and `key_book` (trial, entry, key),
    `value_book` (trial, entry, value).

    After MQAR (Arora et al. 2023, arXiv:2312.04927), which has tokens for vectors, two to a pair,
    and counts slots by twos.
    """

    pairs: int = 16
    queries: int = 48
    exponent: float = 0.01
    key: int = 16
    value: int = 16
    keys: Kind = "unit"
    values: Kind = "unit"

    def __post_init__(self) -> None:
        for name in ("pairs", "key", "value"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.queries < self.pairs:
            raise ValueError(
                f"queries = {self.queries} must be at least pairs = {self.pairs}: every pair is "
                "asked once"
            )
        if not math.isfinite(self.exponent):
            raise ValueError(f"exponent = {self.exponent} must be finite")

    @property
    def dims(self) -> Mapping[str, str]:
        """Dims of the two books."""
        return {"key_book": "entry key", "value_book": "entry value"}

    def extent(self) -> Extent:
        """Return the writes and the slots."""
        why = f"{self.pairs} pairs are written and {self.queries} slots follow"
        return Extent(steps=self.pairs + self.queries, why=why)

    def facts(self, state: RecallState) -> dict[str, Array]:
        """Return the two books."""
        return {"key_book": state.key_book, "value_book": state.value_book}

    def start(self, draws: Draws, steps: int | None) -> RecallState:
        """Draw the pairs, and the slots at which they are asked."""
        uniform = draws("slots").uniform(1, self.queries)[0]
        # The largest of log weight + Gumbel noise is a draw by weight, the next one a draw from
        # what is left, and so on (Efraimidis and Spirakis 2006). -log1p(-u), not -log(u): u < 1.
        with np.errstate(divide="ignore"):
            gumbel = -np.log(-np.log1p(-uniform))
        score = (self.exponent - 1.0) * np.log(np.arange(1.0, self.queries + 1)) + gumbel
        slots = np.argsort(-score, axis=1, kind="stable")[:, : self.pairs]
        asks = np.full((draws.trials, self.queries), -1)
        np.put_along_axis(asks, slots, np.arange(self.pairs)[None, :], axis=1)
        return RecallState(
            draws("keys").vectors(self.keys, 1, self.pairs, self.key)[0],
            draws("values").vectors(self.values, 1, self.pairs, self.value)[0],
            asks,
        )

    def draw(
        self, state: RecallState, draws: Draws, steps: range
    ) -> tuple[RecallState, dict[str, Array]]:
        """Write the next pairs, or ask."""
        trial, step = np.arange(draws.trials), np.arange(steps.start, steps.stop)[:, None]
        write = np.broadcast_to(step < self.pairs, (len(steps), draws.trials))
        slot = np.maximum(step - self.pairs, 0)
        pair = np.where(write, step, state.asks[trial, slot])
        asked = ~write & (pair >= 0)
        keys, values = state.key_book[trial, pair], state.value_book[trial, pair]
        nothing = (pair < 0)[..., None]
        slots = int((step >= self.pairs).sum())
        filler = np.zeros_like(keys)
        filler[len(steps) - slots :] = draws("fillers").vectors("unit", slots, self.key)
        keys = np.where(nothing, filler, keys)
        return state, {
            "keys": keys,
            "values": np.where(nothing, 0.0, values),
            "queries": keys.copy(),
            "mask": write.copy(),
            "key_id": pair,
            "value_id": pair.copy(),
            "asked": asked,
            # Pair i is written at step i.
            "gap": np.where(asked, step - pair, -1),
        }


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return multi-query associative recall."""
    return {"recall": Recall}

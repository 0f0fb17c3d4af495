"""Independent random pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from engine.api import Array, Draws, Generator, Visits, hookimpl

Kind = Literal["unit", "gaussian", "sign"]


class RandomState(NamedTuple):
    """The pool (trial, entry, ...), its visits, and priority bits (step, trial) drawn ahead.

    Each is None where the options need none.
    """

    key_book: Array
    value_book: Array
    visits: Visits | None
    flags: Array


@dataclass(frozen=True)
class Random(Generator):
    """Independent keys and values: a new pair at every step, or visits to a fixed pool of pairs.

    Parameters
    ----------
    key, value : int
        Lengths of the vectors.
    keys, values : {"unit", "gaussian", "sign"}
        Law of each vector x in R^d: uniform on the sphere, entries N(0, 1/d), or entries
        +-1/sqrt(d). E|x|^2 = 1 and E[x x^T] = I/d in all three.
    pairs : int, optional
        Size of a pool drawn at the start; each step visits one of its pairs uniformly at random.
        Default: every step is a new pair.
    priority : float
        Chance of the priority bit, in [0, 1].
    exact : bool
        False: an independent bit per step. True: exactly round(priority * steps) bits at uniformly
        random positions of the whole stream: the one thing here that depends on its length.

    Notes
    -----
    Exposes per step `key_id` and `value_id` (the pair; the step number if every pair is new), `age`
    (steps since that key was last written, -1: never), `binding` (the value that the key held
    before, -1: none) and `priority` (bool). A pool is exposed as `key_book` (trial, entry, key)
    and `value_book` (trial, entry, value).
    """

    key: int = 16
    value: int = 16
    keys: Kind = "unit"
    values: Kind = "unit"
    pairs: int | None = None
    priority: float = 0.0
    exact: bool = False

    def __post_init__(self) -> None:
        for name in ("key", "value", "pairs"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name} = {size} must be at least 1")
        if not 0 <= self.priority <= 1:
            raise ValueError(f"priority = {self.priority} must be in [0, 1]: it is a rate")

    @property
    def dims(self) -> Mapping[str, str]:
        """Dims of the pool, where there is one."""
        return {"key_book": "entry key", "value_book": "entry value"} if self.pairs else {}

    def facts(self, state: RandomState) -> dict[str, Array]:
        """Return the pool, where there is one."""
        if state.visits is None:
            return {}
        return {"key_book": state.key_book, "value_book": state.value_book}

    def start(self, draws: Draws, steps: int | None) -> RandomState:
        """Draw the pool and the exact priority bits; ValueError if these lack a length."""
        key_book = value_book = visits = flags = None
        if self.pairs is not None:
            key_book = draws("keys").vectors(self.keys, 1, self.pairs, self.key)[0]
            value_book = draws("values").vectors(self.values, 1, self.pairs, self.value)[0]
            visits = Visits(draws.trials, self.pairs)
        if self.exact:
            if steps is None:
                raise ValueError(
                    "exact = True needs a stream of known length: give a number of steps, "
                    "or set exact = False for an independent bit per step"
                )
            flags = draws("priority").permutation(steps) < round(self.priority * steps)
        return RandomState(key_book, value_book, visits, flags)

    def draw(
        self, state: RandomState, draws: Draws, steps: range
    ) -> tuple[RandomState, dict[str, Array]]:
        """Draw pairs, or visits to the pool."""
        n = len(steps)
        if self.pairs is None or state.visits is None:
            keys = draws("keys").vectors(self.keys, n, self.key)
            values = draws("values").vectors(self.values, n, self.value)
            pair = np.repeat(np.arange(steps.start, steps.stop)[:, None], draws.trials, axis=1)
            age = np.full_like(pair, -1)
        else:
            trial, pair = np.arange(draws.trials), draws("visits").integers(self.pairs, n)
            keys, values = state.key_book[trial, pair], state.value_book[trial, pair]
            age = state.visits.ages(pair, steps)
        if state.flags is None:
            priority = draws("priority").uniform(n) < self.priority
        else:
            priority = state.flags[steps.start : steps.stop]
        return state, {
            "keys": keys,
            "values": values,
            "key_id": pair,
            "value_id": pair.copy(),
            "age": age,
            "binding": np.where(age < 0, -1, pair),
            "priority": priority,
        }


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return independent random pairs."""
    return {"random": Random}

"""One pair to remember among many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from engine.api import Array, Draws, Generator, hookimpl

Kind = Literal["unit", "gaussian", "sign"]


class NeedleState(NamedTuple):
    """The pair to remember, each (trial, ...)."""

    needle_key: Array
    needle_value: Array


@dataclass(frozen=True)
class Needle(Generator):
    """One pair is written once, other random pairs at all other steps, and every step asks for it.

    The output of a step thus says how much of the needle is left after that write; before it is
    written there is nothing right to answer.

    Parameters
    ----------
    position : int
        Step that writes the needle, at least 0.
    key, value : int
        Lengths of the vectors.
    keys, values : {"unit", "gaussian", "sign"}
        Law of the distractors' vectors x in R^d: uniform on the sphere, entries N(0, 1/d), or
        +-1/sqrt(d). The needle's are unit vectors.

    Notes
    -----
    Draws `queries`, the needle's key at every step. Exposes per step `is_needle` (bool) and `age`
    (steps since the needle was written: 0 at its own step, -1 before); and `needle_key` (trial,
    key), `needle_value` (trial, value).
    """

    position: int = 0
    key: int = 16
    value: int = 16
    keys: Kind = "unit"
    values: Kind = "unit"

    def __post_init__(self) -> None:
        for name, least in (("position", 0), ("key", 1), ("value", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least {least}")

    @property
    def dims(self) -> Mapping[str, str]:
        """Dims of the needle."""
        return {"needle_key": "key", "needle_value": "value"}

    def facts(self, state: NeedleState) -> dict[str, Array]:
        """Return the needle."""
        return state._asdict()

    def start(self, draws: Draws, steps: int | None) -> NeedleState:
        """Draw the needle."""
        return NeedleState(
            draws("needle key").vectors("unit", 1, self.key)[0],
            draws("needle value").vectors("unit", 1, self.value)[0],
        )

    def draw(
        self, state: NeedleState, draws: Draws, steps: range
    ) -> tuple[NeedleState, dict[str, Array]]:
        """Draw distractors, and put the needle in its place."""
        n = len(steps)
        keys = draws("keys").vectors(self.keys, n, self.key)
        values = draws("values").vectors(self.values, n, self.value)
        step = np.repeat(np.arange(steps.start, steps.stop)[:, None], draws.trials, axis=1)
        here = step == self.position
        return state, {
            "keys": np.where(here[..., None], state.needle_key, keys),
            "values": np.where(here[..., None], state.needle_value, values),
            "queries": np.repeat(state.needle_key[None], n, axis=0),
            "is_needle": here,
            "age": np.where(step < self.position, -1, step - self.position),
        }


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return one pair among distractors."""
    return {"needle": Needle}

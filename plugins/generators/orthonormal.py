"""Orthonormal keys: nothing interferes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.api import Array, Draws, Extent, Generator, hookimpl


@dataclass(frozen=True)
class Orthonormal(Generator):
    """Keys are the rows of a Haar-random orthogonal matrix, one per trial; values are random.

    The matrix always has its full size, so the first keys do not depend on how many are used.

    Parameters
    ----------
    key, value : int
        Lengths of the vectors. A stream has at most `key` steps.
    values : {"unit", "gaussian", "sign"}
        Law of each value x in R^d: uniform on the sphere, entries N(0, 1/d), or +-1/sqrt(d).

    Notes
    -----
    Exposes `key_id` and `value_id` (the step), `age` and `binding` (both -1: nothing returns).

    The Q of a Gaussian matrix's QR is Haar only once R's diagonal is made positive (Mezzadri 2007,
    arXiv:math-ph/0609050).
    """

    key: int = 16
    value: int = 16
    values: Literal["unit", "gaussian", "sign"] = "unit"

    def __post_init__(self) -> None:
        for name in ("key", "value"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")

    def extent(self) -> Extent:
        """Return `key` steps."""
        why = f"there are only {self.key} orthonormal vectors in {self.key} dimensions"
        return Extent(steps=self.key, why=why)

    def start(self, draws: Draws, steps: int | None) -> Array:
        """Return the matrices (trial, key, key)."""
        return draws("keys").orthogonal(1, self.key)[0]

    def draw(self, state: Array, draws: Draws, steps: range) -> tuple[Array, dict[str, Array]]:
        """Return the next rows, and new values."""
        values = draws("values").vectors(self.values, len(steps), self.value)
        pair = np.repeat(np.arange(steps.start, steps.stop)[:, None], draws.trials, axis=1)
        return state, {
            "keys": np.ascontiguousarray(state[:, steps.start : steps.stop].swapaxes(0, 1)),
            "values": values,
            "key_id": pair,
            "value_id": pair.copy(),
            "age": np.full_like(pair, -1),
            "binding": np.full_like(pair, -1),
        }


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return orthonormal keys."""
    return {"orthonormal": Orthonormal}

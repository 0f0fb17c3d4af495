"""The stream new_generator: a fixed linear map, seen through noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.api import Array, Draws, Generator, hookimpl


@dataclass(frozen=True)
class NewGenerator(Generator):
    """v = W^T k + noise n: unit random keys k, normal n, and a map W that stays.

    Parameters
    ----------
    key, value : int
        Lengths of the vectors.
    noise : float
        Standard deviation of the noise, at least 0.

    Notes
    -----
    Exposes `target_map` (step, trial, key, value), which is W: |S - W| can then be measured.
    """

    key: int = 16
    value: int = 4
    noise: float = 0.1

    def __post_init__(self) -> None:
        for name in ("key", "value"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if not 0 <= self.noise < np.inf:
            raise ValueError(f"noise = {self.noise} must be finite and at least 0")

    def start(self, draws: Draws, steps: int | None) -> Array:
        """Return W (trial, key, value), drawn once."""
        return draws("map").normal(1, self.key, self.value)[0] / np.sqrt(self.key)

    def draw(self, state: Array, draws: Draws, steps: range) -> tuple[Array, dict[str, Array]]:
        """Draw the next pairs; the channels of `draws` go on where they were."""
        n = len(steps)
        keys = draws("keys").vectors("unit", n, self.key)
        noise = self.noise * draws("noise").normal(n, self.value)
        # One matrix product per pair: its bits do not depend on how many steps are drawn at once.
        values = (keys[..., None, :] @ state)[..., 0, :] + noise
        target = np.broadcast_to(state, (n, *state.shape))
        return state, {"keys": keys, "values": values, "target_map": target}


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return the stream by its name."""
    return {"new_generator": NewGenerator}

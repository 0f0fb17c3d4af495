"""Noisy samples of a curve: a target for feature maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.api import Array, Draws, Generator, hookimpl

# math, not NumPy, whose vector loops need not agree with their remainders to the bit.
CURVES: dict[str, Callable[[float, float], float]] = {
    "sine": lambda x, z: 2 * math.sin(x) + abs(x) ** 0.8,
    "square": lambda x, z: x * x,
    "step": lambda x, z: float(z >= 0),
    "runge": lambda x, z: 1 / (1 + 25 * z * z),
}
"""Curves of x, and of z, which goes from -1 to 1 as x goes from `low` to `high`."""


@dataclass(frozen=True)
class Function(Generator):
    """v = f(x) + noise for a scalar key x, uniform in [low, high).

    Parameters
    ----------
    function : {"sine", "square", "step", "runge"}
        f(x): 2 sin(x) + |x|^0.8 (Dive into Deep Learning, section 11.2); x^2; 0 below the middle of
        the range and 1 from there on; 1 / (1 + 25 z^2), where z goes from -1 to 1 over the range.
    low, high : float
        Range of x.
    noise : float
        Standard deviation of the noise, at least 0.
    order : {"random", "sorted"}
        "sorted": each run of `period` steps has the same x as in random order, ascending.
    period : int
        Steps that are sorted together; unused in random order.

    Notes
    -----
    Keys and values have length 1. Exposes `truth` (step, trial, value), which is f(x).
    """

    function: Literal["sine", "square", "step", "runge"] = "sine"
    low: float = 0.0
    high: float = 5.0
    noise: float = 0.5
    order: Literal["random", "sorted"] = "random"
    period: int = 50

    def __post_init__(self) -> None:
        if self.function not in CURVES:
            raise ValueError(f"function = {self.function!r} must be one of {', '.join(CURVES)}")
        if not (math.isfinite(self.low) and self.low < self.high < math.inf):
            raise ValueError(
                f"low = {self.low} and high = {self.high} must be finite and in that order"
            )
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise = {self.noise} must be finite and at least 0")
        if self.period < 1:
            raise ValueError(f"period = {self.period} must be at least 1")

    @property
    def dims(self) -> Mapping[str, str]:
        """Dims of the noise-free target."""
        return {"truth": "value"}

    def start(self, draws: Draws, steps: int | None) -> Array:
        """Return the sorted run at hand, (step, trial): none yet."""
        return np.empty((0, draws.trials))

    def draw(self, state: Array, draws: Draws, steps: range) -> tuple[Array, dict[str, Array]]:
        """Draw the next points of the curve."""
        n = len(steps)
        if self.order == "random":
            place = draws("place").uniform(n)
        else:
            place = np.empty((n, draws.trials))
            for i, t in enumerate(steps):
                if t % self.period == 0:
                    state = np.sort(draws("place").uniform(self.period), axis=0)
                place[i] = state[t % self.period]
        x = (self.low + (self.high - self.low) * place)[..., None]
        curve = np.vectorize(CURVES[self.function], otypes=[np.float64])
        truth = curve(x, 2 * place[..., None] - 1)
        noise = self.noise * draws("noise").normal(n, 1)
        return state, {"keys": x, "values": truth + noise, "truth": truth}


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return noisy samples of a curve."""
    return {"function": Function}

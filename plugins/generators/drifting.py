"""A linear map that moves while it is observed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from engine import ops
from engine.api import Array, Draws, Generator, hookimpl


class DriftingState(NamedTuple):
    """The columns of W and, for a rotation, the directions they turn to: (trial, value, key)."""

    w: Array
    u: Array


@dataclass(frozen=True)
class Drifting(Generator):
    """v_t = W_t^T k_t + noise, where the columns of W_t are unit vectors in motion.

    Each column w starts uniform on the sphere and moves independently of the others. Step 0 uses
    the initial map; the first move lies between steps 0 and 1.

    Parameters
    ----------
    key, value : int
        Lengths of the vectors; W is (key, value).
    keys : {"unit", "gaussian", "sign"}
        Law of each key x in R^d: uniform on the sphere, entries N(0, 1/d), or +-1/sqrt(d).
    motion : {"walk", "rotation", "switch"}
        "walk": w <- (w + step g) / |w + step g|, g ~ N(0, I). "rotation": w_t = cos(angle t) w_0 +
        sin(angle t) u with u a random unit vector normal to w_0; needs key >= 2. "switch": a new
        independent map every `period` steps.
    step : float
        Size of the walk's step per dimension, per step.
    angle : float
        Radians per step of the rotation; its period is 2 pi / angle steps.
    period : int
        Steps between switches.
    noise : float
        Standard deviation of the noise of each entry of a value.

    Notes
    -----
    Exposes `target_map` (step, trial, key, value), the map that made the value of the same step
    and, for a switch, `switch` (bool): this step is the first of a new map.
    """

    key: int = 8
    value: int = 1
    keys: Literal["unit", "gaussian", "sign"] = "gaussian"
    motion: Literal["walk", "rotation", "switch"] = "walk"
    step: float = 0.03
    angle: float = 0.02
    period: int = 500
    noise: float = 0.1

    def __post_init__(self) -> None:
        for name in ("key", "value", "period"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        for name in ("step", "noise"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)} must be finite and at least 0")
        if not math.isfinite(self.angle):
            raise ValueError(f"angle = {self.angle} must be finite: it is in radians per step")
        if self.motion == "rotation" and self.key < 2:
            raise ValueError(f"key = {self.key} must be at least 2: a rotation needs a plane")

    def start(self, draws: Draws, steps: int | None) -> DriftingState:
        """Draw the initial map."""
        w = self._columns(draws, "map")
        u = self._columns(draws, "plane")
        # Twice: one pass leaves a part along w where u happens to lie close to it.
        u = ops.unit(u - ops.dot(u, w) * w)
        u = ops.unit(u - ops.dot(u, w) * w)
        return DriftingState(w, u)

    def draw(
        self, state: DriftingState, draws: Draws, steps: range
    ) -> tuple[DriftingState, dict[str, Array]]:
        """Draw keys, move the map, and observe it."""
        n = len(steps)
        keys = draws("keys").vectors(self.keys, n, self.key)
        move = {"walk": self._walk, "rotation": self._rotate, "switch": self._switch}[self.motion]
        columns = np.empty((n, *state.w.shape))
        state = move(state, draws, steps, columns)
        maps = np.ascontiguousarray(columns.swapaxes(-2, -1))
        noise = self.noise * draws("noise").normal(n, self.value)
        out = {"keys": keys, "values": ops.vecmat(keys, maps) + noise, "target_map": maps}
        if self.motion == "switch":
            new = [self._switches(t) for t in steps]
            out["switch"] = np.repeat(np.array(new, dtype=bool)[:, None], draws.trials, axis=1)
        return state, out

    def _columns(self, draws: Draws, channel: str) -> Array:
        return draws(channel).vectors("unit", 1, self.value, self.key)[0]

    def _walk(self, s: DriftingState, draws: Draws, steps: range, out: Array) -> DriftingState:
        w = s.w
        for i, g in enumerate(draws("walk").normal(len(steps), self.value, self.key)):
            out[i] = w
            w = ops.unit(w + self.step * g)
        return s._replace(w=w)

    def _rotate(self, s: DriftingState, draws: Draws, steps: range, out: Array) -> DriftingState:
        for i, t in enumerate(steps):
            # math, not NumPy, whose vector loops need not agree with their remainders to the bit.
            out[i] = math.cos(self.angle * t) * s.w + math.sin(self.angle * t) * s.u
        return s

    def _switch(self, s: DriftingState, draws: Draws, steps: range, out: Array) -> DriftingState:
        for i, t in enumerate(steps):
            if self._switches(t):
                s = s._replace(w=self._columns(draws, "map"))
            out[i] = s.w
        return s

    def _switches(self, t: int) -> bool:
        return t > 0 and t % self.period == 0


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return the moving linear map."""
    return {"drifting": Drifting}

"""Keys that resemble each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from engine import ops
from engine.api import Array, Draws, Generator, hookimpl


class CorrelatedState(NamedTuple):
    """The direction u (trial, key), or the F of k = F^T g (trial, key, key); the other is None."""

    u: Array
    factor: Array


@dataclass(frozen=True)
class Correlated(Generator):
    """Random values under keys with a common direction, or with a spectrum; E|k|^2 = 1.

    By coherence c: k = sqrt(c) u + sqrt(1 - c) g, where u is a random unit vector of the trial and
    g ~ N(0, I/d) a new one of the step, so that E[k_i.k_j] = c. By condition number: k ~ N(0, C),
    where C has a Haar-random basis and eigenvalues log-spaced between l and l / condition that add
    up to 1. At most one of the two is given.

    Parameters
    ----------
    coherence : float, optional
        c, in [0, 1). Default: 0.5, without `condition`.
    condition : float, optional
        Largest over smallest eigenvalue of C, at least 1.
    unit : bool
        Unit norm for every key, with coherence only: g is uniform on the unit sphere normal to u,
        and E[k_i.k_j] = c as before; at c = 0 no key has a part along u.
    key, value : int
        Lengths of the vectors; `key` at least 2.
    values : {"unit", "gaussian", "sign"}
        Law of each value x in R^d: uniform on the sphere, entries N(0, 1/d), or +-1/sqrt(d).

    Notes
    -----
    Exposes `covariance` (trial, key, key_2), which is E[k k^T] about zero, as a regression sees it,
    and `mean` (trial, key), which is E[k]: sqrt(c) u, or zero. With coherence the condition number
    of E[k k^T] is 1 + d c / (1 - c), or with `unit` (d - 1) c / (1 - c) (or its inverse).
    """

    coherence: float | None = None
    condition: float | None = None
    unit: bool = False
    key: int = 16
    value: int = 16
    values: Literal["unit", "gaussian", "sign"] = "unit"

    def __post_init__(self) -> None:
        for name, least in (("key", 2), ("value", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least {least}")
        if self.coherence is not None and not 0 <= self.coherence < 1:
            raise ValueError(f"coherence = {self.coherence} must be in [0, 1)")
        if self.condition is not None:
            if not 1 <= self.condition < math.inf:
                raise ValueError(f"condition = {self.condition} must be finite and at least 1")
            if self.coherence is not None:
                raise ValueError(
                    f"condition = {self.condition} and coherence = {self.coherence}: give one"
                )
            if self.unit:
                raise ValueError("unit = True needs coherence: a spectrum is not kept by unit keys")

    @property
    def dims(self) -> Mapping[str, str]:
        """Dims of the two moments."""
        return {"covariance": "key key_2", "mean": "key"}

    def facts(self, state: CorrelatedState) -> dict[str, Array]:
        """Return the two moments."""
        if self.condition is not None:
            covariance = state.factor.mT @ state.factor
            return {"covariance": covariance, "mean": np.zeros_like(covariance[..., 0])}
        c, along = self._c, ops.outer(state.u, state.u)
        # What is random about a unit key lies normal to u.
        lost = int(self.unit)
        free = (np.eye(self.key) - lost * along) / (self.key - lost)
        return {"covariance": c * along + (1 - c) * free, "mean": math.sqrt(c) * state.u}

    def start(self, draws: Draws, steps: int | None) -> CorrelatedState:
        """Draw the common direction, or the basis of the spectrum."""
        if self.condition is None:
            return CorrelatedState(draws("direction").vectors("unit", 1, self.key)[0], None)
        spectrum = np.geomspace(1.0, 1.0 / self.condition, self.key)
        basis = draws("basis").orthogonal(1, self.key)[0]
        return CorrelatedState(None, np.sqrt(spectrum / spectrum.sum())[:, None] * basis)

    def draw(
        self, state: CorrelatedState, draws: Draws, steps: range
    ) -> tuple[CorrelatedState, dict[str, Array]]:
        """Draw the next pairs."""
        g = draws("keys").normal(len(steps), self.key)
        if self.condition is not None:
            keys = ops.vecmat(g, state.factor)
        else:
            if self.unit:
                # Twice: one pass leaves a part along u where g happens to lie close to it.
                for _ in range(2):
                    g = ops.unit(g - ops.dot(g, state.u) * state.u)
            else:
                g = g / math.sqrt(self.key)
            keys = math.sqrt(self._c) * state.u + math.sqrt(1 - self._c) * g
        return state, {
            "keys": keys,
            "values": draws("values").vectors(self.values, len(steps), self.value),
        }

    @property
    def _c(self) -> float:
        return 0.5 if self.coherence is None else self.coherence


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return keys that resemble each other."""
    return {"correlated": Correlated}

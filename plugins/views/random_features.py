"""Random features: a kernel as the dot product of finitely many of them, on average."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from array_api_compat import array_namespace, device

from engine import ops
from engine.api import Array, Draws, View, hookimpl


@dataclass(frozen=True)
class PositiveRandom(View):
    """exp(w.x - |x|^2 / 2) / sqrt(m) for m directions w: E[phi(q).phi(k)] = exp(scale q.k).

    Here x is sqrt(scale) times the key or query and w ~ N(0, I). Positive, so that a normaliser is
    safe: the FAVOR+ of Choromanski et al. 2021 (arXiv:2009.14794). With independent w the variance
    is exp(2 scale q.k) (exp(scale |q + k|^2) - 1) / m: meant for short q and k.

    It cannot overflow through long x: w.x - |x|^2 / 2 = |w|^2 / 2 - |x - w|^2 / 2 is at most
    |w|^2 / 2, about n / 2, so that float64 is safe up to n of about 1200, float32 to 130. A long x
    underflows to zeros instead. Nothing is subtracted from the exponent, as some do for every key:
    that would give each pair a weight of its own.

    Parameters
    ----------
    features : int
        Their number m, which is the mapped length.
    seed : int
        Seed of the directions, at least 0; for one length of x the same in every backend, and the
        first of them do not depend on `features`.
    orthogonal : bool
        Directions orthogonal to each other in groups of n, each still N(0, I): no bias, less
        variance.
    scale : float
        Factor on q.k, above 0. Softmax attention has n^-1/2.
    """

    features: int = 128
    seed: int = 0
    orthogonal: bool = True
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check(self.features, self.seed, "scale", self.scale)

    def __call__(self, x: Array) -> Array:
        """Map x (..., n) to its features (..., features)."""
        xp = array_namespace(x)
        x = math.sqrt(self.scale) * x
        w = _directions(self.seed, x.shape[-1], self.features, self.orthogonal)
        along = ops.vecmat(x, xp.asarray(w, dtype=x.dtype, device=device(x)))
        return xp.exp(along - ops.dot(x, x) / 2) / math.sqrt(self.features)

    def size(self, n: int) -> int:
        """Return the number of features."""
        return self.features


@dataclass(frozen=True)
class RandomFourier(View):
    """sqrt(2 / m) cos(w.x / s + b) for m waves: E[phi(q).phi(k)] = exp(-|q - k|^2 / (2 s^2)).

    The Gaussian kernel of bandwidth s, by directions w ~ N(0, I) and phases b uniform in
    [0, 2 pi) (Rahimi & Recht 2007). Features have either sign: not for a normaliser.

    Parameters
    ----------
    features : int
        Their number m, which is the mapped length.
    seed : int
        Seed of the waves, at least 0; for one length of x the same in every backend, and the first
        of them do not depend on `features`.
    bandwidth : float
        s, in units of x; above 0.
    """

    features: int = 128
    seed: int = 0
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        _check(self.features, self.seed, "bandwidth", self.bandwidth)

    def __call__(self, x: Array) -> Array:
        """Map x (..., n) to its features (..., features)."""
        xp = array_namespace(x)
        w = _directions(self.seed, x.shape[-1], self.features, False)
        b = _phases(self.seed, self.features)
        w, b = (xp.asarray(a, dtype=x.dtype, device=device(x)) for a in (w, b))
        return math.sqrt(2 / self.features) * xp.cos(ops.vecmat(x / self.bandwidth, w) + b)

    def size(self, n: int) -> int:
        """Return the number of features."""
        return self.features


def _check(features: int, seed: int, name: str, width: float) -> None:
    if features < 1:
        raise ValueError(f"features = {features} must be at least 1")
    if seed < 0:
        raise ValueError(f"seed = {seed} must be at least 0")
    if not 0 < width < math.inf:
        raise ValueError(f"{name} = {width} must be finite and above 0")


@lru_cache(maxsize=32)
def _directions(seed: int, n: int, features: int, orthogonal: bool) -> np.ndarray:
    """Return directions w ~ N(0, I), (n, features)."""
    draws = Draws(seed, trials=1)
    w = draws(f"view directions {n}").normal(features, n)[:, 0]
    if orthogonal:
        groups = -(-features // n)
        turned = draws(f"view rotations {n}").orthogonal(groups, n).reshape(-1, n)
        w = np.linalg.norm(w, axis=-1, keepdims=True) * turned[:features]
    return np.ascontiguousarray(w.T)


@lru_cache(maxsize=32)
def _phases(seed: int, features: int) -> np.ndarray:
    """Return phases uniform in [0, 2 pi), (features,)."""
    return 2 * math.pi * Draws(seed, trials=1)("view phases").uniform(features)[:, 0]


@hookimpl
def engine_views() -> Mapping[str, type]:
    """Return positive random features and random Fourier features."""
    return {"positive_random": PositiveRandom, "random_fourier": RandomFourier}

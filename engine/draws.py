"""Random numbers that do not depend on block size, stream length, trials or backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from engine import ops
from engine.cores import share

NUMBERS = 2**15
"""Numbers that are worth a thread to draw."""


class Channel:
    """One purpose ("keys", "noise", ...) of a stream: an independent bit stream per trial.

    The first axis of every draw is time and the second is the trial, so drawing 7 steps and then
    3 gives the numbers of drawing 10. For something drawn once, draw one step and take `[0]`.
    """

    def __init__(self, rngs: list[np.random.Generator]) -> None:
        self._rngs = rngs

    def _fill(
        self, draw: Callable[[np.random.Generator, tuple[int, ...]], Any], n: int,
        shape: tuple[int, ...], dtype: Any = np.float64,
    ) -> np.ndarray:  # fmt: skip
        out = np.empty((n, len(self._rngs), *shape), dtype=dtype)

        def fill(trial: int) -> None:
            out[:, trial] = draw(self._rngs[trial], (n, *shape))

        share(fill, range(len(self._rngs)), out.size // NUMBERS)
        return out

    def normal(self, n: int, *shape: int) -> np.ndarray:
        """Draw standard normal numbers, shape (n, trial, *shape)."""
        return self._fill(lambda rng, size: rng.standard_normal(size), n, shape)

    def uniform(self, n: int, *shape: int) -> np.ndarray:
        """Draw numbers uniform in [0, 1), shape (n, trial, *shape)."""
        return self._fill(lambda rng, size: rng.random(size), n, shape)

    def integers(self, high: int, n: int, *shape: int) -> np.ndarray:
        """Draw integers uniform in [0, high), shape (n, trial, *shape)."""
        return self._fill(lambda rng, size: rng.integers(high, size=size), n, shape, np.int64)

    def permutation(self, n: int) -> np.ndarray:
        """Draw one permutation of 0 .. n-1 per trial, shape (n, trial)."""
        return self._fill(lambda rng, size: rng.permutation(size[0]), n, (), np.int64)

    def vectors(self, kind: str, n: int, *shape: int) -> np.ndarray:
        """Draw vectors of mean square norm 1, shape (n, trial, *shape), along the last axis.

        Parameters
        ----------
        kind : "unit", "gaussian" or "sign"
            Uniform on the sphere, N(0, 1/d) entries, or entries of -+ 1/sqrt(d).
        """
        if kind == "unit":
            return np.asarray(ops.unit(self.normal(n, *shape)))
        if kind not in ("gaussian", "sign"):
            raise ValueError(f"{kind!r} must be 'unit', 'gaussian' or 'sign'")
        draw = self.normal if kind == "gaussian" else self.signs
        return np.asarray(draw(n, *shape) / np.sqrt(shape[-1]))

    def orthogonal(self, n: int, d: int) -> np.ndarray:
        """Draw Haar-random orthogonal matrices, shape (n, trial, d, d)."""
        q, r = np.linalg.qr(self.normal(n, d, d))
        # Haar only once the diagonal of R is positive (Mezzadri 2007, arXiv:math-ph/0609050).
        diagonal = np.diagonal(r, axis1=-2, axis2=-1)
        return np.asarray(q * np.where(diagonal < 0, -1.0, 1.0)[..., None, :])

    def zipf(self, exponent: float, count: int, n: int) -> np.ndarray:
        """Draw i of 0 .. count-1 with chance ~ (i + 1)^-exponent, shape (n, trial)."""
        edges = np.cumsum(np.arange(1.0, count + 1) ** -exponent)
        # The last edge is 1 exactly and a uniform number is below it.
        drawn = np.searchsorted(edges / edges[-1], self.uniform(n), side="right")
        return drawn.astype(np.int64)

    def signs(self, n: int, *shape: int) -> np.ndarray:
        """Draw -1 or +1 with equal chance, shape (n, trial, *shape)."""
        return 2.0 * self.integers(2, n, *shape) - 1.0


@lru_cache(maxsize=2**14)
def _words(seed: int, trial: int, number: int) -> np.ndarray:
    """Return the numbers that seed one bit stream; mixing them takes longer than many draws."""
    mixed = np.random.SeedSequence(seed, spawn_key=(trial, number))
    words = mixed.generate_state(4, np.uint64)
    words.flags.writeable = False
    return words


class _Words(ISeedSequence):
    """Seeds PCG64, which asks for these four words and nothing else."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """Return the words."""
        if (n_words, np.dtype(dtype)) != (len(self._words), self._words.dtype):
            raise ValueError(f"{n_words} words of {dtype}; there are 4 of uint64")
        return self._words


class Draws:
    """The channels of one stream: `draws("keys").normal(n, d)` has shape (n, trial, d).

    Parameters
    ----------
    seed : int
        Seed of the whole stream.
    trials : int
        Number of trials. Trial b draws the same numbers however many others there are.

    Examples
    --------
    >>> one, many = Draws(0, trials=1), Draws(0, trials=3)
    >>> bool((one("keys").normal(5, 2)[:, 0] == many("keys").normal(5, 2)[:, 0]).all())
    True
    """

    def __init__(self, seed: int, trials: int) -> None:
        self.seed, self.trials = seed, trials
        self._channels: dict[str, Channel] = {}

    def __call__(self, channel: str) -> Channel:
        """Return a channel by name, made when first asked for."""
        if channel not in self._channels:
            # The name's bytes are the channel's number: it needs no table that could be renumbered.
            number = int.from_bytes(channel.encode(), "big")
            words = (_words(self.seed, trial, number) for trial in range(self.trials))
            seeds: list[Any] = [_Words(word) for word in words]  # NumPy's types know no protocol
            rngs = [np.random.Generator(np.random.PCG64(seed)) for seed in seeds]
            self._channels[channel] = Channel(rngs)
        return self._channels[channel]


class Visits:
    """When each of `count` keys was last written, per trial: the source of `age`.

    Parameters
    ----------
    trials, count : int
        Number of trials and of distinct keys.
    """

    def __init__(self, trials: int, count: int) -> None:
        self.last = np.full((trials, count), -1, dtype=np.int64)
        self._trial = np.arange(trials)

    def ages(self, key_id: np.ndarray, steps: range) -> np.ndarray:
        """Return steps since each visited key was last written (-1: never), and note the visits.

        Parameters
        ----------
        key_id : array of int, shape (step, trial)
            Keys written at `steps`.
        """
        age = np.empty_like(key_id)
        for i, step in enumerate(steps):
            before = self.last[self._trial, key_id[i]]
            age[i] = np.where(before < 0, -1, step - before)
            self.last[self._trial, key_id[i]] = step
        return age

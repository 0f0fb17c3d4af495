"""Exact comparison, the size of what a check is run on, and the smallest on which it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], what: str) -> None:
    """Raise AssertionError unless both hold the same numbers under the names of `one`."""
    for name in one:
        if not np.array_equal(one[name], other[name], equal_nan=True):
            difference = np.nanmax(np.abs(np.asarray(one[name], float) - other[name]))
            raise AssertionError(
                f"{what}: {name!r} differs by {difference:.3g}; it must not at all"
            )


@dataclass(frozen=True)
class Case:
    """What a check is run on: lengths, and which (step, trial) are masked."""

    steps: int = 24
    trials: int = 3
    key: int = 6
    value: int = 5
    masked: tuple[tuple[int, int], ...] = ()

    @property
    def mask(self) -> np.ndarray:
        """Mask (step, trial) of the stream: false where nothing is written."""
        mask = np.ones((self.steps, self.trials), bool)
        for step, trial in self.masked:
            mask[step, trial] = False
        return mask

    def cut(self, size: str, n: int) -> Case:
        """Return a smaller case, with what is still in it masked as it is here."""
        small = replace(self, **{size: n})  # type: ignore[arg-type]
        kept = tuple((t, b) for t, b in self.masked if t < small.steps and b < small.trials)
        return replace(small, masked=kept)


def masking(case: Case, seed: int, share: float) -> Case:
    """Return a case with its last step and some others masked; `share` of them are written."""
    mask = np.random.default_rng(seed).uniform(size=(case.steps, case.trials)) < share
    mask[-1] = False
    return replace(case, masked=tuple((int(t), int(b)) for t, b in np.argwhere(~mask)))


@dataclass(frozen=True)
class Contract:
    """What a check does, what it is run on, and which sizes of that mean the same when smaller."""

    run: Callable[[Any, Case], None]
    start: Case = Case()
    shrinks: tuple[str, ...] = ("steps", "trials", "key", "value")


def shrunk(fails: Callable[[Case], bool], contract: Contract) -> Case:
    """Return a case that fails, and passes once any one length or masked step is smaller.

    Every length is cut as far as it fails, again and again until none can be; then every masked
    step is written that need not be masked.
    """
    case, before = contract.start, None
    while case != before:
        before = case
        for size in contract.shrinks:
            for n in _lengths(getattr(case, size)):
                if fails(case.cut(size, n)):
                    case = case.cut(size, n)
                    break
            while getattr(case, size) > 1 and fails(case.cut(size, getattr(case, size) - 1)):
                case = case.cut(size, getattr(case, size) - 1)
        for at in case.masked:
            fewer = replace(case, masked=tuple(m for m in case.masked if m != at))
            if fails(fewer):
                case = fewer
    return case


def _lengths(below: int) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 6, 8, 12, ... below a length."""
    n, step = 1, 1
    while n < below:
        yield n
        n, step = n + step, step * (2 if n >= 4 * step else 1)

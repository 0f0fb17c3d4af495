"""Where tokens come from: a caller's arrays or a generator, cut into blocks of steps."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from engine.api import Draws, Generator
from engine.cores import share
from engine.errors import InputError, RunError, at

STANDARD = {
    "keys": "key",
    "values": "value",
    "queries": "key",
    "mask": "",
    "target_map": "key value",
}

BYTES = 2**20
"""Bytes that are worth a thread to hash."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def valid_name(name: str) -> bool:
    """Return whether a variable of a stream may have this name."""
    return bool(_NAME.fullmatch(name)) and name not in ("step", "trial")


@dataclass(frozen=True)
class Tokens:
    """A block of consecutive steps, as NumPy arrays of shape (step, trial, ...).

    Parameters
    ----------
    start : int
        Step of the first row.
    arrays : mapping of str to array
        "keys", "values", and whatever else the stream has ("queries", "mask", side channels).
    """

    start: int
    arrays: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.arrays["keys"])


Size = int | Callable[[], int]
"""Steps per block, or what says before each block how many it shall have."""


class Source(Protocol):
    """A stream that can be read from its start any number of times."""

    @property
    def trials(self) -> int:
        """Number of trials."""

    @property
    def steps(self) -> int | None:
        """Number of steps; None is endless."""

    @property
    def sample(self) -> Mapping[str, np.ndarray]:
        """A block of no steps: the shapes and dtypes to come."""

    @property
    def facts(self) -> Mapping[str, np.ndarray]:
        """What does not change from step to step, each (trial, ...)."""

    @property
    def dims(self) -> Mapping[str, tuple[str, ...]]:
        """Dims of every variable and fact behind (step, trial) or (trial)."""

    def blocks(self, size: Size) -> Iterator[Tokens]:
        """Yield the stream in blocks of `size` steps, the last one shorter."""


@dataclass(frozen=True)
class ArraySource:
    """A stream over arrays in memory, each (step, trial, ...).

    Parameters
    ----------
    arrays : mapping of str to array
        At least "keys" and "values".
    """

    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def steps(self) -> int | None:
        """Number of steps."""
        return len(self.arrays["keys"])

    @property
    def trials(self) -> int:
        """Number of trials."""
        return int(self.arrays["keys"].shape[1])

    @property
    def sample(self) -> Mapping[str, np.ndarray]:
        """A block of no steps: the shapes and dtypes to come."""
        return {name: array[:0] for name, array in self.arrays.items()}

    @property
    def dims(self) -> Mapping[str, tuple[str, ...]]:
        """Trailing dims of every variable."""
        return {name: tuple(STANDARD.get(name, "").split()) for name in self.arrays}

    def blocks(self, size: Size) -> Iterator[Tokens]:
        """Yield blocks of `size` steps."""
        start, steps = 0, self.steps or 0
        while start < steps:
            stop = start + (size if isinstance(size, int) else size())
            yield Tokens(start, {name: array[start:stop] for name, array in self.arrays.items()})
            start = stop


class GeneratorSource:
    """A stream drawn by a generator.

    Parameters
    ----------
    generator : Generator
        What draws it.
    seed : int
        Seed of all its randomness.
    trials, steps : int, optional
        How much to draw; by default all that the generator has (one trial, if it has no limit).

    Raises
    ------
    InputError
        If the generator cannot give that much, or gives arrays that do not fit together.
    """

    def __init__(
        self,
        generator: Generator,
        seed: int = 0,
        trials: int | None = None,
        steps: int | None = None,
    ) -> None:
        extent = generator.extent()
        name = type(generator).__name__.lower()
        for asked, limit, what in (
            (steps, extent.steps, "steps"),
            (trials, extent.trials, "trials"),
        ):
            if asked is not None and limit is not None and asked > limit:
                why = f": {extent.why}" if extent.why else ""
                raise InputError(f"{name} has {limit} {what} and {asked} were asked for{why}")
        self._generator, self._seed = generator, seed
        self.steps = extent.steps if steps is None else steps
        self.trials = (extent.trials or 1) if trials is None else trials
        draws = Draws(seed, self.trials)
        state = self._start(draws)
        self.sample: Mapping[str, np.ndarray] = {}
        state, self.sample = self.draw(state, draws, range(0))
        declared = {**STANDARD, **generator.dims}
        self.dims: dict[str, tuple[str, ...]] = {
            n: tuple(declared.get(n, "").split()) for n in self.sample
        }
        # Copies, for the state goes on.
        self.facts = {n: np.array(x) for n, x in generator.facts(state).items()}
        self._begun: tuple[Draws, Any] | None = (draws, state)
        self.dims.update({n: tuple(declared.get(n, "").split()) for n in self.facts})
        self._check(self.sample, 0, name)
        for n in (*self.sample, *self.facts):
            if not valid_name(n):
                raise InputError(
                    f"generator {name} draws {n!r}, which cannot name an array; use letters, "
                    "digits and '_', a letter first, and not step or trial"
                )
            if n in self.sample and n in self.facts:
                raise InputError(f"generator {name} has {n!r} per step and as a fact; rename one")

    def _start(self, draws: Draws) -> Any:
        try:
            return self._generator.start(draws, self.steps)
        except ValueError as error:
            raise InputError(str(error)) from error
        except Exception as error:  # a generator may raise anything
            name = type(self._generator).__name__.lower()
            raise RunError(
                f"generator {name} failed at its start: {type(error).__name__}: {error}"
            ) from error

    def begin(self) -> tuple[Any, Draws]:
        """Return the generator's state before the first step, and what it draws from."""
        draws = Draws(self._seed, self.trials)
        return self._start(draws), draws

    def draw(self, state: Any, draws: Draws, steps: range) -> tuple[Any, dict[str, np.ndarray]]:
        """Draw the next steps."""
        try:
            drawn = self._generator.draw(state, draws, steps)
            if not isinstance(drawn, tuple) or len(drawn) != 2 or not isinstance(drawn[1], Mapping):
                raise TypeError(f"draw gave {type(drawn).__name__}, not (state, arrays by name)")
            return drawn
        except (Exception, SystemExit) as error:  # a generator may raise anything, an exit too
            raise RunError(
                f"generator {type(self._generator).__name__.lower()} failed at steps "
                f"{steps.start} to {steps.stop - 1}: {type(error).__name__}: {error}"
            ) from error

    def _check(self, arrays: Mapping[str, np.ndarray], n: int, name: str) -> None:
        for need in ("keys", "values"):
            if need not in arrays:
                raise InputError(f"generator {name} draws no {need!r}; it draws {sorted(arrays)}")
        for variable, array in arrays.items():
            lead, rank = (n, self.trials), 2 + len(self.dims.get(variable, ()))
            if not isinstance(array, np.ndarray) or array.shape[:2] != lead or array.ndim != rank:
                shape = getattr(array, "shape", type(array).__name__)
                dims = ", ".join(("step", "trial", *self.dims.get(variable, ())))
                raise RunError(
                    f"generator {name} drew {variable!r} of shape {shape}; expected dims ({dims}) "
                    f"beginning {lead}"
                )
            if array.dtype.kind not in ("b" if variable == "mask" else "biuf"):
                wanted = "bool" if variable == "mask" else "floats, integers or bools"
                raise RunError(f"generator {name} drew {variable!r} as {array.dtype}, not {wanted}")
        # A recorder has made room by the block of no steps: nothing may be cast or left out later.
        first, now = _kinds(self.sample), _kinds(arrays)
        for variable in sorted({*first, *now}) if first != now else ():
            was, came = (
                "{} {}".format(*x[variable]) if variable in x else "nothing" for x in (first, now)
            )
            if was != came:
                raise RunError(
                    f"generator {name} drew {variable!r} as {came}, but as {was} for no steps"
                )

    def blocks(self, size: Size) -> Iterator[Tokens]:
        """Yield blocks of `size` steps, drawn from the start."""
        begun, self._begun = self._begun, None  # the first time it has been begun already
        draws = begun[0] if begun else Draws(self._seed, self.trials)
        state, start = begun[1] if begun else self._start(draws), 0
        while self.steps is None or start < self.steps:
            stop = start + (size if isinstance(size, int) else size())
            stop = stop if self.steps is None else min(stop, self.steps)
            state, arrays = self.draw(state, draws, range(start, stop))
            with at(f"steps {start} to {stop - 1}"):
                self._check(arrays, stop - start, type(self._generator).__name__.lower())
            yield Tokens(start, arrays)
            start = stop


def _kinds(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[Any, ...]]:
    return {name: (x.dtype, x.shape[2:]) for name, x in arrays.items()}


class Fingerprint:
    """A running SHA-256 of a stream's numbers, the same for every block size."""

    def __init__(self) -> None:
        self._hashes: dict[str, Any] = {}

    def update(self, tokens: Tokens) -> None:
        """Add a block."""
        for name, array in tokens.arrays.items():
            if name not in self._hashes:
                self._hashes[name] = hashlib.sha256(f"{name} {array.dtype}".encode())

        def add(name: str) -> None:
            self._hashes[name].update(np.ascontiguousarray(tokens.arrays[name]).data)

        share(add, list(tokens.arrays), sum(x.nbytes for x in tokens.arrays.values()) // BYTES)

    def hexdigest(self) -> str:
        """Return the hash of everything so far."""
        parts = [f"{name}={digest.hexdigest()}" for name, digest in sorted(self._hashes.items())]
        return hashlib.sha256(";".join(parts).encode()).hexdigest()

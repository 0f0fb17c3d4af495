"""Solvers that are dropped where they fail, while the others go on: ``on_error = "drop"``."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from engine.errors import DroppedWarning, RunError
from engine.frames import Trace
from engine.recorder import Sink
from engine.sources import Tokens
from engine.steps import copied
from engine.track import Track


class Droppable(Track):
    """A track that ends where its rule fails, or once it has diverged in every trial.

    Its numbers are as if the stream had ended there. From step `dropped_at` on they are missing:
    NaN, -1 in counts, False in flags; a memory that grows keeps the rows that it had.
    """

    gone = False
    """Whether the present state is one that there is not."""

    def advance(self, tokens: Tokens) -> Trace:
        """Fold a block of tokens into the state, as far as the rule comes."""
        parts: list[Trace] = []
        if self.dropped_at is None:
            parts = self._tried(tokens)
        elif tokens.start < self.dropped_at:
            parts = [super().advance(_cut(tokens, 0, self.dropped_at - tokens.start))]
        done = sum(len(part.prediction) for part in parts)
        self.gone = self.dropped_at is not None and done < len(tokens)
        if self.gone or not parts:
            parts.append(self._missing(_cut(tokens, done, len(tokens))))
        return _joined(parts)

    def ask(self, queries: np.ndarray) -> np.ndarray:
        """Return the present state's reads at host queries; NaN if there is no state."""
        if self.gone:
            return np.full((*queries.shape[:2], self.sizes["value"]), np.nan, self.dtype)
        return super().ask(queries)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the present state as NumPy arrays; missing but for rows, if there is none."""
        found = super().arrays()
        if self.gone:
            void = {n: _void(x.shape, x.dtype) for n, x in found.items() if n in self.recorded()}
            return {**found, **void}
        return found

    def recorded(self) -> dict[str, Any]:
        """Return what is recorded of the present state; missing but for the rows held."""
        found = super().recorded()
        if self.gone:
            return {n: x if n == "rows" else _void(x.shape, x.dtype) for n, x in found.items()}
        return found

    def _tried(self, tokens: Tokens) -> list[Trace]:
        """Return what a block comes to up to where the rule fails, in pieces.

        The step is found by halving: what goes well is kept, so no step is run often.
        """
        first = self._moment()
        parts: list[Trace] = []
        at, end, bad = 0, len(tokens), len(tokens)
        while True:
            before = self._moment()
            try:
                parts.append(super().advance(_cut(tokens, at, end)))
                at = end
                bad = bad if at < bad else len(tokens)
                end = at + max(1, (bad - at) // 2)
            except RunError as error:
                vars(self).update(before)
                if end - at <= 1:
                    why = str(error).removeprefix(f"solver {self.label!r} ").removeprefix(": ")
                    self._drop(tokens.start + at, why)
                    break
                end, bad = at + (end - at) // 2, end
            if at >= len(tokens):
                break
        if self.trials and (self.diverged_at >= 0).all():
            stop = int(self.diverged_at.max()) + 1
            if stop < tokens.start + at:
                vars(self).update(first)
                parts = [super().advance(_cut(tokens, 0, stop - tokens.start))]
            self._drop(stop, "it diverged in every trial")
        return parts

    def _moment(self) -> dict[str, Any]:
        """Return everything that advancing changes; a rule may write in place."""
        return {**vars(self), "state": copied(self.backend.xp, self.state)}

    def _drop(self, step: int, why: str) -> None:
        self.dropped_at, self.why = step, why
        warnings.warn(
            f"solver {self.label!r} is dropped at step {step}: {why}", DroppedWarning, stacklevel=2
        )

    def _missing(self, tokens: Tokens) -> Trace:
        """Return what a trace has where there is no solver."""
        count, held, every = len(tokens), super().recorded(), self.keyframes
        read = _void((count, self.trials, self.sizes["value"]), self.dtype)

        def rows(n: int) -> dict[str, np.ndarray]:
            return {
                name: np.repeat(np.asarray(x)[None], n, axis=0)
                if name == "rows"
                else _void((n, *x.shape), x.dtype)
                for name, x in held.items()
            }

        sizes = {"step": count, "trial": self.trials, **self.sizes}
        coefficients = {
            name: _void(tuple(sizes[d] for d in b.dims), np.dtype(np.float64))
            for name, b in self.bindings.items()
        }
        frames = (tokens.start + count) // every - tokens.start // every if every else 0
        return Trace(
            read, read.copy(), rows(count) if self.record else {}, coefficients, self.dims, 0.0,
            rows(frames) if every else {},
        )  # fmt: skip


def tell(tracks: Sequence[Track], sink: Sink, known: Collection[str] = ()) -> set[str]:
    """Say in a run which solvers were dropped, but for those `known`; return all of them."""
    gone = {track.label: track for track in tracks if track.dropped_at is not None}
    for label in gone.keys() - known:
        told = {"dropped_at": gone[label].dropped_at, "dropped_because": gone[label].why}
        sink.describe(f"solvers/{label}", told)
    return set(gone)


def _cut(tokens: Tokens, start: int, stop: int) -> Tokens:
    if (start, stop) == (0, len(tokens)):
        return tokens
    part = {name: x[start:stop] for name, x in tokens.arrays.items()}
    return Tokens(tokens.start + start, part)


def _void(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    kind = np.dtype(str(dtype).rpartition(".")[2])  # of an array library's own, its name
    return np.full(shape, {"f": np.nan, "i": -1}.get(kind.kind, 0), kind)


def _joined(parts: Sequence[Trace]) -> Trace:
    """Return one trace of several that follow each other."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def all_of(what: str) -> Mapping[str, np.ndarray]:
        own: list[Mapping[str, np.ndarray]] = [getattr(part, what) for part in parts]
        found = {}
        for name in set.intersection(*map(set, own)):  # a form may give states unasked
            fixed = what == "coefficients" and "step" not in first.dims[name]
            found[name] = own[0][name] if fixed else np.concatenate([x[name] for x in own])
        return found

    return Trace(
        np.concatenate([part.prediction for part in parts]),
        np.concatenate([part.output for part in parts]),
        all_of("states"), all_of("coefficients"), first.dims,
        sum(part.seconds for part in parts), all_of("keyframes"),
    )  # fmt: skip

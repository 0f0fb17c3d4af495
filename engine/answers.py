"""Probes at work: who is asked what, what came back, and what it decodes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.frames import Frame
from engine.measure import mapped
from engine.measure.decoding import decoded
from engine.probes import Question
from engine.recorder import Sink, Variable
from engine.sources import Source, Tokens
from engine.track import Track

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Asked:
    """A set of queries and what would be right.

    Parameters
    ----------
    keys : array (query, trial, key)
        What is asked.
    wanted : array of int (query, trial)
        Entry of the book that is bound to it now; -1 where none is, or it was replaced since.
    book : array (trial, entry, value)
        Every value that an answer may decode to; NaN marks none.
    key_id : array of int (query, trial)
        Which key it is, -1 for none of those written.
    replaced : array of int (binding, 3)
        Trial, key and entry of every binding that a later one of the same key took the place of.
    """

    keys: np.ndarray
    wanted: np.ndarray
    book: np.ndarray
    key_id: np.ndarray
    replaced: np.ndarray


class Written:
    """What a stream has written so far, as far as a question needs it.

    A question about every key holds the whole stream: memory is linear in its length. One about a
    book holds ids only, and the values where the generator has no book of them.

    Parameters
    ----------
    source, question
        Who asks what of which stream.
    last : int, optional
        Step after which nothing is asked any more (default: there is none).
    """

    def __init__(self, source: Source, question: Question, last: int | None = None) -> None:
        self._question, self._facts, self._trials = question, source.facts, source.trials
        self._last, self._seen = last, 0
        self._booked = "value_book" in source.facts and "value_id" in source.sample
        needed = ["key_id", "value_id", "mask"]
        needed += ["keys"] if question.queries is None else []
        needed += [] if self._booked else ["values"]
        self._kept = {n: [x] for n, x in source.sample.items() if n in needed}

    def __call__(self, tokens: Tokens) -> None:
        """Keep what a block writes, as far as it is ever asked for."""
        self._seen = tokens.start + len(tokens)
        room = len(tokens) if self._last is None else max(self._last - tokens.start, 0)
        for name, parts in self._kept.items() if room else ():
            # A copy: a generator may use its arrays again for the next block.
            parts.append(np.array(tokens.arrays[name][:room]))

    def asked(self, stop: int | None = None) -> Asked:
        """Return what is asked when `stop` steps are written (default: all so far)."""
        stop = self._seen if stop is None else stop
        for parts in self._kept.values():
            parts[:] = [np.concatenate(parts)]
        kept = {name: whole[:stop] for name, (whole,) in self._kept.items()}
        queries = self._question.queries
        steps = np.broadcast_to(np.arange(stop)[:, None], (stop, self._trials))
        written = kept.get("mask", np.ones_like(steps, dtype=bool))
        key_id = kept.get("key_id", steps)
        if self._booked:
            book, entry = self._facts["value_book"], kept["value_id"]
        else:  # without a book, the values that were written are one, in the order of writing
            values = np.where(written[..., None], kept["values"], np.nan)
            book, entry = np.swapaxes(values, 0, 1), steps
        latest = _latest(key_id, written)
        step, trial = np.nonzero(written & ~latest)
        replaced = np.stack([trial, key_id[step, trial], entry[step, trial]], axis=-1)
        if queries is None:
            return Asked(kept["keys"], np.where(latest, entry, -1), book, key_id, replaced)
        wanted = np.full(queries.shape[:2], -1)
        which = np.full_like(wanted, -1)
        if self._question.ask == "codebook" and "key_id" in kept:
            which[:] = np.arange(len(queries))[:, None]
            step, trial = np.nonzero(latest & (key_id >= 0))
            wanted[key_id[step, trial], trial] = entry[step, trial]
        return Asked(queries, wanted, book, which, replaced)


def _latest(key_id: np.ndarray, written: np.ndarray) -> np.ndarray:
    """Return where a step is the last to write its key."""
    order = np.lexsort((key_id, written), axis=0)  # stable: of equals, the latest comes last
    key, wrote = (np.take_along_axis(x, order, axis=0) for x in (key_id, written))
    wrote[:-1] &= key[1:] != key[:-1]
    latest = np.empty_like(wrote)
    np.put_along_axis(latest, order, wrote, axis=0)
    return latest


def _intruded(nearest: np.ndarray, asked: Asked) -> np.ndarray:
    """Return whether each answer decodes to what the same key held before, as 0.0 or 1.0."""
    out = np.zeros(nearest.shape)
    if len(asked.replaced):
        trial, key, entry = asked.replaced.T
        keys, place = np.unique(key, return_inverse=True)
        mine = np.minimum(np.searchsorted(keys, asked.key_id), len(keys) - 1)
        same = keys[mine] == asked.key_id
        # One number per trial, key and entry.
        count, of = asked.book.shape[1], np.arange(nearest.shape[1]) * len(keys)
        out[...] = same & np.isin(
            (of + mine) * count + nearest, (of[trial] + place) * count + entry
        )
        out *= (nearest >= 0) & (nearest != asked.wanted)
    return np.where(asked.wanted < 0, np.nan, out)


def ask(
    track: Track, asked: Asked, how: str = "distance"
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Return what a solver's present state answers, by name, with dims.

    Returns
    -------
    read : (query, trial, value)
        The answers.
    recalled, intruded : (query, trial)
        1.0 where one decodes to the wanted entry, or to one that its key held before; NaN where
        nothing is wanted.
    decoded, rank : (query, trial)
        As `engine.measure.decoding.decoded` has them.
    """
    read = track.ask(asked.keys)
    book = mapped(track.view, asked.book)
    with np.errstate(over="ignore", invalid="ignore"):  # of a solver on its way to divergence
        nearest, rank = decoded(read, book, asked.wanted, how)
    each = {
        "recalled": np.where(asked.wanted < 0, np.nan, (rank == 0).astype(np.float64)),
        "decoded": nearest,
        "rank": rank,
        "intruded": _intruded(nearest, asked),
    }
    answers = {name: (("query", "trial"), x) for name, x in each.items()}
    return {"read": (("query", "trial", "value"), read), **answers}


def answered(
    q: Question, asked: Asked, tracks: Sequence[Track]
) -> Iterator[tuple[str, str, tuple[str, ...], np.ndarray]]:
    """Yield what is stored of a question put to solvers as they are: group, name, dims, array."""
    group = f"probes/{q.name}"
    yield group, "keys", ("query", "trial", "key"), asked.keys
    yield group, "wanted", ("query", "trial"), asked.wanted
    for track in tracks:
        for name, (dims, x) in ask(track, asked, q.decode).items():
            yield f"{group}/{track.label}", name, dims, x


def last(answers: xr.DataTree) -> xr.DataTree:
    """Return a recorded probe as it was asked last: without a dim `probe_step`."""
    if "probe_step" not in answers.dims:
        return answers
    return answers.isel(probe_step=-1)


class Prober:
    """A consumer of frames that asks every question at its steps and records the answers.

    The solvers' own run is untouched, bit for bit: between the ends of blocks a twin of each is
    asked, brought there from the block's start. Frames must be given before they are committed,
    so that a store never lacks an answer at a step that it holds.

    Parameters
    ----------
    questions : sequence of Question
        What to ask.
    source, tracks
        What is being run.
    sink : Sink
        Where answers go.
    """

    def __init__(
        self, questions: Sequence[Question], source: Source, tracks: Sequence[Track], sink: Sink
    ) -> None:
        self._tracks, self._sink = tracks, sink
        self._written = {q.name: Written(source, q, q.stops[-1]) for q in questions if q.stops}
        self._questions = [q for q in questions if q.stops]
        self._twins: list[Track] = []
        self._variables: dict[str, Variable] = {}
        for q in self._questions:
            if not q.once:
                stops = np.array(q.stops)
                self._put(f"probes/{q.name}", "probe_step", ("probe_step",), stops)
        self._follow(0)

    def __call__(self, frame: Frame) -> None:
        """Ask what is due in a frame."""
        for written in self._written.values():
            written(frame.tokens)
        done = frame.start
        for stop in sorted({s for q in self._questions for s in q.stops}):
            if not frame.start < stop <= frame.stop:
                continue
            part = {
                n: x[done - frame.start : stop - frame.start]
                for n, x in frame.tokens.arrays.items()
            }
            tracks: Sequence[Track] = self._tracks
            if stop < frame.stop:
                for twin in self._twins:
                    twin.advance(Tokens(done, part))
                tracks, done = self._twins, stop
            for q in self._questions:
                if stop in q.stops:
                    self._ask(q, stop, tracks)
        self._follow(frame.stop)

    def _follow(self, step: int) -> None:
        """Keep a twin of every solver as long as a question is still to come."""
        later = any(stop > step for q in self._questions for stop in q.stops)
        self._twins = [track.twin() for track in self._tracks] if later else []

    def _ask(self, q: Question, stop: int, tracks: Sequence[Track]) -> None:
        """Ask one question at one step and record what comes back."""
        place = q.stops.index(stop)
        for group, name, dims, x in answered(q, self._written[q.name].asked(stop), tracks):
            if name == "keys" and stop < q.stops[-1]:
                continue  # once for all steps, when all are known
            if q.once or name == "keys":
                self._put(group, name, dims, x)
            else:
                room = q.stops[-1] if q.queries is None else len(x)
                self._record(q, place, room, group, name, dims, x)

    def _record(
        self, q: Question, place: int, room: int, group: str, name: str, dims: tuple[str, ...],
        x: np.ndarray,
    ) -> None:  # fmt: skip
        shape = (len(q.stops), room, *x.shape[1:])
        none = np.nan if x.dtype.kind == "f" else -1
        row = np.full(shape[1:], none, dtype=x.dtype)
        row[: len(x)] = x
        variable = Variable(group, name, ("probe_step", *dims), shape, x.dtype, fill=-1)
        if variable.path not in self._variables:
            self._variables[variable.path] = variable
            self._sink.create(variable)
        self._sink.write(variable, place, row[None])

    def _put(self, group: str, name: str, dims: tuple[str, ...], x: np.ndarray) -> None:
        variable = Variable(group, name, dims, x.shape, x.dtype)
        self._sink.create(variable)
        self._sink.write(variable, 0, x)

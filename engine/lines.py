"""Pairs as JSON lines in, answers as JSON lines out: the protocol of `engine stream`."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from engine import coefficients, signatures
from engine.backend import backend as get_backend
from engine.building import Entry
from engine.coefficients import Binding, Channel
from engine.errors import InputError, RunError, at, nearest
from engine.frames import Frame, Trace
from engine.initial import begin
from engine.scenario import Table
from engine.sources import ArraySource, Tokens
from engine.track import Track

SCHEMA = 1
OWN = ("key", "value", "query", "mask")
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class Pair(NamedTuple):
    """A line that was read: its number, from 1, and what it says."""

    line: int
    says: dict[str, Any]


class BadLine(InputError):
    """A line that is no pair; `pairs` are those before it."""

    def __init__(self, line: int, why: str, pairs: Sequence[Pair] = ()) -> None:
        super().__init__(f"line {line}: {why}")
        self.pairs = list(pairs)


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def arriving(file: int) -> Iterator[list[bytes]]:
    """Yield lines of a file descriptor as they come: all that are there, at once."""
    rest = b""
    while part := os.read(file, 2**16):
        *whole, rest = (rest + part).split(b"\n")
        if whole:
            yield whole
    if rest:
        yield [rest]


def pairs(lines: Sequence[bytes], first: int) -> list[Pair]:
    """Return what lines say, blank ones left out.

    Parameters
    ----------
    lines : sequence of bytes
        JSON objects, one a line.
    first : int
        Number of the first of them.

    Raises
    ------
    BadLine
        If one is not a JSON object.
    """
    there = [(n, line.strip()) for n, line in enumerate(lines, first)]
    there = [(n, line) for n, line in there if line]
    if all(line[:1] == b"{" and line[-1:] == b"}" for _, line in there):
        try:  # as one list, in one call
            found = _DECODER.decode("[" + b",".join(line for _, line in there).decode() + "]")
        except ValueError:
            found = []
        if len(found) == len(there):
            return [Pair(n, says) for (n, _), says in zip(there, found, strict=True)]
    good: list[Pair] = []
    for n, line in there:
        try:
            says = _DECODER.decode(line.decode())
        except UnicodeDecodeError as error:
            raise BadLine(n, f"not UTF-8 text: {error.reason}", good) from error
        except ValueError as error:
            raise BadLine(n, f"not JSON: {error}", good) from error
        if not isinstance(says, dict):
            raise BadLine(n, 'expected an object, as {"key": [...], "value": [...]}', good)
        good.append(Pair(n, says))
    return good


@dataclass(frozen=True)
class _Slot:
    """Where a coefficient that lines may give goes."""

    label: str
    binding: Binding | None
    declared: signatures.Declared


class Feed:
    """Solvers that are given pairs as they come, all of one length, in one trial.

    Parameters
    ----------
    entries : mapping of str to Entry
        The solvers, by label.
    table : Table
        Precision, backend, kernel.
    first : Pair
        The first pair: it says how long keys and values are.
    """

    def __init__(self, entries: Mapping[str, Entry], table: Table, first: Pair) -> None:
        self.step = 0
        says, sizes = first.says, {}
        for name in ("key", "value"):
            given = says.get(name)
            if not isinstance(given, list) or not given:
                raise BadLine(first.line, f"{name!r} must be a list of numbers; {_told(given)}")
            sizes[name] = len(given)
        self._sizes = sizes
        source = ArraySource({f"{name}s": np.empty((0, 1, n)) for name, n in sizes.items()})
        where = get_backend(table.backend)
        self._tracks: dict[str, Track] = {}
        self._slots: dict[str, list[_Slot]] = {}
        self._needed: list[tuple[str, str]] = []
        for label, entry in entries.items():
            with at(f"solvers.{label}"):
                track = Track(
                    label, entry.solver, source, entry.bindings, entry.view, where, table.dtype,
                    False, table.kernel,
                )  # fmt: skip
                begin(track, source, entry.state)
                for binding in entry.bindings.values():
                    coefficients.check(binding, source.sample, 1, track.sizes)
            self._tracks[label] = track
            for name, declared in signatures.coefficients(type(entry.solver)).items():
                slot = _Slot(label, entry.bindings.get(name), declared)
                if slot.binding is None and declared.required:
                    self._needed.append((label, name))
                for key in (name, f"{label}.{name}"):
                    self._slots.setdefault(key, []).append(slot)

    def frames(self, block: Sequence[Pair], every: int) -> Iterator[Frame]:
        """Fold pairs into every solver, and yield the steps `every` at a time.

        Raises
        ------
        BadLine
            If a line does not fit, after the frames before it.
        RunError
            If a solver fails, after the frames before it.
        """
        done, bad = block, None
        try:
            tokens, given = self._tokens(block)
        except BadLine as error:
            # What comes before it is answered first, in whole frames.
            bad = error
            done = error.pairs[: len(error.pairs) // every * every]
            tokens, given = self._tokens(done)
        if done:
            before = {label: copy.copy(track) for label, track in self._tracks.items()}
            try:
                traces = self._advance(tokens, given)
            except RunError:
                if len(done) <= every:
                    raise
                self._tracks = before  # up to the step that fails, frame by frame
                for i in range(0, len(done), every):
                    yield from self.frames(done[i : i + every], every)
                raise
            self.step += len(done)
            yield from _cut(Frame(tokens, traces), every)
        if bad is not None:
            raise bad

    def diverged(self, label: str, stop: int) -> int | None:
        """Return the first step before `stop` at which a solver was not finite."""
        step = int(self._tracks[label].diverged_at[0])
        return step if 0 <= step < stop else None

    def _advance(
        self, tokens: Tokens, given: Mapping[str, Mapping[str, Binding]]
    ) -> dict[str, Trace]:
        traces = {}
        for label, track in self._tracks.items():
            usual = track.bindings
            track.bind(given.get(label, {}))
            try:
                traces[label] = track.advance(tokens)
            finally:
                track.bindings = usual
                track.bind({})
        return traces

    def _tokens(self, block: Sequence[Pair]) -> tuple[Tokens, dict[str, dict[str, Binding]]]:
        """Return pairs as arrays, and what their lines bind coefficients to."""
        plain = all(len(says) == 2 and "key" in says and "value" in says for _, says in block)
        arrays = {}
        if not plain:
            block = [self._completed(i, block) for i in range(len(block))]
        for name, as_, n in (
            ("key", "keys", self._sizes["key"]), ("value", "values", self._sizes["value"]),
            ("query", "queries", self._sizes["key"]),
        ):  # fmt: skip
            if name == "query" and (plain or not any("asks" in says for _, says in block)):
                continue
            arrays[as_] = self._numbers(name, n, block)
        if any("mask" in says for _, says in block):
            mask = np.array([[says.get("mask", True)] for _, says in block])
            arrays["mask"] = mask
        given: dict[str, dict[str, Binding]] = {}
        for label, name in self._needed if block else ():
            if not any(key in says for _, says in block for key in (name, f"{label}.{name}")):
                raise BadLine(block[0].line, f"{label} needs the coefficient {name!r}")
        if not plain:
            for name in dict.fromkeys(n for _, says in block for n in says if n in self._slots):
                for slot in self._slots[name]:
                    self._bind(name, slot, block, arrays, given.setdefault(slot.label, {}))
        return Tokens(self.step, arrays), given

    def _completed(self, i: int, block: Sequence[Pair]) -> Pair:
        """Return a pair with all that it may leave out."""
        line, says = block[i]
        for name in says:
            if name not in OWN and name not in self._slots:
                advice = nearest(name, [*OWN, *self._slots])
                raise BadLine(line, f"no field or coefficient {name!r}; {advice}", block[:i])
        if not isinstance(says.get("mask", True), bool):
            raise BadLine(line, f"mask = {says['mask']!r} must be true or false", block[:i])
        whole = dict(says)
        if says.get("mask") is False:
            whole.setdefault("value", [0.0] * self._sizes["value"])
        if "mask" in says or "query" in says:
            whole["asks"] = True
        if "key" in says:
            whole.setdefault("query", says["key"])
        return Pair(line, whole)

    def _numbers(self, name: str, n: int, block: Sequence[Pair]) -> np.ndarray:
        """Return one field of every line, (step, 1, n)."""
        try:
            x = np.array([says[name] for _, says in block] or np.empty((0, n)))
        except (KeyError, ValueError):
            x = np.empty(0)
        if x.shape == (len(block), n) and x.dtype.kind in "bif" and np.isfinite(x).all():
            return x.astype(np.float64)[:, None]
        for i, (line, says) in enumerate(block):
            given = says.get(name)
            if isinstance(given, list) and len(given) == n and all(map(_number, given)):
                continue
            what = f"{name!r} must be a list of {n} numbers, as long as the first"
            raise BadLine(line, f"{what}; {_told(given, n)}", block[:i])
        return np.array([says[name] for _, says in block], dtype=np.float64)[:, None]

    def _bind(
        self, name: str, slot: _Slot, block: Sequence[Pair], arrays: dict[str, np.ndarray],
        bound: dict[str, Binding],
    ) -> None:  # fmt: skip
        """Bind a coefficient to what the lines of a block give, and to its own value elsewhere."""
        own, spec = name.rpartition(".")[2], slot.declared.spec
        width = self._tracks[slot.label].sizes.get(spec.axis, 1) if spec.axis else 1
        side = f"{slot.label}.{own}"
        if side in arrays:  # given by label and by name: the label's is the nearer
            values = arrays[side]
        elif slot.binding is not None:
            usual = slot.binding.block(Tokens(self.step, {"keys": arrays["keys"]}))
            values = np.array(np.broadcast_to(usual, (len(block), 1, width)))
        else:
            values = np.full((len(block), 1, width), np.nan)
        for i, (line, says) in enumerate(block):
            if name not in says:
                if slot.binding is None and np.isnan(values[i]).any():
                    why = f"{slot.label} needs the coefficient {own!r}, as on other lines"
                    raise BadLine(line, why, block[:i])
                continue
            if f"{slot.label}.{own}" in says and name == own:
                continue
            x = says[name] if isinstance(says[name], list) else [says[name]]
            if len(x) not in (1, width) or not all(map(_number, x)):
                form = f"a number or a list of {width}" if spec.axis else "a number"
                raise BadLine(line, f"{name} = {says[name]!r} must be {form}", block[:i])
            try:
                Binding(own, spec, np.array(x, dtype=float)[None, None]).block(_NOW)
            except InputError as error:
                raise BadLine(line, str(error), block[:i]) from error
            values[i, 0] = x
        arrays[side] = values
        along = ("step", "trial", *([spec.axis] if spec.axis else []))
        bound[own] = Binding(
            own, spec, Channel(channel=side), along, "read" in slot.declared.methods
        )


_NOW = Tokens(0, {"keys": np.empty((1, 1, 1))})


def _number(x: Any) -> bool:
    """Say whether float64 holds it."""
    return isinstance(x, (int, float)) and abs(x) <= sys.float_info.max


def _told(given: Any, n: int | None = None) -> str:
    """Say what was given instead of a list of `n` numbers."""
    if given is None:
        return "there is none"
    if not isinstance(given, list):
        return f"it is {given!r:.40}"
    if len(given) != n:
        return f"it has {len(given)} entr{'y' if len(given) == 1 else 'ies'}"
    i = next(i for i, x in enumerate(given) if not _number(x))
    if isinstance(given[i], (int, float)):
        return f"entry {i} is beyond what float64 holds"
    return f"entry {i} is {json.dumps(given[i]):.40}"


def _cut(frame: Frame, every: int) -> Iterator[Frame]:
    """Yield a frame's parts of `every` steps; nothing is copied."""
    for i in range(0, len(frame.tokens), every):
        part = slice(i, i + every)
        tokens = Tokens(frame.start + i, {n: x[part] for n, x in frame.tokens.arrays.items()})
        traces = {
            label: Trace(t.prediction[part], t.output[part], {}, {}, {}, t.seconds)
            for label, t in frame.traces.items()
        }
        yield Frame(tokens, traces)


def encoded(value: Any) -> str:
    """Return a value as one line of JSON; numbers that are not finite are null."""
    try:
        return _ENCODER.encode(value) + "\n"
    except ValueError:
        return _ENCODER.encode(finite(value)) + "\n"


def finite(value: Any) -> Any:
    """Return a value with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(x) for key, x in value.items()}
    if isinstance(value, list):
        return [finite(x) for x in value]
    return value if not isinstance(value, float) or np.isfinite(value) else None

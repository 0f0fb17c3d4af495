"""The errors a user meets, and the words they are told in."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class InputError(EngineError, ValueError):
    """Something handed to the engine is wrong; nothing was written. The command line exits 2."""


class RunError(EngineError, RuntimeError):
    """A run started and could not finish. The command line exits 1."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM). The command line exits 143."""


class DamageError(RunError):
    """What a store holds is not what was written into it. The command line exits 1."""


class ReplayWarning(UserWarning):
    """States are recomputed by something else than what made them: equal up to rounding only."""


class DroppedWarning(UserWarning):
    """A solver failed and was dropped; the run goes on with the others."""


class StabilityWarning(UserWarning):
    """A write overshoots so far that the rule expands what it should correct."""


class PluginWarning(UserWarning):
    """A plugin could not be loaded; everything else works."""


@contextmanager
def at(where: str) -> Iterator[None]:
    """Say where an error of ours arose: its message is preceded by `where`."""
    try:
        yield
    except EngineError as error:
        raise type(error)(f"{where}: {error}") from error


def whole(name: str, n: Any, least: int = 1) -> int:
    """Return a whole number, or refuse it.

    Raises
    ------
    InputError
        If it is something else, a bool, or below `least`.
    """
    try:
        number = operator.index(n)
    except TypeError:
        number = least - 1
    if number < least or isinstance(n, bool):
        raise InputError(f"{name} = {n!r} must be a whole number, {least} or more")
    return number


def between(name: str, x: Any, low: float, high: float, ends: str = "[]") -> None:
    """Refuse a number, or an array with one, that lies outside an interval or is NaN.

    >>> between("gamma", 0.5, 0, 1)
    >>> between("gamma", [0.5, 1.5], 0, 1, "[)")
    Traceback (most recent call last):
    engine.errors.InputError: gamma = 1.5 must lie in [0, 1)
    """
    import numpy as np

    try:
        values = np.asarray(x, dtype=float)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} = {x!r} must be a number in {ends[0]}{low}, {high}{ends[1]}"
        ) from None
    above = values >= low if ends[0] == "[" else values > low
    below = values <= high if ends[1] == "]" else values < high
    if not (above & below).all():
        first = values[~(above & below)].flat[0]
        raise InputError(f"{name} = {first:g} must lie in {ends[0]}{low:g}, {high:g}{ends[1]}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return advice for a name that is not in `known`.

    >>> nearest("dleta", ["delta", "rls"])
    "did you mean 'delta'? Known: delta, rls"
    """
    choices = sorted(set(known))
    lowered = {choice.lower(): choice for choice in choices}
    close = get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.6)
    listing = f"Known: {', '.join(choices)}" if choices else "there are none"
    return f"did you mean {lowered[close[0]]!r}? {listing}" if close else listing


_WORDS = {
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "finite_number": "must be finite",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "model_type": "must be a table",
    "string_type": "must be a string",
    "tuple_type": "must be a list",
}


def told(error: Mapping[str, Any]) -> str:
    """Return what one of pydantic's errors says, in this project's words.

    >>> told({"type": "int_type", "input": "four", "msg": "Input should be a valid integer"})
    'must be a whole number'
    """
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return f"no such choice; {nearest(error['input'], choices)}"
    if error["type"] == "is_instance_of":
        return f"must be a {error['ctx']['class']}"
    text = error["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return _WORDS.get(error["type"]) or re.sub(r"^(Input|List|Tuple) should ", "must ", text)

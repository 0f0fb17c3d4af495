"""The errors a user meets, and the words they are told in."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class InputError(EngineError, ValueError):
    """Something handed to the engine is wrong; nothing was written. The command line exits 2."""


class RunError(EngineError, RuntimeError):
    """A run started and could not finish. The command line exits 1."""


class PluginWarning(UserWarning):
    """A plugin could not be loaded; everything else works."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return advice for a name that is not in `known`.

    >>> nearest("dleta", ["delta", "rls"])
    "did you mean 'delta'? Known: delta, rls"
    """
    choices = sorted(known)
    lowered = {choice.lower(): choice for choice in choices}
    close = get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.6)
    listing = f"Known: {', '.join(choices)}" if choices else "None is known"
    return f"did you mean {lowered[close[0]]!r}? {listing}" if close else listing

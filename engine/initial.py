"""The state that a solver begins in, where the stream knows it."""

from __future__ import annotations

from collections.abc import Mapping

from engine.api import Rows
from engine.errors import InputError, nearest
from engine.sources import Source
from engine.track import Track


def begin(track: Track, source: Source, given: Mapping[str, str]) -> None:
    """Put facts of a stream into a solver's state; what is not named stays as the rule made it.

    Parameters
    ----------
    track : Track
        A solver that has seen nothing yet.
    source : Source
        The stream: what of it does not change from step to step are its facts, (trial, ...).
    given : mapping of str to str
        Names of facts by state variable.

    Raises
    ------
    InputError
        If either name is unknown, or the shapes differ.
    """
    if not given:
        return
    held = dict(zip(track.state._fields, track.state, strict=True))
    state = track.arrays()
    for variable, name in given.items():
        where = f"state.{variable} = {name!r}"
        if variable not in held:
            raise InputError(f"{where}: no such state variable; {nearest(variable, held)}")
        if isinstance(held[variable], Rows):
            raise InputError(f"{where}: {variable} grows by a row per write, from none")
        if name not in source.facts:
            advice = nearest(name, source.facts) if source.facts else "it has none"
            raise InputError(f"{where}: the stream has no fact {name!r}; {advice}")
        if source.facts[name].shape != state[variable].shape:
            raise InputError(
                f"{where}: has shape {source.facts[name].shape}, but {variable} has "
                f"{state[variable].shape}"
            )
        state[variable] = source.facts[name]
    track.restore(state)

"""Plugins of strangers: whole ones, and how a changed one is loaded."""

import pytest

from engine import registry
from engine.errors import PluginWarning

# A whole plugin: what every broken one is a change of.
HEAD = """
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from engine import ops
from engine.api import Array, Coefficient, Decay, Gain, Generator, Space, View, hookimpl
from engine.linear import LinearRule, Token


class State(NamedTuple):
    S: Annotated[Array, "key value"]


@dataclass(frozen=True)
class Leaky:
    \"\"\"S <- keep S + k v^T; reads scale S^T q.

    The rest of the docstring.
    \"\"\"

    scale: float = 1.0

    def init(self, space: Space) -> State:
        return State(space.zeros("key value"))

    def write(self, s: State, k: Array, v: Array, *, keep: Decay = 1.0) -> State:
        return State(ops.scale_rows(keep, s.S) + ops.outer(k, v))

    def read(self, s: State, q: Array) -> Array:
        return self.scale * ops.vecmat(q, s.S)

"""
HOOK = """
@hookimpl
def engine_solvers():
    return {"leaky": Leaky}
"""
LEAKY = HEAD + HOOK


def plugin(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def load_broken(folder=None):
    """Load, and return the registry and its one warning."""
    with pytest.warns(PluginWarning) as caught:
        found = registry.load(folder)
    assert len(caught) == 1
    assert len(found.broken) == 1
    return found, str(caught[0].message)


def swap(old, new, text=LEAKY):
    assert text.count(old) == 1, old
    return text.replace(old, new)


RULE = (
    HEAD
    + '''
@dataclass(frozen=True)
class Own(LinearRule):
    """S <- S + k v^T."""

    def token(self, k, v, *, beta: Gain = 1.0):
        return Token(write=beta * k, value=v)


@hookimpl
def engine_solvers():
    return {"own": Own}
'''
)
GENERATOR = (
    HEAD
    + '''
@dataclass(frozen=True)
class Ones(Generator):
    """k = v = 1."""

    size: int = 2

    def start(self, draws, steps):
        return None

    def draw(self, state, draws, steps):
        return state, {}


@hookimpl
def engine_generators():
    return {"ones": Ones}
'''
)
VIEW = (
    HEAD
    + '''
@dataclass(frozen=True)
class Twice(View):
    """2 x."""

    def __call__(self, x):
        return x + x


@hookimpl
def engine_views():
    return {"twice": Twice}
'''
)

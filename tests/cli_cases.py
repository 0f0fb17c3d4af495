"""Scenarios, plugins and processes that the tests of the command line share."""

import subprocess
import sys
from pathlib import Path

ENGINE = str(Path(sys.executable).with_name("engine"))
SMALL = """title = "A small one"
seed = 3
trials = 2

[stream]
generator = "random"
steps = 40
key = 4
value = 3

[solvers.delta]
beta = 0.5

[solvers.exact]
solver = "rls"

[probes.recall]
"""
FAULTY = '''
"""Rules and generators that fail on the way."""

import sys
import time
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from engine import ops
from engine.api import Array, Decay, Generator, Space, View, hookimpl


class State(NamedTuple):
    S: Annotated[Array, "key value"]
    n: Annotated[Array, ""]


class Clash(NamedTuple):
    S: Annotated[Array, "key value"]
    gamma: Annotated[Array, ""]


class Undescribed(NamedTuple):
    S: Array


@dataclass(frozen=True)
class Faulty:
    """S <- S + k v^T until step `at`, then `how`."""

    at: int = 5
    how: str = "raise"
    pause: float = 0.0

    def init(self, space: Space):
        if self.how == "init":
            raise LookupError("no weights here")
        S, n = space.zeros("key value"), space.zeros("")
        states = {"clash": Clash(S, n), "dict": {"S": S}, "undescribed": Undescribed(S)}
        if self.how == "shape":
            return State(space.zeros("value key"), n)
        return states.get(self.how, State(S, n))

    def write(self, s, k, v, *, gamma: Decay = 1.0):
        time.sleep(self.pause)
        if np.max(s.n) == self.at:
            if self.how == "raise":
                raise FloatingPointError("the fit is gone")
            if self.how == "exit":
                sys.exit(0)
            if self.how == "none":
                return None
            if self.how == "wide":
                return State(s.S[..., None], s.n)
        return State(s.S + ops.outer(k, v), s.n + 1)

    def read(self, s, q):
        if self.how == "read" and np.max(s.n) == self.at:
            raise KeyError("no such key")
        return ops.vecmat(q, s.S)


@dataclass(frozen=True)
class Torn(Generator):
    """Random pairs until step `at`, then `how`."""

    at: int = 5
    how: str = "raise"

    def start(self, draws, steps):
        if self.how == "start":
            raise OSError("the tape is torn")
        return None

    def draw(self, state, draws, steps):
        if steps.stop > self.at and self.how == "raise":
            raise RuntimeError("the tape is torn")
        pair = {"keys": draws("keys").normal(len(steps), 4)}
        if self.how == "name":
            pair["a/b"] = pair["keys"][..., 0]
        return state, pair if self.how == "half" else {**pair, "values": pair["keys"]}


@dataclass(frozen=True)
class Blind(View):
    """Raises."""

    def __call__(self, x):
        raise ArithmeticError("cannot see")


@hookimpl
def engine_solvers():
    return {"faulty": Faulty}


@hookimpl
def engine_generators():
    return {"torn": Torn}


@hookimpl
def engine_views():
    return {"blind": Blind}
'''


def scenario(how, *, at=5, steps=20, extra="", generator="random", pause=0.0):
    text = f'[stream]\ngenerator = "{generator}"\nsteps = {steps}\n{extra}\n[solvers.plain]\n'
    text += f'solver = "delta"\n[solvers.bad]\nsolver = "faulty"\nhow = "{how}"\nat = {at}\n'
    Path("faulty.toml").write_text(text + f"pause = {pause}\n")


def start(args, stderr=subprocess.PIPE, **more):
    return subprocess.Popen(
        [ENGINE, *args], stdout=subprocess.PIPE, stderr=stderr, text=True, **more
    )


def finished(process, timeout=30):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err

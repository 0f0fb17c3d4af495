"""The loop: every failure is named, with its solver, view or generator and its step."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pytest

import engine
from engine.api import Array, Gain, Generator, View
from engine.linear import LinearRule, LinearState, Token
from engine.loop import loop
from engine.sources import ArraySource, GeneratorSource

from .loop_cases import SOLVERS, arrays, everything, make_track


class Empty(NamedTuple):
    S: Annotated[Array, "key value"]


@dataclass(frozen=True)
class Faulty(LinearRule):
    """Does what it should until step 5."""

    fault: str = "raise"

    def read(self, s, q):
        out = super().read(s, q)
        match self.fault if s.S.any() and abs(s.S).max() >= 5 else "":
            case "read shape":
                return out[..., :1]
            case "read dtype":
                return out.astype("float32")
            case "read scalar":
                return 0.0
        return out

    def write(self, s, k, v):
        S = s.S + 1.0
        match self.fault if S.max() > 5 else "":
            case "raise":
                raise ZeroDivisionError("no such thing")
            case "state shape":
                return LinearState(S[..., :1])
            case "state dtype":
                return LinearState(S.astype("float32"))
            case "state type":
                return (S,)
            case "nothing":
                return None
        return LinearState(S)


@pytest.mark.parametrize(
    ("fault", "step", "says"),
    [
        ("raise", 5, "ZeroDivisionError: no such thing"),
        ("read shape", 4, r"read gave float64 \(3, 1\), expected float64 \(3, 2\)"),
        ("read dtype", 4, "read gave float32 .* expected float64"),
        ("read scalar", 4, "read gave float, expected"),
        ("state shape", 5, r"read gave float64 \(3, 1\), expected float64 \(3, 2\)"),
        ("state dtype", 5, "S gave float32"),
        ("state type", 5, "write gave tuple, not LinearState"),
        ("nothing", 5, "write gave NoneType, not LinearState"),
    ],
)
@pytest.mark.parametrize("block", [1, 4, 100])
def test_a_faulty_solver_is_named_with_its_step(fault, step, says, block):
    source = ArraySource(arrays(12))
    track = make_track(source, Faulty(fault))
    with pytest.raises(engine.RunError, match=f"solver 'faulty' failed at step {step}: .*({says})"):
        for _ in loop(source, [track], block):
            pass


def state_of(dims, build):
    """Return a solver whose one state variable has these dims."""

    class State(NamedTuple):
        x: Annotated[Array, dims]

    class Odd(LinearRule):
        def init(self, space):
            return State(build(space))

    return Odd()


@pytest.mark.parametrize(
    ("dims", "build", "says"),
    [
        ("key value", lambda s: s.zeros("key"), r"x has shape \(3, 4\), but its dims 'key value'"),
        ("key", lambda s: s.zeros("value"), r"x has shape \(3, 2\)"),
        ("key", lambda s: s.xp.zeros(4), r"x has shape \(4,\)"),
        ("key key", lambda s: s.eye("key"), "dims 'key key' of x must differ.*key_2"),
        ("step key", lambda s: s.zeros("key"), "dims 'step key' of x must differ"),
        ("key trial", lambda s: s.zeros("key"), "dims 'key trial' of x must differ"),
    ],
)
def test_a_state_that_is_not_as_declared_is_refused_before_the_run(dims, build, says):
    with pytest.raises(engine.InputError, match=says):
        make_track(ArraySource(arrays()), state_of(dims, build))


@pytest.mark.parametrize(
    "name", ["prediction", "output", "diverged_at", "rows", "step", "trial", "key", "beta", "mask"]
)
def test_a_state_variable_cannot_take_a_name_that_means_something_else(name):
    """Two variables of one name would be one in the store."""
    state = NamedTuple("state", [(name, Annotated[Array, "key value"])])

    @dataclass(frozen=True)
    class Odd(LinearRule):
        def token(self, k, v, *, beta: Gain = 1.0) -> Token:
            return Token(write=beta * k, value=v)

        def init(self, space):
            return state(space.zeros("key value"))

    with pytest.raises(engine.InputError, match=f"state variable '{name}'.*rename"):
        make_track(ArraySource(arrays()), Odd())


@dataclass(frozen=True)
class OddView(View):
    fault: str = ""

    def __call__(self, x):
        match self.fault:
            case "raise":
                raise ZeroDivisionError("no such thing")
            case "in place":
                x *= 2
            case "dtype":
                return x.astype("float32")
            case "shape":
                return x[..., :1]
        return x

    def size(self, n):
        return n + 1 if self.fault == "size" else n


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raise", "ZeroDivisionError: no such thing"),
        ("in place", "read-only"),
        ("dtype", "keys became float32 .* expected float64"),
        ("shape", r"keys became float64 \(10, 3, 1\), expected float64 \(10, 3, 4\)"),
        ("size", r"keys became float64 \(10, 3, 4\), expected float64 \(10, 3, 5\)"),
    ],
)
def test_a_faulty_view_is_named_with_its_solver(fault, says):
    source = ArraySource(arrays(12))
    track = make_track(source, SOLVERS["delta"], OddView(fault))
    with pytest.raises(engine.RunError, match=f"view of solver 'delta' failed.*0 to 9.*{says}"):
        list(loop(source, [track], 10))


@dataclass(frozen=True)
class OddGenerator(Generator):
    """Is as it should be for no steps, and up to step 4."""

    fault: str = ""

    def start(self, draws, steps):
        return None

    def draw(self, state, draws, steps):
        n, trials = len(steps), draws.trials
        out = {
            "keys": np.ones((n, trials, 2)),
            "values": np.ones((n, trials, 1)),
            "count": np.zeros((n, trials), dtype=np.int64),
            "mask": np.ones((n, trials), dtype=bool),
        }
        match self.fault if steps.start >= 4 else "":
            case "raise":
                raise ZeroDivisionError("no such thing")
            case "dtype":
                out["count"] = out["count"] + 0.5
            case "width":
                out["keys"] = out["keys"][..., :1]
            case "length":
                out["values"] = out["values"][:-1]
            case "missing":
                del out["count"]
            case "more":
                out["new"] = out["count"]
            case "list":
                out["count"] = out["count"].tolist()
        if self.fault == "int mask":
            out["mask"] = out["mask"].astype(int)
        if self.fault == "objects":
            out["count"] = out["count"].astype(object)
        return state, out


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raise", "oddgenerator failed at steps 4 to 7: ZeroDivisionError: no such thing"),
        ("dtype", r"drew 'count' as float64 \(\), but as int64 \(\) for no steps"),
        ("width", r"drew 'keys' as float64 \(1,\), but as float64 \(2,\) for no steps"),
        ("length", r"drew 'values' of shape \(3, 2, 1\)"),
        ("missing", "drew 'count' as nothing, but as int64"),
        ("more", r"drew 'new' as int64 \(\), but as nothing"),
        ("list", "drew 'count' of shape list"),
        ("int mask", "drew 'mask' as int64, not bool"),
        ("objects", "drew 'count' as object, not floats, integers or bools"),
    ],
)
def test_a_faulty_generator_is_named_and_nothing_is_cast(fault, says):
    with pytest.raises(engine.RunError, match=f"generator .*{says}"):
        for _ in GeneratorSource(OddGenerator(fault), trials=2, steps=12).blocks(4):
            pass


def test_a_generator_may_mask_its_steps():
    source = GeneratorSource(OddGenerator(), trials=2, steps=12)
    track = make_track(source, SOLVERS["linear"])
    assert everything(source, track, 4)["S"][-1, :, 0, 0].tolist() == [12.0, 12.0]


def test_the_steps_before_a_failure_have_been_yielded():
    source = ArraySource(arrays(12))
    track = make_track(source, Faulty("raise"))
    seen = []
    with pytest.raises(engine.RunError):
        for frame in loop(source, [track], 2):
            seen.append(frame.stop)
    assert seen == [2, 4]

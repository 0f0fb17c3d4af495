"""A plugin that goes wrong mid-run: it is named with its step, and what was stored is whole.

One table for a solver's faults, by every way of running a scenario: stored, in memory and live.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pytest
import xarray as xr

import engine
from engine import ops
from engine.api import Array, Generator, View, hookimpl

AT, STEPS, FRAME, TRIALS = 21, 40, 8, 2
KEPT = 16
"""Steps of whole frames before the fault."""


class State(NamedTuple):
    S: Annotated[Array, "key value"]
    n: Annotated[Array, ""]


@dataclass(frozen=True)
class Wrong:
    """S <- S + k v^T until step 21, then `how`."""

    how: str = "right"

    def init(self, space):
        return State(space.zeros("key value"), space.zeros(""))

    def write(self, s, k, v):
        S, n = s.S + ops.outer(k, v), s.n + 1
        match self.how if s.n.max() == AT else "":
            case "nothing":
                return None
            case "tuple":
                return (S, n)
            case "state shape":
                return State(S[..., :1], n)
            case "state dtype":
                return State(S, n.astype("float32"))
            case "raises":
                raise FloatingPointError("the fit is gone")
            case "exits":
                raise SystemExit(0)
            case "nan":
                return State(S * np.nan, n)
            case "ctrl-c":
                raise KeyboardInterrupt
        return State(S, n)

    def read(self, s, q):
        o = ops.vecmat(q, s.S)
        # The state after step 20 is that before step 21: what is read of it is the prediction.
        match self.how if s.n.max() == AT + 1 else "":
            case "read nothing":
                return None
            case "read shape":
                return o[..., :1]
            case "read dtype":
                return o.astype("float32")
            case "read raises":
                raise KeyError("no such key")
        return o


@dataclass(frozen=True)
class Torn(Generator):
    """Random pairs; draws of steps past 20 go wrong."""

    how: str = "right"

    def start(self, draws, steps):
        return None

    def draw(self, state, draws, steps):
        keys = draws("keys").normal(len(steps), 3)
        drawn = {"keys": keys, "values": draws("values").normal(len(steps), 2)}
        match self.how if steps.stop > AT else "":
            case "nothing":
                return None
            case "shape":
                drawn["keys"] = keys[..., :1]
            case "dtype":
                drawn["keys"] = keys.astype(int)
            case "raises":
                raise OSError("the tape is torn")
            case "ctrl-c":
                raise KeyboardInterrupt
        return state, drawn


@dataclass(frozen=True)
class Blind(View):
    """x, until the key of step 21 comes, whose first number is known."""

    how: str = "right"
    last: float = 0.0

    def __call__(self, x):
        match self.how if np.any(x[..., 0] == self.last) else "":
            case "nothing":
                return None
            case "shape":
                return x[..., :1]
            case "dtype":
                return x.astype("float32")
            case "raises":
                raise ArithmeticError("cannot see")
            case "ctrl-c":
                raise KeyboardInterrupt
        return x


class Plugin:
    @hookimpl
    def engine_solvers(self):
        return {"wrong": Wrong}

    @hookimpl
    def engine_generators(self):
        return {"torn": Torn}

    @hookimpl
    def engine_views(self):
        return {"blind": Blind}


@pytest.fixture(autouse=True)
def plugins(no_folder, monkeypatch, small_shards):
    from engine import registry

    found = registry.load()
    found._add("faults", "this test", Plugin)
    monkeypatch.setattr(registry, "default", lambda: found)


def scenario(solver="right", generator="right", view=None):
    bad = {"solver": "wrong", "how": solver} | ({"view": view} if view else {})
    return {
        "trials": TRIALS,
        "stream": {"generator": "torn", "steps": STEPS, "how": generator},
        "solvers": {"bad": bad, "good": {"solver": "delta", "beta": 0.5}},
    }


def intact(path, status, kept):
    """Assert that a store opens anywhere and holds what the same run without a fault has."""
    run = engine.open(path)
    assert (run.attrs["status"], run.attrs["committed"]) == (status, kept)
    whole = engine.run(scenario())
    for name in ("stream/keys", "stream/values", "solvers/bad/S", "solvers/bad/prediction",
                 "solvers/bad/output", "solvers/good/S", "solvers/good/output"):  # fmt: skip
        assert run[name].sizes["step"] == kept
        np.testing.assert_array_equal(run[name], whole[name][:kept], name)
    with xr.open_datatree(path, engine="zarr") as plain:
        assert plain.attrs["status"] == status


FAULTS = {
    "nothing": "TypeError: write gave NoneType, not State",
    "tuple": "TypeError: write gave tuple, not State",
    "state shape": r"TypeError: read gave float64 \(2, 1\), expected float64 \(2, 2\)",
    "state dtype": r"TypeError: n gave float32 \(2,\), expected float64 \(2,\)",
    "raises": "FloatingPointError: the fit is gone",
    "exits": "SystemExit: 0",
    "read nothing": r"TypeError: read gave NoneType, expected float64 \(2, 2\)",
    "read shape": r"TypeError: read gave float64 \(2, 1\), expected float64 \(2, 2\)",
    "read dtype": r"TypeError: read gave float32 \(2, 2\), expected float64 \(2, 2\)",
    "read raises": "KeyError: 'no such key'",
}


@pytest.mark.parametrize("how, said", FAULTS.items(), ids=FAULTS)
def test_a_solver_is_named_with_its_step_however_it_is_run(how, said, tmp_path):
    told = f"solver 'bad' failed at step {AT}: {said}"
    with pytest.raises(engine.RunError, match=told):
        engine.run(scenario(how), tmp_path / "r.zarr")
    intact(tmp_path / "r.zarr", "failed", KEPT)
    with pytest.raises(engine.RunError, match=told):
        engine.run(scenario(how))
    with pytest.raises(engine.RunError, match=told):
        for frame in engine.stream(scenario(how), every=7):
            assert frame.stop <= AT


def test_ctrl_c_in_a_solver_says_where_it_was(tmp_path):
    with pytest.raises(KeyboardInterrupt) as asked:
        engine.run(scenario("ctrl-c"), tmp_path / "r.zarr")
    assert asked.value.__notes__ == [f"interrupted at step {AT}", "in solver 'bad'"]
    intact(tmp_path / "r.zarr", "interrupted", KEPT)


def test_what_is_not_finite_ends_nothing_and_is_dated(tmp_path):
    run = engine.run(scenario("nan"), tmp_path / "r.zarr")
    assert (run.attrs["status"], run.attrs["committed"]) == ("complete", STEPS)
    assert run["solvers/bad/diverged_at"].values.tolist() == [AT] * TRIALS
    assert run["solvers/good/diverged_at"].values.tolist() == [-1] * TRIALS
    whole = engine.run(scenario())
    np.testing.assert_array_equal(run["solvers/bad/S"][:AT], whole["solvers/bad/S"][:AT])
    assert np.isnan(run["solvers/bad/S"][AT:]).all()
    np.testing.assert_array_equal(run["solvers/good/S"], whole["solvers/good/S"])


TORN = {
    "nothing": r"TypeError: draw gave NoneType, not \(state, arrays by name\)",
    "shape": r"drew 'keys' as float64 \(1,\), but as float64 \(3,\)",
    "dtype": r"drew 'keys' as int64 \(3,\), but as float64 \(3,\)",
    "raises": "OSError: the tape is torn",
}


@pytest.mark.parametrize("how, said", TORN.items(), ids=TORN)
def test_a_generator_is_named_with_its_steps(how, said, tmp_path):
    with pytest.raises(engine.RunError, match=rf"(?=.*steps 16 to 23).*generator torn .*{said}"):
        engine.run(scenario(generator=how), tmp_path / "r.zarr")
    intact(tmp_path / "r.zarr", "failed", KEPT)


def test_ctrl_c_in_a_generator_keeps_what_was_done(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        engine.run(scenario(generator="ctrl-c"), tmp_path / "r.zarr")
    intact(tmp_path / "r.zarr", "interrupted", KEPT)


BLIND = {
    "nothing": "AttributeError",
    "shape": r"TypeError: keys became float64 \(8, 2, 1\), expected float64 \(8, 2, 3\)",
    "dtype": r"TypeError: keys became float32 \(8, 2, 3\), expected float64 \(8, 2, 3\)",
    "raises": "ArithmeticError: cannot see",
}


@pytest.mark.parametrize("how, said", BLIND.items(), ids=BLIND)
def test_a_view_is_named_with_its_solver_and_its_steps(how, said, tmp_path):
    first = float(engine.run(scenario())["stream/keys"][AT, 0, 0])
    view = {"view": "blind", "how": how, "last": first}
    told = f"the view of solver 'bad' failed at steps 16 to 23: {said}"
    with pytest.raises(engine.RunError, match=told):
        engine.run(scenario(view=view), tmp_path / "r.zarr")
    intact(tmp_path / "r.zarr", "failed", KEPT)

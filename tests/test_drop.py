"""`on_error = "drop"`: what fails is dropped and named, and nobody else notices."""

import json
import warnings

import numpy as np
import pytest

import engine
from engine import verify

from .store_cases import assert_same, flat, plain

BRITTLE = '''
"""A rule and a view that cannot bear large numbers."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from engine import ops
from engine.api import Array, Space, hookimpl


class State(NamedTuple):
    S: Annotated[Array, "key value"]
    n: Annotated[Array, ""]


@dataclass(frozen=True)
class Brittle:
    """S <- S + k v^T, in place, up to the first value beyond `bound`; n counts the writes."""

    bound: float = 0.99

    def init(self, space: Space) -> State:
        return State(space.zeros("key value"), space.xp.zeros(space.lead, dtype=space.xp.int64))

    def write(self, s: State, k: Array, v: Array) -> State:
        S = s.S
        S += k[..., None] * v[..., None, :]
        if np.abs(v).max() > self.bound:
            raise ArithmeticError("too large a value")
        return State(S, s.n + 1)

    def read(self, s: State, q: Array) -> Array:
        return ops.vecmat(q, s.S)


@dataclass(frozen=True)
class Glass:
    """x, up to the first number beyond `bound`."""

    bound: float = 1.5

    def __call__(self, x: Array) -> Array:
        if np.abs(x).max(initial=0) > self.bound:
            raise ArithmeticError("glass breaks")
        return x

    def queries(self, x: Array) -> Array:
        return self(x)

    def size(self, key: int) -> int:
        return key


@hookimpl
def engine_solvers():
    return {"brittle": Brittle}


@hookimpl
def engine_views():
    return {"glass": Glass}
'''
OTHERS = {"delta": {"beta": 0.3}, "rls": {}}
FAIL = {
    "brittle": {"bound": 0.99},
    "softmax": {"solver": "softmax_attention", "view": {"view": "glass", "bound": 1.5}},
    "wild": {"solver": "delta", "beta": 1e4, "view": None},
}
SCENARIO = {
    "seed": 2,
    "trials": 2,
    "on_error": "drop",
    "stream": {"generator": "random", "steps": 300, "key": 4, "value": 3, "keys": "gaussian"},
    "solvers": {**OTHERS, **FAIL},
    "probes": {"recall": {"every": 40}},
}


@pytest.fixture(autouse=True)
def plugins(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "brittle.py").write_text(BRITTLE)
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(folder))


def dropping(scenario, *args, **options):
    """Run it; every solver that fails is named, and nothing else is warned of."""
    with pytest.warns(engine.DroppedWarning) as said:
        run = engine.run(scenario, *args, **options)
    named = {str(w.message).split("'")[1] for w in said}
    return run, named


def first_steps(run):
    return {label: run[f"solvers/{label}"].attrs.get("dropped_at") for label in FAIL}


def test_the_first_step_without_a_solver_is_the_one_at_which_it_fails():
    run, named = dropping(SCENARIO)
    assert named == set(FAIL)
    values, keys = (run[f"stream/{name}"].values for name in ("values", "keys"))
    at = first_steps(run)
    assert at["brittle"] == np.argmax((np.abs(values) > 0.99).any((1, 2))) > 0
    assert at["softmax"] == np.argmax((np.abs(keys) > 1.5).any((1, 2))) > 0
    diverged = run["solvers/wild/diverged_at"].values
    assert (diverged >= 0).all() and at["wild"] == diverged.max() + 1 < 300
    because = {label: run[f"solvers/{label}"].attrs["dropped_because"] for label in FAIL}
    assert f"failed at step {at['brittle']}: ArithmeticError: too large" in because["brittle"]
    assert "glass breaks" in because["softmax"] and "diverged in every trial" in because["wild"]
    assert run.attrs["status"] == "complete" and run.attrs["committed"] == 300


@pytest.mark.parametrize("label", FAIL)
def test_before_it_stands_what_a_shorter_run_has_and_behind_it_nothing(label):
    """No generator's stream depends on its length, so the shorter run is another witness."""
    run, _ = dropping(SCENARIO)
    at = first_steps(run)[label]
    short = {**SCENARIO, "on_error": "stop", "solvers": {label: FAIL[label]}, "probes": {}}
    want = engine.run(short, **{"stream.steps": at})[f"solvers/{label}"].to_dataset()
    got = run[f"solvers/{label}"].to_dataset()
    assert {"prediction", "output"} < set(got) and set(want) == set(got)
    for name, x in got.items():
        if x.dims[:1] != ("step",):
            assert x.values.tobytes() == want[name].values.tobytes(), name
            continue
        assert x.values[:at].tobytes() == want[name].values.tobytes(), name
        behind = x.values[at:]
        if name == "rows":  # the memory is as it was
            assert (behind == at).all()
        else:
            assert np.isnan(behind).all() if x.dtype.kind == "f" else (behind == -1).all(), name


def test_the_others_are_what_they_are_without_it():
    run, _ = dropping(SCENARIO)
    want = flat(engine.run({**SCENARIO, "on_error": "stop", "solvers": OTHERS}))
    got = flat(run)
    assert all(got[path][1].tobytes() == x.tobytes() for path, (_, x) in want.items())
    reads = run["probes/recall/brittle/read"]
    for stop, asked in zip(run["probes/recall/probe_step"].values, reads, strict=True):
        there = stop <= first_steps(run)["brittle"]
        assert (np.isfinite if there else np.isnan)(asked[:stop]).all()


@pytest.mark.parametrize("record", ["every", "final", {"keyframes": 16}])
def test_blocks_and_stores_change_nothing(record, tmp_path, small_shards, monkeypatch):
    scenario = {**SCENARIO, "record": record}
    in_blocks, _ = dropping(scenario, tmp_path / "run.zarr")
    monkeypatch.undo()
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(next(tmp_path.parent.glob("plugins*"))))
    whole, _ = dropping({**SCENARIO, "record": "every" if record != "final" else record})
    got, want = flat(in_blocks), flat(whole)
    for path in want:
        assert got[path][1].tobytes() == want[path][1].tobytes(), path
    assert first_steps(in_blocks) == first_steps(whole)
    assert plain(tmp_path / "run.zarr")
    with pytest.warns(engine.DroppedWarning):
        assert not verify.verify(tmp_path / "run.zarr").differences
    if record == "final":
        assert np.isnan(in_blocks["solvers/brittle/S"]).all()
        assert np.isfinite(in_blocks["solvers/rls/S"]).all()


@pytest.mark.parametrize("record", ["every", {"keyframes": 16}])
def test_a_run_that_was_cut_resumes_to_the_same(record, tmp_path, small_shards, monkeypatch):
    from engine import store

    scenario = {**SCENARIO, "record": record}
    whole, _ = dropping(scenario, tmp_path / "whole.zarr")
    commit = store.ZarrSink.commit

    def failing(self, mark):
        if mark > 224:
            raise OSError("no space left on device")
        commit(self, mark)

    with monkeypatch.context() as patch:
        patch.setattr(store.ZarrSink, "commit", failing)
        with pytest.warns(engine.DroppedWarning), pytest.raises(engine.RunError, match="no space"):
            engine.run(scenario, tmp_path / "run.zarr")
    run, _ = dropping(scenario, tmp_path / "run.zarr", resume=True)
    assert_same(flat(run), flat(whole))
    assert first_steps(run) == first_steps(whole)


def test_stop_is_the_default(tmp_path):
    with pytest.raises(engine.RunError, match="solver 'brittle' failed at step"):
        engine.run({k: x for k, x in SCENARIO.items() if k != "on_error"}, tmp_path / "run.zarr")
    with pytest.raises(engine.InputError, match="on_error = 'skip': .*Known: drop, stop"):
        engine.run(SCENARIO, on_error="skip")


def test_frames_of_a_stream_go_on_too():
    with pytest.warns(engine.DroppedWarning):
        frames = list(engine.stream(SCENARIO, every=50))
    assert np.isnan(frames[-1]["brittle"].output).all()
    assert np.isfinite(frames[-1]["delta"].output).all()


def test_the_command_line_names_it(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.toml").write_text(
        'trials = 2\nseed = 2\n[stream]\ngenerator = "random"\nsteps = 300\nkey = 4\nvalue = 3\n'
        "[solvers.delta]\nbeta = 0.3\n[solvers.brittle]\nbound = 0.99\n"
    )
    assert call("run", "two.toml", "-o", "stop.zarr")[0] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, out, err = call("run", "two.toml", "-o", "drop.zarr", "--on-error", "drop")
    assert code == 0 and "brittle: dropped at step" in out
    assert "warning: solver 'brittle' is dropped at step" in err
    assert "brittle: dropped at step" in call("show", "drop.zarr")[1]
    facts = json.loads(call("show", "drop.zarr", "--json")[1])
    assert facts["dropped"]["brittle"]["dropped_at"] > 0
    assert call("run", "two.toml", "--on-error", "skip")[0] == 2

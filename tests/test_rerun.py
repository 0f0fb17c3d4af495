"""A stored stream once more: through the same solvers, others, or with other settings."""

import hashlib
import json
import re

import numpy as np
import pytest

import engine
from engine import rerun
from engine.recorded import RunStream

from .store_cases import SCENARIO, assert_same, flat, in_memory, plain


@pytest.fixture
def run(tmp_path, small_shards):
    engine.run(SCENARIO, tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def test_the_stored_stream_is_the_drawn_one(run):
    drawn = engine.experiment.prepare(SCENARIO, {}).source
    stored = RunStream(run)
    assert (stored.steps, stored.trials) == (150, 2)
    assert {n: stored.dims[n] for n in drawn.dims} == drawn.dims
    assert stored.sample.keys() == drawn.sample.keys()
    for name, x in drawn.sample.items():
        assert (stored.sample[name].shape, stored.sample[name].dtype) == (x.shape, x.dtype)
    assert stored.facts.keys() == drawn.facts.keys()
    for size in (1, 7, 64, 1000):
        pairs = zip(drawn.blocks(size), stored.blocks(size), strict=True)
        for want, got in pairs:
            assert got.start == want.start
            for name, x in want.arrays.items():
                assert got.arrays[name].tobytes() == x.tobytes()
    (late,) = stored.blocks(200, start=140)
    assert late.start == 140 and len(late) == 10


def test_the_same_solvers_give_the_same_run(run, tmp_path):
    assert_same(flat(engine.replay(run)), in_memory())
    again = engine.replay(run, out=tmp_path / "again.zarr")
    assert_same(plain(tmp_path / "again.zarr")[0], in_memory())
    assert again["stream"].attrs == engine.open(run)["stream"].attrs
    # ... and a replay is a run: it can be replayed.
    assert_same(flat(engine.replay(tmp_path / "again.zarr")), in_memory())


def test_a_replay_names_its_parent(run, tmp_path):
    child = engine.replay(run, ["delta"], tmp_path / "child.zarr")
    parent = engine.open(run).attrs
    text = json.dumps(parent["scenario"]["resolved"], sort_keys=True)
    assert child.attrs["parent"] == {
        "path": str(run.resolve()),
        "stream_sha256": engine.open(run)["stream"].attrs["sha256"],
        "scenario_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "kernels": {"delta": "numba"},
    }
    assert "parent" not in parent
    assert child.attrs["scenario"]["resolved"]["stream"]["generator"] == "random"


def test_other_solvers_see_what_they_would_have_seen(run):
    """A label of the run, a registered solver, a table: each as in a scenario of its own."""
    oja = {"solver": "oja", "beta": {"gate": "priority", "low": 0.0, "high": 0.5}}
    for solvers in (["delta", "retnet"], {"delta": {"beta": 0.1}, "mine": oja}):
        table = solvers if isinstance(solvers, dict) else {
            "delta": SCENARIO["solvers"]["delta"], "retnet": {},
        }  # fmt: skip
        assert_same(flat(engine.replay(run, solvers)), flat(engine.run(SCENARIO, solvers=table)))


def test_settings_may_differ(run):
    changed = {"solvers.delta.beta": 0.3, "dtype": "float32", "record": "final"}
    got = engine.replay(run, ["delta"], **changed)
    table = {"delta": {"beta": 0.3}}
    want = engine.run(SCENARIO, solvers=table, dtype="float32", record="final")
    assert_same(flat(got), flat(want))


def test_what_is_refused(run, tmp_path):
    for name in ("seed", "trials", "stream.steps"):
        with pytest.raises(engine.InputError, match=f"{name} = 3: the stream is the stored one"):
            engine.replay(run, **{name: 3})
    with pytest.raises(engine.InputError, match="named 'dleta'; did you mean 'delta'"):
        engine.replay(run, ["dleta"])
    with pytest.raises(engine.InputError, match="does not exist"):
        engine.replay(tmp_path / "none.zarr")
    with pytest.raises(engine.InputError, match="holds what the stream is read from"):
        engine.experiment.store_sink(rerun.prepare(run), run, force=True)
    assert_same(plain(run)[0], in_memory())


def test_a_cut_run_is_replayed_to_its_mark(tmp_path, monkeypatch, small_shards):
    commit = engine.store.ZarrSink.commit

    def dying(self, steps):
        commit(self, steps)
        if steps >= 60:
            raise OSError("no space left on device")

    with monkeypatch.context() as m:
        m.setattr(engine.store.ZarrSink, "commit", dying)
        with pytest.raises(engine.RunError):
            engine.run(SCENARIO, tmp_path / "run.zarr")
    again = engine.replay(tmp_path / "run.zarr", ["delta"], tmp_path / "again.zarr")
    done = again.sizes["step"]
    assert 60 <= done < 150 and again.attrs["status"] == "complete"
    assert again.attrs["scenario"]["resolved"]["stream"]["steps"] == done
    want = in_memory()["solvers/delta/S"][1][:done]
    assert again["solvers/delta/S"].values.tobytes() == want.tobytes()


def test_the_command_stores_and_prints_a_replay(call, own_folder, run):
    code, out, err = call("replay", run, "--solver", "delta", "--solver", "retnet", "-o", "b.zarr",
                          "--set", "solvers.delta.beta=0.3", "--json")  # fmt: skip
    assert code == 0 and not err
    told = json.loads(out)
    assert told["store"] == "b.zarr" and [row["solver"] for row in told["solvers"]] == [
        "delta", "retnet",
    ]  # fmt: skip
    assert float(engine.open("b.zarr")["solvers/delta/beta"]) == 0.3
    code, out, err = call("replay", run, "--solver", "delta")
    assert code == 0 and "stored in runs/scenario-replay.zarr" in out
    np.testing.assert_array_equal(
        engine.open("runs/scenario-replay.zarr")["solvers/delta/S"],
        in_memory()["solvers/delta/S"][1],
    )


def test_a_replay_on_another_kernel_says_which_and_keeps_to_the_tolerance(call, own_folder, run):
    code, out, _ = call("replay", run, "--set", "kernel=loop", "-o", "loop.zarr")
    told = re.findall(
        r"^(\w+): kernel (\w+) in .*run.zarr, kernel (\w+) here: equal up to (\S+) ", out, re.M
    )
    assert code == 0 and ("delta", "numba", "loop") in [line[:3] for line in told]
    assert {label for label, *_ in told} == {
        "linear",
        "delta",
        "longhorn",
        "rls",
        "wild",
        "softmax",
    }
    child, differ = engine.open("loop.zarr"), []
    for label, _, kernel, allowed in told:
        assert child[f"solvers/{label}"].attrs["kernel"] == kernel
        for name, x in child[f"solvers/{label}"].data_vars.items():
            want = in_memory()[f"solvers/{label}/{name}"][1]
            if "step" not in x.dims or want.dtype.kind != "f":
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                scale = np.maximum.accumulate(
                    np.nan_to_num(np.abs(want), posinf=0).reshape(150, -1).max(1)
                )
                apart = np.abs(x.values - want).reshape(150, -1).max(1)
            finite = np.isfinite(want).reshape(150, -1).all(1)
            share = (apart / np.maximum(scale, 1))[finite].max()
            assert share <= float(allowed), (label, name)
            differ.append(share)
    assert max(differ) > 0
    assert (
        call("replay", run, "--solver", "ls", "--set", "kernel=loop")[1].count("equal up to") == 0
    )

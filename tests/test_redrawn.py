"""Runs that store no stream: what is drawn again is what was drawn, or it is damage."""

import pickle

import numpy as np
import pytest
import xarray as xr
import zarr

import engine
from engine import redrawn
from engine.integrity import check
from engine.store import ZarrSink
from engine.verify import verify

from .store_cases import SCENARIO, assert_same, flat, in_memory, reseal

RECORD = {"keyframes": 16, "stream": False}
STEPPED = {"keys", "values", "priority"}


@pytest.fixture
def run(tmp_path, small_shards):
    engine.run(SCENARIO, tmp_path / "run.zarr", record=RECORD)
    return tmp_path / "run.zarr"


def stream_bytes(path):
    chunks = [p for n in STEPPED for p in (path / "stream" / n).rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in chunks if p.name != "zarr.json")


def test_every_number_is_what_recording_every_step_holds(run):
    found = flat(engine.open(run))
    for name, (dims, x) in in_memory().items():
        assert (found[name][0], found[name][1].dtype) == (dims, x.dtype)
        assert found[name][1].tobytes() == x.tobytes(), name
    assert STEPPED <= {
        n for n, x in engine.open(run)["stream"].data_vars.items() if "step" in x.dims
    }
    assert stream_bytes(run) == 4 * 3 * 10  # a checksum for each variable and 16 of 150 steps
    assert check(run) == [] and not verify(run).differences
    assert engine.open(run).attrs["scenario"]["resolved"]["record"] == RECORD


@pytest.mark.parametrize("stream", [
    {"generator": "drifting", "steps": 1300, "key": 3, "value": 2},
    {"generator": "recurring", "steps": 1300, "key": 8, "value": 3},
], ids=lambda s: s["generator"])  # fmt: skip
def test_reads_in_any_order_are_the_numbers_that_were_drawn(stream, tmp_path):
    scenario = {"trials": 2, "stream": stream, "solvers": {"delta": {}}}
    want = flat(engine.run(scenario))
    tree = engine.run(scenario, tmp_path / "run.zarr", record={"keyframes": 50, "stream": False})
    names = [n for n, (dims, _) in want.items() if dims[:1] == ("step",) and "/" in n]
    rng = np.random.default_rng(0)
    for _ in range(100):
        name, step = names[rng.integers(len(names))], int(rng.integers(1300))
        got = tree[name].isel(step=step).values
        assert got.tobytes() == want[name][1][step].tobytes(), (name, step)


def test_plain_xarray_reads_no_fill_values(run):
    with xr.open_datatree(run, engine="zarr") as tree:
        assert tree["keyframes/delta/S"].notnull().all()
        with pytest.raises(ValueError, match="checksum"):
            tree["stream/keys"].load()


def test_a_stream_that_is_drawn_otherwise_is_damage(run):
    root = zarr.open_group(str(run), mode="r+")
    told = dict(root.attrs["scenario"])
    told["resolved"]["seed"] = 6
    root.attrs["scenario"] = told
    reseal(run)
    match = r"stream/keys, step \d+ to \d+: what is drawn now is not what was drawn"
    with pytest.raises(engine.DamageError, match=match):
        engine.open(run)["stream/keys"].load()
    with pytest.raises(engine.DamageError, match="what is drawn now"):
        engine.open(run)["solvers/delta/S"].load()
    assert {d.variable for d in check(run)} == {f"stream/{n}" for n in STEPPED}


def test_a_generator_that_is_not_installed_is_named(run):
    root = zarr.open_group(str(run), mode="r+")
    told = dict(root.attrs["scenario"])
    told["resolved"]["stream"]["generator"] = "gone"
    root.attrs["scenario"] = told
    reseal(run)
    with pytest.raises(engine.InputError, match="its stream is not stored .*'gone'"):
        engine.open(run)["stream/keys"].load()
    assert engine.open(run)["keyframes/delta/S"].notnull().all()


@pytest.mark.parametrize("how", ["flip", "delete", "truncate"])
def test_a_damaged_checksum_is_found(how, run):
    file = run / "stream/values/c/3/0/0"
    raw = bytearray(file.read_bytes())
    raw[1] ^= 8
    if how == "delete":
        file.unlink()
    else:
        file.write_bytes(raw if how == "flip" else raw[:2])
    (found,) = check(run)
    assert (found.variable, found.steps) == ("stream/values", (48, 63))
    with pytest.raises(engine.DamageError, match="stream/values, step 48 to 63: "):
        engine.open(run)["stream/values"].load()
    np.testing.assert_array_equal(
        engine.open(run)["stream/values"][:48], in_memory()["stream/values"][1][:48]
    )


def test_it_is_a_stream_for_replays_and_other_runs(run, tmp_path):
    again = engine.replay(run, out=tmp_path / "again.zarr", record="every")
    assert_same(flat(again), in_memory())
    child = engine.replay(run, ["delta"], tmp_path / "child.zarr")  # it stores what it read
    assert "redrawn" not in child["stream/keys"].attrs
    np.testing.assert_array_equal(child["stream/keys"], in_memory()["stream/keys"][1])
    stream = {"generator": "stored", "path": str(run)}
    other = engine.run({**SCENARIO, "stream": stream, "probes": {}})
    np.testing.assert_array_equal(other["solvers/rls/S"], in_memory()["solvers/rls/S"][1])


def test_a_run_that_was_cut_is_shown_and_resumed(tmp_path, small_shards, monkeypatch):
    path, commit = tmp_path / "run.zarr", ZarrSink.commit

    def dying(self, steps):
        commit(self, steps)
        if steps >= 64:
            raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(ZarrSink, "commit", dying)
        with pytest.raises(engine.RunError):
            engine.run(SCENARIO, path, record=RECORD)
    cut = engine.open(path)
    assert 64 <= cut.attrs["committed"] < 150
    done = cut.attrs["committed"]
    np.testing.assert_array_equal(cut["stream/keys"], in_memory()["stream/keys"][1][:done])
    np.testing.assert_array_equal(cut["solvers/rls/S"], in_memory()["solvers/rls/S"][1][:done])
    whole = flat(engine.run(SCENARIO, path, resume=True, record=RECORD))
    for name, (_, x) in in_memory().items():
        assert whole[name][1].tobytes() == x.tobytes(), name
    assert check(path) == []


def test_checksums_tell_other_numbers(tmp_path):
    checks = redrawn.Checks(tmp_path / "x", 4, (2,), np.dtype(float))
    rows = np.arange(12.0).reshape(6, 2)
    checks.write(8, rows)
    assert checks.like(8, rows) is rows
    other = rows + np.eye(6, 2)
    assert (checks.like(8, other) != other).all()


def test_it_can_be_sent_to_another_process(run):
    tree = engine.open(run)
    first = tree["stream/keys"].isel(step=3).values
    again = pickle.loads(pickle.dumps(tree))
    np.testing.assert_array_equal(again["stream/keys"].isel(step=3), first)
    np.testing.assert_array_equal(again["stream/keys"], in_memory()["stream/keys"][1])


def test_show_says_that_the_stream_is_not_stored(run, call):
    code, out, _ = call("show", run)
    (line,) = [x for x in out.splitlines() if " stream/keys " in x]
    assert code == 0 and "recomputed" in line


def test_what_is_refused():
    with pytest.raises(engine.InputError, match=r"record\.stream = 3"):
        engine.run(SCENARIO, record={"keyframes": 4, "stream": 3})

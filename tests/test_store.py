"""The store of a run: every step, its own bits, readable without this project."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

import engine
from engine import contents, store

from .store_cases import SCENARIO, assert_same, flat, plain

# The whole run


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("record", ["every", "final"])
def test_a_stored_run_is_the_run_in_memory(record, dtype, tmp_path, small_shards):
    memory = engine.run(SCENARIO, record=record, dtype=dtype)
    stored = engine.run(SCENARIO, tmp_path / "run.zarr", record=record, dtype=dtype)
    assert stored["solvers/rls/output"].dtype == stored["solvers/rls/P"].dtype == dtype
    assert_same(flat(stored), flat(memory))
    assert_same(plain(tmp_path / "run.zarr")[0], flat(memory))
    assert stored.attrs["committed"] == memory.attrs["committed"] == 150
    assert stored.attrs["status"] == memory.attrs["status"] == "complete"
    for node in memory.subtree:
        if node.path != "/":
            assert stored[node.path].attrs == node.attrs


def test_shards_and_chunks_change_no_bit(tmp_path, monkeypatch):
    want = flat(engine.run(SCENARIO, **{"stream.steps": 9}))
    for shard, chunk, block in ((1, 2**22, 1024), (4, 512, 7), (8, 1, 1)):
        monkeypatch.setattr("engine.recorder.SHARD_STEPS", shard)
        monkeypatch.setattr("engine.recorder.BLOCK_STEPS", block)
        monkeypatch.setattr("engine.store.CHUNK_BYTES", chunk)
        got = engine.run(SCENARIO, tmp_path / f"{shard}-{chunk}.zarr", **{"stream.steps": 9})
        assert_same(flat(got), want)


@pytest.mark.parametrize("steps", [0, 1, 5, 63, 64, 65, 1334])
def test_runs_of_any_length_are_stored_whole(steps, tmp_path, monkeypatch):
    """The number of stored steps = number of steps given; none at all is a run too."""
    monkeypatch.setattr("engine.recorder.SHARD_STEPS", 64 if steps < 100 else 512)
    few = {n: SCENARIO["solvers"][n] for n in ("softmax", "delta", "rls")}
    scenario = {**SCENARIO, "solvers": few}
    memory = engine.run(scenario, **{"stream.steps": steps})
    engine.run(scenario, tmp_path / "run.zarr", **{"stream.steps": steps})
    got, attrs = plain(tmp_path / "run.zarr")
    assert_same(got, flat(memory))
    assert attrs["committed"] == steps == got["stream/keys"][1].shape[0]
    assert got["solvers/rls/P"][1].shape == (steps, 2, 4, 4)
    assert float(got["solvers/rls/gamma"][1][0]) == 0.9  # known though nothing was run
    assert contents.describe(tmp_path / "run.zarr")["steps"] == steps


@pytest.mark.parametrize("record", ["every", "final", {"keyframes": 8}])
def test_metadata_are_those_that_zarr_itself_writes(record, tmp_path):
    engine.run({**SCENARIO, "record": record}, tmp_path / "run.zarr")
    found = list(zarr.open_group(str(tmp_path / "run.zarr"), mode="r").arrays())
    for name, group in zarr.open_group(str(tmp_path / "run.zarr"), mode="r").members(None):
        if isinstance(group, zarr.Group):
            found += [(f"{name}/{n}", x) for n, x in group.arrays()]
    assert len(found) > 10
    for i, (name, x) in enumerate(found):
        zarr.create_array(
            str(tmp_path / str(i)), shape=x.shape, dtype=x.dtype, chunks=x.chunks,
            shards=x.shards and {"shape": x.shards, "index_location": "start"},
            compressors=x.compressors, fill_value=x.fill_value,
            dimension_names=x.metadata.dimension_names, attributes=dict(x.attrs),
        )  # fmt: skip
        ours, theirs = (tmp_path / p / "zarr.json" for p in (f"run.zarr/{name}", str(i)))
        assert ours.read_bytes() == theirs.read_bytes(), name


def test_every_dim_has_its_own_name(tmp_path):
    """CASES A16, xarray issues 8579, 1378: a duplicate dim can be stored but not indexed."""
    engine.run(SCENARIO, tmp_path / "run.zarr")
    with xr.open_datatree(tmp_path / "run.zarr", engine="zarr", chunks={}) as tree:
        P = tree["solvers/rls/P"]
        assert P.dims == ("step", "trial", "key", "key_2")
        assert P.isel(key_2=0).shape == (150, 2, 4)
        assert P.mean("key_2").shape == P.mean("key").shape == (150, 2, 4)
        assert P.chunk(key_2=2).chunks[-1] == (2, 2)
        np.testing.assert_array_equal(P.sel(step=149).values, P.values[-1])
        assert tree["solvers/ls/A"].dims == ("step", "trial", "key", "key_2")
        assert tree["solvers/softmax/keys"].dims == ("row", "trial", "key")


def test_a_run_says_what_it_was(tmp_path):
    path = tmp_path / "run.zarr"
    run = engine.run(SCENARIO, path, seed=7)
    attrs = plain(path)[1]
    assert attrs["format"] == 2
    resolved = attrs["scenario"]["resolved"]
    assert resolved["seed"] == 7 and resolved["trials"] == 2
    assert resolved["stream"]["generator"] == "random" and resolved["stream"]["keys"] == "unit"
    assert resolved["solvers"]["rls"]["limit"] is None
    assert resolved["solvers"]["softmax"]["view"] == {"view": "unit"}
    provenance = attrs["provenance"]
    assert provenance["versions"]["numpy"] == np.__version__
    assert provenance["versions"]["zarr"] == zarr.__version__
    assert provenance["seed"] == 7 and provenance["backend"] == "numpy"
    assert provenance["byteorder"] == sys.byteorder
    assert {"prediction", "output", "state", "decay", "mask"} <= provenance["conventions"].keys()
    rls = run["solvers/rls"].attrs
    assert rls["solver"] == "rls" and rls["hyperparameters"] == {"ridge": 0.5, "limit": None}
    assert rls["plugin"].startswith("ttr-engine ") and rls["kernel"]
    assert len(run["stream"].attrs["sha256"]) == 64
    again = engine.run(SCENARIO, seed=7)
    assert again["stream"].attrs["sha256"] == run["stream"].attrs["sha256"]
    other = engine.run(SCENARIO, seed=8)
    assert other["stream"].attrs["sha256"] != run["stream"].attrs["sha256"]
    # What a shipped file says is kept word for word.
    text = engine.run("rebinding", trials=2).attrs["scenario"]["text"]
    assert text == (Path(__file__).parents[1] / "scenarios" / "rebinding.toml").read_text("utf-8")


def test_coefficients_are_recorded_as_they_were_used(tmp_path):
    run = engine.run(SCENARIO, tmp_path / "run.zarr")
    priority = run["stream/priority"].values
    assert run["solvers/delta/beta"].dims == ("step", "trial")
    np.testing.assert_array_equal(run["solvers/delta/beta"], np.where(priority, 0.9, 0.1))
    x = np.minimum(np.arange(150) / 90, 1)
    assert run["solvers/longhorn/beta"].dims == ("step",)
    np.testing.assert_allclose(run["solvers/longhorn/beta"], 2.0 - 1.5 * x, rtol=1e-15)
    np.testing.assert_array_equal(run["solvers/rls/gamma"], [0.9, 1.0])
    assert run["solvers/rls/gamma"].dims == ("trial",)
    assert run["solvers/wild/beta"].dims == () and float(run["solvers/wild/beta"]) == 1e4
    for label in ("delta", "longhorn", "rls"):
        name = {"rls": "gamma"}.get(label, "beta")
        given = run[f"solvers/{label}/{name}"]
        if label == "rls":
            given = given.expand_dims(step=150)
        rule = engine.solver(label, **run[f"solvers/{label}"].attrs["hyperparameters"])
        keys, values = run["stream/keys"], run["stream/values"]
        again = engine.simulate(rule, keys, values, **{name: given})
        assert again.S.values.tobytes() == run[f"solvers/{label}/S"].values.tobytes()


def test_divergence_is_stored_per_trial(tmp_path):
    run = engine.run(SCENARIO, tmp_path / "run.zarr")
    for label in SCENARIO["solvers"]:
        found = run[f"solvers/{label}/diverged_at"].values
        reads = run[f"solvers/{label}/output"].values
        first = [int(np.argmax(~np.isfinite(reads[:, b]).all(-1))) for b in range(2)]
        if label == "wild":
            assert (found >= 0).all() and (found <= first).all()
            assert all(np.isfinite(reads[:n, b]).all() for b, n in enumerate(found))
        else:
            assert found.tolist() == [-1, -1] and np.isfinite(reads).all()


def test_softmax_states_are_prefixes_of_one_array(tmp_path):
    """The state after step t is the first rows[t] rows: starting there goes on as the run did."""
    run = engine.run(SCENARIO, tmp_path / "run.zarr")
    softmax = run["solvers/softmax"].to_dataset().load()
    np.testing.assert_array_equal(softmax.rows, np.arange(1, 151)[:, None].repeat(2, 1))
    unit = engine.view("unit")(run["stream/keys"].values)
    np.testing.assert_array_equal(softmax["keys"].values, unit)
    rule = engine.solver("softmax_attention", scale=3.0)
    for t in (0, 70, 148):
        state = {n: softmax[n].isel(row=slice(int(softmax.rows[t, 0]))) for n in ("keys", "values")}
        rest = engine.simulate(rule, unit[t + 1 :], run["stream/values"].values[t + 1 :],
                               state=state)  # fmt: skip
        assert rest.output.values.tobytes() == softmax.output.values[t + 1 :].tobytes()


def test_the_stream_of_a_run_is_a_stream(tmp_path):
    run = engine.run(SCENARIO, tmp_path / "run.zarr")
    stored = {"generator": "stored", "path": str(tmp_path / "run.zarr")}
    again = engine.run({**SCENARIO, "stream": stored}, tmp_path / "again.zarr")
    assert again["stream"].attrs["sha256"] == run["stream"].attrs["sha256"]
    assert_same(flat(again), flat(run))


# Without this project


READER = """
import hashlib, json, sys
sys.modules["engine"] = None  # importing it is an ImportError from here on
import xarray as xr
found = {}
for path in sys.argv[1:]:
    with xr.open_datatree(path, engine="zarr") as tree:
        digest = {"attrs": dict(tree.attrs)["committed"]}
        for node in tree.subtree:
            for name, x in node.to_dataset(inherit=False).variables.items():
                values = x.values
                bits = hashlib.sha256(values.tobytes()).hexdigest()
                digest[f"{node.path}/{name}".lstrip("/")] = [
                    list(x.dims), str(values.dtype), list(values.shape), bits
                ]
        found[path] = digest
try:
    import engine
except ImportError:
    print(json.dumps(found))
"""


def test_plain_xarray_opens_a_run_where_this_project_is_not_installed(tmp_path):
    """Warnings are errors there too; a run of no steps is no exception."""
    import hashlib

    whole, none = tmp_path / "run.zarr", tmp_path / "none.zarr"
    memory = {
        str(whole): engine.run(SCENARIO),
        str(none): engine.run(SCENARIO, **{"stream.steps": 0}),
    }
    engine.run(SCENARIO, whole)
    engine.run(SCENARIO, none, **{"stream.steps": 0})
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READER, str(whole), str(none)],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for path, found in json.loads(done.stdout).items():
        want = {
            name: [list(dims), str(x.dtype), list(x.shape), hashlib.sha256(x.tobytes()).hexdigest()]
            for name, (dims, x) in flat(memory[path]).items()
        }
        assert found.pop("attrs") == memory[path].attrs["committed"]
        assert found == want


# Damage


def corrupt(path, at):
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_is_found(tmp_path):
    """In numbers that are compressed and in numbers that are not."""
    run = engine.run(SCENARIO, tmp_path / "run.zarr")
    run["solvers/delta/S"].load()
    for name in ("stream/keys", "stream/key_id", "solvers/rls/P"):
        (file,) = [f for f in (tmp_path / "run.zarr" / name / "c").rglob("*") if f.is_file()]
        corrupt(file, file.stat().st_size // 2)
        with pytest.raises(Exception, match="(?i)checksum|corrupt|data error|zstd"):
            engine.open(tmp_path / "run.zarr")[name].load()


# Where a store may be


def test_a_path_that_is_taken_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("keep")
    for path in (tmp_path / "notes", tmp_path / "notes" / "a.txt"):
        with pytest.raises(engine.InputError, match="exists"):
            engine.run(SCENARIO, path)
        with pytest.raises(engine.InputError, match="not a run's store"):
            store.ZarrSink(path, 1, force=True)
    assert (tmp_path / "notes" / "a.txt").read_text() == "keep"
    engine.run(SCENARIO, tmp_path / "deep" / "er" / "run.zarr")
    with pytest.raises(engine.InputError, match="exists.*--force"):
        engine.run(SCENARIO, tmp_path / "deep" / "er" / "run.zarr")


def test_what_is_not_a_run_is_not_opened(tmp_path):
    (tmp_path / "empty").mkdir()
    zarr.create_group(str(tmp_path / "other.zarr"), zarr_format=3)
    engine.run(SCENARIO, tmp_path / "newer.zarr")
    zarr.open_group(str(tmp_path / "newer.zarr")).update_attributes({"format": 99})
    for name, says in (
        ("nowhere", "does not exist"),
        ("empty", "is not a run's store"),
        ("other.zarr", "no attribute 'format'"),
        ("newer.zarr", "format 99.*upgrade"),
    ):
        with pytest.raises(engine.InputError, match=says):
            engine.open(tmp_path / name)


def test_nothing_is_written_before_a_scenario_is_known_to_be_right(tmp_path):
    for wrong in (
        {"solvers.delta.beta": -1.0}, {"solvers.rls.ridge": 0.0}, {"stream.steps": -1},
        {"stream.key": 0}, {"solvers.delta.beta": {"gate": "nothing", "low": 0.0, "high": 1.0}},
    ):  # fmt: skip
        with pytest.raises(engine.InputError):
            engine.run(SCENARIO, tmp_path / "run.zarr", **wrong)
    assert not list(tmp_path.iterdir())


# Memory


GROWTH = """
import resource, sys
import engine
engine.run({
    "stream": {"generator": "random", "steps": int(sys.argv[1]), "key": 32, "value": 32},
    "solvers": {"delta": {"beta": 0.5}},
}, sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_length_of_a_run(tmp_path):
    """8 KiB of state per step: 128 MiB stored against 32, and less than 40 MB more in memory."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = []
    for steps in (4096, 16384):
        done = subprocess.run(
            [sys.executable, "-c", GROWTH, str(steps), str(tmp_path / f"{steps}.zarr")],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        peak.append(int(done.stdout) * unit)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit >= max(peak)
    stored = [engine.open(tmp_path / f"{n}.zarr")["solvers/delta/S"].nbytes for n in (4096, 16384)]
    assert stored[1] - stored[0] > 100e6
    assert peak[1] - peak[0] < 40e6

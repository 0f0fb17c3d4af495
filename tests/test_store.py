"""The store of a run: every step, its own bits, readable without this project, cut or whole."""

import functools
import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pytest
import xarray as xr
import zarr

import engine
from engine import experiment, store
from engine.api import Array
from engine.backend import backend
from engine.loop import loop
from engine.recorder import MemorySink, Recorder
from engine.sources import ArraySource
from engine.track import Track

SCENARIO = {
    "title": "a bit of everything",
    "seed": 5,
    "trials": 2,
    "stream": {"generator": "random", "steps": 150, "key": 4, "value": 3, "priority": 0.5},
    "solvers": {
        "softmax": {"solver": "softmax_attention", "scale": 3.0, "view": "unit"},
        "linear": {"solver": "linear_attention", "normalise": True, "view": "elu1"},
        "delta": {"beta": {"gate": "priority", "low": 0.1, "high": 0.9}},
        "longhorn": {"beta": {"schedule": "linear", "start": 2.0, "stop": 0.5, "over": 90}},
        "rls": {"gamma": {"trials": [0.9, 1.0]}, "ridge": 0.5},
        "ls": {"solver": "least_squares", "ridge": 1e-3},
        "wild": {"solver": "delta", "beta": 1e4},
    },
    "probes": {"recall": {}},
}


@pytest.fixture
def small_shards(monkeypatch):
    """Make shards of 16 steps and frames of 8, so that a short run has many of both."""
    monkeypatch.setattr("engine.recorder.SHARD_STEPS", 16)
    monkeypatch.setattr("engine.recorder.BLOCK_STEPS", 8)


def flat(tree):
    """Return every variable of a tree as (dims, array), by path."""
    found = {}
    for node in tree.subtree:
        for name, x in node.to_dataset(inherit=False).variables.items():
            found[f"{node.path}/{name}".lstrip("/")] = (x.dims, x.values)
    return found


@functools.cache
def in_memory():
    """Return the variables of SCENARIO, run in memory."""
    return flat(engine.run(SCENARIO))


def assert_same(got, want):
    assert got.keys() == want.keys()
    for path, (dims, x) in want.items():
        assert (got[path][0], got[path][1].dtype, got[path][1].shape) == (dims, x.dtype, x.shape)
        assert got[path][1].tobytes() == x.tobytes(), path


def plain(path):
    """Return what plain xarray sees; warnings are errors here."""
    with xr.open_datatree(path, engine="zarr") as tree:
        return flat(tree), dict(tree.attrs)


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
    assert store.describe(tmp_path / "run.zarr")["steps"] == steps


def test_every_dim_has_its_own_name(tmp_path):
    """xarray issues 8579, 1378: a duplicate dim can be stored but not indexed."""
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
    assert attrs["format"] == 1
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


# Any state, as it is


class Counted(NamedTuple):
    S: Annotated[Array, "key value"]
    count: Annotated[Array, ""]
    flag: Annotated[Array, "value"]
    zero: Annotated[Array, "key key_2"]


@dataclass(frozen=True)
class InPlace:
    """A rule of a stranger that updates its one state in place and hands it out again."""

    def init(self, space):
        count = space.xp.zeros(space.lead, dtype=space.xp.int64)
        flag = space.xp.zeros(space.shape("value"), dtype=space.xp.bool)
        return Counted(space.zeros("key value"), count, flag, space.zeros("key key_2"))

    def write(self, s, k, v):
        error = v - (k[..., None, :] @ s.S)[..., 0, :]
        s.S[...] += k[..., :, None] * error[..., None, :]
        s.flag[...] = s.count[..., None] % 2 == 1
        s.count[...] += 1
        return s

    def read(self, s, q):
        return (q[..., None, :] @ s.S)[..., 0, :]


def record(arrays, sink, shard, block, solver=None):
    """Record one solver over arrays; return the track."""
    source = ArraySource(arrays)
    track = Track("rule", solver or InPlace(), source, {}, None, backend("numpy"), "float64")
    recorder = Recorder(sink, source, [track], "every", shard)
    for frame in loop(source, [track], block):
        recorder.write(frame)
    recorder.close()
    sink.close("complete")
    return track


@pytest.mark.parametrize("shard", [1, 2, 4])
def test_states_updated_in_place_are_recorded_step_by_step(shard, tmp_path):
    """mizer issue 285: three pairs, unit keys, value 1."""
    arrays = {"keys": np.eye(3)[:, None], "values": np.ones((3, 1, 1))}
    sink = MemorySink()
    track = record(arrays, sink, shard, 2)
    record(arrays, store.ZarrSink(tmp_path / "run.zarr", shard), shard, 2)
    track.state.S[...] = 77.0  # changing what the rule holds does not change the record
    for found in (flat(sink.tree()), plain(tmp_path / "run.zarr")[0]):
        assert found["solvers/rule/S"][1][:, 0, :, 0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
        assert found["solvers/rule/count"][1][:, 0].tolist() == [1, 2, 3]


def test_zeros_integers_and_bools_come_back_as_they_are(tmp_path):
    """xarray-simlab issues 172, 162: 0 is a number, not a missing one."""
    arrays = {
        "keys": np.zeros((4, 1, 4)),
        "values": np.zeros((4, 1, 2)),
        "tag": np.array([[0], [1], [2], [3]], dtype=np.int16),
        "seen": np.array([[False], [True], [False], [True]]),
        "small": np.zeros((4, 1), dtype=np.float32),
    }
    record(arrays, store.ZarrSink(tmp_path / "run.zarr", 4), 4, 3)
    found, _ = plain(tmp_path / "run.zarr")
    for name in ("tag", "seen", "small", "keys"):
        got = found[f"stream/{name}"][1]
        assert got.dtype == arrays[name].dtype and got.tobytes() == arrays[name].tobytes()
    assert found["solvers/rule/count"][1].dtype == "int64"
    assert found["solvers/rule/count"][1][:, 0].tolist() == [1, 2, 3, 4]
    flags = found["solvers/rule/flag"][1]
    assert flags.dtype == bool and flags[:, 0, 0].tolist() == [False, True, False, True]
    for name in ("S", "zero", "output", "prediction"):
        got = found[f"solvers/rule/{name}"][1]
        assert got.dtype == "float64" and got.tobytes() == bytes(got.nbytes)


@pytest.mark.parametrize("junk", [0.0, 1e6, np.nan])
def test_padded_steps_are_stored_as_missing(junk, tmp_path):
    """Not as repeated zeros, and without a trace in the states."""
    rng = np.random.default_rng(0)
    arrays = {"keys": rng.normal(size=(9, 2, 3)), "values": rng.normal(size=(9, 2, 2))}
    alone = {n: x[:5, :1].copy() for n, x in arrays.items()}
    arrays["mask"] = np.ones((9, 2), dtype=bool)
    arrays["mask"][5:, 0] = False
    arrays["keys"][5:, 0] = arrays["values"][5:, 0] = junk
    record(arrays, store.ZarrSink(tmp_path / "padded.zarr", 4), 4, 3)
    record(alone, store.ZarrSink(tmp_path / "alone.zarr", 4), 4, 3)
    got, want = plain(tmp_path / "padded.zarr")[0], plain(tmp_path / "alone.zarr")[0]
    for name in ("S", "count", "output", "prediction"):
        x, y = got[f"solvers/rule/{name}"][1], want[f"solvers/rule/{name}"][1]
        assert np.ascontiguousarray(x[:5, :1]).tobytes() == y.tobytes()
        if name in ("output", "prediction"):
            assert np.isnan(x[5:, 0]).all() and np.isfinite(x[:, 1]).all()
        else:
            assert (x[5:, 0] == x[4, 0]).all()
    assert got["solvers/rule/diverged_at"][1].tolist() == [-1, -1]
    assert got["stream/mask"][1].dtype == bool


# Cut short


class Cut(OSError):
    pass


PER_SHARD = 34
"""Variables of SCENARIO with a step axis: a shard is this many writes."""


@pytest.fixture
def cut(monkeypatch):
    """Make the n-th write of a shard's variable raise, once or for ever after."""

    def arrange(at, for_ever):
        writes, write = [0], store.ZarrSink.write

        def failing(self, variable, start, rows):
            if variable.dims[:1] == ("step",) and variable.group:
                writes[0] += 1
                if writes[0] == at or (for_ever and writes[0] > at):
                    if len(rows) > 1:  # a write that fails may have written a part
                        write(self, variable, start, rows[: len(rows) // 2])
                    raise Cut("no space left on device")
            write(self, variable, start, rows)

        monkeypatch.setattr(store.ZarrSink, "write", failing)

    return arrange


def assert_prefix(path, steps, status):
    """Assert that a store shows the first steps of the whole run, and no others."""
    run, whole = engine.open(path), in_memory()
    assert run.attrs["status"] == status and run.attrs["committed"] == steps
    assert run.sizes["step"] == steps
    got = flat(run)
    for name, (dims, x) in got.items():
        want = whole[name][1][:steps] if dims[:1] == ("step",) else whole[name][1]
        if dims[:1] == ("row",):
            assert x.tobytes() == want[: len(x)].tobytes()  # at least the rows of these steps
            assert len(x) >= steps
        elif name.endswith("diverged_at"):
            np.testing.assert_array_equal(x, np.where(want < steps, want, -1))
        else:
            assert x.dtype == want.dtype and x.tobytes() == want.tobytes(), name
    each = {n for n, (dims, _) in whole.items() if dims[:1] == ("step",)}
    assert each <= got.keys()


@pytest.mark.parametrize(
    ("at", "done"),
    [
        (1, 0), (PER_SHARD, 0), (PER_SHARD + 1, 16), (3 * PER_SHARD, 32), (10 * PER_SHARD, 144),
    ],
)  # fmt: skip
def test_a_disk_that_fills_up_leaves_the_committed_prefix(at, done, cut, tmp_path, small_shards):
    """Every variable of a shard, then the mark: what is shown is complete for all of them."""
    cut(at, for_ever=True)
    with pytest.raises(engine.RunError, match=f"{done} of 150 steps are stored: no space left"):
        engine.run(SCENARIO, tmp_path / "run.zarr")
    assert_prefix(tmp_path / "run.zarr", done, "failed")
    assert "sha256" not in engine.open(tmp_path / "run.zarr")["stream"].attrs


def test_a_write_that_fails_once_is_repeated_but_the_run_has_failed(cut, tmp_path, small_shards):
    cut(3 * PER_SHARD + 5, for_ever=False)
    with pytest.raises(engine.RunError, match="64 of 150 steps are stored: no space left"):
        engine.run(SCENARIO, tmp_path / "run.zarr")
    assert_prefix(tmp_path / "run.zarr", 64, "failed")


def test_plain_xarray_sees_missing_numbers_behind_the_prefix(cut, tmp_path, small_shards):
    """Rows that were never written must not look like numbers."""
    cut(3 * PER_SHARD + 5, for_ever=True)
    with pytest.raises(engine.RunError):
        engine.run(SCENARIO, tmp_path / "run.zarr")
    got, attrs = plain(tmp_path / "run.zarr")
    assert attrs["committed"] == 48 and attrs["status"] == "failed"
    assert got["solvers/rls/P"][1].shape[0] == 150
    assert np.isnan(got["solvers/ls/S"][1][64:]).all()


def test_the_mark_moves_last(tmp_path, monkeypatch, small_shards):
    log, write, commit = [], store.ZarrSink.write, store.ZarrSink.commit

    def logged_write(self, variable, start, rows):
        write(self, variable, start, rows)
        log.append((variable.path, start + len(rows) if variable.shape else None))

    def logged_commit(self, steps):
        # What is marked can be read back: nothing of it is still under way.
        root = zarr.open_group(str(tmp_path / "run.zarr"), mode="r")
        ends = {path: end for path, end in log if path not in ("committed", "/step", "/trial")}
        dims = {path: root[path].metadata.dimension_names or () for path in ends}
        moving = [path for path in ends if dims[path][:1] == ("step",)]
        assert len(moving) == PER_SHARD and {ends[p] for p in moving} == {steps}
        commit(self, steps)
        log.append(("committed", steps))

    monkeypatch.setattr(store.ZarrSink, "write", logged_write)
    monkeypatch.setattr(store.ZarrSink, "commit", logged_commit)
    engine.run(SCENARIO, tmp_path / "run.zarr")
    marks = [steps for name, steps in log if name == "committed"]
    assert marks[-1] == 150 and [m for m in dict.fromkeys(marks)][:3] == [16, 32, 48]


def test_a_run_can_be_read_while_it_is_written(tmp_path, small_shards):
    seen, path = [], tmp_path / "run.zarr"
    plan = experiment.prepare(SCENARIO, {})
    whole = in_memory()

    def watch(frame):
        run = engine.open(path)
        seen.append(run.sizes["step"])
        assert run.attrs["status"] == "running"
        for name in ("stream/keys", "solvers/rls/P", "solvers/softmax/rows"):
            assert run[name].values.tobytes() == whole[name][1][: seen[-1]].tobytes()

    experiment.execute(plan, experiment.store_sink(plan, path), watch)
    assert seen == [n // 2 * 16 for n in range(1, 19)] + [144]
    assert engine.open(path).sizes["step"] == 150


def bad_stream(tmp_path):
    """Write a stream whose 50th key cannot be solved for; return a scenario over it."""
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(100, 1, 3)), rng.normal(size=(100, 1, 2))
    keys[50], values[50] = 1e30, np.inf
    stream = xr.Dataset(
        {"keys": (("step", "trial", "key"), keys), "values": (("step", "trial", "value"), values)}
    )
    stream.to_zarr(tmp_path / "stream.zarr", zarr_format=3, consolidated=False)
    return {
        "stream": {"generator": "stored", "path": str(tmp_path / "stream.zarr")},
        "solvers": {
            "delta": {"beta": 0.1},
            "ls": {"solver": "least_squares", "gamma": 0.0},
            "softmax": {"solver": "softmax_attention"},
        },
    }


@pytest.mark.parametrize("kept", ["every", "final"])
def test_a_solver_that_fails_leaves_what_was_complete(kept, tmp_path, small_shards):
    """Frames of 8: the one with step 50 is lost, the 48 steps before it are not."""
    scenario = {**bad_stream(tmp_path), "record": kept}
    with pytest.raises(engine.RunError, match="solver 'ls' failed at step 50: LinAlgError"):
        engine.run(scenario, tmp_path / "run.zarr")
    run = engine.open(tmp_path / "run.zarr")
    assert run.attrs["status"] == "failed" and run.attrs["committed"] == run.sizes["step"] == 48
    del scenario["solvers"]["ls"]
    want = engine.run({**scenario, "record": "every"})
    for name in ("output", "prediction"):
        for label in ("delta", "softmax"):
            x = run[f"solvers/{label}/{name}"].values
            assert x.tobytes() == want[f"solvers/{label}/{name}"].values[:48].tobytes()
    if kept == "every":
        assert run["solvers/ls/S"].shape == (48, 1, 3, 2)
        assert np.isfinite(run["solvers/ls/S"]).all()
    else:  # there is no final state: solvers stopped at different steps
        assert "S" not in run["solvers/delta"] and "S" not in run["solvers/ls"]
    # delta went on through the lost frame, where it is not finite: that is not in this record.
    assert run["solvers/delta/diverged_at"].values.tolist() == [-1]


KILLED = """
import json, os, sys
from pathlib import Path
from engine import experiment, recorder, store
recorder.SHARD_STEPS, recorder.BLOCK_STEPS = 16, 8
scenario = json.loads(sys.argv[1])
write, count = store.ZarrSink.write, [0]
def dying(self, variable, start, rows):
    count[0] += variable.dims[:1] == ("step",) and bool(variable.group)
    if count[0] == 3 * {per_shard} + 20:
        write(self, variable, start, rows[:3])
        os._exit(9)
    write(self, variable, start, rows)
store.ZarrSink.write = dying
plan = experiment.prepare(scenario, {{}})
experiment.execute(plan, experiment.store_sink(plan, Path(sys.argv[2])))
"""


def test_a_run_that_is_killed_leaves_the_committed_prefix(tmp_path):
    script = KILLED.format(per_shard=PER_SHARD)
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(SCENARIO), str(tmp_path / "run.zarr")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 9, done.stderr
    run = engine.open(tmp_path / "run.zarr")
    assert run.attrs["status"] == "running" and run.attrs["committed"] == 48
    got, whole = flat(run), in_memory()
    for name, (dims, x) in got.items():
        want = whole[name][1][:48] if dims[:1] == ("step",) else whole[name][1]
        assert x.tobytes() == want.tobytes(), name
    assert {"solvers/rls/P", "solvers/softmax/rows", "stream/keys"} <= got.keys()


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

"""The store of a run that was cut short: the steps that were complete, and no others."""

import json
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
import zarr

import engine
from engine import experiment, ops, store

from .store_cases import SCENARIO, flat, in_memory, plain


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
    handed = [n // 2 * 16 for n in range(1, 19)] + [144]
    # One shard at most is on its way to the disk while the next is computed.
    assert all(n - 16 <= s <= n for s, n in zip(seen, handed, strict=True))
    assert seen == sorted(seen)
    assert engine.open(path).sizes["step"] == 150
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
def test_a_solver_that_fails_leaves_what_was_complete(kept, tmp_path, small_shards, monkeypatch):
    """Frames of 8: the one with step 50 is lost, the 48 steps before it are not."""
    solve = ops.ridge_solve

    def refusing(A, B, ridge):
        if np.abs(A).max() > 1e50:
            raise np.linalg.LinAlgError("Singular matrix")
        return solve(A, B, ridge)

    monkeypatch.setattr(ops, "ridge_solve", refusing)
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

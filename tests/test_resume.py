"""A run that was killed, resumed: bit for bit the run that nobody disturbed."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import engine
from engine import experiment, integrity, registry

from .store_cases import SCENARIO, assert_same, flat, in_memory


class Cut(OSError):
    pass


@pytest.fixture
def cut(monkeypatch):
    """Return what runs SCENARIO into a path until `steps` are committed, and then fails."""

    def run(path, steps):
        from engine import store

        commit = store.ZarrSink.commit

        def failing(self, mark):
            if mark > steps:
                raise Cut("no space left on device")
            commit(self, mark)

        with monkeypatch.context() as patch:
            patch.setattr(store.ZarrSink, "commit", failing)
            with pytest.raises(engine.RunError, match="no space left"):
                engine.run(SCENARIO, path)

    return run


@pytest.mark.parametrize("steps", [0, 16, 100, 144])
def test_a_resumed_run_is_the_undisturbed_one(steps, cut, tmp_path, small_shards):
    engine.run(SCENARIO, tmp_path / "whole.zarr")
    cut(tmp_path / "run.zarr", steps)
    got = engine.run(SCENARIO, tmp_path / "run.zarr", resume=True)
    whole = engine.open(tmp_path / "whole.zarr")
    assert_same(flat(got), flat(whole))
    assert_same(flat(got), in_memory())
    for node in whole.subtree:
        old, new = dict(node.attrs), dict(got[node.path].attrs)
        assert {k: v for k, v in new.items() if k != "writer"} == {
            k: v for k, v in old.items() if k != "writer"
        }


def test_what_changed_is_refused_and_shown(cut, tmp_path, small_shards):
    cut(tmp_path / "run.zarr", 48)
    files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for changed, told in (
        ({"seed": 6}, "seed: 5 in the store, 6 now"),
        ({"trials": 3}, "trials: 2 in the store, 3 now"),
        ({"dtype": "float32"}, "dtype: 'float64' in the store, 'float32' now"),
        ({"solvers.wild.beta": 9.0}, r"solvers.wild.beta: 10000.0 in the store, 9.0 now"),
        ({"stream.key": 5}, "stream.key: 4 in the store, 5 now"),
        ({"stream.steps": 151}, "stream.steps: 150 in the store, 151 now"),
        ({"stream.key": 5}, r"stream/keys: float64 \(150, 2, 4\) in .*, float64 \(150, 2, 5\) now"),
        ({"kernel": "loop"}, "kernel: 'auto' in the store, 'loop' now"),
        ({"record": "final"}, "record: 'every' in the store, 'final' now"),
        ({"on_error": "drop"}, "on_error: 'stop' in the store, 'drop' now"),
        (
            {"solvers.more.solver": "delta"},
            "solvers.more: nothing in the store, {'solver': 'delta'",
        ),
    ):
        if "trials" in changed:
            changed["solvers.rls.gamma"] = 1.0
        with pytest.raises(engine.InputError, match=told):
            engine.run(SCENARIO, tmp_path / "run.zarr", resume=True, **changed)
    assert files == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_stored_numbers_that_do_not_come_out_again_are_refused(
    cut, tmp_path, small_shards, monkeypatch
):
    cut(tmp_path / "run.zarr", 48)
    files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    generator = registry.default().get("generator", "random").cls
    draw = generator.draw

    def other(self, state, draws, steps):
        state, arrays = draw(self, state, draws, steps)
        return state, {**arrays, "values": np.nextafter(arrays["values"], np.inf)}

    monkeypatch.setattr(generator, "draw", other)
    with pytest.raises(engine.InputError, match="stream/values at step 0 is stored as other"):
        engine.run(SCENARIO, tmp_path / "run.zarr", resume=True)
    assert files == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_a_complete_run_is_left_alone_and_a_missing_one_said(tmp_path):
    engine.run(SCENARIO, tmp_path / "run.zarr")
    files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert_same(flat(engine.run(SCENARIO, tmp_path / "run.zarr", resume=True)), in_memory())
    assert files == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(engine.InputError, match="none.zarr does not exist: to begin a run"):
        engine.run(SCENARIO, tmp_path / "none.zarr", resume=True)


def test_a_run_killed_as_it_began_opens_and_is_resumed(tmp_path):
    """Its attributes are all that it has; `--force` is not needed to go on."""
    from engine import cut

    plan = experiment.prepare(SCENARIO, {})
    left = experiment.store_sink(plan, tmp_path / "run.zarr")
    left.release()
    run = engine.open(tmp_path / "run.zarr")
    assert (run.attrs["committed"], run.attrs["status"], dict(run.children)) == (0, "running", {})
    assert cut.only_begun(tmp_path / "run.zarr")
    got = engine.run(SCENARIO, tmp_path / "run.zarr", resume=True)
    assert_same(flat(got), in_memory())
    (tmp_path / "empty.zarr").mkdir()  # killed before even that was said
    assert_same(flat(engine.run(SCENARIO, tmp_path / "empty.zarr", resume=True)), in_memory())


@pytest.mark.parametrize("library", ["numpy", "numba", "ttr-engine"])
def test_a_version_that_alters_numbers_is_refused_and_shown(
    library, cut, tmp_path, small_shards, monkeypatch
):
    from importlib.metadata import version

    cut(tmp_path / "run.zarr", 48)
    told = {library: "99.0"}
    monkeypatch.setattr("engine.resume.version", lambda name: told.get(name) or version(name))
    said = f"version of {library}: {version(library)} in the store, 99.0 now"
    with pytest.raises(engine.InputError, match=re.escape(said)):
        engine.run(SCENARIO, tmp_path / "run.zarr", resume=True)
    assert engine.open(tmp_path / "run.zarr").attrs["status"] == "failed"


def test_another_kernel_is_refused_and_shown(cut, tmp_path, small_shards, monkeypatch):
    """As where numba was there when the run began, and is not any more."""
    cut(tmp_path / "run.zarr", 48)
    monkeypatch.setattr("engine.kernels.find_spec", lambda name: None)
    with pytest.raises(engine.InputError, match="kernel of delta: 'numba' in .*, 'loop' now"):
        engine.run(SCENARIO, tmp_path / "run.zarr", resume=True)


def test_a_run_that_is_being_written_is_not_resumed(tmp_path):
    plan = experiment.prepare(SCENARIO, {})
    sink = experiment.store_sink(plan, tmp_path / "run.zarr")
    with pytest.raises(engine.InputError, match=f"being written by process {os.getpid()}; "):
        engine.run(SCENARIO, tmp_path / "run.zarr", resume=True)
    experiment.execute(plan, sink)
    assert_same(flat(engine.open(tmp_path / "run.zarr")), in_memory())


FULL = """
import json, resource, sys
from engine import experiment, recorder, store
from engine.commands.run import record
from engine.errors import RunError
from pathlib import Path

recorder.SHARD_STEPS, recorder.BLOCK_STEPS = 16, 8
commit = store.ZarrSink.commit

def filling(self, mark):
    commit(self, mark)
    if mark == 48:  # from here on no file can be written, whatever is in it
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

store.ZarrSink.commit = filling
plan = experiment.prepare(json.loads(sys.argv[1]), {})
try:
    record(plan, Path(sys.argv[2]), False, False)
except RunError as error:
    sys.exit(str(error))
"""


def test_a_full_disk_says_what_is_stored_and_keeps_it(tmp_path, small_shards):
    """The operating system refuses every write, of metadata too, from some moment on."""
    path = tmp_path / "run.zarr"
    done = subprocess.run(
        [sys.executable, "-c", FULL, json.dumps(SCENARIO), str(path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "could not be written, 48 of 150 steps are stored: " in done.stderr
    assert "run.zarr keeps the first 48 steps" in done.stderr and "Traceback" not in done.stderr
    run, whole = engine.open(path), in_memory()
    assert run.attrs["committed"] == run.sizes["step"] == 48
    for name, (dims, x) in flat(run).items():
        want = whole[name][1][:48] if dims[:1] == ("step",) else whole[name][1]
        assert x.tobytes() == want.tobytes(), name
    assert_same(flat(engine.run(SCENARIO, path, resume=True)), whole)


def test_what_was_being_put_in_place_when_a_run_was_killed_is_no_damage(
    cut, tmp_path, small_shards, monkeypatch
):
    from engine import store

    path = tmp_path / "run.zarr"
    with monkeypatch.context() as patch:  # who is killed closes nothing
        patch.setattr(store.ZarrSink, "close", lambda sink, status: sink.release())
        cut(path, 48)
    assert engine.open(path).attrs["status"] == "running"
    for folder in ("", "stream", "solvers/rls/P"):
        (path / folder / "zarr.json.partial").write_text('{"half')
    assert not integrity.check(path)
    assert engine.open(path).sizes["step"] == 48
    assert_same(flat(engine.run(SCENARIO, path, resume=True)), in_memory())

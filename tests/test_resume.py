"""A run that was killed, resumed: bit for bit the run that nobody disturbed."""

import multiprocessing
import random
import shutil
import time

import numpy as np
import pytest

import engine
from engine import registry

from .store_cases import SCENARIO, assert_same, flat, in_memory

SEVERAL = {
    "seed": 3,
    "trials": 2,
    "stream": {"generator": "random", "steps": 1500, "key": 6, "value": 4},
    "solvers": {"softmax": {"solver": "softmax_attention"}, "rls": {}, "titans": {}, "delta": {}},
}


def written(scenario, path):
    """What a process does that is going to be killed."""
    from engine import recorder

    recorder.SHARD_BYTES = 2**16
    engine.run(scenario, path)


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
    with pytest.raises(engine.InputError, match="none.zarr"):
        engine.run(SCENARIO, tmp_path / "none.zarr", resume=True)


def test_kills_at_random_moments_lose_nothing(tmp_path, monkeypatch):
    """Each store opens, shows a prefix of the undisturbed run, and is resumed to all of it."""
    from engine import recorder

    scenario = SEVERAL
    monkeypatch.setattr(recorder, "SHARD_BYTES", 2**16)
    engine.run(scenario, tmp_path / "whole.zarr")
    whole = flat(engine.open(tmp_path / "whole.zarr"))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.experiment", "engine.store", "xarray"])
    chance, cut_short = random.Random(1), 0
    for kill in range(8):
        path = tmp_path / f"{kill}.zarr"
        process = context.Process(target=written, args=(scenario, path))
        process.start()
        while not begun(path):
            assert process.is_alive() or process.exitcode == 0
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.5))
        process.kill()
        process.join()
        left = engine.open(path)
        mark = left.attrs["committed"]
        cut_short += left.attrs["status"] != "complete"
        for name, (dims, x) in flat(left).items():
            want = whole[name][1]
            if dims[:1] == ("step",):
                want = want[: len(x)]
                assert len(x) == mark, name
            if dims[:1] != ("row",) and not name.endswith("diverged_at"):
                assert x.tobytes() == want.tobytes(), name
        assert_same(flat(engine.run(scenario, path, resume=True)), whole)
        shutil.rmtree(path)
    assert cut_short >= 3


def begun(path):
    try:
        return "block" in engine.open(path).attrs
    except (engine.InputError, KeyError, OSError, ValueError):
        return False

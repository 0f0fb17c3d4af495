"""A run that was killed, resumed: bit for bit the run that nobody disturbed."""

import numpy as np
import pytest

import engine
from engine import experiment, registry

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


def test_a_run_killed_as_it_began_opens_and_is_resumed(tmp_path):
    """Its attributes are all that it has; `--force` is not needed to go on."""
    from engine import store

    plan = experiment.prepare(SCENARIO, {})
    left = experiment.store_sink(plan, tmp_path / "run.zarr")
    left.release()
    run = engine.open(tmp_path / "run.zarr")
    assert (run.attrs["committed"], run.attrs["status"], dict(run.children)) == (0, "running", {})
    assert store.only_begun(tmp_path / "run.zarr")
    got = engine.run(SCENARIO, tmp_path / "run.zarr", resume=True)
    assert_same(flat(got), in_memory())
    (tmp_path / "empty.zarr").mkdir()  # killed before even that was said
    assert_same(flat(engine.run(SCENARIO, tmp_path / "empty.zarr", resume=True)), in_memory())

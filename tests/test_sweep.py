"""Sweeps: which parts there are, that each is the run it would be alone, and what is refused."""

import numpy as np
import pytest
import xarray as xr

import engine
from engine import store, sweep

from .store_cases import assert_same, flat

BASE = {
    "seed": 5, "trials": 2, "stream": {"generator": "random", "steps": 6, "key": 3, "value": 3},
    "solvers": {"delta": {"beta": 0.5}},
}  # fmt: skip


def test_a_table_is_a_product_and_tables_follow_one_another():
    got = sweep.combinations([{"a": [1, 2], "b": {"c": [3, 4]}, "d": 0}, {"a": [[7, 8]]}])
    assert got == [
        {"a": 1, "b.c": 3, "d": 0}, {"a": 1, "b.c": 4, "d": 0}, {"a": 2, "b.c": 3, "d": 0},
        {"a": 2, "b.c": 4, "d": 0}, {"a": [7, 8]},
    ]  # fmt: skip


def test_every_part_is_the_run_it_would_be_alone(tmp_path):
    swept = {**BASE, "sweep": {"stream.steps": [4, 6], "solvers.delta.beta": [0.5, 1.0]}}
    memory = engine.run(swept)
    stored = engine.run(swept, out=tmp_path / "s.zarr")
    for i, (steps, beta) in enumerate([(4, 0.5), (4, 1.0), (6, 0.5), (6, 1.0)]):
        seed = memory[f"parts/{i}"].attrs["scenario"]["resolved"]["seed"]
        settings = {"seed": seed, "stream.steps": steps, "solvers.delta.beta": beta}
        alone = engine.run(BASE, **settings)
        for tree in (memory, stored, {"": engine.open(tmp_path / "s.zarr" / "parts" / str(i))}):
            part = tree[""] if isinstance(tree, dict) else tree[f"parts/{i}"]
            assert part.attrs["settings"] == {"stream.steps": steps, "solvers.delta.beta": beta}
            for name in ("stream/keys", "solvers/delta/S", "solvers/delta/output"):
                assert part[name].values.tobytes() == alone[name].values.tobytes()
    assert stored.attrs["status"] == "complete" and stored.attrs["committed"] == 4
    with xr.open_datatree(tmp_path / "s.zarr", engine="zarr") as plain:
        assert plain["parts/3/solvers/delta/S"].shape == (6, 2, 3, 3)


def test_parts_with_one_stream_share_their_numbers_and_others_do_not():
    run = engine.run({**BASE, "sweep": {"stream.steps": [4, 6], "solvers.delta.beta": [0.5, 1.0]}})
    keys = [run[f"parts/{i}/stream/keys"].values[:4] for i in range(4)]
    assert (keys[0] == keys[1]).all() and (keys[2] == keys[3]).all()
    assert abs(keys[0] - keys[2]).min() > 0
    assert run["parts/0"].attrs["scenario"]["resolved"]["seed"] == 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "sweep: must have at least one table"),
        ({}, "sweep: must be a table of key paths"),
        ([{"seed": 1}, 3], r"sweep\[1\]: must be a table of key paths"),
        ({"seed": []}, r"sweep.seed = \[\]: must have at least one value"),
        ({"stream.stepz": [4]}, r"part 0 \(stream.stepz = 4\): .*takes no 'stepz'"),
        ({"solvers.delta.beta": [0.5, -1.0]}, r"part 1 \(solvers.delta.beta = -1.0\)"),
    ],
)
def test_a_wrong_sweep_is_refused_before_anything_is_written(given, words, tmp_path):
    with pytest.raises(engine.InputError, match=words):
        engine.run({**BASE, "sweep": given}, out=tmp_path / "s.zarr")
    assert not (tmp_path / "s.zarr").exists()


def test_what_the_sweep_sets_cannot_be_set_beside_it():
    swept = {**BASE, "sweep": {"stream.steps": [4, 6]}}
    with pytest.raises(engine.InputError, match=r"set sweep\.stream\.steps instead"):
        engine.run(swept, **{"stream.steps": 3})
    with pytest.raises(engine.InputError, match="several runs"):
        next(engine.stream(swept))


def test_a_sweep_that_fails_keeps_the_parts_that_are_done(tmp_path, faulty):
    base = {
        "stream": {"generator": "random", "steps": 10},
        "solvers": {"bad": {"solver": "faulty", "how": "raise", "at": 5}},
    }
    with pytest.raises(engine.RunError, match=r"part 1 \(stream.steps = 10\): solver 'bad' failed"):
        engine.run({**base, "sweep": {"stream.steps": [4, 10, 3]}}, out=tmp_path / "s.zarr")
    run = engine.open(tmp_path / "s.zarr")
    assert run.attrs["status"] == "failed" and run.attrs["committed"] == 1
    assert run["parts/0/solvers/bad/output"].sizes["step"] == 4
    assert set(run["parts"].children) == {"0", "1"}
    assert run["parts/1"].attrs["status"] == "failed"


def test_a_store_that_is_there_needs_force(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(
        '[stream]\ngenerator = "random"\n[solvers.delta]\n[sweep]\nstream.steps = [4, 6]\n'
    )
    assert call("run", "s.toml", "-o", "s.zarr")[0] == 0
    code, _, err = call("run", "s.toml", "-o", "s.zarr")
    assert code == 2 and "exists" in err
    code, out, _ = call(
        "run", "s.toml", "-o", "s.zarr", "--force", "--set", "sweep.stream.steps=[3]"
    )
    assert code == 0 and "1 parts, stored in s.zarr" in out
    assert engine.open("s.zarr")["parts/0/solvers/delta/S"].sizes["step"] == 3
    code, shown, _ = call("show", "s.zarr")
    assert code == 0 and "1 of 1 parts" in shown
    assert np.isfinite(engine.open("s.zarr")["parts/0/solvers/delta/S"].values).all()


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_sweep_that_was_cut_is_resumed(done, tmp_path, monkeypatch, small_shards):
    """Parts that are complete stay, file for file; the others become whole."""
    scenario = {**BASE, "sweep": {"solvers.delta.beta": [0.1, 0.2, 0.3]}}
    scenario["stream"] = {**BASE["stream"], "steps": 40}
    whole = engine.run(scenario, tmp_path / "whole.zarr")
    commit, path = store.ZarrSink.commit, tmp_path / "run.zarr"

    def failing(self, mark):
        if mark > 16 and self._path.name == str(done):
            raise OSError("no space left on device")
        commit(self, mark)

    with monkeypatch.context() as patch:
        patch.setattr(store.ZarrSink, "commit", failing)
        with pytest.raises(engine.RunError, match=f"part {done} .*16 of 40 steps are stored"):
            engine.run(scenario, path)
    parts = [path / "parts" / str(i) for i in range(done)]
    before = {p: p.read_bytes() for part in parts for p in part.rglob("*") if p.is_file()}
    with pytest.raises(engine.InputError, match="sweep: .* in the store, .*0.9.* now"):
        engine.run({**scenario, "sweep": {"solvers.delta.beta": [0.9]}}, path, resume=True)
    run = engine.run(scenario, path, resume=True)
    assert run.attrs["status"] == "complete" and run.attrs["committed"] == 3
    assert_same(flat(run), flat(whole))
    assert [run[f"parts/{i}"].attrs["settings"] for i in range(3)] == [
        whole[f"parts/{i}"].attrs["settings"] for i in range(3)
    ]
    assert all(p.read_bytes() == data for p, data in before.items())
    assert_same(flat(engine.run(scenario, path, resume=True)), flat(whole))  # nothing to do

"""What is put in place in which order, so that a kill between any two files leaves a store."""

import asyncio
import json

import numpy as np
import pytest
from zarr.storage import LocalStore

import engine
from engine import experiment, integrity, store

from .store_cases import assert_same, flat

SCENARIO = {
    "seed": 3, "trials": 2,
    "stream": {"generator": "random", "steps": 40, "key": 4, "value": 3},
    "solvers": {"delta": {}, "softmax": {"solver": "softmax_attention"}},
    "probes": {"often": {"every": 10}, "end": {}},
}  # fmt: skip


@pytest.mark.parametrize("record", ["every", "final", {"keyframes": 8}])
def test_no_node_is_there_before_its_parent(record, tmp_path, monkeypatch):
    """zarr writes a node and its parents at once, in any order; here parents would come late."""
    order, put, put_new = [], LocalStore.set, LocalStore.set_if_not_exists

    async def write(self, key, value, **more):
        await put(self, key, value, **more)
        order.append(key)

    async def write_late(self, key, value):
        await asyncio.sleep(0.005)
        await put_new(self, key, value)
        order.append(key)

    place = store.replace

    def replace(path, data):
        place(path, data)
        if path.parent != tmp_path / "run.zarr":
            order.append(path.relative_to(tmp_path / "run.zarr").as_posix())

    monkeypatch.setattr(store, "replace", replace)
    monkeypatch.setattr(LocalStore, "set", write)
    monkeypatch.setattr(LocalStore, "set_if_not_exists", write_late)
    engine.run({**SCENARIO, "record": record}, tmp_path / "run.zarr")
    nodes = [key.removesuffix("/zarr.json") for key in order if key.endswith("/zarr.json")]
    assert {"solvers/delta/prediction", "probes/often/softmax/read"} & set(nodes)
    for i, node in enumerate(nodes):
        above = node.rpartition("/")[0]
        assert not above or above in nodes[:i], f"{node} before {above}"


def test_a_node_without_a_parent_gets_one_when_its_run_is_resumed(tmp_path, monkeypatch):
    """As a kill left it before parents came first."""
    whole, path = flat(engine.run(SCENARIO, tmp_path / "whole.zarr")), tmp_path / "run.zarr"
    monkeypatch.setattr("engine.recorder.SHARD_STEPS", 8)
    monkeypatch.setattr("engine.recorder.BLOCK_STEPS", 8)
    commit = store.ZarrSink.commit

    def cut(self, steps):
        commit(self, steps)
        if steps >= 24:
            raise OSError("cut")

    with monkeypatch.context() as patched:
        patched.setattr(store.ZarrSink, "commit", cut)
        patched.setattr(experiment, "end", lambda sink, status: sink._lock.release())
        with pytest.raises(engine.RunError):
            engine.run(SCENARIO, path)
    attrs = json.loads(path.joinpath("zarr.json").read_text())["attributes"]
    assert attrs["status"] == "running" and attrs["committed"] == 24
    path.joinpath("probes/often/softmax/zarr.json").unlink()
    assert_same(flat(engine.run(SCENARIO, path, resume=True)), whole)
    assert not integrity.check(path)
    assert np.isfinite(engine.open(path)["probes/often/softmax/read"].values[-1]).all()

"""A run larger than memory: measured in blocks, or as chunks, to the same bits."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.measure import capacity, lift, optimum, state, tracking

ROOT = Path(__file__).parents[2]
TABLE = {
    "trials": 3,
    "stream": {"generator": "drifting", "steps": 120, "key": 4, "value": 2},
    "solvers": {"rls": {"gamma": 0.95}},
}


@pytest.mark.parametrize("chunks", [None, {}, {"step": -1}, "auto"])
def test_a_stored_run_is_measured_as_one_in_memory(chunks, tmp_path, monkeypatch):
    want = engine.run(TABLE)
    engine.run(TABLE, tmp_path / "r.zarr")
    monkeypatch.setattr(lift, "BLOCK_BYTES", 1000)
    run = engine.open(tmp_path / "r.zarr", chunks=chunks)
    assert bool(run["solvers/rls/S"].chunks) == (chunks is not None)
    for each in (
        lambda r: tracking.tracking_error(r["solvers/rls/S"], r["stream/target_map"]),
        lambda r: tracking.error_curve(r, "rls"),
        lambda r: tracking.lag(r["solvers/rls/S"], r["stream/target_map"], longest=20),
        lambda r: state.effective_rank(r["solvers/rls/S"]),
        lambda r: state.spectrum(r["solvers/rls/P"], dims=("key", "key_2")),
        lambda r: state.smallest_eigenvalue(r["solvers/rls/P"]),
        lambda r: capacity.cosine(r["solvers/rls/output"], r["stream/values"]),
        lambda r: optimum.against_optimum(r, "rls").distance,
    ):
        a, b = each(run), each(want)
        np.testing.assert_array_equal(a.transpose(*b.dims).values, b.values)


def test_chunks_without_dask_are_refused(monkeypatch, tmp_path):
    engine.run(TABLE, tmp_path / "r.zarr")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(engine.InputError, match="needs dask"):
        engine.open(tmp_path / "r.zarr", chunks={})
    assert engine.open(tmp_path / "r.zarr")["stream"].sizes["step"] == 120


# A run of a gigabyte that is nowhere: its numbers are made as they are read.
VIRTUAL = """
import json
import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing
from engine.measure import state, tracking
from tests.benchmarks.memory import peak

class Virtual(BackendArray):
    shape, dtype = (8192, 8, 32, 32), np.dtype("float64")

    def __init__(self, shift):
        self.shift = shift

    def __getitem__(self, key):
        basic = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, basic, self.read)

    def read(self, key):
        steps = np.arange(self.shape[0], dtype=float)[key[0]] - self.shift
        return np.ones((len(steps), *self.shape[1:])) * steps[:, None, None, None]

def variable(shift):
    lazy = indexing.LazilyIndexedArray(Virtual(shift))
    return xr.DataArray(xr.Variable(("step", "trial", "key", "value"), lazy))

S, target = variable(1), variable(0)
before = peak()
norm = state.norm(S)
error = tracking.tracking_error(S, target)
lag = tracking.lag(S, target, longest=3)
print(json.dumps({
    "bytes": S.nbytes + target.nbytes, "grown": peak() - before,
    "norm": norm[[0, -1], 0].values.tolist(), "error": float(error.sum()),
    "lag": lag.values.tolist(),
}))
"""


def test_a_run_larger_than_it_may_use_is_measured_in_little_memory():
    """1.07 GB of states and maps; blocks of 16 MB, and what a measure makes of them beside."""
    done = subprocess.run(
        [sys.executable, "-c", VIRTUAL], capture_output=True, text=True, cwd=ROOT, check=True
    )
    got = json.loads(done.stdout)
    assert got["bytes"] == 2 * 8192 * 8 * 32 * 32 * 8
    assert got["grown"] < 150, f"{got['grown']} MB"
    assert got["norm"] == [32.0, 32.0 * 8190] and got["lag"] == [1.0] * 8
    assert got["error"] == 8192 * 8 * 32.0  # every entry is one step behind

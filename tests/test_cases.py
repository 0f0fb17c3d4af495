"""What went wrong in public in neighbouring tools, each at the smallest input that would show it.

Others of these cases are tested where they belong: A11 in plugins/test_generators.py, A12 and A13
in test_store_states.py, A15 (times) in test_ingest.py and test_ingest_real.py, A18 and A19 in
test_plugin_edge.py, test_registry_faults.py and test_registry_names.py.
"""

import pathlib
import warnings

import numpy as np
import pytest
import xarray as xr

import engine
from engine import store
from engine.backend import backend
from engine.building import plain
from engine.recorder import Recorder
from engine.sources import ArraySource
from engine.track import Track

from .store_cases import flat

ODD = '''
"""A rule with an option of any kind."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from engine import ops
from engine.api import Array, Space, hookimpl


class State(NamedTuple):
    S: Annotated[Array, "key value"]


@dataclass(frozen=True)
class Odd:
    """S <- S + k v^T."""

    extra: Any = None

    def init(self, space: Space) -> State:
        return State(space.zeros("key value"))

    def write(self, s: State, k: Array, v: Array) -> State:
        return State(s.S + ops.outer(k, v))

    def read(self, s: State, q: Array) -> Array:
        return ops.vecmat(q, s.S)


@hookimpl
def engine_solvers():
    return {"odd": Odd}
'''


def test_a_resume_that_lacks_a_variable_is_refused_before_it_writes(tmp_path, monkeypatch):
    """CASES A14, xarray issue 10766: run 1 records S and P, and is to go on without."""
    scenario = {
        "stream": {"generator": "random", "steps": 64, "key": 3, "value": 2},
        "solvers": {"rls": {}},
    }
    with monkeypatch.context() as patch:
        patch.setattr("engine.recorder.SHARD_STEPS", 8)
        commit = store.ZarrSink.commit

        def failing(self, mark):
            if mark > 16:
                raise OSError("no space left on device")
            commit(self, mark)

        patch.setattr(store.ZarrSink, "commit", failing)
        with pytest.raises(engine.RunError):
            engine.run(scenario, tmp_path / "run.zarr")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    shown = flat(engine.open(tmp_path / "run.zarr"))
    assert {"solvers/rls/S", "solvers/rls/P"} <= shown.keys()
    with pytest.raises(engine.InputError, match="record: 'every' in the store, 'final' now"):
        engine.run(scenario, tmp_path / "run.zarr", resume=True, record="final")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    again = flat(engine.open(tmp_path / "run.zarr"))
    assert all(again[name][1].tobytes() == x.tobytes() for name, (_, x) in shown.items())


def test_steps_beyond_what_32_bits_hold_are_counted(tmp_path):
    """CASES A15, xarray issue 10639: a first block of small steps settled their type."""
    arrays = {"keys": np.eye(3)[:, None], "values": np.ones((3, 1, 1))}
    source = ArraySource(arrays)
    track = Track("delta", engine.solver("delta"), source, {}, None, backend("numpy"), "float64")
    sink = store.ZarrSink(tmp_path / "run.zarr", 2)
    Recorder(sink, source, [track], "every", 2, first=2**31 - 1).close(complete=False)
    sink.close("failed")
    with xr.open_zarr(tmp_path / "run.zarr") as ds:
        assert ds["step"].dtype == np.int64
        assert ds["step"].values.tolist() == [2147483647, 2147483648, 2147483649]


def test_both_axes_of_a_covariance_can_be_chosen(tmp_path):
    """CASES A16, xarray issues 8579 and 1378: P of (t, k, k) could be stored, not indexed."""
    scenario = {
        "stream": {"generator": "random", "steps": 2, "key": 3, "value": 2},
        "solvers": {"rls": {}},
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = engine.run(scenario, tmp_path / "run.zarr")
        for ds in (run["solvers/rls"], xr.open_datatree(tmp_path / "run.zarr")["solvers/rls"]):
            P = ds["P"].isel(trial=0)
            assert P.dims == ("step", "key", "key_2") and P.shape == (2, 3, 3)
            assert P.isel(key_2=0).shape == P.mean("key").shape == (2, 3)
            assert ds.to_dataset().chunk()["P"].chunks is not None
    assert not [w for w in said if "uplicate" in str(w.message)]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.int32(9), 9),
        (np.float32("nan"), float("nan")),
        (None, None),
        (True, True),
        ({"g": np.zeros(2)}, {"g": [0.0, 0.0]}),
        (np.datetime64("2026-01-01"), "2026-01-01"),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (1j, "1j"),
        (np.dtype("float32"), "float32"),
        (np.random.default_rng(0), "Generator(PCG64)"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_options_of_any_kind_are_kept(given, kept, tmp_path, monkeypatch):
    """CASES A17, cfdm issue 408, zarr-python issue 3478: what JSON has no form for, as its text."""
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(tmp_path))
    scenario = {
        "stream": {"generator": "random", "steps": 3, "key": 2, "value": 2},
        "solvers": {"odd": {"extra": given}},
    }
    run = engine.run(scenario, tmp_path / "run.zarr")
    for found in (
        run["solvers/odd"].attrs["hyperparameters"]["extra"],
        run.attrs["scenario"]["resolved"]["solvers"]["odd"]["extra"],
        plain(given),
    ):
        assert type(found) is type(kept) and repr(found) == repr(kept)  # repr: NaN is NaN

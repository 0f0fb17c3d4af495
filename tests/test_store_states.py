"""The store of any state: updated in place, of any dtype, masked."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pytest

from engine import store
from engine.api import Array
from engine.backend import backend
from engine.loop import loop
from engine.recorder import MemorySink, Recorder
from engine.sources import ArraySource
from engine.track import Track

from .store_cases import flat, plain


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
    """CASES A12, mizer issue 285: three pairs, unit keys, value 1."""
    arrays = {"keys": np.eye(3)[:, None], "values": np.ones((3, 1, 1))}
    sink = MemorySink()
    track = record(arrays, sink, shard, 2)
    record(arrays, store.ZarrSink(tmp_path / "run.zarr", shard), shard, 2)
    track.state.S[...] = 77.0  # changing what the rule holds does not change the record
    for found in (flat(sink.tree()), plain(tmp_path / "run.zarr")[0]):
        assert found["solvers/rule/S"][1][:, 0, :, 0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
        assert found["solvers/rule/count"][1][:, 0].tolist() == [1, 2, 3]


def test_zeros_integers_and_bools_come_back_as_they_are(tmp_path):
    """CASES A13, xarray-simlab issues 172, 162: 0 is a number, not a missing one."""
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

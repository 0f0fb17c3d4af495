"""Keyframes as they are written: the stream, and the state after every n writes."""

import numpy as np
import pytest
import zarr

import engine
from engine import recorder
from engine.loop import loop
from engine.sources import ArraySource

from .loop_cases import arrays, make_track
from .store_cases import SCENARIO, assert_same, flat, in_memory, plain


def assert_keyframes(got, every, n, steps=150, committed=None):
    """Assert that a run holds the stream and every n-th state of one that holds all of them."""
    count = (steps if committed is None else committed) // n
    assert not [p for p, (dims, _) in got.items() if p.startswith("solvers/") and "step" in dims]
    labels = {p.split("/")[1] for p in every if p.startswith("solvers/")}
    for label in labels:
        marks = got[f"keyframes/{label}/keyframe_step"]
        assert marks[0] == ("keyframe",) and marks[1].tolist() == [
            n * (i + 1) for i in range(count)
        ]
        states = [p for p in got if p.startswith(f"keyframes/{label}/") and "_step" not in p]
        assert states
        for path in states:
            dims, x = every[path.replace("keyframes", "solvers")]
            assert got[path][0] == ("keyframe", *dims[1:])
            assert got[path][1].tobytes() == x[n - 1 :: n][:count].tobytes(), path
    if committed is None:
        for path, (dims, x) in every.items():
            if not path.startswith("solvers/") or path.endswith("diverged_at"):
                assert got[path][0] == dims and got[path][1].tobytes() == x.tobytes(), path


@pytest.mark.parametrize("n", [1, 7, 16, 40, 149, 150, 151])
def test_a_keyframe_is_the_state_after_so_many_writes(n, tmp_path, small_shards):
    """Whether a shard holds some keyframes, parts of one, or the run none at all."""
    memory = engine.run(SCENARIO, record={"keyframes": n})
    stored = engine.run(SCENARIO, tmp_path / "run.zarr", record={"keyframes": n})
    got, _ = plain(tmp_path / "run.zarr")
    assert_same(got, flat(memory))
    assert_keyframes(got, in_memory(), n)
    for label in SCENARIO["solvers"]:
        for run in (stored, memory):
            assert run[f"solvers/{label}"].attrs["keyframes"] == n
            assert run[f"keyframes/{label}"].attrs == {"keyframes": n}
            assert "keyframe_step" in run[f"keyframes/{label}"].coords
    resolved = stored.attrs["scenario"]["resolved"]
    assert resolved["record"] == {"keyframes": n}


@pytest.mark.parametrize("kernel", ["loop", "numba"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_keyframes_are_bitwise_what_every_step_recording_holds(kernel, dtype):
    few = {n: SCENARIO["solvers"][n] for n in ("linear", "delta", "rls")}
    few["titans"] = {"eta": 0.9, "theta": 0.1}
    scenario = {**SCENARIO, "solvers": few, "kernel": kernel, "dtype": dtype}
    every = flat(engine.run(scenario))
    assert_keyframes(flat(engine.run(scenario, record={"keyframes": 8})), every, 8)


@pytest.mark.parametrize("n", [8, 10, 24, 64])
def test_a_cut_run_shows_the_keyframes_of_its_committed_steps(n, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.recorder.SHARD_STEPS", 32)
    from engine.store import ZarrSink

    commit = ZarrSink.commit

    def dying(self, steps):
        commit(self, steps)
        if steps >= 60:
            raise OSError("no space left on device")

    monkeypatch.setattr(ZarrSink, "commit", dying)
    with pytest.raises(engine.RunError):
        engine.run(SCENARIO, tmp_path / "run.zarr", record={"keyframes": n})
    run = engine.open(tmp_path / "run.zarr")
    committed = run.attrs["committed"]
    assert 60 <= committed < 150
    root = zarr.open_group(str(tmp_path / "run.zarr"), mode="r")
    stored = {path: x for path, x in flat(run).items() if path in root}  # the rest is recomputed
    assert_keyframes(stored, in_memory(), n, committed=committed)
    assert root["keyframes/rls/P"].shape[0] == 150 // n


def test_a_divergence_is_dated_as_when_every_state_is_kept():
    run = engine.run(SCENARIO, record={"keyframes": 32})
    for label in SCENARIO["solvers"]:
        got, want = run[f"solvers/{label}/diverged_at"], in_memory()[f"solvers/{label}/diverged_at"]
        np.testing.assert_array_equal(got, want[1])


def test_a_rule_that_writes_in_place_keeps_its_keyframes_apart():
    """mizer issue 285: a record is no reference to what the rule goes on to change."""
    Delta = type(engine.solver("delta"))

    class InPlace(Delta):
        def write(self, s, k, v, **coefficients):
            s.S[...] = super().write(s, k, v, **coefficients).S
            return s

    source = ArraySource(arrays(20))
    track, every = make_track(source, InPlace()), make_track(source, Delta())
    track.record, track.keyframes = False, 5
    (frame,) = loop(source, [track, every], 20)
    states = frame.traces["delta"].states["S"]
    np.testing.assert_allclose(frame.traces["inplace"].keyframes["S"], states[4::5], rtol=1e-12)


def test_a_shard_holds_whole_keyframes_where_it_can():
    def variable(every, dims=("step",)):
        return recorder.Variable("g", "x", dims, (100_000, 8, 512), np.dtype("f8"), every)

    row = 8 * 512 * 8
    fits = recorder.SHARD_BYTES // row
    for n in (3, 64, 100):
        shard = recorder.shard_steps([variable(1), variable(n, ("keyframe",))], 100_000)
        assert shard % n == 0 and fits / 4 < shard <= fits
    # None fits: then a power of two, as without keyframes; these take a little of the room.
    shard = recorder.shard_steps([variable(1), variable(5000, ("keyframe",))], 100_000)
    assert shard == fits // 2

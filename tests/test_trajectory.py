"""Keyframed runs as they are read: bit for bit what recording every step would have stored."""

import functools
import pickle

import numpy as np
import pytest
import xarray as xr
import zarr

import engine
from engine import trajectory
from engine.xarray_backend import EngineBackend

from .store_cases import SCENARIO, flat, reseal

MORE = {
    "titans": {"eta": 0.9, "theta": 0.1},
    "mlp": {"solver": "titans_mlp", "eta": 0.5, "theta": 0.01, "alpha": 0.9},
    "fade": {"solver": "forgetting_attention", "gamma": 0.9},
    "path": {"solver": "path_attention"},
    "ap": {"solver": "affine_projection"},
}
EVERYTHING = {**SCENARIO, "solvers": {**SCENARIO["solvers"], **MORE}}


@functools.cache
def every(kernel="auto", dtype="float64"):
    return flat(engine.run(EVERYTHING, kernel=kernel, dtype=dtype))


@pytest.fixture
def tiny_cache(monkeypatch):
    """Hold a few pieces at a time, so that reading drops and recomputes."""
    cache = trajectory.Cache(2**14)
    monkeypatch.setattr(trajectory, "CACHE", cache)
    return cache


def assert_same_reads(run, want, reads, seed=0):
    rng, names = np.random.default_rng(seed), [p for p in want if p.startswith("solvers/")]
    found = flat(run)
    assert set(names) <= found.keys()
    for path in names:
        dims, x = want[path]
        assert (run[path].dims, run[path].shape, run[path].dtype) == (dims, x.shape, x.dtype)
        assert found[path][1].tobytes() == x.tobytes(), path
    moving = [p for p in names if want[p][0][:2] == ("step", "trial")]
    for _ in range(reads):
        path = moving[rng.integers(len(moving))]
        step, trial = int(rng.integers(150)), int(rng.integers(2))
        got = run[path].isel(step=step, trial=trial).values
        assert got.tobytes() == want[path][1][step, trial].tobytes(), (path, step, trial)


@pytest.mark.parametrize("n", [7, 16, 149, 200])
def test_a_thousand_reads_are_the_bits_of_every_step_recording(
    n, tmp_path, small_shards, tiny_cache
):
    run = engine.run(EVERYTHING, tmp_path / "run.zarr", record={"keyframes": n})
    assert_same_reads(run, every(), 1000 if n == 16 else 150)
    assert tiny_cache.held <= tiny_cache.limit


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["loop", "auto"])
def test_both_kernels_and_dtypes_give_their_own_bits(kernel, dtype, tmp_path):
    run = engine.run(
        EVERYTHING, tmp_path / "run.zarr", record={"keyframes": 32}, kernel=kernel, dtype=dtype
    )
    assert_same_reads(run, every(kernel, dtype), 100)


def test_pieces_shorter_than_a_keyframe_s_distance(tmp_path, monkeypatch):
    monkeypatch.setattr(trajectory, "PIECE_BYTES", 3000)
    monkeypatch.setattr(trajectory, "READ_STEPS", 16)
    run = engine.run(EVERYTHING, tmp_path / "run.zarr", record={"keyframes": 60})
    assert trajectory.Trajectory(tmp_path / "run.zarr", "rls").piece_steps("P") < 60
    assert_same_reads(run, every(), 200)


def test_masked_and_asked_steps(tmp_path):
    """Memories of unequal length, NaN where nothing was asked, coefficients step by step."""
    rng = np.random.default_rng(1)
    mask = rng.uniform(size=(90, 3)) < 0.7
    arrays = {n: (("step", "trial", d), rng.standard_normal((90, 3, 4))) for n, d in
              (("keys", "key"), ("values", "value"), ("queries", "key"))}  # fmt: skip
    ds = xr.Dataset({**arrays, "mask": (("step", "trial"), mask)})
    ds.to_zarr(tmp_path / "s.zarr", zarr_format=3, consolidated=False)
    names = ("softmax_attention", "delta", "path_attention", "forgetting_attention")
    scenario = {
        "stream": {"generator": "stored", "path": str(tmp_path / "s.zarr")},
        "solvers": {n: {} for n in names[:3]} | {"fade": {"solver": names[3], "gamma": 0.8}},
    }
    want = flat(engine.run(scenario))
    run = engine.run(scenario, tmp_path / "run.zarr", record={"keyframes": 16})
    got = flat(run)
    for path in (p for p in want if p.startswith("solvers/")):
        assert got[path][1].tobytes() == want[path][1].tobytes(), path


def test_indexing_is_numpy_s(tmp_path):
    run = engine.run(EVERYTHING, tmp_path / "run.zarr", record={"keyframes": 16})
    S, x = run["solvers/delta/S"], every()["solvers/delta/S"][1]
    order = np.random.default_rng(2).permutation(150)
    np.testing.assert_array_equal(S[order], x[order])
    np.testing.assert_array_equal(S[140:3:-7, ::-1, 1:3], x[140:3:-7, ::-1, 1:3])
    np.testing.assert_array_equal(S[:, 0].isel(key=[2, 0], value=-1), x[:, 0][:, [2, 0], -1])
    np.testing.assert_array_equal(S[[]], x[[]])
    steps = xr.DataArray([3, 77, 149], dims="pick")
    trials = xr.DataArray([1, 0, 1], dims="pick")
    np.testing.assert_array_equal(S.isel(step=steps, trial=trials), x[[3, 77, 149], [1, 0, 1]])
    np.testing.assert_array_equal(S.sel(step=149, trial=1), x[149, 1])


def test_xarray_opens_a_group_in_chunks_of_whole_keyframes(tmp_path):
    engine.run(EVERYTHING, tmp_path / "run.zarr", record={"keyframes": 16})
    path, want = tmp_path / "run.zarr", every()
    with xr.open_dataset(path, engine=EngineBackend, group="solvers/delta", chunks={}) as ds:
        assert ds.S.chunks[0] == (*[16] * 9, 6) and "step" in ds.coords
        assert (
            ds.S.data.compute(scheduler="threads").tobytes() == want["solvers/delta/S"][1].tobytes()
        )
        again = pickle.loads(pickle.dumps(ds))
        np.testing.assert_array_equal(again.output, want["solvers/delta/output"][1])
    with xr.open_datatree(path, engine=EngineBackend) as tree:
        assert tree["solvers/rls/P"].shape == (150, 2, 4, 4)
    with pytest.raises(engine.InputError, match="no group 'solvers/delt'.*did you mean"):
        xr.open_dataset(path, engine=EngineBackend, group="solvers/delt")


def test_the_backend_is_registered_by_name():
    from importlib.metadata import distribution

    found = distribution("ttr-engine").entry_points.select(group="xarray.backends")
    assert {e.name: e.load() for e in found} == {"engine": EngineBackend}


def test_a_keyframe_that_replay_does_not_arrive_at_is_damage(tmp_path):
    """A state whose checksum is right and whose numbers are not, as of another kernel's bug."""
    path = tmp_path / "run.zarr"
    engine.run(EVERYTHING, path, record={"keyframes": 16})
    array = zarr.open_group(str(path), mode="r+", use_consolidated=False)["keyframes/delta/S"]
    state = array[3]
    state[1, 2, 0] *= 1 + 1e-9  # in the last place, rounding may swallow it before step 80
    array[3] = state
    run = engine.open(path)
    told = r"from the keyframe after step 48 does not arrive at the one after step 64: S\[1, 2, 0\]"
    with pytest.raises(engine.DamageError, match=told) as error:
        run["solvers/delta/S"].isel(step=50).load()
    assert "kernel numba" in str(error.value) and f"numpy {np.__version__}" in str(error.value)
    with pytest.raises(engine.DamageError, match="after step 64 .*after step 80"):
        run["solvers/delta/S"].isel(step=70).load()
    want = every()["solvers/delta/S"][1]
    np.testing.assert_array_equal(run["solvers/delta/S"].isel(step=40), want[40])
    np.testing.assert_array_equal(run["solvers/delta/S"].isel(step=90), want[90])


def test_another_version_is_told_of_and_held_to_rounding(tmp_path, monkeypatch):
    path = tmp_path / "run.zarr"
    engine.run(EVERYTHING, path, record={"keyframes": 16}, kernel="loop")
    root = zarr.open_group(str(path), mode="r+", use_consolidated=False)
    told = dict(root.attrs["provenance"])
    root.attrs["provenance"] = {**told, "versions": {**told["versions"], "numpy": "1.0"}}
    root["keyframes/delta/S"][3] = root["keyframes/delta/S"][3] * (1 + 1e-15)
    reseal(path)
    run = engine.open(path)
    with pytest.warns(engine.ReplayWarning, match="not bit for bit"):
        run["solvers/delta/S"].isel(step=50).load()
    root["keyframes/delta/S"][3] = root["keyframes/delta/S"][3] * (1 + 1e-9)
    monkeypatch.setattr(trajectory, "CACHE", trajectory.Cache(2**20))  # as in another process
    with (
        pytest.warns(engine.ReplayWarning),
        pytest.raises(engine.DamageError, match="does not arrive"),
    ):
        engine.open(path)["solvers/delta/S"].isel(step=50).load()


def test_a_rule_that_is_not_installed_leaves_what_is_stored(tmp_path):
    path = tmp_path / "run.zarr"
    engine.run(EVERYTHING, path, record={"keyframes": 16})
    root = zarr.open_group(str(path), mode="r+", use_consolidated=False)
    told = dict(root.attrs["scenario"])
    told["resolved"]["solvers"]["delta"]["solver"] = "gone"
    root.attrs["scenario"] = told
    reseal(path)
    with pytest.warns(engine.PluginWarning, match="'delta' between keyframes .*'gone'"):
        run = engine.open(path)
    assert "S" not in run["solvers/delta"] and run["keyframes/delta/S"].shape == (9, 2, 4, 3)


def test_a_run_that_was_cut_is_shown_to_its_mark(tmp_path, monkeypatch, small_shards):
    commit = engine.store.ZarrSink.commit

    def dying(self, steps):
        commit(self, steps)
        if steps >= 60:
            raise OSError("no space left on device")

    monkeypatch.setattr(engine.store.ZarrSink, "commit", dying)
    with pytest.raises(engine.RunError):
        engine.run(EVERYTHING, tmp_path / "run.zarr", record={"keyframes": 16})
    run = engine.open(tmp_path / "run.zarr")
    done = run.attrs["committed"]
    assert 60 <= done < 150
    for label in ("delta", "softmax", "path", "rls"):
        for name in ("prediction", "output"):
            got = run[f"solvers/{label}/{name}"]
            want = every()[f"solvers/{label}/{name}"][1][:done]
            assert got.values.tobytes() == want.tobytes()


def test_show_and_measures_take_a_keyframed_run_as_any(call, own_folder):
    every_run = engine.run(EVERYTHING)
    engine.run(EVERYTHING, "run.zarr", record={"keyframes": 16})
    code, out, err = call("show", "run.zarr")
    assert code == 0 and not err
    assert "recomputed" in next(line for line in out.splitlines() if "solvers/delta/S" in line)
    run = engine.open("run.zarr")
    for label in ("delta", "softmax"):
        got = engine.measure.error_curve(run, label)
        xr.testing.assert_identical(got.drop_vars(["step", "trial"], errors="ignore"),
                                    engine.measure.error_curve(every_run, label).drop_vars(
                                        ["step", "trial"], errors="ignore"))  # fmt: skip
    code, out, err = call("report", "run.zarr", "-o", "pictures")
    assert code == 0 and not err

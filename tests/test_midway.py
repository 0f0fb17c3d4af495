"""A recorder attached to a stream under way."""

import gc
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import engine

from .cli_cases import scenario
from .test_live import ENDLESS, SCENARIO

pytestmark = pytest.mark.usefixtures("own_folder")


def opened(path):
    """Return a store as any program reads it, and as ours does: they must be alike."""
    with xr.open_datatree(path, engine="zarr") as plain:
        ours = engine.open(path)
        assert plain.load().identical(ours.load())
    return ours


def assert_stored(store, run, steps):
    """Assert that a store holds these steps of a recorded run, bit for bit."""
    assert store.step.values.tolist() == list(range(150))[steps]
    names = [f"stream/{n}" for n in run["stream"].data_vars if "step" in run[f"stream/{n}"].dims]
    for label in SCENARIO["solvers"]:
        ds = run[f"solvers/{label}"]
        names += [f"solvers/{label}/{n}" for n in ds.data_vars if "step" in ds[n].dims]
    assert len(names) > 10
    for name in names:
        assert store[name].dims == run[name].dims
        assert store[name].values.tobytes() == run[name].values[steps].tobytes(), name


@pytest.mark.parametrize("every", [1, 7, 64])
def test_what_is_recorded_midway_is_that_part_of_the_run(every, small_shards):
    run = engine.run(SCENARIO)
    stream = engine.stream(SCENARIO, every=every)
    first = next(stream).stop
    stream.record("r.zarr")
    for frame in stream:
        if frame.stop >= 100:
            break
    stream.stop_recording()
    next(stream)
    store = opened("r.zarr")
    assert_stored(store, run, slice(first, frame.stop))
    assert store.attrs["status"] == "complete" and store.attrs["first_step"] == first
    assert store.attrs["committed"] == frame.stop - first
    beta = store["solvers/delta/beta"]
    assert beta.dims == ("step", "trial") and (beta == 0.1).all()


def test_a_recording_to_the_end_is_as_complete_as_a_run():
    run = engine.run(SCENARIO)
    stream = engine.stream(SCENARIO, every=40)
    stream.record("r.zarr")
    stops = [frame.stop for frame in stream]
    assert stops == [40, 80, 120, 150]
    store = opened("r.zarr")
    assert_stored(store, run, slice(0, 150))
    for label in SCENARIO["solvers"]:
        assert (
            store[f"probes/recall/{label}"]
            .to_dataset()
            .identical(run[f"probes/recall/{label}"].to_dataset())
        )
        assert store[f"solvers/{label}/diverged_at"].identical(run[f"solvers/{label}/diverged_at"])
    assert store["stream"].attrs["sha256"] == run["stream"].attrs["sha256"]


def test_skipped_steps_are_recorded_too():
    run = engine.run(SCENARIO)
    with engine.stream(SCENARIO, every=10) as stream:
        stream.skip(5)
        stream.record("r.zarr")
        next(stream)
        stream.skip(50)
        next(stream)
    assert_stored(opened("r.zarr"), run, slice(5, 75))


def test_coefficients_are_stored_as_they_were_set():
    with engine.stream(SCENARIO, every=10) as stream:
        next(stream).set("delta", beta=0.25)
        stream.record("r.zarr")
        next(stream).set("delta", beta={"trials": [0.1, 0.2, 0.3]})
        next(stream).set("delta", beta={"gate": "priority", "low": 0.0, "high": 1.0})
        last = next(stream)
    store = opened("r.zarr")
    beta = store["solvers/delta/beta"].values
    assert (beta[:10] == 0.25).all() and (beta[10:20] == [0.1, 0.2, 0.3]).all()
    assert (beta[20:] == last.tokens.arrays["priority"]).all()
    assert store.attrs["scenario"]["resolved"]["solvers"]["delta"]["beta"] == 0.25


def test_an_endless_stream_is_recorded_for_so_many_steps():
    stream = engine.stream(ENDLESS, every=10)
    next(stream)
    with pytest.raises(engine.InputError, match=r"r.zarr: the stream is endless; .*steps="):
        stream.record("r.zarr")
    assert not Path("r.zarr").exists()
    stream.record("r.zarr", steps=25)
    for _ in range(3):
        next(stream)
    store = opened("r.zarr")
    assert store.step.values.tolist() == list(range(10, 35))
    assert_stored(store, engine.run(SCENARIO, **{"stream.steps": 40}), slice(10, 35))
    stream.record("again.zarr", steps=5)  # the first one ended by itself
    stream.close()
    assert opened("again.zarr").sizes["step"] == 0


def test_one_recording_at_a_time_and_never_over_another():
    stream = engine.stream(SCENARIO, every=10)
    stream.record("r.zarr")
    with pytest.raises(engine.InputError, match="r.zarr is being recorded; end that"):
        stream.record("s.zarr")
    next(stream)
    stream.stop_recording()
    stream.stop_recording()
    with pytest.raises(engine.InputError, match="r.zarr exists"):
        stream.record("r.zarr")
    assert opened("r.zarr").sizes["step"] == 10
    stream.record("r.zarr", force=True)
    list(stream)
    assert opened("r.zarr").sizes["step"] == 140
    with pytest.raises(engine.InputError, match="s.zarr: the stream has ended"):
        stream.record("s.zarr")


def test_a_stream_that_is_dropped_leaves_a_whole_store():
    stream = engine.stream(SCENARIO, every=10)
    stream.record("r.zarr")
    next(stream)
    del stream
    gc.collect()
    assert opened("r.zarr").attrs["status"] == "complete"


def test_an_error_of_the_consumer_s_ends_the_store_as_failed():
    with pytest.raises(ZeroDivisionError):
        with engine.stream(SCENARIO, every=10) as stream:
            stream.record("r.zarr")
            next(stream)
            raise ZeroDivisionError
    store = engine.open("r.zarr")
    assert store.attrs["status"] == "failed" and store.sizes["step"] == 10


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raise", "FloatingPointError: the fit is gone"),
        ("none", "write gave NoneType, not State"),
        ("wide", "read gave float64"),
        ("exit", "SystemExit: 0"),
    ],
)
def test_a_solver_that_fails_leaves_the_steps_before_it(how, says, faulty):
    scenario(how, at=55, steps=100)
    stream = engine.stream("faulty.toml", every=10)
    next(stream)
    stream.record("r.zarr")
    with pytest.raises(engine.RunError, match=rf"solver 'bad' failed at step 5[45]: .*{says}"):
        list(stream)
    store = engine.open("r.zarr")
    assert store.attrs["status"] == "failed" and store.step.values.tolist() == list(range(10, 50))
    whole = engine.run("faulty.toml", **{"solvers.bad.how": "not at all", "stream.steps": 50})
    assert np.array_equal(store["solvers/bad/S"], whole["solvers/bad/S"][10:])
    assert next(stream, None) is None

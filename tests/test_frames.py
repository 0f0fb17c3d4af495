"""Live frames: the bits of a recorded run, whatever their length."""

import numpy as np
import pytest

import engine

from .loop_cases import assert_same

SCENARIO = {
    "seed": 3,
    "trials": 3,
    "stream": {"generator": "random", "steps": 150, "key": 6, "value": 4, "priority": 0.5,
               "keys": "gaussian"},
    "solvers": {
        "softmax": {"solver": "softmax_attention", "scale": 3.0, "view": "unit"},
        "linear": {"solver": "linear_attention", "normalise": True, "view": "elu1"},
        "exp": {"solver": "linear_attention", "view": "exp"},
        "delta": {"beta": {"gate": "priority", "low": 0.1, "high": 0.9}},
        "longhorn": {"beta": {"schedule": "cosine", "start": 2.0, "stop": 0.1, "over": 90}},
        "rls": {"gamma": {"trials": [0.9, 0.95, 1.0]}},
        "ls": {"solver": "least_squares", "ridge": 1e-3, "gamma": 0.9},
    },
}  # fmt: skip


def frames(scenario, every, **overrides):
    """Return the stream's and every solver's variables over all frames, by path."""
    parts, joined = {}, {}
    for frame in engine.stream(scenario, every=every, **overrides):
        for name, x in frame.tokens.arrays.items():
            parts.setdefault(f"stream/{name}", []).append(x)
        for label, trace in frame.traces.items():
            for name, x in trace.variables.items():
                along = "step" in trace.dims[name]
                path = f"solvers/{label}/{name}"
                parts.setdefault(path, []).append(x) if along else joined.update({path: x})
    return joined | {path: np.concatenate(x) for path, x in parts.items()}


def test_live_frames_are_the_recorded_run_whatever_their_length():
    run = engine.run(SCENARIO)
    for every in (1, 7, 64, 1000):
        for path, x in frames(SCENARIO, every).items():
            recorded = run[path].values
            assert (x.dtype, x.shape) == (recorded.dtype, recorded.shape), path
            assert x.tobytes() == recorded.tobytes(), (path, every)


def test_a_longer_stream_begins_as_a_shorter_one():
    """And with it, every state."""
    long = frames(SCENARIO, 64)
    short = frames(SCENARIO, 64, **{"stream.steps": 20})
    for path, x in short.items():
        if x.shape[:1] == (20,):
            assert x.tobytes() == long[path][:20].tobytes(), path


def test_more_trials_leave_the_first_ones_as_they_are():
    overrides = {"solvers.rls.gamma": 0.95}
    three = frames(SCENARIO, 64, **overrides)
    five = frames(SCENARIO, 64, trials=5, **overrides)
    one = frames(SCENARIO, 64, trials=1, **overrides)
    for path, x in three.items():
        if x.shape[:2] == (150, 3):
            assert five[path][:, :3].tobytes() == x.tobytes(), path
            assert one[path][:, :1].tobytes() == np.ascontiguousarray(x[:, :1]).tobytes(), path


def test_solvers_do_not_see_each_other():
    whole = frames(SCENARIO, 64)
    for label in SCENARIO["solvers"]:
        alone = frames({**SCENARIO, "solvers": {label: SCENARIO["solvers"][label]}}, 64)
        for path, x in alone.items():
            assert x.tobytes() == whole[path].tobytes(), path


def test_an_endless_stream_goes_on_until_the_caller_stops():
    endless = {**SCENARIO, "stream": {"generator": "random", "key": 6, "value": 4, "priority": 0.5}}
    stops = []
    for frame in engine.stream(endless, every=10):
        stops.append(frame.stop)
        if len(stops) == 5:
            break
    assert stops == [10, 20, 30, 40, 50]
    with pytest.raises(engine.InputError, match="every = 0"):
        engine.stream(endless, every=0)


def test_a_frame_is_a_dataset_over_its_own_steps():
    _, frame, *_ = engine.stream(SCENARIO, every=40)
    ds = frame["rls"]
    assert ds.step.values.tolist() == list(range(40, 80)) and frame.start == 40
    assert ds.P.dims == ("step", "trial", "key", "key_2") and ds.gamma.dims == ("trial",)
    assert np.shares_memory(ds.P.values, frame.traces["rls"].states["P"])
    assert frame["delta"].beta.dims == ("step", "trial")
    assert frame["longhorn"].beta.dims == ("step",)
    assert frame["softmax"].rows.dims == ("step", "trial")


def test_frames_stay_as_they_were():
    """A frame that is kept does not change as the run goes on."""
    kept = list(engine.stream(SCENARIO, every=10))
    again = list(engine.stream(SCENARIO, every=10))
    for a, b in zip(kept, again, strict=True):
        for label in a.traces:
            assert_same(a.traces[label].variables, b.traces[label].variables)

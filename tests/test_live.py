"""Streams under way: skipped, steered, measured, two at a time, at any pace."""

import gc
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest

import engine
from engine import measure
from engine.api import Generator
from engine.linear import LinearRule, LinearState

SCENARIO = {
    "seed": 3,
    "trials": 3,
    "stream": {"generator": "random", "steps": 150, "key": 6, "value": 4, "priority": 0.5,
               "keys": "gaussian"},
    "solvers": {
        "softmax": {"solver": "softmax_attention", "scale": 3.0, "view": "unit"},
        "delta": {"beta": 0.1},
        "rls": {"gamma": 0.95},
    },
    "probes": {"recall": {}},
}  # fmt: skip
ENDLESS = {**SCENARIO, "stream": {**SCENARIO["stream"], "steps": None}, "probes": {}}
DRIFT = {
    "trials": 2,
    "stream": {"generator": "drifting", "steps": 60, "key": 4, "value": 3},
    "solvers": {"delta": {"beta": 0.1}, "seen": {"solver": "delta", "beta": 0.1, "view": "unit"}},
}


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.tobytes() == b.tobytes()


# ------------------------------------------------------------------------------------------ frames


def test_a_frame_says_where_it_is_and_how_long_it_took():
    first, second, *_ = engine.stream(SCENARIO, every=40)
    assert (first.step, first.start, first.stop) == (39, 0, 40)
    assert (second.step, second.start, second.stop) == (79, 40, 80)
    assert second.seconds >= sum(trace.seconds for trace in second.traces.values()) > 0


def test_the_last_frame_is_what_is_left_and_then_there_is_none():
    stream = engine.stream(SCENARIO, every=100)
    assert [frame.stop for frame in stream] == [100, 150]
    assert next(stream, None) is None and next(stream, None) is None


def test_skipped_steps_leave_the_states_that_they_would_have():
    whole = next(engine.stream(SCENARIO, every=150))
    stream = engine.stream(SCENARIO, every=10)
    assert next(stream).stop == 10
    assert stream.skip(97) == 97 and stream.skip(0) == 0
    frame = next(stream)
    assert (frame.start, frame.stop) == (107, 117)
    for label, trace in frame.traces.items():
        for name, x in trace.variables.items():
            if "step" in trace.dims[name]:
                same(x, whole.traces[label].variables[name][107:117])
    assert stream.skip(1000) == 33 and next(stream, None) is None


def test_the_length_of_frames_may_change_on_the_way():
    stream = engine.stream(SCENARIO, every=10)
    assert next(stream).stop == 10
    stream.every = 35
    assert [frame.stop for frame in stream] == [45, 80, 115, 150]


def test_two_streams_side_by_side_know_nothing_of_each_other():
    alone = list(engine.stream(SCENARIO, every=50))
    one, other = engine.stream(SCENARIO, every=50), engine.stream(SCENARIO, every=50)
    for frame, a, b in zip(alone, one, other, strict=True):
        other.set("rls", gamma=0.5)
        for name, x in frame.traces["delta"].variables.items():
            same(a.traces["delta"].variables[name], x)
            same(b.traces["delta"].variables[name], x)
        same(a.traces["rls"].output, frame.traces["rls"].output)
    assert not np.array_equal(b.traces["rls"].output, frame.traces["rls"].output)


def test_a_closed_stream_computes_nothing_more():
    with engine.stream(ENDLESS, every=5) as stream:
        assert next(stream).stop == 5
    assert next(stream, None) is None and stream.skip(3) == 0 and stream.step == 5


@dataclass(frozen=True)
class Recycling(Generator):
    """Draws into the same arrays over and over."""

    def start(self, draws, steps):
        return np.empty((64, 1, 2))

    def draw(self, state, draws, steps):
        part = state[: len(steps)]
        part[...] = np.arange(steps.start, steps.stop)[:, None, None]
        return state, {"keys": part, "values": part}


def test_a_frame_owns_its_tokens():
    from engine.live import Stream

    plan = engine.stream(SCENARIO).plan
    from engine.experiment import Plan
    from engine.sources import GeneratorSource

    plan = Plan(plan.scenario, GeneratorSource(Recycling(), steps=20), [])
    kept = [frame.tokens.arrays["keys"][0, 0, 0] for frame in list(Stream(plan, 5))]
    assert kept == [0, 5, 10, 15]


# -------------------------------------------------------------------------------------------- pace


def test_a_step_is_computed_when_its_frame_is_asked_for():
    drawn = []

    class Counting(Recycling):
        def draw(self, state, draws, steps):
            drawn.extend(steps)
            return super().draw(state, draws, steps)

    from engine.experiment import Plan
    from engine.live import Stream
    from engine.sources import GeneratorSource

    plan = Plan(engine.stream(SCENARIO).plan.scenario, GeneratorSource(Counting()), [])
    stream = Stream(plan, 4)
    assert drawn == []
    next(stream)
    next(stream)
    assert drawn == list(range(8))


def test_a_long_stream_and_a_slow_consumer_cost_no_memory():
    small = {**ENDLESS, "solvers": {"delta": {"beta": 0.1}, "rls": {}}}
    held = []
    with engine.stream(small, every=20) as stream:
        tracemalloc.start()
        try:
            for _ in range(3):  # the first round warms up; a block of tokens is held at any time
                for _ in range(100):
                    next(stream)["delta"]
                stream.skip(2000)
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
                if len(held) == 1:
                    tracemalloc.reset_peak()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # 4,000 steps of the covariance alone are 3 x 36 x 8 x 4,000 bytes = 3.5 MB.
    assert held[2] - held[1] < 50_000 and peak - held[0] < 3_000_000


# ---------------------------------------------------------------------------------------- steering


def test_a_coefficient_that_is_set_counts_from_the_next_step():
    plain = next(engine.stream(SCENARIO, every=150)).traces["delta"]
    stream = engine.stream(SCENARIO, every=50)
    first = next(stream)
    first.set("delta", beta=0.75)
    second = next(stream)
    stream.set("delta", beta={"trials": [0.1, 0.75, 0.2]})
    third = next(stream)
    same(first.traces["delta"].output, plain.output[:50])
    assert float(second["delta"].beta) == 0.75 and third["delta"].beta.dims == ("trial",)
    tokens = [frame.tokens.arrays for frame in (first, second, third)]
    keys, values = (np.concatenate([t[n] for t in tokens]) for n in ("keys", "values"))
    beta = np.empty((150, 3))
    beta[:50], beta[50:100], beta[100:] = 0.1, 0.75, [0.1, 0.75, 0.2]
    ds = engine.simulate("delta", keys, values, beta=beta)
    for i, frame in enumerate((first, second, third)):
        same(frame.traces["delta"].output, ds.output.values[50 * i : 50 * i + 50])
        same(frame.traces["delta"].states["S"], ds.S.values[50 * i : 50 * i + 50])


def test_a_schedule_that_is_set_counts_the_stream_s_steps():
    stream = engine.stream(SCENARIO, every=50)
    next(stream).set(
        "delta", beta={"schedule": "linear", "start": 0.0, "stop": 1.0, "over": 100}
    )  # fmt: skip
    np.testing.assert_allclose(next(stream)["delta"].beta, np.arange(50, 100) / 100)
    stream.set("delta", beta={"gate": "priority", "low": 0.1, "high": 0.9})
    assert next(stream)["delta"].beta.dims == ("step", "trial")


@pytest.mark.parametrize(
    ("label", "values", "says"),
    [
        ("dleta", {"beta": 0.5}, "no solver has the label 'dleta'; did you mean 'delta'"),
        ("delta", {"bta": 0.5}, "solvers.delta.bta = 0.5: delta takes no 'bta'; did you mean"),
        ("delta", {"beta": -1}, "solvers.delta.beta = -1: beta = -1 must be at least 0"),
        ("delta", {"beta": "much"}, "solvers.delta.beta = 'much': must be a number or a table"),
        ("delta", {"beta": None}, "solvers.delta.beta = None: must be a number or a table"),
        ("delta", {"beta": {"trials": [1.0]}}, "1 values for 3 trials"),
        ("delta", {"beta": {"channel": "priorty"}}, "no side channel 'priorty'.*did you mean"),
        ("rls", {"gamma": 0.0}, r"gamma = 0 must be in \(0, 1\]"),
        ("rls", {"ridge": 0.5}, "ridge = 0.5: a hyperparameter is fixed.* coefficients are gamma"),
        ("rls", {"gamma": 0.5, "gama": 1}, "rls takes no 'gama'; did you mean 'gamma'"),
    ],
)
def test_what_cannot_be_set_is_refused_as_in_a_scenario(label, values, says):
    stream = engine.stream(SCENARIO, every=50)
    frame = next(stream)
    with pytest.raises(engine.InputError, match=f"scenario: .*{says}"):
        frame.set(label, **values)
    again = engine.stream(SCENARIO, every=50)
    next(again)
    for a, b in zip(stream, again, strict=True):
        for name in a.traces:
            same(a.traces[name].output, b.traces[name].output)


@pytest.mark.parametrize("every", [0, -3, 1.5, "10", True, None, np.nan])
def test_frames_have_whole_numbers_of_steps(every):
    with pytest.raises(engine.InputError, match=r"every = .* must be a whole number, 1 or more"):
        engine.stream(SCENARIO, every=every)


def test_steps_to_skip_are_a_whole_number():
    stream = engine.stream(SCENARIO, every=np.int64(5))
    for steps in (-1, 1.5, "3"):
        with pytest.raises(engine.InputError, match="steps = .* must be a whole number, 0 or more"):
            stream.skip(steps)
    assert next(stream).stop == 5


# ---------------------------------------------------------------------------------------- measures


def test_measures_are_those_of_the_recorded_run():
    run = engine.run(SCENARIO)
    frames = list(engine.stream(SCENARIO, every=60))
    for label in SCENARIO["solvers"]:
        got = np.concatenate([frame.measures[label].prediction_error for frame in frames])
        want = measure.error_curve(run, label, kind="prediction error")
        np.testing.assert_array_equal(got, want)
        assert frames[1].measures[label].tracking_error is None
        recall = frames[-1].measures[label].recall["recall"]
        recalled = run[f"probes/recall/{label}/recalled"]
        np.testing.assert_allclose(recall, recalled.mean("query"), rtol=1e-12)
    norm = frames[1].measures["rls"].state_norm
    S = run["solvers/rls/S"].isel(step=slice(60, 120))
    np.testing.assert_allclose(norm.S, np.linalg.norm(S, axis=(-2, -1)), rtol=1e-12)
    assert set(norm) == {"S", "P"} and norm.step.values.tolist() == list(range(60, 120))
    assert not frames[1].measures["softmax"].state_norm


def test_a_kept_frame_keeps_what_it_could_recall():
    """The recall of a prefix is that of a run of the prefix, however late it is asked."""
    frames = list(engine.stream(SCENARIO, every=60))
    for frame in frames[:2]:
        run = engine.run(SCENARIO, **{"stream.steps": frame.stop})
        for label in SCENARIO["solvers"]:
            recalled = run[f"probes/recall/{label}/recalled"]
            got = frame.measures[label].recall["recall"]
            np.testing.assert_allclose(got, recalled.mean("query"), rtol=1e-12)


def test_the_distance_to_a_known_target():
    run = engine.run(DRIFT)
    frames = list(engine.stream(DRIFT, every=25))
    got = np.concatenate([frame.measures["delta"].tracking_error for frame in frames])
    np.testing.assert_array_equal(got, measure.error_curve(run, "delta"))
    assert frames[0].measures["seen"].tracking_error is None  # S maps what the view makes of keys
    assert frames[0].measures["delta"].recall == {}


def test_a_state_is_the_one_after_the_last_step_and_goes_on_elsewhere():
    run = engine.run(SCENARIO)
    first, second, _ = engine.stream(SCENARIO, every=60)
    for frame in (first, second):
        for label, name in (("delta", "S"), ("rls", "P")):
            state = frame.state(label)
            same(state[name].values, run[f"solvers/{label}/{name}"].values[frame.step])
            assert np.shares_memory(state[name].values, frame.traces[label].states[name])
        rows = frame.state("softmax")
        assert rows["keys"].dims == ("row", "trial", "key") and rows.sizes["row"] == frame.stop
        same(rows["values"].values, run["stream/values"].values[: frame.stop])
    tokens = second.tokens.arrays
    ds = engine.simulate(
        "delta", tokens["keys"], tokens["values"], state=first.state("delta").data_vars, beta=0.1
    )
    same(ds.output.values, second.traces["delta"].output)


@dataclass(frozen=True)
class InPlace(LinearRule):
    """Writes into the state that it is given."""

    def write(self, s, k, v):
        s.S[...] += k[..., :, None] * v[..., None, :]
        return LinearState(s.S)


def test_a_rule_that_works_in_place_changes_no_frame():
    from dataclasses import replace

    from engine.answers import Written
    from engine.live import Stream

    from .loop_cases import make_track

    plan = engine.stream(SCENARIO).plan
    plan = replace(plan, tracks=[make_track(plan.source, InPlace())])
    stream = Stream(plan, 60)
    assert isinstance(stream.written["recall"], Written)
    first, _, _ = stream
    prefix = next(Stream(replace(plan, source=engine.stream(SCENARIO).plan.source,
                                 tracks=[make_track(plan.source, InPlace())]), 60))  # fmt: skip
    early = prefix.measures["inplace"].recall["recall"]
    same(first.measures["inplace"].recall["recall"].values, early.values)

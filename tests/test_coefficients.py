"""Coefficients bound from a scenario: every form against its formula, and what is recorded."""

import numpy as np
import pytest

import engine
from engine.api import Coefficient, Decay, Gain
from engine.coefficients import Binding, Gate, check, parse
from engine.errors import InputError
from engine.sources import Tokens

STEPS, TRIALS = 40, 3
PLUGIN = '''
"""Rules whose coefficients have every shape that a rule can declare."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from engine import ops
from engine.api import Array, Decay, Gain, Generator, KeyDecay, Space, hookimpl
from engine.api import Coefficient


class State(NamedTuple):
    S: Annotated[Array, "key value"]


@dataclass(frozen=True)
class Channelwise:
    """S <- Diag(decay) S + gain k v^T; reads sharp S^T q."""

    def init(self, space: Space) -> State:
        return State(space.zeros("key value"))

    def write(self, s, k, v, *, decay: KeyDecay = 1.0, gain: Gain) -> State:
        return State(ops.scale_rows(decay, s.S) + ops.outer(gain * k, v))

    def read(self, s, q, *, sharp: Annotated[Array, Coefficient()] = 1.0) -> Array:
        return sharp * ops.vecmat(q, s.S)


@dataclass(frozen=True)
class Sides(Generator):
    """Side channels of every dtype: a ramp, bits, counts, and one that leaves [0, 1] at `bad`."""

    bad: int = 10**9

    @property
    def dims(self):
        return {"wide": "key"}

    def start(self, draws, steps):
        return None

    def draw(self, state, draws, steps):
        import numpy as np

        n, t = len(steps), np.arange(steps.start, steps.stop)
        one = np.ones((n, draws.trials))
        return state, {
            "keys": draws("keys").normal(n, 4),
            "values": draws("values").normal(n, 2),
            "ramp": (t / 64.0)[:, None] * one + np.arange(draws.trials) / 256.0,
            "bit": (t % 3 == 0)[:, None] & (one > 0),
            "count": np.repeat(t[:, None] % 5, draws.trials, axis=1).astype(np.int16),
            "drifts": np.where(t < self.bad, 0.5, -0.25)[:, None] * one,
            "wide": draws("wide").normal(n, 4),
        }


@hookimpl
def engine_solvers():
    return {"channelwise": Channelwise}


@hookimpl
def engine_generators():
    return {"sides": Sides}
'''


@pytest.fixture(autouse=True)
def own_plugins(folder, monkeypatch):
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("coefficients")
    (made / "sides.py").write_text(PLUGIN)
    return made


def run(options, solver="delta", stream=None, **top):
    return engine.run(
        {
            "trials": TRIALS,
            "stream": {"generator": "sides", "steps": STEPS, **(stream or {})},
            "solvers": {"it": {"solver": solver, **options}},
            **top,
        }
    )


t = np.arange(STEPS)
RAMP = (t / 64.0)[:, None] + np.arange(TRIALS) / 256.0
BIT = np.repeat((t % 3 == 0)[:, None], TRIALS, axis=1)
COUNT = np.repeat((t % 5)[:, None], TRIALS, axis=1)
x = np.minimum(t / 16, 1)
FORMS = {
    "integer": (2, (), 2.0),
    "constant": (0.3, (), 0.3),
    "linear": (
        {"schedule": "linear", "start": 1.0, "stop": 0.25, "over": 16}, ("step",),
        1.0 - 0.75 * x,
    ),
    "cosine": (
        {"schedule": "cosine", "start": 1.0, "stop": 0.25, "over": 16}, ("step",),
        0.25 + 0.75 * np.cos(np.pi * x / 2) ** 2,
    ),
    "exponential": (
        {"schedule": "exponential", "start": 1.0, "stop": 0.25, "over": 16}, ("step",),
        np.exp(np.log(0.25) * x),
    ),
    "beyond the end": (
        {"schedule": "linear", "start": 0.0, "stop": 1.0, "over": 1000}, ("step",), t / 1000,
    ),
    "of one step": ({"schedule": "cosine", "start": 0, "stop": 1, "over": 1}, ("step",), t > 0),
    "channel": ({"channel": "ramp"}, ("step", "trial"), RAMP),
    "channel of bits": ({"channel": "bit"}, ("step", "trial"), BIT),
    "channel of counts": ({"channel": "count"}, ("step", "trial"), COUNT),
    "gate on bits": (
        {"gate": "bit", "low": 0.02, "high": 0.2}, ("step", "trial"), np.where(BIT, 0.2, 0.02),
    ),
    "gate on a ramp": (
        {"gate": "ramp", "low": 0.1, "high": 0.9}, ("step", "trial"), 0.1 + 0.8 * RAMP,
    ),
    "gate downwards": ({"gate": "bit", "low": 1, "high": 0}, ("step", "trial"), ~BIT),
    "trials": ({"trials": [0.1, 0.2, 0.3]}, ("trial",), [0.1, 0.2, 0.3]),
}  # fmt: skip


@pytest.mark.parametrize("value, dims, wanted", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("where", ["memory", "store"])
def test_every_form_is_its_formula_and_is_recorded(value, dims, wanted, where, tmp_path):
    made = run({"beta": value})
    if where == "store":
        table = made.attrs["scenario"]["resolved"]
        made = engine.run(table, tmp_path / "r.zarr")
    beta = made["solvers/it/beta"]
    assert beta.dims == dims
    assert beta.dtype == np.float64
    np.testing.assert_allclose(beta.values, np.asarray(wanted, dtype=float), rtol=4e-15)
    # What is recorded is what was used: simulating with it gives the same bits.
    stream = made["stream"].to_dataset().load()
    again = engine.simulate(
        engine.solver("delta"), stream["keys"], stream["values"],
        beta=beta.load() if dims else float(beta),
    )  # fmt: skip
    assert np.array_equal(again["S"].values, made["solvers/it/S"].values)
    assert np.array_equal(again["prediction"].values, made["solvers/it/prediction"].values)


def test_ends_are_met_exactly():
    """Rounding must not leave a schedule short of its stop, nor a gate short of its ends."""
    ends = [0.1, 0.7, 1 / 3, 0.2, 1e-9]
    for kind in ("linear", "cosine", "exponential"):
        for start, stop in zip(ends, ends[1:], strict=False):
            form = {"schedule": kind, "start": start, "stop": stop, "over": 7}
            beta = run({"beta": form})["solvers/it/beta"].values
            assert (beta[7:] == stop).all() and beta[0] == start
    for low, high in zip(ends, ends[1:], strict=False):
        beta = run({"beta": {"gate": "bit", "low": low, "high": high}})["solvers/it/beta"].values
        assert set(np.unique(beta)) == {low, high}


LABELLED = {name.replace(" ", "_"): form for name, form in FORMS.items()}


def test_forms_do_not_depend_on_the_block():
    table = {
        "trials": TRIALS,
        "stream": {"generator": "sides", "steps": STEPS},
        "solvers": {
            label: {"solver": "delta", "beta": value} for label, (value, _, _) in LABELLED.items()
        },
    }
    whole = next(engine.stream(table, every=STEPS))
    parts = list(engine.stream(table, every=7))
    for label, (_, dims, _) in LABELLED.items():
        got = [frame.traces[label].coefficients["beta"] for frame in parts]
        joined = np.concatenate(got) if "step" in dims else got[-1]
        assert np.array_equal(joined, whole.traces[label].coefficients["beta"])


def test_one_value_per_trial_is_that_many_runs():
    """A sweep in one batch gives, trial by trial, the bits of separate runs."""
    values = [0.1, 0.45, 0.8]
    batch = run({"beta": {"trials": values}})
    for trial, value in enumerate(values):
        alone = run({"beta": value})
        for name in ("S", "prediction", "output"):
            mine, other = batch[f"solvers/it/{name}"], alone[f"solvers/it/{name}"]
            assert np.array_equal(mine.values[:, trial], other.values[:, trial])


def test_a_default_is_recorded_too():
    made = engine.run(
        {"stream": {"generator": "random", "steps": 3}, "solvers": {"rls": {}, "delta": {}}}
    )
    assert float(made["solvers/rls/gamma"]) == 1.0
    assert float(made["solvers/delta/beta"]) == 1.0
    assert made.attrs["scenario"]["resolved"]["solvers"]["rls"]["gamma"] == 1.0


def test_in_float32_the_recorded_value_is_what_was_given():
    made = run({"beta": 0.1}, dtype="float32")
    assert made["solvers/it/S"].dtype == np.float32
    assert made["solvers/it/beta"].dtype == np.float64
    assert float(made["solvers/it/beta"]) == 0.1


def test_a_coefficient_with_an_axis_takes_a_list_or_one_number_for_all():
    decay = [1.0, 0.5, 0.25, 0.0]
    made = run({"decay": decay, "gain": 1}, "channelwise")
    assert made["solvers/it/decay"].dims == ("key",)
    assert made["solvers/it/decay"].values.tolist() == decay
    keys, values = made["stream/keys"].values, made["stream/values"].values
    S = np.zeros((TRIALS, 4, 2))
    for k, v, got in zip(keys, values, made["solvers/it/S"].values, strict=True):
        S = np.array(decay)[:, None] * S + k[:, :, None] * v[:, None, :]
        np.testing.assert_allclose(got, S, rtol=1e-13)
    one = run({"decay": 0.5, "gain": 1}, "channelwise")
    same = run({"decay": [0.5] * 4, "gain": 1}, "channelwise")
    assert np.array_equal(one["solvers/it/S"].values, same["solvers/it/S"].values)
    assert one["solvers/it/decay"].dims == ()
    gated = run({"decay": {"gate": "bit", "low": 1.0, "high": 0.5}, "gain": 1}, "channelwise")
    assert gated["solvers/it/decay"].dims == ("step", "trial")


@pytest.mark.parametrize("solver", ["comba", "momentum_delta"])
@pytest.mark.parametrize("channel", ["keys", "wide"])
@pytest.mark.parametrize("where", ["memory", "store"])
def test_a_coefficient_with_an_axis_follows_a_channel_of_vectors(solver, channel, where, tmp_path):
    options = {"erase_key": {"channel": channel}}
    made = run(options, solver)
    if where == "store":
        made = engine.run(made.attrs["scenario"]["resolved"], tmp_path / "r.zarr")
    stream = made["stream"].to_dataset().load()
    assert made["solvers/it/erase_key"].dims == ("step", "trial", "key")
    np.testing.assert_array_equal(made["solvers/it/erase_key"].values, stream[channel].values)
    again = engine.simulate(
        solver, stream["keys"], stream["values"], erase_key=stream[channel].values
    )
    for name in ("S", "prediction", "output"):
        assert np.array_equal(again[name].values, made[f"solvers/it/{name}"].values)


def test_a_channel_for_a_coefficient_with_an_axis_may_be_one_number_per_step():
    made = run({"decay": {"channel": "ramp"}, "gain": 1}, "channelwise")
    assert made["solvers/it/decay"].dims == ("step", "trial")


def test_a_coefficient_of_the_read_follows_its_channel_too():
    made = run({"gain": 1, "sharp": {"channel": "ramp"}}, "channelwise", probes={"recall": {}})
    S, keys = made["solvers/it/S"].values, made["stream/keys"].values
    wanted = RAMP[..., None] * np.einsum("tbk,tbkv->tbv", keys, S)
    np.testing.assert_allclose(made["solvers/it/output"].values, wanted, rtol=1e-12, atol=1e-13)
    # A probe at the end reads as the last step did.
    read = made["probes/recall/it/read"].values
    last = RAMP[-1][:, None] * np.einsum("qbk,bkv->qbv", keys, S[-1])
    np.testing.assert_allclose(read, last, rtol=1e-12, atol=1e-13)


WRONG = {
    "too long a list": (
        {"gain": 1, "decay": [1.0] * 5},
        r"solvers\.it\.decay = \[1\.0.*\]: 5 values for 4 channels of 'key'",
    ),
    "no list": (
        {"gain": 1, "decay": []},
        "solvers.it.decay = .*: 0 values for 4 channels of 'key'",
    ),
    "a list of text": ({"gain": 1, "decay": ["a"]}, "solvers.it.decay = .* must be a list of numb"),
    "out of bounds in a list": (
        {"gain": 1, "decay": [1.0, 0.5, 1.5, 0.0]},
        r"solvers\.it\.decay = .*: decay = 1\.5 must be in \[0, 1\]",
    ),
    "a missing one": (
        {"decay": 0.5},
        "scenario: solvers.it.gain: missing; channelwise needs it at",
    ),
    "a channel with an axis": (
        {"gain": {"channel": "wide"}},
        "no side channel 'wide' of one number per step; .*Known: bit, count, drifts, ramp",
    ),
    "a channel of another width": (
        {"gain": 1, "decay": {"channel": "values"}},
        "the side channel 'values' has 2 numbers per step, and the solver 4 channels of 'key'",
    ),
    "no such channel of vectors": (
        {"gain": 1, "decay": {"channel": "widde"}},
        "no side channel 'widde' of one number per step, or one per channel of 'key'; did you "
        "mean 'wide'",
    ),
    "a gate on vectors": (
        {"gain": 1, "decay": {"gate": "wide", "low": 0.0, "high": 1.0}},
        "no side channel 'wide' of one number per step; .*Known: bit, count, drifts, ramp",
    ),
}


@pytest.mark.parametrize("options, said", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused_before_the_first_step(options, said):
    with pytest.raises(InputError, match=said):
        run(options, "channelwise")


@pytest.mark.parametrize("form", [{"channel": "drifts"}, {"gate": "drifts", "low": 0, "high": 1}])
def test_a_channel_that_leaves_the_bounds_ends_the_run_and_says_where(form, tmp_path):
    """What was whole before that step is kept: of the step loop, its blocks."""
    stream = {"steps": 3000, "bad": 2900}
    with pytest.raises(engine.RunError) as error:
        engine.run(
            {
                "trials": TRIALS, "kernel": "loop", "stream": {"generator": "sides", **stream},
                "solvers": {"it": {"solver": "delta", "beta": form}},
            },
            tmp_path / "r.zarr",
        )  # fmt: skip
    said = "solver 'it': beta = -0.25 at step 2900, trial 0 must be at least 0"
    assert str(error.value) == said
    left = engine.open(tmp_path / "r.zarr")
    assert left.attrs["status"] == "failed"
    assert 0 < left.attrs["committed"] <= 2900
    assert (left["solvers/it/beta"].values == 0.5).all()


@pytest.mark.parametrize(
    "spec, words",
    [
        (Coefficient(), "finite"),
        (Coefficient(low=0.0), "at least 0"),
        (Coefficient(low=0.0, above=True), "above 0"),
        (Coefficient(high=2.0), "at most 2"),
        (Coefficient(low=0.0, high=1.0), "in [0, 1]"),
        (Coefficient(low=0.0, high=1.0, above=True), "in (0, 1]"),
    ],
)
def test_bounds_in_words_and_in_deed(spec, words):
    assert spec.bounds == words
    tokens = Tokens(5, {"keys": np.empty((2, 1, 1))})
    inside = 0.5
    Binding("b", spec, inside).block(tokens)
    for outside in (-1.0, 0.0, 3.0, np.nan, np.inf):
        low_fault = spec.low is not None and (outside < 0 or (spec.above and outside == 0))
        high_fault = spec.high is not None and outside > spec.high
        if low_fault or high_fault or not np.isfinite(outside):
            with pytest.raises(InputError, match="b = .* must be "):
                Binding("b", spec, outside).block(tokens)
        else:
            Binding("b", spec, outside).block(tokens)


def test_a_masked_step_may_hold_anything():
    mask = np.array([[True], [False]])
    tokens = Tokens(0, {"keys": np.empty((2, 1, 1)), "mask": mask, "x": np.array([[1.0], [-1.0]])})
    binding = parse("beta", Gain.__metadata__[0], {"channel": "x"})
    assert binding.block(tokens).ravel().tolist() == [1.0, -1.0]
    with pytest.raises(InputError) as error:
        binding.block(Tokens(7, {**tokens.arrays, "mask": np.array([[False], [True]])}))
    assert str(error.value) == "beta = -1 at step 8, trial 0 must be at least 0"


def test_gates_on_bits_are_checked_at_both_ends_before_the_run():
    decay = Decay.__metadata__[0]
    sample = {"bit": np.zeros((0, 1), dtype=bool), "ramp": np.zeros((0, 1))}
    binding = Binding("gamma", decay, Gate(gate="bit", low=0.5, high=1.5))
    with pytest.raises(InputError, match=r"^high = 1\.5 must be in \[0, 1\]$"):
        check(binding, sample, 1, {})
    # What a channel of numbers holds is not known before it is drawn.
    check(Binding("gamma", decay, Gate(gate="ramp", low=0.5, high=1.5)), sample, 1, {})

"""A memory in a caller's own loop: the bits of `engine.simulate`, step by step."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import xarray as xr

import engine
from engine.api import Gain, View
from engine.linear import LinearRule, LinearState, Token
from engine.testing.examples import example

from .simulation_cases import Gated, assert_same


def pushed(memory, keys, values, coefficients=None):
    """Return what a memory said at every step, and its states, each (step, ...)."""
    told = {"prediction": [], "output": []}
    for t in range(len(keys)):
        row = {n: x[t] for n, x in (coefficients or {}).items()}
        told["prediction"].append(memory.predict(keys[t], **row))
        memory.write(keys[t], values[t], **row)
        told["output"].append(memory.read(keys[t]))
        for name, x in memory.state.items():
            told.setdefault(name, []).append(x)
    return told


@pytest.mark.parametrize("trials", [None, 3])
@pytest.mark.parametrize("name", engine.solvers())
def test_every_solver_says_what_simulate_says_bit_for_bit(name, trials):
    rule = engine.solver(name)
    given = example(rule, steps=20, trials=3)
    if trials is None:
        given = given.part(trials=0)
    ds = engine.simulate(rule, given.keys, given.values, kernel="loop", **given.coefficients)
    memory = engine.memory(
        rule, key=given.keys.shape[-1], value=given.values.shape[-1], trials=trials
    )
    told = pushed(memory, given.keys, given.values, given.coefficients)
    assert memory.writes == 20
    for variable, steps in told.items():
        if ds[variable].dims[0] == "step":
            assert_same(np.stack(steps), ds[variable])
        else:  # rows that only grow are recorded once, at the end
            assert_same(steps[-1], ds[variable])
    # The end of either is where the other may go on from.
    memory.restore(ds)
    more = example(rule, steps=5, trials=3, seed=1)
    more = more.part(trials=0) if trials is None else more
    went = pushed(memory, more.keys, more.values, more.coefficients)
    on = engine.simulate(rule, more.keys, more.values, kernel="loop", state=ds, **more.coefficients)
    other = engine.simulate(
        rule, more.keys, more.values, kernel="loop", state={n: x[-1] for n, x in told.items()
                                                            if n not in ("prediction", "output")},
        **more.coefficients,
    )  # fmt: skip
    assert_same(np.stack(went["output"]), on.output)
    assert_same(other.output, on.output)


@pytest.mark.parametrize("name", ["delta", "rls", "softmax_attention", "ttt_linear"])
def test_another_array_library_and_precision(name):
    rule = engine.solver(name)
    given = example(rule, steps=8, trials=2)
    options = {"kernel": "loop", "backend": "array_api_strict", "dtype": "float32"}
    ds = engine.simulate(rule, given.keys, given.values, **given.coefficients, **options)
    sizes = {"key": given.keys.shape[-1], "value": given.values.shape[-1], "trials": 2}
    memory = engine.memory(rule, **sizes, backend="array_api_strict", dtype="float32")
    told = pushed(memory, given.keys, given.values, given.coefficients)
    assert_same(np.stack(told["output"]), ds.output)
    assert type(told["output"][0]) is np.ndarray and told["output"][0].dtype == np.float32


@pytest.mark.parametrize("view", ["unit", "elu1", "taylor"])
def test_a_view_stands_between(view):
    run = engine.run({
        "trials": 2, "kernel": "loop", "seed": 3,
        "stream": {"generator": "random", "steps": 30, "key": 4, "value": 3},
        "solvers": {"delta": {"beta": 0.25, "view": view}},
    })  # fmt: skip
    keys, values = run["stream/keys"].values, run["stream/values"].values
    memory = engine.memory("delta", key=4, value=3, trials=2, beta=0.25, view=view)
    told = pushed(memory, keys, values)
    for name in ("prediction", "output", "S"):
        np.testing.assert_allclose(
            np.stack(told[name]), run[f"solvers/delta/{name}"].values, rtol=1e-13, atol=1e-15
        )


class Asking(View):
    """Keys as they are, queries twice as long."""

    def __call__(self, x):
        return x

    def queries(self, x):
        return 2.0 * x


def test_predict_looks_at_a_key_and_read_at_a_query():
    memory = engine.memory("delta", key=2, value=1, view=Asking())
    memory.write([1.0, 0.0], [3.0])
    assert memory.predict([1.0, 0.0]).tolist() == [3.0]
    assert memory.read([1.0, 0.0]).tolist() == [6.0]


# ---------------------------------------------------------------------------------- coefficients


def test_coefficients_of_the_memory_and_of_one_write():
    """S <- S + beta k (v - S^T k)^T with k = e1, v = 1: 1 - S halves, then a quarter of it goes."""
    memory = engine.memory("delta", key=2, value=1, beta=0.5)
    for beta, left in ((None, 0.5), (None, 0.25), (0.25, 0.1875), (None, 0.09375), (1, 0.0)):
        memory.write([1, 0], [1], **({} if beta is None else {"beta": beta}))
        assert memory.read([1, 0]).tolist() == [1 - left]


def test_one_coefficient_per_trial_and_per_channel():
    memory = engine.memory(Gated(), key=2, value=1, trials=2, gamma=[0.5, 1.0])
    ones = np.ones((2, 1))
    memory.write(np.array([[1.0, 0.0]] * 2), ones)
    memory.write(np.array([[0.0, 1.0]] * 2), ones, gamma=[[1.0, 0.0], [0.25, 0.0]], beta=0.0)
    assert memory.state["S"][:, :, 0].tolist() == [[1.0, 0.0], [0.25, 0.0]]
    memory.write(np.array([[0.0, 1.0]] * 2), ones, beta=0.0)
    assert memory.state["S"][:, :, 0].tolist() == [[0.5, 0.0], [0.25, 0.0]]


@dataclass(frozen=True)
class Loud(LinearRule):
    """A linear memory whose reads are as loud as the last write said."""

    def token(self, k, v) -> Token:
        return Token(write=k, value=v)

    def read(self, s, q, *, gain: Gain = 1.0):
        return gain * super().read(s, q)


def test_what_a_read_takes_is_that_of_the_last_write_unless_it_is_given():
    memory = engine.memory(Loud(), key=1, value=1)
    memory.write([1.0], [1.0], gain=3.0)
    assert memory.read([1.0]).tolist() == [3.0] and memory.predict([1.0]).tolist() == [3.0]
    assert memory.read([1.0], gain=2.0).tolist() == [2.0] and memory.read([1.0]).tolist() == [3.0]
    other = memory.clone()
    memory.write([0.0], [0.0])
    assert memory.read([1.0]).tolist() == [1.0] and other.read([1.0]).tolist() == [3.0]


# ------------------------------------------------------------------------------------- whose array


@pytest.mark.parametrize("name", ["delta", "rls", "softmax_attention", "forgetting_attention"])
def test_snapshots_and_clones_are_of_their_moment(name):
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(12, 4)), rng.normal(size=(12, 3))
    memory = engine.memory(name, key=4, value=3)
    for k, v in zip(keys[:5], values[:5], strict=True):
        memory.write(k, v)
    then, at = memory.snapshot(), memory.read(keys[0])
    twin, kept = memory.clone(), memory.state
    for k, v in zip(keys[5:], values[5:], strict=True):
        memory.write(k, v)
    end = memory.read(keys[0])
    assert not np.array_equal(end, at) and memory.writes == 12
    assert_same(twin.read(keys[0]), at)
    for variable, x in twin.state.items():
        assert_same(kept[variable], x)
    twin.write(keys[7], values[7])
    assert_same(memory.read(keys[0]), end)
    memory.restore(pickle.loads(pickle.dumps(then)))
    assert memory.writes == 5
    assert_same(memory.read(keys[0]), at)
    for k, v in zip(keys[5:], values[5:], strict=True):
        memory.write(k, v)
    assert_same(memory.read(keys[0]), end)


@dataclass(frozen=True)
class InPlace(LinearRule):
    """Writes into the state that it is given, and hands out parts of it."""

    def write(self, s, k, v):
        s.S[...] += k[..., :, None] * v[..., None, :]
        return LinearState(s.S)

    def read(self, s, q):
        return s.S[..., 0, :]


def test_a_rule_that_works_in_place_changes_nothing_that_was_handed_out():
    memory = engine.memory(InPlace(), key=2, value=1)
    k, v = np.array([1.0, 0.0]), np.array([2.0])
    memory.write(k, v)
    state, then, twin, read = memory.state, memory.snapshot(), memory.clone(), memory.read(k)
    k[:], v[:] = 9.0, 9.0  # the caller's arrays are the caller's
    memory.write([1.0, 1.0], [5.0])
    assert state["S"].ravel().tolist() == then.state["S"].ravel().tolist() == [2.0, 0.0]
    assert twin.read(k).tolist() == read.tolist() == [2.0]
    read[:] = 7.0
    state["S"][:] = 7.0
    memory.state["S"][:] = 7.0
    assert memory.read(k).tolist() == [7.0] == memory.state["S"][0].tolist()


def test_any_array_is_taken_as_it_reads():
    """Integers, lists, other layouts, read-only and big-endian arrays, labelled ones."""
    plain = engine.memory("delta", key=3, value=2, trials=2)
    plain.write(np.array([[1.0, 2, 3], [4, 5, 6]]) / 8, np.ones((2, 2)))
    k = np.array([[1.0, 2, 3], [4, 5, 6]]) / 8
    frozen = k.copy()
    frozen.flags.writeable = False
    labelled = xr.DataArray(k.T, dims=("key", "trial"))
    for form in (k.tolist(), np.asfortranarray(k), k.astype(">f8"), frozen, labelled,
                 np.repeat(k, 2, axis=1)[:, ::2]):  # fmt: skip
        memory = engine.memory("delta", key=3, value=2, trials=2)
        memory.write(form, np.ones((2, 2), dtype=np.int8))
        assert_same(memory.state["S"], plain.state["S"])
    big = engine.memory("linear_attention", key=1, value=1)
    big.write(np.array([200], dtype=np.uint8), np.array([200], dtype=np.uint8))
    assert big.read([1]).tolist() == [40000.0]


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda m: m.write(np.ones(3), np.ones(2)),
            r"k has shape \(3,\), expected \(key,\) = \(4,",
        ),
        (lambda m: m.write(np.ones(4), 1.0), r"v has shape \(\), expected \(value,\) = \(2,\)"),
        (lambda m: m.read(np.ones((1, 4))), r"q has shape \(1, 4\), expected \(key,\) = \(4,\)"),
        (lambda m: m.predict([1, 2]), r"k has shape \(2,\), expected \(key,\) = \(4,\)"),
        (lambda m: m.write(np.ones(4), ["a", "b"]), "v has dtype <U1; expected floats"),
        (lambda m: m.write(np.ones(4) * 1j, [1, 2]), "k has dtype complex128; expected floats"),
        (lambda m: m.write(np.ones(4), [1, 2], beta=-1), r"beta = -1 must be at least 0"),
        (lambda m: m.write(np.ones(4), [1, 2], beta=np.nan), r"beta = nan must be at least 0"),
        (lambda m: m.write(np.ones(4), [1, 2], beta=[1, 1]), r"beta has shape .*expected a number"),
        (lambda m: m.write(np.ones(4), [1, 2], bta=1), "Delta takes no coefficient 'bta'; did you"),
        (lambda m: m.read(np.ones(4), gain=1), "Delta takes no coefficient 'gain'; Known: beta"),
        (lambda m: m.restore({}), "state: no 'S'; it must give S"),
        (lambda m: m.restore({"S": np.ones((4, 3))}), r"'S' has shape \(1, 4, 3\), expected"),
        (lambda m: m.restore(3), "state must map state variables to arrays"),
        (lambda m: m.restore(engine.memory("rls", key=4, value=2).snapshot()), "of RLS.* is Delta"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(call, says):
    memory = engine.memory("delta", key=4, value=2)
    memory.write([1.0, 0, 0, 0], [1.0, 2.0])
    before = memory.state
    with pytest.raises(engine.InputError, match=says):
        call(memory)
    assert memory.writes == 1
    assert_same(memory.state["S"], before["S"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"solver": "dleta"}, "did you mean 'delta'"),
        ({"solver": 3}, "solver = 3 must be a name, or made by engine.solver"),
        ({"key": 0}, "key = 0 must be a whole number, 1 or more"),
        ({"value": 2.0}, "value = 2.0 must be a whole number"),
        ({"trials": True}, "trials = True must be a whole number"),
        ({"dtype": "float16"}, "dtype = 'float16' must be 'float32' or 'float64'"),
        ({"backend": "nump"}, "no backend is named 'nump'; did you mean 'numpy'"),
        ({"view": "unti"}, "did you mean 'unit'"),
        ({"beat": 1.0}, "delta takes no 'beat'; did you mean 'beta'"),
        ({"beta": -0.5}, "beta = -0.5 must be at least 0"),
        ({"solver": "rls", "ridge": "much"}, "ridge = 'much': must be a number"),
        ({"solver": Loud(), "ridge": 1.0}, "Loud takes no coefficient 'ridge'"),
    ],
)
def test_a_memory_that_cannot_be_made_says_why(options, says):
    with pytest.raises(engine.InputError, match=says):
        engine.memory(**{"solver": "delta", "key": 4, "value": 2, **options})


def test_trials_are_told_in_the_shape():
    memory = engine.memory(Gated(), key=4, value=2, trials=3)
    with pytest.raises(engine.InputError, match=r"expected \(trial, key\) = \(3, 4\)"):
        memory.write(np.ones(4), np.ones((3, 2)))
    with pytest.raises(engine.InputError, match=r"\(trial, key\) = \(3, 4\)"):
        memory.write(np.ones((3, 4)), np.ones((3, 2)), gamma=np.ones(4))
    with pytest.raises(engine.InputError, match="beta = -1, trial 2 must be at least 0"):
        memory.write(np.ones((3, 4)), np.ones((3, 2)), beta=[0, 0, -1])


def test_a_coefficient_without_a_default_is_asked_for():
    memory = engine.memory("comba", key=2, value=1)
    with pytest.raises(engine.InputError, match="Comba needs the coefficient 'erase_key' at every"):
        memory.write([1, 0], [1])
    memory.write([1, 0], [1], erase_key=[1, 0])
    assert memory.read([1, 0]).tolist() == [1.0]


@dataclass(frozen=True)
class Faulty(LinearRule):
    """Fails at a value of 9, in one way or another."""

    how: str

    def write(self, s, k, v):
        if v[0, 0] == 9:
            match self.how:
                case "raise":
                    raise ZeroDivisionError("no such thing")
                case "nothing":
                    return None
                case "shape":
                    return LinearState(s.S[..., :1])
                case "dtype":
                    return LinearState(s.S.astype("float32"))
                case "exit":
                    raise SystemExit(0)
        return LinearState(s.S + k[..., :, None] * v[..., None, :])

    def read(self, s, q):
        if q[0, 0] == 9:
            match self.how:
                case "raise":
                    raise ZeroDivisionError("no such thing")
                case "nothing":
                    return None
                case "shape":
                    return q
                case "dtype":
                    return super().read(s, q).astype("float32")
                case "exit":
                    raise SystemExit(0)
        return super().read(s, q)


@pytest.mark.parametrize(
    ("how", "write", "read"),
    [
        ("raise", "ZeroDivisionError: no such thing", "ZeroDivisionError: no such thing"),
        ("nothing", "write gave NoneType, not LinearState", "read gave NoneType, expected float64"),
        ("shape", r"S gave float64 \(1, 4, 1\), expected float64 \(1, 4, 2\)",
         r"read gave float64 \(1, 4\), expected float64 \(1, 2\)"),
        ("dtype", "S gave float32", "read gave float32"),
        ("exit", "SystemExit: 0", "SystemExit: 0"),
    ],
)  # fmt: skip
def test_a_rule_that_fails_is_named_and_leaves_the_state(how, write, read):
    memory = engine.memory(Faulty(how), key=4, value=2)
    memory.write(np.ones(4), np.ones(2))
    with pytest.raises(engine.RunError, match=f"'faulty': write failed after 1 writes: .*{write}"):
        memory.write(np.ones(4), np.full(2, 9))
    with pytest.raises(engine.RunError, match=f"'faulty': read failed after 1 writes: .*{read}"):
        memory.read(np.full(4, 9))
    assert memory.state["S"].ravel().tolist() == [1.0] * 8


def test_divergence_is_seen_in_the_read_and_warns_of_nothing():
    memory = engine.memory("delta", key=2, value=1, beta=1e200, dtype="float32")
    for _ in range(3):
        memory.write([1e30, 0], [1e300])
    assert not np.isfinite(memory.read([1.0, 0])).any()

"""Memories that are networks: Titans with two layers, and TTT-Linear."""

import numpy as np
import pytest

import engine
from engine.plugins.solvers.titans_mlp import TitansMLP, TitansMLPState, UnbiasedState
from engine.plugins.solvers.ttt_linear import TTTLinear, TTTState

from .regression_cases import load, pairs

# Titans with a two-layer memory


@pytest.fixture(scope="module")
def deep():
    """Return 16 pairs, 64 writes of them, and snapshots of a 32-128-32 memory (d2l 12.6)."""
    return load("titans_deep")


def test_titans_mlp_reproduces_the_published_deep_memory(deep):
    """Published: theta .005, eta .5, 64 writes: retrieval MSE .03125 -> .00225106.

    The snapshots are float32 originals: 128 products of numbers below 1, 64 times over, leave
    2e-6 in W1, whose entries are up to 1.
    """
    solver = TitansMLP(hidden=128)
    weights = {"W1": deep["W1_init"], "b1": deep["b1_init"], "W2": np.zeros((128, 32))}
    weights["b2"] = np.zeros(32)
    start = {**weights, **{f"U_{n}": np.zeros_like(x) for n, x in weights.items()}}
    keys, values = deep["keys"], deep["values"]
    order = deep["order"]
    ds = engine.simulate(solver, keys[order], values[order], theta=0.005, eta=0.5, state=start)

    def retrieval(t):
        state = start if t == 0 else {n: ds[n].values[t - 1] for n in start}
        return np.mean((solver.read(TitansMLPState(**state), keys) - values) ** 2)

    mse = np.array([retrieval(t) for t in range(65)])
    assert abs(mse[0] - 0.03125) < 5e-7 and abs(mse[-1] - 0.00225106) < 5e-9
    np.testing.assert_allclose(mse, deep["retrieval_mse"], rtol=1e-12)
    for i, t in enumerate(deep["snap_steps"]):
        for name in weights:
            np.testing.assert_allclose(ds[name].values[t - 1], deep[name][i], atol=2e-6)


@pytest.mark.parametrize("loss", ["sum", "mean"])
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("activation", ["erf", "tanh"])
def test_the_gradient_of_the_mlp_is_that_of_its_loss(activation, biases, loss):
    """Central differences of |M(k) - v|^2 in every parameter: h^2 + eps / h = 1e-10."""
    solver = TitansMLP(hidden=5, activation=activation, biases=biases, loss=loss)
    rng = np.random.default_rng(0)
    kind = TitansMLPState if biases else UnbiasedState
    shapes = {"W1": (4, 5), "b1": (5,), "W2": (5, 3), "b2": (3,)}
    shapes |= {f"U_{name}": shape for name, shape in shapes.items()}
    s = kind(**{name: rng.normal(size=shapes[name]) for name in kind._fields})
    k, v = rng.normal(size=4), rng.normal(size=3)

    def value(state):
        square = (solver.read(state, k) - v) ** 2
        return square.sum() if loss == "sum" else square.mean()

    got = solver.gradient(s, k, v)
    assert set(got) == {name for name in kind._fields if not name.startswith("U_")}
    h = 6e-6
    for name, slope in got.items():
        assert slope.shape == shapes[name]
        for at in np.ndindex(slope.shape):
            ends = []
            for sign in (1, -1):
                moved = getattr(s, name).copy()
                moved[at] += sign * h
                ends.append(value(s._replace(**{name: moved})))
            assert abs((ends[0] - ends[1]) / (2 * h) - slope[at]) <= 1e-8 * (1 + abs(slope[at]))


@pytest.mark.parametrize("biases", [True, False])
def test_titans_mlp_steps_with_momentum_from_undecayed_weights(biases):
    """U <- eta U - theta dL/dW at W; W <- (1 - alpha) W + U, for every parameter."""
    solver = TitansMLP(hidden=7, biases=biases, seed=3)
    keys, values = pairs(30)
    rng = np.random.default_rng(1)
    theta, eta, alpha = rng.uniform(0, 0.05, 30), rng.uniform(size=30), rng.uniform(0, 0.2, 30)
    ds = engine.simulate(solver, keys, values, theta=theta, eta=eta, alpha=alpha)
    kind = TitansMLPState if biases else UnbiasedState
    states = [kind(*(ds[name].values[t] for name in kind._fields)) for t in range(30)]
    for t in range(1, 30):
        slopes = solver.gradient(states[t - 1], keys[t], values[t])
        for name, slope in slopes.items():
            old, new = states[t - 1]._asdict(), states[t]._asdict()
            U = eta[t] * old[f"U_{name}"] - theta[t] * slope
            np.testing.assert_allclose(new[f"U_{name}"], U, rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(new[name], (1 - alpha[t]) * old[name] + U, atol=1e-14)


def test_titans_mlp_draws_the_same_first_layer_for_every_trial():
    keys, values = np.random.default_rng(0).normal(size=(2, 1, 3, 64))
    still = {"theta": 0.0, "eta": 0.0}
    one = engine.simulate(TitansMLP(hidden=512), keys, values, **still).W1.values[0]
    again = engine.simulate(TitansMLP(hidden=512), keys[:, :1], values[:, :1], **still).W1.values[0]
    np.testing.assert_array_equal(one, np.broadcast_to(again, one.shape))
    other = engine.simulate(TitansMLP(hidden=512, seed=1), keys, values, **still).W1.values[0]
    assert (one != other).all()
    scaled = engine.simulate(TitansMLP(hidden=512, init_scale=3.0), keys, values, **still)
    np.testing.assert_allclose(scaled.W1.values[0], 3 * one, rtol=1e-15)
    # A standard deviation from 64 * 512 draws, 1 / sqrt(2 * 32768) = 0.4 % each.
    assert abs(one[0].std() * 8 - 1) < 4 * 0.004


# TTT-Linear


def layer_norm(z, weight, bias):
    return weight * (z - z.mean()) / np.sqrt(z.var() + 1e-6) + bias


@pytest.mark.parametrize(("minibatch", "steps"), [(1, 20), (4, 20), (16, 40), (64, 20)])
def test_ttt_linear_is_gradient_descent_by_minibatches(minibatch, steps):
    """r = d/dz |LN(z) - (v - k)|^2 / 2 at the mini-batch's start, here by central differences.

    y_i = S^T q + c - eta_i sum_j ((q.k_j) + 1) r_j over the mini-batch so far (Sun et al. 2024,
    dual form); the step at its end uses the last token's eta. Tokens of a last, incomplete
    mini-batch stay in the sums.
    """
    rng = np.random.default_rng(0)
    keys, values, queries = rng.normal(size=(3, steps, 5))
    eta, weight, bias = rng.uniform(0, 0.3, steps), rng.normal(size=5), rng.normal(size=5)
    solver = TTTLinear(minibatch, tuple(weight.tolist()), tuple(bias.tolist()))
    ds = engine.simulate(solver, keys, values, queries, eta=eta)
    S, c, seen = np.zeros((5, 5)), np.zeros(5), []
    h = 1e-7  # at z = 0 the norm divides by 1e-3: a smaller step than elsewhere
    for t in range(steps):
        k, z = keys[t], keys[t] @ S + c

        def loss(z, target=values[t] - keys[t]):
            return 0.5 * np.sum((layer_norm(z, weight, bias) - target) ** 2)

        r = np.array([(loss(z + h * e) - loss(z - h * e)) / (2 * h) for e in np.eye(5)])
        exact = solver._gradient(z, values[t] - k)
        scale = 1 + abs(exact).max()
        assert abs(r - exact).max() <= 1e-5 * scale
        seen.append((k, exact))
        y = queries[t] @ S + c - eta[t] * sum((queries[t] @ a + 1) * r for a, r in seen)
        np.testing.assert_allclose(ds.output[t], y + layer_norm(y, weight, bias), rtol=1e-9)
        if len(seen) == minibatch:
            S = S - eta[t] * sum(np.outer(a, r) for a, r in seen)
            c = c - eta[t] * sum(r for _, r in seen)
            seen = []
        np.testing.assert_allclose(ds.S[t], S, rtol=1e-9, atol=1e-9)
        assert int(ds.n[t]) == len(seen) and ds.n.dtype.kind == "i"


def test_an_empty_ttt_linear_reads_its_bias():
    """y = 0 and LN(0) = ln_bias: zeros by default."""
    ds = engine.simulate(TTTLinear(ln_bias=(1.0, -2.0)), np.ones((1, 2)), np.ones((1, 2)))
    np.testing.assert_array_equal(ds.prediction, [[1.0, -2.0]])


def test_ttt_linear_needs_as_many_value_as_key_channels():
    with pytest.raises((ValueError, engine.InputError), match="keys of 3 and values of 2"):
        engine.simulate("ttt_linear", np.ones((1, 3)), np.ones((1, 2)))


@pytest.mark.parametrize("eta", [1.0, 1e3])
def test_ttt_linear_grows_at_most_linearly(eta):
    """|r| <= 1e3 |g|: a step is at most eta |k| 1e3 |w| (|w| sqrt(d) + |target|)."""
    keys, values = pairs(2000, 6, 6)
    ds = engine.simulate(TTTLinear(minibatch=1), keys, values, eta=eta)
    size = np.linalg.norm(ds.S.values, axis=(-2, -1))
    target = np.linalg.norm(values - keys, axis=-1).max()
    most = eta * 1e3 * np.linalg.norm(keys, axis=-1).max() * (np.sqrt(6) + target)
    assert int(ds.diverged_at) == -1 and (size <= most * np.arange(1, 2001)).all()


def test_states_name_the_dims_that_stores_show():
    ds = engine.simulate(TTTLinear(), np.ones((3, 1, 4)), np.ones((3, 1, 4)), eta=0.1)
    assert {n: ds[n].dims[2:] for n in TTTState._fields} == {
        "S": ("key", "value"), "c": ("value",), "dS": ("key", "value"), "dc": ("value",), "n": (),
    }  # fmt: skip
    mlp = engine.simulate(TitansMLP(hidden=3), np.ones((3, 2)), np.ones((3, 2)))
    assert mlp.W1.dims == ("step", "key", "hidden") and mlp.U_b2.dims == ("step", "value")
    assert "b1" not in engine.simulate(TitansMLP(biases=False), np.ones((3, 2)), np.ones((3, 2)))

"""Exact regression against the problems it solves, and one way of it against another.

Error bounds are first-order: eps times the number of operations times the condition of the problem.
"""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import engine
from engine.plugins.solvers.affine_projection import AffineProjection
from engine.plugins.solvers.least_squares import LeastSquares
from engine.plugins.solvers.mesa import Mesa
from engine.plugins.solvers.ridge import Ridge
from engine.plugins.solvers.rls import RLS
from engine.plugins.solvers.titans_mlp import TitansMLP
from engine.plugins.solvers.ttt_linear import TTTLinear
from engine.testing import solver_checks

from .regression_cases import EPS, load, pairs, weighted_ridge

DRIFT = Path(__file__).parents[2] / "data" / "drift.zarr"


def rounding(t, cond, S, values, d=6):
    """Return how far two ways to the same fit may part after t writes."""
    return d * (t + 1) * EPS * cond * (np.linalg.norm(S) + abs(values).max())


# The contract, with other hyperparameters than the defaults

VARIANTS = [
    Mesa(iterations=5), Mesa(ridge=(0.5, 1.0, 2.0, 1.0, 0.25, 3.0)), Ridge(ridge=2.0),
    RLS(ridge=1.0, limit=4.0), LeastSquares(ridge=0.5), AffineProjection(order=1, eps=0.0),
    AffineProjection(order=9), TitansMLP(biases=False), TitansMLP(hidden=1, loss="mean"),
    TitansMLP(activation="tanh", seed=7, init_scale=2.0), TTTLinear(), TTTLinear(minibatch=1),
    TTTLinear(minibatch=5, ln_weight=(1.0, 0.5, 2.0, 1.0, 0.7, 1.5)),
]  # fmt: skip


@pytest.mark.parametrize("solver", VARIANTS, ids=str)
def test_contract(solver):
    """Every check of the kit: dtypes, trials, splits, masks, array-api-strict, declared costs."""
    for check in solver_checks(solver):
        # What a card says of divergence holds for the default network.
        of_default = check.name in ("finite_where_stable", "diverges_where_said")
        if not (of_default and isinstance(solver, TitansMLP)):
            check()


REFUSED = [
    ("mesa", {"ridge": 0.0}), ("mesa", {"ridge": [1.0, -1.0]}), ("mesa", {"iterations": -1}),
    ("ridge", {"ridge": 0.0}), ("least_squares", {"ridge": -1.0}), ("rls", {"ridge": 0.0}),
    ("rls", {"limit": 1.0}), ("affine_projection", {"order": 0}),
    ("affine_projection", {"eps": -1e-9}), ("titans_mlp", {"hidden": 0}),
    ("titans_mlp", {"activation": "relu"}), ("titans_mlp", {"loss": "max"}),
    ("titans_mlp", {"seed": -1}), ("titans_mlp", {"init_scale": -1.0}),
    ("titans_mlp", {"init_scale": np.inf}), ("ttt_linear", {"minibatch": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), REFUSED, ids=str)
def test_bad_hyperparameters_are_refused_by_name(name, options):
    with pytest.raises(engine.InputError, match=next(iter(options))):
        engine.solver(name, **options)


@pytest.mark.parametrize(("name", "values"), [("activation", "relu"), ("loss", "max")])
def test_a_class_refuses_what_the_factory_does(name, values):
    with pytest.raises(ValueError, match=name):
        TitansMLP(**{name: values})


@pytest.mark.parametrize("option", ["ln_weight", "ln_bias", "ridge"])
def test_numbers_per_channel_must_fit_the_channels(option):
    name = "mesa" if option == "ridge" else "ttt_linear"
    with pytest.raises((ValueError, engine.InputError), match=f"{option} has 2 numbers.*expected"):
        engine.simulate(engine.solver(name, **{option: [1.0, 2.0]}), *np.ones((2, 1, 3)))


# Exact regression: one problem, four ways


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10.0])
def test_rls_mesa_and_least_squares_are_ridge_regression_at_every_prefix(ridge):
    """RLS(gamma = 1, P0 = I / ridge) = batch ridge = mesa(gamma = beta = 1)."""
    keys, values = pairs()
    queries = np.random.default_rng(1).normal(size=(60, 6))
    batch = engine.simulate(Ridge(ridge=ridge), keys, values, queries)
    others = {
        "rls": engine.simulate(RLS(ridge=ridge), keys, values, queries),
        "mesa": engine.simulate(Mesa(ridge=ridge), keys, values, queries),
        "least squares": engine.simulate(LeastSquares(ridge=ridge), keys, values, queries),
    }
    for t in range(60):
        want, cond = weighted_ridge(keys[: t + 1], values[: t + 1], np.ones(t + 1), ridge)
        bound = rounding(t, cond, want, values)
        assert np.linalg.norm(batch.S.values[t] - want) <= bound
        for name, ds in others.items():
            difference = np.linalg.norm(ds.output.values[t] - batch.output.values[t])
            assert difference <= 2 * bound * np.linalg.norm(queries[t]), name


def test_forgetting_parts_rls_from_mesa():
    """Under gamma < 1 the prior of RLS is ridge gamma^t, that of mesa stays."""
    keys, values = pairs()
    gamma, ridge = 0.95, 0.1
    rls = engine.simulate(RLS(ridge=ridge), keys, values, gamma=gamma)
    mesa = engine.simulate(Mesa(ridge=ridge), keys, values, gamma=gamma)
    for t in range(60):
        weights = gamma ** np.arange(t, -1, -1.0)
        fading, cond = weighted_ridge(
            keys[: t + 1], values[: t + 1], weights, ridge * gamma ** (t + 1)
        )
        constant, _ = weighted_ridge(keys[: t + 1], values[: t + 1], weights, ridge)
        bound = rounding(t, cond, fading, values)
        assert np.linalg.norm(rls.output.values[t] - keys[t] @ fading) <= bound
        assert np.linalg.norm(mesa.output.values[t] - keys[t] @ constant) <= bound
        assert np.linalg.norm(rls.output.values[t] - mesa.output.values[t]) > 1e3 * bound


def test_mesa_weighs_pairs_by_beta_and_its_ridge_by_key_channel():
    """argmin sum_i w_i |S^T k_i - v_i|^2 + sum_c ridge_c |S_c|^2, w_i = beta_i prod of gammas."""
    keys, values = pairs()
    rng = np.random.default_rng(2)
    beta, gamma = rng.uniform(0.1, 2.0, 60), rng.uniform(0.8, 1.0, 60)
    ridge = (0.3, 1.0, 0.1, 2.0, 0.5, 0.7)
    ds = engine.simulate(Mesa(ridge=ridge), keys, values, beta=beta, gamma=gamma)
    weights = beta * np.append(np.cumprod(gamma[:0:-1])[::-1], 1.0)
    want, cond = weighted_ridge(keys, values, weights, np.array(ridge))
    assert np.linalg.norm(ds.output.values[-1] - keys[-1] @ want) <= rounding(
        60, cond, want, values
    )
    H = ds.H.values
    assert H.tobytes() == np.ascontiguousarray(H.swapaxes(-2, -1)).tobytes()


def test_mesa_without_its_covariance_is_decayed_linear_attention():
    """(H + ridge I)^-1 replaced by I. As ridge grows, ridge times the read is."""
    keys, values = pairs()
    ds = engine.simulate(Mesa(ridge=1e9), keys, values, gamma=0.9)
    linear = engine.simulate("retnet", keys, values, gamma=0.9)
    np.testing.assert_array_equal(ds.G, linear.S)
    H = np.linalg.norm(ds.H.values, axis=(-2, -1)).max()
    # (H + r I)^-1 = I / r - H / r^2 + ...
    largest = np.linalg.norm(ds.G.values, axis=(-2, -1)) * np.linalg.norm(keys, axis=-1)
    error = np.linalg.norm(1e9 * ds.output.values - linear.output.values, axis=-1)
    assert (error <= (H / 1e9 + 20 * EPS) * largest).all()


def test_mesa_by_conjugate_gradients_starts_from_the_diagonal():
    """x0 = q / diag(H + ridge): exact without a step where keys lie along the axes."""
    rng = np.random.default_rng(0)
    keys, values = np.eye(5)[rng.integers(0, 5, 40)] * rng.normal(size=(40, 1)), pairs(40)[1]
    exact = engine.simulate(Mesa(ridge=0.5), keys, values, gamma=0.9)
    start = engine.simulate(Mesa(ridge=0.5, iterations=0), keys, values, gamma=0.9)
    np.testing.assert_allclose(start.output, exact.output, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("iterations", [0, 1, 3, 6, 30])
def test_mesa_by_conjugate_gradients_is_as_near_as_theory_says(iterations):
    """|x_n - x|_M <= 2 ((sqrt(c) - 1) / (sqrt(c) + 1))^n |x_0 - x|_M, c the condition of M.

    The 1e-5 in the denominators (MesaNet's own code) leaves residuals r with r.r of that order.
    """
    keys, values = pairs(40)
    queries = np.random.default_rng(1).normal(size=(40, 6))
    ds = engine.simulate(Mesa(ridge=0.5, iterations=iterations), keys, values, queries)
    for t in range(40):
        M, q = ds.H.values[t] + 0.5 * np.eye(6), queries[t]
        root = np.sqrt(np.linalg.cond(M))
        exact = np.linalg.solve(M, q)
        start = q / np.diag(M) - exact
        rate = 2 * ((root - 1) / (root + 1)) ** iterations if iterations else 1.0
        left = rate * np.sqrt(start @ M @ start) / np.sqrt(np.linalg.eigvalsh(M)[0])
        reach = left + 4 * np.sqrt(1e-5) / np.linalg.eigvalsh(M)[0]
        error = np.linalg.norm(ds.output.values[t] - ds.G.values[t].T @ exact)
        assert error <= reach * np.linalg.norm(ds.G.values[t], 2)


def test_ridge_forgets_nothing_and_takes_trials_of_unequal_length():
    keys, values = np.random.default_rng(0).normal(size=(2, 9, 2, 4))
    mask = np.ones((9, 2), bool)
    mask[3:6, 1] = False
    ds = engine.simulate(Ridge(ridge=0.1), keys, values, mask=mask)
    for b in range(2):
        at = np.flatnonzero(mask[:, b])
        alone = engine.simulate(Ridge(ridge=0.1), keys[at, b], values[at, b])
        np.testing.assert_array_equal(ds.S.values[at, b], alone.S)
    np.testing.assert_array_equal(ds.S.values[5, 1], ds.S.values[2, 1])
    np.testing.assert_array_equal(ds.rows[-1], [9, 6])


# Published streams


@pytest.fixture(scope="module")
def spectrum():
    """Return 80 pairs of 128 random Fourier features and a number (d2l section 12.6)."""
    return load("rls_spectrum")


@pytest.fixture(scope="module")
def fits(spectrum):
    """Return the weights at every prefix, (80, 128), by solver."""
    stream, ridge = (spectrum["feats"], spectrum["y"][:, None]), spectrum["lam"].item()
    made = {
        name: engine.simulate(engine.solver(name, ridge=ridge), *stream).S.values[..., 0]
        for name in ("ridge", "rls", "least_squares")
    }
    mesa = engine.simulate(Mesa(ridge=ridge), *stream)
    made["mesa"] = np.linalg.solve(mesa.H.values + ridge * np.eye(128), mesa.G.values)[..., 0]
    return made


def test_rls_equals_ridge_at_every_prefix_of_the_spectrum_stream(spectrum, fits):
    """Published: 2.3e-13, in the largest weight; the system's condition is 2.7e3."""
    for name in ("rls", "mesa", "least_squares"):
        assert abs(fits[name] - fits["ridge"]).max() <= 5e-13, name
    for t, want in zip(spectrum["prefixes"], spectrum["w_rls"], strict=True):
        assert abs(fits["rls"][t - 1] - want).max() <= 5e-14


@pytest.mark.parametrize("name", ["ridge", "rls", "mesa", "least_squares"])
def test_the_fit_to_the_spectrum_stream_has_the_published_objective(spectrum, fits, name):
    """Published: (sum of squared errors + lambda |w|^2) / 2 = 5.859599, the least there is."""
    w = fits[name][-1]
    error = spectrum["feats"] @ w - spectrum["y"]
    assert abs(0.5 * (error @ error + spectrum["lam"] * w @ w) - 5.859599) < 1e-6


def test_exponentially_weighted_rls_is_decayed_least_squares_with_a_decayed_ridge():
    """Published: ridge delta gamma^t, to 6e-11 at delta = 1e-6 on the drift stream.

    The worst rounding is that of the first 8 pairs, before the keys span the space: the system's
    condition is then 1 / delta. It is forgotten as these pairs are, by gamma per step, down to the
    rounding of the well-conditioned systems that follow.
    """
    with xr.open_datatree(DRIFT, engine="zarr") as tree:
        keys, values = (tree[f"stream/{n}"].values[:, 0] for n in ("keys", "values"))
    gamma, delta = 0.95, 1e-6
    S = engine.simulate(RLS(ridge=delta), keys, values, gamma=gamma).S.values
    A, B = np.zeros((8, 8)), np.zeros((8, 1))
    apart, constant = [], []
    for t in range(2000):
        A, B = gamma * A + np.outer(keys[t], keys[t]), gamma * B + np.outer(keys[t], values[t])
        fading = delta * gamma ** (t + 1) * np.eye(8)
        apart.append(abs(S[t] - np.linalg.solve(A + fading, B)).max())
        constant.append(abs(S[t] - np.linalg.solve(A + delta * np.eye(8), B)).max())
    forgotten = 1e-10 * gamma ** np.maximum(np.arange(2000) - 8, 0)
    assert (np.array(apart) <= forgotten + 1e-14).all()
    # Against a constant ridge it shows: 6e-4 at t = 7, 9e-7 at worst from t = 50 on.
    assert 5e-4 < constant[7] < 7e-4 and max(constant[50:]) < 1e-6


def test_online_gradient_reaches_the_minimum_norm_solution():
    """Published: 40 unit keys in R^128, delta rule at beta .5: the largest weight's error.

    Its updates stay in the span of the keys, so what it converges to is K^T (K K^T)^-1 v.
    """
    stream = load("minnorm_gd")
    keys, values = stream["keys"], stream["values"]
    want = keys.T @ np.linalg.solve(keys @ keys.T, values)
    np.testing.assert_allclose(want, stream["w_minnorm"], atol=1e-13)
    passes = [1, 30, 100, 200]
    stored = (np.tile(keys, (200, 1)), np.tile(values, 200)[:, None])
    S = engine.simulate("delta", *stored, beta=0.5).S.values[..., 0]
    error = [abs(S[40 * n - 1] - want).max() for n in passes]
    np.testing.assert_allclose(error[:3], [1.68, 3.4e-3, 4.5e-9], rtol=0.02)
    assert error[3] < 2e-14
    for ridge in (1e-3, 1e-6):  # what ridge regression tends to as the ridge vanishes, too
        near = engine.simulate(Ridge(ridge=ridge), keys, values[:, None], record="final").S
        # (K K^T + r I)^-1 differs by r / least eigenvalue, relative.
        least = np.linalg.eigvalsh(keys @ keys.T)[0]
        tolerance = (ridge / least + 128 * EPS / ridge) * np.linalg.norm(want)
        assert np.linalg.norm(near.values.ravel() - want) <= tolerance


@pytest.mark.parametrize("d", [8, 32, 64])
def test_orthonormal_keys_are_recalled_exactly(d):
    """Published: N = d, Hebbian and delta(1), 6e-16; unit values."""
    rng = np.random.default_rng(d)
    keys = np.linalg.qr(rng.normal(size=(d, d)))[0]
    values = engine.view("unit")(rng.normal(size=(d, d)))
    for name in ("linear_attention", "delta"):
        S = engine.simulate(name, keys, values, record="final").S.values.reshape(d, d)
        assert abs(keys @ S - values).max() <= 1e-15
    fit = engine.simulate(Ridge(ridge=1e-9), keys, values, record="final").S.values.reshape(d, d)
    assert abs(keys @ fit - values).max() <= 1.1e-9  # shrunk by 1 / (1 + ridge)

"""Exact regression and deep memories against the problems they solve, and against each other.

Bounds are first-order: eps times the number of operations times the condition of the problem.
"""

from pathlib import Path

import array_api_strict
import numpy as np
import pytest
import scipy.special
import xarray as xr

import engine
from engine import ops
from engine.plugins.solvers.affine_projection import AffineProjection
from engine.plugins.solvers.least_squares import LeastSquares
from engine.plugins.solvers.mesa import Mesa
from engine.plugins.solvers.ridge import Ridge
from engine.plugins.solvers.rls import RLS
from engine.plugins.solvers.titans_mlp import TitansMLP, TitansMLPState, UnbiasedState
from engine.plugins.solvers.ttt_linear import TTTLinear, TTTState
from engine.testing import solver_checks

HERE = Path(__file__).parent / "data"
DRIFT = Path(__file__).parents[2] / "data" / "drift.zarr"
EPS = np.finfo(np.float64).eps


def load(name):
    """Return the arrays of a fixture, floats as float64."""
    with np.load(HERE / f"{name}.npz", allow_pickle=False) as file:
        return {n: x.astype(float) if x.dtype.kind == "f" else x for n, x in file.items()}


def pairs(steps=60, key=6, value=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(steps, key)) / np.sqrt(key), rng.normal(size=(steps, value))


def solve(keys, values, weights, ridge):
    """Return argmin_S sum_i w_i |S^T k_i - v_i|^2 + ridge |S|^2, and the system's condition."""
    A = (keys * weights[:, None]).T @ keys + ridge * np.eye(keys.shape[1])
    return np.linalg.solve(A, (keys * weights[:, None]).T @ values), np.linalg.cond(A)


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
        if not (check.name == "finite_where_stable" and isinstance(solver, TitansMLP)):
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
        want, cond = solve(keys[: t + 1], values[: t + 1], np.ones(t + 1), ridge)
        bound = rounding(t, cond, want, values)
        assert np.linalg.norm(batch.S.values[t] - want) <= bound
        for name, ds in others.items():
            difference = np.linalg.norm(ds.output.values[t] - batch.output.values[t])
            assert difference <= 2 * bound * np.linalg.norm(queries[t]), name


def test_forgetting_parts_rls_from_mesa():
    """under gamma < 1 the prior of RLS is ridge gamma^t, that of mesa stays."""
    keys, values = pairs()
    gamma, ridge = 0.95, 0.1
    rls = engine.simulate(RLS(ridge=ridge), keys, values, gamma=gamma)
    mesa = engine.simulate(Mesa(ridge=ridge), keys, values, gamma=gamma)
    for t in range(60):
        weights = gamma ** np.arange(t, -1, -1.0)
        fading, cond = solve(keys[: t + 1], values[: t + 1], weights, ridge * gamma ** (t + 1))
        constant, _ = solve(keys[: t + 1], values[: t + 1], weights, ridge)
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
    want, cond = solve(keys, values, weights, np.array(ridge))
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
    """Published: ridge delta gamma^t, to 6e-11 at delta = 1e-6 on the drift stream."""
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
    assert max(apart) <= 1e-10
    assert max(apart[50:]) <= 1e-12  # the keys span the space, the prior is all but forgotten
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


# The covariance of recursive least squares


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("gamma", [1.0, 0.99, 0.5])
def test_p_stays_symmetric_and_positive_whatever_is_excited(dtype, ridge, gamma):
    """What no key excites holds P up, and its rounding with it, while the rest of P goes down.

    Trials: zeros, an axis, an oblique direction, a plane, 30 times as long, everything.
    """
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    n = 3000
    keys = np.zeros((n, 6, 6))
    keys[:, 1, 0] = 1.0
    keys[:, 2] = Q[0]
    keys[:, 3] = rng.normal(size=(n, 2)) @ Q[:2]
    keys[:, 4] = 30 * rng.normal(size=(n, 2)) @ Q[:2]
    keys[:, 5] = rng.normal(size=(n, 6))
    values = (keys @ rng.normal(size=(6, 1))).astype(dtype)
    keys = keys.astype(dtype)
    ds = engine.simulate(RLS(ridge=ridge), keys, values, gamma=gamma)
    P = ds.P.values
    assert (ds.diverged_at == -1).all() and P.dtype == dtype
    assert P.tobytes() == np.ascontiguousarray(P.swapaxes(-2, -1)).tobytes()
    assert P.max() <= float(np.finfo(dtype).eps) ** -0.25 / ridge * 1.000001
    least, largest = np.linalg.eigvalsh(P.astype(float))[..., [0, -1]].T
    assert (least > 0).all() or (least / largest).min() > -EPS  # as far as eigvalsh can tell
    # Noise-free pairs are fitted: the rest is the prior's pull, at gamma = 1 ridge / information.
    size = abs(values).max(axis=(0, 2))
    assert (abs(ds.prediction.values[-200:] - values[-200:]).max(axis=(0, 2)) <= 1e-3 * size).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gamma", [1.0, 0.99])
def test_one_direction_for_100000_steps_and_then_another(dtype, gamma):
    """padasip issue 5: nothing winds up, and the other direction is learnt at once.

    Trial 0 sees zeros only, trial 1 an axis, trial 2 an oblique direction.
    """
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    old = np.array([np.zeros(4), np.eye(4)[0], Q[0]])
    new = np.array([np.eye(4)[1], np.eye(4)[1], Q[3]])
    keys = np.repeat(old[None], 100_000, axis=0).astype(dtype)
    values = np.full((100_000, 3, 1), 2.0, dtype)
    solver = RLS()
    ds = engine.simulate(solver, keys, values, gamma=gamma, record="final")
    P, eps = ds.P.values.astype(float), float(np.finfo(dtype).eps)
    assert (ds.diverged_at == -1).all() and (np.linalg.eigvalsh(P) > 0).all()
    assert P.max() <= eps**-0.25 / solver.ridge * (1 + eps)
    assert not ds.S.values[0].any()
    after = engine.simulate(
        solver, new[None].astype(dtype), np.full((1, 3, 1), -5.0, dtype), state=ds, gamma=gamma
    )
    # The update along a key leaves gamma / (gamma + k.P k) of its error; P >= about 1 / ridge here.
    kPk = np.einsum("bi,bij,bj->b", new, P, new)
    assert (kPk >= 0.9 / solver.ridge).all()
    error = abs(after.output.values[0, :, 0] + 5)
    assert (error <= 7 * gamma / (gamma + kPk) + 100 * eps).all()
    # And what was known stays known.
    kept = np.einsum("bi,bij->b", old, after.S.values[0].astype(float))[1:]
    np.testing.assert_allclose(kept, 2.0, atol=7 * eps / solver.ridge + 1e-4 * (gamma == 1.0))


# Affine projection


def test_affine_projection_of_order_one_is_nlms():
    keys, values = pairs()
    for mu, eps in ((0.5, 0.01), (1.0, 1e-8), (1.9, 1.0)):
        ours = engine.simulate(AffineProjection(order=1, eps=eps), keys, values, mu=mu)
        nlms = engine.simulate(engine.solver("nlms", eps=eps), keys, values, mu=mu)
        np.testing.assert_allclose(ours.S, nlms.S, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(ours.prediction, nlms.prediction, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("order", [1, 2, 3, 6])
@pytest.mark.parametrize("mu", [0.3, 1.0, 1.7])
def test_affine_projection_is_a_loop_over_its_definition(order, mu):
    """w += mu X (X^T X + eps I)^-1 (d - X^T w) over the pairs there are (Ozeki and Umeda 1984)."""
    keys, values = pairs()
    eps = 0.01
    ds = engine.simulate(AffineProjection(order=order, eps=eps), keys, values, mu=mu)
    S = np.zeros((6, 3))
    for t in range(60):
        last = slice(max(0, t + 1 - order), t + 1)
        K, V = keys[last], values[last]
        S = S + mu * K.T @ np.linalg.solve(K @ K.T + eps * np.eye(len(K)), V - K @ S)
        # Steps contract, so roundings add up: 6 * 3 products through a system of this condition.
        cond = (np.linalg.norm(K, 2) ** 2 + eps) / eps
        bound = 40 * (t + 1) * EPS * cond * (abs(values).max() + np.linalg.norm(S))
        assert np.linalg.norm(ds.S.values[t] - S) <= bound
    np.testing.assert_array_equal(ds.K.values[-1], keys[::-1][:order])
    np.testing.assert_array_equal(ds.V.values[-1], values[::-1][:order])


@pytest.mark.parametrize("eps", [0.0, 1e-300, 1e-12])
def test_affine_projection_interpolates_the_last_pairs_by_the_least_change(eps):
    """mu = 1, eps -> 0: min |S - S_old| subject to S^T k = v for the last `order` pairs."""
    keys, values = pairs(50, 6, 3)
    ds = engine.simulate(AffineProjection(order=4, eps=eps), keys, values, mu=1.0)
    old = np.zeros((6, 3))
    for t in range(50):
        K, V = keys[max(0, t - 3) : t + 1], values[max(0, t - 3) : t + 1]
        S = ds.S.values[t]
        bound = 100 * np.linalg.cond(K) ** 2 * (EPS + eps) * (np.linalg.norm(S) + abs(V).max())
        assert np.linalg.norm(K @ S - V) <= bound
        outside = np.eye(6) - np.linalg.pinv(K) @ K  # the change lies in the span of the keys
        assert np.linalg.norm(outside @ (S - old)) <= bound
        old = S


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("eps", [0.0, 1e-60, 1e-8])
def test_affine_projection_survives_missing_zero_and_repeated_keys(dtype, eps):
    """rows not yet written and silent input divide by nothing; copies are one pair."""
    solver = AffineProjection(order=4, eps=eps)
    silent = engine.simulate(solver, np.zeros((6, 2), dtype), np.ones((6, 1), dtype), mu=1.0)
    assert not silent.S.values.any() and int(silent.diverged_at) == -1
    keys = np.array([[0, 0], [3, 4], [3, 4], [3, 4], [0, 0], [3, 4]], dtype)
    ds = engine.simulate(solver, keys, np.full((6, 1), 5.0, dtype), mu=1.0)
    assert int(ds.diverged_at) == -1 and ds.S.dtype == dtype
    tolerance = 100 * float(np.finfo(dtype).eps) + eps / 25  # k.k / (k.k + eps)
    np.testing.assert_allclose(ds.output.values[1:4, 0], 5.0, rtol=tolerance)
    np.testing.assert_allclose(ds.S.values[-1, :, 0], [0.6, 0.8], rtol=tolerance)


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


# Operations that these rules brought along


def strict(x):
    return array_api_strict.asarray(x, device=array_api_strict.Device("device1"))


def host(x):
    return np.asarray(array_api_strict.asarray(x, device=array_api_strict.Device("CPU_DEVICE")))


def test_erf_equals_scipys_on_any_array_library():
    x = np.concatenate(
        [np.linspace(-7, 7, 20001), np.logspace(-300, 1, 2000), [0.0, np.inf, -np.inf]]
    )
    want = scipy.special.erf(x)
    np.testing.assert_allclose(host(ops.erf(strict(x))), want, rtol=1e-15)
    np.testing.assert_array_equal(ops.erf(x), want)
    small = x.astype(np.float32)
    got = host(ops.erf(strict(small)))
    assert got.dtype == np.float32
    exact = scipy.special.erf(small.astype(float))
    np.testing.assert_allclose(got, exact, rtol=4 * np.finfo(np.float32).eps, atol=1e-44)
    assert np.isnan(host(ops.erf(strict(np.array([np.nan])))))


def test_diagonals_take_one_number_or_one_per_channel():
    matrix = np.random.default_rng(0).normal(size=(2, 3, 3))
    for a in (0.5, np.array([[0.5], [2.0]]), np.array([1.0, 2.0, 3.0])):
        full = np.broadcast_to(a, (2, 3))[..., None] * np.eye(3)
        np.testing.assert_array_equal(ops.add_diagonal(matrix, a), matrix + full)
        assert ops.add_diagonal(matrix.astype("float32"), np.float32(0.5)).dtype == "float32"


def test_numbers_per_channel_become_an_array_beside_the_other():
    like = strict(np.zeros((2, 3), np.float32))
    assert ops.channels(0.5, like) == 0.5
    made = ops.channels((1.0, 2.0, 3.0), like)
    assert made.dtype == like.dtype and made.device == like.device and made.shape == (3,)

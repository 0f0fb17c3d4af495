"""Recursive least squares and its direct solve: forgetting, winding up, symmetry.

Error bounds are first-order: eps times the number of operations times the condition of the problem.
"""

import numpy as np
import pytest

import engine
from engine.plugins.solvers.least_squares import LeastSquares
from engine.plugins.solvers.rls import RLS

from .regression_cases import EPS, pairs, weighted_ridge

# Recursive least squares


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10.0])
def test_rls_is_ridge_regression_at_every_prefix(ridge):
    """Haykin, Adaptive Filter Theory, ch. 10: P = A^-1 and S = A^-1 B by rank-one updates."""
    keys, values = pairs()
    ds = engine.simulate(RLS(ridge=ridge), keys, values, gamma=1.0)
    for t in range(60):
        want, cond = weighted_ridge(keys[: t + 1], values[: t + 1], np.ones(t + 1), ridge)
        # P starts at I / ridge and is reduced by differences: eps |P0| per step, times |A|.
        bound = 6 * (t + 1) * EPS * max(cond, 1) * (np.linalg.norm(want) + abs(values).max())
        assert np.linalg.norm(ds.S.values[t] - want) <= bound


def test_rls_with_forgetting_forgets_its_prior_too():
    """It minimises sum_i gamma^(t-i) |S^T k_i - v_i|^2 + ridge gamma^t |S|^2, t writes."""
    keys, values = pairs()
    gamma, ridge = 0.95, 0.1
    ds = engine.simulate(RLS(ridge=ridge), keys, values, gamma=gamma)
    for t in range(1, 61):
        weights = gamma ** np.arange(t - 1, -1, -1.0)
        want, cond = weighted_ridge(keys[:t], values[:t], weights, ridge * gamma**t)
        bound = 6 * t * EPS * cond * (np.linalg.norm(want) + abs(values).max())
        assert np.linalg.norm(ds.S.values[t - 1] - want) <= bound
        # A constant ridge is another problem.
        other, _ = weighted_ridge(keys[:t], values[:t], weights, ridge)
        assert np.linalg.norm(other - want) > 1e3 * bound


def test_rls_follows_a_forgetting_factor_that_changes():
    """A <- gamma_t A + k k^T: pair i weighs the product of the factors after it."""
    keys, values = pairs()
    gamma = np.random.default_rng(1).uniform(0.8, 1.0, 60)
    ds = engine.simulate(RLS(ridge=0.1), keys, values, gamma=gamma)
    weights = np.append(np.cumprod(gamma[:0:-1])[::-1], 1.0)
    want, cond = weighted_ridge(keys, values, weights, 0.1 * gamma.prod())
    bound = 6 * 60 * EPS * cond * (np.linalg.norm(want) + abs(values).max())
    assert np.linalg.norm(ds.S.values[-1] - want) <= bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gamma", [1.0, 0.97, 0.5])
def test_rls_keeps_p_symmetric_to_the_last_bit(dtype, gamma):
    """Subtracting outer(Pk / den, Pk) would not, and diverges."""
    keys, values = (x.astype(dtype) for x in pairs(500, 8))
    P = engine.simulate("rls", keys, values, gamma=gamma).P.values
    assert P.dtype == dtype and np.isfinite(P).all()
    assert P.tobytes() == np.ascontiguousarray(P.swapaxes(-2, -1)).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rls_is_not_wound_up_by_keys_of_zero(dtype):
    """padasip issue 5: naive float32 code is not finite from step 8827 on."""
    keys, values = np.zeros((10_000, 4), dtype), np.zeros((10_000, 1), dtype)
    ds = engine.simulate(RLS(ridge=1.0), keys, values, gamma=0.99)
    assert int(ds.diverged_at) == -1 and np.isfinite(ds.P.values).all()
    assert not ds.S.values.any()
    key, value = np.array([[1, -2, 0.5, 1]], dtype), np.array([[3]], dtype)
    after = engine.simulate(RLS(ridge=1.0), key, value, state=ds, gamma=0.99)
    # The update with a key k leaves the error v gamma / (gamma + k.P k).
    kPk = (key @ ds.P.values[-1] @ key.T).item()
    want = 3 * kPk / (0.99 + kPk)
    assert kPk > 6 and abs(after.output.values.item() - want) <= 16 * np.finfo(dtype).eps * 3
    assert np.isfinite(after.P.values).all()


def test_rls_outlives_keys_that_excite_one_direction():
    """Reported elsewhere over 100000 steps: naive float64 code is not finite from step 70622 on.

    Trial 0 sees only zeros, trial 1 only e1, trial 2 only one oblique direction u.
    """
    u = np.array([0.6, 0.0, 0.8, 0.0])
    keys = np.zeros((100_000, 3, 4))
    keys[:, 1] = [1, 0, 0, 0]
    keys[:, 2] = u
    values = np.full((100_000, 3, 1), 2.0)
    solver = RLS(ridge=1.0)
    ds = engine.simulate(solver, keys, values, gamma=0.99, record="final")
    assert (ds.diverged_at == -1).all() and np.isfinite(ds.P.values).all()
    P = ds.P.values
    assert P.max() <= EPS**-0.25 / solver.ridge
    assert P.tobytes() == np.ascontiguousarray(P.swapaxes(-2, -1)).tobytes()
    assert (np.linalg.eigvalsh(P) > 0).all()
    assert not ds.S.values[0].any()
    np.testing.assert_allclose(ds.S.values[1, 0], 2.0, rtol=1e-12)
    np.testing.assert_allclose(u @ ds.S.values[2], 2.0, rtol=1e-12)
    # One ordinary pair in a direction never seen is learnt, and what is known stays.
    new, value = np.array([[[0.0, 1.0, 0.0, 0.0]] * 3]), np.full((1, 3, 1), -5.0)
    after = engine.simulate(solver, new, value, state=ds, gamma=0.99)
    want = -5.0 * P[:, 1, 1] / (0.99 + P[:, 1, 1])
    assert (P[:, 1, 1] > 1).all()
    np.testing.assert_allclose(after.output.values[0, :, 0], want, rtol=1e-12)
    np.testing.assert_allclose(u @ after.S.values[0, 2], 2.0, rtol=1e-12)


@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("direction", [[1.0, 0, 0, 0], [0.6, 0, 0.8, 0]])
def test_rls_goes_on_forgetting_where_keys_excite_one_direction_only(direction, ridge):
    """A dead channel must not freeze the others: what holds P back holds back nothing else.

    With one unit key throughout, the fit along it is the mean of the values weighted by
    gamma^age: n writes after a change from 2 to 4 it is 4 - 2 gamma^n. Against the total weight of
    1 / (1 - gamma) = 100, a renewed prior counts ridge, and a rounding of P eps max(P).
    """
    keys = np.repeat([direction], 6000, axis=0)
    values = np.where(np.arange(6000) < 4000, 2.0, 4.0)[:, None]
    ds = engine.simulate(RLS(ridge=ridge), keys, values, gamma=0.99)
    n = np.arange(1, 2001)
    got, want = ds.output.values[4000:, 0], 4 - 2 * 0.99**n
    largest = ds.P.values.max()
    np.testing.assert_allclose(got, want, atol=2 * (ridge / 100 + 100 * EPS * largest))
    assert largest <= EPS**-0.25 / ridge


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rls_stays_positive_where_keys_span_a_subspace(dtype):
    """What no key excites grows until it is as large as the limit, and its rounding with it."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0][:2]
    keys, target = rng.normal(size=(6000, 2)) @ basis, rng.normal(size=(6, 1))
    values = keys @ target
    values[3000:] *= -1
    ds = engine.simulate("rls", keys, values, gamma=0.99, dtype=dtype)
    assert (np.linalg.eigvalsh(ds.P.values.astype(float)) > 0).all()
    # No prediction is worse than one by the map that has just been replaced, or by none at all.
    error = abs(ds.prediction.values - values.astype(dtype))
    assert (error <= 2.2 * abs(values).max()).all()
    settled = error[4500:]  # 1500 steps after the change: 2 gamma^1500 = 6e-7 of it is left
    assert settled.max() <= (1e-4 if dtype == "float32" else 1e-5)


def test_rls_refuses_what_would_divide_by_zero():
    for options in ({"ridge": 0.0}, {"ridge": -1.0}, {"limit": 1.0}):
        with pytest.raises(engine.InputError, match=next(iter(options))):
            engine.solver("rls", **options)
    with pytest.raises(engine.InputError, match=r"gamma = 0.*\(0, 1\]"):
        engine.simulate("rls", *pairs(), gamma=0.0)


# Least squares


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_least_squares_is_the_solve_at_every_prefix(gamma):
    keys, values = pairs()
    ds = engine.simulate(LeastSquares(ridge=0.1), keys, values, gamma=gamma)
    for t in range(60):
        weights = gamma ** np.arange(t, -1, -1.0)
        want, cond = weighted_ridge(keys[: t + 1], values[: t + 1], weights, 0.1)
        bound = 6 * (t + 1) * EPS * cond * (np.linalg.norm(want) + abs(values).max())
        assert np.linalg.norm(ds.S.values[t] - want) <= bound


def test_least_squares_and_rls_agree_where_nothing_is_forgotten():
    keys, values = pairs()
    a = engine.simulate(LeastSquares(ridge=0.1), keys, values, gamma=1.0)
    b = engine.simulate(RLS(ridge=0.1), keys, values, gamma=1.0)
    _, cond = weighted_ridge(keys[:1], values[:1], np.ones(1), 0.1)
    np.testing.assert_allclose(a.S, b.S, atol=6 * 60 * EPS * cond * abs(values).max())


def test_least_squares_refuses_a_singular_problem():
    with pytest.raises(engine.InputError, match="ridge"):
        engine.solver("least_squares", ridge=0.0)


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

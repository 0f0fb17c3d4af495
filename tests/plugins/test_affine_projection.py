"""Affine projection against its definition, and at the edges of its window."""

import numpy as np
import pytest

import engine
from engine.plugins.solvers.affine_projection import AffineProjection

from .regression_cases import EPS, pairs


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
    """Rows not yet written and silent input divide by nothing; copies are one pair."""
    solver = AffineProjection(order=4, eps=eps)
    silent = engine.simulate(solver, np.zeros((6, 2), dtype), np.ones((6, 1), dtype), mu=1.0)
    assert not silent.S.values.any() and int(silent.diverged_at) == -1
    keys = np.array([[0, 0], [3, 4], [3, 4], [3, 4], [0, 0], [3, 4]], dtype)
    ds = engine.simulate(solver, keys, np.full((6, 1), 5.0, dtype), mu=1.0)
    assert int(ds.diverged_at) == -1 and ds.S.dtype == dtype
    tolerance = 100 * float(np.finfo(dtype).eps) + eps / 25  # k.k / (k.k + eps)
    np.testing.assert_allclose(ds.output.values[1:4, 0], 5.0, rtol=tolerance)
    np.testing.assert_allclose(ds.S.values[-1, :, 0], [0.6, 0.8], rtol=tolerance)

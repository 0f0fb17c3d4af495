"""Laws of adaptive filters with momentum, against published bounds and drawn second moments."""

import numpy as np
import pytest

from engine.measure import laws


@pytest.mark.parametrize(
    ("eta", "bound", "rounding"),
    [(0.7, 2.14, 5e-3), (0.8, 0.775, 5e-4), (0.9, 0.251, 5e-4), (0.95, 0.105, 5e-4)],
)
def test_the_largest_stable_beta_is_the_published_one(eta, bound, rounding):
    """d = 8, Gaussian keys: 2.14, .775, .251, .105, found by trying; none up to 1e5 at .5."""
    found = laws.momentum_bound(eta, 8)
    assert abs(found - bound) <= rounding
    assert abs(laws.momentum_growth(laws.implicit_gain(found), 8, eta) - 1) < 1e-9
    assert abs(laws.momentum_limit(laws.implicit_gain(found), 8) - eta) < 1e-9
    for beta, grows in ((0.99 * found, False), (1.01 * found, True)):
        assert (laws.momentum_growth(laws.implicit_gain(beta), 8, eta) > 1) == grows
        assert np.isinf(laws.momentum_error(laws.implicit_gain(beta), 8, eta, 1.0, 0.1)) == grows


def test_little_momentum_is_stable_at_every_beta():
    for eta in (0.0, 0.3, 0.5, 0.54):
        assert np.isinf(laws.momentum_bound(eta, 8))
        for beta in (1.0, 100.0, 1e5):
            assert laws.momentum_growth(laws.implicit_gain(beta), 8, eta) < 1
    assert np.isfinite(laws.momentum_bound(0.55, 8))
    assert laws.momentum_bound(1.0, 8) == 0.0


def test_a_step_beyond_two_is_unstable_without_momentum():
    """LMS with Gaussian keys: 2 m1 = m2 at beta = 2 d/(d + 2)."""
    assert abs(laws.momentum_limit(laws.lms_gain(1.6), 8)) < 1e-9
    assert (
        laws.momentum_limit(laws.lms_gain(1.7), 8) < 0 < laws.momentum_limit(laws.lms_gain(1.5), 8)
    )


@pytest.mark.parametrize("beta", [0.1, 1.0, 10.0])
def test_without_momentum_they_are_the_laws_of_the_implicit_step(beta):
    """Growth 1 - kappa, kappa = 2 m1 - m2; the error of a walk on the sphere."""
    gain = laws.implicit_gain(beta)
    m1, m2, _ = laws.moments(gain, 8)
    assert abs(laws.momentum_growth(gain, 8, 0.0) - (1 - 2 * m1 + m2)) < 1e-12
    walk = laws.sphere_walk_error(gain, 8, 0.997, 0.1)
    assert abs(laws.momentum_error(gain, 8, 0.0, 0.997, 0.1) - walk) < 1e-12 * walk


@pytest.mark.parametrize(
    ("solver", "beta", "eta"), [("implicit", 0.1, 0.9), ("implicit", 1.0, 0.5), ("lms", 0.3, 0.6)]
)
@pytest.mark.parametrize("turn", [laws.sphere_correlation(8, 0.03), np.exp(0.02j)])
def test_tracking_with_momentum(solver, beta, eta, turn):
    """Drawn by a plain loop: d = 8, 4000 trials, noise .1; within 4 standard errors."""
    rng, trials, d = np.random.default_rng(6), 4000, 8
    gain = {"implicit": laws.implicit_gain, "lms": laws.lms_gain}[solver](beta)
    w, s, U = np.zeros((3, trials, d))
    w[:, 0] = 1.0
    for t in range(600):
        if np.iscomplexobj(turn):
            w[:, :2] = np.cos(0.02 * t), np.sin(0.02 * t)
        else:
            w += 0.03 * rng.standard_normal(w.shape)
            w /= np.linalg.norm(w, axis=1, keepdims=True)
        k = rng.standard_normal((trials, d)) / np.sqrt(d)
        error = ((w - s) * k).sum(1) + 0.1 * rng.standard_normal(trials)
        U = eta * U + (gain((k * k).sum(1)) * error)[:, None] * k
        s = s + U
    square = ((s - w) ** 2).sum(1)
    law = laws.momentum_error(gain, d, eta, turn, 0.1)
    se = square.std(ddof=1) / np.sqrt(trials)
    assert abs(square.mean() - law) <= 4 * se
    assert 4 * se < 0.1 * law


def test_the_mean_square_grows_as_the_law_says():
    """beta .5, eta .9, d = 8, noise-free: 60 steps, 40000 trials; from isotropic errors."""
    rng, trials, d, eta = np.random.default_rng(7), 40000, 8, 0.9
    gain, sizes = laws.implicit_gain(0.5), []
    e, U = rng.standard_normal((trials, d)), np.zeros((trials, d))
    for _ in range(60):
        k = rng.standard_normal((trials, d)) / np.sqrt(d)
        U = eta * U - (gain((k * k).sum(1)) * (e * k).sum(1))[:, None] * k
        e = e + U
        sizes.append((e * e).sum(1))
    growth = laws.momentum_growth(gain, d, eta)
    # By the 40th step only one mode is left: the others shrink to .83 a step.
    late = np.log(np.mean(sizes[59]) / np.mean(sizes[39])) / 20
    parts = np.reshape(sizes[59], (40, -1)).mean(1), np.reshape(sizes[39], (40, -1)).mean(1)
    se = np.std(np.log(parts[0] / parts[1]), ddof=1) / np.sqrt(40) / 20
    assert growth > 1.03
    assert abs(late - np.log(growth)) <= 4 * se
    assert 4 * se < 0.2 * np.log(growth)

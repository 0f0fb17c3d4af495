"""Laws of recall and tracking, derived on paper, confirmed by simulation within 4 standard errors.

Unit isotropic keys, independent zero-mean unit values, one pass; everything through the public API.
"""

import numpy as np
import pytest
from scipy import integrate, stats

import engine
from engine import measure


def pairs(trials, steps, d, seed):
    """Unit keys and values (step, trial, d) of the `random` generator."""
    table = {"generator": "random", "steps": steps, "key": d, "value": d}
    scenario = {
        "seed": seed,
        "trials": trials,
        "stream": table,
        "solvers": {"delta": {"beta": 0.0}},
    }
    frame = next(engine.stream(scenario, every=steps))
    return frame.tokens.arrays["keys"], frame.tokens.arrays["values"]


def final(solver, keys, values, **coefficients):
    """The last S, (trial, key, value)."""
    return engine.simulate(solver, keys, values, record="final", **coefficients).S.values


def asked(S, keys):
    """What a final state answers to every key, (step, trial, value)."""
    return np.einsum("tbk,bkv->tbv", keys, S)


def agrees(samples, law):
    """Whether independent samples (trials first) have the mean that the law says."""
    mean, error = samples.mean(0), samples.std(0, ddof=1) / np.sqrt(len(samples))
    assert np.all(np.abs(mean - law) <= 4 * error), f"{mean} against {law}, 4 se = {4 * error}"
    # A law that any number would satisfy shows nothing.
    assert np.all(4 * error < 0.1 * np.maximum(np.abs(law), 0.3))


@pytest.mark.parametrize(("d", "n"), [(16, 8), (16, 64), (32, 32)])
def test_hebbian_error(d, n):
    """E|S^T k_i - v_i|^2 = (N - 1) / d, exactly, for every pair."""
    keys, values = pairs(2000, n, d, seed=1)
    error = ((asked(final("linear_attention", keys, values), keys) - values) ** 2).sum(-1)
    agrees(error.mean(0), (n - 1) / d)


def test_decayed_hebbian():
    """Signal g^a, interference [(1 - g^2N)/(1 - g^2) - g^2a]/d, |S|^2 -> 1/(1 - g^2)."""
    d, n, g = 16, 80, 0.95
    keys, values = pairs(3000, n, d, seed=2)
    S = final("retnet", keys, values, gamma=g)
    answer, age = asked(S, keys), np.arange(n - 1, -1, -1)
    ages = [0, 1, 4, 16, 40]
    signal = (answer * values).sum(-1)[n - 1 - np.array(ages)].T
    mean, error = signal.mean(0), signal.std(0, ddof=1) / np.sqrt(len(signal))
    assert np.all(np.abs(mean - g ** np.array(ages)) <= 4 * error)
    noise = ((answer - (g**age)[:, None, None] * values) ** 2).sum(-1)
    law = ((1 - g ** (2 * n)) / (1 - g**2) - g ** (2 * age)) / d
    agrees(noise[n - 1 - np.array(ages)].T, law[n - 1 - np.array(ages)])
    agrees((S**2).sum((-2, -1)), (1 - g ** (2 * n)) / (1 - g**2))


def delta_error(b, d, n):
    """Law 3: E|S^T k - v|^2 of the delta rule by age, for unit keys that never return.

    P_0 = 1, P_{a+1} = P_a (1 - 2b/d + 2b^2/(d(d+2))) + b^2 rho^a / (d(d+2)).
    """
    rho = 1 - (2 * b - b * b) / d
    P, error = 1.0, np.empty(n)
    for a in range(n):
        older = b / (2 - b) * (1 - rho ** (n - a - 1)) * (rho**a - (2 * b - b * b) * P)
        newer = b / (2 - b) * (1 - rho**a)
        error[a] = 1 - 2 * b * (1 - b / d) ** a + b * b * P + newer + older
        P = P * (1 - 2 * b / d + 2 * b * b / (d * (d + 2))) + b * b * rho**a / (d * (d + 2))
    return error


def test_delta_law_against_its_published_table():
    """(b, d, N) = (1, 8, 64), ages 0 1 2 4 8 16 63."""
    table = {0: 0.0, 1: 0.25, 2: 0.4687, 4: 0.8276, 8: 1.3127, 16: 1.7637, 63: 1.9994}
    law = delta_error(1.0, 8, 64)
    for age, value in table.items():
        assert abs(law[age] - value) < 5e-5 + 5e-5 * (age > 0)


@pytest.mark.parametrize(
    ("b", "d", "n", "trials"),
    [
        (1.0, 8, 64, 4000),
        (0.5, 16, 64, 4000),
        (0.2, 16, 128, 4000),
        (1.5, 8, 32, 4000),
        # Few pairs in few dimensions: here d (d + 2) in the law is far from d^2.
        (1.0, 4, 4, 40_000),
        (0.7, 4, 6, 40_000),
    ],
)
def test_delta_error_by_age(b, d, n, trials):
    """Law 3, and the state energy d b/(2 - b) (1 - rho^n)."""
    keys, values = pairs(trials, n, d, seed=3)
    S = final("delta", keys, values, beta=b)
    error = ((asked(S, keys) - values) ** 2).sum(-1)[::-1]
    ages = [a for a in (1, 2, 4, 8, 16, n - 1) if a < n]
    agrees(error[ages].T, delta_error(b, d, n)[ages])
    newest = ((1 - b) ** 2) * (1 + d * b / (2 - b) * (1 - (1 - (2 * b - b * b) / d) ** (n - 1)) / d)
    assert abs(delta_error(b, d, n)[0] - newest) < 1e-12
    rho = 1 - (2 * b - b * b) / d
    agrees((S**2).sum((-2, -1)), d * b / (2 - b) * (1 - rho**n))


@pytest.mark.parametrize(
    ("load", "best"), [(0.5, 0.86), (1, 0.66), (2, 0.44), (4, 0.26), (8, 0.14)]
)
def test_best_write_strength_of_a_single_pass(load, best):
    """Published, d = 8: the b that minimises law 3's mean over ages, by load N/d."""
    grid = np.arange(1, 200) / 100
    mean = [delta_error(b, 8, int(8 * load)).mean() for b in grid]
    assert grid[np.argmin(mean)] == best


def moments(gain, d):
    """m1 = E[D k2]/d, m2 = E[D^2 k2^2]/d, n0 = E[D^2 k2] for keys N(0, I/d), k2 = |k|^2."""

    def mean(f):
        law = stats.chi2(d)
        return integrate.quad(lambda x: f(x / d) * law.pdf(x), 0, 40 * d, epsabs=1e-12)[0]

    return (
        mean(lambda k2: gain(k2) * k2) / d,
        mean(lambda k2: (gain(k2) * k2) ** 2) / d,
        mean(lambda k2: gain(k2) ** 2 * k2),
    )


def sphere_walk_error(gain, d=8, rho=0.99686061, noise=0.1):
    """Law 4: MSD = 1 - 2X + Y for a target that walks on the unit sphere."""
    m1, m2, n0 = moments(gain, d)
    X = m1 / (1 - rho * (1 - m1))
    Y = (2 * m1 * rho * X + m2 * (1 - 2 * rho * X) + noise**2 * n0) / (2 * m1 - m2)
    return 1 - 2 * X + Y


@pytest.mark.parametrize(
    ("solver", "gain"),
    [
        ({"solver": "longhorn", "beta": 1.0}, lambda k2: 1 / (1 + k2)),
        ({"solver": "longhorn", "beta": 0.25}, lambda k2: 0.25 / (1 + 0.25 * k2)),
        ({"solver": "lms", "mu": 0.3}, lambda k2: 0.3),
    ],
    ids=["implicit1", "implicit.25", "lms.3"],
)
def test_tracking_a_sphere_walk(solver, gain):
    """Law 4 for the implicit step and LMS; d = 8, walk .03, noise .1."""
    stream = {
        "generator": "drifting",
        "steps": 700,
        "key": 8,
        "value": 1,
        "step": 0.03,
        "noise": 0.1,
    }
    run = engine.run({"trials": 1500, "seed": 4, "stream": stream, "solvers": {"it": solver}})
    error = measure.tracking_error(run["solvers/it/S"], run["stream/target_map"]).values ** 2
    agrees(error[300:].mean(0), sphere_walk_error(gain))


def test_sphere_walk_law_against_its_published_value():
    """Implicit step, b = 1: .088450."""
    assert abs(sphere_walk_error(lambda k2: 1 / (1 + k2)) - 0.088450) < 5e-7


def test_tracking_a_free_walk():
    """Law 4: MSD = [Q (1 - kappa) + s^2 n0] / kappa, kappa = 2 m1 - m2; increments of energy Q."""
    d, trials, steps, Q, s, b = 8, 1500, 500, 0.01, 0.1, 1.0
    rng = np.random.default_rng(5)
    keys = rng.standard_normal((steps, trials, d)) / np.sqrt(d)
    target = np.cumsum(rng.standard_normal((steps, trials, d)) * np.sqrt(Q / d), axis=0)
    values = (keys * target).sum(-1, keepdims=True) + s * rng.standard_normal((steps, trials, 1))
    ds = engine.simulate("longhorn", keys, values, beta=b)
    error = ((ds.S.values[..., 0] - target) ** 2).sum(-1)
    m1, m2, n0 = moments(lambda k2: b / (1 + b * k2), d)
    kappa = 2 * m1 - m2
    agrees(error[200:].mean(0), (Q * (1 - kappa) + s * s * n0) / kappa)


def stable(n, theta, eta, alpha):
    """Law 5: whether one key revisited every n steps is learnt, not overshot ever further."""
    r = 1 - alpha
    gain = n * r ** (n - 1) if r == eta else (r**n - eta**n) / (r - eta)
    return 2 * theta * gain < (1 + r**n) * (1 + eta**n)


def test_titans_revisit_law():
    """Law 5: stable iff 2 theta (r^n - eta^n)/(r - eta) < (1 + r^n)(1 + eta^n), r = 1 - alpha; the
    published setting (.5, .9, .1) is unstable for gaps 4 to 33."""
    d = 4
    for theta, eta, alpha in [(0.5, 0.9, 0.1), (0.5, 0.5, 0.1), (0.2, 0.9, 0.1), (0.9, 0.3, 0.0)]:
        for gap in (1, 2, 3, 4, 8, 20, 33, 34, 40):
            visits = 400
            keys = np.zeros((visits * gap, d))
            keys[::gap, 0] = 1.0  # a zero key between the visits only decays and coasts
            values = np.ones((visits * gap, 1))
            ds = engine.simulate("titans", keys, values, theta=theta, eta=eta, alpha=alpha)
            size = np.abs(ds.S.values[:, 0, 0])
            late, early = size[-40 * gap :].max(), size[40 * gap : 80 * gap].max()
            # Stable: the deviation shrinks and the state settles; unstable: it grows without bound.
            grows = not np.isfinite(late) or late > 10 * early
            assert grows != stable(gap, theta, eta, alpha), (theta, eta, alpha, gap)
    assert [n for n in range(1, 60) if not stable(n, 0.5, 0.9, 0.1)] == list(range(4, 34))


def test_titans_is_safe_at_every_gap_below_a_step_size():
    """Published, eta .9 and alpha .1: safe at every gap iff 2 theta < .4238; gap 15 goes first."""
    gaps = range(1, 201)
    assert all(stable(n, 0.4237 / 2, 0.9, 0.1) for n in gaps)
    assert [n for n in gaps if not stable(n, 0.4238 / 2, 0.9, 0.1)] == [15]
    assert not all(stable(n, 0.4239 / 2, 0.9, 0.1) for n in gaps)

"""Laws of recall and tracking, derived on paper, confirmed by simulation within 4 standard errors.

Unit isotropic keys, independent zero-mean unit values, one pass; everything through the public API.
"""

import numpy as np
import pytest

import engine
from engine import measure
from engine.measure import laws


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
    agrees(error.mean(0), laws.hebbian_error(n, d))


def test_decayed_hebbian():
    """Signal g^a, interference [(1 - g^2N)/(1 - g^2) - g^2a]/d, |S|^2 -> 1/(1 - g^2)."""
    d, n, g = 16, 80, 0.95
    keys, values = pairs(3000, n, d, seed=2)
    S = final("retnet", keys, values, gamma=g)
    answer, age = asked(S, keys), np.arange(n - 1, -1, -1)
    ages = [0, 1, 4, 16, 40]
    signal = (answer * values).sum(-1)[n - 1 - np.array(ages)].T
    mean, error = signal.mean(0), signal.std(0, ddof=1) / np.sqrt(len(signal))
    assert np.all(np.abs(mean - laws.decayed_signal(g, np.array(ages))) <= 4 * error)
    noise = ((answer - (g**age)[:, None, None] * values) ** 2).sum(-1)
    law = laws.decayed_interference(g, np.array(ages), n, d)
    agrees(noise[n - 1 - np.array(ages)].T, law)
    agrees((S**2).sum((-2, -1)), laws.decayed_energy(g, n))
    # Nothing of the first pair is left: the energy has reached its limit 1/(1 - g^2).
    assert abs(laws.decayed_energy(g, n) / laws.decayed_energy(g) - 1) < 3e-4


def test_delta_law_against_its_published_table():
    """(b, d, N) = (1, 8, 64), ages 0 1 2 4 8 16 63."""
    table = {0: 0.0, 1: 0.25, 2: 0.4687, 4: 0.8276, 8: 1.3127, 16: 1.7637, 63: 1.9994}
    law = laws.delta_error(1.0, 8, 64)
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
    agrees(error[ages].T, laws.delta_error(b, d, n)[ages])
    newest = (1 - b) ** 2 * (1 + laws.delta_energy(b, d, n - 1) / d)
    assert abs(laws.delta_error(b, d, n)[0] - newest) < 1e-12
    agrees((S**2).sum((-2, -1)), laws.delta_energy(b, d, n))


@pytest.mark.parametrize(
    ("load", "best"), [(0.5, 0.86), (1, 0.66), (2, 0.44), (4, 0.26), (8, 0.14)]
)
def test_best_write_strength_of_a_single_pass(load, best):
    """Published, d = 8: the b that minimises law 3's mean over ages, by load N/d."""
    grid = np.arange(1, 200) / 100
    mean = [laws.delta_error(b, 8, int(8 * load)).mean() for b in grid]
    assert grid[np.argmin(mean)] == best
    assert abs(laws.delta_best(8, int(8 * load)) - best) <= 0.005


@pytest.mark.parametrize(
    ("solver", "gain"),
    [
        ({"solver": "longhorn", "beta": 1.0}, laws.implicit_gain(1.0)),
        ({"solver": "longhorn", "beta": 0.25}, laws.implicit_gain(0.25)),
        ({"solver": "lms", "mu": 0.3}, laws.lms_gain(0.3)),
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
    agrees(
        error[300:].mean(0), laws.sphere_walk_error(gain, 8, laws.sphere_correlation(8, 0.03), 0.1)
    )


def test_sphere_walk_law_against_its_published_value():
    """Implicit step, b = 1: .088450."""
    law = laws.sphere_walk_error(laws.implicit_gain(1.0), 8, 0.99686061, 0.1)
    assert abs(law - 0.088450) < 5e-7


def test_tracking_a_free_walk():
    """Law 4: MSD = [Q (1 - kappa) + s^2 n0] / kappa, kappa = 2 m1 - m2; increments of energy Q."""
    d, trials, steps, Q, s, b = 8, 1500, 500, 0.01, 0.1, 1.0
    rng = np.random.default_rng(5)
    keys = rng.standard_normal((steps, trials, d)) / np.sqrt(d)
    target = np.cumsum(rng.standard_normal((steps, trials, d)) * np.sqrt(Q / d), axis=0)
    values = (keys * target).sum(-1, keepdims=True) + s * rng.standard_normal((steps, trials, 1))
    ds = engine.simulate("longhorn", keys, values, beta=b)
    error = ((ds.S.values[..., 0] - target) ** 2).sum(-1)
    agrees(error[200:].mean(0), laws.free_walk_error(laws.implicit_gain(b), d, Q, s))


def test_the_way_to_the_steady_error_of_a_sphere_walk_and_after_a_switch():
    """The recursion against a simulation, from an empty memory and with the target replaced."""
    d, s, step, trials = 4, 0.2, 0.3, 20_000
    rng = np.random.default_rng(8)
    keys = rng.standard_normal((12, trials, d)) / np.sqrt(d)
    target = np.empty_like(keys)
    for first in (0, 6):  # a new target at step 6, independent of the first
        target[first] = rng.standard_normal((trials, d))
        target[first] /= np.linalg.norm(target[first], axis=-1, keepdims=True)
        for t in range(first + 1, first + 6):
            x = target[t - 1] + step * rng.standard_normal((trials, d))
            target[t] = x / np.linalg.norm(x, axis=-1, keepdims=True)
    values = (keys * target).sum(-1, keepdims=True) + s * rng.standard_normal((12, trials, 1))
    S = engine.simulate("longhorn", keys, values, beta=2.0).S.values[..., 0]
    error = ((S - target) ** 2).sum(-1)
    walk = laws.implicit_gain(2.0), d, laws.sphere_correlation(d, step), s
    first = laws.sphere_walk_errors(*walk, 6)
    size = float((S[5] ** 2).sum(-1).mean())  # E|s|^2 at the switch, from the simulation
    for t, law in enumerate([*first, *laws.sphere_walk_errors(*walk, 6, start=(0.0, size))]):
        agrees(error[t], law)
    assert abs(laws.sphere_walk_errors(*walk, 500)[-1] - laws.sphere_walk_error(*walk)) < 1e-12


def test_the_mean_of_past_maps_by_its_covariance():
    """E w_i.w_j = rho^|i - j|: the error of the mean is a sum over all pairs of steps."""
    for rho, t in [(0.5, 1), (0.9, 2), (0.99686061, 300)]:
        i = np.arange(t)
        C = rho ** np.abs(i[:, None] - i)
        assert abs(laws.mean_map_error(rho, t) - (C.mean() - 2 * C[-1].mean() + 1)) < 1e-10


@pytest.mark.parametrize(("d", "step"), [(1, 0.5), (2, 0.03), (3, 0.3), (8, 1.0)])
def test_the_correlation_of_a_sphere_walk(d, step):
    """E[w_t.w_(t-1)] by drawing it; the drift study's value is .99686061."""
    x = step * np.random.default_rng(6).standard_normal((400_000, d))
    x[:, 0] += 1
    agrees(x[:, 0] / np.linalg.norm(x, axis=1), laws.sphere_correlation(d, step))
    assert abs(laws.sphere_correlation(8, 0.03) - 0.99686061) < 5e-9


def test_moments_of_a_plain_step_are_those_of_chi2():
    """E k2 = 1, E k2^2 = (d + 2)/d for keys N(0, I/d), whatever d."""
    for d in (1, 8, 64, 512):
        got = laws.moments(laws.lms_gain(0.3), d)
        np.testing.assert_allclose(got, (0.3 / d, 0.09 * (d + 2) / d**2, 0.09), rtol=1e-9)


@pytest.mark.parametrize("walk", [0.0, 1e-4])
def test_decayed_least_squares_in_the_limit_of_a_long_memory(walk):
    """Noise d^2 s^2 (1-g)/(1+g), lag Q g^2/(1-g^2), up to the order d (1 - g) = 1 %."""
    d, g, s, trials, steps = 2, 0.995, 0.1, 3000, 1600
    rng = np.random.default_rng(7)
    keys = rng.standard_normal((steps, trials, d)) / np.sqrt(d)
    target = np.cumsum(rng.standard_normal((steps, trials, d)) * np.sqrt(walk / d), axis=0)
    values = (keys * target).sum(-1, keepdims=True) + s * rng.standard_normal((steps, trials, 1))
    S = engine.simulate("least_squares", keys, values, gamma=g, record="final").S.values
    error = ((S[..., 0] - target[-1]) ** 2).sum(-1)
    law, se = sum(laws.decayed_fit_error(g, d, walk, s)), error.std() / np.sqrt(trials)
    assert abs(error.mean() - law) < 4 * se + 2 * d * (1 - g) * law


def test_memory_lengths_are_sums_of_weights():
    """Sum of g^a, and (sum g^a)^2 / sum g^2a."""
    weights = 0.95 ** np.arange(2000)
    want = weights.sum(), weights.sum() ** 2 / (weights**2).sum()
    np.testing.assert_allclose(laws.memory_length(0.95), want, rtol=1e-12)


def stable(n, theta, eta, alpha):
    """Law 5: whether one key revisited every n steps is learnt, not overshot ever further."""
    return 2 * theta < laws.titans_bound(eta, alpha, n)


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
    assert 0.4237 < laws.titans_bound(0.9, 0.1) < 0.4239


@pytest.mark.parametrize("eta", [0.0, 0.3, 0.9, 0.9000001, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0])
def test_titans_grows_beyond_its_bound_and_only_there(eta, alpha):
    """The bound against the eigenvalues of one round of visits, from the rule itself."""
    for gap in (1, 2, 3, 4, 8, 15, 33, 40):
        bound = laws.titans_bound(eta, alpha, gap)
        assert bound >= laws.titans_bound(eta, alpha) * (1 - 1e-9)
        if 1e-6 < bound < 1e6:
            assert laws.titans_growth(gap, bound / 2 * 0.999, eta, alpha) <= 1 + 1e-9
            assert laws.titans_growth(gap, bound / 2 * 1.001, eta, alpha) > 1
            assert laws.titans_growth(gap, 1.0, eta, alpha, k2=bound / 2 * 1.001) > 1


def test_titans_without_decay_is_safe_below_one_minus_eta():
    """alpha = 0: 2 theta <= 2 (1 - eta); no momentum: 2 theta <= 2 - alpha, at gap 1."""
    for x in (0.0, 0.2, 0.9):
        assert abs(laws.titans_bound(x, 0.0) - 2 * (1 - x)) < 1e-12
        assert abs(laws.titans_bound(0.0, x, 1) - (2 - x)) < 1e-12


def test_titans_growth_is_what_a_run_grows_by():
    """Published: 2.901578 per revisit at (.5, .9, .1), gap 8."""
    keys = np.zeros((80 * 8, 2))
    keys[::8, 0] = 1.0
    ds = engine.simulate("titans", keys, np.zeros((640, 1)), theta=0.5, eta=0.9, alpha=0.1,
                         state={"S": np.ones((2, 1)), "U": np.zeros((2, 1))})  # fmt: skip
    size = np.abs(ds.S.values[:, 0, 0])
    growth = (size[-8:].max() / size[-328:-320].max()) ** (1 / 40)
    assert abs(growth - 2.901578) < 5e-6
    assert abs(laws.titans_growth(8, 0.5, 0.9, 0.1) - 2.901578) < 5e-7

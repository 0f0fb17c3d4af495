"""Estimates against scipy's own tests, and the coverage of their intervals."""

import json

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from engine.measure.statistics import Estimate, bootstrap, chance, estimate, paired, wilson


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_an_estimate_is_that_of_a_t_test(level):
    x = draw(0, 12, 3)
    want = stats.ttest_1samp(x, 0.0)
    interval, got = want.confidence_interval(level), estimate(x, level=level)
    np.testing.assert_allclose(got.value, x.mean(0), rtol=1e-14)
    np.testing.assert_allclose(got.value / got.se, want.statistic, rtol=1e-12)
    np.testing.assert_allclose([got.low, got.high], interval, rtol=1e-12)
    assert got.n == 12 and got.level == level


def test_paired_differences_are_those_of_a_paired_t_test():
    a, b = draw(1, 20, 2), draw(1, 20, 2) + 0.3 + 0.1 * draw(2, 20, 2)
    got, want = paired(b, a), stats.ttest_rel(b, a)
    np.testing.assert_allclose([got.low, got.high], want.confidence_interval(), rtol=1e-12)
    # What the trials share cancels: far sharper than the difference of two means.
    assert (got.se < 0.2 * np.hypot(estimate(a).se, estimate(b).se)).all()
    with pytest.raises(ValueError, match="same trials"):
        paired(a, b[:-1])


def test_estimates_keep_dims_and_stay_lazy():
    x = draw(3, 6, 9, 4)
    named = xr.DataArray(x, dims=("step", "trial", "value"))
    want = estimate(x, over=1)
    for given in (named, named.transpose("value", "step", "trial"), named.chunk(step=2)):
        got = estimate(given)
        assert bool(given.chunks) == bool(got.value.chunks)
        for part in ("value", "low", "high", "se"):
            array = getattr(got, part).transpose("step", "value")
            np.testing.assert_allclose(array.values, getattr(want, part), rtol=1e-12)
        assert got.n == 9
        assert paired(given, given).value.sizes == {"step": 6, "value": 4}
    with pytest.raises(ValueError, match="same trials"):
        paired(named, named.isel(trial=slice(3)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_mean_over_survivors_is_not_given(bad):
    x = np.array([1.0, 2.0, bad])
    for given in (x, xr.DataArray(x, dims="trial")):
        got = estimate(given)
        assert not np.isfinite(got.value) and np.isnan(got.se) and not got.agrees(1.5)


def test_one_trial_has_no_interval():
    for given in (np.array([1.0]), xr.DataArray([1.0], dims="trial")):
        got = estimate(given)
        assert got.value == 1.0 and np.isnan([got.low, got.high, got.se]).all()
        assert not got.agrees(1.0)


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (10, 10), (371, 400), (1, 3), (74, 400)])
def test_wilson_is_that_of_scipy(hits, n):
    for level in (0.9, 0.95):
        want = stats.binomtest(hits, n).proportion_ci(level, method="wilson")
        got = wilson(hits, n, level)
        np.testing.assert_allclose([got.low, got.high], want, rtol=1e-9, atol=1e-15)
        assert got.value == hits / n


def test_wilson_of_nothing_is_nothing():
    got = wilson([3, 0], [4, 0])
    assert np.isnan([got.value[1], got.low[1], got.high[1]]).all() and got.value[0] == 0.75


def test_bootstrap_intervals_cover_as_often_as_they_say():
    """1000 samples of 30 from an exponential law: its median, ln 2, in about 95 % of intervals."""
    x = np.random.default_rng(4).exponential(size=(30, 1000))
    got = bootstrap(x, np.median, resamples=400)
    covered = ((got.low <= np.log(2)) & (np.log(2) <= got.high)).mean()
    # 4 standard errors of a share of 1000, and what BCa is off for a median of 30.
    assert 0.95 - 4 * np.sqrt(0.95 * 0.05 / 1000) - 0.02 < covered < 0.99


def test_the_bootstrap_of_a_mean_is_near_student_s():
    x = draw(5, 200)
    got, want = bootstrap(x, resamples=4000), estimate(x)
    np.testing.assert_allclose([got.low, got.high], [want.low, want.high], atol=0.1 * want.se)
    np.testing.assert_allclose(got.se, want.se, rtol=0.05)
    assert bootstrap(x) == bootstrap(x)  # the same seed


def test_the_bootstrap_of_a_constant_has_no_width():
    x = np.stack([np.ones(9), draw(6, 9)], axis=1)
    got = bootstrap(xr.DataArray(x, dims=("trial", "value")))
    assert got.low[0] == got.value[0] == got.high[0] == 1.0 and got.value.dims == ("value",)
    assert got.low[1] < got.value[1] < got.high[1]


def test_chance_is_what_guessing_gives():
    rng = np.random.default_rng(7)
    shares = (rng.integers(8, size=(4000, 400)) == 0).mean(1)
    got = chance(8, 400)
    assert abs(shares.mean() - got.value) < 4 * got.se / np.sqrt(4000)
    inside = ((got.low <= shares) & (shares <= got.high)).mean()
    assert 0.94 < inside < 0.98  # at least the level: hits are whole numbers


def test_estimates_are_printed_and_stored_with_their_interval():
    got = estimate(xr.DataArray(draw(8, 5), dims="trial"))
    stored = json.loads(json.dumps(got.plain()))
    assert Estimate(**stored).low == float(got.low) and "n = 5" in str(got)
    assert "shape (2,)" in str(estimate(draw(9, 5, 2)))

"""Lag, recovery and steady state: cases that can be worked by hand, and the walk's algebra."""

import numpy as np
import pytest
import xarray as xr

import engine
from engine.measure import lift, tracking


def test_the_lag_of_an_exponential_mean_is_the_median_of_its_weights():
    """S_t = (1-g) sum g^a W_(t-a) of a walk; |S - W_(t-L)|^2 is least at the L with
    1 - g^(L+1) >= 1/2 first: the increment of age j is in S by 1 - g^(j+1), in W_(t-L) from j = L.
    """
    rng = np.random.default_rng(0)
    W = np.cumsum(rng.normal(size=(4000, 3, 4, 2)), axis=0)
    for g in (0.3, 0.8, 0.95):
        S = np.zeros_like(W)
        for t in range(len(W)):
            S[t] = g * S[t - 1] + (1 - g) * W[t] if t else W[t]
        want = int(np.ceil(np.log(0.5) / np.log(g))) - 1
        got = tracking.lag(S, W, longest=40)
        assert got.shape == (3,) and (abs(got - want) <= 1).all(), (g, got, want)


def test_lag_by_dim_name_and_by_blocks(monkeypatch):
    W = np.cumsum(np.random.default_rng(1).normal(size=(120, 3, 4, 2)), axis=0)
    S = np.stack([np.roll(W[:, b], b + 2, axis=0) for b in range(3)], axis=1)
    S[-1, 2] = np.nan
    labels = {"step": np.arange(120)}
    a = xr.DataArray(S, dims=("step", "trial", "key", "value"), coords=labels)
    b = xr.DataArray(W, dims=("step", "trial", "key", "value"), coords=labels)
    for bytes_ in (1, 10_000, 2**30):
        monkeypatch.setattr(lift, "BLOCK_BYTES", bytes_)
        for left in (a, a.transpose("value", "trial", "step", "key"), a.chunk(step=37)):
            got = tracking.lag(left, b, longest=10)
            np.testing.assert_array_equal(got.values, [2, 3, np.nan])
    np.testing.assert_array_equal(tracking.lag(S, W, longest=10), [2, 3, np.nan])
    with pytest.raises(ValueError, match="only 120 steps"):
        tracking.lag(S, W, longest=120)


def test_recovery_of_the_delta_rule_is_geometric():
    """One unit key: the error after a switch is (1-b)^(n+1) of the jump, so it takes
    ceil(ln(level/jump)/ln(1-b)) writes, the first of them in the switch's own step."""
    b, switch, level = 0.2, 100, 0.01
    keys = np.broadcast_to([1.0, 0.0], (200, 3, 2))
    values = np.where(np.arange(200) < switch, 1.0, -3.0)[:, None, None] * np.ones((1, 3, 1))
    ds = engine.simulate("delta", keys, values, beta=b)
    W = xr.zeros_like(ds.S)
    W[:, :, 0, 0] = values[..., 0]
    error = tracking.tracking_error(ds.S, W)
    want = np.ceil(np.log(level / 4.0) / np.log(1 - b)) - 1
    for given in (error, error.chunk(step=30), error.transpose("trial", "step")):
        got = tracking.recovery_time(given, switch, level)
        assert got.dims == ("trial",) and (got == want).all()
    assert (tracking.recovery_time(error.values, switch, level) == want).all()
    assert np.isnan(tracking.recovery_time(error, switch, 1e-12)).all()
    limits = np.array([10.0, level, 1e-12])
    np.testing.assert_array_equal(
        tracking.recovery_time(error.values, switch, limits), [0, want, np.nan]
    )


def test_recovery_may_have_to_last():
    error = np.array([0.0, 5.0, 1.0, 5.0, 1.0, 1.0, np.nan])
    got = [float(tracking.recovery_time(error, 1, 1.0, hold=n)) for n in (1, 2, 3, 9)]
    np.testing.assert_array_equal(got, [1.0, 3.0, np.nan, np.nan])
    with pytest.raises(ValueError, match="one of the 7 steps"):
        tracking.recovery_time(error, 7, 1.0)


def test_steady_state_is_the_mean_of_the_end():
    error = np.random.default_rng(2).normal(size=(103, 4))
    want = error[-26:].mean(0)
    named = xr.DataArray(error, dims=("step", "trial"))
    for given in (named, named.T, named.chunk(step=10)):
        np.testing.assert_allclose(tracking.steady_state(given).values, want, rtol=1e-13)
    np.testing.assert_allclose(tracking.steady_state(error), want, rtol=1e-14)
    np.testing.assert_array_equal(tracking.steady_state(error, 1e-9), error[-1])
    error[-1, 2] = np.inf
    assert np.isinf(tracking.steady_state(named)[2])
    for share in (0.0, 1.1):
        with pytest.raises(ValueError, match="in"):
            tracking.steady_state(error, share)


def test_blocks_of_steps_change_no_bit(monkeypatch):
    S, W = np.random.default_rng(3).normal(size=(2, 50, 3, 4, 2))
    a = xr.DataArray(S, dims=("step", "trial", "key", "value"), coords={"step": np.arange(50) * 2})
    b = xr.DataArray(W[0], dims=("trial", "key", "value"))
    want = tracking.tracking_error(a, b)
    for bytes_ in (1, 1000, 5000):
        monkeypatch.setattr(lift, "BLOCK_BYTES", bytes_)
        for left in (a, a.transpose("key", "trial", "value", "step")):
            got = tracking.tracking_error(left, b).transpose("step", "trial")
            xr.testing.assert_identical(got, want)
        # An array without names is matched by position: it is not cut.
        np.testing.assert_array_equal(tracking.tracking_error(a, W[0]).values, want.values)
    assert lift.block_of(a, b) == 5000 // (3 * 4 * 2 * 8)

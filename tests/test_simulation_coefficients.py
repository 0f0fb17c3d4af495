"""`engine.simulate`: coefficients by number, step, trial and channel, and their bounds."""

from itertools import permutations

import numpy as np
import pytest
import xarray as xr

import engine

from .simulation_cases import B, D, Gated, T, assert_equal, assert_same, draw


def gated_loop(keys, values, gamma, beta):
    """Return the states of `Gated` as a plain loop over one trial gives them."""
    S, states = np.zeros((keys.shape[1], values.shape[1])), []
    for k, v, g, b in zip(keys, values, gamma, beta, strict=True):
        S = g[:, None] * S
        S = S + b * np.outer(k, v - S.T @ k)
        states.append(S)
    return np.array(states)


FORMS = {
    "number": (),
    "step": ("step",),
    "step trial": ("step", "trial"),
    "step trial key": ("step", "trial", "key"),
}


@pytest.mark.parametrize("dims", FORMS.values(), ids=FORMS.keys())
def test_a_coefficient_varies_along_what_it_is_given_along(dims):
    keys, values, _ = draw()
    sizes = {"step": T, "trial": B, "key": D}
    rng = np.random.default_rng(1)
    gamma = rng.uniform(size=tuple(sizes[d] for d in dims))
    beta = rng.uniform(size=(T, B))
    ds = engine.simulate(Gated(), keys, values, gamma=gamma, beta=beta)
    shape = tuple(n if d in dims else 1 for d, n in sizes.items())
    full = np.broadcast_to(gamma.reshape(shape), (T, B, D))
    for b in range(B):
        want = gated_loop(keys[:, b], values[:, b], full[:, b], beta[:, b])
        np.testing.assert_allclose(ds.S[:, b], want, rtol=1e-12, atol=1e-13)
    assert ds.gamma.dims == dims
    assert_same(ds.gamma, gamma)
    spelled = engine.simulate(Gated(), keys, values, gamma=full, beta=beta)
    assert_equal(ds.drop_vars("gamma"), spelled.drop_vars("gamma"))
    for order in permutations(dims):
        labelled = xr.DataArray(gamma, dims=dims).transpose(*order)
        got = engine.simulate(Gated(), keys, values, gamma=labelled, beta=beta)
        assert_equal(got, ds)


def test_a_channel_gate_without_trials():
    keys, values, _ = draw(trials=None)
    gamma = np.random.default_rng(1).uniform(size=(T, D))
    want = gated_loop(keys, values, gamma, np.ones(T))
    for given in (gamma, xr.DataArray(gamma, dims=("step", "key")).T):
        ds = engine.simulate(Gated(), keys, values, gamma=given)
        np.testing.assert_allclose(ds.S, want, rtol=1e-12, atol=1e-13)
        assert ds.gamma.dims == ("step", "key")
    labelled = xr.DataArray(gamma[:, 0], dims="step")
    ds = engine.simulate(Gated(), keys, values, gamma=labelled)
    assert_equal(ds, engine.simulate(Gated(), keys, values, gamma=gamma[:, 0]))


def test_a_decay_of_zero_is_a_full_reset():
    keys, values, _ = draw(trials=None)
    gamma = np.ones(T)
    gamma[5] = 0.0
    ds = engine.simulate(Gated(), keys, values, gamma=gamma)
    fresh = engine.simulate(Gated(), keys[5:], values[5:])
    assert_same(ds.S[5:], fresh.S)


def test_a_recorded_coefficient_can_be_given_back():
    keys, values, _ = draw()
    for beta in (0.5, np.random.default_rng(0).uniform(size=(T, B))):
        ds = engine.simulate("delta", keys, values, beta=beta)
        assert_equal(engine.simulate("delta", keys, values, beta=ds.beta), ds)


@pytest.mark.parametrize("shape", [(T + 1,), (B,), (T, B + 1), (B, T), (T, B, D), (1, 1, 1, 1)])
def test_a_coefficient_that_does_not_fit_is_refused_with_its_shape(shape):
    keys, values, _ = draw()
    with pytest.raises(engine.InputError) as error:
        engine.simulate("delta", keys, values, beta=np.ones(shape))
    for part in ("beta", str(shape), f"{T} steps", f"{B} trials"):
        assert part in str(error.value)


def test_a_channel_gate_of_another_width_is_refused():
    keys, values, _ = draw()
    with pytest.raises(engine.InputError, match=f"gamma.*{D + 1}.*{D}"):
        engine.simulate(Gated(), keys, values, gamma=np.ones((T, B, D + 1)))


@pytest.mark.parametrize(
    ("solver", "given", "says"),
    [
        ("delta", -0.5, "beta = -0.5 must be at least 0"),
        ("delta", np.nan, "beta = nan must be at least 0"),
        ("delta", np.inf, "beta = inf must be"),
        ("longhorn", -1, "beta = -1 must be at least 0"),
        ("rls", 1.5, r"gamma = 1.5 must be in \(0, 1\]"),
        ("rls", 0, r"gamma = 0 must be in \(0, 1\]"),
        ("rls", -0.1, r"gamma = -0.1 must be in \(0, 1\]"),
        ("least_squares", 1 + 1e-15, r"gamma = 1.00\d* must be in \[0, 1\]"),
    ],
)
def test_coefficients_out_of_bounds_are_refused_before_the_run(solver, given, says, monkeypatch):
    monkeypatch.setattr("engine.loop.Track.advance", lambda *args: pytest.fail("it ran"))
    keys, values, _ = draw()
    name = "gamma" if "gamma" in says else "beta"
    with pytest.raises(engine.InputError, match=says):
        engine.simulate(solver, keys, values, **{name: given})
    late = np.ones((T, B))
    late[T - 2, 1] = given
    with pytest.raises(engine.InputError, match=f"{name} = .* at step {T - 2}, trial 1 must be"):
        engine.simulate(solver, keys, values, **{name: late})

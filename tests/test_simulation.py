"""`engine.simulate`: its dims and conventions, and the step at which it diverges."""

import numpy as np
import pytest

import engine

from .simulation_cases import (
    STATES,
    B,
    D,
    M,
    T,
    assert_equal,
    assert_same,
    coefficients,
    draw,
    each_solver,
    made,
)

# Dims and conventions


def test_one_stream_has_no_trial_dim():
    keys, values, _ = draw(trials=None)
    ds = engine.simulate("delta", keys, values, kernel="loop", beta=0.5)
    assert ds.sizes == {"step": T, "key": D, "value": M}
    assert ds.prediction.dims == ds.output.dims == ("step", "value")
    assert ds.S.dims == ("step", "key", "value")
    assert ds.diverged_at.dims == () and int(ds.diverged_at) == -1
    assert set(ds.data_vars) == {"prediction", "output", "S", "beta", "diverged_at"}
    made = {"solver": "Delta", "dtype": "float64", "backend": "numpy", "kernel": "loop"}
    assert made.items() <= ds.attrs.items()


def test_trials_have_a_dim_even_if_there_is_one():
    for trials in (1, 3):
        ds = engine.simulate("delta", *draw(trials=trials)[:2])
        assert ds.S.dims == ("step", "trial", "key", "value")
        assert ds.sizes["trial"] == trials and ds.diverged_at.dims == ("trial",)


def test_a_second_axis_of_the_same_length_has_another_name():
    """isel, mean and chunk act on one axis; warnings are errors here."""
    ds = engine.simulate("rls", *draw(2, None, 3, 3)[:2])
    assert ds.P.dims == ("step", "key", "key_2")
    assert ds.P.isel(key_2=0).shape == (2, 3)
    assert_same(ds.P.isel(key_2=1), ds.P.values[:, :, 1])
    np.testing.assert_allclose(ds.P.mean("key_2"), ds.P.values.mean(-1))
    chunked = ds.chunk(key_2=2)
    assert chunked.P.chunks == ((2,), (3,), (2, 1))
    assert_same(chunked.P.compute(), ds.P)


def test_predictions_come_before_the_write_and_outputs_after_it():
    keys, values, queries = draw(trials=None)
    ds = engine.simulate("delta", keys, values, queries, beta=0.5)
    S = np.zeros((D, M))
    for t in range(T):
        np.testing.assert_allclose(ds.prediction[t], S.T @ keys[t], rtol=1e-13, atol=1e-14)
        S = S + 0.5 * np.outer(keys[t], values[t] - S.T @ keys[t])
        np.testing.assert_allclose(ds.S[t], S, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(ds.output[t], S.T @ queries[t], rtol=1e-12, atol=1e-13)
    assert not ds.prediction[0].values.any()


@each_solver
def test_queries_default_to_the_keys(case):
    keys, values, _ = draw()
    given = coefficients(case)
    assert_equal(
        engine.simulate(made(case), keys, values, **given),
        engine.simulate(made(case), keys, values, keys.copy(), **given),
    )


@each_solver
def test_queries_change_nothing_but_the_output(case):
    keys, values, queries = draw()
    a = engine.simulate(made(case), keys, values, **coefficients(case))
    b = engine.simulate(made(case), keys, values, queries, **coefficients(case))
    assert (a.output != b.output).any()
    assert_equal(a.drop_vars("output"), b.drop_vars("output"))


@each_solver
def test_a_solver_by_name_is_one_with_its_defaults(case):
    keys, values, _ = draw()
    assert_equal(
        engine.simulate(case[0], keys, values),
        engine.simulate(engine.solver(case[0]), keys, values),
    )


@each_solver
def test_no_steps_give_an_empty_result(case):
    keys, values, queries = draw(0)
    given = coefficients(case, 0)
    ds = engine.simulate(made(case), keys, values, queries, **given)
    full = engine.simulate(made(case), *draw(), **coefficients(case))
    assert set(ds.data_vars) == set(full.data_vars)
    for name in ds.data_vars:
        assert ds[name].dims == full[name].dims and ds[name].dtype == full[name].dtype
    assert ds.prediction.shape == ds.output.shape == (0, B, M)
    assert (ds.diverged_at == -1).all()
    final = engine.simulate(made(case), keys, values, record="final", **given)
    assert "step" in final.sizes and all("step" not in final[n].dims for n in STATES if n in final)


@each_solver
def test_the_final_record_is_the_last_state(case):
    keys, values, queries = draw()
    given = coefficients(case)
    every = engine.simulate(made(case), keys, values, queries, **given)
    final = engine.simulate(made(case), keys, values, queries, record="final", **given)
    for name in every.data_vars:
        state = name in STATES and "step" in every[name].dims
        assert_same(final[name], every[name].isel(step=-1) if state else every[name])


def test_a_result_may_be_changed_without_changing_another():
    """Nothing recorded is a reference to anything that lives on."""
    keys, values, _ = draw(trials=None)
    first = engine.simulate("delta", keys, values)
    kept = first.copy(deep=True)
    second = engine.simulate("delta", keys, values, state=first)
    second.S.values[:] = 7.0
    keys[:], values[:] = -1.0, -1.0
    assert_equal(first, kept)


# Divergence


def test_each_trial_is_flagged_at_its_own_first_step():
    keys, values = np.ones((400, 3, 1)), np.ones((400, 3, 1))
    ds = engine.simulate("delta", keys, values, beta=np.broadcast_to([1.0, 9.0, 50.0], (400, 3)))
    S = ds.S.values[..., 0, 0]
    assert int(ds.diverged_at[0]) == -1 and np.isfinite(S[:, 0]).all()
    for b in (1, 2):
        first = int(ds.diverged_at[b])
        reads = np.stack([ds.prediction.values[:, b, 0], ds.output.values[:, b, 0], S[:, b]])
        assert np.isfinite(reads[:, :first]).all() and not np.isfinite(reads[:, first]).all()
    assert 300 < int(ds.diverged_at[1]) < 345 and 175 < int(ds.diverged_at[2]) < 190


@pytest.mark.skipif(np.finfo(np.longdouble).max == np.finfo(float).max, reason="no wider float")
def test_a_long_double_out_of_range_is_flagged():
    keys = np.ones((T, D), dtype=np.longdouble)
    keys[3] = np.longdouble("1e4000")
    assert int(engine.simulate("delta", keys, draw(trials=None)[1]).diverged_at) == 3


def test_a_missing_value_is_flagged_where_it_enters():
    keys, values, _ = draw(trials=None)
    values[5, 1] = np.nan
    for solver in ("delta", "softmax_attention"):
        ds = engine.simulate(solver, keys, values)
        assert int(ds.diverged_at) == 5
    mask = np.arange(T) != 5
    assert int(engine.simulate("delta", keys, values, mask=mask).diverged_at) == -1


def test_a_query_that_is_not_finite_is_not_the_solvers_fault():
    keys, values, queries = draw(trials=None)
    queries[3] = np.nan
    ds = engine.simulate("delta", keys, values, queries)
    assert np.isnan(ds.output[3]).all() and int(ds.diverged_at) == -1

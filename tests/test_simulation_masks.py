"""`engine.simulate`: steps that are masked."""

import numpy as np
import pytest
import xarray as xr

import engine

from .simulation_cases import (
    STATES,
    B,
    M,
    T,
    assert_equal,
    assert_same,
    coefficients,
    draw,
    each_solver,
    made,
)


@each_solver
def test_a_masked_step_changes_no_bit_of_the_state(case):
    keys, values, _ = draw()
    mask = np.random.default_rng(2).random((T, B)) < 0.6
    mask[0] = [True, False, True]
    mask[4] = False
    ds = engine.simulate(made(case), keys, values, mask=mask, **coefficients(case))
    start = engine.simulate(made(case), *(x[:1] for x in draw()[:2]), mask=np.zeros((1, B), bool),
                            **coefficients(case, 1))  # fmt: skip
    for name in STATES:
        if name in ds and "step" in ds[name].dims:
            for t in range(T):
                before = ds[name][t - 1] if t else start[name][0]
                for b in range(B):
                    if not mask[t, b]:
                        assert_same(ds[name][t, b], before[b])
                    elif name in ("S", "rows"):
                        assert (ds[name][t, b] != before[b]).any()


@each_solver
@pytest.mark.parametrize("junk", [0.0, 1e6, np.nan, np.inf])
def test_a_masked_stream_is_the_stream_of_its_unmasked_steps(case, junk):
    """Whatever stands at a masked step: key, value, coefficient."""
    keys, values, _ = draw()
    mask = np.random.default_rng(2).random((T, B)) < 0.6
    given = coefficients(case)
    for array in (keys, values, *given.values()):
        array[~mask] = junk
    ds = engine.simulate(made(case), keys, values, mask=mask, **given)
    assert (ds.diverged_at == -1).all()
    for b in range(B):
        on = mask[:, b]
        alone = {name: x[on, b] for name, x in given.items()}
        want = engine.simulate(made(case), keys[on, b], values[on, b], **alone)
        for name in ("prediction", "output", *STATES):
            if name in ("keys", "values") and name in want:
                assert_same(ds[name][: on.sum(), b], want[name])
            elif name in want:
                assert_same(ds[name][on, b], want[name])
        assert np.isnan(ds.prediction[~on, b]).all() and np.isnan(ds.output[~on, b]).all()


@each_solver
def test_queries_are_answered_at_masked_steps(case):
    keys, values, queries = draw()
    mask = np.random.default_rng(2).random((T, B)) < 0.6
    given = coefficients(case)
    ds = engine.simulate(made(case), keys, values, queries, mask=mask, **given)
    assert np.isfinite(ds.output).all()
    assert np.isnan(ds.prediction.values[~mask]).all()
    for b in range(B):
        for t in np.flatnonzero(~mask[:, b])[:3]:
            on = mask[:t, b]
            want = np.zeros(M)
            if on.any():
                # The same writes, then the query of step t asked right after the last of them.
                asked = keys[:t, b][on].copy()
                asked[-1] = queries[t, b]
                alone = {name: x[:t, b][on] for name, x in given.items()}
                run = engine.simulate(
                    made(case), keys[:t, b][on], values[:t, b][on], asked, **alone
                )
                want = run.output[-1]
            assert_same(ds.output[t, b], want)


def test_masks_come_in_several_forms():
    keys, values, _ = draw()
    mask = np.arange(T) % 3 > 0
    want = engine.simulate("rls", keys, values, mask=np.repeat(mask[:, None], B, 1), gamma=0.9)
    by_trial = np.repeat(mask[:, None], B, 1)
    for form in (
        mask, mask.astype(int), mask.astype(float), mask.tolist(), mask[:, None],
        xr.DataArray(mask, dims="step"), xr.DataArray(by_trial.T, dims=("trial", "step")),
    ):  # fmt: skip
        assert_equal(engine.simulate("rls", keys, values, mask=form, gamma=0.9), want)
    for bad in (mask + 1, mask * 0.5, np.where(mask, 1.0, np.nan)):
        with pytest.raises(engine.InputError, match="mask must hold bools"):
            engine.simulate("rls", keys, values, mask=bad)


@each_solver
def test_a_mask_of_ones_is_no_mask(case):
    given = coefficients(case)
    ds = engine.simulate(made(case), *draw(), mask=np.ones(T, bool), **given)
    assert_equal(ds, engine.simulate(made(case), *draw(), **given))

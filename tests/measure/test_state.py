"""Spectra against numpy and scipy, costs against what a run holds."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import engine
from engine import experiment
from engine.measure import lift, state
from engine.recorder import MemorySink
from engine.summary import state_bytes


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (4, 1)])
def test_spectra_and_ranks_are_numpy_s(shape):
    S = draw(0, 7, 3, *shape)
    want = np.linalg.svd(S, compute_uv=False)
    np.testing.assert_allclose(state.spectrum(S), want, rtol=1e-12)
    np.testing.assert_allclose(state.norm(S), np.linalg.norm(S, axis=(-2, -1)), rtol=1e-13)
    np.testing.assert_array_equal(state.rank(S), np.linalg.matrix_rank(S))
    np.testing.assert_allclose(state.condition(S), want[..., 0] / want[..., -1], rtol=1e-10)
    share = want / want.sum(-1, keepdims=True)
    entropy = stats.entropy(np.moveaxis(share, -1, 0))
    np.testing.assert_allclose(state.effective_rank(S), np.exp(entropy), rtol=1e-12)


def test_the_rank_is_the_number_of_pairs_until_it_is_full():
    """A Hebbian memory of n generic pairs in R^5 has rank min(n, 5); equal singular values count
    as so many."""
    keys, values = draw(1, 8, 5), draw(2, 8, 5)
    S = engine.simulate("linear_attention", keys, values).S
    assert state.rank(S).values.tolist() == [1, 2, 3, 4, 5, 5, 5, 5]
    assert (state.effective_rank(S) < state.rank(S) + 1e-12).all()
    Q = np.linalg.qr(draw(3, 6, 6))[0]
    np.testing.assert_allclose(state.effective_rank(Q @ np.diag([2, 2, 2, 0, 0, 0]) @ Q.T), 3)
    assert state.rank(S.astype("float32")).values.tolist()[:2] == [1, 2]  # by its own precision
    assert state.rank(np.diag([1.0, 0.01]), rtol=0.1) == 1


def test_a_covariance_s_smallest_eigenvalue():
    A = draw(4, 5, 3, 4, 4)
    P = A @ A.swapaxes(-1, -2)
    np.testing.assert_allclose(state.smallest_eigenvalue(P), np.linalg.eigvalsh(P)[..., 0])
    P[2, 1] -= 100 * np.eye(4)
    assert state.smallest_eigenvalue(P)[2, 1] < 0
    dims = ("key", "key_2")
    condition = state.condition(P, dims=dims)
    np.testing.assert_allclose(condition, np.linalg.cond(P), rtol=1e-8)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_of_a_state_that_is_not_finite_nothing_is_known(bad):
    S = draw(5, 3, 2, 2)
    S[1, 0, 0] = bad
    S[2] = 0.0
    for measure in (state.rank, state.effective_rank, state.condition, state.smallest_eigenvalue):
        got = measure(S)
        assert np.isfinite(got[0]) and np.isnan(got[1]), measure
    assert np.isnan(state.spectrum(S)[1]).all()
    assert state.rank(S)[2] == state.effective_rank(S)[2] == 0 and np.isnan(state.condition(S)[2])
    assert state.condition(np.diag([1.0, 0.0])) == np.inf


def test_measures_of_states_by_dim_name_lazily_and_by_blocks(monkeypatch):
    S = xr.DataArray(draw(6, 20, 3, 4, 5), dims=("step", "trial", "key", "value"))
    P = xr.DataArray(draw(7, 20, 3, 4, 4), dims=("step", "trial", "key", "key_2"))
    measures = (state.norm, state.spectrum, state.rank, state.effective_rank, state.condition)
    for measure, x in [*((m, S) for m in measures), (state.smallest_eigenvalue, P)]:
        want = measure(x.values)
        for size in (100, 2**25):
            monkeypatch.setattr(lift, "BLOCK_BYTES", size)
            for given in (x, x.transpose("key", "step", ..., "trial"), x.chunk(step=6)):
                got = measure(given)
                assert bool(got.chunks) == bool(given.chunks)
                got = got.transpose("step", "trial", ...)
                np.testing.assert_allclose(got.values, want, rtol=1e-10)


def test_the_transition_s_eigenvalue_is_that_of_its_matrix():
    k, beta, gamma = draw(8, 9, 4), np.linspace(0.1, 3, 9), np.linspace(0.5, 1, 9)
    for i, got in enumerate(state.transition(beta, k, gamma)):
        matrix = gamma[i] * (np.eye(4) - beta[i] * np.outer(k[i], k[i]))
        values = np.sort(np.linalg.eigvalsh(matrix))
        want = np.sort([got, *[gamma[i]] * 3])
        np.testing.assert_allclose(values, want, atol=1e-12)
    named = state.transition(0.5, xr.DataArray(k, dims=("step", "key")))
    np.testing.assert_allclose(named.values, 1 - 0.5 * (k**2).sum(-1))


TABLE = {
    "trials": 2,
    "stream": {"generator": "random", "steps": 24, "key": 6, "value": 4},
    "solvers": {
        "delta": {}, "rls": {}, "softmax_attention": {}, "titans": {}, "log_linear_attention": {},
        "seen": {"solver": "delta", "view": {"view": "taylor"}},
    },
}  # fmt: skip


def test_costs_are_what_a_run_holds():
    """Bytes at the end against those of the state itself; work as the cards' leading terms say."""
    plan, sink = experiment.prepare(TABLE, {}), MemorySink()
    experiment.execute(plan, sink)
    run = sink.tree()
    for track in plan.tracks:
        got = state.costs(run, track.label)
        assert got.sizes == {"step": 24} and got.bytes[-1] == state_bytes(track), track.label
        assert (np.diff(got.multiply_adds) > 0).all()
    delta = state.costs(run, "delta")
    np.testing.assert_array_equal(delta.multiply_adds, 3 * 6 * 4 * np.arange(1, 25))
    softmax = state.costs(run, "softmax_attention")
    np.testing.assert_array_equal(softmax.numbers, 10 * np.arange(1, 25))


def test_masked_steps_cost_nothing():
    keys = draw(9, 10, 2, 3)
    mask = np.ones((10, 2), dtype=bool)
    mask[:4, 1] = mask[6, 0] = False
    ds = engine.simulate("softmax_attention", keys, keys, mask=mask)
    ds.attrs = {"solver": "softmax_attention", "hyperparameters": {"scale": 1.0}}
    stream = xr.Dataset({
        "keys": (("step", "trial", "key"), keys), "values": (("step", "trial", "value"), keys),
        "mask": (("step", "trial"), mask),
    })  # fmt: skip
    run = xr.DataTree.from_dict({"/stream": stream, "/solvers/it": ds})
    got = state.costs(run, "it")
    held = ds.rows.values
    np.testing.assert_array_equal(got.numbers.values[held > 0], 6 * held[held > 0])
    assert (got.multiply_adds.values[:4, 1] == 0).all()
    assert (np.diff(got.multiply_adds.values[5:8, 0]) == 0).tolist() == [True, False]


def test_a_rule_without_a_card_has_no_known_cost():
    with pytest.raises(engine.InputError, match="has no card"):
        state.cost(object(), "write", key=2, value=2, steps=3)

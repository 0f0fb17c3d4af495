"""Recall, decoding and interference, against scipy, hand-worked cases and the laws."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from scipy.spatial.distance import cdist

import engine
from engine.measure import capacity, decoding, laws


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


METRIC = {"distance": "euclidean", "cosine": "cosine", "dot": lambda a, b: -a @ b}


@pytest.mark.parametrize("by", METRIC)
@pytest.mark.parametrize("scores", [1, 100, 2**20])
def test_decoding_is_the_nearest_by_scipy_s_distances(by, scores, monkeypatch):
    monkeypatch.setattr(decoding, "SCORES", scores)  # however few queries are taken at a time
    read, book = draw(0, 40, 3, 6), draw(1, 3, 9, 6) * np.arange(1, 10)[:, None]
    far = np.stack([cdist(read[:, b], book[b], METRIC[by]) for b in range(3)], axis=1)
    wanted = np.random.default_rng(2).integers(-1, 9, size=(40, 3))
    for shape in (book, book[None], np.broadcast_to(book, (40, *book.shape))):
        np.testing.assert_array_equal(capacity.decode(read, shape, by=by), far.argmin(-1))
        order = far.argsort(-1).argsort(-1)
        want = np.take_along_axis(order, np.maximum(wanted, 0)[..., None], -1)[..., 0]
        got = capacity.rank(read, shape, wanted, by=by)
        np.testing.assert_array_equal(got, np.where(wanted < 0, -1, want))
        hit = capacity.recalled(read, shape, wanted, by=by)
        np.testing.assert_array_equal(hit, np.where(wanted < 0, np.nan, want == 0))


def test_decoding_by_dim_name():
    read, book = draw(0, 5, 40, 3, 6), draw(1, 3, 9, 6)
    wanted = np.random.default_rng(2).integers(-1, 9, size=(40, 3))
    named = xr.DataArray(read, dims=("step", "query", "trial", "value"))
    entries = xr.DataArray(book, dims=("trial", "entry", "value"))
    right = xr.DataArray(wanted, dims=("query", "trial"))
    want = decoding.decoded(read, book, wanted)
    for given in (named, named.transpose("value", "trial", "step", "query"), named.chunk(step=2)):
        got = capacity.decode(given, entries), capacity.rank(given, entries, right)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == np.int64 and bool(a.chunks) == bool(given.chunks)
            np.testing.assert_array_equal(a.transpose("step", "query", "trial").values, b)


def test_an_answer_that_is_not_finite_comes_last_and_blank_entries_are_nobody_s():
    book = np.array([[np.nan, 0.0], [1.0, 0.0], [0.0, 1.0], [np.inf, 0.0]])
    read = np.array([[0.9, 0.1], [np.nan, 0.0], [0.0, np.inf]])
    assert capacity.decode(read, book).tolist() == [1, -1, -1]
    assert capacity.rank(read, book, np.array([2, 1, 1])).tolist() == [1, 2, 2]
    assert capacity.decode(read, book[:1]).tolist() == [-1, -1, -1]
    assert capacity.decode(read, book[:0]).tolist() == [-1, -1, -1]


def test_of_entries_equally_near_the_first_is_taken():
    """An empty memory answers 0, which is equally far from all unit values."""
    book, read = np.eye(4), np.zeros((4, 4))
    assert capacity.rank(read, book, np.arange(4)).tolist() == [0, 1, 2, 3]
    assert capacity.recalled(read, book, np.arange(4)).tolist() == [1, 0, 0, 0]


def test_an_unknown_way_of_decoding_is_refused():
    with pytest.raises(ValueError, match="'distance', 'dot' or 'cosine'"):
        capacity.decode(np.zeros(2), np.eye(2), by="angle")


def test_intrusions_are_what_a_key_held_before():
    """Three keys; the first was bound to entries 0, then 1, then 2."""
    book = np.eye(5)
    older = np.array([[1, 1, 1, 0, 0]] * 4, dtype=bool)
    read, wanted = np.eye(5)[[2, 0, 3, 1]] + 0.1, np.array([2, 2, 2, -1])
    got = capacity.intruded(read, book, wanted, older)
    np.testing.assert_array_equal(got, [0.0, 1.0, 0.0, np.nan])  # right, old, a stranger, not asked
    lost = capacity.intruded(np.full((4, 5), np.nan), book, wanted, older)
    np.testing.assert_array_equal(lost, [0.0, 0.0, 0.0, np.nan])


def test_errors_and_cosines():
    read, values = draw(3, 7, 2, 5), draw(4, 7, 2, 5)
    want = np.linalg.norm(read - values, axis=-1)
    np.testing.assert_allclose(capacity.value_error(read, values), want, rtol=1e-14)
    far = [cdist(a, b, "cosine") for a, b in zip(read, values, strict=True)]
    want = 1 - np.array([np.diag(x) for x in far])
    np.testing.assert_allclose(capacity.cosine(read, values), want, rtol=1e-12)
    assert capacity.cosine(np.zeros(3), np.ones(3)) == 0.0
    S, keys = draw(5, 4, 2, 6, 5), draw(6, 2, 9, 6)
    want = np.einsum("tbkv,bqk->tbqv", S, keys)
    np.testing.assert_allclose(capacity.answer(S, keys), want, atol=1e-13)
    named = capacity.answer(
        xr.DataArray(S, dims=("step", "trial", "key", "value")),
        xr.DataArray(keys, dims=("trial", "query", "key")).transpose("query", "key", "trial"),
    )
    np.testing.assert_allclose(named.transpose("step", "trial", "query", "value"), want, atol=1e-13)


def test_signal_and_interference_of_a_decayed_memory():
    """Unit values: the exact weights are gamma^age, what is left is the law's interference."""
    trials, n, d, g = 1500, 24, 16, 0.9
    keys, values = (draw(s, n, trials, d) for s in (7, 8))
    keys, values = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (keys, values))
    S = engine.simulate("retnet", keys, values, gamma=g, record="final").S
    read = capacity.answer(S.values, keys.swapaxes(0, 1))
    age = np.arange(n - 1, -1, -1)
    own = np.broadcast_to(g**age, (trials, n))
    weight = capacity.signal(read, values.swapaxes(0, 1))
    mean, se = weight.mean(0), weight.std(0, ddof=1) / np.sqrt(trials)
    assert (abs(mean - laws.decayed_signal(g, age)) < 4 * se).all()
    rest = capacity.interference(read, values.swapaxes(0, 1), own) ** 2
    mean, se = rest.mean(0), rest.std(0, ddof=1) / np.sqrt(trials)
    assert (abs(mean - laws.decayed_interference(g, age, n, d)) < 4 * se).all()
    # By default the part along v counts as signal: Pythagoras.
    across = capacity.interference(read, values.swapaxes(0, 1))
    np.testing.assert_allclose(weight**2 + across**2, (read**2).sum(-1), rtol=1e-10)


@pytest.mark.parametrize("solver", ["delta", "gated_delta", "rls", "linear_attention"])
def test_unit_vectors_as_values_give_the_weights_of_all_values(solver):
    """The read is linear in the values: the weights reproduce it, signal and interference add."""
    n, d = 12, 5
    keys, values = draw(9, n, d) / 3, draw(10, n, 4)
    weights = engine.simulate(solver, keys, np.eye(n), record="final").S.values
    weights = capacity.answer(weights, keys)
    read = capacity.answer(engine.simulate(solver, keys, values, record="final").S.values, keys)
    np.testing.assert_allclose(weights @ values, read, atol=1e-12)
    own = np.diag(weights)
    rest = np.linalg.norm((weights - np.diag(own)) @ values, axis=-1)
    np.testing.assert_allclose(capacity.interference(read, values, own), rest, atol=1e-12)


def test_recall_by_age_is_scipy_s_binned_mean():
    x, age = draw(11, 3, 200), np.random.default_rng(12).integers(0, 100, size=(3, 200))
    x[:, ::7] = np.nan
    edges = [0, 1, 5, 50, 90]
    got = capacity.by_age(x, age, edges)
    for row, a, mine in zip(x, age, got, strict=True):
        there = ~np.isnan(row) & (a < 90)
        want = stats.binned_statistic(a[there], row[there], "mean", bins=[0, 1, 5, 50, 89.5])
        np.testing.assert_allclose(mine, want.statistic, rtol=1e-12)
    named = capacity.by_age(
        xr.DataArray(x, dims=("trial", "query")).T,
        xr.DataArray(age, dims=("trial", "query")),
        edges,
    )
    assert named.dims == ("trial", "age")
    np.testing.assert_array_equal(named.values, got)
    assert np.isnan(capacity.by_age(np.ones(3), np.zeros(3), [0, 1, 2])[1])


def test_the_load_at_which_recall_falls():
    """Recall of a known curve: its interval covers the truth as often as it says."""
    loads = np.array([0.5, 1, 2, 4, 8, 16])
    truth = 1 / (1 + (loads / 3) ** 2)  # .5 at load 3; linear in log load between 2 and 4: 2.985
    rng = np.random.default_rng(13)
    at = 2 * 2 ** ((truth[2] - 0.5) / (truth[2] - truth[3]))
    covered = []
    for shared in (False, True):
        for _ in range(60):
            noise = rng.normal(size=(1 if shared else 6, 30)) * 0.2
            got = capacity.crossing(
                loads, truth[:, None] + noise, resamples=300, shared=shared, seed=1
            )
            covered.append(got.low <= at <= got.high)
            assert got.low <= got.value <= got.high and got.n == 30
    assert 0.95 - 4 * np.sqrt(0.05 * 0.95 / 120) - 0.03 < np.mean(covered)
    exact = capacity.crossing(loads, np.repeat(truth[:, None], 3, axis=1))
    np.testing.assert_allclose([exact.value, exact.low, exact.high], at, rtol=1e-12)


def test_a_threshold_that_is_not_crossed_is_beyond_the_loads():
    loads = np.array([1, 2])
    never = capacity.crossing(loads, np.ones((2, 5)))
    assert never.value == never.low == never.high == np.inf
    at_once = capacity.crossing(loads, np.zeros((2, 5)))
    assert at_once.value == at_once.low == at_once.high == 0.0
    half = np.array([[1.0] * 8, [0.49, 0.0, 0.9, 0.1, 0.9, 0.5, 0.5, 0.5]])
    some = capacity.crossing(loads, half)
    assert 1 < some.low <= some.value < some.high == np.inf  # some resamples never fall

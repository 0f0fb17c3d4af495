"""Measures: array functions first, the same by dim name, and nothing hidden when it diverges."""

from pathlib import Path

import dask.array
import numpy as np
import pytest
import xarray as xr
from scipy.spatial.distance import cdist

import engine
from engine import experiment
from engine.measure import error_curve, prediction_error, recalled, smooth, tracking_error
from engine.measure.decoding import decoded
from engine.recorder import MemorySink
from engine.summary import summarise


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def test_tracking_error_is_the_frobenius_norm():
    S, W = draw(0, 7, 3, 5, 2), draw(1, 7, 3, 5, 2)
    want = np.linalg.norm(S - W, ord="fro", axis=(-2, -1))
    np.testing.assert_allclose(tracking_error(S, W), want, rtol=1e-15 * 10)
    assert tracking_error(S, S).max() == 0.0


def test_prediction_error_is_the_euclidean_norm():
    p, v = draw(0, 7, 3, 5), draw(1, 7, 3, 5)
    want = np.linalg.norm(p - v, axis=-1)
    np.testing.assert_allclose(prediction_error(p, v), want, rtol=1e-15 * 5)


def test_errors_follow_dim_names_whatever_the_order():
    S, W = draw(0, 7, 3, 5, 5), draw(1, 7, 5, 5)  # square, so that a wrong axis would not show
    a = xr.DataArray(S, dims=("step", "trial", "key", "value"))
    b = xr.DataArray(W, dims=("step", "key", "value"))
    want = tracking_error(S, W[:, None])
    for left in (a, a.transpose("value", "trial", "key", "step"), a.chunk(step=2)):
        for right in (b, b.transpose("value", "key", "step")):
            got = tracking_error(left, right).transpose("step", "trial")
            np.testing.assert_array_equal(got.values, want)
    lazy = tracking_error(a.chunk(step=2), b.chunk(step=3))
    assert isinstance(lazy.data, dask.array.Array)
    p = xr.DataArray(S[:, :, 0], dims=("step", "trial", "value"))
    v = xr.DataArray(W[:, 0], dims=("step", "value"))
    got = prediction_error(p.transpose("value", "step", "trial"), v).transpose("step", "trial")
    np.testing.assert_array_equal(got.values, prediction_error(S[:, :, 0], W[:, None, 0]))


def test_a_diverged_state_has_no_finite_error_and_does_not_warn():
    S = np.array([[[1e200]], [[np.inf]], [[np.nan]]])
    got = tracking_error(S, np.zeros((3, 1, 1)))
    assert np.isinf(got[0]) and np.isinf(got[1]) and np.isnan(got[2])
    assert np.isnan(prediction_error(np.array([np.inf]), np.array([np.inf])))


def test_recall_is_the_nearest_value():
    read, book = draw(0, 40, 3, 6), draw(1, 3, 9, 6)
    for b in range(3):
        nearest = cdist(read[:, b], book[b]).argmin(-1)
        wanted = np.where(np.arange(40) % 2, nearest, (nearest + 1) % 9)
        got = recalled(read[:, b], book[b], wanted)
        np.testing.assert_array_equal(got, np.arange(40) % 2)
    nearest = np.stack([cdist(read[:, b], book[b]).argmin(-1) for b in range(3)], axis=1)
    assert recalled(read, book[None], nearest).all()


def test_recall_by_dim_name():
    read, book = draw(0, 40, 3, 6), draw(1, 3, 9, 6)
    wanted = np.random.default_rng(2).integers(-1, 9, size=(40, 3))
    want = recalled(read, book[None], wanted)
    got = recalled(
        xr.DataArray(read, dims=("query", "trial", "value")).transpose("value", "trial", "query"),
        xr.DataArray(book, dims=("trial", "entry", "value")).transpose("entry", "trial", "value"),
        xr.DataArray(wanted, dims=("query", "trial")),
    )
    np.testing.assert_array_equal(got.transpose("query", "trial").values, want)


def test_there_is_nothing_to_recall_where_nothing_is_wanted():
    got = recalled(np.zeros((2, 3)), np.zeros((1, 3)), np.array([-1, 0]))
    np.testing.assert_array_equal(got, [np.nan, 1.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_read_that_is_not_finite_recalls_nothing(bad):
    got = recalled(np.array([[bad, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0]]), np.array([0, 0]))
    np.testing.assert_array_equal(got, [0.0, 1.0])


def test_a_book_may_have_blank_entries():
    """A missing value (NaN) is nobody's nearest; argmin alone would always choose it."""
    book = np.array([[np.nan, 0.0], [1.0, 0.0], [0.0, 1.0], [np.inf, 0.0]])
    got = recalled(np.array([[0.9, 0.1], [0.1, 0.9]]), book, np.array([1, 2]))
    np.testing.assert_array_equal(got, [1.0, 1.0])


def test_smooth_is_the_running_mean():
    x = draw(0, 50, 3)
    for window in (1, 7, 50):
        want = np.stack([x[i : i + window].mean(0) for i in range(50 - window + 1)])
        got = smooth(x, window)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, atol=1e-15 * 5)
        # xarray's rolling mean is a running sum: it carries the rounding of what it passed.
        named = smooth(xr.DataArray(x, dims=("step", "trial")), window)
        np.testing.assert_allclose(named.values, want, atol=50 * 4 * np.finfo(float).eps)


SCENARIO = {
    "trials": 2,
    "stream": {"generator": "drifting", "steps": 37, "key": 4, "value": 3},
    "solvers": {
        "delta": {"beta": 0.5},
        "softmax": {"solver": "softmax_attention"},
        "seen": {"solver": "delta", "view": "elu1"},
    },
}


def test_the_error_curve_tracks_the_map_where_one_is_known():
    run = engine.run(SCENARIO)
    want = tracking_error(run["solvers/delta/S"], run["stream/target_map"])
    got = error_curve(run, "delta")
    assert got.name == "tracking error" and got.dims == ("step", "trial")
    np.testing.assert_array_equal(got.values, want.values)
    # A memory without a fit has only its predictions to be judged by, and so has a fit to what a
    # view makes of the keys, which the target does not map.
    for label, kind in (("softmax", None), ("seen", None), ("delta", "prediction error")):
        got = error_curve(run, label, kind=kind)
        assert got.name == "prediction error"
        want = prediction_error(run[f"solvers/{label}/prediction"], run["stream/values"])
        np.testing.assert_array_equal(got.values, want.values)


def test_labels_that_differ_only_in_case_are_refused():
    """zarr's consolidated metadata sorts names by case fold: the store would not open again."""
    solvers = {"Delta": {"solver": "delta"}, "delta": {}}
    with pytest.raises(engine.InputError, match=r"solvers.delta: differs from solvers.Delta only"):
        engine.run({**SCENARIO, "solvers": solvers})


def test_a_mean_over_the_trials_that_survived_is_not_given():
    """beta = 6 diverges: the summary gives no error, and says how many trials diverged."""
    plan = experiment.prepare(
        {
            "trials": 3,
            "stream": {"generator": "drifting", "steps": 3000, "key": 8},
            "solvers": {"delta": {"beta": {"trials": [0.1, 0.5, 6.0]}}},
        },
        {},
    )
    sink = MemorySink()
    experiment.execute(plan, sink)
    (row,) = summarise(sink.tree(), plan.tracks)
    assert row.error is None and row.diverged_trials == 1 and row.diverged_at > 0


def test_the_error_curve_predicts_where_states_were_not_recorded():
    run = engine.run(SCENARIO, record="final")
    got = error_curve(run, "delta")
    assert got.name == "prediction error" and got.shape == (37, 2)
    want = prediction_error(run["solvers/delta/prediction"], run["stream/values"])
    np.testing.assert_array_equal(got.values, want.values)


@pytest.mark.parametrize("where", ["memory", "store"])
@pytest.mark.parametrize("features", [2, 3, 5])
def test_the_error_curve_compares_with_values_as_the_view_maps_them(where, features, tmp_path):
    view = {"view": "projection", "value_features": features, "seed": 3}
    table = {**SCENARIO, "solvers": {"delta": {"beta": 0.5, "view": view}}}
    run = engine.run(table, *([tmp_path / "r.zarr"] if where == "store" else []))
    mapped = engine.view(view["view"], value_features=features, seed=3).values(
        run["stream/values"].values
    )
    assert mapped.shape[-1] == features
    want = prediction_error(run["solvers/delta/prediction"].values, mapped)
    for block in (7, 4096):
        got = error_curve(run, "delta", block=block)
        assert got.name == "prediction error" and got.dims == ("step", "trial")
        np.testing.assert_array_equal(got.values, want)


@pytest.mark.parametrize("start", [0, 1, 36, 37])
@pytest.mark.parametrize("block", [1, 7, 37, 4096])
def test_the_error_curve_does_not_depend_on_how_it_is_read(start, block):
    run = engine.run(SCENARIO)
    whole = error_curve(run, "delta")
    part = error_curve(run, "delta", start=start, block=block)
    assert part.values.tobytes() == whole.values[start:].tobytes()


def test_a_run_without_steps_has_an_empty_curve():
    run = engine.run(SCENARIO, **{"stream.steps": 0})
    assert error_curve(run, "delta").shape == (0, 2)


@pytest.mark.parametrize("table", [1, 7, 2**17], ids=str)
@pytest.mark.parametrize("lead", [(), (5,), (5, 3), (2, 3, 4)], ids=str)
def test_ranks_are_those_of_a_stable_sort_however_the_table_is_cut(monkeypatch, lead, table):
    monkeypatch.setattr("engine.measure.decoding.SCORES", table)
    rng = np.random.default_rng(0)
    # Small whole numbers: distances are exact, and many are equal.
    read = rng.integers(-1, 2, (*lead, 2)).astype(float)
    book = rng.integers(-1, 2, (*lead[1:], 6, 2)).astype(float)
    wanted = rng.integers(-1, 6, lead)
    distance = ((read[..., None, :] - book) ** 2).sum(-1)
    order = np.argsort(distance, axis=-1, kind="stable")
    place = np.argmax(order == np.expand_dims(wanted, -1), axis=-1)
    nearest, rank = decoded(read, book, wanted)
    np.testing.assert_array_equal(nearest, order[..., 0])
    np.testing.assert_array_equal(rank, np.where(wanted < 0, -1, place))


def test_no_mean_is_printed_bare(call, tmp_path, monkeypatch):
    """Half of Student's interval over trials beside it, by scipy; nothing of a single trial."""
    from scipy import stats

    monkeypatch.chdir(tmp_path)
    text = (
        'trials = 5\n[stream]\ngenerator = "random"\nsteps = 40\nkey = 4\n[solvers.delta]\n'
        "beta = 0.5\n[probes.recall]\n"
    )
    Path("s.toml").write_text(text)
    _, out, _ = call("run", "s.toml", "-o", "s.zarr")
    run = engine.open("s.zarr")
    error = run["solvers/delta/prediction"] - run["stream/values"]
    for x, digits in (
        (np.sqrt((error**2).sum("value")).isel(step=slice(-10, None)).mean("step"), 4),
        (run["probes/recall/delta/recalled"].mean("query"), 3),
    ):
        low, high = stats.t.interval(0.95, 4, x.mean(), stats.sem(x))
        assert f"{float(x.mean()):.{digits}f} +- {(high - low) / 2:.{digits}f}" in out
    assert "+-" not in call("run", "s.toml", "--trials", "1", "-o", "t.zarr")[1]

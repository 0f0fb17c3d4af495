"""The exact fit against numpy's least squares, the split against a stream made to stand still,
the regret against the identity of recursive least squares."""

import numpy as np
import pytest
import xarray as xr

import engine
from engine.measure import lift, optimum


def drift(seed, steps=60, trials=3, d=4, n=2, walk=0.1, noise=0.1):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(steps, trials, d)) / np.sqrt(d)
    maps = np.cumsum(rng.normal(size=(steps, trials, d, n)) * walk, axis=0) + 1.0
    values = np.einsum("tbk,tbkv->tbv", keys, maps) + noise * rng.normal(size=(steps, trials, n))
    return keys, values, maps


def lstsq(keys, values, weights, ridge):
    """Least squares by SVD of the weighted rows with sqrt(ridge) I below them."""
    root = np.sqrt(weights)[:, None]
    A = np.concatenate([root * keys, np.sqrt(ridge) * np.eye(keys.shape[1])])
    b = np.concatenate([root * values, np.zeros((keys.shape[1], values.shape[1]))])
    return np.linalg.lstsq(A, b, rcond=None)[0]


@pytest.mark.parametrize("decaying", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("gamma", [1.0, 0.9, "varying"])
def test_the_exact_fit_is_numpy_s_at_every_prefix(gamma, ridge, decaying, monkeypatch):
    monkeypatch.setattr(optimum, "BLOCK_BYTES", 5000)
    keys, values, _ = drift(0, steps=25)
    rng = np.random.default_rng(1)
    g = rng.uniform(0.5, 1.0, size=(25, 3)) if gamma == "varying" else np.full((25, 3), gamma)
    mask = rng.random((25, 3)) < 0.8
    keys[~mask] = np.nan  # what is not written does not count
    given = g if gamma == "varying" else gamma
    got = optimum.least_squares(keys, values, given, ridge, mask, decaying)
    for b in range(3):
        for t in range(25):
            rows = np.flatnonzero(mask[: t + 1, b])
            later = [np.prod(g[rows[rows > i], b]) for i in rows]
            r = ridge * (np.prod(g[rows, b]) if decaying else 1.0)
            want = lstsq(keys[rows, b], values[rows, b], np.array(later), r)
            np.testing.assert_allclose(got[t, b], want, atol=2e-7 if ridge < 1 else 1e-12)


def test_the_exact_fit_by_dim_name():
    keys, values, _ = drift(2, steps=20)
    want = optimum.least_squares(keys, values, 0.9, 0.1)
    k = xr.DataArray(keys, dims=("step", "trial", "key"), coords={"step": np.arange(20)})
    v = xr.DataArray(values, dims=("step", "trial", "value"))
    for gamma in (0.9, xr.DataArray(np.full((20, 3), 0.9), dims=("step", "trial"))):
        got = optimum.least_squares(k.transpose("key", "trial", "step"), v, gamma, 0.1)
        assert got.dims == ("step", "trial", "key", "value")
        np.testing.assert_allclose(got.values, want, atol=1e-13)
    mask = np.arange(20) % 3 > 0
    got = optimum.least_squares(k, v, 0.9, 0.1, xr.DataArray(mask, dims="step"))
    np.testing.assert_allclose(got.values, optimum.least_squares(keys, values, 0.9, 0.1, mask))


@pytest.mark.parametrize(("solver", "decaying"), [("rls", True), ("least_squares", False)])
def test_exact_solvers_have_no_gap(solver, decaying):
    """Exponentially weighted RLS is least squares whose ridge decays."""
    keys, values, maps = drift(3, steps=200)
    rule = engine.solver(solver, ridge=0.01)
    S = engine.simulate(rule, keys, values, gamma=0.97).S.values
    fit = optimum.least_squares(keys, values, 0.97, 0.01, decaying=decaying)
    np.testing.assert_allclose(S, fit, atol=1e-10)
    parts = optimum.split_at(S, keys, values, maps, 0.97, 0.01, decaying=decaying)
    assert np.abs(parts.gap).max() < 1e-9 < 1e-3 < np.abs(parts.staleness).max()


@pytest.mark.parametrize("solver", ["delta", "linear_attention", "rls"])
def test_the_parts_sum_to_the_error(solver):
    keys, values, maps = drift(4)
    S = engine.simulate(solver, keys, values).S.values
    parts = optimum.split_at(S, keys, values, maps, 0.95, 0.1)
    error = np.linalg.norm(S - maps, axis=(-2, -1)) ** 2
    np.testing.assert_allclose(parts.error, error, rtol=1e-12)
    size = sum(map(np.abs, parts[:3])) + error
    assert (abs(sum(parts[:3]) - error) < 1e-12 * size).all()


def test_staleness_is_what_a_target_that_stood_still_would_save():
    """The stream remade with the last map throughout: its exact fit is the middle of the split."""
    keys, values, maps = drift(5)
    S = engine.simulate("delta", keys, values, beta=0.5).S.values
    parts = optimum.split_at(S, keys, values, maps, 0.9, 0.1)
    for t in (0, 7, 59):
        k, last = keys[: t + 1], maps[t]
        remade = values[: t + 1] + np.einsum("tbk,tbkv->tbv", k, last - maps[: t + 1])
        fit, still = (optimum.least_squares(k, v, 0.9, 0.1)[-1] for v in (values[: t + 1], remade))
        want = optimum.split(S[t], fit, still, last)
        for got, part in zip(parts, want, strict=True):
            np.testing.assert_allclose(got[t], part, atol=1e-10)


def test_each_part_vanishes_with_its_cause():
    keys, values, maps = drift(6, walk=0.0)
    S = engine.simulate("delta", keys, values).S.values
    still = optimum.split_at(S, keys, values, maps, 0.9, 0.1)
    assert np.abs(still.staleness).max() < 1e-10 < np.abs(still.interference).max()
    keys, values, maps = drift(7, noise=0.0)
    S = engine.simulate("delta", keys, values).S.values
    clean = optimum.split_at(S, keys, values, maps, 0.9, 0.0)
    # Noiseless, without a ridge, and as soon as there are d pairs: the fit of a still map is it.
    assert np.abs(clean.interference[10:]).max() < 1e-8 < np.abs(clean.staleness[10:]).max()


def test_regret_obeys_the_identity_of_recursive_least_squares():
    """sum |v - p|^2/(1 + k P k) = min_W sum |v - W^T k|^2 + r |W|^2, P before the write."""
    keys, values, _ = drift(8, steps=80)
    ds = engine.simulate(engine.solver("rls", ridge=0.5), keys, values)
    loss = ((ds.prediction.values - values) ** 2).sum(-1)
    P = np.concatenate([np.broadcast_to(np.eye(4) / 0.5, (1, 3, 4, 4)), ds.P.values[:-1]])
    best = np.cumsum(loss / (1 + np.einsum("tbi,tbij,tbj->tb", keys, P, keys)), axis=0)
    got = optimum.regret(ds.prediction.values, keys, values, 0.5)
    np.testing.assert_allclose(got, np.cumsum(loss, axis=0) - best, atol=1e-11)
    mask = np.arange(80) < 40  # afterwards nothing is written: the regret stands
    half = optimum.regret(
        np.where(mask[:, None, None], ds.prediction, np.nan), keys, values, 0.5, mask
    )
    np.testing.assert_allclose(half[:40], got[:40], atol=1e-13)
    assert (half[40:] == half[39]).all()


def test_regret_is_loss_less_that_of_the_best_map():
    keys, values, _ = drift(9, steps=12, trials=1)
    got = optimum.regret(np.zeros_like(values), keys, values, 0.1)[:, 0]
    for t in range(12):
        k, v = keys[: t + 1, 0], values[: t + 1, 0]
        W = lstsq(k, v, np.ones(t + 1), 0.1)
        best = ((k @ W - v) ** 2).sum() + 0.1 * (W**2).sum()
        np.testing.assert_allclose(got[t], (v**2).sum() - best, rtol=1e-10)


TABLE = {
    "trials": 3, "seed": 1,
    "stream": {"generator": "drifting", "steps": 90, "key": 4, "value": 2},
    "solvers": {
        "rls": {"gamma": 0.95}, "delta": {"beta": 0.5}, "softmax": {"solver": "softmax_attention"},
        "seen": {"solver": "delta", "view": "unit"},
    },
}  # fmt: skip


@pytest.mark.parametrize("where", ["memory", "store"])
def test_a_run_against_its_optimum(where, tmp_path, monkeypatch):
    run = engine.run(TABLE, *([tmp_path / "r.zarr"] if where == "store" else []))
    keys, values, maps = (run[f"stream/{n}"].values for n in ("keys", "values", "target_map"))
    exact = optimum.against_optimum(run, "rls", decaying=True)  # gamma and ridge are its own
    assert np.abs(exact.gap).max() < 1e-8 and exact.sizes == {"step": 90, "trial": 3}
    S = run["solvers/delta/S"].values
    parts = optimum.split_at(S, keys, values, maps, 0.9, 0.1)
    fit = optimum.least_squares(keys, values, 0.9, 0.1)
    for bytes_ in (500, 2**25):
        monkeypatch.setattr(optimum, "BLOCK_BYTES", bytes_)
        got = optimum.against_optimum(run, "delta", 0.9, 0.1)
        for name, want in parts._asdict().items():
            np.testing.assert_allclose(got[name].values, want, atol=1e-12)
        want = np.linalg.norm(S - fit, axis=(-2, -1))
        np.testing.assert_allclose(got.distance.values, want, atol=1e-12)
        prediction = run["solvers/delta/prediction"].values
        want = optimum.regret(prediction, keys, values, 0.1)
        np.testing.assert_allclose(got.regret.values, want, atol=1e-11)
    # No fit: regret only. Behind a view: the fit of what the solver saw, but no target.
    assert set(optimum.against_optimum(run, "softmax")) == {"regret"}
    seen = optimum.against_optimum(run, "seen", ridge=0.1)
    unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    fit = optimum.least_squares(unit, values, 1.0, 0.1)
    want = np.linalg.norm(run["solvers/seen/S"].values - fit, axis=(-2, -1))
    assert set(seen) == {"regret", "distance"}
    np.testing.assert_allclose(seen.distance.values, want, atol=1e-10)


def test_a_diverged_solver_has_an_infinite_distance():
    run = engine.run({**TABLE, "solvers": {"delta": {"beta": 300.0}}}, **{"stream.steps": 400})
    got = optimum.against_optimum(run, "delta")
    assert not np.isfinite(got.distance[-1]).any() and np.isfinite(got.distance[0]).all()


def test_nothing_of_the_lift_s_blocks_is_assumed(monkeypatch):
    """The recursion is along the steps, which are never cut apart."""
    keys, values, _ = drift(10, steps=30)
    monkeypatch.setattr(lift, "BLOCK_BYTES", 100)
    k = xr.DataArray(keys, dims=("step", "trial", "key"))
    v = xr.DataArray(values, dims=("step", "trial", "value"))
    want = optimum.least_squares(keys, values)
    np.testing.assert_allclose(optimum.least_squares(k, v).values, want, atol=1e-12)

"""The shipped drift scenario against the published study (d2l section 12.6; data/README.md)."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import engine
from engine import publishing

DATA = Path(__file__).parents[1] / "data" / "drift.zarr"
EPS = np.finfo(np.float64).eps
SOLVERS = {
    "uniform_ls": ("w_uniform", 0.9925640518),
    "decayed_ls": ("w_decayed", 0.2946690921),
    "implicit": ("s_implicit", 0.2968922229),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run the scenario into a store and read it back with xarray alone."""
    path = tmp_path_factory.mktemp("drift") / "drift.zarr"
    engine.run("drift", out=path)
    with xr.open_datatree(path, engine="zarr") as tree:
        yield tree


@pytest.fixture(scope="module")
def reference():
    with xr.open_datatree(DATA, engine="zarr") as tree:
        yield tree["reference"].to_dataset().load()


def conditions(run, gamma):
    """Return the condition of (sum_i gamma^(t-i) k_i k_i^T + 1e-6 I) at every step."""
    A, out = np.zeros((8, 8)), []
    for k in run["stream/keys"].isel(trial=0).values:
        A = gamma * A + np.outer(k, k)
        out.append(np.linalg.cond(A + 1e-6 * np.eye(8)))
    return np.array(out)


@pytest.mark.parametrize("label", SOLVERS)
def test_mean_tracking_error_over_the_last_500_steps(run, label):
    solver, target = run[f"solvers/{label}"], run["stream/target_map"]
    assert solver["S"].dims == ("step", "trial", "key", "value")
    error = np.sqrt(((solver["S"] - target) ** 2).sum(["key", "value"]))
    tail = error.isel(step=slice(-500, None)).mean()
    assert abs(float(tail) - SOLVERS[label][1]) < 1e-9


@pytest.mark.parametrize(("row", "label"), list(enumerate(SOLVERS)))
def test_error_curves_are_those_of_the_study(run, reference, row, label):
    error = np.sqrt(
        ((run[f"solvers/{label}/S"] - run["stream/target_map"]) ** 2).sum(["key", "value"])
    )
    difference = abs(error.isel(trial=0).values - reference["errors"].isel(solver=row).values)
    assert difference.shape == (2000,)
    # Two backward stable solves differ by about eps times the condition: up to 2.5e6 at first.
    assert difference[:50].max() < 1e-8
    assert difference[50:].max() < 1e-12


@pytest.mark.parametrize(("label", "gamma"), [("uniform_ls", 1.0), ("decayed_ls", 0.95)])
def test_least_squares_fits_are_those_of_the_study(run, reference, label, gamma):
    """A backward stable d x d solve errs by at most about d eps cond |w|, and there are two."""
    fit = run[f"solvers/{label}/S"].isel(trial=0, value=0).values
    want = reference[SOLVERS[label][0]].values
    condition = conditions(run, gamma)
    assert condition[:50].max() > 1e6 > 1e3 > condition[50:].max()
    error = np.linalg.norm(fit - want, axis=-1)
    assert (error <= 2 * 8 * EPS * condition * np.linalg.norm(want, axis=-1)).all()


def test_implicit_fits_are_those_of_the_study(run, reference):
    """Each step is a contraction with some 2 d roundings; it forgets as it contracts.

    In the mean a step keeps 1 - E[k.k / (1 + k.k)] / d = .941 of an error, so that the roundings of
    about 1 / .059 = 17 steps are in it at any time.
    """
    fit = run["solvers/implicit/S"].isel(trial=0, value=0).values
    error = abs(fit - reference["s_implicit"].values)
    assert error.max() <= 17 * 2 * 8 * EPS * abs(reference["s_implicit"].values).max()


def test_the_stream_is_the_stored_one(run):
    with xr.open_datatree(DATA, engine="zarr") as data:
        for name in ("keys", "values", "target_map", "noise"):
            stored, recorded = data[f"stream/{name}"], run[f"stream/{name}"]
            assert recorded.dims == stored.dims and recorded.dtype == stored.dtype
            assert recorded.values.tobytes() == stored.values.tobytes()
    noise = run["stream/values"] - (run["stream/keys"] * run["stream/target_map"]).sum("key")
    np.testing.assert_allclose(noise[..., 0], run["stream/noise"], atol=8 * 4 * EPS)


def test_what_each_solver_knows_follows_from_its_conventions(run):
    """Prediction is the read before the write, output the read after it."""
    keys = run["stream/keys"]
    for label in SOLVERS:
        solver = run[f"solvers/{label}"]
        before = solver["S"].shift(step=1, fill_value=0.0)
        for read, S in (("prediction", before), ("output", solver["S"])):
            bound = 2 * 8 * EPS * (abs(keys) * abs(S)).sum("key")
            assert (abs(solver[read] - (keys * S).sum("key")) <= bound).all()
        assert (solver["diverged_at"] == -1).all()


def test_the_solvers_are_what_the_scenario_says(run):
    for label, gamma in (("uniform_ls", 1.0), ("decayed_ls", 0.95)):
        solver = run[f"solvers/{label}"]
        assert solver.attrs["solver"] == "least_squares" and float(solver["gamma"]) == gamma
        assert solver.attrs["hyperparameters"] == {"ridge": 1e-6}
        A, B = solver["A"].isel(trial=0), solver["B"].isel(trial=0)
        assert A.dims == ("step", "key", "key_2") and B.dims == ("step", "key", "value")
        k = run["stream/keys"].isel(trial=0).values
        weights = gamma ** np.arange(1999, -1, -1.0)
        # 2000 additions of terms of one sign on the diagonal: at most 2000 eps relative to it.
        want = (k * weights[:, None]).T @ k
        np.testing.assert_allclose(A.values[-1], want, atol=2000 * EPS * want.max())
    assert run["solvers/implicit"].attrs["solver"] == "longhorn"
    assert float(run["solvers/implicit/beta"]) == 1.0


def test_a_uniform_fit_goes_stale_and_a_decayed_one_does_not(run):
    """Published: 50-step means of uniform LS at 0, 100, 200, 500, 1000, 1500, 1950."""
    error = np.sqrt(((run["solvers/uniform_ls/S"] - run["stream/target_map"]) ** 2).sum("key"))
    means = [float(error.isel(step=slice(a, a + 50)).mean()) for a in (0, 100, 200, 500, 1000)]
    means += [float(error.isel(step=slice(a, a + 50)).mean()) for a in (1500, 1950)]
    np.testing.assert_allclose(means, [0.41, 0.45, 0.44, 0.82, 0.95, 0.80, 1.15], atol=0.005)


@pytest.mark.parametrize("steps", [1, 40])
def test_a_report_of_another_stream_compares_it_with_nothing_published(steps):
    stream = {"generator": "drifting", "steps": steps, "value": 2}
    said = publishing.said(engine.run("drift", trials=2, stream=stream))
    assert not said.claims
    (table,) = said.tables
    assert [row[0] for row in table.rows] == list(SOLVERS)
    parts = np.array([row[2:6] for row in table.rows], dtype=float)  # |S - W|^2 and its three parts
    np.testing.assert_allclose(parts[:, 0], parts[:, 1:].sum(axis=1), rtol=1e-9)
    assert {figure.name for figure in said.figures} == {"errors", "optimum"}


def test_a_report_without_recorded_states_says_nothing():
    said = publishing.said(engine.run("drift", record="final"))
    assert not (said.claims or said.tables or said.figures)

"""The shipped attention scenario: five memories over real keys, against loops over the arrays."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import xarray as xr

from engine.cli import app

DATA = Path(__file__).parents[1] / "data" / "attention.zarr"
EPS = np.finfo(np.float64).eps


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Run the scenario from the command line; return what it printed and the store."""
    from typer.testing import CliRunner

    path = tmp_path_factory.mktemp("attention") / "attention.zarr"
    result = CliRunner().invoke(app, ["run", "attention", "-o", str(path), "--json"])
    assert result.exit_code == 0, result.output
    with xr.open_datatree(path, engine="zarr") as tree:
        yield json.loads(result.stdout.splitlines()[-1]), tree


@pytest.fixture(scope="module")
def run(stored):
    return stored[1]


@pytest.fixture(scope="module")
def arrays():
    """Queries, keys and values in float64, (step, trial, channel)."""
    with xr.open_datatree(DATA, engine="zarr") as tree:
        names = ("queries", "keys", "values")
        return [tree[f"stream/{name}"].values.astype(np.float64) for name in names]


def test_512_real_tokens_in_three_heads_through_every_memory(run):
    assert run.sizes["step"] == 512 and run.sizes["trial"] == 3
    names = {"softmax", "linear", "delta", "delta_raw", "longhorn", "rls"}
    assert set(run["solvers"].children) == names
    for name in names:
        solver = run[f"solvers/{name}"]
        assert solver["output"].shape == solver["prediction"].shape == (512, 3, 32)
        assert not solver["prediction"].isel(step=0).values.any()
        if name != "delta_raw":
            assert np.isfinite(solver["output"].values).all()
            assert (solver["diverged_at"] == -1).all()


def test_key_norms_are_far_from_one(arrays):
    """data/README.md: 3 to 15, so that beta |k|^2 is far above 2, up to which delta contracts."""
    norms = np.linalg.norm(arrays[1], axis=-1)
    assert 3 < norms.min() < 4 and 14 < norms.max() < 15


def first_divergence(keys, values, queries):
    """Return the first step at which the delta rule at beta 1, or a read of it, is not finite."""
    S = np.zeros((32, 32))
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(len(keys)):
            prediction = S.T @ keys[t]
            S = S + np.outer(keys[t], values[t] - prediction)
            output = S.T @ queries[t]
            if not all(np.isfinite(x).all() for x in (prediction, S, output)):
                return t
    return -1


def test_delta_on_raw_keys_diverges_at_a_named_step_and_the_others_go_on(stored, arrays):
    facts, run = stored
    queries, keys, values = arrays
    want = [first_divergence(keys[:, b], values[:, b], queries[:, b]) for b in range(3)]
    got = run["solvers/delta_raw/diverged_at"].values.tolist()
    assert got == want and min(want) >= 0
    S = run["solvers/delta_raw/S"].values
    for b, step in enumerate(got):
        assert np.isfinite(S[:step, b]).all()
        assert abs(S[step - 1, b]).max() > 1e290
    rows = {row["solver"]: row for row in facts["solvers"]}
    assert rows["delta_raw"]["diverged_at"] == min(want)
    assert all(row["diverged_at"] is None for n, row in rows.items() if n != "delta_raw")
    assert all(row["error"] is not None for n, row in rows.items() if n != "delta_raw")


def test_softmax_is_full_attention_over_the_arrays(run, arrays):
    """All at once, with a causal mask; scores carry 32 roundings each, magnified by exp."""
    queries, keys, values = arrays
    scale = 0.17677669529663687  # 32^-1/2
    assert abs(scale - 32**-0.5) <= EPS
    got = run["solvers/softmax/output"].values
    for b in range(3):
        scores = scale * queries[:, b] @ keys[:, b].T
        size = scale * abs(queries[:, b]) @ abs(keys[:, b]).T
        scores[np.triu_indices(512, 1)] = -np.inf
        want = scipy.special.softmax(scores, axis=-1) @ values[:, b]
        bound = EPS * (512 + 2 * 32 * size.max()) * abs(values[:, b]).max()
        assert abs(got[:, b] - want).max() <= bound < 1e-10


def test_linear_attention_is_full_attention_with_its_kernel(run, arrays):
    """sum_j phi(q).phi(k_j) v_j / sum_j phi(q).phi(k_j) with phi = elu + 1, all terms >= 0."""
    queries, keys, values = arrays

    def phi(x):
        return np.where(x < 0, np.exp(np.minimum(x, 0)), x + 1)

    for b in range(3):
        weights = np.tril(phi(queries[:, b]) @ phi(keys[:, b]).T)
        want = weights @ values[:, b] / weights.sum(-1, keepdims=True)
        error = abs(run["solvers/linear/output"].values[:, b] - want)
        assert error.max() <= 2 * (512 + 32) * EPS * abs(values[:, b]).max()


@pytest.mark.parametrize("label", ["delta", "longhorn"])
def test_error_correcting_rules_are_plain_loops_over_unit_keys(run, arrays, label):
    """S <- S + D k (v - S^T k)^T with D = 1 (delta) or 1 / (1 + k.k) (longhorn): contractions.

    So at most all 512 steps' roundings, 2 d each, add up.
    """
    queries, keys, values = arrays
    got, state = run[f"solvers/{label}/output"].values, run[f"solvers/{label}/S"].values
    for b in range(3):
        S = np.zeros((32, 32))
        for t in range(512):
            k = keys[t, b] / np.linalg.norm(keys[t, b])
            gain = 1.0 if label == "delta" else 1.0 / (1.0 + k @ k)
            S = S + gain * np.outer(k, values[t, b] - S.T @ k)
        bound = 512 * 2 * 32 * EPS * (np.linalg.norm(S) + abs(values[:, b]).max())
        assert np.linalg.norm(state[-1, b] - S) <= bound
        q = queries[-1, b] / np.linalg.norm(queries[-1, b])
        assert np.linalg.norm(got[-1, b] - S.T @ q) <= bound


def test_rls_is_weighted_ridge_regression_on_unit_keys(run, arrays):
    """Directly: (sum_i gamma^(t-i) k_i k_i^T + ridge gamma^(t+1) I)^-1 sum_i gamma^(t-i) k_i v_i^T.

    Rounding: 2 d eps cond at each of t + 1 updates.
    """
    _, keys, values = arrays
    unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    S = run["solvers/rls/S"].values
    P = run["solvers/rls/P"].values
    assert P.tobytes() == np.ascontiguousarray(P.swapaxes(-2, -1)).tobytes()
    for b in range(3):
        for t in (0, 31, 100, 511):
            w = 0.99 ** np.arange(t, -1, -1.0)
            k, v = unit[: t + 1, b], values[: t + 1, b]
            A = (k * w[:, None]).T @ k + 0.99 ** (t + 1) * np.eye(32)
            want = np.linalg.solve(A, (k * w[:, None]).T @ v)
            bound = 2 * 32 * (t + 1) * EPS * np.linalg.cond(A) * np.linalg.norm(want)
            assert np.linalg.norm(S[t, b] - want) <= bound


def test_unit_keys_are_stored_exactly_by_delta(run, arrays):
    """At beta 1 the read at the key just written is its value."""
    _, keys, values = arrays
    unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    S = run["solvers/delta/S"].values
    got = np.einsum("tbk,tbkv->tbv", unit, S)
    assert abs(got - values).max() <= 4 * 32 * EPS * (abs(S).max() + abs(values).max())

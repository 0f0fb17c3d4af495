"""What is said to have diverged, and that the setting it names does hold."""

import numpy as np
import pytest
import xarray as xr

import engine
from engine.measure import laws
from engine.measure.divergence import explain


def ran(solvers, **stream):
    table = {"generator": "random", "steps": 4000, "key": 3, "value": 2, **stream}
    return {"seed": 3, "trials": 2, "stream": table, "solvers": solvers}


def test_nothing_is_said_of_a_run_that_did_not_diverge():
    assert explain(engine.run(ran({"delta": {}}, steps=20)), "delta") == []


@pytest.mark.parametrize(
    ("solver", "name", "value"),
    [("delta", "beta", 5.0), ("lms", "mu", 5.0), ("titans", "theta", 2.5)],
)
def test_the_setting_that_is_named_holds_and_more_does_not(solver, name, value):
    """Gaussian keys: the largest |k|^2 decides. As large a step again diverges."""
    stream = {"generator": "drifting", "keys": "gaussian", "value": 1}
    run = engine.run(ran({solver: {name: value}}, **stream))
    for told in explain(run, solver):
        assert told.step == run[f"solvers/{solver}/diverged_at"].values[told.trial]
        keys = run["stream/keys"].values[: told.step + 1, told.trial]
        square = (keys**2).sum(-1)
        factor = 2 if solver == "titans" else 1
        assert told.quantity.startswith("strength |k|^2")
        over = np.flatnonzero(factor * value * square > 2)
        assert told.crossed == over[0] and told.worst == square.argmax()
        np.testing.assert_allclose(told.value, factor * value * square.max())
        np.testing.assert_allclose(told.holds[name], 2 / factor / square.max(), rtol=2e-6)
        for words in (f"trial {told.trial}", f"step {told.step}", f"{name} <= "):
            assert words in str(told)
    held = min(told.holds[name] for told in explain(run, solver))
    assert (
        engine.run(ran({solver: {name: held}}, **stream))[f"solvers/{solver}/diverged_at"] < 0
    ).all()


def test_momentum_s_law_names_the_gap_of_the_key():
    """Eight orthonormal keys in turn, (theta, eta, alpha) = (.5, .9, .1): published as unstable, by
    2.901578 per revisit at gap 8; the law's step size for that gap holds."""
    solver = {"theta": 0.5, "eta": 0.9, "alpha": 0.1}
    table = {"trials": 1, "stream": {
        "generator": "rebinding", "entries": 8, "rebindings": 3000, "key": 8, "value": 8,
        "basis": "orthonormal"}, "solvers": {"titans": solver}}  # fmt: skip
    run = engine.run(table)
    (told,) = explain(run, "titans")
    ids, seen, gaps = run["stream/key_id"].values[: told.step + 1, 0].tolist(), {}, set()
    for t, key in enumerate(ids):
        gaps |= {t - seen[key]} if key in seen else set()
        seen[key] = t
    least = min(laws.titans_bound(0.9, 0.1, g) for g in gaps)
    np.testing.assert_allclose(told.bound, least)
    np.testing.assert_allclose(told.holds["theta"], least / 2, rtol=1e-9)
    assert "the gap since its last visit" in str(told) and told.value == pytest.approx(1.0)
    held = engine.run(
        {**table, "solvers": {"titans": {**solver, "theta": told.holds["theta"] * 0.99}}}
    )
    assert (held["solvers/titans/diverged_at"] < 0).all()


def test_a_stream_that_is_not_finite_is_to_blame():
    keys, values = np.ones((10, 2, 3)) / 2, np.ones((10, 2, 1))
    keys[4, 1, 2] = np.nan
    ds = engine.simulate("delta", keys, values)
    stream = {
        "keys": (("step", "trial", "key"), keys),
        "values": (("step", "trial", "value"), values),
    }
    run = xr.DataTree.from_dict({
        "/stream": xr.Dataset(stream), "/solvers/it": ds.assign_attrs(solver="delta"),
    })  # fmt: skip
    (told,) = explain(run, "it")
    assert (told.trial, told.step, told.crossed) == (1, 4, 4) and "an entry of a key" in str(told)


def test_a_covariance_that_is_none_any_more_is_told():
    """P made indefinite by hand, two steps before the state is said to be lost."""
    keys, values = np.random.default_rng(1).normal(size=(2, 10, 1, 3))
    ds = engine.simulate("rls", keys, values)
    ds.P[6:, 0, 0, 0] -= 2000.0
    ds["diverged_at"] = ("trial", [8])
    stream = {
        "keys": (("step", "trial", "key"), keys),
        "values": (("step", "trial", "value"), values),
    }
    run = xr.DataTree.from_dict({
        "/stream": xr.Dataset(stream), "/solvers/it": ds.assign_attrs(solver="rls"),
    })  # fmt: skip
    (told,) = explain(run, "it")
    assert told.crossed == 6 and told.quantity == "minus the smallest eigenvalue of P"
    assert told.value > 1000 and told.bound == 0.0


def test_a_schedule_is_not_told_to_be_smaller():
    """Where the coefficient moves, one number would not have held."""
    beta = {"schedule": "linear", "start": 1.0, "stop": 9.0, "over": 100}
    run = engine.run(ran({"delta": {"beta": beta}}))
    told = explain(run, "delta")[0]
    assert 0 < told.crossed < 100 and not told.holds
    assert "its card says it is stable for" in str(told)


def test_a_view_is_what_the_solver_saw():
    """Unit keys: beta <= 2 whatever the stream's own norms."""
    stream = {"generator": "drifting", "keys": "gaussian", "value": 1}
    run = engine.run(ran({"delta": {"beta": 3.0, "view": "unit"}}, **stream))
    for told in explain(run, "delta"):
        assert told.crossed == 0 and told.value == pytest.approx(3.0)
        assert told.holds["beta"] == pytest.approx(2.0, rel=1e-6)


def test_where_no_law_is_known_the_state_s_own_growth_is_told():
    """Oja's rule diverges by cubes: no bound of the linear family speaks of it."""
    run = engine.run(ran({"oja": {"beta": 3.0}}))
    told = explain(run, "oja")
    assert told, "it is meant to diverge"
    assert told[0].quantity == "the largest entry of S" and told[0].crossed <= told[0].step
    assert told[0].bound == np.sqrt(np.finfo(run["solvers/oja/S"].dtype).max)

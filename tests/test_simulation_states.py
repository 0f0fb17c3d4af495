"""`engine.simulate`: runs that start from a state, and states of other people's solvers."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pytest
import xarray as xr

import engine
from engine.api import Array
from engine.linear import LinearRule, Token

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

# Starting from a state


@each_solver
@pytest.mark.parametrize("trials", [None, B])
@pytest.mark.parametrize("split", [1, 7, T - 1])
@pytest.mark.parametrize("record", ["every", "final"])
def test_a_run_split_anywhere_is_one_run(case, trials, split, record):
    keys, values, queries = draw(trials=trials)
    given = coefficients(case, trials=trials)
    mask = np.random.default_rng(2).random(keys.shape[:-1]) < 0.8
    whole = engine.simulate(made(case), keys, values, queries, mask=mask, **given)
    first, rest = (
        {"mask": mask[part], **{n: x[part] for n, x in given.items()}}
        for part in (slice(None, split), slice(split, None))
    )
    a = engine.simulate(
        made(case), keys[:split], values[:split], queries[:split], record=record, **first
    )
    names = [n for n in STATES if n in a]
    last = {n: a[n].isel(step=-1) if "step" in a[n].dims else a[n] for n in names}
    by_name = {n: x.transpose(*reversed(x.dims)) for n, x in last.items()}
    plain = {n: x.values.tolist() for n, x in last.items()}
    shuffled = a.transpose(*sorted(a.dims, reverse=True))
    for state in (a, shuffled, last, by_name, {n: x.values for n, x in last.items()}, plain):
        b = engine.simulate(
            made(case), keys[split:], values[split:], queries[split:], state=state, **rest
        )
        for name in ("prediction", "output", *STATES):
            if name in ("keys", "values"):
                if name in whole:
                    assert_same(b[name], whole[name])
            elif name in whole:
                assert_same(b[name], whole[name][split:])


@each_solver
def test_a_run_may_go_on_from_any_step_of_another(case, tmp_path):
    """In memory or stored: as a Dataset, as a node of a tree, cut by xarray."""
    solvers = {"it": {"solver": case[0], **case[1]}}
    stream = {"generator": "random", "steps": T, "key": D, "value": M}
    scenario = {"trials": B, "stream": stream, "solvers": solvers}
    for run in (engine.run(scenario), engine.run(scenario, tmp_path / "run.zarr")):
        keys, values = run["stream/keys"], run["stream/values"]
        whole, ds = run["solvers/it"], run["solvers/it"].to_dataset()
        for cut in (ds.isel(step=4), ds.isel(step=slice(5)), whole.isel(step=slice(5))):
            rest = slice(5, None)
            got = engine.simulate(made(case), keys[rest], values[rest], state=cut)
            assert_same(got.output, whole["output"][rest])
        after = engine.simulate(made(case), keys, values, state=whole)
        assert_equal(after, engine.simulate(made(case), keys, values, state=ds))


def test_a_given_state_is_read_not_written():
    """Neither a linear state nor rows that have room for more."""
    keys, values, _ = draw(trials=None)
    S = np.random.default_rng(3).normal(size=(D, M))
    before = S.copy()
    engine.simulate("delta", keys, values, state={"S": S})
    assert_same(S, before)
    rows, stored = np.ones((9, D)), np.ones((9, M))
    state = {"keys": rows, "values": stored, "rows": np.array(2)}
    ds = engine.simulate("softmax_attention", keys, values, state=state)
    assert (rows == 1).all() and (stored == 1).all()
    assert ds.rows.values.tolist() == list(range(3, T + 3))
    assert_same(ds["keys"], np.concatenate([rows[:2], keys]))


def test_a_state_that_does_not_fit_is_refused_by_name():
    keys, values, _ = draw()
    S = np.zeros((B, D, M))
    for state, says in (
        ({}, "no 'S'; it must give S"),
        ({"T": S}, "unknown 'T'; it must give S"),
        ({"S": S, "z": S}, "unknown 'z'; it must give S"),
        ({"S": S[:2]}, rf"'S' has shape \(2, {D}, {M}\), expected \({B}, {D}, {M}\)"),
        ({"S": S[..., :1]}, rf"'S' has shape \({B}, {D}, 1\), expected \({B}, {D}, {M}\)"),
        ({"S": S[0]}, rf"'S' has shape \({D}, {M}\), expected \(trial, key, value\)"),
        ({"S": S.astype(complex)}, "S has dtype complex128"),
        ({"S": xr.DataArray(S, dims=("trial", "key", "step"))}, "S has dims"),
        (S, "must map state variables to arrays, not ndarray"),
        (3, "must map state variables to arrays, not int"),
    ):
        with pytest.raises(engine.InputError, match=f"^state.*{says}"):
            engine.simulate("delta", keys, values, state=state)
    k, v = np.zeros((5, B, D)), np.zeros((5, B, M))
    for state, says in (
        ({"keys": k}, "no 'values'"),
        ({"keys": k[..., :2], "values": v}, rf"'keys' has shape \(5, {B}, 2\)"),
        ({"keys": k[:, :1], "values": v}, rf"'keys' has shape \(5, 1, {D}\)"),
        ({"keys": k, "values": v[:3]}, "equal numbers of rows"),
        ({"keys": k, "values": v, "rows": np.array([0, 5, 6])}, r"'rows' = \[0, 5, 6\] .* 0 to"),
        ({"keys": k, "values": v, "rows": np.array([-1, 0, 0])}, r"'rows' = \[-1"),
        ({"keys": k, "values": v, "rows": np.array([1, 1])}, r"'rows' = \[1, 1\] must be 3"),
    ):
        with pytest.raises(engine.InputError, match=f"^state: .*{says}"):
            engine.simulate("softmax_attention", keys, values, state=state)


@each_solver
def test_a_result_without_steps_has_no_last_state(case):
    empty = engine.simulate(made(case), *draw(0))
    with pytest.raises(engine.InputError, match="state: .* no steps"):
        engine.simulate(made(case), *draw(), state=empty)


# Other people's solvers


class Counted(NamedTuple):
    S: Annotated[Array, "key value"]
    count: Annotated[Array, ""]
    seen: Annotated[Array, "key"]


@dataclass(frozen=True)
class Counter:
    """S <- S + k v^T in place, with an integer and a bool beside it."""

    def init(self, space):
        count = space.xp.zeros(space.lead, dtype=space.xp.int64)
        seen = space.xp.zeros(space.shape("key"), dtype=space.xp.bool)
        return Counted(space.zeros("key value"), count, seen)

    def write(self, s, k, v):
        s.S[...] += k[..., :, None] * v[..., None, :]
        s.count[...] += 1
        s.seen[...] |= k != 0
        return s

    def read(self, s, q):
        return (q[..., None, :] @ s.S)[..., 0, :]


def test_a_state_updated_in_place_is_recorded_step_by_step():
    """mizer issue 285: every step, not the last one everywhere."""
    ds = engine.simulate(Counter(), np.eye(3), np.ones((3, 1)))
    assert ds.S.values[..., 0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert ds["count"].dtype == "int64" and ds["count"].values.tolist() == [1, 2, 3]
    assert ds.seen.dtype == "bool" and ds.seen.values.sum(-1).tolist() == [1, 2, 3]
    assert ds["count"].dims == ("step",) and ds.seen.dims == ("step", "key")


def test_a_state_updated_in_place_is_rolled_back_where_masked():
    keys, values, _ = draw()
    mask = np.random.default_rng(2).random((T, B)) < 0.6
    got = engine.simulate(Counter(), keys, values, mask=mask)
    assert_same(got["count"], np.cumsum(mask, axis=0))
    want = engine.simulate("linear_attention", keys, values, mask=mask)
    assert_same(got.S, want.S)


def test_a_state_updated_in_place_is_not_the_callers():
    keys, values, _ = draw(trials=None)
    first = engine.simulate(Counter(), keys, values)
    kept = first.copy(deep=True)
    second = engine.simulate(Counter(), keys, values, state=first)
    assert int(second["count"][-1]) == 2 * T
    assert_equal(first, kept)
    given = {"S": np.zeros((D, M)), "count": np.array(0), "seen": np.zeros(D, bool)}
    engine.simulate(Counter(), keys, values, state=given)
    assert not given["S"].any() and not given["count"] and not given["seen"].any()


@dataclass(frozen=True)
class Scribbler(LinearRule):
    """Normalises its key where it stands."""

    def token(self, k, v) -> Token:
        k /= 2
        return Token(write=k, value=v)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_solver_cannot_write_into_the_stream(dtype):
    keys, values, _ = draw(trials=None)
    before = keys.copy()
    with pytest.raises(engine.RunError, match="'scribbler' failed at step 0: .*read-only"):
        engine.simulate(Scribbler(), keys, values, dtype=dtype)
    assert_same(keys, before)
    assert keys.flags.writeable


@each_solver
def test_every_solver_runs_on_a_device(case):
    """array-api-strict raises on a hidden copy to the host; the step loop's bits are NumPy's."""
    keys, values, queries = draw()
    mask = np.random.default_rng(2).random((T, B)) < 0.8
    given = coefficients(case) | {"mask": mask, "kernel": "loop"}
    want = engine.simulate(made(case), keys, values, queries, **given)
    got = engine.simulate(made(case), keys, values, queries, backend="array_api_strict", **given)
    assert got.attrs["backend"] == "array_api_strict"
    assert_equal(got, want)

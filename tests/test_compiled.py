"""The compiled recurrences: what they are free to choose changes no bit, what they report is so."""

import numpy as np
import pytest

import engine
from engine import signatures
from engine.backend import backend
from engine.coefficients import Binding
from engine.loop import loop
from engine.sources import ArraySource, Tokens
from engine.track import Track

pytest.importorskip("numba")

SHAPES = [(1, 4, 3), (2, 17, 40), (3, 5, 70)]  # trials, key, value: less and more than one tile


def tokens(trials, key, value, dtype="float32", steps=37, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.standard_normal((steps, trials, n)).astype(dtype)
        for name, n in (("keys", key), ("values", value), ("queries", key))
    }
    arrays["keys"] /= np.linalg.norm(arrays["keys"], axis=-1, keepdims=True)
    return arrays


def follow(solver, arrays, kernel="numba", record=False, block=16, **given):
    """Return the track behind a stream, and its frames' traces."""
    rule, source = engine.solver(solver), ArraySource(arrays)
    bindings = {
        name: Binding(name, d.spec, given.get(name, d.default), ("step", "trial"))
        for name, d in signatures.coefficients(type(rule)).items()
        if given.get(name, d.default) is not None
    }
    dtype = arrays["keys"].dtype.name
    track = Track("x", rule, source, bindings, None, backend("numpy"), dtype, record, kernel=kernel)
    return track, [frame.traces["x"] for frame in loop(source, [track], block)]


def bits(track, traces):
    reads = (
        np.concatenate([getattr(t, name) for t in traces]) for name in ("prediction", "output")
    )
    return [x.tobytes() for x in (*reads, *track.state)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("solver", ["linear_attention", "gated_delta", "kda", "titans"])
def test_neither_tiles_nor_threads_change_a_bit(solver, shape, dtype, monkeypatch):
    from engine import compiled, lanes

    arrays = tokens(*shape, dtype)
    first = bits(*follow(solver, arrays))
    per_vector = lanes.VECTOR // np.dtype(dtype).itemsize
    for wide in (1, 2, 4):
        for alone in (1, 2**60):
            count = -(-shape[2] // (wide * per_vector))
            monkeypatch.setattr(compiled, "tiles", lambda *_, c=count, w=wide: (c, w))
            monkeypatch.setattr(lanes, "ALONE", alone)
            assert bits(*follow(solver, arrays)) == first


@pytest.mark.parametrize("columns", [1, 8, 16, 17, 33, 64, 65, 100, 500])
@pytest.mark.parametrize("trials", [1, 30])
def test_tiles_hold_every_column_and_no_tile_is_empty(columns, trials):
    from engine import lanes, recurrences

    for dtype in (np.dtype("float32"), np.dtype("float64")):
        count, wide = recurrences.tiles(trials, columns, dtype, 2)
        width = wide * lanes.VECTOR // dtype.itemsize
        assert (count - 1) * width < columns <= count * width


@pytest.mark.parametrize("solver", ["delta", "gated_delta", "longhorn", "comba", "titans", "gla"])
def test_the_share_that_a_write_takes_back_is_the_step_loop_s(solver):
    arrays = tokens(3, 9, 5, "float64")
    rng = np.random.default_rng(1)
    arrays["keys"] *= rng.uniform(0.5, 2.0, (37, 3, 1))
    arrays["mask"] = rng.random((37, 3)) < 0.8
    given = {"erase_key": rng.standard_normal((37, 3, 9))} if solver == "comba" else {}
    share, step = follow(solver, arrays, **given)[0].correction
    wanted, at = follow(solver, arrays, "loop", **given)[0].correction
    assert (share > 0) == (solver not in ("titans", "gla"))
    assert (share, step) == (pytest.approx(wanted, rel=1e-12), at)


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("solver", ["delta", "retnet", "linear_attention", "rls", "titans"])
def test_what_stops_being_finite_is_found_at_its_step_and_trial(solver, record):
    arrays = tokens(3, 5, 4, "float64")
    arrays["values"][21, 1, 2] = np.inf
    track, _ = follow(solver, arrays, record=record)
    assert track.diverged_at.tolist() == [-1, 21, -1]
    wanted, _ = follow(solver, arrays, "loop", record=record)
    assert wanted.diverged_at.tolist() == [-1, 21, -1]


def test_sums_that_are_finite_may_have_a_mean_that_is_not():
    """1e290 / 1e-20 overflows: neither S^T q nor z.q + eps tells."""
    keys, values = np.full((3, 1, 1), 1e-5), np.full((3, 1, 1), 1e300)
    rule = engine.solver("linear_attention", normalise=True, eps=-1e-10 + 1e-20)
    ds = engine.simulate(rule, keys, values, kernel="numba")
    loop_ds = engine.simulate(rule, keys, values, kernel="loop")
    assert np.isinf(ds.output.values).any()
    assert ds.diverged_at.values.tolist() == loop_ds.diverged_at.values.tolist()
    assert ds.diverged_at.values.tolist() != [-1]


def test_a_matrix_that_is_no_covariance_is_read_as_the_rule_reads_it():
    """P k and k^T P differ then."""
    arrays = tokens(2, 4, 3, "float64")
    state = {"S": np.zeros((2, 4, 3)), "P": np.tile(np.triu(np.ones((4, 4))), (2, 1, 1))}
    a, b = (
        engine.simulate("rls", *arrays.values(), state=state, kernel=kernel)
        for kernel in ("numba", "loop")
    )
    np.testing.assert_array_equal(a.P.values, b.P.values)


def test_no_steps_leave_a_state_as_it_is():
    for solver in ("gated_delta", "linear_attention", "titans", "rls"):
        track, traces = follow(solver, tokens(2, 4, 3, steps=0))
        assert traces == []
        trace = track.advance(Tokens(0, tokens(2, 4, 3, steps=0)))
        assert trace.output.shape == (0, 2, 3)
        assert np.isfinite(track.state.S).all()

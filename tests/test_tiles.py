"""Softmax attention by tiles: the step loop up to rounding, its own bits however it is cut."""

import tracemalloc

import numpy as np
import pytest

import engine
from engine import tiles
from engine.sources import ArraySource

from .loop_cases import arrays, assert_same, everything, make_track


def drawn(steps, trials=2, key=5, value=3, dtype="float64", seed=0):
    """Return keys, values and queries."""
    given = arrays(steps, trials, key, value, seed, dtype)
    return given["keys"], given["values"], given["queries"]


def assert_close(got, want, scale, k, q, v):
    """Weights differ by the error of a score, dk eps |q||k|, twice, and of sums of T terms."""
    eps = float(np.finfo(got.output.dtype).eps)
    longest = np.linalg.norm(k, axis=-1).max() * max(
        np.linalg.norm(x, axis=-1).max() for x in (k, q)
    )
    room = 8 * eps * (k.shape[-1] * scale * longest + len(k)) * np.abs(v).max()
    for name in ("prediction", "output"):
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=room)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [1, 15, 16, 17, 255, 256, 257, 600])
def test_tiles_equal_the_step_loop(steps, dtype):
    k, v, q = drawn(steps, dtype=dtype)
    rule = engine.solver("softmax_attention", scale=1.5)
    got, want = (engine.simulate(rule, k, v, q, kernel=n) for n in ("tile", "loop"))
    assert got.output.dtype == dtype and got.attrs["kernel"] == "tile"
    assert_close(got, want, 1.5, k, q, v)
    for name in ("keys", "values", "rows"):
        assert got[name].values.tobytes() == want[name].values.tobytes()


def test_tiles_are_full_attention(monkeypatch):
    """softmax(Q K^T, causal) V, written out (Vaswani et al. 2017, eq. 1)."""
    k, v, q = drawn(300, trials=1)
    scores = np.where(np.tri(300, dtype=bool), q[:, 0] @ k[:, 0].T, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    want = weights / weights.sum(axis=1, keepdims=True) @ v[:, 0]
    for work in (1, tiles.WORK):
        monkeypatch.setattr(tiles, "WORK", work)
        got = engine.simulate("softmax_attention", k, v, q, kernel="tile").output.values[:, 0]
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_bit_depends_on_the_cut(dtype, masked):
    steps = 530
    given = arrays(steps, 3, 6, 4, dtype=dtype)
    if masked:
        given["mask"] = np.random.default_rng(1).uniform(size=(steps, 3)) < 0.7
    source, solver = ArraySource(given), ("softmax_attention", {"scale": 0.7})
    assert make_track(source, solver, dtype=dtype).kernel == "tile"
    whole = everything(source, make_track(source, solver, dtype=dtype), steps)
    for block in (1, 7, 16, 100, 256):
        assert_same(everything(source, make_track(source, solver, dtype=dtype), block), whole)
    for b in range(3):  # nor on a trial's neighbours
        one = ArraySource({n: x[:, b : b + 1] for n, x in given.items()})
        alone = everything(one, make_track(one, solver, dtype=dtype), steps)
        for name in ("prediction", "output"):
            assert (
                alone[name].tobytes() == np.ascontiguousarray(whole[name][:, b : b + 1]).tobytes()
            )


def test_skipped_steps_and_going_on_from_a_state():
    k, v, q = drawn(400, trials=3)
    mask = np.random.default_rng(2).uniform(size=k.shape[:2]) < 0.6
    got, want = (
        engine.simulate("softmax_attention", k, v, q, mask=mask, kernel=n) for n in ("tile", "loop")
    )
    assert np.isnan(got.prediction.values[~mask]).all()
    np.testing.assert_allclose(got.prediction, want.prediction, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(got.output, want.output, rtol=1e-11, atol=1e-12)
    assert np.array_equal(got.rows, want.rows)
    for trial, n in enumerate(mask.sum(axis=0)):
        assert np.array_equal(got["keys"].values[:n, trial], k[mask[:, trial], trial])
    first = engine.simulate("softmax_attention", k[:150], v[:150], q[:150], mask=mask[:150])
    state = {n: first[n].values for n in ("keys", "values")} | {"rows": first.rows.values[-1]}
    rest = engine.simulate(
        "softmax_attention", k[150:], v[150:], q[150:], mask=mask[150:], state=state
    )
    np.testing.assert_allclose(rest.output, want.output[150:], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("what", ["keys", "values", "queries"])
def test_what_is_not_finite_reaches_the_reads_that_it_reaches_in_the_loop(what, bad):
    given = dict(zip(("keys", "values", "queries"), drawn(40), strict=True))
    given[what][21, 1, 2] = bad
    with np.errstate(invalid="ignore"):
        got, want = (
            engine.simulate("softmax_attention", **given, kernel=n) for n in ("tile", "loop")
        )
    for name in ("prediction", "output"):
        assert np.array_equal(np.isfinite(got[name]), np.isfinite(want[name])), name
        assert np.isfinite(got[name][:21]).all() and np.isfinite(got[name][:, 0]).all()
        np.testing.assert_allclose(got[name], want[name], rtol=1e-12, atol=1e-13)
    assert np.array_equal(got.diverged_at, want.diverged_at)


def test_large_scores_do_not_overflow():
    k, v, q = drawn(60)
    got, want = (
        engine.simulate("softmax_attention", 1e3 * k, v, 1e3 * q, kernel=n)
        for n in ("tile", "loop")
    )
    assert np.isfinite(got.output).all()
    np.testing.assert_allclose(got.output, want.output, rtol=1e-8, atol=1e-8)


def test_memory_is_linear_in_the_cache():
    """T = 8192: T x T scores alone would be 512 MiB in float64."""
    peaks = []
    for steps in (4096, 8192):
        k, v, _ = drawn(steps, trials=1, key=8, value=8)
        tracemalloc.start()
        engine.simulate("softmax_attention", k, v, kernel="tile", record="final")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 48 * 2**20 and peaks[1] < 2.2 * peaks[0]


def test_another_array_library():
    k, v, q = drawn(70)
    mask = np.random.default_rng(3).uniform(size=k.shape[:2]) < 0.8
    v[5, 0, 1] = np.inf
    for given in ({}, {"mask": mask}):
        here, there = (
            engine.simulate("softmax_attention", k, v, q, kernel="tile", backend=b, **given)
            for b in ("numpy", "array_api_strict")
        )
        np.testing.assert_allclose(there.output, here.output, rtol=1e-12, atol=1e-13)


def test_only_softmax_attention_and_its_kin_have_tiles():
    k, v, _ = drawn(3)
    with pytest.raises(engine.InputError, match="softmax_attention, forgetting_.* not Delta"):
        engine.simulate("delta", k, v, kernel="tile")

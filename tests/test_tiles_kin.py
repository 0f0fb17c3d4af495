"""The kin of softmax attention by tiles: rows that fade, and a second query."""

import tracemalloc

import numpy as np
import pytest

import engine
from engine.sources import ArraySource

from .loop_cases import arrays, assert_same, everything, make_track

KIN = ("forgetting_attention", "parallax")


def extras(rule, steps, trials, key, seed=5):
    """Return the rule's own coefficient by token; among the gates some forget everything."""
    rng = np.random.default_rng(seed)
    if rule == "parallax":
        return {"second_query": rng.normal(size=(steps, trials, key))}
    gamma = rng.uniform(0.5, 1.0, (steps, trials))
    gamma[rng.uniform(size=gamma.shape) < 0.02] = 0.0
    return {"gamma": gamma}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [1, 16, 17, 257, 600])
@pytest.mark.parametrize("rule", KIN)
def test_tiles_equal_the_step_loop(rule, steps, dtype):
    """A sum of T terms and a product of dk: 8 eps (T + dk |q||k|), times what c adds."""
    given = arrays(steps, 2, 5, 3, dtype=dtype) | extras(rule, steps, 2, 5)
    got, want = (engine.simulate(rule, **given, kernel=n) for n in ("tile", "loop"))
    assert got.attrs["kernel"] == "tile" and got.output.dtype == dtype
    longest = max(np.linalg.norm(given[n], axis=-1).max() for n in ("keys", "queries")) ** 2
    c = np.linalg.norm(given["second_query"], axis=-1).max() * longest if rule == "parallax" else 0
    room = 8 * float(np.finfo(dtype).eps) * (5 * longest + steps) * (1 + 2 * c)
    for name in ("prediction", "output"):
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=room)
    for name in set(got) - {"prediction", "output"}:
        assert got[name].values.tobytes() == want[name].values.tobytes(), name


def test_fading_is_full_attention_with_the_decay_matrix():
    """FoX, eq. 5 (arXiv:2503.02130): softmax(Q K^T + D) V, D_ij = sum of log f from j + 1 to i."""
    given = arrays(300, 1, 4, 3)
    gamma = np.random.default_rng(1).uniform(0.6, 1.0, (300, 1))
    total = np.cumsum(np.log(gamma[:, 0]))
    scores = given["queries"][:, 0] @ given["keys"][:, 0].T + total[:, None] - total
    scores[~np.tri(300, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    want = weights / weights.sum(axis=1, keepdims=True) @ given["values"][:, 0]
    got = engine.simulate("forgetting_attention", **given, gamma=gamma, kernel="tile")
    np.testing.assert_allclose(got.output[:, 0], want, rtol=1e-11, atol=1e-12)


def test_the_second_query_reads_a_covariance():
    """Parallax (arXiv:2605.29157): E v - Cov_p(v, r.k), at every prefix."""
    given = arrays(40, 1, 4, 3)
    r = np.random.default_rng(2).normal(size=(40, 1, 4))
    got = engine.simulate("parallax", **given, second_query=r, kernel="tile").output.values[:, 0]
    for t in range(40):
        k, v = (given[n][: t + 1, 0] for n in ("keys", "values"))
        p = np.exp(k @ given["queries"][t, 0])
        p, c = p / p.sum(), k @ r[t, 0]
        want = p @ v - (p * (c - p @ c)) @ (v - p @ v)
        np.testing.assert_allclose(got[t], want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rule", KIN)
def test_no_bit_depends_on_the_cut(rule, masked):
    steps = 530
    given = arrays(steps, 3, 6, 4)
    if masked:
        given["mask"] = np.random.default_rng(1).uniform(size=(steps, 3)) < 0.7
    more = {n: x.reshape(steps, 3, -1) for n, x in extras(rule, steps, 3, 6).items()}
    source = ArraySource(given)

    def track(source, **more):
        track = make_track(source, (rule, {"scale": 0.7}), **more)
        assert track.kernel == "tile"
        return track

    whole = everything(source, track(source, **more), steps)
    for block in (1, 7, 16, 100, 256):
        assert_same(everything(source, track(source, **more), block), whole)
    for b in range(3):  # nor on a trial's neighbours
        one = ArraySource({n: x[:, b : b + 1] for n, x in given.items()})
        own = {n: x[:, b : b + 1] for n, x in more.items()}
        alone = everything(one, track(one, **own), steps)
        for name in ("prediction", "output"):
            mine = np.ascontiguousarray(whole[name][:, b : b + 1])
            assert alone[name].tobytes() == mine.tobytes()


@pytest.mark.parametrize("rule", KIN)
def test_skipped_steps_and_going_on_from_a_state(rule):
    given = arrays(400, 3, 5, 3) | extras(rule, 400, 3, 5)
    given["mask"] = np.random.default_rng(2).uniform(size=(400, 3)) < 0.6
    got, want = (engine.simulate(rule, **given, kernel=n) for n in ("tile", "loop"))
    for name in ("prediction", "output"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-11, atol=1e-11)
    first = engine.simulate(rule, **{n: x[:150] for n, x in given.items()})
    names = [n for n in first if "row" in first[n].dims]
    state = {n: first[n].values for n in names} | {"rows": first.rows.values[-1]}
    rest = engine.simulate(rule, **{n: x[150:] for n, x in given.items()}, state=state)
    np.testing.assert_allclose(rest.output, want.output[150:], rtol=1e-11, atol=1e-11)
    for name in names:
        for trial, n in enumerate(given["mask"].sum(axis=0)):
            own = [x[name].values[:n, trial] for x in (got, want, rest)]
            assert own[0].tobytes() == own[1].tobytes() == own[2].tobytes(), name


@pytest.mark.parametrize("rule", KIN)
def test_what_is_not_finite_is_seen_where_the_loop_sees_it(rule):
    for what in ("keys", "values", "queries"):
        given = arrays(40, 2, 5, 3) | extras(rule, 40, 2, 5)
        given[what][21, 1, 2] = np.inf
        with np.errstate(invalid="ignore"):
            got, want = (engine.simulate(rule, **given, kernel=n) for n in ("tile", "loop"))
        for name in ("prediction", "output"):
            assert np.array_equal(np.isfinite(got[name]), np.isfinite(want[name])), (what, name)
        assert np.array_equal(got.diverged_at, want.diverged_at)


@pytest.mark.parametrize("rule", KIN)
def test_memory_is_linear_in_the_cache(rule):
    """T = 8192: T x T scores alone would be 512 MiB in float64."""
    peaks = []
    for steps in (4096, 8192):
        given = arrays(steps, 1, 8, 8) | extras(rule, steps, 1, 8)
        tracemalloc.start()
        engine.simulate(rule, **given, kernel="tile", record="final")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 64 * 2**20 and peaks[1] < 2.2 * peaks[0]


@pytest.mark.parametrize("rule", KIN)
def test_another_array_library(rule):
    given = arrays(70, 2, 5, 3) | extras(rule, 70, 2, 5)
    for mask in (None, np.random.default_rng(3).uniform(size=(70, 2)) < 0.8):
        here, there = (
            engine.simulate(rule, **given, mask=mask, kernel="tile", backend=b)
            for b in ("numpy", "array_api_strict")
        )
        np.testing.assert_allclose(there.output, here.output, rtol=1e-12, atol=1e-12)

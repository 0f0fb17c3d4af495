"""Laws of the generators of random and of orthonormal keys."""

import itertools
from collections import Counter

import numpy as np
import pytest

from engine import ops
from engine.api import Draws
from engine.plugins.generators.orthonormal import Orthonormal
from engine.plugins.generators.random import Random
from engine.plugins.generators.rebinding import Rebinding

from .replay import replay

# random


@pytest.mark.parametrize("kind", ["unit", "gaussian", "sign"])
def test_random_vectors_have_second_moment_identity_over_d(drive, assert_mean, kind):
    arrays, _ = drive(Random(key=4, value=6, keys=kind, values=kind), 1000, trials=10)
    for name, d in (("keys", 4), ("values", 6)):
        x = arrays[name].reshape(-1, d)
        assert_mean(x, 0)
        assert_mean(ops.outer(x, x), np.eye(d) / d)


def test_unit_and_sign_vectors_have_norm_one(drive):
    arrays, _ = drive(Random(keys="unit", values="sign", value=9), 100)
    np.testing.assert_allclose(np.linalg.norm(arrays["keys"], axis=-1), 1, rtol=4e-16 * 16)
    np.testing.assert_array_equal(np.abs(arrays["values"]), 1 / 3)


def test_gaussian_entries_have_the_fourth_moment_of_a_gaussian(drive, assert_mean):
    keys = drive(Random(key=4, keys="gaussian"), 2000, trials=10)[0]["keys"]
    assert_mean((keys.reshape(-1, 4) * 2) ** 4, 3)


def test_random_pairs_are_all_new_without_a_pool(drive):
    arrays, facts = drive(Random(), 50)
    assert facts == {} and Random().dims == {}
    for name in ("key_id", "value_id"):
        np.testing.assert_array_equal(arrays[name], np.arange(50)[:, None] + np.zeros((1, 3)))
    assert (arrays["age"] == -1).all() and (arrays["binding"] == -1).all()
    assert not arrays["priority"].any()


def test_a_pool_is_visited_uniformly_and_repeats_its_pairs(drive, assert_mean):
    arrays, facts = drive(Random(pairs=5, key=7, value=6), 2000)
    assert facts["key_book"].shape == (3, 5, 7) and facts["value_book"].shape == (3, 5, 6)
    pair = arrays["key_id"]
    np.testing.assert_array_equal(pair, arrays["value_id"])
    np.testing.assert_array_equal(arrays["keys"], facts["key_book"][np.arange(3), pair])
    np.testing.assert_array_equal(arrays["values"], facts["value_book"][np.arange(3), pair])
    assert_mean(pair.reshape(-1, 1) == np.arange(5), 0.2)
    replay(arrays)


def test_priority_comes_at_its_rate(drive, assert_mean):
    bits = drive(Random(key=1, value=1, priority=0.25), 2000, trials=5)[0]["priority"]
    assert_mean(bits.ravel(), 0.25)
    assert drive(Random(priority=1.0), 20)[0]["priority"].all()


@pytest.mark.parametrize(("steps", "rate", "count"), [(64, 0.25, 16), (10, 0.33, 3), (7, 1.0, 7)])
def test_exact_priority_has_an_exact_count(drive, assert_same, steps, rate, count):
    generator = Random(priority=rate, exact=True)
    want = drive(generator, steps)[0]
    assert (want["priority"].sum(axis=0) == count).all()
    for block in (1, 5, 1000):
        assert_same(drive(generator, steps, block=block)[0], want)
    plain = drive(Random(), steps)[0]
    for name in ("keys", "values"):
        np.testing.assert_array_equal(want[name], plain[name])


def test_exact_priority_lies_at_uniform_positions(drive, assert_mean):
    bits = drive(Random(key=1, value=1, priority=0.25, exact=True), 8, trials=4000)[0]["priority"]
    assert_mean(bits.T, 0.25)
    # Two of eight: every pair of positions is equally likely.
    pairs = Counter(tuple(np.flatnonzero(row)) for row in bits.T)
    seen = np.array([pairs[p] for p in itertools.combinations(range(8), 2)])
    p = 1 / 28
    assert (np.abs(seen / 4000 - p) < 4 * np.sqrt(p * (1 - p) / 4000)).all()


def test_exact_priority_without_a_length_is_refused():
    with pytest.raises(ValueError, match="exact = True needs a stream of known length"):
        Random(priority=0.5, exact=True).start(Draws(0, 1), None)


# orthonormal


def test_orthonormal_keys_are_orthonormal(drive):
    arrays, _ = drive(Orthonormal(key=24), 24)
    keys = arrays["keys"].swapaxes(0, 1)
    np.testing.assert_allclose(keys @ keys.swapaxes(1, 2), np.broadcast_to(np.eye(24), (3, 24, 24)),
                               atol=1e-14)  # fmt: skip
    np.testing.assert_array_equal(arrays["key_id"][:, 0], np.arange(24))
    replay(arrays)


@pytest.mark.parametrize("source", ["orthonormal", "rebinding"])
def test_orthonormal_keys_are_haar(drive, assert_mean, source):
    """E[tr Q] = 0 and E[(tr Q)^2] = 1; E[Q_ij] = 0, E[Q_ij^2] = 1/n, E[Q_ij^4] = 3/(n(n+2))."""
    n = 4
    if source == "orthonormal":
        q = drive(Orthonormal(key=n, value=1), n, trials=4000)[0]["keys"].swapaxes(0, 1)
    else:
        q = drive(Rebinding(entries=n, key=n, value=1), 1, trials=4000)[1]["key_book"]
    assert_mean(q[:, 0, 0], 0)
    assert_mean(q, 0)
    trace = np.trace(q, axis1=1, axis2=2)
    assert_mean(trace, 0)
    assert_mean(trace**2, 1)
    assert_mean(q**2, 1 / n)
    assert_mean(q**4, 3 / (n * (n + 2)))
    assert_mean(np.linalg.det(q), 0)


def test_orthonormal_streams_end_after_key_steps():
    extent = Orthonormal(key=5).extent()
    assert extent.steps == 5 and extent.trials is None
    assert "only 5 orthonormal vectors in 5 dimensions" in extent.why


@pytest.mark.parametrize("kind", ["unit", "gaussian", "sign"])
def test_orthonormal_values_have_second_moment_identity_over_d(drive, assert_mean, kind):
    values = drive(Orthonormal(key=100, value=3, values=kind), 100, trials=50)[0]["values"]
    x = values.reshape(-1, 3)
    assert_mean(ops.outer(x, x), np.eye(3) / 3)
    if kind != "gaussian":
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-15)

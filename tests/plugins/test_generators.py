"""Generators: bits that depend on nothing but the seed, and laws that the numbers obey."""

import itertools
from collections import Counter

import numpy as np
import pytest

from engine import ops
from engine.api import Draws
from engine.plugins.generators import (
    correlated,
    drifting,
    function,
    needle,
    orthonormal,
    random,
    rebinding,
    recall,
    recurring,
    stored,
)  # fmt: skip
from engine.plugins.generators.correlated import Correlated
from engine.plugins.generators.drifting import Drifting
from engine.plugins.generators.function import Function
from engine.plugins.generators.needle import Needle
from engine.plugins.generators.orthonormal import Orthonormal
from engine.plugins.generators.random import Random
from engine.plugins.generators.rebinding import Rebinding
from engine.plugins.generators.recall import Recall
from engine.plugins.generators.recurring import Recurring
from engine.plugins.generators.stored import Stored

CASES = {
    "random": Random(),
    "random gaussian": Random(keys="gaussian", values="sign", priority=0.25),
    "random pool": Random(pairs=9, priority=0.5),
    "orthonormal": Orthonormal(key=200, value=8),
    "walk": Drifting(value=3),
    "rotation": Drifting(value=3, motion="rotation", keys="unit"),
    "switch": Drifting(value=3, motion="switch", period=15, keys="sign"),
    "rebinding": Rebinding(entries=20, rebindings=10, key=32, value=8),
    "rebinding random": Rebinding(entries=20, rebindings=10, key=5, value=8, basis="random"),
    "rebinding chance": Rebinding(entries=6, key=16, value=8, probability=0.3),
    "recurring": Recurring(entries=30, values="sign"),
    "correlated": Correlated(value=3),
    "correlated unit": Correlated(coherence=0.2, unit=True, key=5),
    "correlated spectrum": Correlated(condition=1e4),
    "function": Function(),
    "function sorted": Function(function="runge", order="sorted", period=15),
    "recall": Recall(pairs=15, queries=185, keys="gaussian"),
    "needle": Needle(position=5, keys="sign"),
}
each_case = pytest.mark.parametrize("generator", CASES.values(), ids=CASES.keys())


# What may change without changing a bit.


@each_case
def test_bits_do_not_depend_on_blocks_or_length(drive, assert_same, generator):
    """Same seed, other block size or total length: the same stream (dask issues 719, 1684)."""
    want, facts = drive(generator, 200, block=200)
    for block, steps in itertools.product((1, 7, 64, 1000), (20, 100, 200)):
        got, got_facts = drive(generator, steps, block=block)
        assert_same(got, {name: array[:steps] for name, array in want.items()})
        assert_same(got_facts, facts)
    assert_same(drive(generator, 20, told=False)[0], {k: a[:20] for k, a in want.items()})


@each_case
@pytest.mark.parametrize("block", [1, 64])
def test_a_trial_alone_equals_that_trial_in_a_batch(drive, assert_same, generator, block):
    one, one_facts = drive(generator, 100, trials=1, block=block)
    five, five_facts = drive(generator, 100, trials=5)
    assert_same(one, {name: array[:, :1] for name, array in five.items()})
    assert_same(one_facts, {name: array[:1] for name, array in five_facts.items()})


@each_case
def test_nothing_reads_the_global_random_state(drive, assert_same, generator):
    np.random.seed(0)
    before = drive(generator, 20)[0]
    np.random.seed(1)
    np.random.normal(size=10)
    state = np.random.get_state()[1].copy()
    assert_same(drive(generator, 20)[0], before)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


@each_case
def test_another_seed_is_another_stream(drive, generator):
    a, b = drive(generator, 20)[0], drive(generator, 20, seed=124)[0]
    for name in ("keys", "values"):
        assert not np.array_equal(a[name], b[name])


@each_case
def test_an_empty_block_has_the_right_shapes_and_draws_nothing(drive, assert_same, generator):
    want = drive(generator, 10, block=10)[0]
    draws = Draws(123, 3)
    state = generator.start(draws, 10)
    for at in (0, 4):
        state, empty = generator.draw(state, draws, range(at, at))
        for name, array in empty.items():
            assert array.shape == (0, *want[name].shape[1:]), name
            assert array.dtype == want[name].dtype, name
        stop = 4 if at == 0 else 10
        state, out = generator.draw(state, draws, range(at, stop))
        assert_same(out, {name: array[at:stop] for name, array in want.items()})


@each_case
def test_arrays_are_numpy_of_the_promised_kinds_and_dims(drive, generator):
    arrays, facts = drive(generator, 12)
    known = {
        "keys": "key", "values": "value", "queries": "key", "target_map": "key value",
        **generator.dims,
    }  # fmt: skip
    for name, array in arrays.items():
        assert type(array) is np.ndarray and array.dtype in (np.float64, np.int64, np.bool_)
        assert array.shape[:2] == (12, 3) and array.ndim == 2 + len(known.get(name, "").split())
    for name, array in facts.items():
        assert array.shape[0] == 3 and array.ndim == 1 + len(known[name].split())
    assert set(generator.dims) <= set(arrays) | set(facts)


def test_generators_are_equal_and_hashable_by_their_options():
    assert Random(key=8) == Random(key=8) != Random(key=9)
    assert len({Random(key=8), Random(key=8), Drifting(), Drifting()}) == 2


def test_the_hooks_name_every_generator():
    named = {}
    for module in (
        random, orthonormal, drifting, rebinding, stored,
        recurring, correlated, function, recall, needle,
    ):  # fmt: skip
        named |= module.engine_generators()
    assert named == {
        "random": Random, "orthonormal": Orthonormal, "drifting": Drifting,
        "rebinding": Rebinding, "stored": Stored, "recurring": Recurring,
        "correlated": Correlated, "function": Function, "recall": Recall, "needle": Needle,
    }  # fmt: skip


def correlation(a, b):
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


def test_trials_and_channels_share_no_bit_stream(drive):
    """Gaussian keys and values of equal size are the same numbers if their channels are."""
    arrays, _ = drive(Random(keys="gaussian", values="gaussian"), 500, trials=4)
    streams = [arrays[name][:, b] for name in ("keys", "values") for b in range(4)]
    limit = 4 / np.sqrt(streams[0].size)
    for a, b in itertools.combinations(streams, 2):
        assert abs(correlation(a, b)) < limit
        assert not np.isin(a, b).any()


@pytest.mark.parametrize("name", ["random pool", "rebinding random", "rebinding chance"])
def test_visits_of_trials_are_independent(drive, name):
    key_id = drive(CASES[name], 200)[0]["key_id"]
    for a, b in itertools.combinations(range(3), 2):
        assert abs(correlation(key_id[:, a], key_id[:, b])) < 4 / np.sqrt(200)


def test_noise_of_the_map_is_not_its_motion_or_its_keys(drive):
    arrays, _ = drive(Drifting(key=1, value=1, noise=1.0, step=0.5), 2000, trials=1)
    w = arrays["target_map"][..., 0]
    noise = arrays["values"] - w * arrays["keys"]
    assert abs(correlation(noise, arrays["keys"])) < 4 / np.sqrt(2000)


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


def replay(arrays):
    """Check age, binding and rebind against a dictionary per trial."""
    steps, trials = arrays["key_id"].shape
    for b in range(trials):
        held, last = {}, {}
        for t in range(steps):
            key, value = int(arrays["key_id"][t, b]), int(arrays["value_id"][t, b])
            assert arrays["binding"][t, b] == held.get(key, -1)
            assert arrays["age"][t, b] == (t - last[key] if key in last else -1)
            if "rebind" in arrays:
                assert arrays["rebind"][t, b] == (key in held and held[key] != value)
            held[key], last[key] = value, t


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


# drifting


@pytest.mark.parametrize("motion", ["walk", "rotation", "switch"])
@pytest.mark.parametrize("value", [1, 3])
def test_values_are_the_map_of_their_own_step(drive, motion, value):
    generator = Drifting(motion=motion, value=value, noise=0.0, period=7)
    arrays, _ = drive(generator, 50)
    want = ops.vecmat(arrays["keys"], arrays["target_map"])
    np.testing.assert_array_equal(arrays["values"], want)
    by_hand = (arrays["keys"][..., None] * arrays["target_map"]).sum(axis=-2)
    np.testing.assert_allclose(arrays["values"], by_hand, atol=1e-15)


@pytest.mark.parametrize("motion", ["walk", "rotation", "switch"])
@pytest.mark.parametrize("key", [2, 8])
def test_columns_of_the_map_are_unit(drive, motion, key):
    maps = drive(Drifting(motion=motion, key=key, value=5), 300)[0]["target_map"]
    np.testing.assert_allclose(np.linalg.norm(maps, axis=-2), 1, rtol=1e-15 * 8)


def test_noise_has_its_standard_deviation(drive, assert_mean):
    arrays, _ = drive(Drifting(noise=0.1, value=2), 2000, trials=5)
    noise = arrays["values"] - ops.vecmat(arrays["keys"], arrays["target_map"])
    assert_mean(noise.ravel(), 0)
    assert_mean(noise.ravel() ** 2, 0.01)


@pytest.mark.parametrize("kind", ["unit", "gaussian", "sign"])
def test_drifting_keys_have_second_moment_identity_over_d(drive, assert_mean, kind):
    x = drive(Drifting(keys=kind, key=3), 1000, trials=5)[0]["keys"].reshape(-1, 3)
    assert_mean(ops.outer(x, x), np.eye(3) / 3)
    if kind != "gaussian":
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-15)


def test_a_walk_forgets_at_the_rate_of_its_step(drive, assert_mean):
    """E[w_t | w_s] = rho^(t-s) w_s, rho = E[w.(w + s g) / |w + s g|]: .99686061 here."""
    rho = 0.99686061
    maps = drive(Drifting(value=4, step=0.03), 2000, trials=20)[0]["target_map"]
    assert_mean((maps[1:] * maps[:-1]).sum(axis=-2).ravel(), rho)
    assert_mean((maps[100] * maps[0]).sum(axis=-2).ravel(), rho**100)
    # Far apart nothing is left: columns start independent of each other and of other trials.
    assert_mean((maps[-1] * maps[0]).sum(axis=-2).ravel(), rho**1999)
    assert_mean((maps[0, :, :, 0] * maps[0, :, :, 1]).sum(axis=-1), 0)


def test_a_walk_without_steps_stands_still(drive):
    maps = drive(Drifting(step=0.0), 50)[0]["target_map"]
    np.testing.assert_allclose(maps, np.broadcast_to(maps[0], maps.shape), rtol=1e-14)


def test_motions_start_from_the_same_map(drive):
    first = [drive(Drifting(motion=m), 1)[0]["target_map"] for m in ("walk", "rotation", "switch")]
    np.testing.assert_array_equal(first[0], first[1])
    np.testing.assert_array_equal(first[0], first[2])


def test_a_rotation_turns_by_its_angle_and_returns_after_its_period(drive):
    """w_s . w_t = cos(angle (t - s)): a plane, a constant speed, and no error that grows."""
    angle = 2 * np.pi / 50
    maps = drive(Drifting(motion="rotation", angle=angle, value=3), 1001)[0]["target_map"]
    for lag in (1, 7, 25, 50):
        cosine = (maps[lag:] * maps[:-lag]).sum(axis=-2)
        np.testing.assert_allclose(cosine, np.cos(angle * lag), atol=1e-12)
    np.testing.assert_allclose(maps[1000], maps[0], atol=1e-12)
    assert np.linalg.matrix_rank(maps[:, 0, :, 0], tol=1e-9) == 2


def test_a_switch_changes_the_whole_map_every_period_and_only_then(drive):
    arrays, _ = drive(Drifting(motion="switch", period=10, value=2), 45)
    maps, switch = arrays["target_map"], arrays["switch"]
    np.testing.assert_array_equal(np.flatnonzero(switch[:, 0]), [10, 20, 30, 40])
    assert (switch == switch[:, :1]).all()
    for t in range(1, 45):
        changed = (maps[t] != maps[t - 1]).all(axis=(-2, -1))
        assert (changed == switch[t]).all()
        if not switch[t].any():
            np.testing.assert_array_equal(maps[t], maps[t - 1])


# rebinding


def test_each_key_takes_each_of_its_values_once_and_in_order(drive):
    generator = Rebinding(entries=6, rebindings=5, key=16, value=12)
    assert generator.extent().steps == 30 and "6 keys" in generator.extent().why
    arrays, facts = drive(generator, 30)
    assert facts["key_book"].shape == (3, 6, 16) and facts["value_book"].shape == (3, 30, 12)
    for b, key in itertools.product(range(3), range(6)):
        at = arrays["key_id"][:, b] == key
        np.testing.assert_array_equal(arrays["value_id"][at, b], key * 5 + np.arange(5))
        np.testing.assert_array_equal(arrays["rebind"][at, b], [False, True, True, True, True])
    replay(arrays)


def test_all_visits_are_in_one_uniform_order(drive):
    """Every order of two keys with two visits each is equally likely: six of them."""
    key_id = drive(Rebinding(entries=2, rebindings=2, key=2, value=1), 4, trials=3000)[0]["key_id"]
    seen = np.array(list(Counter(map(tuple, key_id.T)).values()))
    assert len(seen) == 6
    assert (np.abs(seen / 3000 - 1 / 6) < 4 * np.sqrt(5 / 36 / 3000)).all()


@pytest.mark.parametrize("generator", [
    Rebinding(), Rebinding(basis="random", entries=9, key=4), Rebinding(probability=0.5),
])  # fmt: skip
def test_rebinding_streams_are_rows_of_the_books(drive, generator):
    arrays, facts = drive(generator, 32)
    trial = np.arange(3)
    keys, values = facts["key_book"], facts["value_book"]
    np.testing.assert_array_equal(arrays["keys"], keys[trial, arrays["key_id"]])
    np.testing.assert_array_equal(arrays["values"], values[trial, arrays["value_id"]])
    np.testing.assert_allclose(np.linalg.norm(keys, axis=-1), 1, rtol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(values, axis=-1), 1, rtol=1e-14)
    if generator.basis == "orthonormal":
        gram = keys @ keys.swapaxes(1, 2)
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(len(gram[0])), gram.shape),
                                   atol=1e-14)  # fmt: skip


def test_the_first_keys_do_not_depend_on_how_many_there_are(drive):
    few = drive(Rebinding(entries=3), 1)[1]["key_book"]
    many = drive(Rebinding(entries=8), 1)[1]["key_book"]
    np.testing.assert_array_equal(few, many[:, :3])


def test_rebinding_with_a_probability(drive, assert_mean):
    generator = Rebinding(entries=4, key=8, value=2, probability=0.3, values=5)
    assert generator.extent() == (None, None, "")
    arrays, facts = drive(generator, 3000)
    assert facts["value_book"].shape == (3, 5, 2)
    replay(arrays)
    assert_mean(arrays["key_id"].reshape(-1, 1) == np.arange(4), 0.25)
    later = arrays["age"] >= 0
    assert_mean(arrays["rebind"][later], 0.3)
    # The new value is uniform over the four others, at every distance round the book.
    moved = arrays["rebind"]
    jump = (arrays["value_id"] - arrays["binding"])[moved] % 5
    assert_mean(jump[:, None] == np.arange(5), [0, 0.25, 0.25, 0.25, 0.25])


def test_a_first_binding_is_any_value_of_the_book(drive, assert_mean):
    value_id = drive(Rebinding(entries=1, key=2, value=1, probability=0, values=4), 9, trials=2000)
    value_id = value_id[0]["value_id"]
    assert (value_id == value_id[0]).all()
    assert_mean(value_id[0][:, None] == np.arange(4), 0.25)


def test_a_certain_rebinding_never_repeats(drive):
    arrays, facts = drive(Rebinding(entries=2, probability=1.0), 100)
    assert facts["value_book"].shape[1] == 8
    np.testing.assert_array_equal(arrays["rebind"], arrays["binding"] >= 0)


# What cannot be made.


@pytest.mark.parametrize(("cls", "options", "match"), [
    (Random, {"key": 0}, "key = 0 must be at least 1"),
    (Random, {"value": -2}, "value = -2 must be at least 1"),
    (Random, {"pairs": 0}, "pairs = 0 must be at least 1"),
    (Random, {"priority": 1.5}, r"priority = 1.5 must be in \[0, 1\]"),
    (Random, {"priority": float("nan")}, "priority = nan"),
    (Orthonormal, {"key": 0}, "key = 0"),
    (Orthonormal, {"value": 0}, "value = 0"),
    (Drifting, {"key": 0}, "key = 0"),
    (Drifting, {"period": 0}, "period = 0 must be at least 1"),
    (Drifting, {"step": -0.1}, "step = -0.1 must be finite and at least 0"),
    (Drifting, {"noise": float("inf")}, "noise = inf"),
    (Drifting, {"angle": float("nan")}, "angle = nan must be finite"),
    (Drifting, {"motion": "rotation", "key": 1}, "key = 1 must be at least 2"),
    (Rebinding, {"entries": 0}, "entries = 0"),
    (Rebinding, {"rebindings": 0}, "rebindings = 0"),
    (Rebinding, {"entries": 65}, "entries = 65 must be at most key = 64"),
    (Rebinding, {"probability": 1.1}, r"probability = 1.1 must be in \[0, 1\]"),
    (Rebinding, {"values": 5}, "values = 5 needs probability"),
    (Rebinding, {"values": 1, "probability": 0.5}, "values = 1 must be at least 2"),
])  # fmt: skip
def test_bad_options_are_named_with_their_value(cls, options, match):
    with pytest.raises(ValueError, match=match):
        cls(**options)


def test_more_random_keys_than_dimensions_are_fine(drive):
    assert drive(Rebinding(entries=65, basis="random"), 65)[0]["keys"].shape == (65, 3, 64)

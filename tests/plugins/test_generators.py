"""Generators: bits that depend on nothing but the seed."""

import itertools

import numpy as np
import pytest

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
    "rebinding rotation": Rebinding(entries=20, rebindings=10, key=32, value=8, order="rotation"),
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
    """Same seed, other block size or total length: the same stream (dask issues 719, 1684; A11)."""
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
def test_nothing_reads_the_global_random_state(drive, assert_same, generator):  # CASES A11
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


def test_channels_are_seeded_as_numpy_spawns_them():  # CASES A11: no two alike
    """Trial and name are the spawn key of NumPy's own SeedSequence."""
    number = int.from_bytes(b"keys", "big")
    for _ in range(2):  # the second time from what is remembered
        got = Draws(123, 3)("keys").normal(5, 2)
        for trial in range(3):
            seed = np.random.SeedSequence(123, spawn_key=(trial, number))
            want = np.random.Generator(np.random.PCG64(seed)).standard_normal((5, 2))
            np.testing.assert_array_equal(got[:, trial], want)

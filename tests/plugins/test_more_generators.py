"""Laws of the generators of recurring, correlated, scalar, asked and buried pairs."""

import numpy as np
import pytest
from scipy import stats

import engine
from engine import ops
from engine.plugins.generators.correlated import Correlated
from engine.plugins.generators.function import Function
from engine.plugins.generators.needle import Needle
from engine.plugins.generators.recall import Recall
from engine.plugins.generators.recurring import Recurring
from engine.sources import GeneratorSource


def assert_zipf(ranks, exponent, count):
    """Chi-square test of chance ~ (rank + 1)^-exponent, rare ranks lumped together."""
    chance = np.arange(1.0, count + 1) ** -exponent
    expected = ranks.size * chance / chance.sum()
    seen = np.bincount(ranks.ravel(), minlength=count)
    assert seen.size == count
    often = expected >= 5
    if not often.all():
        seen = np.append(seen[often], seen[~often].sum())
        expected = np.append(expected[often], expected[~often].sum())
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def unit_norms(x):
    np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1, rtol=1e-14)


# recurring


@pytest.mark.parametrize(("exponent", "entries"), [(0.0, 7), (0.5, 30), (1.0, 64), (2.5, 12)])
def test_facts_return_by_zipfs_law(drive, exponent, entries):
    generator = Recurring(entries=entries, exponent=exponent, key=2, value=1)
    assert_zipf(drive(generator, 3000, trials=5)[0]["key_id"], exponent, entries)


def test_visits_are_independent_from_step_to_step(drive):
    fact = drive(Recurring(entries=3, exponent=1.0), 20000, trials=1)[0]["key_id"][:, 0]
    chance = np.array([6, 3, 2]) / 11
    pairs = np.bincount(3 * fact[:-1:2] + fact[1::2], minlength=9)
    expected = np.outer(chance, chance).ravel() * 10000
    assert stats.chisquare(pairs, expected).pvalue > 1e-3


def test_a_visit_writes_the_pair_of_its_fact_and_knows_its_age(drive):
    arrays, facts = drive(Recurring(entries=20, key=4, value=5, keys="sign"), 300)
    assert facts["key_book"].shape == (3, 20, 4) and facts["value_book"].shape == (3, 20, 5)
    np.testing.assert_array_equal(np.abs(facts["key_book"]), 0.5)
    unit_norms(facts["value_book"])
    for b in range(3):
        last = {}
        for t, fact in enumerate(arrays["key_id"][:, b].tolist()):
            np.testing.assert_array_equal(arrays["keys"][t, b], facts["key_book"][b, fact])
            np.testing.assert_array_equal(arrays["values"][t, b], facts["value_book"][b, fact])
            assert arrays["value_id"][t, b] == fact
            assert arrays["age"][t, b] == (t - last[fact] if fact in last else -1)
            assert arrays["binding"][t, b] == (fact if fact in last else -1)
            last[fact] = t


def test_streams_of_another_exponent_have_the_same_facts(drive, assert_same):
    one, two = (drive(Recurring(exponent=e), 1)[1] for e in (0.0, 3.0))
    assert_same(one, two)


# correlated


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("c", [0.0, 0.3, 0.9])
def test_keys_have_their_coherence_and_mean_square_norm_one(drive, assert_mean, c, unit):
    """E[k_i.k_j] = c for i != j: disjoint pairs of steps, and trials of independent u."""
    generator = Correlated(coherence=c, unit=unit, key=5, value=1)
    arrays, facts = drive(generator, 400, trials=50)
    keys = arrays["keys"]
    assert_mean((keys[::2] * keys[1::2]).sum(-1).ravel(), c)
    assert_mean((keys**2).sum(-1).ravel(), 1)
    if unit:
        unit_norms(keys)
    np.testing.assert_allclose((facts["mean"] ** 2).sum(-1), c, atol=1e-14)
    first, second = facts["mean"][::2], facts["mean"][1::2]
    assert_mean((first * second).sum(-1), 0)


OPTIONS = [
    {}, {"coherence": 0.0}, {"coherence": 0.7}, {"coherence": 0.7, "unit": True},
    {"coherence": 0.0, "unit": True}, {"condition": 1.0}, {"condition": 20.0},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_keys_have_the_moments_that_are_exposed(drive, assert_mean, options):
    arrays, facts = drive(Correlated(key=4, value=1, **options), 4000, trials=2)
    keys, covariance = arrays["keys"], facts["covariance"]
    for b in range(2):
        assert_mean(keys[:, b], facts["mean"][b])
        assert_mean(ops.outer(keys, keys)[:, b], covariance[b])
    np.testing.assert_allclose(np.trace(covariance, axis1=1, axis2=2), 1, rtol=1e-14)
    np.testing.assert_allclose(covariance, covariance.mT, atol=1e-16)


@pytest.mark.parametrize(("options", "condition"), [
    ({"coherence": 0.7}, 1 + 6 * 0.7 / 0.3),
    ({"coherence": 0.7, "unit": True}, 5 * 0.7 / 0.3),
    ({"condition": 1.0}, 1),
    ({"condition": 300.0}, 300),
])  # fmt: skip
def test_the_condition_number_is_what_was_asked_for(drive, options, condition):
    arrays, facts = drive(Correlated(key=6, value=1, **options), 50000)
    spectrum = np.linalg.eigvalsh(facts["covariance"])
    np.testing.assert_allclose(spectrum[:, -1] / spectrum[:, 0], condition, rtol=1e-10)
    # Sample eigenvalues stray by at most about 2 sqrt(d / steps), relatively.
    second = ops.outer(arrays["keys"], arrays["keys"]).mean(axis=0)
    sampled = np.linalg.eigvalsh(second)
    np.testing.assert_allclose(sampled[:, -1] / sampled[:, 0], condition, rtol=0.06)


def test_a_spectrum_is_log_spaced_in_a_random_basis(drive, assert_mean):
    facts = drive(Correlated(key=3, value=1, condition=100.0), 1, trials=3000)[1]
    spectrum = np.linalg.eigvalsh(facts["covariance"])
    np.testing.assert_allclose(spectrum[0] / spectrum[0, 0], [1, 10, 100], rtol=1e-10)
    # A Haar basis has no preferred direction: E[C] = I / d.
    assert_mean(facts["covariance"], np.eye(3) / 3)


def test_values_do_not_know_the_keys(drive, assert_mean):
    arrays, _ = drive(Correlated(key=3, value=2, values="gaussian"), 4000)
    product = ops.outer(arrays["keys"], arrays["values"]).reshape(-1, 3, 2)
    assert_mean(product, 0)
    values = arrays["values"].reshape(-1, 2)
    assert_mean(ops.outer(values, values), np.eye(2) / 2)


# function


CURVES = {
    "sine": lambda x: 2 * np.sin(x) + np.abs(x) ** 0.8,
    "square": lambda x: x**2,
    "step": lambda x: np.where(x < 1, 0.0, 1.0),
    "runge": lambda x: 1 / (1 + 25 * ((x - 1) / 3) ** 2),
}


@pytest.mark.parametrize("name", CURVES)
def test_values_are_the_curve_and_noise(drive, assert_mean, name):
    arrays, facts = drive(Function(function=name, low=-2.0, high=4.0, noise=0.3), 2000)
    x, truth = arrays["keys"], arrays["truth"]
    assert facts == {} and x.shape == truth.shape == arrays["values"].shape == (2000, 3, 1)
    np.testing.assert_allclose(truth, CURVES[name](x), rtol=1e-12, atol=1e-12)
    assert -2 <= x.min() and x.max() < 4
    assert stats.kstest(x.ravel(), stats.uniform(-2, 6).cdf).pvalue > 1e-3
    noise = (arrays["values"] - truth).ravel()
    assert_mean(noise, 0)
    assert_mean(noise**2, 0.09)
    assert_mean(noise * (x.ravel() - 1), 0)


def test_without_noise_the_values_are_the_truth(drive):
    arrays, _ = drive(Function(noise=0.0), 50)
    np.testing.assert_array_equal(arrays["values"], arrays["truth"])


def test_sorted_runs_are_the_random_ones_in_order(drive):
    loose = drive(Function(), 60)[0]["keys"]
    neat = drive(Function(order="sorted", period=20), 60)[0]["keys"]
    for start in (0, 20, 40):
        run = slice(start, start + 20)
        assert (np.diff(neat[run], axis=0) > 0).all()
        np.testing.assert_array_equal(neat[run], np.sort(loose[run], axis=0))


# recall


def test_what_is_asked_was_written_and_its_value_is_right(drive):
    """A naive memory: a dictionary from key to value and step, filled where the mask is true."""
    generator = Recall(pairs=12, queries=60, key=5, value=4)
    assert generator.extent().steps == 72 and "12 pairs" in generator.extent().why
    arrays, facts = drive(generator, 72)
    np.testing.assert_array_equal(arrays["mask"], np.arange(72)[:, None] < 12 + np.zeros((1, 3)))
    unit_norms(arrays["queries"])
    for b in range(3):
        memory = {}
        for t in range(72):
            one = {name: array[t, b] for name, array in arrays.items()}
            np.testing.assert_array_equal(one["keys"], one["queries"])
            if one["mask"]:
                memory[one["keys"].tobytes()] = (one["values"], t)
            value, step = memory.get(one["queries"].tobytes(), (np.zeros(4), None))
            np.testing.assert_array_equal(one["values"], value)
            assert one["asked"] == (step is not None and not one["mask"])
            assert one["gap"] == (t - step if one["asked"] else -1)
            assert one["key_id"] == one["value_id"] == (-1 if step is None else step)
            if step is not None:
                np.testing.assert_array_equal(facts["key_book"][b, step], one["queries"])
                np.testing.assert_array_equal(facts["value_book"][b, step], value)
        assert len(memory) == 12


@pytest.mark.parametrize("queries", [12, 13, 60])
def test_every_pair_is_asked_once(drive, queries):
    arrays, _ = drive(Recall(pairs=12, queries=queries, key=2), 12 + queries, trials=20)
    for b in range(20):
        asked = arrays["key_id"][arrays["asked"][:, b], b]
        np.testing.assert_array_equal(np.sort(asked), np.arange(12))
    assert not arrays["asked"][:12].any()


@pytest.mark.parametrize("exponent", [0.01, 1.0, 2.5, -1.0])
def test_the_gap_of_the_first_pair_follows_the_power_law(drive, exponent):
    """Pair 0 is drawn first, from all slots; slot s is 5 + s steps after it."""
    generator = Recall(pairs=5, queries=8, exponent=exponent, key=1, value=1)
    arrays, _ = drive(generator, 13, trials=4000)
    first = arrays["asked"] & (arrays["key_id"] == 0)
    slots = arrays["gap"].T[first.T] - 5
    assert slots.shape == (4000,)
    assert_zipf(slots, 1.0 - exponent, 8)


def test_later_pairs_are_drawn_from_the_slots_that_are_left(drive):
    """Without replacement: the chance of an ordered pair of slots is p_i p_j / (1 - p_i)."""
    generator = Recall(pairs=2, queries=4, exponent=0.01, key=1, value=1)
    arrays, _ = drive(generator, 6, trials=6000)
    slots = [np.argmax(arrays["asked"] & (arrays["key_id"] == i), axis=0) - 2 for i in (0, 1)]
    p = np.arange(1.0, 5) ** -0.99
    p /= p.sum()
    chance = np.outer(1 / (1 - p) * p, p)
    off = ~np.eye(4, dtype=bool)
    seen = np.bincount(4 * slots[0] + slots[1], minlength=16).reshape(4, 4)
    assert not seen.diagonal().any()
    assert stats.chisquare(seen[off], 6000 * chance[off]).pvalue > 1e-3


def test_the_engine_answers_the_questions_and_writes_nothing_there():
    """Orthogonal enough keys, one write each: least squares recalls every value at every gap."""
    source = GeneratorSource(Recall(pairs=8, queries=30, key=16), seed=1, trials=2)
    (tokens,) = source.blocks(100)
    x = tokens.arrays
    ds = engine.simulate(
        engine.solver("least_squares", ridge=1e-12), x["keys"], x["values"], x["queries"],
        mask=x["mask"], gamma=1.0,
    )  # fmt: skip
    known = x["mask"] | x["asked"]
    np.testing.assert_allclose(ds.output.values[known], x["values"][known], atol=1e-8)
    assert np.isnan(ds.prediction.values[8:]).all()
    assert np.isfinite(ds.prediction.values[:8]).all()
    assert (ds.diverged_at == -1).all()


# needle


def test_one_step_writes_the_needle_and_all_ask_for_it(drive):
    arrays, facts = drive(Needle(position=7, key=5, value=4, keys="gaussian", values="sign"), 50)
    needle, value = facts["needle_key"], facts["needle_value"]
    unit_norms(needle)
    unit_norms(value)
    np.testing.assert_array_equal(np.flatnonzero(arrays["is_needle"][:, 1]), [7])
    np.testing.assert_array_equal(arrays["keys"][7], needle)
    np.testing.assert_array_equal(arrays["values"][7], value)
    np.testing.assert_array_equal(arrays["queries"], np.broadcast_to(needle, (50, 3, 5)))
    np.testing.assert_array_equal(arrays["age"][:, 2], [-1] * 7 + list(range(43)))
    np.testing.assert_array_equal(np.delete(np.abs(arrays["values"]), 7, axis=0), 0.5)


def test_distractors_are_new_and_independent_of_the_needle(drive, assert_mean):
    arrays, facts = drive(Needle(key=4, value=3), 3000, trials=4)
    keys, values = arrays["keys"][1:], arrays["values"][1:]
    assert len(np.unique(keys.reshape(-1, 4), axis=0)) == 4 * 2999
    assert_mean((keys * facts["needle_key"]).sum(-1).ravel(), 0)
    assert_mean((keys * facts["needle_key"]).sum(-1).ravel() ** 2, 1 / 4)
    assert_mean((values * facts["needle_value"]).sum(-1).ravel(), 0)


def test_the_place_of_the_needle_changes_nothing_else(drive):
    early, late = (drive(Needle(position=p), 20) for p in (2, 11))
    for name in ("needle_key", "needle_value"):
        np.testing.assert_array_equal(early[1][name], late[1][name])
    rest = [t for t in range(20) if t not in (2, 11)]
    np.testing.assert_array_equal(early[0]["keys"][rest], late[0]["keys"][rest])


def test_the_delta_rule_erodes_the_needle_as_its_law_says(drive, assert_mean):
    """A full step loses the share 1/d of what is left: E[output . value] = (1 - 1/d)^age."""
    arrays, facts = drive(Needle(position=3, key=4, value=4), 20, trials=3000)
    ds = engine.simulate("delta", arrays["keys"], arrays["values"], arrays["queries"], beta=1.0)
    share = (ds.output.values * facts["needle_value"]).sum(-1)
    for age in (0, 1, 4, 16):
        assert_mean(share[3 + age], 0.75**age)


# What cannot be made.


@pytest.mark.parametrize(("cls", "options", "match"), [
    (Recurring, {"entries": 0}, "entries = 0 must be at least 1"),
    (Recurring, {"value": 0}, "value = 0 must be at least 1"),
    (Recurring, {"exponent": -0.5}, "exponent = -0.5 must be finite and at least 0"),
    (Recurring, {"exponent": float("nan")}, "exponent = nan"),
    (Correlated, {"key": 1}, "key = 1 must be at least 2"),
    (Correlated, {"coherence": 1.0}, r"coherence = 1.0 must be in \[0, 1\)"),
    (Correlated, {"coherence": float("nan")}, "coherence = nan"),
    (Correlated, {"condition": 0.5}, "condition = 0.5 must be finite and at least 1"),
    (Correlated, {"condition": float("inf")}, "condition = inf"),
    (Correlated, {"condition": 3.0, "coherence": 0.1}, "and coherence = 0.1: give one"),
    (Correlated, {"condition": 3.0, "unit": True}, "unit = True needs coherence"),
    (Function, {"function": "cosine"}, "'cosine' must be one of sine, square, step, runge"),
    (Function, {"low": 5.0}, "low = 5.0 and high = 5.0 must be finite and in that order"),
    (Function, {"high": float("inf")}, "high = inf"),
    (Function, {"noise": -1.0}, "noise = -1.0 must be finite and at least 0"),
    (Function, {"period": 0}, "period = 0 must be at least 1"),
    (Recall, {"pairs": 0}, "pairs = 0 must be at least 1"),
    (Recall, {"queries": 15}, "queries = 15 must be at least pairs = 16"),
    (Recall, {"exponent": float("inf")}, "exponent = inf must be finite"),
    (Needle, {"position": -1}, "position = -1 must be at least 0"),
    (Needle, {"key": 0}, "key = 0 must be at least 1"),
])  # fmt: skip
def test_bad_options_are_named_with_their_value(cls, options, match):
    with pytest.raises(ValueError, match=match):
        cls(**options)

"""Laws of the generators whose map moves, or whose keys take new values."""

import itertools
from collections import Counter

import numpy as np
import pytest

from engine import ops
from engine.plugins.generators.drifting import Drifting
from engine.plugins.generators.rebinding import Rebinding

from .replay import replay

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


def test_in_rotation_each_key_returns_after_as_many_steps_as_there_are(drive):
    arrays, _ = drive(Rebinding(entries=3, rebindings=4, key=4, value=2, order="rotation"), 12)
    step = np.arange(12)[:, None]
    np.testing.assert_array_equal(arrays["key_id"], np.repeat(step % 3, 3, axis=1))
    np.testing.assert_array_equal(
        arrays["value_id"], np.repeat(step % 3 * 4 + step // 3, 3, axis=1)
    )
    np.testing.assert_array_equal(arrays["age"][3:], 3)
    replay(arrays)
    never = Rebinding(entries=3, key=4, value=2, order="rotation", probability=0.0)
    again = drive(never, 30)[0]["value_id"]
    np.testing.assert_array_equal(again, np.tile(again[:3], (10, 1)))


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

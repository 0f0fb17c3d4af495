"""Rows: states share storage, and no state ever changes, whatever is appended to whatever."""

import pickle

import array_api_strict
import numpy as np
import pytest

from engine import ops
from engine.rows import Rows, attend, each_length, fade


def contents(rows):
    """Return what each trial holds, as nested lists."""
    array = np.asarray(rows.array)
    return [array[trial, :n].tolist() for trial, n in enumerate(rows.length)]


def empty(trials=2, width=3):
    return Rows(np.zeros((trials, 0, width)))


def grown(n, trials=2, width=3, first=0.0):
    rows = empty(trials, width)
    for i in range(n):
        rows = rows.append(np.full((trials, width), first + i))
    return rows


def test_an_append_keeps_what_was_there_and_adds_one_row_per_trial():
    row = np.arange(6.0).reshape(2, 3)
    before = grown(2)
    after = before.append(row)
    assert before.length.tolist() == [2, 2] and after.length.tolist() == [3, 3]
    assert contents(before) == [[[0.0] * 3, [1.0] * 3]] * 2
    assert contents(after) == [[[0.0] * 3, [1.0] * 3, row[trial].tolist()] for trial in range(2)]


def test_states_share_their_storage():
    """A trajectory of n states costs n rows, not n^2: all but the copies at growth are shared."""
    states = [grown(1)]
    for i in range(1, 300):
        states.append(states[-1].append(np.full((2, 3), float(i))))
    apart = sum(
        not np.shares_memory(a.array, b.array) for a, b in zip(states, states[1:], strict=False)
    )
    # A shared buffer is replaced as one for all of its states, so even growth leaves them together.
    assert apart == 0
    for n, state in enumerate(states, start=1):
        assert contents(state) == [[[float(i)] * 3 for i in range(n)]] * 2


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 32])
def test_two_writes_from_one_state_never_meet(n):
    trunk = grown(n)
    left, right = trunk.append(np.full((2, 3), -1.0)), trunk.append(np.full((2, 3), -2.0))
    for i in range(40):
        left = left.append(np.full((2, 3), 100.0 + i))
        right = right.append(np.full((2, 3), 200.0 + i))
    old = [[float(i)] * 3 for i in range(n)]
    assert contents(trunk) == [old] * 2
    assert contents(left) == [[*old, [-1.0] * 3, *([100.0 + i] * 3 for i in range(40))]] * 2
    assert contents(right) == [[*old, [-2.0] * 3, *([200.0 + i] * 3 for i in range(40))]] * 2


def test_the_row_may_be_reused_by_whoever_gave_it():
    row = np.ones((2, 3))
    rows = empty().append(row)
    row[:] = 7.0
    assert contents(rows) == [[[1.0] * 3]] * 2


@pytest.mark.parametrize("length", [None, [1, 3], [2, 2]])
def test_a_given_array_is_never_written(length):
    given = np.arange(24.0).reshape(2, 4, 3)
    before = given.copy()
    rows = Rows(given, length)
    start = contents(rows)
    for i in range(20):
        rows = rows.append(np.full((2, 3), -1.0 - i))
    np.testing.assert_array_equal(given, before)
    added = [[-1.0 - i] * 3 for i in range(20)]
    assert contents(rows) == [[*held, *added] for held in start]


def test_a_masked_write_leaves_its_trials_as_they_were():
    old = grown(3)
    new = old.append(np.full((2, 3), 9.0)).where(np.array([True, False]), old)
    assert new.length.tolist() == [4, 3]
    again = new.append(np.full((2, 3), 8.0))
    base = [[float(i)] * 3 for i in range(3)]
    assert contents(again) == [[*base, [9.0] * 3, [8.0] * 3], [*base, [8.0] * 3]]
    assert contents(new) == [[*base, [9.0] * 3], base]
    assert contents(old) == [base, base]


def test_a_rule_that_appended_nothing_frees_nothing():
    """The place behind a state may be another state's: a roll-back must not hand it out again."""
    old = grown(3)
    longer = old.append(np.full((2, 3), 9.0))
    same = old.where(np.array([False, False]), old)
    same.append(np.full((2, 3), -5.0))
    assert contents(longer) == [[[0.0] * 3, [1.0] * 3, [2.0] * 3, [9.0] * 3]] * 2


def test_masked_steps_do_not_copy():
    """A padded batch costs what its rows cost: the buffer stays the same one."""
    rows = grown(5)
    first = rows
    for _ in range(100):
        rows = rows.append(np.ones((2, 3))).where(np.array([False, False]), rows)
    assert np.shares_memory(rows.array, first.array) and rows.length.tolist() == [5, 5]


def test_any_history_of_writes_equals_a_list_of_lists():
    """Appends, masked appends, maps and pickles from any earlier state, against plain lists."""
    rng = np.random.default_rng(0)
    for _ in range(15):
        states = [(empty(3, 1), [[], [], []])]
        for _ in range(80):
            old, model = states[rng.integers(max(0, len(states) - 6), len(states))]
            row = rng.normal(size=(3, 1))
            added = [[*held, x.tolist()] for held, x in zip(model, row, strict=True)]
            match rng.integers(6):
                case 0:
                    mask = rng.random(3) < 0.5
                    new = old.append(row).where(mask, old)
                    kept = [a if m else b for m, a, b in zip(mask, added, model, strict=True)]
                    states.append((new, kept))
                case 1:
                    states.append((pickle.loads(pickle.dumps(old)), model))
                case 2:  # the very same array: what it was made from must not be written through it
                    states.append((old.map(lambda a: a), model))
                case 3:
                    mask = rng.random(3) < 0.5
                    states.append((old.where(mask, old), model))
                case _:
                    states.append((old.append(row), added))
        for rows, model in states:
            assert contents(rows) == model


def test_pickles_hold_the_rows_and_nothing_else():
    rows = grown(3).append(np.full((2, 3), 5.0)).where(np.array([False, True]), grown(3))
    copy = pickle.loads(pickle.dumps(rows))
    assert contents(copy) == contents(rows) and copy.length.tolist() == [3, 4]
    long = grown(1000)
    short = pickle.dumps(Rows(long.array[:, :2]))
    assert len(short) < 1000 < len(pickle.dumps(long))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ragged_reads_equal_each_trial_alone_bit_for_bit(dtype):
    """Padding never enters a sum: trial b has the bits that it has without neighbours."""
    rng = np.random.default_rng(1)
    lengths = [0, 1, 7, 33]
    array = rng.normal(size=(4, 33, 5)).astype(dtype)
    values = rng.normal(size=(4, 33, 2)).astype(dtype)
    for trial, n in enumerate(lengths):
        array[trial, n:] = values[trial, n:] = np.nan
    query = rng.normal(size=(4, 5)).astype(dtype)

    def attend(keys, stored, q):
        if keys.shape[1] == 0:
            return stored.sum(axis=1)
        return ops.vecmat(ops.softmax(ops.matvec(keys, q)), stored)

    got = each_length(attend, Rows(array, lengths), Rows(values, lengths), query)
    assert got.dtype == dtype and np.isfinite(got).all() and not got[0].any()
    for b, n in enumerate(lengths):
        alone = each_length(
            attend, Rows(array[b : b + 1, :n]), Rows(values[b : b + 1, :n]), query[b : b + 1]
        )
        assert got[b].tobytes() == alone[0].tobytes()


def test_memories_read_together_are_trimmed_each_to_its_own_length():
    a = Rows(np.ones((2, 4, 1)), [1, 3])
    b = Rows(np.ones((2, 4, 1)), [4, 4])

    def counts(x, y):
        return np.stack([x.sum(axis=(1, 2)), y.sum(axis=(1, 2))], axis=-1)

    assert each_length(counts, a, b).tolist() == [[1.0, 4.0], [3.0, 4.0]]
    assert each_length(counts, b, a).tolist() == [[4.0, 1.0], [4.0, 3.0]]


def test_rows_live_on_a_device():
    """array-api-strict's device1 raises on a hidden copy to the host: it stands in for a GPU."""
    device = array_api_strict.Device("device1")
    rows = Rows(array_api_strict.zeros((2, 0, 3), device=device))
    for i in range(20):
        row = array_api_strict.full((2, 3), float(i), device=device)
        new = rows.append(row)
        rows = new.where(np.array([True, i % 2 == 0]), rows)
    assert rows.array.device == device and rows.length.tolist() == [20, 10]
    branch = rows.append(array_api_strict.zeros((2, 3), device=device))
    rows.append(array_api_strict.ones((2, 3), device=device))
    host = array_api_strict.Device("CPU_DEVICE")
    array = np.asarray(array_api_strict.asarray(branch.array, device=host))
    assert array[0, :, 0].tolist() == [*map(float, range(20)), 0.0]
    assert array[1, :11, 0].tolist() == [*map(float, range(0, 20, 2)), 0.0]


def test_attend_is_softmax_attention_over_rows_of_any_number():
    rng = np.random.default_rng(0)
    k, v, q = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 3))
    got = attend(Rows(k, [5, 2]), Rows(v, [5, 2]), q, 0.7)
    for b, n in enumerate((5, 2)):
        weight = np.exp(0.7 * k[b, :n] @ q[b])
        np.testing.assert_allclose(got[b], weight @ v[b, :n] / weight.sum(), rtol=1e-13)
    assert not attend(empty(), empty(width=4), q, 0.7).any()


def test_fade_adds_log_gamma_to_old_rows_and_starts_the_new_one_at_zero():
    bias, k = Rows(np.zeros((2, 0))), np.ones((2, 3))
    for gamma in (0.5, np.array([[0.25], [0.0]])):
        bias = fade(bias, gamma, k)
    np.testing.assert_array_equal(bias.array, [[np.log(0.25), 0], [-np.inf, 0]])

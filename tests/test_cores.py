"""Work shared by threads: everything is done once, errors and NumPy's error state are kept."""

import threading
import warnings

import numpy as np
import pytest

from engine import cores
from engine.draws import Draws


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)


@pytest.mark.parametrize("worth", [-1, 0, 1, 2, 3, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_item_is_called_once(worth, count):
    seen = []
    cores.share(seen.append, range(count), worth)
    assert sorted(seen) == list(range(count))


def test_there_are_no_more_threads_than_the_work_is_worth():
    at_once = threading.Barrier(3, timeout=10)  # breaks unless three are there together
    cores.share(lambda _: at_once.wait(), range(3), 3)
    names = set()
    cores.share(lambda _: names.add(threading.current_thread().name), range(9), 1)
    assert names == {threading.current_thread().name}


@pytest.mark.parametrize("bad", range(4))
def test_an_error_in_any_thread_is_raised(bad):
    def call(item):
        if item == bad:
            raise KeyError(item)

    with pytest.raises(KeyError, match=str(bad)):
        cores.share(call, range(4), 4)


def test_what_numpy_does_about_overflow_holds_in_every_thread():
    big = np.full(3, 1e300)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with np.errstate(over="ignore"):
            cores.share(lambda _: big * big, range(4), 4)
    assert not caught
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        cores.share(lambda _: big * big, range(4), 4)


def test_threads_draw_the_same_numbers(monkeypatch):
    alone = Draws(3, 5)("keys").normal(40, 6)
    monkeypatch.setattr("engine.draws.NUMBERS", 1)
    np.testing.assert_array_equal(Draws(3, 5)("keys").normal(40, 6), alone)

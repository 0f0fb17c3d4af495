"""Wrong arguments of measures, laws and statistics: refused, saying what would be right."""

import numpy as np
import pytest
import xarray as xr

import engine
from engine.measure import capacity, decoding, laws, state, statistics, tracking

S = xr.DataArray(np.ones((5, 2, 3, 4)), dims=("step", "trial", "key", "value"))
KEYS = xr.DataArray(np.ones((5, 2, 3)), dims=("step", "trial", "key"))
x = np.ones((5, 3))

MISTAKES = {
    "no such dim": (lambda: state.norm(KEYS), "argument 1: needs dims key and value; it has step, "
                    "trial, key, no value"),
    "keys for values": (lambda: capacity.cosine(S, KEYS), "argument 2: needs dims value; it has"),
    "too few axes": (lambda: state.effective_rank(np.ones(3)), r"axes must be key and value; its "
                     r"shape is \(3,\)"),
    "lengths": (lambda: capacity.value_error(x, np.ones((5, 4))), "argument 2: value is 4 long, "
                "3 in argument 1; they must be equal"),
    "text": (lambda: state.norm("x"), "argument 1: must be numbers, not str 'x'"),
    "nothing": (lambda: decoding.recalled(x, None, 0), "argument 2: must be numbers, not None"),
    "by": (lambda: decoding.decode(x, x, by="l1"), "by = 'l1' must be 'distance', 'dot' or"),
    "longest": (lambda: tracking.lag(S, S, longest=5), "longest = 5: there are only 5 steps"),
    "negative": (lambda: tracking.lag(S, S, longest=-1), "longest = -1 must be a whole number, 0"),
    "window": (lambda: tracking.smooth(x, 0), "window = 0 must be a whole number, 1 or more"),
    "switch": (lambda: tracking.recovery_time(x, 9, 1.0), "switch = 9 must be one of the 5 steps"),
    "hits": (lambda: statistics.wilson(5, 3), "hits: no more than n may be yes"),
    "hits below 0": (lambda: statistics.wilson(-1, 3), r"hits = -1 must lie in \[0, inf\]"),
    "level": (lambda: statistics.estimate(x, level=95), r"level = 95 must lie in \(0, 1\)"),
    "one to resample": (lambda: statistics.bootstrap(x[:1]), "trials to resample = 1 must be a"),
    "pairs apart": (lambda: statistics.paired(x, x[1:]), "of the same trials: their numbers"),
    "no pairs": (lambda: laws.hebbian_error(0, 8), r"pairs = 0 must lie in \[1, inf\]"),
    "growing": (lambda: laws.decayed_signal(1.5, 3), r"gamma = 1.5 must lie in \[0, 1\]"),
    "never written": (lambda: laws.decayed_interference(0.9, 64, 64, 8), r"age = 64 must lie in "
                      r"\[0, 64\)"),
    "unstable": (lambda: laws.delta_error(2.0, 8, 64), r"beta = 2 must lie in \(0, 2\)"),
    "unstable energy": (lambda: laws.delta_energy(2.0, 8, 3), r"beta = 2 must lie in \(0, 2\)"),
    "no gap": (lambda: laws.titans_growth(0, 0.5, 0.9, 0.1), "gap = 0 must be a whole number, 1"),
    "momentum": (lambda: laws.titans_bound(1.5, 0.0), r"eta = 1.5 must lie in \[0, 1\]"),
    "not a number": (lambda: laws.memory_length(float("nan")), r"gamma = nan must lie in \[0, 1\)"),
    "words": (lambda: laws.memory_length("x"), "gamma = 'x' must be a number in"),
}  # fmt: skip


@pytest.mark.parametrize("call, said", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told(call, said):
    with pytest.raises(engine.InputError, match=said):
        call()

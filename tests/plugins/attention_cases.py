"""Streams for memories that keep rows, slots or levels, and the equations as plain loops."""

import numpy as np
import pytest

import engine

STEPS, TRIALS, KEY, VALUE = 70, 3, 8, 5  # more than two growths of a buffer of rows
SLOTS, LEVELS = 4, 8


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal((STEPS, TRIALS, *shape))


def gates(low, high, *shape, seed=0):
    return np.random.default_rng(seed).uniform(low, high, (STEPS, TRIALS, *shape))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


K, V, Q = draw(KEY, seed=1), draw(VALUE, seed=2), draw(KEY, seed=3)
R, GAMMA, BETA = draw(KEY, seed=4), gates(0.7, 1.0, seed=5), gates(0.0, 1.0, seed=6)
SCALE = KEY**-0.5

CASES = {
    "softmax_attention": ({"scale": SCALE}, {}),
    "nadaraya_watson": ({"bandwidth": 0.8}, {}),
    "forgetting_attention": ({"scale": SCALE}, {"gamma": GAMMA}),
    "path_attention": (
        {"scale": SCALE},
        {"gamma": GAMMA, "beta": BETA, "householder_key": unit(R)},
    ),
    "deltaformer": ({"scale": SCALE}, {"beta": BETA, "address": R}),
    "parallax": ({"scale": SCALE}, {"second_query": R}),
    "gsa": (
        {"slots": SLOTS, "scale": SCALE},
        {"gamma": gates(0.5, 1.0, SLOTS, seed=7), "s": draw(SLOTS, seed=8)},
    ),
    "abc": ({"slots": SLOTS, "scale": SCALE}, {"s": 3.0 * draw(SLOTS, seed=8)}),
    "log_linear_attention": (
        {"levels": LEVELS},
        {"gamma": GAMMA, "level_scales": gates(0.1, 1.0, LEVELS, seed=9)},
    ),
}
each_solver = pytest.mark.parametrize("name", CASES)


def run(name, keys=K, values=V, queries=Q, options=None, mask=None, **coefficients):
    """Simulate a solver and return its Dataset; nothing may diverge."""
    rule = engine.solver(name, **(options or {}))
    ds = engine.simulate(rule, keys, values, queries, mask=mask, **coefficients)
    assert (ds.diverged_at == -1).all()
    return ds


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def by_loop(read):
    """Outputs (step, trial, value) of `read(t, b)`, the equation for one token of one trial."""
    return np.array([[read(t, b) for b in range(TRIALS)] for t in range(STEPS)])


def close(ours, expected, tolerance=1e-11):
    np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance)

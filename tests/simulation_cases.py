"""Streams, solvers and comparisons that the tests of `engine.simulate` share."""

from dataclasses import dataclass

import numpy as np
import pytest

import engine
from engine.api import Gain, KeyDecay
from engine.linear import LinearRule, Token

T, B, D, M = 12, 3, 4, 2

# Name, hyperparameters, and coefficients that vary from step to step.
SOLVERS = {
    "softmax": ("softmax_attention", {"scale": 0.5}, {}),
    "linear": ("linear_attention", {}, {}),
    "linear normalised": ("linear_attention", {"normalise": True, "eps": 0.5}, {}),
    "delta": ("delta", {}, {"beta": (0.1, 1.0)}),
    "longhorn": ("longhorn", {}, {"beta": (0.0, 3.0)}),
    "rls": ("rls", {}, {"gamma": (0.9, 1.0)}),
    "least squares": ("least_squares", {"ridge": 1e-3}, {"gamma": (0.0, 1.0)}),
}
each_solver = pytest.mark.parametrize("case", SOLVERS.values(), ids=SOLVERS.keys())
STATES = ("S", "P", "z", "A", "B", "keys", "values", "rows")


def draw(steps=T, trials=B, key=D, value=M, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    lead = (steps,) if trials is None else (steps, trials)
    return tuple(rng.normal(size=(*lead, n)).astype(dtype) for n in (key, value, key))


def coefficients(case, steps=T, trials=B, seed=1):
    rng = np.random.default_rng(seed)
    lead = (steps,) if trials is None else (steps, trials)
    return {name: rng.uniform(*limits, size=lead) for name, limits in case[2].items()}


def made(case):
    return engine.solver(case[0], **case[1])


def assert_same(got, want):
    """Assert that two arrays have the same bits, dtype and shape."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)  # for the message
    assert got.tobytes() == want.tobytes()


def assert_equal(a, b):
    """Assert that two results have the same bits in every variable."""
    assert set(a.data_vars) == set(b.data_vars) and a.sizes == b.sizes
    for name in a.data_vars:
        assert a[name].dims == b[name].dims
        assert_same(a[name], b[name])


@dataclass(frozen=True)
class Gated(LinearRule):
    """S <- Diag(gamma) S + beta k (v - S^T k)^T: a decay of its own for each key channel."""

    def token(self, k, v, *, gamma: KeyDecay = 1.0, beta: Gain = 1.0) -> Token:
        return Token(write=beta * k, value=v, address=gamma * k, decay=gamma)

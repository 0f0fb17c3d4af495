"""What a stranger writes: a new rule of the linear family in a dozen lines keeps the contract."""

from dataclasses import dataclass

import numpy as np
import pytest

import engine
from engine.api import Array, Decay, Gain, KeyGain
from engine.linear import LinearRule, Token
from engine.testing import solver_checks


@dataclass(frozen=True)
class Erasing(LinearRule):
    """S^ = gamma S; S <- S^ - beta k ((g * k)^T S^) + beta k v^T, g an erase gate per channel."""

    def token(
        self, k: Array, v: Array, *, erase: KeyGain = 1.0, beta: Gain = 1.0, gamma: Decay = 1.0
    ) -> Token:
        return Token(k, v, erase * k, strength=beta, decay=gamma, forgets_first=True)


@pytest.mark.parametrize("check", solver_checks(Erasing()), ids=str)
def test_a_new_linear_rule_keeps_the_whole_contract(check):
    check()


def test_it_is_the_gated_delta_rule_when_every_channel_erases():
    """erase = 1: S^ - beta k (k^T S^) + beta k v^T = S^ + beta k (v - S^^T k)^T."""
    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((2, 50, 3, 8)) / 4
    given = {"beta": rng.uniform(size=(50, 3)), "gamma": rng.uniform(0.5, 1, size=(50, 3))}
    ours = engine.simulate(Erasing(), keys, values, **given)
    theirs = engine.simulate("gated_delta", keys, values, **given)
    np.testing.assert_allclose(ours.S, theirs.S, rtol=0, atol=1e-14)

"""The warning that a delta rule expands what it should correct: strength |k|^2 above 2."""

import warnings

import numpy as np
import pytest

import engine


def run(beta, norm=1.0, solver="delta"):
    keys = np.zeros((200, 4))
    keys[:, 0] = norm
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return engine.simulate(solver, keys, np.ones((200, 1)), beta=beta)


def test_a_unit_key_at_beta_above_two_warns():
    """S_t = 1 - (1 - beta)^t: at 2.1 it reaches 1.1^200 - 1 = 1.899e8."""
    with pytest.raises(engine.StabilityWarning, match=r"2.1 times its error .* at step 0, .*unit"):
        run(2.1)
    with pytest.warns(engine.StabilityWarning):
        keys = np.tile(np.eye(4)[0], (200, 1))
        ds = engine.simulate("delta", keys, np.ones((200, 1)), beta=2.1)
    assert abs(ds.S.values).max() == pytest.approx(1.1**200 - 1, rel=1e-9)


@pytest.mark.parametrize("beta", [0.0, 1.0, 1.9, 2.0])
def test_up_to_two_nothing_is_said(beta):
    assert np.isfinite(run(beta).S.values).all()


def test_the_norm_of_the_key_counts():
    with pytest.raises(engine.StabilityWarning, match="times its error"):
        run(0.1, norm=5.0)


def test_the_implicit_step_never_warns():
    """Longhorn takes back beta k.k / (1 + beta k.k) < 1 of the error, whatever beta."""
    run(1e6, norm=30.0, solver="longhorn")


def test_masked_steps_do_not_count():
    keys = np.ones((5, 1)) * np.array([1.0, 1.0, 9.0, 1.0, 1.0])[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.simulate("delta", keys, np.ones((5, 1)), mask=keys[:, 0] < 2, beta=1.0)

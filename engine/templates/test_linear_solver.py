"""The contract of every solver, and what new_solver promises."""

from __future__ import annotations

import numpy as np
import pytest

import engine
from engine.templates.linear_solver import NewSolver
from engine.testing import Check, solver_checks


@pytest.mark.parametrize("check", solver_checks(NewSolver()), ids=str)
def test_the_contract(check: Check) -> None:
    """Shapes, dtypes, masks, trials, blocks, backends, costs, and fast forms equal to the loop."""
    check()


def test_a_pair_is_read_back_at_once() -> None:
    """Where beta |k|^2 = 1 the write leaves no error along k: S^T k = v."""
    rng = np.random.default_rng(0)
    keys, values = engine.view("unit")(rng.standard_normal((40, 4))), rng.standard_normal((40, 3))
    run = engine.simulate(NewSolver(), keys, values, beta=1.0, gamma=0.9)
    np.testing.assert_allclose(run.output, values, rtol=0, atol=1e-12)


def test_what_is_not_written_decays() -> None:
    """A key orthogonal to all that follow: S^T k = gamma^n v after n more steps."""
    keys, values = np.eye(2)[[0, 1, 1, 1]], np.ones((4, 1))
    S = engine.simulate(NewSolver(), keys, values, beta=1.0, gamma=0.5).S.values
    np.testing.assert_allclose(S[:, 0, 0], [1.0, 0.5, 0.25, 0.125], rtol=1e-12)

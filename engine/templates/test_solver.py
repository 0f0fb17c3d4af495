"""The contract of every solver, and what new_solver promises."""

from __future__ import annotations

import numpy as np
import pytest

import engine
from engine.templates.solver import NewSolver
from engine.testing import Check, solver_checks


@pytest.mark.parametrize("check", solver_checks(NewSolver()), ids=str)
def test_the_contract(check: Check) -> None:
    """Shapes, dtypes, masks, trials, blocks, backends, costs."""
    check()


def test_small_errors_make_it_the_delta_rule() -> None:
    """|e| <= limit leaves e as it is."""
    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((2, 40, 4))
    ours = engine.simulate(NewSolver(limit=1e6), keys, values, beta=0.1)
    delta = engine.simulate("delta", keys, values, beta=0.1, kernel="loop")
    np.testing.assert_allclose(ours.S, delta.S, rtol=1e-12)


def test_an_outlier_moves_the_fit_no_further_than_the_limit() -> None:
    """|S_t - S_{t-1}| = beta |k| min(|e|, limit)."""
    keys, values = np.tile([0.6, 0.8], (3, 1)), np.array([[3.0], [1e9], [-1e9]])
    S = engine.simulate(NewSolver(limit=2.0), keys, values, beta=0.5).S.values
    moved = np.linalg.norm(np.diff(S, axis=0, prepend=0.0), axis=(1, 2))
    np.testing.assert_allclose(moved, 1.0, rtol=1e-12)

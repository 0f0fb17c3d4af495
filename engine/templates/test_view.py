"""The contract of every view, and what new_view promises."""

from __future__ import annotations

import numpy as np
import pytest

import engine
from engine.templates.view import NewView
from engine.testing import Check, view_checks


@pytest.mark.parametrize("check", view_checks(NewView()), ids=str)
def test_the_contract(check: Check) -> None:
    """Sizes, dtypes, rows and backends."""
    check()


def test_least_squares_through_it_finds_the_intercept() -> None:
    """Where v = W^T k + b exactly, S is W over b."""
    rng = np.random.default_rng(0)
    keys, W, b = rng.standard_normal((50, 3)), rng.standard_normal((3, 2)), np.array([2.0, -1.0])
    run = engine.simulate(engine.solver("rls", ridge=1e-8), NewView()(keys), keys @ W + b)
    np.testing.assert_allclose(run.S[-1], np.vstack([W, b]), rtol=0, atol=1e-6)

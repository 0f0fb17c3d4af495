"""Every registered plugin goes through the one contract."""

import pytest

import engine
from engine.testing import generator_checks, solver_checks, view_checks

SOLVERS = [c for name in engine.solvers() for c in solver_checks(engine.solver(name))]


@pytest.mark.parametrize("check", SOLVERS, ids=str)
def test_solver(check):
    check()


@pytest.mark.parametrize("name", engine.solvers())
def test_built_in_solvers_say_what_they_are(name):
    card = engine.solvers()[name].cls.card
    for text in (card.history, card.model, card.inner, card.error, card.stable, card.lost):
        assert text


GENERATORS = [
    c
    for name in engine.generators()
    if name != "stored"
    for c in generator_checks(engine.generator(name))
]


@pytest.mark.parametrize("check", GENERATORS, ids=str)
def test_generator(check):
    check()


@pytest.mark.parametrize(
    "check", [c for name in engine.views() for c in view_checks(engine.view(name))], ids=str
)
def test_view(check):
    check()

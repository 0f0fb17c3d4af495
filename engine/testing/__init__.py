"""The contract of plugins, as named checks that anybody can run on their own.

    @pytest.mark.parametrize("check", engine.testing.solver_checks(MyRule()), ids=str)
    def test_contract(check):
        check()

`engine plugins check NAME` runs the same. A plugin class may list checks that it cannot pass, with
a reason each, in a class attribute ``contract_exceptions = {"check name": "reason"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from engine.api import Generator, Solver, View
from engine.testing import solvers, streams

NEEDS_STRICT = ("strict_arrays", "chunks_equal_loop")
"""Checks that run on array-api-strict's second device."""


@dataclass(frozen=True)
class Check:
    """One named check of one plugin; call it, and it raises AssertionError if the plugin fails."""

    name: str
    subject: Any
    run: Callable[[Any], None]

    def __call__(self) -> None:
        """Run it; a check that the plugin says it cannot pass must fail."""
        outcome = _outcome(self)
        if outcome.result == "failed":
            raise AssertionError(f"{self.name}: {outcome.reason}")

    def __str__(self) -> str:
        return f"{type(self.subject).__name__}-{self.name}"

    @property
    def exception(self) -> str | None:
        """Why the plugin says that it cannot pass, if it does."""
        reasons: Mapping[str, str] = getattr(self.subject, "contract_exceptions", {})
        return reasons.get(self.name)


@dataclass(frozen=True)
class Outcome:
    """What came of a check: "passed", "failed", "excepted" or "skipped", and why."""

    name: str
    result: str
    reason: str = ""


def check_solver(solver: Solver) -> list[Outcome]:
    """Run every check on a solver and return the outcomes."""
    return [_outcome(check) for check in solver_checks(solver)]


def check_generator(generator: Generator) -> list[Outcome]:
    """Run every check on a generator and return the outcomes."""
    return [_outcome(check) for check in generator_checks(generator)]


def check_view(view: View) -> list[Outcome]:
    """Run every check on a view and return the outcomes."""
    return [_outcome(check) for check in view_checks(view)]


def solver_checks(solver: Solver) -> list[Check]:
    """Return every check for a solver, to parametrise a test with."""
    return _checks(solver, solvers.CHECKS)


def generator_checks(generator: Generator) -> list[Check]:
    """Return every check for a generator, to parametrise a test with."""
    return _checks(generator, streams.GENERATOR_CHECKS)


def view_checks(view: View) -> list[Check]:
    """Return every check for a view, to parametrise a test with."""
    return _checks(view, streams.VIEW_CHECKS)


def _checks(subject: Any, table: Mapping[str, Callable[[Any], None]]) -> list[Check]:
    unknown = set(getattr(subject, "contract_exceptions", {})) - set(table)
    assert not unknown, f"contract_exceptions names no check: {sorted(unknown)}"
    return [Check(name, subject, run) for name, run in table.items()]


def _outcome(check: Check) -> Outcome:
    if check.name in NEEDS_STRICT and find_spec("array_api_strict") is None:
        return Outcome(check.name, "skipped", "array-api-strict is not installed: extra `test`")
    try:
        check.run(check.subject)
    except Exception as error:  # a stranger's plugin may fail in any way; each is an outcome
        if check.exception is not None:
            return Outcome(check.name, "excepted", check.exception)
        text = (
            str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        )
        return Outcome(check.name, "failed", text)
    if check.exception is not None:
        return Outcome(check.name, "failed", f"passes, though it is excepted: {check.exception}")
    return Outcome(check.name, "passed")

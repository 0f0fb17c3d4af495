"""The contract of plugins, as named checks that anybody can run on their own.

    @pytest.mark.parametrize("check", engine.testing.solver_checks(MyRule()), ids=str)
    def test_contract(check):
        check()

`engine plugins check NAME` runs the same. What fails is told with the smallest stream on which it
does. A plugin class may list checks that it cannot pass, with
a reason each, in a class attribute ``contract_exceptions = {"check name": "reason"}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from engine.api import Generator, Solver, View
from engine.errors import RunError
from engine.testing import examples, solvers, streams
from engine.testing.compare import Case, Contract, shrunk

NEEDS_STRICT = ("strict_arrays", "chunks_equal_loop")
"""Checks that run on array-api-strict's second device."""


@dataclass(frozen=True)
class Check:
    """One named check of one plugin; call it, and it raises AssertionError if the plugin fails."""

    name: str
    subject: Any
    contract: Contract

    def __call__(self) -> None:
        """Run it; a check that the plugin says it cannot pass must fail."""
        outcome = _outcome(self)
        if outcome.result == "failed":
            small = f" (smallest: {outcome.smallest})" if outcome.smallest else ""
            raise AssertionError(f"{self.name}: {outcome.reason}{small}")

    def __str__(self) -> str:
        return f"{type(self.subject).__name__}-{self.name}"

    @property
    def exception(self) -> str | None:
        """Why the plugin says that it cannot pass, if it does."""
        reasons: Mapping[str, str] = getattr(self.subject, "contract_exceptions", {})
        return reasons.get(self.name)


@dataclass(frozen=True)
class Outcome:
    """What came of a check: "passed", "failed", "excepted" or "skipped", and why.

    Of what failed, `smallest` is the smallest input on which it does so in the same way, which the
    reason is about, `case` its lengths.
    """

    name: str
    result: str
    reason: str = ""
    smallest: str = ""
    case: Case | None = None


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


def _checks(subject: Any, table: Mapping[str, Contract]) -> list[Check]:
    unknown = set(getattr(subject, "contract_exceptions", {})) - set(table)
    assert not unknown, f"contract_exceptions names no check: {sorted(unknown)}"
    return [Check(name, subject, contract) for name, contract in table.items()]


def _outcome(check: Check) -> Outcome:
    if check.name in NEEDS_STRICT and find_spec("array_api_strict") is None:
        return Outcome(check.name, "skipped", "array-api-strict is not installed: extra `test`")
    found = _error(check, check.contract.start)
    if found is None and check.exception is not None:
        reason = f"passes, though it is excepted: {check.exception}"
        return Outcome(check.name, "failed", reason)
    if found is None:
        return Outcome(check.name, "passed")
    if check.exception is not None:
        return Outcome(check.name, "excepted", check.exception)

    way = _way(found)

    def fails(case: Case) -> bool:
        error = _error(check, case)
        return error is not None and _way(error) is way

    case = shrunk(fails, check.contract)
    error = _error(check, case) or found  # a rule that keeps count may fail once only
    text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    return Outcome(check.name, "failed", text, _told(check, case), case)


def _error(check: Check, case: Case) -> BaseException | None:
    """Return what a check raises, if anything: a stranger's plugin may raise whatever there is."""
    try:
        check.contract.run(check.subject, case)
    except (Exception, SystemExit) as error:
        return error
    return None


def _way(error: BaseException) -> type:
    """Return in which way a check failed: by what type of error, or that of a rule that raised."""
    return type(error.__cause__ if isinstance(error, RunError) and error.__cause__ else error)


def _told(check: Check, case: Case) -> str:
    """Return the lengths of a case, its masked steps, and its numbers if they are few."""
    named = {"steps": "T", "trials": "trials", "key": "key", "value": "value"}
    told = [f"{named[size]} = {getattr(case, size)}" for size in check.contract.shrinks]
    told += [f"step {step} of trial {trial} masked" for step, trial in case.masked]
    if told and check.contract in solvers.CHECKS.values():
        told.append(examples.shown(check.subject, case))
    return ", ".join(filter(None, told))

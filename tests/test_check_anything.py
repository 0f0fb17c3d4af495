"""`engine plugins check` on whatever can be loaded, and the smallest input on which it fails."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from engine import ops
from engine.api import Decay, Gain, Generator, View
from engine.testing import check_generator, check_solver, check_view
from engine.testing.compare import Case, Contract, masking, shrunk

from .test_contract_faults import Right, State

# ------------------------------------------------------------------ the smallest that still fails


def plain(case):
    return (case.steps, case.trials, case.key, case.value, case.masked)


@pytest.mark.parametrize(
    "fails, smallest",
    [
        (lambda c: True, (1, 1, 1, 1, ())),
        (lambda c: c.steps >= 17, (17, 1, 1, 1, ())),
        (lambda c: c.trials >= 2 and c.key >= 5, (1, 2, 5, 1, ())),
        (lambda c: c.steps > c.key >= 3 and c.value >= c.trials, (4, 1, 3, 1, ())),
        (lambda c: c.steps * c.key >= 24, (4, 1, 6, 1, ())),  # no length alone can be smaller
    ],
)
def test_no_length_and_no_masked_step_of_it_can_be_less(fails, smallest):
    start = masking(Case(), 1, 0.6)
    assert fails(start)
    found = shrunk(fails, Contract(lambda *_: None, start))
    assert fails(found) and plain(found) == smallest
    for size in ("steps", "trials", "key", "value"):
        assert getattr(found, size) == 1 or not fails(found.cut(size, getattr(found, size) - 1))


def test_what_need_not_be_masked_is_not():
    start = masking(Case(), 1, 0.6)
    found = shrunk(lambda c: not c.mask[:, 0].all(), Contract(lambda *_: None, start))
    ((step, trial),) = found.masked
    assert (step, trial) in start.masked
    assert plain(found) == (step + 1, 1, 1, 1, ((step, 0),))


# --------------------------------------------------------------------------------- planted faults


class Neighbour(Right):
    """Looks at the trial beside it."""

    def write(self, s, k, v, *, beta: Gain = 0.5):
        return State(s.S + ops.outer(beta * k, v - v.mean(axis=0, keepdims=True)))


class Pairs(Right):
    """Needs two entries of a key."""

    def write(self, s, k, v, *, beta: Gain = 0.5):
        if k.shape[-1] >= 2:
            raise ZeroDivisionError("no pairs here")
        return super().write(s, k, v, beta=beta)


class Scaled(Right):
    """Multiplies a matrix by a scalar's column: fits only some batches."""

    def write(self, s, k, v, *, beta: Gain = 0.5, gamma: Decay = 0.9):
        return State(gamma * s.S + ops.outer(beta * k, v))


class Leaves(Right):
    """Ends the process."""

    def write(self, s, k, v, *, beta: Gain = 0.5):
        sys.exit(0)


class Unasked(Right):
    """Says something of nothing, in every second value."""

    def read(self, s, q):
        o = ops.vecmat(q, s.S)
        return o + np.where(np.arange(o.shape[-1]) == 1, 1.0, 0.0)


PLANTED = [
    (Neighbour(), "trial_alone", Case(1, 2, 1, 1), "trial 0 alone against in a batch: "),
    (Pairs(), "dims_match", Case(1, 1, 2, 1), "ZeroDivisionError: no pairs here"),
    (Scaled(), "split_anywhere", Case(1, 2, 1, 1), "ValueError: "),
    (Leaves(), "dims_match", Case(1, 1, 1, 1), "SystemExit: 0"),
    (Leaves(), "inputs_untouched", Case(1, 1, 1, 1), "SystemExit: 0"),
    (Unasked(), "empty_reads_zeros", Case(1, 1, 1, 2), "reads [0. 1.]"),
]


@pytest.mark.parametrize("solver, name, case, said", PLANTED)
def test_a_fault_is_shown_on_the_smallest_stream(solver, name, case, said):
    outcome = {o.name: o for o in check_solver(solver)}[name]
    assert (outcome.result, outcome.case) == ("failed", case)
    assert said in outcome.reason
    told = f"T = {case.steps}, trials = {case.trials}, key = {case.key}, value = {case.value}, keys"
    assert outcome.smallest.startswith(told) and "values = [[[" in outcome.smallest


def test_a_fault_of_masked_steps_is_shown_with_one_of_them(monkeypatch):
    """A host that lets a masked write decay the state: one masked step behind one write."""
    from engine import testing
    from engine.testing import solvers

    def decays(solver, case):
        S = 0.0
        for written in case.mask[:, 0]:
            before, S = S, (1.0 if written else 0.5 * S)
            if not written and before != S:
                raise AssertionError("state at a masked step")

    table = {"mask_keeps_state": Contract(decays, solvers.CHECKS["mask_keeps_state"].start)}
    monkeypatch.setattr(solvers, "CHECKS", table)
    (outcome,) = testing.check_solver(Right())
    assert len(outcome.case.masked) == 1 and outcome.case.trials == 1
    (step, _), steps = outcome.case.masked[0], outcome.case.steps
    assert steps == step + 1 and f"step {step} of trial 0 masked" in outcome.smallest
    assert step >= 1 and outcome.reason == "state at a masked step"


@dataclass(frozen=True)
class Blocky(Generator):
    """Numbers its pairs anew in every block."""

    def start(self, draws, steps):
        return None

    def draw(self, state, draws, steps):
        keys = draws("keys").normal(len(steps), 2)
        return state, {"keys": keys + np.arange(len(steps))[:, None, None], "values": keys}


@dataclass(frozen=True)
class Narrow(View):
    """Says that it keeps the length, and halves it."""

    def __call__(self, x):
        return x[..., : (x.shape[-1] + 1) // 2]


def test_a_generator_and_a_view_fail_on_the_smallest_too():
    made = {o.name: o for o in check_generator(Blocky())}["blocks_agree"]
    assert (made.result, made.case.steps, made.case.trials) == ("failed", 2, 1)
    assert made.smallest == "T = 2, trials = 1"
    seen = {o.name: o for o in check_view(Narrow())}["size_as_declared"]
    assert (seen.result, seen.smallest) == ("failed", "T = 1, trials = 1, key = 2")
    assert seen.reason == "maps (1, 1, 2) to (1, 1, 1), not (1, 1, 2)"


# ------------------------------------------------------------------------- whatever can be loaded

PLUGIN = Path(__file__).parents[1] / "engine" / "templates"
MIXING = """
from dataclasses import dataclass
from engine import ops
from engine.templates.solver import NewSolver, NewSolverState
from engine.api import Gain, hookimpl

@dataclass(frozen=True)
class Mixing(NewSolver):
    def write(self, s, k, v, *, beta: Gain = 0.5):
        return NewSolverState(s.S + ops.outer(beta * k, v - v.mean(axis=0, keepdims=True)))

def build(): ...
"""
HOOK = '@hookimpl\ndef engine_solvers():\n    return {"mixing": Mixing}\n'


@pytest.fixture
def folder(own_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mixed.py").write_text(MIXING + HOOK)
    (tmp_path / "loose_mixed.py").write_text(MIXING)
    (tmp_path / "torn_mixed.py").write_text("import nowhere_at_all")
    yield tmp_path
    for name in ("loose_mixed", "torn_mixed"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "target, head",
    [
        ("mine/mixed.py", "solver mixing"),
        ("loose_mixed:Mixing", "solver Mixing"),
        ("mixing", "solver mixing"),
    ],
)
def test_a_file_a_class_and_a_name_are_checked(target, head, folder, call):
    extra = ["--plugins-dir", "mine"] if target == "mixing" else []
    code, out, err = call("plugins", "check", target, *extra)
    assert (code, err) == (1, "") and out.startswith(head)
    row = next(line for line in out.splitlines() if line.strip().startswith("trial_alone"))
    assert "failed" in row and "trial 0 alone against in a batch" in row
    small = out.partition("smallest input that fails:\n")[2]
    assert "trial_alone" in small and ": T = 1, trials = 2, key = 1, value = 1, keys = " in small


@pytest.mark.parametrize("kind", ["solver", "linear_solver", "generator", "view"])
def test_a_class_of_every_kind_is_known_by_what_it_has(kind, own_folder, call):
    word = kind.removeprefix("linear_")
    made = f"engine.templates.{kind}:New{word.title()}"
    code, out, err = call("plugins", "check", made)
    assert (code, err) == (0, "") and out.startswith(f"{word} New") and "smallest" not in out
    code, out, _ = call("plugins", "check", PLUGIN / f"{kind}.py")
    assert code == 0 and out.startswith(f"{word} new_{word}")


def test_options_are_given_to_a_class_too(own_folder, call):
    made = "engine.templates.solver:NewSolver"
    assert call("plugins", "check", made, "--set", "limit=2.0")[0] == 0
    code, _, err = call("plugins", "check", made, "--set", "limit=-1.0")
    assert code == 2 and "NewSolver: limit = -1.0 must be above 0" in err


MISTAKES = {
    "no file": ("mine/none.py", "'mine/none.py' is not a file"),
    "torn": ("torn_mixed.py", "torn_mixed.py: ModuleNotFoundError: No module named 'nowhere_at"),
    "no hooks": ("loose_mixed.py", "it provides nothing; mark engine_solvers"),
    "no class": ("loose_mixed:Mixin", "no class 'Mixin'; did you mean 'Mixing'?"),
    "no module": ("nowhere_at_all:Mixing", "cannot import nowhere_at_all: ModuleNotFoundError"),
    "a path": ("mine/mixed:Mixing", "'mine/mixed' is no module; write module:Class"),
    "torn module": ("torn_mixed:X", "cannot import torn_mixed: ModuleNotFoundError"),
    "a function": ("loose_mixed:build", "loose_mixed:build: is no plugin: a solver has init, "),
    "a state": ("engine.templates.solver:NewSolverState", "is no plugin"),
    "not of ours": ("pathlib:Path", "is no plugin"),
    "a name": ("mixin", "no plugin is named 'mixin'; "),
}


@pytest.mark.parametrize("target, said", MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_loaded_is_said(target, said, folder, call):
    code, out, err = call("plugins", "check", target)
    assert (code, out) == (2, "") and err.startswith("error: ") and said in err

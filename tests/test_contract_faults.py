"""Each check of the contract fails a rule that breaks it: the delta rule with one fault."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import pytest

from engine import ops
from engine.api import Array, Card, Gain
from engine.linear import LinearRule, Token
from engine.testing import check_solver, solver_checks


class State(NamedTuple):
    S: Annotated[Array, "key value"]


@dataclass(frozen=True)
class Right:
    """S <- S + beta k (v - S^T k)^T."""

    def init(self, space):
        return State(space.zeros("key value"))

    def write(self, s, k, v, *, beta: Gain = 0.5):
        return State(s.S + ops.outer(beta * k, v - ops.vecmat(k, s.S)))

    def read(self, s, q):
        return ops.vecmat(q, s.S)


class Turned(Right):
    def init(self, space):
        return State(space.zeros("value key"))


class InPlace(Right):
    def write(self, s, k, v, *, beta: Gain = 0.5):
        s.S[...] += ops.outer(beta * k, v - ops.vecmat(k, s.S))
        return s


class Widening(Right):
    def write(self, s, k, v, *, beta: Gain = 0.5):
        return State((s.S + ops.outer(beta * k, v - ops.vecmat(k, s.S))) * np.ones(1, np.float64))


class Mixing(Right):
    def write(self, s, k, v, *, beta: Gain = 0.5):
        return State(s.S + ops.outer(beta * k, v - v.mean(axis=0, keepdims=True)))


class Counting(Right):
    seen: ClassVar[list] = []

    def write(self, s, k, v, *, beta: Gain = 0.5):
        self.seen.append(1)
        return State(s.S + ops.outer(beta * k / len(self.seen), v))


class Talkative(Right):
    def read(self, s, q):
        return ops.vecmat(q, s.S) + 1.0


class Flat(Right):
    def read(self, s, q):
        return np.einsum("bk,bkv->bv", q, s.S)


class Hosted(Right):
    def read(self, s, q):
        return ops.vecmat(q, s.S) + 0.0 * np.asarray(s.S)[:, 0, :]


@dataclass(frozen=True)
class Boasting(Right):
    card: ClassVar[Card] = Card("", "", "", "", "", "dk", "0", "0", "")


@dataclass(frozen=True)
class Looking(LinearRule):
    def token(self, k, v, *, beta: Gain = 0.5):
        return Token(k, v, k, strength=beta * ops.dot(k, k) / (k * k).sum())


class Exploding(Right):
    def write(self, s, k, v, *, beta: Gain = 9.0):
        return super().write(s, k, v, beta=1e30 * beta)


def unpicklable():
    class Local(NamedTuple):
        S: Annotated[Array, "key value"]

    @dataclass(frozen=True)
    class Hidden(Right):
        def init(self, space):
            return Local(space.zeros("key value"))

        def write(self, s, k, v, *, beta: Gain = 0.5):
            return Local(super().write(s, k, v, beta=beta).S)

    return Hidden()


FAULTS = {
    "dims_match": Turned(),
    "inputs_untouched": InPlace(),
    "dtype_kept": Widening(),
    "trial_alone": Mixing(),
    "split_anywhere": Counting(),
    "empty_reads_zeros": Talkative(),
    "reads_at_once": Flat(),
    "state_pickles": unpicklable(),
    "strict_arrays": Hosted(),
    "cost_as_declared": Boasting(),
    "token_is_pure": Looking(),
    "finite_where_stable": Exploding(),
}


def failed(solver):
    return {o.name for o in check_solver(solver) if o.result == "failed"}


def test_the_right_rule_keeps_the_contract():
    assert not failed(Right())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check(name):
    assert name in failed(FAULTS[name])


def test_an_exception_is_listed_with_its_reason_and_must_be_needed():
    class Known(Talkative):
        contract_exceptions: ClassVar[dict] = {"empty_reads_zeros": "it always says one"}

    outcomes = {o.name: o for o in check_solver(Known())}
    assert outcomes["empty_reads_zeros"].result == "excepted"
    assert outcomes["empty_reads_zeros"].reason == "it always says one"
    for check in solver_checks(Known()):
        check()  # as a parametrised test runs it

    class Needless(Right):
        contract_exceptions: ClassVar[dict] = {"empty_reads_zeros": "not so"}

    assert failed(Needless()) == {"empty_reads_zeros"}

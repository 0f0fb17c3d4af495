"""The loop: a number depends on nothing but its own trial's past."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pytest

import engine
from engine.api import Array, Rows
from engine.sources import ArraySource, Fingerprint, GeneratorSource

from .loop_cases import SOLVERS, arrays, assert_same, everything, make_track, of_trial

RANGES = {"beta": (0.0, 1.0), "gamma": (0.9, 1.0)}
VIEWS = [None, "unit", "elu1", "exp"]


# What a number depends on


@pytest.mark.parametrize("view", [None, "elu1"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
@pytest.mark.parametrize(("key", "value"), [(1, 1), (4, 1), (1, 3), (7, 5), (33, 17)])
def test_a_trial_alone_is_that_trial_in_a_batch(solver, view, dtype, key, value):
    """Bit for bit, masks and coefficients included, in the middle of the batch and at its ends."""
    given = arrays(24, 4, key, value, dtype=dtype)
    rng = np.random.default_rng(1)
    given["mask"] = rng.random((24, 4)) < 0.9
    own = {n: rng.uniform(*limits, size=(24, 4, 1)) for n, limits in RANGES.items()}
    batch = everything(s := ArraySource(given), make_track(s, solver, view, dtype, **own), 24)
    for b in (0, 2, 3):
        source = ArraySource({n: x[:, b : b + 1] for n, x in given.items()})
        mine = {n: x[:, b : b + 1] for n, x in own.items()}
        alone = everything(source, make_track(source, solver, view, dtype, **mine), 24)
        for name, x in alone.items():
            assert x.tobytes() == of_trial(name, batch[name], b, len(x)).tobytes(), (name, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
def test_blocks_change_no_bit(solver, view, dtype):
    given = arrays(150, dtype=dtype)
    rng = np.random.default_rng(1)
    given["mask"] = rng.random((150, 3)) < 0.9
    own = {n: rng.uniform(*limits, size=(150, 3, 1)) for n, limits in RANGES.items()}
    source = ArraySource(given)
    want = everything(source, make_track(source, solver, view, dtype, **own), 1000)
    for block in (1, 7, 64, 150):
        got = everything(source, make_track(source, solver, view, dtype, **own), block)
        assert_same(got, want)


def test_the_fingerprint_of_a_stream_does_not_depend_on_its_blocks():
    plain = {"generator": "random", "key": 4, "value": 2, "priority": 0.5}
    name = plain.pop("generator")
    source = GeneratorSource(engine.generator(name, **plain), seed=1, trials=2, steps=100)
    digests = set()
    for block in (1, 7, 64, 1000):
        fingerprint = Fingerprint()
        for tokens in source.blocks(block):
            fingerprint.update(tokens)
        digests.add(fingerprint.hexdigest())
    other = Fingerprint()
    for tokens in GeneratorSource(engine.generator(name, **plain), 2, 2, 100).blocks(64):
        other.update(tokens)
    assert len(digests) == 1 and other.hexdigest() not in digests


@pytest.mark.parametrize("junk", [0.0, 1e6, np.nan])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
def test_padding_changes_no_bit_of_the_stream_before_it(solver, junk):
    """flash-linear-attention 1272: lengths 5 and 9, decays of .1 at the padding."""
    given = arrays(9, 2)
    given["mask"] = np.ones((9, 2), bool)
    given["mask"][5:, 0] = False
    del given["queries"]
    short = ArraySource({n: x[:5, :1].copy() for n, x in given.items()})
    for name in ("keys", "values"):
        given[name][5:, 0] = junk
    gates = {"beta": np.full((9, 2, 1), 0.7), "gamma": np.full((9, 2, 1), 0.95)}
    gates["beta"][5:, 0] = gates["gamma"][5:, 0] = 0.1
    source = ArraySource(given)
    padded, alone = make_track(source, solver, **gates), make_track(short, solver,
        **{n: x[:5, :1] for n, x in gates.items()})  # fmt: skip
    got, want = everything(source, padded, 4), everything(short, alone, 5)
    for name, x in want.items():
        assert of_trial(name, got[name], 0, len(x)).tobytes() == x.tobytes(), name
    # Steps past the end are marked missing, not repeated.
    assert np.isnan(got["prediction"][5:, 0]).all() and np.isnan(got["output"][5:, 0]).all()
    assert np.isfinite(got["output"][5:, 1]).all()
    assert got["diverged_at"].tolist() == [-1, -1]


# Divergence


@pytest.mark.parametrize("block", [1, 3, 7, 1000])
def test_the_first_step_that_is_not_finite_is_found_in_any_block(block):
    given = arrays(30)
    for trial, step in ((0, 6), (2, 7)):
        given["values"][step, trial] = np.inf
    source = ArraySource(given)
    track = make_track(source, SOLVERS["delta"])
    assert everything(source, track, block)["diverged_at"].tolist() == [6, -1, 7]


def test_integers_and_rows_do_not_diverge():
    class Count(NamedTuple):
        n: Annotated[Array, ""]
        kept: Annotated[Rows, "row key"]

    @dataclass(frozen=True)
    class Counting:
        def init(self, space):
            return Count(space.xp.zeros(space.lead, dtype=space.xp.int64), space.rows("key"))

        def write(self, s, k, v):
            return Count(s.n + 1, s.kept.append(k))

        def read(self, s, q):
            return 0 * q[..., :2]

    given = arrays(10)
    source = ArraySource(given)
    track = make_track(source, Counting())
    got = everything(source, track, 4)
    assert got["diverged_at"].tolist() == [-1] * 3
    assert got["n"].dtype == np.int64 and got["n"][:, 0].tolist() == list(range(1, 11))
    assert got["rows"][:, 0].tolist() == list(range(1, 11))
    assert got["last kept"].tobytes() == given["keys"].tobytes()

"""How generators are run and compared: functions, as fixtures. Streams of the linear family."""

import numpy as np
import pytest

from engine.api import Draws

from .linear_family_cases import Draw


@pytest.fixture(scope="session")
def drive():
    """Run a generator as a host does; return its per-step arrays and its facts."""

    def run(generator, steps, *, block=64, trials=3, seed=123, told=True):
        draws = Draws(seed, trials)
        state = generator.start(draws, steps if told else None)
        parts = []
        for a in range(0, steps, block):
            state, out = generator.draw(state, draws, range(a, min(a + block, steps)))
            parts.append(out)
        arrays = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        return arrays, generator.facts(state)

    return run


@pytest.fixture(scope="session")
def assert_same():
    """Assert that two mappings hold the same bits."""

    def check(got, want):
        assert got.keys() == want.keys()
        for name in want:
            assert got[name].dtype == want[name].dtype, name
            assert got[name].tobytes() == want[name].tobytes(), name

    return check


@pytest.fixture(scope="session")
def assert_mean():
    """Assert that a mean lies within 4 standard errors, entry by entry."""

    def check(samples, expected, axis=0, within=4.0):
        samples = np.asarray(samples, dtype=np.float64)
        error = samples.std(axis=axis, ddof=1) / np.sqrt(samples.shape[axis])
        deviation = np.abs(samples.mean(axis=axis) - expected)
        assert (deviation <= within * error + 1e-12).all(), (deviation / error).max()

    return check


@pytest.fixture
def draw():
    return Draw()

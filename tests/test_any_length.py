"""Streams of any length in blocks of any size, for every registered solver; ragged batches."""

import numpy as np
import pytest

import engine
from engine.loop import loop
from engine.sources import ArraySource
from engine.testing.examples import example, tracked


@pytest.mark.parametrize("steps", [0, 1, 5, 63, 65])
@pytest.mark.parametrize("name", engine.solvers())
def test_every_block_size_gives_the_bits_of_one_block(name, steps):
    """titans-pytorch issue 59, flash-linear-attention issue 98: short and odd lengths were lost."""
    given = example(engine.solver(name), steps=steps)
    source = ArraySource({"keys": given.keys, "values": given.values})
    runs = []
    for block in (2000, 2, 64):
        one = tracked(engine.solver(name), given)
        frames = [frame.traces["checked"].variables for frame in loop(source, [one], block)]
        assert sum(len(f["output"]) for f in frames) == steps
        joined = {n: np.concatenate([f[n] for f in frames]) for n in frames[0]} if frames else {}
        final = {f"final {n}": x for n, x in one.arrays().items()}
        runs.append({**joined, **final})
    for other in runs[1:]:
        assert other.keys() == runs[0].keys()
        for variable, x in runs[0].items():
            assert np.array_equal(x, other[variable], equal_nan=True), variable


@pytest.mark.parametrize("padding", [0.0, 1e6, np.nan])
@pytest.mark.parametrize("kernel", ["loop", "auto"])
def test_padding_neither_writes_nor_decays(padding, kernel):
    """flash-linear-attention issue 1272: gated delta, lengths 5 and 9, decays of .1 at the pads."""
    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((2, 9, 2, 8)) / 3
    beta, gamma = rng.uniform(size=(9, 2)), rng.uniform(0.5, 1, size=(9, 2))
    alone = engine.simulate(
        "gated_delta", keys[:5, :1], values[:5, :1], beta=beta[:5, :1], gamma=gamma[:5, :1],
        kernel=kernel,
    )  # fmt: skip
    mask = np.ones((9, 2), bool)
    mask[5:, 0] = False
    keys[5:, 0], values[5:, 0], gamma[5:, 0] = padding, padding, 0.1
    ds = engine.simulate(
        "gated_delta", keys, values, mask=mask, beta=beta, gamma=gamma, kernel=kernel
    )
    assert np.array_equal(ds.S.isel(trial=0, step=-1), alone.S.isel(trial=0, step=-1))
    assert np.isnan(ds.prediction.values[5:, 0]).all() and np.isnan(ds.output.values[5:, 0]).all()
    assert np.isfinite(ds.output.values[:, 1]).all()

"""The checks of a generator and of a view."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.api import Array, Generator, View
from engine.backend import backend
from engine.sources import GeneratorSource
from engine.testing.compare import Case, Contract, same


def _draw(
    generator: Generator, steps: int, trials: int, block: int, seed: int = 0
) -> dict[str, Array]:
    source = GeneratorSource(generator, seed, trials, steps)
    blocks = [source.sample, *(tokens.arrays for tokens in source.blocks(block))]
    return {name: np.concatenate([b[name] for b in blocks]) for name in source.sample}


def _room(generator: Generator, case: Case) -> tuple[int, int]:
    extent = generator.extent()
    return min(extent.steps or case.steps, case.steps), min(
        extent.trials or case.trials, case.trials
    )


def _blocks_agree(generator: Generator, case: Case) -> None:
    steps, trials = _room(generator, case)
    whole = _draw(generator, steps, trials, steps)
    for block in (1, 7):
        same(whole, _draw(generator, steps, trials, block), f"blocks of {block} steps")


def _length_agrees(generator: Generator, case: Case) -> None:
    steps, trials = _room(generator, case)
    whole, half = (
        _draw(generator, steps, trials, steps),
        _draw(generator, steps // 2, trials, steps),
    )
    same(half, {n: x[: steps // 2] for n, x in whole.items()}, "a shorter stream")


def _trials_agree(generator: Generator, case: Case) -> None:
    steps, trials = _room(generator, case)
    many, one = _draw(generator, steps, trials, steps), _draw(generator, steps, 1, steps)
    same(one, {n: x[:, :1] for n, x in many.items()}, "a trial alone")


def _seed_matters(generator: Generator, case: Case) -> None:
    steps, trials = _room(generator, case)
    one = _draw(generator, steps, trials, steps, seed=1)
    same(one, _draw(generator, steps, trials, steps, seed=1), "the same seed")
    if generator.extent().trials is not None:
        return  # a stored stream has no randomness
    other = _draw(generator, steps, trials, steps, seed=2)
    assert not np.array_equal(one["values"], other["values"]), "two seeds draw the same numbers"
    two = _draw(generator, steps, 2, steps)["values"]
    assert not np.array_equal(two[:, 0], two[:, 1]), "two trials draw the same numbers"


LONG, SIZES = Case(steps=40), ("steps", "trials")
GENERATOR_CHECKS: dict[str, Contract] = {
    "blocks_agree": Contract(_blocks_agree, LONG, SIZES),
    "length_agrees": Contract(_length_agrees, LONG, SIZES),
    "trials_agree": Contract(_trials_agree, LONG, SIZES),
    "seed_matters": Contract(_seed_matters, LONG, shrinks=()),
}


def _view_input(case: Case, dtype: Any = np.float64) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((case.steps, case.trials, case.key)).astype(dtype)
    x.flags.writeable = False
    return x


def _size_as_declared(view: View, case: Case) -> None:
    x = _view_input(case)
    for mapped in (view(x), view.queries(x)):
        wanted = (*x.shape[:-1], view.size(case.key))
        assert mapped.shape == wanted, f"maps {x.shape} to {mapped.shape}, not {wanted}"


def _view_dtype_kept(view: View, case: Case) -> None:
    for dtype in (np.float32, np.float64):
        for mapped in (view(_view_input(case, dtype)), view.queries(_view_input(case, dtype))):
            assert mapped.dtype == dtype, f"maps {np.dtype(dtype)} to {mapped.dtype}"


def _rows_alone(view: View, case: Case) -> None:
    x = _view_input(case)
    for method in (view.__call__, view.queries):
        whole = np.asarray(method(x))
        for i in (0, case.steps - 1):
            same({"row": np.asarray(method(x[i, :1]))}, {"row": whole[i, :1]}, "one row alone")


def _view_strict(view: View, case: Case) -> None:
    strict, x = backend("array_api_strict"), _view_input(case)
    for method in (view.__call__, view.queries):
        mapped = strict.get(method(strict.put(x, np.dtype(np.float64))))
        error = float(np.max(np.abs(mapped - np.asarray(method(x)))))
        assert error < 1e-12, f"differs by {error:.3g} between NumPy and array-api-strict"


ROWS = ("steps", "trials", "key")
VIEW_CHECKS: dict[str, Contract] = {
    "size_as_declared": Contract(_size_as_declared, shrinks=ROWS),
    "dtype_kept": Contract(_view_dtype_kept, shrinks=ROWS),
    "rows_alone": Contract(_rows_alone, shrinks=ROWS),
    "strict_arrays": Contract(_view_strict, shrinks=ROWS),
}

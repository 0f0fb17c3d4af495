"""The checks of a generator and of a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.api import Array, Generator, View
from engine.backend import backend
from engine.sources import GeneratorSource
from engine.testing.compare import KEY, STEPS, TRIALS, same


def _draw(
    generator: Generator, steps: int, trials: int, block: int, seed: int = 0
) -> dict[str, Array]:
    source = GeneratorSource(generator, seed, trials, steps)
    blocks = [source.sample, *(tokens.arrays for tokens in source.blocks(block))]
    return {name: np.concatenate([b[name] for b in blocks]) for name in source.sample}


def _room(generator: Generator) -> tuple[int, int]:
    extent = generator.extent()
    return min(extent.steps or 40, 40), min(extent.trials or TRIALS, TRIALS)


def _blocks_agree(generator: Generator) -> None:
    steps, trials = _room(generator)
    whole = _draw(generator, steps, trials, steps)
    for block in (1, 7):
        same(whole, _draw(generator, steps, trials, block), f"blocks of {block} steps")


def _length_agrees(generator: Generator) -> None:
    steps, trials = _room(generator)
    whole, half = (
        _draw(generator, steps, trials, steps),
        _draw(generator, steps // 2, trials, steps),
    )
    same(half, {n: x[: steps // 2] for n, x in whole.items()}, "a shorter stream")


def _trials_agree(generator: Generator) -> None:
    steps, trials = _room(generator)
    many, one = _draw(generator, steps, trials, steps), _draw(generator, steps, 1, steps)
    same(one, {n: x[:, :1] for n, x in many.items()}, "a trial alone")


def _seed_matters(generator: Generator) -> None:
    steps, trials = _room(generator)
    one = _draw(generator, steps, trials, steps, seed=1)
    same(one, _draw(generator, steps, trials, steps, seed=1), "the same seed")
    if generator.extent().trials is not None:
        return  # a stored stream has no randomness
    assert not np.array_equal(
        one["values"], _draw(generator, steps, trials, steps, seed=2)["values"]
    )
    two = _draw(generator, steps, 2, steps)["values"]
    assert not np.array_equal(two[:, 0], two[:, 1]), "two trials draw the same numbers"


GENERATOR_CHECKS: dict[str, Callable[[Any], None]] = {
    "blocks_agree": _blocks_agree,
    "length_agrees": _length_agrees,
    "trials_agree": _trials_agree,
    "seed_matters": _seed_matters,
}


def _view_input(dtype: Any = np.float64) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((STEPS, TRIALS, KEY)).astype(dtype)
    x.flags.writeable = False
    return x


def _size_as_declared(view: View) -> None:
    x = _view_input()
    for mapped in (view(x), view.queries(x)):
        assert mapped.shape == (*x.shape[:-1], view.size(KEY)), f"maps {x.shape} to {mapped.shape}"


def _view_dtype_kept(view: View) -> None:
    for dtype in (np.float32, np.float64):
        for mapped in (view(_view_input(dtype)), view.queries(_view_input(dtype))):
            assert mapped.dtype == dtype, f"maps {np.dtype(dtype)} to {mapped.dtype}"


def _rows_alone(view: View) -> None:
    x = _view_input()
    for method in (view.__call__, view.queries):
        whole = np.asarray(method(x))
        for i in (0, STEPS - 1):
            same({"row": np.asarray(method(x[i, :1]))}, {"row": whole[i, :1]}, "one row alone")


def _view_strict(view: View) -> None:
    strict, x = backend("array_api_strict"), _view_input()
    for method in (view.__call__, view.queries):
        mapped = strict.get(method(strict.put(x, np.dtype(np.float64))))
        error = float(np.max(np.abs(mapped - np.asarray(method(x)))))
        assert error < 1e-12, f"differs by {error:.3g} between NumPy and array-api-strict"


VIEW_CHECKS: dict[str, Callable[[Any], None]] = {
    "size_as_declared": _size_as_declared,
    "dtype_kept": _view_dtype_kept,
    "rows_alone": _rows_alone,
    "strict_arrays": _view_strict,
}

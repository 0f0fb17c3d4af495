"""The streams that a solver is checked on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine import signatures
from engine.api import Rows, Solver, Space
from engine.backend import backend
from engine.coefficients import Binding
from engine.sources import ArraySource
from engine.testing.compare import Case
from engine.track import Track


@dataclass(frozen=True)
class Example:
    """Unit keys, values and coefficients inside every bound, the same for a given seed."""

    keys: np.ndarray
    values: np.ndarray
    coefficients: dict[str, Any]

    def part(self, steps: slice = slice(None), trials: slice = slice(None)) -> Example:
        """Return some steps of some trials."""
        cut = {name: x[steps, trials] for name, x in self.coefficients.items()}
        return Example(self.keys[steps, trials], self.values[steps, trials], cut)


def example(
    solver: Solver, steps: int = 24, trials: int = 3, seed: int = 0, key: int = 6, value: int = 5
) -> Example:
    """Return an example stream for a solver.

    A coefficient with a default is drawn between half of it and itself; one without, from (0.1,
    0.9) of its bounds, or as a random unit vector if it has none.
    """
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((steps, trials, key))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    sizes = _sizes(solver, key, value)
    values = rng.standard_normal((steps, trials, sizes["value"]))
    coefficients: dict[str, Any] = {}
    for name, d in signatures.coefficients(type(solver)).items():
        axis = d.spec.axis
        shape = (steps, trials, *([sizes[axis]] if axis else []))
        uniform = rng.uniform(size=shape)
        if d.default is not None:
            coefficients[name] = d.default * (0.5 + 0.5 * uniform)
        elif d.spec.low is not None:
            span = (d.spec.high if d.spec.high is not None else d.spec.low + 1.0) - d.spec.low
            coefficients[name] = d.spec.low + span * (0.1 + 0.8 * uniform)
        else:
            vector = rng.standard_normal(shape)
            norm = np.linalg.norm(vector, axis=-1, keepdims=True) if axis else np.abs(vector)
            coefficients[name] = vector / norm
    return Example(keys, values, coefficients)


def _sizes(solver: Solver, key: int, value: int) -> dict[str, int]:
    """Return the length of every dim of a solver's state."""
    sizes = {"key": key, "value": value}
    where = (1,), np, np.dtype(np.float64)
    try:
        state = solver.init(Space(sizes, *where))
    except ValueError:  # a rule that needs keys and values of one length says so
        sizes["value"] = key
        state = solver.init(Space(sizes, *where))
    dims = signatures.state_dims(type(state))
    for name, x in zip(state._fields, state, strict=True):
        if not isinstance(x, Rows):
            for dim, n in zip(dims[name], x.shape[1:], strict=True):
                sizes.setdefault(dim.removesuffix("_2"), n)
    return sizes


def tracked(solver: Solver, given: Example, dtype: str = "float64", where: str = "numpy") -> Track:
    """Return a solver on its example stream, ready to be given blocks."""
    source = ArraySource({"keys": given.keys, "values": given.values})
    bindings = {
        name: Binding(
            name, d.spec, x if x.ndim == 3 else x[..., None],
            ("step", "trial", *([d.spec.axis] if d.spec.axis else [])),
        )
        for (name, x), d in zip(
            given.coefficients.items(), signatures.coefficients(type(solver)).values(), strict=True
        )
    }  # fmt: skip
    return Track("checked", solver, source, bindings, None, backend(where), dtype)


def shown(solver: Solver, case: Case) -> str:
    """Return the numbers of a small example as text; nothing of a larger one."""
    given = example_of(solver, case)
    arrays = {"keys": given.keys, "values": given.values, **given.coefficients}
    if sum(x.size for x in arrays.values()) > 24:
        return ""
    return ", ".join(f"{name} = {np.round(x, 4).tolist()}" for name, x in arrays.items())


def example_of(solver: Solver, case: Case) -> Example:
    """Return the example stream of a case."""
    return example(solver, case.steps, case.trials, key=case.key, value=case.value)

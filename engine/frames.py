"""What the loop hands out: a block of tokens, and what every solver did over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import InputError, nearest
from engine.sources import Tokens

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Trace:
    """What one solver did over a block; every array is NumPy, (step, trial, ...).

    Parameters
    ----------
    prediction, output : array (step, trial, value)
        The read at k before the write; the read at q after it.
    states : mapping of str to array
        Every state variable after each write (`rows`: how many rows a growing memory holds).
    coefficients : mapping of str to array
        Resolved values, along the dims they vary in.
    dims : mapping of str to tuple of str
        Dims of every variable above.
    seconds : float
        Time spent.
    keyframes : mapping of str to array (keyframe, trial, ...)
        Every state variable after each n-th write of the stream, where only these are kept.
    """

    prediction: np.ndarray
    output: np.ndarray
    states: Mapping[str, np.ndarray]
    coefficients: Mapping[str, np.ndarray]
    dims: Mapping[str, tuple[str, ...]]
    seconds: float
    keyframes: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, np.ndarray]:
        """Everything by name."""
        reads = {"prediction": self.prediction, "output": self.output}
        return {**reads, **self.states, **self.coefficients}


@dataclass(frozen=True)
class Frame:
    """A block of consecutive steps: the tokens and every solver's trace."""

    tokens: Tokens
    traces: Mapping[str, Trace]

    @property
    def start(self) -> int:
        """First step."""
        return self.tokens.start

    @property
    def stop(self) -> int:
        """One past the last step."""
        return self.tokens.start + len(self.tokens)

    def __getitem__(self, label: str) -> xr.Dataset:
        """Return one solver's trace as a Dataset over these steps, without copying."""
        import xarray as xr

        if label not in self.traces:
            raise InputError(f"no solver has the label {label!r}; {nearest(label, self.traces)}")
        trace = self.traces[label]
        variables = {name: (trace.dims[name], x) for name, x in trace.variables.items()}
        return xr.Dataset(variables, coords={"step": np.arange(self.start, self.stop)})

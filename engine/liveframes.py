"""What a live stream hands out: a frame that keeps its moment, and what it is worth."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.answers import ask
from engine.api import Rows
from engine.errors import InputError, nearest
from engine.frames import Frame
from engine.measure import mapped, prediction_error, tracking_error
from engine.track import Track

if TYPE_CHECKING:
    import xarray as xr

    from engine.live import Stream


class Measures:
    """What one solver of a frame is worth; each measure is computed when it is asked for.

    A frame that is kept keeps what its measures are computed from.
    """

    def __init__(self, frame: LiveFrame, label: str) -> None:
        self._frame, self._label = frame, label

    @cached_property
    def prediction_error(self) -> xr.DataArray:
        """|prediction - v| at every pair before it is written, (step, trial)."""
        values = mapped(self._frame.moments[self._label].view, self._frame.tokens.arrays["values"])
        return self._over_steps(
            prediction_error(self._frame.traces[self._label].prediction, values)
        )

    @cached_property
    def tracking_error(self) -> xr.DataArray | None:
        """|S - W|, (step, trial); None where W is unknown, or a view stands before the solver."""
        states = self._frame.traces[self._label].states
        known = {**self._frame.facts, **self._frame.tokens.arrays}
        behind_view = self._frame.moments[self._label].view is not None
        if "S" not in states or "target_map" not in known or behind_view:
            return None
        if self._frame.traces[self._label].dims["S"][2:] != ("key", "value"):
            return None
        return self._over_steps(tracking_error(states["S"], known["target_map"]))

    @cached_property
    def state_norm(self) -> xr.Dataset:
        """Frobenius norm of every state variable, (step, trial); a memory of rows has none."""
        import xarray as xr

        states = self._frame.traces[self._label].states
        with np.errstate(all="ignore"):  # a state on its way to divergence
            norms = {
                name: np.sqrt(np.sum(x.reshape(*x.shape[:2], -1) ** 2, axis=-1))
                for name, x in states.items()
                if x.dtype.kind == "f"
            }
        return xr.Dataset({name: self._over_steps(x) for name, x in norms.items()})

    @cached_property
    def recall(self) -> dict[str, xr.DataArray]:
        """By probe: the share, per trial, of what is asked that decodes to its present value."""
        import xarray as xr

        frame, shares = self._frame, {}
        plan, written = frame.stream.plan, frame.stream.written
        if not plan.questions:
            return {}
        track = copy.copy(frame.moments[self._label])
        state = frame.state(self._label)
        # As it was, even if the rule has since written into its state in place.
        track.restore({str(n): x.values for n, x in state.items()})
        for q in plan.questions:
            hit = ask(track, written[q.name].asked(frame.stop), q.decode)["recalled"][1]
            known = ~np.isnan(hit)
            with np.errstate(invalid="ignore"):  # nothing asked has no share
                share = np.where(known, hit, 0.0).sum(0) / known.sum(0)
            shares[q.name] = xr.DataArray(share, dims="trial")
        return shares

    def _over_steps(self, x: np.ndarray) -> xr.DataArray:
        import xarray as xr

        steps = np.arange(self._frame.start, self._frame.stop)
        return xr.DataArray(x, dims=("step", "trial"), coords={"step": steps})


@dataclass(frozen=True)
class LiveFrame(Frame):
    """Consecutive steps of a stream: the tokens, and what every solver did.

    ``frame[label]`` is a Dataset over these steps: prediction, output, every state, coefficients.

    Parameters
    ----------
    tokens, traces
        As of `Frame`.
    seconds : float
        Wall time that the frame took.
    stream : Stream
        Where it comes from.
    moments : mapping of str to Track
        Every solver as it was after the last step.
    """

    seconds: float
    stream: Stream = field(repr=False)
    moments: Mapping[str, Track] = field(repr=False)

    @property
    def step(self) -> int:
        """The last step."""
        return self.stop - 1

    @property
    def facts(self) -> Mapping[str, np.ndarray]:
        """What the generator knows that does not change, each (trial, ...)."""
        return self.stream.plan.source.facts

    @property
    def probes(self) -> list[str]:
        """Names of the scenario's probes."""
        return list(self.stream.plan.scenario.table.probes)

    @cached_property
    def measures(self) -> Mapping[str, Measures]:
        """Measures of every solver, by label."""
        return {label: Measures(self, label) for label in self.traces}

    def state(self, label: str) -> xr.Dataset:
        """Return the state of the solver `label` after the last step, with a growing memory's rows.

        Nothing is copied. Dims are (trial, ...), of rows (row, trial, ...).
        """
        import xarray as xr

        if label not in self.traces:
            raise InputError(f"no solver has the label {label!r}; {nearest(label, self.traces)}")
        track, states = self.moments[label], self.traces[label].states
        variables = {}
        for name, x in zip(track.state._fields, track.state, strict=True):
            own = track.state_dims[name]
            if isinstance(x, Rows):
                rows = track.backend.get(x.array).swapaxes(0, 1)
                variables[name] = (("row", "trial", *own[1:]), rows)
                variables["rows"] = (("trial",), x.length)
            else:
                variables[name] = (("trial", *own), states[name][-1])
        return xr.Dataset(variables, coords={"step": self.step})

    def set(self, label: str, /, **values: Any) -> None:
        """Bind coefficients of `label` to `values` from the next step on; see `Stream.set`."""
        self.stream.set(label, **values)

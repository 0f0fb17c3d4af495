"""Coefficients of a rule, bound to numbers: constants, schedules, side channels, gates, trials.

A solver never learns where a coefficient came from; it sees one array per step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine.api import Coefficient
from engine.errors import InputError, nearest, told
from engine.sources import Tokens


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Schedule(_Form):
    """``{ schedule = "cosine", start = 1.0, stop = 0.1, over = 1000 }``: then `stop` for ever.

    Parameters
    ----------
    schedule : "linear", "cosine" or "exponential"
        The way from `start` to `stop`.
    start, stop : float
        Values at the first step and from step `over` on.
    over : int
        How many steps it takes.
    """

    schedule: Literal["linear", "cosine", "exponential"]
    start: float
    stop: float
    over: Annotated[int, Field(gt=0)]

    @model_validator(mode="after")
    def _signs(self) -> Schedule:
        if self.schedule == "exponential" and not (self.start > 0 and self.stop > 0):
            raise ValueError("an exponential schedule needs start and stop above 0")
        return self

    def values(self, tokens: Tokens) -> np.ndarray:
        """Return the values of these steps, shape (step, 1, 1)."""
        x = np.minimum(np.arange(tokens.start, tokens.start + len(tokens)) / self.over, 1.0)
        if self.schedule == "exponential":
            y = self.start * (self.stop / self.start) ** x
        else:
            part = x if self.schedule == "linear" else (1.0 - np.cos(np.pi * x)) / 2.0
            y = self.start + (self.stop - self.start) * part
        return np.where(x == 1.0, self.stop, y)[:, None, None]


class PerTrial(_Form):
    """``{ trials = [0.1, 0.2] }``: one value per trial, a sweep in one batch.

    Parameters
    ----------
    trials : list of float
        The values, as many as there are trials.
    """

    trials: Annotated[list[float], Field(min_length=1)]

    def values(self, tokens: Tokens) -> np.ndarray:
        """Return the values, shape (1, trial, 1)."""
        return np.asarray(self.trials)[None, :, None]


class Channel(_Form):
    """``{ channel = "priority" }``: the numbers of a side channel of the stream.

    A coefficient with an axis also takes a channel of vectors, ``{ channel = "keys" }``.

    Parameters
    ----------
    channel : str
        The side channel's name.
    """

    channel: str

    def values(self, tokens: Tokens) -> np.ndarray:
        """Return the channel, shape (step, trial, 1 or its own axis)."""
        values = tokens.arrays[self.channel].astype(np.float64)
        return values[..., None] if values.ndim == 2 else values


class Gate(_Form):
    """``{ gate = "priority", low = 0.02, high = 0.2 }``: low + (high - low) * channel.

    Parameters
    ----------
    gate : str
        The side channel's name.
    low, high : float
        What a channel of 0 and of 1 stand for.
    """

    gate: str
    low: float
    high: float

    def values(self, tokens: Tokens) -> np.ndarray:
        """Return the gated values, shape (step, trial, 1)."""
        x = tokens.arrays[self.gate].astype(np.float64)[..., None]
        # Weighted so that a bit of 0 or 1 gives `low` or `high` exactly.
        return self.low * (1.0 - x) + self.high * x


FORMS: dict[str, type[Schedule | PerTrial | Channel | Gate]] = {
    "schedule": Schedule, "trials": PerTrial, "channel": Channel, "gate": Gate,
}  # fmt: skip


@dataclass(frozen=True)
class Binding:
    """A coefficient and what it is bound to.

    Parameters
    ----------
    name : str
        Name of the coefficient.
    spec : Coefficient
        Its declaration.
    source : number, list of numbers, array, or one of the forms
        A list is one number per channel of the coefficient's own axis; an array is
        (step, trial, axis), each of its lengths full or 1.
    along : tuple of str
        Dims along which an array, or a channel of vectors, varies.
    read : bool
        Whether a read takes it: then it matters at masked steps too, if those are asked.
    """

    name: str
    spec: Coefficient
    source: Any
    along: tuple[str, ...] = ()
    read: bool = False

    @property
    def dims(self) -> tuple[str, ...]:
        """Dims along which it varies: what a recorder keeps."""
        own = (self.spec.axis,) if self.spec.axis else ()
        match self.source:
            case Schedule():
                return ("step",)
            case PerTrial():
                return ("trial",)
            case Channel() | Gate():
                return self.along or ("step", "trial")
            case np.ndarray():
                return self.along
            case list():
                return own
        return ()

    def on(self, sample: Mapping[str, np.ndarray]) -> Binding:
        """Return it bound to a stream: a channel of vectors varies along its own axis too."""
        name = self.source.channel if isinstance(self.source, Channel) else ""
        if self.spec.axis and name in sample and sample[name].ndim == 3:
            return replace(self, along=("step", "trial", self.spec.axis))
        return self

    def block(self, tokens: Tokens) -> np.ndarray:
        """Return its values over a block, shape (step or 1, trial or 1, axis or 1).

        Raises
        ------
        InputError
            If a value is not finite or out of bounds.
        """
        match self.source:
            case np.ndarray():
                whole = "step" not in self.along
                values = (
                    self.source if whole else self.source[tokens.start : tokens.start + len(tokens)]
                )
            case Schedule() | PerTrial() | Channel() | Gate():
                values = self.source.values(tokens)
            case _:
                values, sound = self._constant
                if sound:
                    return values
        self._check(values, tokens)
        return values

    @cached_property
    def _constant(self) -> tuple[np.ndarray, bool]:
        """What is the same at every step, and whether it is within bounds."""
        values = np.asarray(self.source, dtype=np.float64).reshape(1, 1, -1)
        values.flags.writeable = False
        return values, not self._bad(values).any()

    def recorded(self, values: np.ndarray) -> np.ndarray:
        """Return a block's values along `dims` only: what a recorder keeps."""
        axes = ("step", "trial", self.spec.axis)
        return values[tuple(slice(None) if axis in self.dims else 0 for axis in axes)]

    def _bad(self, values: np.ndarray) -> np.ndarray:
        """Return which values are not finite or out of bounds."""
        low, high = self.spec.low, self.spec.high
        bad: np.ndarray = ~np.isfinite(values)
        if low is not None:
            bad |= values <= low if self.spec.above else values < low
        if high is not None:
            bad |= values > high
        return bad

    def _check(self, values: np.ndarray, tokens: Tokens) -> None:
        if values.size:
            with np.errstate(invalid="ignore"):
                ends = np.stack((values.min(), values.max()))  # NaN if any value is
            if not self._bad(ends).any():
                return
        bad = self._bad(values)
        mask = tokens.arrays.get("mask")
        asked = self.read and "queries" in tokens.arrays
        if mask is not None and mask.size and not asked:
            bad = bad & mask[..., None]  # what a masked step would use is never used
        if bad.any():
            step, trial, _ = (int(i) for i in np.argwhere(bad)[0])
            values = np.broadcast_to(values, bad.shape)
            where = f" at step {tokens.start + step}" if "step" in self.dims else ""
            where += f", trial {trial}" if "trial" in self.dims else ""
            worst = float(values[bad][0])
            # Never rounded to a number that would be right.
            shown = f"{worst:g}" if float(f"{worst:g}") == worst else repr(worst)
            raise InputError(f"{self.name} = {shown}{where} must be {self.spec.bounds}")


def parse(name: str, spec: Coefficient, value: Any, read: bool = False) -> Binding:
    """Return the binding that a scenario's value stands for.

    Parameters
    ----------
    name, spec
        The coefficient.
    value : number, list of numbers, or table
        As read from TOML.
    read : bool
        Whether a read takes it.

    Raises
    ------
    InputError
        If the value has none of the known forms.

    Examples
    --------
    >>> parse("beta", Coefficient(), {"trials": [0.1, 0.2]}).dims
    ('trial',)
    """
    value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(value, bool) or not isinstance(value, (int, float, list, Mapping)):
        raise InputError(
            "must be a number or a table such as { gate = ..., low = ..., high = ... }"
        )
    if isinstance(value, Mapping):
        return Binding(name, spec, _form(value), read=read)
    if isinstance(value, list):
        if not spec.axis:
            raise InputError(
                "a list is one number per channel, and this coefficient has one number per step; "
                "for one value per trial write { trials = [...] }"
            )
        if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in value):
            raise InputError("must be a list of numbers")
        return Binding(name, spec, [float(x) for x in value], read=read)
    if not math.isfinite(value):
        raise InputError("must be finite")
    return Binding(name, spec, float(value), read=read)


def _form(table: Mapping[str, Any]) -> Schedule | PerTrial | Channel | Gate:
    """Return the form that a table stands for; what is misspelt is said before what is missing."""
    given = {n: x.tolist() if isinstance(x, np.ndarray) else x for n, x in table.items()}
    kinds = [kind for kind in FORMS if kind in given]
    if not kinds:
        hints = [nearest(key, FORMS) for key in given]
        close = [text for text in hints if text.startswith("did you mean")]
        raise InputError(f"a table needs one of the forms; {(close or [nearest('', FORMS)])[0]}")
    if len(kinds) > 1:
        raise InputError(f"has both {kinds[0]!r} and {kinds[1]!r}; give one of them")
    form = FORMS[kinds[0]]
    for key in given:
        if key not in form.model_fields:
            advice = nearest(key, form.model_fields)
            raise InputError(f"{kinds[0]} = {given[kinds[0]]!r} takes no {key!r}; {advice}")
    try:
        return form.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "missing":
            raise InputError(f"{kinds[0]} needs {first['loc'][0]!r} too") from error
        field = " = ".join([".".join(map(str, first["loc"])), repr(first["input"])])
        raise InputError(f"{field}: {told(first)}" if first["loc"] else told(first)) from error


def check(
    binding: Binding, sample: Mapping[str, np.ndarray], trials: int, sizes: Mapping[str, int]
) -> None:
    """Refuse a binding that does not fit a stream, before the first step.

    Parameters
    ----------
    binding : Binding
        What to check.
    sample : mapping of str to array
        A block of no steps of the stream.
    trials, sizes
        Number of trials; lengths of the solver's dims.

    Raises
    ------
    InputError
        If a side channel is missing or a length is wrong.
    """
    source, axis = binding.source, binding.spec.axis
    match source:
        case Channel() | Gate():
            channel = source.channel if isinstance(source, Channel) else source.gate
            ranks = (2, 3) if axis and isinstance(source, Channel) else (2,)
            sides = [n for n, x in sample.items() if x.ndim in ranks and n != "mask"]
            if channel not in sides:
                wide = f", or one per channel of {axis!r}" if 3 in ranks else ""
                raise InputError(
                    f"the stream has no side channel {channel!r} of one number per step{wide}; "
                    f"{nearest(channel, sides)}"
                )
            width = sample[channel].shape[-1]
            if sample[channel].ndim == 3 and width != sizes.get(axis, width):
                raise InputError(
                    f"the side channel {channel!r} has {width} numbers per step, and the solver "
                    f"{sizes[axis]} channels of {axis!r}"
                )
        case PerTrial(trials=values) if len(values) != trials:
            raise InputError(
                f"{len(values)} values for {trials} trials; give one per trial, or set "
                f"trials = {len(values)} at the top"
            )
        case list() if axis in sizes and len(source) != sizes[axis]:
            raise InputError(f"{len(source)} values for {sizes[axis]} channels of {axis!r}")
        case Schedule():
            binding.block(Tokens(0, {"keys": np.empty((1, trials, 1))}))
            binding.block(Tokens(source.over, {"keys": np.empty((1, trials, 1))}))
    if isinstance(source, Gate) and sample[source.gate].dtype == bool:
        # A bit is 0 or 1, so both ends are known before the first step.
        for name, end in (("low", source.low), ("high", source.high)):
            Binding(name, binding.spec, end).block(Tokens(0, {"keys": np.empty((1, 1, 1))}))
    if isinstance(source, (float, list, PerTrial)):
        binding.block(Tokens(0, {"keys": np.empty((1, trials, 1))}))

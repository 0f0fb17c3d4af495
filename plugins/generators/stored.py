"""A stream read back from a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.api import Array, Draws, Extent, Generator, hookimpl

if TYPE_CHECKING:
    import xarray as xr

DIMS = {
    "keys": ("step", "trial", "key"),
    "values": ("step", "trial", "value"),
    "queries": ("step", "trial", "key"),
    "mask": ("step", "trial"),
    "target_map": ("step", "trial", "key", "value"),
}
"""The dims of the variables that have a fixed meaning, in any order in the file."""


@dataclass(frozen=True)
class Stored(Generator):
    """(k_t, v_t) and everything stored beside them, as they stand in a zarr v3 group.

    Parameters
    ----------
    path : Path
        The group; its child "stream" where it has one, so the store of a run is a stream too. Of a
        run that did not finish, the steps that it committed.
    first : int
        Step of the file to begin with.

    Notes
    -----
    Needs keys (step, trial, key) and values (step, trial, value); knows queries, mask and
    target_map. Any other numeric variable with a step dim is exposed per step, and any with a
    trial dim but no step as a fact. Numbers are widened to float64, except that integers and bools
    stay as they are in variables other than the five above; mask becomes bool. Metadata is read
    when the generator is made, steps only when they are drawn. Fewer trials than the file has are
    its first ones.

    Raises ValueError if `path` is not such a group, lacks one of the two, or has other dims; what
    of a run is damaged raises when it is read.
    """

    path: Path
    first: int = 0

    def __post_init__(self) -> None:
        for name, dims in DIMS.items():
            if name not in self._data.variables:
                if name in ("keys", "values"):
                    raise ValueError(f"path = {self.path} has no variable {name!r}: {self._holds}")
                continue
            variable = self._data.variables[name]
            if set(variable.dims) != set(dims):
                need = f"{name} must have the dims {', '.join(dims)}"
                raise ValueError(f"path = {self.path}: {need}: {self._holds}")
            if variable.dtype.kind not in "biuf":
                raise ValueError(f"path = {self.path}: {name} is {variable.dtype}, not numbers")
        if not 0 <= self.first <= self._committed:
            raise ValueError(
                f"first = {self.first} must be between 0 and the {self._committed} steps that "
                f"{self.path} holds"
            )

    @property
    def dims(self) -> Mapping[str, str]:
        """Trailing dims of every variable, as the file names them."""
        return {name: " ".join(self._order(name)[2:]) for name in self._names}

    def extent(self) -> Extent:
        """Return the steps from `first` on and the trials that the file has."""
        steps, trials = self._committed - self.first, self._data.sizes["trial"]
        why = f"{self.path} holds {trials} trials of {self._committed} steps"
        return Extent(steps, trials, f"{why}, read from step {self.first}" if self.first else why)

    def facts(self, state: int) -> dict[str, Array]:
        """Return the variables that have a trial dim and no step."""
        names = [name for name in self._names if "step" not in self._data[name].dims]
        return {name: self._read(name, state, slice(0, 1))[0] for name in names}

    def start(self, draws: Draws, steps: int | None) -> int:
        """Return the number of trials; nothing is random here."""
        return draws.trials

    def draw(self, state: int, draws: Draws, steps: range) -> tuple[int, dict[str, Array]]:
        """Read the next steps."""
        at = slice(self.first + steps.start, self.first + steps.stop)
        names = [name for name in self._names if "step" in self._data[name].dims]
        return state, {name: self._read(name, state, at) for name in names}

    @cached_property
    def _root(self) -> xr.Dataset:
        return self._open(None)

    @cached_property
    def _data(self) -> xr.Dataset:
        if "format" in self._root.attrs:  # of a run, damage is an error, not fill values
            import xarray as xr

            return xr.open_dataset(
                self.path, engine="engine", group="stream", chunks=None, cache=False,
                decode_times=False,
            )  # fmt: skip
        return self._open("stream") if (self.path / "stream").is_dir() else self._root

    def _open(self, group: str | None) -> xr.Dataset:
        import xarray as xr  # here: it would slow down every look-up of a plugin

        try:
            # A live store is read unconsolidated; a cache would grow to the whole stream.
            return xr.open_dataset(
                self.path, engine="zarr", group=group, zarr_format=3, consolidated=False,
                chunks=None, cache=False, decode_times=False,
            )  # fmt: skip
        except (OSError, ValueError, KeyError) as error:
            if self.path.is_dir():
                names = sorted(entry.name for entry in self.path.iterdir())
                found = f"it is a folder with {', '.join(names[:8]) or 'nothing in it'}"
            else:
                found = "it is a file" if self.path.exists() else "nothing is there"
            message = f"path = {self.path} cannot be read as a zarr v3 group: {found} ({error})"
            raise ValueError(message) from error

    @property
    def _holds(self) -> str:
        # Sorted: an unconsolidated store lists its arrays in the order of the file system.
        variables = sorted(self._data.variables.items())
        parts = [f"{name} ({', '.join(map(str, v.dims))})" for name, v in variables]
        return f"it holds {', '.join(parts) or 'none'}"

    @property
    def _committed(self) -> int:
        # A run preallocates its arrays: rows past this number read as fill values.
        steps = self._data.sizes["step"]
        return min(steps, int(self._root.attrs.get("committed", steps)))

    @cached_property
    def _names(self) -> list[str]:
        coordinates = set(self._data.dims)
        return [
            str(name)
            for name, variable in sorted(self._data.variables.items())
            if name not in coordinates
            and variable.dtype.kind in "biuf"
            and {"step", "trial"} & set(variable.dims)
        ]

    def _order(self, name: str) -> tuple[str, ...]:
        rest = [str(d) for d in self._data[name].dims if d not in ("step", "trial")]
        return DIMS.get(name, ("step", "trial", *rest))

    def _read(self, name: str, trials: int, steps: slice) -> Array:
        """Return one variable (step, trial, ...), spread over a leading dim that it lacks."""
        part = self._data[name].isel(step=steps, trial=slice(trials), missing_dims="ignore")
        lacking = {d: n for d, n in (("step", 1), ("trial", trials)) if d not in part.dims}
        array = part.expand_dims(lacking).transpose(*self._order(name)).to_numpy()
        if name == "mask":
            return np.array(array, dtype=bool, order="C")
        wide = name in DIMS or array.dtype.kind == "f"
        return np.array(array, dtype=np.float64 if wide else array.dtype, order="C")


@hookimpl
def engine_generators() -> Mapping[str, type]:
    """Return the stored stream."""
    return {"stored": Stored}

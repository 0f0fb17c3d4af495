"""Probes as a scenario states them: what is asked, when, and how an answer is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from engine.errors import InputError, nearest
from engine.sources import Source

Ask = Literal["keys", "codebook"]
Decode = Literal["distance", "dot", "cosine"]
LABELS_TAKEN = {"keys", "wanted", "probe_step"}
"""What a probe stores beside its answers: no solver's label."""


class Probe(BaseModel):
    """``[probes.<name>]``: read every key written so far, at the end of the run, or as it says.

    Parameters
    ----------
    ask : "keys" or "codebook"
        Every key written so far, or every entry of the generator's key book.
    queries : str or list of lists
        Ask these instead: a file (npy, npz, or a stored stream), or one list of numbers per query.
    at, every, steps
        When: at = "end", after every n steps, or after these numbers of steps.
    decode : "distance", "dot" or "cosine"
        By what the nearest value is found.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    ask: Ask | None = None
    queries: Any = None
    at: Literal["end"] | None = None
    every: Annotated[int, Field(gt=0)] | None = None
    steps: Annotated[list[int], Field(min_length=1)] | None = None
    decode: Decode = "distance"

    @field_validator("queries")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        rows = value if isinstance(value, list) else []
        whole = all(
            isinstance(row, list)
            and len(row) == len(rows[0])
            and all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in row)
            for row in rows
        )
        if value is not None and not isinstance(value, str) and not (rows and whole):
            raise ValueError("must be a path, or a list of lists of numbers, all of one length")
        return value

    @field_validator("steps")
    @classmethod
    def _increasing(cls, steps: list[int] | None) -> list[int] | None:
        if steps and any(b <= a for a, b in zip([0, *steps], steps, strict=False)):
            raise ValueError("must be numbers of steps, each larger than the one before")
        return steps

    @model_validator(mode="after")
    def _one_of_each(self) -> Probe:
        for names, default in ((("at", "every", "steps"), "end"), (("ask", "queries"), "keys")):
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) > 1:
                raise ValueError(f"has both {given[0]!r} and {given[1]!r}; give one of them")
            if not given:
                setattr(self, names[0], default)
        return self

    def up_to(self, length: int) -> Probe | None:
        """Return what can be asked of a stream that was cut short; None if that is nothing."""
        steps = [step for step in self.steps or () if step <= length]
        if self.steps is None or steps == self.steps:
            return self
        return self.model_copy(update={"steps": steps}) if steps else None

    def beside(self, folder: Path) -> Probe:
        """Return it with a path as this process finds it: relative to the scenario, if there."""
        if not isinstance(self.queries, str):
            return self
        near = folder / self.queries
        return self.model_copy(
            update={"queries": str(near) if near.exists() else str(Path(self.queries))}
        )


@dataclass(frozen=True)
class Question:
    """A probe on a stream.

    Parameters
    ----------
    name : str
        Name of the probe.
    ask : str
        "keys", "codebook" or "queries".
    stops : tuple of int
        Numbers of steps written when it is asked.
    decode : str
        "distance", "dot" or "cosine".
    queries : array (query, trial, key), optional
        What is asked; None asks for the keys written so far.
    once : bool
        Whether it is asked at the end only: its answers then have no dim `probe_step`.
    """

    name: str
    ask: str
    stops: tuple[int, ...]
    decode: str
    queries: np.ndarray | None
    once: bool


def question(name: str, probe: Probe, source: Source) -> Question:
    """Return a probe put to a stream; of one without an end, only listed steps are known.

    Raises
    ------
    InputError
        If the stream is too short, has no key book, or has keys of another length.
    """
    length, stops = source.steps, tuple(probe.steps or ())
    if length is not None:
        if stops and stops[-1] > length:
            raise InputError(f"steps = {probe.steps}: the stream has only {length} steps")
        if probe.every and 0 < length < probe.every:
            raise InputError(f"every = {probe.every}: the stream has only {length} steps")
        step = probe.every or length
        stops = stops or (tuple(range(step, length + 1, step)) if length else ())
    queries = None
    if probe.ask == "codebook":
        if "key_book" not in source.facts:
            raise InputError(
                'ask = "codebook": this stream has no key_book; ask = "keys" asks for every key '
                "that was written"
            )
        queries = np.swapaxes(source.facts["key_book"], 0, 1)
    elif probe.queries is not None:
        queries = _given(probe.queries, source)
    ask = probe.ask or "queries"
    return Question(name, ask, stops, probe.decode, queries, probe.at == "end")


def _given(queries: Any, source: Source) -> np.ndarray:
    """Return given queries as (query, trial, key)."""
    shown = queries if isinstance(queries, str) else "[...]"
    array = _read(Path(queries)) if isinstance(queries, str) else np.asarray(queries, np.float64)
    key, wanted = source.sample["keys"].shape[-1], (source.trials,)
    whole = array.ndim in (2, 3) and array.shape[-1] == key and array.dtype.kind in "biuf"
    if not whole or (array.ndim == 3 and array.shape[1] not in (1, source.trials)):
        raise InputError(
            f"queries = {shown}: {array.dtype} of shape {array.shape}; expected numbers of shape "
            f"(query, {key}) or (query, {source.trials}, {key}): the stream's keys have length "
            f"{key}, its trials are {source.trials}"
        )
    array = array[:, None] if array.ndim == 2 else array
    full = np.broadcast_to(array, (len(array), *wanted, key))
    return np.ascontiguousarray(full, dtype=np.float64)


def _read(path: Path) -> np.ndarray:
    """Return the queries of a file: an array, or "queries", or else "keys", of several."""
    try:
        if path.is_dir():
            import xarray as xr

            found: Any = xr.open_dataset(
                path, engine="zarr", group="stream" if (path / "stream").is_dir() else None,
                zarr_format=3, consolidated=False, chunks=None, decode_times=False,
            )  # fmt: skip
        else:
            found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        names = [n for n in ("queries", "keys") if n in found] or list(found)
        if names[:1] not in (["queries"], ["keys"]) and len(names) != 1:
            raise InputError(f"queries = {path}: no array 'queries'; {nearest('', names)}")
        return np.asarray(found[names[0]])
    except (OSError, ValueError, EOFError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        there = "cannot be read" if path.exists() else "does not exist"
        raise InputError(
            f"queries = {path}: {there}; give an npy or npz file, or a stored stream ({error})"
        ) from error

"""What a stored run holds, put to use again: its stream as a source, its solvers as a scenario."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from engine import experiment, registry, scenario, store
from engine.errors import InputError, at, nearest
from engine.scenario import Scenario, native
from engine.sources import Size, Tokens
from engine.track import Track


class RunStream:
    """The stream of a stored run, as far as it is complete: a source that reads what it is asked.

    Parameters
    ----------
    path : Path
        A store that `engine run` wrote.
    only : collection of str, optional
        Variables to read; None reads all.
    """

    def __init__(self, path: Path, only: Collection[str] | None = None) -> None:
        root = store.group(path)
        every = {n: x for n, x in sorted(root["stream"].arrays()) if only is None or n in only}
        self._arrays = {n: x for n, x in every.items() if _dims(x)[:1] == ("step",)}
        self._facts = {n: x for n, x in every.items() if n not in self._arrays}
        self.steps: int | None = int(root.attrs["committed"])
        self.trials = int(every["keys"].shape[1])
        self.dims = {n: _dims(x)[2 if n in self._arrays else 1 :] for n, x in every.items()}

    @cached_property
    def sample(self) -> Mapping[str, np.ndarray]:
        """A block of no steps."""
        return {n: np.empty((0, *x.shape[1:]), x.dtype) for n, x in self._arrays.items()}

    @cached_property
    def facts(self) -> Mapping[str, np.ndarray]:
        """What does not change from step to step."""
        return {n: x[...] for n, x in self._facts.items()}

    def read(self, start: int, stop: int) -> Tokens:
        """Return the tokens of steps `start` to `stop` - 1."""
        return Tokens(start, {n: x[start:stop] for n, x in self._arrays.items()})

    def blocks(self, size: Size, start: int = 0) -> Iterator[Tokens]:
        """Yield blocks of `size` steps from step `start` on."""
        steps = self.steps or 0
        while start < steps:
            stop = min(start + (size if isinstance(size, int) else size()), steps)
            yield self.read(start, stop)
            start = stop


def _dims(array: Any) -> tuple[str, ...]:
    return tuple(array.metadata.dimension_names)


def restored(
    path: Path,
    attrs: Mapping[str, Any],
    solvers: Sequence[str] | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Scenario:
    """Return the scenario of a stored run, whose stream is the stored one.

    Parameters
    ----------
    path, attrs
        The store and its attributes.
    solvers : sequence of str, or mapping of str to table, optional
        What to run instead of its solvers: labels of the run, or names of registered solvers; or
        tables as a scenario has them under `solvers`, by label.
    overrides : mapping of str to value, optional
        Dotted key paths and the values to put there.

    Raises
    ------
    InputError
        If a solver is unknown, an override is wrong, or one would change the stream.
    """
    told = attrs["scenario"]
    table = json.loads(json.dumps(told["resolved"]))  # a copy of plain values
    registry.default()
    with at(str(path)):
        if isinstance(solvers, Mapping):
            table["solvers"] = dict(solvers)
        elif solvers is not None:
            table["solvers"] = {name: _table(name, table["solvers"]) for name in solvers}
        for key, value in (overrides or {}).items():
            with at(f"override {key} = {value!r}"):
                if key.partition(".")[0] in ("stream", "seed", "trials"):
                    raise InputError("the stream is the stored one; run the scenario for another")
                scenario.override(table, key, native(value))
        return scenario.resolve(told["name"], str(path), told["text"], table, Path(), path)


def _table(name: str, known: Mapping[str, Any]) -> Any:
    """Return what a label of the run stands for, or a registered solver as it comes."""
    if name in known:
        return known[name]
    names = registry.default().names("solver")
    if name not in names:
        advice = nearest(name, [*known, *names])
        raise InputError(f"no solver of the run and none registered is named {name!r}; {advice}")
    return {"solver": name}


def scenario_sha256(attrs: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a run's resolved scenario, whatever the order of its keys."""
    text = json.dumps(attrs["scenario"]["resolved"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def maker(attrs: Mapping[str, Any], kernel: str) -> dict[str, str]:
    """Return what made the numbers of a stored solver: all that its bits may depend on."""
    told, writer = attrs["provenance"], attrs.get("writer") or {}
    where = {name: str(told[name]) for name in ("backend", "machine", "byteorder")}
    versions = {n: str(v) for n, v in told["versions"].items() if n in NUMERIC}
    return {"kernel": kernel, **where, "host": str(writer.get("host")), **versions}


def maker_now(track: Track) -> dict[str, str]:
    """Return the same of a solver that is run here."""
    return maker(
        {
            "provenance": experiment.provenance(backend=track.backend.name),
            "writer": {"host": platform.node()},
        },
        track.kernel,
    )


NUMERIC = ("ttr-engine", "numpy", "numba", "cupy")
"""The libraries whose versions may change a number."""


def told(one: Mapping[str, str]) -> str:
    """Return what `maker` says, in words.

    >>> told({"kernel": "loop", "backend": "numpy", "numpy": "2.4.6"})
    'kernel loop, backend numpy, numpy 2.4.6'
    """
    return ", ".join(f"{name} {value}" for name, value in one.items())

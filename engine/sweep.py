"""Sweeps: a scenario that is several runs, one for each combination of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import experiment, scenario
from engine.errors import EngineError, InputError, at
from engine.interrupts import uninterrupted
from engine.recorder import MemorySink
from engine.scenario import Raw

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Sweep:
    """A scenario with a ``[sweep]``, every part of it checked: `settings` tell them apart."""

    raw: Raw
    settings: list[dict[str, Any]]
    plans: list[experiment.Plan]

    @property
    def name(self) -> str:
        """The scenario's name."""
        return self.raw.name

    @property
    def attrs(self) -> dict[str, Any]:
        """Return what the root of its run says: the scenario, where it ran, how many parts."""
        first = self.plans[0].scenario
        table = first.table
        resolved = {**first.resolved, "sweep": self.settings}
        told = {"name": first.name, "text": first.text, "resolved": resolved}
        return {
            "scenario": told,
            "provenance": experiment.provenance(backend=table.backend, seed=table.seed),
            **self.seal,
        }

    @property
    def seal(self) -> dict[str, Any]:
        """What the root and every part say of the opening of sealed seeds."""
        return {"sealed": self.raw.seal.attrs} if self.raw.seal else {}


def combinations(sweep: Any) -> list[dict[str, Any]]:
    """Return the settings of every part of a ``[sweep]``, keys as dotted paths.

    A table is the product of its lists, what is not a list the same in all; several tables,
    ``[[sweep]]``, follow one another.

    Examples
    --------
    >>> combinations({"seed": 1, "stream": {"key": [8, 16]}})
    [{'seed': 1, 'stream.key': 8}, {'seed': 1, 'stream.key': 16}]
    >>> len(combinations([{"seed": [1, 2], "trials": [3, 4]}, {"seed": 5}]))
    5
    """
    found = []
    for i, table in enumerate(sweep if isinstance(sweep, list) else [sweep]):
        if not isinstance(table, Mapping) or not table:
            where = f"sweep[{i}]" if isinstance(sweep, list) else "sweep"
            raise InputError(f"{where}: must be a table of key paths and the values to put there")
        flat = dict(_flat("", table))
        for path, values in flat.items():
            if values == []:
                raise InputError(f"sweep.{path} = []: must have at least one value")
        lists = [x if isinstance(x, list) else [x] for x in flat.values()]
        found += [dict(zip(flat, values, strict=True)) for values in product(*lists)]
    if not found:
        raise InputError("sweep: must have at least one table")
    return found


def _flat(path: str, table: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{path}{key}.", value)
        else:
            yield f"{path}{key}", value


def prepare(
    given: str | Path | Mapping[str, Any], overrides: Mapping[str, Any], sealed: bool = False
) -> Sweep | None:
    """Return a scenario's sweep, every part checked, or None if it is a single run.

    Parts whose streams are alike see the same numbers; others draw their own, so that they are
    independent.

    Raises
    ------
    InputError
        Before anything is written.
    """
    raw = scenario.read(given, overrides, sealed)
    if "sweep" not in raw.table:
        return None
    with at(raw.where):
        settings = combinations(raw.table.pop("sweep"))
        swept = {path for one in settings for path in one}
        for key in overrides:
            if key in swept:
                raise InputError(f"override {key}: the sweep sets it; set sweep.{key} instead")
        streams: list[dict[str, Any]] = []
        plans = []
        for i, one in enumerate(settings):
            of_stream = {path: x for path, x in one.items() if not path.startswith("solvers.")}
            if of_stream not in streams:
                streams.append(of_stream)
            seed = _seed(raw.table.get("seed", 0), streams.index(of_stream))
            with at(f"sweep, part {i} ({told(one)})"):
                made = raw.resolve({**({} if seed is None else {"seed": seed}), **one})
                plans.append(experiment.plan(made))
    return Sweep(raw, settings, plans)


def told(settings: Mapping[str, Any]) -> str:
    """Return settings in words.

    >>> told({"stream.key": 8, "seed": 1})
    'stream.key = 8, seed = 1'
    """
    return ", ".join(f"{path} = {value!r}" for path, value in settings.items())


def _seed(seed: Any, i: int) -> int | None:
    """Return the seed of the i-th stream of a sweep; the first one keeps the scenario's."""
    if i == 0 or isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        return None  # the scenario's own, or what is wrong is said where it is checked
    return int(np.random.SeedSequence([seed, i]).generate_state(1)[0])


def run(
    sweep: Sweep, out: Path | None = None, force: bool = False,
    watch: Callable[[int], None] | None = None, resume: bool = False,
) -> xr.DataTree:  # fmt: skip
    """Run every part of a sweep, into memory, or into a store that has them by number in `parts`.

    Parameters
    ----------
    sweep : Sweep
        What to run.
    out : Path, optional
        The store; None keeps all in memory.
    force : bool
        Replace a store that is there.
    watch : callable, optional
        Called with the number of parts that are done, after each.
    resume : bool
        Go on with the sweep at `out`: parts that are complete stay as they are.
    """
    if resume and (out is None or sweep.raw.seal):
        raise InputError("a sweep is resumed in the store of its run, and not a sealed one")
    if out is None:
        if sweep.raw.seal:
            sweep.raw.seal.record(None)
        return _in_memory(sweep, watch)
    from engine import opening, parts
    from engine import resume as resuming
    from engine.lock import check_free

    out = out.expanduser()
    if not resume:
        for plan in sweep.plans:
            experiment.check_not_read(plan, out)
        check_free(out, force)
        if sweep.raw.seal:
            sweep.raw.seal.record(out)
    with uninterrupted():
        root = (
            resuming.parts(out, sweep.attrs["scenario"]["resolved"])
            if resume
            else parts.Parts(out, sweep.attrs, len(sweep.plans), force)
        )
    if root is None:
        return opening.open(out)
    status = "failed"
    try:
        for i, (settings, plan) in enumerate(zip(sweep.settings, sweep.plans, strict=True)):
            try:
                there = resume and root.path(i).exists()
                sink = (resuming.sink if there else experiment.store_sink)(plan, root.path(i))
                if sink is not None:  # else this part is complete
                    sink.describe("", {"settings": settings, **sweep.seal})
                    experiment.execute(plan, sink)
            except EngineError as error:
                raise type(error)(f"part {i} ({told(settings)}): {error}") from error
            root.commit(i + 1)
            if watch:
                watch(i + 1)
        status = "complete"
    finally:
        with uninterrupted():
            root.close(status)
    return opening.open(out)


def _in_memory(sweep: Sweep, watch: Callable[[int], None] | None) -> xr.DataTree:
    import xarray as xr

    tree = xr.DataTree(xr.Dataset(attrs={
        **sweep.attrs, "parts": len(sweep.plans), "committed": len(sweep.plans),
        "status": "complete",
    }))  # fmt: skip
    for i, (settings, plan) in enumerate(zip(sweep.settings, sweep.plans, strict=True)):
        sink = MemorySink()
        sink.describe("", {"settings": settings, **sweep.seal})
        experiment.execute(plan, sink)
        tree[f"parts/{i}"] = sink.tree()
        if watch:
            watch(i + 1)
    return tree

"""Going on with a run that ended early, to exactly the run that it would have been.

The run is computed again from its first step: that rebuilds every state, bit for bit, without a
format for states. What is stored is compared with what comes out, and only behind it is written.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cut import only_begun
from engine.errors import InputError
from engine.parts import Parts
from engine.recorder import Variable, layout
from engine.store import ZarrSink, group

if TYPE_CHECKING:
    from engine.experiment import Plan

ALTER = ("ttr-engine", "numpy", "numba")
"""Libraries whose versions alter numbers (numba's where it is used)."""


class ResumedSink:
    """Compares what is written with what a store holds, and writes on where that ends.

    Parameters
    ----------
    path : Path
        The store.
    steps : int
        Length of the run.
    """

    def __init__(self, path: Path, steps: int) -> None:
        self._sink = ZarrSink.reopen(path)
        attrs = self._sink.attrs
        self.shard, self.block = int(attrs["shard"]), int(attrs["block"])
        # Chunks are rewritten in place, so from here on nothing counts as stored.
        self.first = min(int(attrs["committed"]), steps - 1) // self.shard * self.shard
        self._begun, self._guard = False, threading.RLock()
        self._later: list[Callable[[], None]] = []

    def create(self, variable: Variable) -> None:
        """Take up a variable that is there; one that is not is made once the run goes on."""
        with self._guard:
            if not self._sink.adopt(variable):
                self._do(partial(self._sink.create, variable))

    def write(self, variable: Variable, start: int, rows: np.ndarray) -> None:
        """Compare rows before `first`, and write those behind it."""
        with self._guard:
            if variable.advances and start >= variable.rows(self.first):
                if len(rows) or variable.every == 1:
                    self._begin()
                self._do(partial(self._sink.write, variable, start, rows))
            elif variable.advances:
                self._compare(variable, start, rows)
            elif self._begun or not _same(self._sink.read(variable.path, start, rows), rows):
                self._do(partial(self._sink.write, variable, start, np.array(rows)))

    def describe(self, group: str, attrs: Mapping[str, Any]) -> None:
        """Add attributes; those of the beginning are there."""
        if self._begun:
            self._sink.describe(group, attrs)

    def commit(self, steps: int) -> None:
        """Move the mark, once there is something new before it."""
        if self._begun:
            self._sink.commit(steps)

    def close(self, status: str) -> None:
        """End the run; a store that was only compared stays as it is."""
        if self._begun:
            self._sink.close(status)
        else:
            self._sink.release()

    def _do(self, act: Callable[[], None]) -> None:
        if self._begun:
            act()
        else:
            self._later.append(act)

    def _begin(self) -> None:
        if not self._begun:
            self._sink.begin_at(self.first)
            self._begun = True
            for act in self._later:
                act()
            self._later.clear()

    def _compare(self, variable: Variable, start: int, rows: np.ndarray) -> None:
        old = self._sink.read(variable.path, start, rows)
        if not _same(old, rows):
            same = [_same(a, b) for a, b in zip([] if old is None else old, rows, strict=False)]
            at = same.index(False) if False in same else 0
            step = (start + at + 1) * variable.every - 1
            raise InputError(
                f"the run cannot be resumed: {variable.path} at step {step} is stored as other "
                "numbers than come out now; a plugin, an input or the machine has changed since. "
                "Run it anew with --force"
            )


def _same(old: np.ndarray | None, now: np.ndarray) -> bool:
    return old is not None and old.shape == now.shape and old.tobytes() == now.tobytes()


def sink(plan: Plan, path: Path) -> ResumedSink | ZarrSink | None:
    """Return what goes on with the run at `path`; None if that is complete.

    Raises
    ------
    InputError
        If there is no run, or it was begun with something else; every difference is shown.
    """
    from engine.experiment import store_sink

    path = path.expanduser()
    if not path.exists():
        raise InputError(f"{path} does not exist: to begin a run there, leave --resume out")
    if only_begun(path) and plan.scenario.seal is None:
        return store_sink(plan, path, force=True)
    root = group(path)
    attrs: dict[str, Any] = root.attrs.asdict()
    found = [*_unequal("", attrs["scenario"]["resolved"], _plain(plan.scenario.resolved))]
    used = attrs["provenance"]["versions"]
    compiled = any(track.kernel == "numba" for track in plan.tracks)
    for name in ALTER if compiled else ALTER[:-1]:
        if used.get(name) != version(name):
            found.append(f"version of {name}: {used.get(name)} in the store, {version(name)} now")
    for track in plan.tracks:
        where = f"solvers/{track.label}"
        old = root[where].attrs.get("kernel") if where in root else None
        if old is not None and old != track.kernel:
            found.append(f"kernel of {track.label}: {old!r} in the store, {track.kernel!r} now")
    for v in layout(plan.source, plan.tracks, plan.scenario.table.states):
        if v.path in root and attrs["committed"]:
            x = root[v.path]
            if (x.shape, x.dtype) != (v.shape, v.dtype):
                told = f"{x.dtype} {x.shape} in the store, {v.dtype} {v.shape} now"
                found.append(f"{v.path}: {told}")
    _refuse(path, found)
    if attrs["status"] == "complete":
        return None
    if not attrs["committed"] and plan.scenario.seal is None:
        return store_sink(plan, path, force=True)
    if not attrs["committed"] or "block" not in attrs or "parent" in attrs:
        raise InputError(f"{path} cannot be resumed; run it anew with --force")
    assert plan.source.steps is not None
    return ResumedSink(path, plan.source.steps)


def parts(path: Path, resolved: Any) -> Parts | None:
    """Return what goes on with the sweep at `path`; None if that is complete.

    Raises
    ------
    InputError
        If there is none, or it was begun with something else; every difference is shown.
    """
    attrs: dict[str, Any] = group(path).attrs.asdict()
    _refuse(path, list(_unequal("", attrs["scenario"]["resolved"], _plain(resolved))))
    return None if attrs["status"] == "complete" else Parts.reopen(path)


def _refuse(path: Path, found: list[str]) -> None:
    if found:
        raise InputError(
            f"{path} cannot be resumed, what it was begun with differs:\n  "
            + "\n  ".join(found)
            + "\ntake the change back, or run it anew with --force"
        )


def _plain(resolved: Any) -> Any:
    return json.loads(json.dumps(resolved))


def _unequal(path: str, old: Any, new: Any) -> Iterator[str]:
    """Yield where two trees of plain values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            where = f"{path}.{key}" if path else key
            if key in old and key in new:
                yield from _unequal(where, old[key], new[key])
            else:
                told = [repr(x[key]) if key in x else "nothing" for x in (old, new)]
                yield f"{where}: {told[0]} in the store, {told[1]} now"
    elif json.dumps(old) != json.dumps(new):  # as text, for NaN equals no number
        yield f"{path}: {old!r} in the store, {new!r} now"

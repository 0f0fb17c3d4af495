"""Whether a run holds: it is run again, and every number that it stored is compared."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine import experiment, store
from engine.agreement import Comparison, tolerance
from engine.errors import EngineError, InputError
from engine.frames import Frame
from engine.recorded import RunStream, maker, maker_now, told
from engine.recorder import Variable, layout, shard_steps
from engine.rerun import prepare
from engine.scenario import load
from engine.sources import GeneratorSource

READ_STEPS = 2**10
MAY_DIFFER = ("kernel", "backend")
"""What of a scenario may be set where a run is verified: anything else makes another run."""


@dataclass(frozen=True)
class Difference:
    """The first number of a variable that is not what recomputing it gives.

    `step` is None where the variable has none; `index` is its place in the stored array.
    """

    variable: str
    index: tuple[int, ...]
    dims: tuple[str, ...]
    step: int | None
    stored: Any
    recomputed: Any

    def __str__(self) -> str:
        where = [f"{d} {i}" for d, i in zip(self.dims, self.index, strict=True)]
        if self.dims[:1] == ("keyframe",):
            where.append(f"the state after step {self.step}")
        found = f"{self.stored!r} is stored, {self.recomputed!r} recomputed"
        return f"{self.variable}{' at ' if where else ''}{', '.join(where)}: {found}"


@dataclass
class Verification:
    """What verifying a run came to.

    Parameters
    ----------
    stored_by, recomputed_by : mapping of str to mapping
        By solver label: kernel, backend, machine and versions.
    compared : int
        Numbers compared.
    tolerance, worst : mapping of str to float
        By solver label: what is allowed of a difference, relative to the largest number so far (0:
        bit for bit), and the largest share of that which was seen; then that difference itself.
    differences : list of Difference
        The first of every variable that differs.
    notes : list of str
        What could not be compared, and why.
    """

    stored_by: dict[str, dict[str, str]]
    recomputed_by: dict[str, dict[str, str]]
    compared: int = 0
    tolerance: dict[str, float] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> Difference | None:
        """The earliest difference: of the stream before the solvers, then by step."""

        def order(d: Difference) -> tuple[bool, float]:
            return not d.variable.startswith("stream/"), math.inf if d.step is None else d.step

        return min(self.differences, key=order, default=None)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        first = self.first
        return {
            "agrees": not self.differences,
            "compared": self.compared,
            "stored_by": self.stored_by,
            "recomputed_by": self.recomputed_by,
            "tolerance": self.tolerance,
            "worst": self.worst,
            "first": None if first is None else {**vars(first), "index": list(first.index)},
            "differ": [d.variable for d in self.differences],
            "notes": self.notes,
        }

    def lines(self) -> Iterator[str]:
        """Yield what it came to in words."""
        for label, then in self.stored_by.items():
            now, allowed = self.recomputed_by[label], self.tolerance[label]
            if not allowed:
                yield f"{label}: bit for bit; stored and recomputed by {told(then)}"
                continue
            apart = {n for n in {*then, *now} if then.get(n) != now.get(n)}
            sides = (told({n: x for n, x in side.items() if n in apart}) for side in (then, now))
            yield (
                f"{label}: stored by {next(sides)}, recomputed by {next(sides)}; largest "
                f"difference {self.worst[label]:.2g}, tolerance {allowed:.2g}, both relative to "
                "the largest number so far (at least 1)"
            )
        yield from self.notes


class Against:
    """A sink that compares what a run would write with what a store holds."""

    def __init__(self, path: Path, shard: int, found: Verification) -> None:
        self.shard, self._found = shard, found
        self._root = store.group(path)
        self._comparisons: dict[str, Comparison] = {}
        self._done: set[str] = set()

    def create(self, variable: Variable) -> None:
        """Look for the stored variable."""
        path = variable.path.strip("/")
        allowed = self._found.tolerance.get(_label(path), 0.0)
        self._comparisons[path] = Comparison(allowed if variable.dtype.kind == "f" else 0.0)
        if path not in self._root:
            self._done.add(path)
            self._found.notes.append(f"{path} is not stored, so it is not compared")

    def write(self, variable: Variable, start: int, rows: np.ndarray) -> None:
        """Compare rows with the stored ones, up to the first that differ."""
        path = variable.path.strip("/")
        if path in self._done:
            return
        array, rows = self._root[path], np.asarray(rows)
        stored = np.asarray(array[start : start + len(rows)] if variable.shape else array[...])
        if variable.dims[:1] == ("probe_step",):  # a run that was cut had room for more queries
            stored = stored[tuple(map(slice, rows.shape))]
        comparison, label = self._comparisons[path], _label(path)
        at = comparison.first(np.atleast_1d(stored), np.atleast_1d(rows))
        self._found.compared += rows.size
        if label in self._found.worst:
            self._found.worst[label] = max(self._found.worst[label], comparison.worst)
        if at is None:
            return
        self._done.add(path)
        at = at if variable.shape else ()
        index = (at[0] + start, *at[1:]) if at else ()
        step = (index[0] + 1) * variable.every - 1 if variable.advances else None
        self._found.differences.append(
            Difference(path, index, variable.dims, step, stored[at].item(), rows[at].item())
        )

    def describe(self, group: str, attrs: Mapping[str, Any]) -> None:
        """Compare the stream's hash."""
        stored = self._root["stream"].attrs.get("sha256")
        if group == "stream" and stored is not None and attrs.get("sha256", stored) != stored:
            self._found.differences.append(
                Difference("stream/sha256", (), (), None, stored, attrs["sha256"])
            )

    def commit(self, steps: int) -> None:
        """Do nothing: nothing is kept."""

    def close(self, status: str) -> None:
        """Do nothing: nothing was opened."""


def _label(path: str) -> str:
    """Return the solver whose numbers a variable holds; "" if no solver's."""
    group, *rest = path.split("/")
    at = {"solvers": 0, "keyframes": 0, "probes": 1}.get(group)
    return rest[at] if at is not None and len(rest) > at + 1 else ""


def _compare_streams(path: Path, attrs: Mapping[str, Any], found: Verification) -> None:
    """Draw the stream again and compare it, where its generator can be made."""
    stored, root = RunStream(path), store.group(path)["stream"]
    try:
        made = load(attrs["scenario"]["resolved"])
        assert not isinstance(made.generator, Path)
        drawn = GeneratorSource(made.generator, made.table.seed, made.table.trials, made.steps)
    except EngineError as error:
        found.notes.append(
            f"the stream cannot be drawn again, so only its hash is compared: {error}"
        )
        return
    backend = attrs["provenance"]["backend"]
    same = maker(attrs, "") == maker(
        {"provenance": experiment.provenance(backend=backend), **_here()}, ""
    )
    if not same:
        found.notes.append("the stream was drawn by other versions: compared up to rounding")
    width = stored.sample["keys"].shape[-1]
    comparisons: dict[str, Comparison] = {}
    if drawn.sample.keys() != stored.sample.keys():
        names = sorted(drawn.sample.keys() ^ stored.sample.keys())
        raise InputError(f"{path}: its scenario draws another stream: {', '.join(names)}")
    for ours, theirs in zip(stored.blocks(READ_STEPS), drawn.blocks(READ_STEPS), strict=False):
        for name, x in ours.arrays.items():
            allowed = 0.0 if same else tolerance(x.dtype, 1, width)
            comparison = comparisons.setdefault(name, Comparison(allowed))
            at = comparison.first(x, theirs.arrays[name][: len(x)])
            found.compared += x.size
            if at is not None:
                index, dims = (at[0] + ours.start, *at[1:]), root[name].metadata.dimension_names
                pair = x[at].item(), theirs.arrays[name][at].item()
                found.differences.append(
                    Difference(f"stream/{name}", index, tuple(dims), index[0], *pair)
                )
                return


def _here() -> dict[str, Any]:
    return {"writer": {"host": platform.node()}}


def verify(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    watch: Callable[[Frame], None] | None = None,
) -> Verification:
    """Run a stored run again and compare every array that it stored.

    Parameters
    ----------
    path : str or Path
        A run's store. Of a run that did not finish, the steps that are complete.
    overrides : mapping of str to value, optional
        `kernel` or `backend`: what to compute with.
    watch : callable, optional
        Called with every frame.

    Returns
    -------
    Verification
        Bit for bit where kernel, backend, machine and versions are those that stored it; to a
        tolerance, which it names, elsewhere.

    Raises
    ------
    InputError
        If there is no run at `path`, or an override would make another run of it.
    RunError
        If what is stored cannot be read, or a solver fails.
    """
    path = Path(path).expanduser()
    for key, value in (overrides or {}).items():
        if key not in MAY_DIFFER:
            raise InputError(
                f"override {key} = {value!r}: a run is verified as it is; only "
                f"{' and '.join(MAY_DIFFER)} may be set"
            )
    plan = prepare(path, None, overrides)
    root, source = store.group(path), plan.source
    attrs: dict[str, Any] = root.attrs.asdict()
    found = Verification({}, {})
    for track in plan.tracks:
        kernel = root[f"solvers/{track.label}"].attrs["kernel"]
        then, now = maker(attrs, kernel), maker_now(track)
        found.stored_by[track.label], found.recomputed_by[track.label] = then, now
        allowed = tolerance(track.dtype, source.steps or 0, track.sizes["key"])
        found.tolerance[track.label] = 0.0 if then == now else allowed
        found.worst[track.label] = 0.0
    _compare_streams(path, attrs, found)
    states = plan.scenario.table.states
    shard = shard_steps(list(layout(source, plan.tracks, states)), source.steps or 0)
    experiment.execute(plan, Against(path, shard, found), watch)
    return found

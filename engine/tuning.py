"""Settings found by trying them: every candidate on the same development streams, in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine import coefficients, signatures
from engine.answers import Written, ask
from engine.backend import backend
from engine.coefficients import PerTrial
from engine.errors import InputError, at, nearest, told
from engine.experiment import Plan, prepare
from engine.initial import begin
from engine.loop import loop
from engine.measure import mapped, prediction_error, tracking_error
from engine.measure.statistics import Estimate, estimate, paired
from engine.probes import question
from engine.recorder import block_steps
from engine.sources import Source, Tokens
from engine.track import Track

BATCH = 2**24  # numbers that a batch of candidates may draw per pass: how many are run at a time
SEARCH = 40  # settings that a search may try
NEAR = 2e-3  # of a range: as near to its end as a search comes


class Range(BaseModel):
    """``{ low = 0.01, high = 1.0, count = 9, scale = "log" }``; without `count`, a search.

    Parameters
    ----------
    low, high : float
        The ends, which are tried too.
    count : int, optional
        How many values; without it, the best is searched for.
    scale : "linear" or "log"
        How they are spaced.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    low: float
    high: float
    count: Annotated[int, Field(ge=2)] | None = None
    scale: Literal["linear", "log"] = "linear"

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.low >= self.high or (self.scale == "log" and self.low <= 0):
            positive = " above 0" if self.scale == "log" else ""
            raise ValueError(f"low{positive} must be below high")
        return self

    def values(self) -> list[float]:
        """Return `count` values, ends included."""
        space = np.geomspace if self.scale == "log" else np.linspace
        return [float(x) for x in space(self.low, self.high, self.count or 2)]

    def snapped(self, x: float) -> float:
        """Return x, or an end that it is as near to as a search comes."""
        ends = np.array([self.low, self.high])
        place = np.log if self.scale == "log" else np.positive
        near = np.abs(place(x) - place(ends)) <= NEAR * np.ptp(place(ends))
        return float(ends[near][0]) if near.any() else x


@dataclass(frozen=True)
class Task:
    """``[tune.<label>]``: what is tried for one solver, and by what it is judged.

    `objective` is "error" (the last quarter's mean) or the name of a probe (its recall); `per_step`
    names the settings that are coefficients, `bounds` the ends of what they admit.
    """

    label: str
    objective: str
    per_step: frozenset[str]
    bounds: Mapping[str, tuple[float | None, float | None]]
    grid: Mapping[str, list[Any]]
    search: Mapping[str, Range]


@dataclass(frozen=True)
class Candidate:
    """Settings, what they come to, and how far from the best on the same streams."""

    settings: dict[str, Any]
    score: Estimate
    behind: Estimate


@dataclass(frozen=True)
class Tuned:
    """One solver's candidates in the order they were tried; `edges`: best at an end of its range.

    `measure` names what was measured: an error, where less is better, or a recall.
    """

    label: str
    measure: str
    candidates: list[Candidate]
    best: Candidate
    edges: list[str]


class Repeated:
    """A stream whose trials come `times` over, one whole set after another."""

    def __init__(self, source: Source, times: int) -> None:
        self._source, self._times = source, times
        self.steps, self.trials, self.dims = source.steps, source.trials * times, source.dims
        self.sample = {n: self._tile(x, 1) for n, x in source.sample.items()}
        self.facts = {n: self._tile(x, 0) for n, x in source.facts.items()}

    def _tile(self, x: np.ndarray, axis: int) -> np.ndarray:
        return np.concatenate([x] * self._times, axis=axis)

    def blocks(self, size: int | Callable[[], int]) -> Iterator[Tokens]:
        """Yield the stream in blocks of `size` steps."""
        for tokens in self._source.blocks(size):
            yield Tokens(tokens.start, {n: self._tile(x, 1) for n, x in tokens.arrays.items()})


def tune(
    scenario: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    solver: str | None = None,
) -> list[Tuned]:
    """Return the best settings of every solver that a scenario's ``[tune]`` names.

    Parameters
    ----------
    scenario, overrides
        As for `engine.run`; only the development seed is used.
    solver : str, optional
        Tune this label only.

    Returns
    -------
    list of Tuned
        One per label of ``[tune]``, with every candidate and the best of them.

    Raises
    ------
    InputError
        If the scenario has nothing to tune, or a candidate is not admitted.
    """
    given, plan = dict(overrides or {}), prepare(scenario, overrides or {})
    made = plan.scenario
    with at(made.where):
        if not made.table.tune:
            raise InputError("tune: missing; write [tune.<label>] with candidates, as beta = [...]")
        if solver is not None and solver not in made.table.tune:
            raise InputError(f"tune.{solver}: missing; {nearest(solver, made.table.tune)}")
        if plan.seal:
            raise InputError("stream.path: a run on sealed seeds; tune on a development stream")
        if not plan.source.steps:
            raise InputError("stream.steps: nothing to measure; tuning needs a length above 0")
        tasks = [_task(plan, label, table) for label, table in made.table.tune.items()]
    return [_tuned(scenario, given, task) for task in tasks if solver in (None, task.label)]


def _task(plan: Plan, label: str, table: Mapping[str, Any]) -> Task:
    """Return what a table asks to try, every key of it checked."""
    made, table = plan.scenario, dict(table)
    if label not in made.entries:
        raise InputError(f"tune.{label}: no such solver; {nearest(label, made.entries)}")
    objective = table.pop("objective", "error")
    if objective not in ("error", *made.table.probes):
        advice = nearest(str(objective), ["error", *made.table.probes])
        raise InputError(f"tune.{label}.objective = {objective!r}: no such objective; {advice}")
    kind = type(made.entries[label].solver)
    declared, hyper = signatures.coefficients(kind), signatures.options(kind)
    grid: dict[str, list[Any]] = {}
    search: dict[str, Range] = {}
    for name, value in table.items():
        with at(f"tune.{label}.{name} = {value!r}"):
            if name not in declared and name not in hyper:
                raise InputError(f"no such setting; {nearest(name, [*declared, *hyper])}")
            found = _candidates(value)
            if isinstance(found, Range) and found.count is None:
                search[name] = found
                continue
            grid[name] = found.values() if isinstance(found, Range) else found
            for x in grid[name] if name in declared else ():
                binding = coefficients.parse(name, declared[name].spec, x)
                coefficients.check(binding, plan.source.sample, plan.source.trials, {})
    if not grid and not search:
        raise InputError(f"tune.{label}: nothing to try; Known: {', '.join([*declared, *hyper])}")
    if grid and search:
        mixed = f"{next(iter(search))!r} without count beside {next(iter(grid))!r}"
        raise InputError(f"tune.{label}: {mixed}; give every range a count, or none")
    bounds = {n: (d.spec.low, d.spec.high) for n, d in declared.items()}
    return Task(label, objective, frozenset(declared), bounds, grid, search)


def _candidates(value: Any) -> Range | list[Any]:
    if isinstance(value, list) and value:
        return [x for i, x in enumerate(value) if x not in value[:i]]
    if not isinstance(value, Mapping):
        raise InputError("must be a list of candidates, or { low = ..., high = ..., count = ... }")
    try:
        return Range.model_validate(dict(value))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise InputError(f"no key {name!r}; {nearest(name, Range.model_fields)}") from error
        if first["type"] == "missing":
            raise InputError(f"needs {name!r} too") from error
        raise InputError(f"{name}: {told(first)}" if name else told(first)) from error


def _tuned(scenario: Any, overrides: Mapping[str, Any], task: Task) -> Tuned:
    tried: list[tuple[dict[str, Any], np.ndarray]] = []
    if task.search:
        measure = _searched(scenario, overrides, task, tried)
    else:
        settings = [dict(zip(task.grid, x, strict=True)) for x in product(*task.grid.values())]
        scores, measure = _scores(scenario, overrides, task, settings)
        tried = list(zip(settings, scores, strict=True))
    sign = 1.0 if task.objective == "error" else -1.0
    means = [sign * float(x.mean()) for _, x in tried]
    sound = [m if math.isfinite(m) else math.inf for m in means]
    winner = int(np.argmin(sound))
    if not math.isfinite(sound[winner]):
        raise InputError(f"tune.{task.label}: every candidate diverged; give milder ones")
    best = tried[winner][1]
    found = [Candidate(s, estimate(x), paired(x, best)) for s, x in tried]
    ends = {n: (min(x), max(x)) for n, x in task.grid.items() if len(x) > 1 and _ordered(x)}
    last = {n: tried[winner][0][n] for n in ends}
    for name, r in task.search.items():
        ends[name] = (r.low, r.high)
        last[name] = r.snapped(tried[winner][0][name])
    edges = [n for n, x in last.items() if x in ends[n] and x not in task.bounds.get(n, ())]
    return Tuned(task.label, measure, found, found[winner], edges)


def _ordered(values: list[Any]) -> bool:
    return all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in values)


def _searched(scenario: Any, overrides: Mapping[str, Any], task: Task, tried: list[Any]) -> str:
    """Search ranges by Nelder and Mead's method, adding to `tried`; return what is measured."""
    from scipy.optimize import minimize

    names, ranges = list(task.search), list(task.search.values())
    logs = [r.scale == "log" for r in ranges]
    bounds = [
        (math.log(r.low), math.log(r.high)) if log else (r.low, r.high)
        for r, log in zip(ranges, logs, strict=True)
    ]
    measure = ["error"]

    def less(score: np.ndarray) -> float:
        mean = float(score.mean()) * (1.0 if task.objective == "error" else -1.0)
        return mean if math.isfinite(mean) else 1e300

    def objective(x: np.ndarray) -> float:
        values = (math.exp(v) if log else float(v) for v, log in zip(x, logs, strict=True))
        inside = (min(max(v, r.low), r.high) for v, r in zip(values, ranges, strict=True))
        settings = dict(zip(names, inside, strict=True))
        known = [score for old, score in tried if old == settings]
        if known:
            return less(known[0])
        (score,), measure[0] = _scores(scenario, overrides, task, [settings])
        tried.append((settings, score))
        return less(score)

    middle = [(a + b) / 2 for a, b in bounds]
    tolerance = {"xatol": 1e-3 * max(b - a for a, b in bounds), "fatol": 0.0}
    options = {"maxfev": SEARCH * len(names), **tolerance}
    minimize(objective, middle, method="Nelder-Mead", bounds=bounds, options=options)
    return measure[0]


def _scores(
    scenario: Any, overrides: Mapping[str, Any], task: Task, settings: list[dict[str, Any]]
) -> tuple[list[np.ndarray], str]:
    """Return every candidate's score in each trial, and what was measured.

    What changes per step is tried as trials of one batch; for another hyperparameter the solver
    is another one, and runs on its own.
    """
    found: list[np.ndarray] = [np.empty(0)] * len(settings)
    groups: dict[str, list[int]] = {}
    for i, one in enumerate(settings):
        own = {f"solvers.{task.label}.{n}": x for n, x in one.items() if n not in task.per_step}
        groups.setdefault(repr(own), []).append(i)
    measure = "error"
    for members in groups.values():
        one = settings[members[0]]
        own = {f"solvers.{task.label}.{n}": x for n, x in one.items() if n not in task.per_step}
        plan = prepare(scenario, {**overrides, **own})
        drawn = sum(math.prod(x.shape[2:]) for x in plan.source.sample.values())
        size = max(1, BATCH // max(plan.source.trials * drawn * (plan.source.steps or 1), 1))
        for start in range(0, len(members), size):
            part = members[start : start + size]
            batch = [{n: x for n, x in settings[i].items() if n in task.per_step} for i in part]
            score, measure = _batch(plan, task, batch)
            for i, x in zip(part, np.split(score, len(part)), strict=True):
                found[i] = x
    return found, measure


def _batch(plan: Plan, task: Task, batch: list[dict[str, Any]]) -> tuple[np.ndarray, str]:
    """Run candidates as trials of one batch; return each trial's score, and what it is."""
    entry, table = plan.scenario.entries[task.label], plan.scenario.table
    source, trials = Repeated(plan.source, len(batch)), plan.source.trials
    bindings = dict(entry.bindings)
    for name, b in bindings.items():
        if isinstance(b.source, PerTrial):
            bindings[name] = replace(b, source=PerTrial(trials=b.source.trials * len(batch)))
    for name in batch[0]:
        per = PerTrial(trials=[float(one[name]) for one in batch for _ in range(trials)])
        spec = signatures.coefficients(type(entry.solver))[name]
        bindings[name] = coefficients.Binding(name, spec.spec, per, read="read" in spec.methods)
    tracks = entry.view is None and "target_map" in source.sample
    track = Track(
        task.label, entry.solver, source, bindings, entry.view, backend(table.backend),
        table.dtype, tracks and task.objective == "error", table.kernel,
    )  # fmt: skip
    begin(track, source, entry.state)
    if task.objective == "error":
        return _error(source, track)
    return _recall(plan, task, source, track), f"recall of {task.objective}"


def _error(source: Repeated, track: Track) -> tuple[np.ndarray, str]:
    """Return the mean error of the last quarter of the steps, as `engine run` prints it."""
    steps = source.steps or 0
    first, name = steps - steps // 4 if steps >= 4 else 0, "prediction error"
    total, count = np.zeros(source.trials), np.zeros(source.trials)
    for frame in loop(source, [track], block_steps(source, [track])):
        trace = frame.traces[track.label]
        at = slice(max(first - frame.start, 0), None)
        arrays = frame.tokens.arrays
        if "S" in trace.states and "target_map" in arrays:
            name = "tracking error"
            error = tracking_error(trace.states["S"][at], arrays["target_map"][at])
        else:
            error = prediction_error(trace.prediction[at], mapped(track.view, arrays["values"][at]))
        known = ~np.isnan(error)  # nothing is predicted at a masked step
        total += np.where(known, error, 0.0).sum(axis=0)
        count += known.sum(axis=0)
    with np.errstate(invalid="ignore"):
        score = total / count
    return np.where(track.diverged_at >= 0, np.nan, score), name


def _recall(plan: Plan, task: Task, source: Repeated, track: Track) -> np.ndarray:
    """Return the share recalled when a probe is asked last."""
    probe = plan.scenario.table.probes[task.objective]
    q = question(task.objective, probe, source)
    last = q.stops[-1]
    written = Written(source, q, last)
    for tokens in source.blocks(block_steps(source, [track])):
        part = {n: x[: last - tokens.start] for n, x in tokens.arrays.items()}
        if tokens.start < last:
            written(tokens)
            track.advance(Tokens(tokens.start, part))
    hit = ask(track, written.asked(last), q.decode)["recalled"][1]
    known = ~np.isnan(hit)
    if not known.any():
        raise InputError(
            f"tune.{task.label}.objective = {task.objective!r}: nothing that this probe asks is "
            'right or wrong; take one with ask = "keys"'
        )
    return np.asarray(np.where(known, hit, 0.0).sum(axis=0) / known.sum(axis=0))

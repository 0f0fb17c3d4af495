"""How many random pairs fit: the sealed recall study, and recall over many widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Part, Report, Table, hookimpl, labels, parts
from engine.measure import probed
from engine.measure.statistics import estimate

if TYPE_CHECKING:
    import xarray as xr

LOADS = (0.5, 1.0, 2.0, 4.0, 8.0)
# Means of 2000 repetitions of the published protocol, a row per width, a column per load.
POPULATION = {
    "delta": {
        8: (0.9726, 0.8194, 0.5000, 0.2223, 0.0840), 16: (0.9894, 0.9126, 0.6404, 0.3097, 0.1194),
        32: (0.9992, 0.9833, 0.8322, 0.4723, 0.2020),
    },
    "gated": {
        8: (0.5713, 0.3797, 0.2826, 0.1944, 0.0895), 16: (0.4669, 0.3245, 0.2757, 0.2277, 0.1324),
        32: (0.3977, 0.2986, 0.2690, 0.2530, 0.1910),
    },
    "hebbian": {
        8: (0.9656, 0.7916, 0.4636, 0.2034, 0.0775), 16: (0.9878, 0.8971, 0.6027, 0.2746, 0.0962),
        32: (0.9993, 0.9824, 0.8280, 0.4525, 0.1613),
    },
}  # fmt: skip
# Published, population, and the standard error of the published 30 repetitions.
ENDPOINTS = {
    "priority gain over plain delta": (0.387, 0.3819, 0.0096),
    "ordinary change": (-0.124, -0.1240, 0.0033),
    "overall, gated": (0.138, 0.1377, 0.0023),
    "overall, plain delta": (0.134, 0.1351, 0.0026),
}
NAMES = {"softmax": "softmax, scale 50", "softmax_soft": "softmax, scale 1/sqrt(d)"}
SOFTMAX = (0.021, 0.009, 0.004)  # scale 1/sqrt(d), N/d = 8, d = 8 16 32


def recall(part: Part, label: str, where: Any = None) -> np.ndarray:
    """Return the share of keys recalled in each trial, of those where `where` is true."""
    return np.asarray(probed.recall(part.run, "recall", label, where=where))


def shape(part: Part) -> tuple[int, int]:
    """Return width and number of pairs."""
    sizes = part.run["stream/keys"].sizes
    return sizes["key"], sizes["step"]


def _endpoints(part: Part) -> dict[str, np.ndarray]:
    first = part.run["stream/priority"].transpose("step", "trial").values
    return {
        "priority gain over plain delta": recall(part, "gated", first)
        - recall(part, "delta", first),
        "ordinary change": recall(part, "gated", ~first) - recall(part, "delta", ~first),
        "overall, gated": recall(part, "gated"),
        "overall, plain delta": recall(part, "delta"),
    }


def _cell(part: Part, label: str, population: float) -> Claim:
    """Return recall in one cell of the study."""
    (d, n), ours = shape(part), recall(part, label)
    # Where none is missed, trials show no spread: no less than independent keys.
    least = np.sqrt(population * (1 - population) / (ours.size * n))
    within = 3 * max(estimate(ours).se, float(least))
    what = f"recall, {label}, d = {d}, N/d = {n / d:g}"
    return Claim(what, float(ours.mean()), None, population, within, "3 se")


@dataclass(frozen=True)
class Capacity(Report):
    """Recall of N random pairs at load N/d, a write gate on importance against none."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return the endpoints and every cell, each within 3 standard errors."""
        cells = {shape(part): part for part in parts(run)}
        full = [_endpoints(cells[d, 8 * d]) for d in (8, 16, 32)]
        found = []
        for what, (published, population, se) in ENDPOINTS.items():
            ours = estimate(np.mean([one[what] for one in full], axis=0))
            why = "3 se of the published 30 repetitions"
            found.append(Claim(f"N/d = 8: {what}", ours.value, published, population, 3 * se, why))
        for i, load in enumerate(LOADS):
            one = [_endpoints(cells[d, round(load * d)]) for d in (8, 16, 32)]
            changes = [x["overall, gated"] - x["overall, plain delta"] for x in one]
            ours = estimate(np.mean(changes, axis=0))
            by_width = [POPULATION["gated"][d][i] - POPULATION["delta"][d][i] for d in (8, 16, 32)]
            what = f"N/d = {load:g}: what the gate changes of all recall"
            population = float(np.mean(by_width))
            found.append(Claim(what, ours.value, None, population, 3 * ours.se, "3 se"))
        for label, widths in POPULATION.items():
            for d, row in widths.items():
                for load, population in zip(LOADS, row, strict=True):
                    found.append(_cell(cells[d, round(load * d)], label, population))
        for d, published in zip((8, 16, 32), SOFTMAX, strict=True):
            part = cells[d, 8 * d]
            ours = estimate(recall(part, "softmax_soft"))
            within = 3 * ours.se + 0.0005
            what = f"recall, softmax at scale 1/sqrt({d}), N/d = 8"
            found.append(Claim(what, ours.value, published, None, within, "3 se and rounding"))
            sharp = float(recall(part, "softmax").mean())
            what = f"recall, softmax at scale 50, d = {d}, N/d = 8"
            found.append(Claim(what, sharp, None, 1.0, 1e-3, "a sharp scale picks single keys"))
        return found

    def tables(self, run: xr.DataTree) -> Sequence[Table]:
        """Return what the gate costs and gives at every load, widths with equal weight."""
        cells = {shape(part): part for part in parts(run)}
        rows = []
        for load in LOADS:
            one = [_endpoints(cells[d, round(load * d)]) for d in (8, 16, 32)]
            mean = {what: np.mean([x[what] for x in one], axis=0) for what in ENDPOINTS}
            change = estimate(mean["overall, gated"] - mean["overall, plain delta"])
            gain, cost = (estimate(mean[what]) for what in list(ENDPOINTS)[:2])
            rows.append([load, *(x for e in (gain, cost, change) for x in (e.value, 3 * e.se))])
        columns = (
            "N/d",
            "priority gain",
            "3 se",
            "ordinary change",
            "3 se",
            "change of all",
            "3 se",
        )
        return [
            Table(
                "gate_cost",
                "What the gate costs: total recall moves least at N/d = 8",
                columns,
                rows,
            )
        ]

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return recall against load, and the gate's cost, and softmax by scale."""
        every = list(parts(run))
        panels = []
        for d in (8, 16, 32):
            some = [part for part in every if shape(part)[0] == d]
            curves = [
                _curve(some, label, SCALES["N / d"], NAMES.get(label, label))
                for label in labels(some[0].run)
            ]
            for label, widths in POPULATION.items():
                curves.append(Curve(label, LOADS, widths[d], look="law", like=label))
            curves.append(Curve("", LOADS, 1 / (d * np.array(LOADS)), look="thin"))
            note = "bands: 2 standard errors; dashed: the population; thin: chance, 1/N"
            panels.append(_panel("load N/d, pairs per dimension", curves, f"d = {d}", note))
        rows = np.array(self.tables(run)[0].rows, dtype=float)
        names = ("priority pairs", "ordinary pairs", "all pairs")
        change = [
            Curve(name, rows[:, 0], rows[:, i], rows[:, i] - rows[:, i + 1],
                  rows[:, i] + rows[:, i + 1], look="marks")
            for name, i in zip(names, (1, 3, 5), strict=True)
        ]  # fmt: skip
        gate = Panel(
            "load N/d, pairs per dimension", "recall, gated minus plain delta", change,
            log="x", levels=[(0.0, "")], note="bands: 3 standard errors",
        )  # fmt: skip
        return [
            Figure(
                "recall", "Recall against load; dashed: the population; thin: chance, 1/N.", panels
            ),
            Figure("gate", "What the gate gives and costs, mean over d = 8, 16, 32.", [gate]),
        ]


@dataclass(frozen=True)
class Widths(Report):
    """Recall over state widths, against N, N/d and N ln N / d^2."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return the cells whose population is known."""
        found = []
        for part in parts(run):
            d, n = shape(part)
            for label, widths in POPULATION.items():
                if label in labels(part.run) and d in widths and n / d in LOADS:
                    found.append(_cell(part, label, widths[d][LOADS.index(n / d)]))
        return found

    def tables(self, run: xr.DataTree) -> Sequence[Table]:
        """Return how far the curves of different widths lie apart on each axis."""
        every = list(parts(run))
        rows = []
        for label in labels(every[0].run):
            rows.append([label, *(_apart(every, label, scale) for scale in SCALES.values())])
        title = "Largest difference of recall between widths at one place of the axis"
        return [Table("alignment", title, ("solver", *SCALES), rows)]

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return recall of each solver on three axes."""
        every = list(parts(run))
        widths = sorted({shape(part)[0] for part in every})
        found = []
        for label in labels(every[0].run):
            panels = []
            for name, scale in SCALES.items():
                curves = [
                    _curve([p for p in every if shape(p)[0] == d], label, scale, f"d = {d}")
                    for d in widths
                ]
                curves += _chance(every, scale, widths)
                panels.append(_panel(name, curves, label, "bands: 2 standard errors; thin: chance"))
            said = f"Recall of {label} by width: which axis brings the widths together?"
            found.append(Figure(f"widths_{label}", said, panels))
        return found


SCALES: Mapping[str, Any] = {
    "pairs N": lambda d, n: n,
    "N / d": lambda d, n: n / d,
    "N ln N / d^2": lambda d, n: n * np.log(n) / d**2,
}


def _apart(every: Sequence[Part], label: str, scale: Any) -> float:
    """Return the largest spread of interpolated recall where at least two widths have points."""
    curves = []
    for d in sorted({shape(part)[0] for part in every}):
        points = sorted(
            (np.log(scale(*shape(p))), recall(p, label).mean()) for p in every if shape(p)[0] == d
        )
        curves.append(np.array(points))
    grid = np.linspace(min(c[0, 0] for c in curves), max(c[-1, 0] for c in curves), 200)
    values = np.array([np.interp(grid, *c.T, left=np.nan, right=np.nan) for c in curves])
    both = np.isfinite(values).sum(axis=0) > 1
    return float((np.nanmax(values[:, both], axis=0) - np.nanmin(values[:, both], axis=0)).max())


def _curve(some: Sequence[Part], label: str, scale: Any, name: str = "") -> Curve:
    some = sorted(some, key=lambda part: shape(part)[1])
    found = [estimate(recall(part, label)) for part in some]
    value, se = (np.array([getattr(e, f) for e in found]) for f in ("value", "se"))
    x = [scale(*shape(part)) for part in some]
    return Curve(name or label, x, value, value - 2 * se, value + 2 * se, look="marks")


def _chance(every: Sequence[Part], scale: Any, widths: Sequence[int]) -> list[Curve]:
    """Return the recall of blind guesses, 1/N, at the loads of each width."""
    found = []
    for d in widths:
        n = np.array(sorted(shape(part)[1] for part in every if shape(part)[0] == d))
        found.append(Curve("", scale(d, n), 1 / n, look="thin"))
    return found


def _panel(x: str, curves: Sequence[Curve], title: str, note: str) -> Panel:
    return Panel(
        x, "share recalled (nearest value is right)", curves, title, note, "x",
        y_range=(-0.02, 1.02),
    )  # fmt: skip


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the two reports on capacity."""
    return {"capacity": Capacity, "widths": Widths}

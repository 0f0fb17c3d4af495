"""One regression, solved by a kernel average, by online passes, recursively and as a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Report, hookimpl, parts

if TYPE_CHECKING:
    import xarray as xr

PAIRS = 80
ONLINE = {
    1: ((0.070, 8.916, 0.277), (0.07037553, 8.91630237, 0.27742973)),
    5: ((0.027, 6.238, 0.100), (0.02705980, 6.23794212, 0.09953532)),
    30: ((0.022, 6.134, 0.077), (0.02243182, 6.13374030, 0.07672167)),
}
"""By passes: test error, objective, distance to the optimum, as published and in float64."""
RIDGE = (0.010, 5.860, 0.00963878, 5.85959880)
KERNEL = (0.027, 0.135, 0.02746661, 0.13537875)
SAME = "a float64 replay of the published streams, rounded"


@dataclass(frozen=True)
class Asked:
    """What a part wrote, and what it answers at the points that are asked behind that."""

    keys: np.ndarray
    values: np.ndarray
    queries: np.ndarray
    truth: np.ndarray
    answers: Mapping[str, np.ndarray]
    weights: np.ndarray

    @classmethod
    def of(cls, run: xr.DataTree) -> Asked:
        """Read one part."""
        stream = run["stream"].isel(trial=0)
        on = stream["mask"].values
        answers = {
            label: run[f"solvers/{label}/output"].values[~on, 0, 0]
            for label in ("nadaraya_watson", "online", "rls")
        }
        return cls(
            stream["keys"].values[on].astype(float), stream["values"].values[on, 0].astype(float),
            stream["queries"].values[~on].astype(float), stream["truth"].values[~on, 0], answers,
            run["solvers/online/S"].values.reshape(-1, stream.sizes["key"])[-1],
        )  # fmt: skip

    def error(self, answers: np.ndarray) -> float:
        """Return the mean squared distance from the truth."""
        return float(np.mean((answers - self.truth) ** 2))


@dataclass(frozen=True)
class Study:
    """The parts by what they are for, and ridge by a solve."""

    passes: Mapping[int, Asked]
    points: Asked
    every: xr.DataTree
    ridge: float

    @classmethod
    def of(cls, run: xr.DataTree) -> Study:
        """Read a sweep."""
        passes, points, every = {}, None, None
        for part in parts(run):
            if "stream.steps" in part.settings:
                every = part.run
            elif part.run["stream"].sizes["key"] == 1:
                points = Asked.of(part.run)
            else:
                one = Asked.of(part.run)
                passes[len(one.keys) // PAIRS] = one
        assert points is not None and every is not None
        return cls(passes, points, every, every["solvers/rls"].attrs["hyperparameters"]["ridge"])

    def solved(self, pairs: int = PAIRS) -> np.ndarray:
        """Return the ridge weights of the first pairs, by a linear solve."""
        one = self.passes[1]
        k, v = one.keys[:pairs], one.values[:pairs]
        return np.asarray(np.linalg.solve(self.matrix(k), k.T @ v))

    def matrix(self, keys: np.ndarray) -> np.ndarray:
        """Return the system that ridge solves."""
        return np.asarray(keys.T @ keys + self.ridge * np.eye(keys.shape[1]))

    @property
    def best(self) -> np.ndarray:
        """Return the fit of ridge at the points that are asked."""
        return np.asarray(self.passes[1].queries @ self.solved())

    def away(self, answers: np.ndarray) -> float:
        """Return the root mean square distance of answers from the fit of ridge."""
        return float(np.sqrt(np.mean((answers - self.best) ** 2)))

    def objective(self, weights: np.ndarray) -> float:
        """Return (|K w - v|^2 + ridge |w|^2) / 2 over one pass."""
        one = self.passes[1]
        residual = one.keys @ weights - one.values
        return float(residual @ residual + self.ridge * weights @ weights) / 2

    def prefixes(self) -> np.ndarray:
        """Return the largest difference of RLS from the ridge weights after every pair."""
        S = self.every["solvers/rls/S"].values[:, 0, :, 0]
        solved = np.stack([self.solved(t + 1) for t in range(len(S))])
        return np.asarray(np.abs(S - solved).max(axis=1))


@dataclass(frozen=True)
class Spectrum(Report):
    """How near to ridge each solver comes, and what it costs in test error."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return test errors, objectives, distances, and RLS against ridge at every prefix."""
        study = Study.of(run)
        kernel = study.points.answers["nadaraya_watson"]
        ours = [
            ("Nadaraya-Watson, test error", study.points.error(kernel), KERNEL[0], KERNEL[2]),
            ("Nadaraya-Watson, distance", study.away(kernel), KERNEL[1], KERNEL[3]),
        ]
        for passes, (published, expected) in ONLINE.items():
            one = study.passes[passes]
            fit = one.answers["online"]
            numbers = one.error(fit), study.objective(one.weights), study.away(fit)
            names = [
                f"online, passes: {passes}, {x}" for x in ("test error", "objective", "distance")
            ]
            ours += zip(names, numbers, published, expected, strict=True)
        test, objective = study.passes[1].error(study.best), study.objective(study.solved())
        ours.append(("ridge, test error", test, RIDGE[0], RIDGE[2]))
        ours.append(("ridge, objective", objective, RIDGE[1], RIDGE[3]))
        found = [Claim(what, x, p, e, 5e-8, SAME) for what, x, p, e in ours]
        keys, apart = study.passes[1].keys, study.prefixes()
        condition = np.linalg.cond(study.matrix(keys))
        bound = np.finfo(float).eps * len(apart) * condition * np.abs(study.solved()).max()
        found.append(Claim(
            "RLS - ridge, largest of all prefixes", apart.max(), None, 0.0, float(bound),
            f"eps, {len(apart)} updates, condition {condition:.0f}, largest weight",
        ))  # fmt: skip
        return found

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return what more passes bring, RLS at every prefix, and the fits."""
        study = Study.of(run)
        counts, every = sorted(study.passes), study.passes
        fits = [every[n].answers["online"] for n in counts]
        kernel = study.points.answers["nadaraya_watson"]
        x = "passes over the 80 pairs"
        distance = Panel(
            x, "distance from the fit of ridge",
            [Curve("online", counts, [study.away(fit) for fit in fits], look="marks")],
            "Online passes approach ridge", "root mean square over 400 points", "xy",
            levels=[(study.away(kernel), "Nadaraya-Watson")],
        )  # fmt: skip
        test = Panel(
            x, "mean squared error to the truth",
            [Curve("online", counts, [every[1].error(fit) for fit in fits], look="marks")],
            "Test error", "400 points", "xy",
            levels=[(study.points.error(kernel), "Nadaraya-Watson"),
                    (every[1].error(study.best), "ridge")],
        )  # fmt: skip
        apart = study.prefixes()
        exact = Panel(
            "pairs so far", "largest difference of a weight",
            [Curve("RLS - ridge", np.arange(1, len(apart) + 1), np.maximum(apart, 1e-17))],
            "RLS is ridge at every prefix", "ridge by a linear solve for each prefix", "y",
        )  # fmt: skip
        asked = study.points.queries[:, 0]
        curves = [
            Curve("1 pass", asked, fits[0]), Curve("30 passes", asked, fits[-1]),
            Curve("ridge", asked, study.best), Curve("Nadaraya-Watson", asked, kernel),
            Curve("", study.points.keys[:, 0], study.points.values, look="points", like="1 pass"),
            Curve("", asked, study.points.truth, look="thin"),
        ]  # fmt: skip
        fit = Panel("x", "y", curves, note="marks: the pairs; thin: the truth")
        said = "What more passes of online descent bring, and recursive least squares beside ridge."
        return [
            Figure("spectrum", said, [distance, test, exact]),
            Figure("fits", "What four solvers make of the same 80 pairs.", [fit]),
        ]


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the report on the spectrum of solvers."""
    return {"spectrum": Spectrum}

"""The implicit step: its closed form against a linear solve, against NLMS, against delta's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Report, hookimpl, parts

if TYPE_CHECKING:
    import xarray as xr

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Steps:
    """Single steps: keys (step, key), values, step sizes, states (step, key) before and after."""

    keys: np.ndarray
    values: np.ndarray
    beta: np.ndarray
    before: np.ndarray
    after: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, run: xr.DataTree) -> Steps:
        """Read them from a run of one step whose trials are the steps."""
        one = run.isel(step=0)
        stream = one["stream"]
        after = {name: one[f"solvers/{name}/S"].values[..., 0] for name in ("longhorn", "delta")}
        return cls(
            stream["keys"].values.astype(float), stream["values"].values[:, 0],
            one["solvers/longhorn/beta"].values, stream["s_start"].values[..., 0].astype(float),
            after,
        )  # fmt: skip

    @property
    def size(self) -> np.ndarray:
        """Return beta |k|^2 of every step: what its stability depends on."""
        return np.asarray(self.beta * (self.keys**2).sum(axis=1))

    def solved(self) -> np.ndarray:
        """Return the minimisers of |s - s_old|^2 + beta (s.k - v)^2 by general linear solves.

        The gradient is zero where (I + beta k k^T) s = s_old + beta v k.
        """
        outer = self.keys[:, :, None] * self.keys[:, None, :]
        matrix = np.eye(self.keys.shape[1]) + self.beta[:, None, None] * outer
        right = self.before + (self.beta * self.values)[:, None] * self.keys
        return np.asarray(np.linalg.solve(matrix, right[..., None])[..., 0])

    def apart(self) -> np.ndarray:
        """Return the largest difference from the solved state, of every step."""
        return np.asarray(np.abs(self.after["longhorn"] - self.solved()).max(axis=1))

    def bound(self) -> np.ndarray:
        """Return what rounding may come to: d eps, the condition 1 + beta |k|^2, the solution."""
        d = self.keys.shape[1]
        return d * EPS * (1.0 + self.size) * np.linalg.norm(self.solved(), axis=1)

    def left(self, label: str) -> np.ndarray:
        """Return the share of the error at the key that a step leaves."""
        error = [
            self.values - (s * self.keys).sum(axis=1) for s in (self.before, self.after[label])
        ]
        return np.asarray(error[1] / error[0])


@dataclass(frozen=True)
class Implicit(Report):
    """How far the closed form is from what it should minimise, and what it does to an error."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return the distances between closed form and solve, and between Longhorn and NLMS."""
        first, *others = parts(run)
        steps = Steps.of(first.run)
        size = f"{len(steps.values)} steps"
        found = [
            Claim(f"closed form - solve, largest of {size}", steps.apart().max(), None, 0.0, 1e-4,
                  "published: below 1e-4, in float32"),
            Claim("the same in units of its rounding", (steps.apart() / steps.bound()).max(),
                  None, 0.0, 1.0, "d eps (1 + beta |k|^2) |s|: float64"),
            Claim("share of an error that is left, against 1 / (1 + beta |k|^2)",
                  np.abs(steps.left("longhorn") * (1 + steps.size) - 1).max(), None, 0.0, 1e-12,
                  "law; v - s.k cancels to 1e-3 of v in some steps"),
        ]  # fmt: skip
        for part in others:
            ours, theirs = (part.run[f"solvers/{x}/S"].values for x in ("longhorn", "nlms"))
            beta = part.settings["solvers.longhorn.beta"]
            bound = 8 * EPS * len(ours) * np.abs(ours).max()
            found.append(Claim(
                f"Longhorn - NLMS with eps = 1 / beta, beta = {beta:g}",
                np.abs(ours - theirs).max(), None, 0.0, float(bound),
                f"8 roundings in each of {len(ours)} steps, none of which expands",
            ))  # fmt: skip
        return found

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return what a step leaves of an error, and the distance between the two solutions."""
        steps = Steps.of(next(parts(run)).run)
        size = steps.size
        x = np.geomspace(size.min() / 1.5, size.max() * 1.5, 200)
        left = Panel(
            "beta |k|^2", "error after a step / error before",
            [Curve("delta", size, steps.left("delta"), look="points"),
             Curve("", x, 1 - x, look="law", like="delta"),
             Curve("Longhorn", size, steps.left("longhorn"), look="points"),
             Curve("", x, 1 / (1 + x), look="law", like="Longhorn")],
            "The implicit step never overshoots",
            "marks: 200 steps; dashed: 1 - beta |k|^2 and 1 / (1 + beta |k|^2)", "x",
            levels=[(-1.0, "delta diverges below")], y_range=(-4, 1.2),
        )  # fmt: skip
        apart = np.maximum(steps.apart(), EPS / 8)  # some are equal to the last bit
        longest = np.linalg.norm(steps.solved(), axis=1).max()
        close = Panel(
            "beta |k|^2", "largest difference of a state",
            [Curve("found", size, apart, look="points"),
             Curve("", x, steps.keys.shape[1] * EPS * (1 + x) * longest, look="law", like="found")],
            "Closed form against a linear solve",
            "dashed: bound of rounding, d eps (1 + beta |k|^2) |s|; equal states: at eps / 8", "xy",
        )  # fmt: skip
        said = "What one step leaves of the error at its key, and how exactly it is taken."
        return [Figure("implicit", said, [left, close], columns=2)]


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the report on the implicit step."""
    return {"implicit": Implicit}

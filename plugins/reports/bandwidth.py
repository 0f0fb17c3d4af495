"""The bandwidth of kernel regression: fixed by hand, and learned by leaving one pair out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Report, hookimpl, parts
from engine.measure.bandwidth import descend, learn_bandwidth, leave_one_out

if TYPE_CHECKING:
    import xarray as xr

FIXED = {0.1: 0.350, 0.5: 0.136, 2.0: 0.741}  # published mean squared errors
LOSSES = (1.259, 1.146, 1.102, 1.078, 1.062)  # published, before each epoch
W = (1.268, 1.428, 1.545, 1.637, 1.716)  # published 1 / bandwidth, after each epoch


@dataclass(frozen=True)
class Fits:
    """The pairs, the points asked for with the truth there, and the fit of every bandwidth."""

    x: np.ndarray
    y: np.ndarray
    asked: np.ndarray
    truth: np.ndarray
    fits: Mapping[float, np.ndarray]

    @classmethod
    def of(cls, run: xr.DataTree) -> Fits:
        """Read them from a sweep over `solvers.kernel.bandwidth`."""
        every = list(parts(run))
        stream = every[0].run["stream"].isel(trial=0, key=0, value=0)
        written = stream["mask"].values
        fits = {
            part.settings["solvers.kernel.bandwidth"]: part.run["solvers/kernel/output"].values[
                ~written, 0, 0
            ]
            for part in every
        }
        x, y = (stream[name].values[written] for name in ("keys", "values"))
        asked, truth = (stream[name].values[~written] for name in ("queries", "truth"))
        return cls(x, y, asked, truth, dict(sorted(fits.items())))

    def at(self, bandwidth: float) -> float:
        """Return the bandwidth of the run that is at this one, to four digits."""
        near = min(self.fits, key=lambda s: abs(s - bandwidth))
        if abs(near - bandwidth) > 1e-4 * bandwidth:
            raise ValueError(f"the sweep has no bandwidth {bandwidth:.4f}; the nearest is {near}")
        return near

    def error(self, bandwidth: float) -> float:
        """Return the mean squared distance from the truth of the fit at a bandwidth."""
        return float(np.mean((self.fits[self.at(bandwidth)] - self.truth) ** 2))


@dataclass(frozen=True)
class Bandwidth(Report):
    """Error of kernel regression against bandwidth, and where descent by leave-one-out ends."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return the published errors, the path of the descent, and how far it still had to go."""
        found = Fits.of(run)
        w, losses = descend(found.x, found.y)
        digits = "three digits are printed"
        rows = [
            Claim(f"error at bandwidth {s:g}", found.error(s), published, None, 5e-4, digits)
            for s, published in FIXED.items()
        ]
        for i in range(5):
            rows.append(
                Claim(
                    f"leave-one-out loss, epoch {i + 1}", losses[i], LOSSES[i], None, 5e-4, digits
                )
            )
        for i in range(5):
            rows.append(Claim(f"w after epoch {i + 1}", w[i + 1], W[i], None, 5e-4, digits))
        rows.append(Claim("bandwidth after epoch 5", 1 / w[5], 0.583, None, 5e-4, digits))
        not_yet, least = "five epochs have not converged", learn_bandwidth(found.x, found.y)
        return [
            *rows,
            Claim("error after epoch 5", found.error(1 / w[5]), None, 0.1725, 5e-5, not_yet),
            Claim("bandwidth of least leave-one-out loss", least, None, 0.3207, 5e-5, not_yet),
            Claim("error there", found.error(least), None, 0.0862, 5e-5, not_yet),
        ]

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return error and loss against bandwidth, the descent gone on with, and the fits."""
        found = Fits.of(run)
        w, losses = descend(found.x, found.y, epochs=100)
        least, five = learn_bandwidth(found.x, found.y), 1 / w[5]
        sigma = np.array(list(found.fits))
        error = [found.error(s) for s in sigma]
        loss = [leave_one_out(found.x, found.y, s) for s in sigma]
        compared = Panel(
            "bandwidth, in units of x", "mean squared error",
            [Curve("to the truth", sigma, error),
             Curve("leave-one-out loss", sigma, loss),
             Curve("", 1 / w[:5], losses[:5], look="points", like="leave-one-out loss")],
            "Which bandwidth?", "marks: the loss before each of five epochs", "x",
            marks=[(five, f"after 5 epochs, {five:.3f}"), (least, f"least loss, {least:.3f}")],
            y_range=(0.0, 2.2),
        )  # fmt: skip
        descent = Panel(
            "epochs of descent", "bandwidth", [Curve("descent", np.arange(1, 101), 1 / w[1:])],
            "Five epochs are not enough", "steps of .5 on w = 1 / bandwidth from w = 1", "x",
            levels=[(least, "least leave-one-out loss")], marks=[(5.0, "published end")],
            y_range=(0.25, 0.85),
        )  # fmt: skip
        shown = {
            "bandwidth 0.1": 0.1, "bandwidth 2": 2.0, "after 5 epochs": found.at(five),
            "least loss": found.at(least),
        }  # fmt: skip
        fits = [Curve(name, found.asked, found.fits[s]) for name, s in shown.items()]
        fit = Panel(
            "x", "y",
            [Curve("", found.x, found.y, look="points"), *fits,
             Curve("", found.asked, found.truth, look="thin")],
            note="points: the pairs; thin: the truth, 2 sin x + x",
        )  # fmt: skip
        said = "Error and leave-one-out loss against bandwidth, and the descent gone on with."
        return [
            Figure("bandwidth", said, [compared, descent]),
            Figure("fits", "What the bandwidths make of the pairs.", [fit]),
        ]


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the report on bandwidths."""
    return {"bandwidth": Bandwidth}

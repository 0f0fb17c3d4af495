"""Momentum on the implicit step: what it gains in tracking, and where it ends stability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Part, Report, Table, hookimpl, parts
from engine.measure import laws, tracking_error
from engine.measure.statistics import Estimate, estimate

if TYPE_CHECKING:
    import xarray as xr

# Mean error over the last 500 steps of one stream: by its name, beta and eta.
TAILS = {
    "walk": {
        1.0: {0.0: 0.2969, 0.5: 0.3499, 0.9: 1.2e37}, 0.25: {0.0: 0.3478, 0.5: 0.3070, 0.9: 1.892},
        0.1: {0.0: 0.4425, 0.5: 0.3602, 0.9: 0.3933},
    },
    "rotation .02": {0.1: {0.0: 0.8896, 0.5: 0.7118, 0.9: 0.3598}},
    "rotation .005": {0.1: {0.0: 0.4194, 0.5: 0.2442, 0.9: 0.2594}},
}  # fmt: skip
PATHS = {"drift.zarr": "walk", "fast": "rotation .02", "slow": "rotation .005"}
BOUNDS = {0.7: (2.14, 0.005), 0.8: (0.775, 5e-4), 0.9: (0.251, 5e-4), 0.95: (0.105, 5e-4)}
GROWTH = 0.0463  # of an error per step, at eta .9, beta 1: of one stream
D, NOISE, WALK, ANGLE = 8, 0.1, 0.03, 0.02
TURNS = {"walk": laws.sphere_correlation(D, WALK), "rotation": np.exp(1j * ANGLE)}
HEAVY = 0.98  # growth of the mean square per step, above which rare bursts make all of it
ETAS = np.linspace(0.0, 0.96, 49)


def errors(part: Part) -> np.ndarray:
    """Return |S - W| after each step, (step, trial)."""
    run = part.run
    error = tracking_error(run["solvers/implicit/S"], run["stream/target_map"])
    return np.asarray(error.transpose("step", "trial").values)


def chosen(part: Part) -> tuple[float, float]:
    """Return beta and eta of a part."""
    return part.settings["solvers.implicit.beta"], part.settings["solvers.implicit.eta"]


def slope(part: Part) -> Estimate:
    """Return the growth of ln |S - W| per step of a typical stream, its first tenth left out."""
    log = np.log(errors(part))
    first = len(log) // 10
    return estimate((log[-1] - log[first]) / (len(log) - 1 - first))


@dataclass(frozen=True)
class Momentum(Report):
    """Momentum on the implicit step: tail errors, the law of tracking, the bound of stability."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return the published tails, the bounds, the growth, and the law of tracking."""
        found = []
        for (name, beta, eta), part in _published(run).items():
            ours, wanted = float(errors(part)[-500:, 0].mean()), TAILS[name][beta][eta]
            within = 0.05 * wanted if wanted > 1e3 else 5e-4 if wanted > 1 else 5e-5
            what = f"tail error, {name}, beta {beta:g}, eta {eta:g}"
            found.append(Claim(what, ours, wanted, wanted, within, "the same stream: rounding"))
        for eta, (bound, within) in BOUNDS.items():
            what = f"largest stable beta, eta {eta:g}"
            ours = laws.momentum_bound(eta, D)
            found.append(Claim(what, ours, bound, None, within, "law; published: by trying"))
        betas = np.geomspace(0.01, 1e5, 29)
        for eta in (0.0, 0.5):
            growth = [laws.momentum_growth(laws.implicit_gain(b), D, eta) for b in betas]
            what = f"unstable ones of {betas.size} betas from .01 to 1e5, eta {eta:g}"
            found.append(Claim(what, int(np.sum(np.array(growth) > 1)), 0, None, 0.0, "law"))
        grown = slope(_resting(run)[0.9])
        # One stream of 2000 steps: the spread of ours over trials, scaled to its length.
        steps = _resting(run)[0.9].run["stream"].sizes["step"]
        within = 3 * grown.se * np.sqrt(grown.n * 0.9 * steps / 2000)
        what = "typical growth of an error per step, beta 1, eta .9"
        found.append(Claim(what, grown.value, GROWTH, None, within, "3 se of one stream"))
        for (motion, beta, eta), part in _simulated(run).items():
            law = _law(motion, beta, eta)
            if law < np.inf and laws.momentum_growth(laws.implicit_gain(beta), D, eta) < HEAVY:
                ours = _square(part)
                what = f"mean square error, {motion}, beta {beta:g}, eta {eta:g}"
                found.append(Claim(what, ours.value, None, law, 3 * ours.se, "law: 3 se"))
        return found

    def tables(self, run: xr.DataTree) -> Sequence[Table]:
        """Return where each momentum stops being stable."""
        rows = []
        for eta in (0.0, 0.3, 0.5, 0.54, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95):
            bound = laws.momentum_bound(eta, D)
            growth = laws.momentum_growth(laws.implicit_gain(1.0), D, eta)
            rows.append([eta, bound, BOUNDS.get(eta, (None,))[0], 0.5 * np.log(growth)])
        columns = ("eta", "largest stable beta (law)", "published", "growth per step at beta 1")
        title = f"Stability in mean square, Gaussian keys, d = {D}; inf: stable at every beta"
        return [Table("bounds", title, columns, rows)]

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return the bound of stability, tracking against momentum, and errors over time."""
        tracked = [_tracking(run, motion) for motion in TURNS]
        return [
            Figure("stability", STABILITY, [_bound(), _growth(run)], columns=2),
            Figure("tracking", TRACKING, tracked, columns=2),
            Figure("course", COURSE, [_course(run)]),
        ]


STABILITY = (
    "Without momentum an implicit step is stable at every strength. With it, the mean square error "
    "stays bounded only below a line that comes down from infinity at eta = .544 (d = 8). At "
    "eta = .9, beta = 1 almost every single stream diverges, too; at eta = .8 only just."
)
TRACKING = (
    "Steady error against momentum. A weak step (beta .1) follows a steady turn the better the "
    "more momentum it has, nearly up to its bound; on a random walk there is a best momentum, and "
    "a strong step is best with next to none. Close to the bound rare bursts carry the mean "
    "square, and 30 streams hold too few of them."
)
COURSE = "The published random walk at beta = 1: with eta = .9 the error grows without end."


def _law(motion: str, beta: float, eta: float) -> float:
    return laws.momentum_error(laws.implicit_gain(beta), D, eta, TURNS[motion], NOISE)


def _square(part: Part) -> Estimate:
    return estimate((errors(part)[-200:] ** 2).mean(axis=0))


def _bound() -> Panel:
    betas, curves = np.geomspace(0.012, 200, 40), []
    for d in (8, 32):
        limit = [laws.momentum_limit(laws.implicit_gain(x), d) for x in betas]
        curves.append(Curve(f"law, d = {d}", limit, betas))
    tried = [bound for bound, _ in BOUNDS.values()]
    curves += [
        Curve("published", list(BOUNDS), tried, look="points"),
        Curve("diverges", [0.9], [1.0], look="points"),
    ]
    return Panel(
        "momentum eta", "largest beta stable in mean square", curves,
        title="stable below each line", log="y", x_range=(0.4, 1.0), y_range=(0.01, 100),
        marks=[(0.544, "")], note="left of eta = .544 (vertical): stable at every beta, d = 8",
    )  # fmt: skip


def _growth(run: xr.DataTree) -> Panel:
    gain = laws.implicit_gain(1.0)
    line = [0.5 * np.log(laws.momentum_growth(gain, D, x)) for x in ETAS]
    found = {eta: slope(part) for eta, part in _resting(run).items()}
    value, se = (np.array([getattr(e, f) for e in found.values()]) for f in ("value", "se"))
    curves = [
        Curve(f"law, d = {D}", ETAS, line),
        Curve("published", [0.9], [GROWTH], look="points"),
        Curve("one stream", list(found), value, value - 2 * se, value + 2 * se, "points"),
    ]
    return Panel(
        "momentum eta", "growth of ln |s - w| per step", curves,
        title="beta = 1; law: of the root mean square", levels=[(0.0, "stable below")],
        note="one stream: mean of 60, bars 2 standard errors", x_range=(-0.03, 1.0),
    )  # fmt: skip


def _tracking(run: xr.DataTree, motion: str) -> Panel:
    curves = []
    some = {key: part for key, part in _simulated(run).items() if key[0] == motion}
    for beta in sorted({key[1] for key in some}):
        found = {
            eta: _square(part)
            for (_, b, eta), part in some.items()
            if b == beta and _law(motion, beta, eta) < np.inf
        }
        value, se = (np.array([getattr(e, f) for e in found.values()]) for f in ("value", "se"))
        low, high = (np.sqrt(np.clip(value + s * se, 1e-4, None)) for s in (-2, 2))
        name = f"beta = {beta:g}"
        curves.append(Curve(name, list(found), np.sqrt(value), low, high, look="points"))
        line = np.sqrt([_law(motion, beta, x) for x in ETAS])
        curves.append(Curve("", ETAS, line, look="law", like=name))
    titles = {"walk": "random walk, .03 per step", "rotation": "rotation, .02 per step"}
    return Panel(
        "momentum eta", "root mean square of |s - w|", curves, title=titles[motion], log="y",
        x_range=(-0.03, 1.0), y_range=(0.2, 5.0),
        note="points: 30 streams, bars 2 standard errors; dashed: the law, up to its bound",
    )  # fmt: skip


def _course(run: xr.DataTree) -> Panel:
    curves = []
    for (name, beta, eta), part in _published(run).items():
        if (name, beta) == ("walk", 1.0):
            error = errors(part)[:, 0]
            curves.append(Curve(f"eta = {eta:g}", np.arange(1, len(error) + 1), error))
    return Panel(
        "step", "|s - w|", curves, title="published random walk, beta = 1", log="y",
    )  # fmt: skip


def _published(run: xr.DataTree) -> dict[tuple[str, float, float], Part]:
    """Return the parts on published streams, by name, beta and eta."""
    found = {}
    for part in parts(run):
        if "stream.path" in part.settings:
            name = PATHS[part.settings["stream.path"].rpartition("/")[2]]
            found[name, *chosen(part)] = part
    return found


def _simulated(run: xr.DataTree) -> dict[tuple[str, float, float], Part]:
    """Return the parts on many streams, by motion, beta and eta."""
    some = [part for part in parts(run) if "stream.motion" in part.settings]
    return {(part.settings["stream.motion"], *chosen(part)): part for part in some}


def _resting(run: xr.DataTree) -> dict[float, Part]:
    """Return the parts whose target is at rest, by eta."""
    some = [part for part in parts(run) if "stream.step" in part.settings]
    return {chosen(part)[1]: part for part in some}


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the report on momentum."""
    return {"momentum": Momentum}

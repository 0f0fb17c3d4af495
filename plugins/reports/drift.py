"""A target that drifts: the published stream, and many streams against the laws of tracking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Part, Report, Table, hookimpl, labels, parts
from engine.measure import error_curve, laws, optimum, smooth, tracking
from engine.measure.laws.tracking import Gain
from engine.measure.statistics import estimate

if TYPE_CHECKING:
    import xarray as xr

D, STEP, NOISE = 8, 0.03, 0.1  # of the published walk
# Mean error over the last 500 steps: published, measured on the same stream.
PUBLISHED = {
    "uniform_ls": (0.99, 0.9925640518),
    "decayed_ls": (0.29, 0.2946690921),
    "implicit": (0.3, 0.2968922229),
}
# The same over many streams: mean and standard deviation from stream to stream.
POPULATION = {"decayed_ls": (0.292, 0.017), "implicit": (0.286, 0.0165)}
UNIFORM_SD = 0.118
SATURATION = {0: 0.41, 100: 0.45, 200: 0.44, 500: 0.82, 1000: 0.95, 1500: 0.80, 1950: 1.15}
WINDOW = 50
RECOVERED = 0.5  # a switch throws the error to about 1.4


def errors(run: xr.DataTree, label: str) -> np.ndarray:
    """Return |S - W| (step, trial)."""
    return np.asarray(error_curve(run, label).transpose("step", "trial").values)


def tails(run: xr.DataTree, label: str) -> np.ndarray:
    """Return the published statistic of each trial: the mean error over the last 500 steps."""
    return np.asarray(errors(run, label)[-500:].mean(axis=0))


def exact(run: xr.DataTree, label: str) -> xr.Dataset:
    """Return what stands between a solver and the exact fit of its weights; see `optimum`.

    A rule without weights of its own is held against those of decayed least squares.
    """
    solver = run[f"solvers/{label}"]
    gamma = None if "gamma" in solver else float(run["solvers/decayed_ls/gamma"].values.flat[0])
    return optimum.against_optimum(
        run, label, gamma=gamma, ridge=1e-6, decaying=solver.attrs["solver"] == "rls"
    )


def traced(run: xr.DataTree) -> list[str]:
    """Return the solvers whose states were recorded."""
    return [x for x in labels(run) if "step" in run[f"solvers/{x}/S"].dims]


@dataclass(frozen=True)
class Drift(Report):
    """Three fits to a target that walks on the sphere: who keeps up on the published stream."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return the published means, the saturation of uniform least squares, the population."""
        stream = run.attrs["scenario"]["resolved"]["stream"]
        same = stream["generator"] == "stored" and run["stream"].sizes["step"] == 2000
        if not same or not set(PUBLISHED) <= set(traced(run)):
            return []  # nothing was published of it, or it was not recorded
        found = []
        for label, (published, measured) in PUBLISHED.items():
            what = f"mean |S - W| over the last 500 steps, {label}"
            ours = float(tails(run, label).mean())
            found.append(Claim(what, ours, published, measured, 1e-9, "the same stream"))
        for label, (mean, sd) in POPULATION.items():
            ours = float(tails(run, label).mean())
            what = f"the same against many streams, {label}"
            found.append(Claim(what, ours, None, mean, 3 * sd, "3 sd from stream to stream"))
        line = smooth(errors(run, "uniform_ls"), WINDOW)[:, 0]
        for start, mean in SATURATION.items():
            what = f"uniform_ls, mean |S - W| over 50 steps from {start}"
            found.append(Claim(what, float(line[start]), None, mean, 0.005, "rounding"))
        return found

    def tables(self, run: xr.DataTree) -> Sequence[Table]:
        """Return lag, distance from the exact fit, and what the error is made of."""
        return [_table(run)] if traced(run) else []

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return errors along the stream, the distance from the exact fit, and regret."""
        if not traced(run):
            return []
        curves, apart, regrets = [], [], []
        steps = run["stream"].sizes["step"]
        window = max(1, min(WINDOW, steps // 10))
        x = np.arange(window - 1, steps)
        for label in traced(run):
            line = smooth(errors(run, label), window).mean(axis=1)
            curves.append(Curve(label, x, line))
            against = exact(run, label).mean("trial")
            if float(against["distance"].max()) > 1e-3:
                apart.append(Curve(label, x, smooth(against["distance"].values, window)))
            regrets.append(Curve(label, np.arange(len(against["regret"])), against["regret"]))
        note, wide = f"running means of {window} steps", (0, steps)
        found = [Panel(
            "step", "tracking error, |S - W|", curves, "Uniform least squares saturates",
            note, levels=[(1.0, "of knowing nothing, S = 0")], x_range=wide, y_range=(0, None),
        )]  # fmt: skip
        more = [Panel(
            "step", "regret, sum of |prediction - v|^2", regrets,
            "Below 0: better than the best fixed map", x_range=wide,
        )]  # fmt: skip
        if apart:
            more.append(Panel(
                "step", "distance to the exact fit, |S - W*|", apart,
                "From exactly decayed least squares", note, x_range=wide, y_range=(0, None),
            ))  # fmt: skip
        return [
            Figure("errors", "Distance of each fit to the map that makes the values.", found),
            Figure("optimum", "What exact solutions of the same stream would do.", more),
        ]


@dataclass(frozen=True)
class Tracking(Report):
    """Many drifting streams: simulated errors under their laws, lag, recovery, parts of errors."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return the published statistic over many streams, and the laws."""
        walk, switch, *_ = every = list(parts(run))
        found = []
        for label, (mean, sd) in POPULATION.items():
            seen = tails(walk.run, label)
            what = f"mean |S - W| over the last 500 steps, {label}"
            within = 3 * estimate(seen).se + 0.0005
            found.append(Claim(what, float(seen.mean()), PUBLISHED[label][0], mean, within,
                               "3 se and rounding"))  # fmt: skip
            found.append(_spread(f"its sd from stream to stream, {label}", seen, sd))
        seen = tails(walk.run, "uniform_ls")
        found.append(_spread("sd from stream to stream, uniform_ls", seen, UNIFORM_SD))
        square = errors(walk.run, "uniform_ls") ** 2
        t = np.arange(1, len(square) + 1)
        rho = _rho()
        late = estimate(square[-500:].mean(axis=0))
        law = float(laws.mean_map_error(rho, t[-500:]).mean())
        found.append(Claim(
            "E|S - W|^2, last 500 steps, uniform_ls", late.value, None, law,
            3 * late.se + D / 1500, "mean of past maps; 3 se and d/t",
        ))  # fmt: skip
        for label, gain in GAINS.items():
            square = errors(walk.run, label) ** 2
            steady = estimate(square[-1500:].mean(axis=0))
            law = laws.sphere_walk_error(gain, D, rho, NOISE)
            what = f"E|S - W|^2, steady, {label}"
            found.append(Claim(what, steady.value, None, law, 3 * steady.se, "law, 3 se"))
            way = laws.sphere_walk_errors(gain, D, rho, NOISE, 100)
            after, jump = errors(switch.run, label)[500:] ** 2, _switch_law(gain, 100)
            for i in (0, 9, 29, 99):
                one, two = estimate(square[i]), estimate(after[i])
                what = f"E|S - W|^2 at pair {i + 1}, {label}"
                found.append(Claim(what, one.value, None, way[i], 3 * one.se, "law, 3 se"))
                what = f"E|S - W|^2, at pair {i + 1} of a new target, {label}"
                found.append(Claim(what, two.value, None, jump[i], 3 * two.se, "law, 3 se"))
        for label in GAINS:
            for beta, part in _gains(every, label).items():
                seen = estimate(_squares(part, label))
                what = f"E|prediction - v|^2, {label}, beta = {beta:g}"
                law = _prediction_law(LAWS[label](beta))
                found.append(Claim(what, seen.value, None, law, 3 * seen.se, "law, 3 se"))
        for label in ("uniform_ls", "decayed_ls"):
            gap = float(exact(walk.run, label)["distance"].max())
            what = f"largest distance of recursive from exact least squares, {label}"
            found.append(Claim(what, gap, None, 0.0, 1e-6, "at every step of every stream"))
        return found

    def tables(self, run: xr.DataTree) -> Sequence[Table]:
        """Return lag and parts of the error on the walk, and recovery from a switch."""
        walk, switch, *_ = list(parts(run))
        rows = []
        for label in traced(switch.run):
            took = tracking.recovery_time(errors(switch.run, label), 500, RECOVERED, hold=10)
            down = took[np.isfinite(took)]
            before = float(errors(switch.run, label)[400:500].mean())
            median = float(np.median(down)) if down.size else None
            rows.append([label, down.size / took.size, median, before])
        columns = ("solver", f"share down at {RECOVERED:g}", "median steps", "|S - W| before")
        recovery = Table(
            "recovery", "After the target is replaced: steps until |S - W| is down again, of 500",
            columns, rows,
        )  # fmt: skip
        return [_table(walk.run), recovery]

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return errors under their laws, what they are made of, and the choice of a step size."""
        walk, switch, *_ = every = list(parts(run))
        rho = _rho()
        steps = walk.run["stream"].sizes["step"]
        way = {
            label: laws.sphere_walk_errors(g, D, rho, NOISE, steps) for label, g in GAINS.items()
        }
        way["uniform_ls"] = laws.mean_map_error(rho, np.arange(1, steps + 1))
        jump = {label: _switch_law(gain, 500) for label, gain in GAINS.items()}
        nothing = [(1.0, "S = 0")]
        walked = Panel(
            "pairs written", "E|S - W|^2", _under(walk.run, way, 0), "A walk on the sphere", MARKED,
            log="xy", levels=nothing, y_range=(0.05, 2),
        )  # fmt: skip
        switched = Panel(
            "pairs written since the target was replaced", "E|S - W|^2",
            _under(switch.run, jump, 500), "A new target", MARKED, log="xy", y_range=(0.01, 4),
        )  # fmt: skip
        said = (
            "Squared error of each fit, the laws drawn over what they describe. Around d = 8 pairs "
            "least squares is all but singular."
        )
        chosen = "Squared prediction error against the step size; the lines are the law."
        return [
            Figure("laws", said, [walked, switched], columns=2),
            Figure("gains", chosen, [_gain_panel(every)]),
            Figure("parts", PARTS, [_parts(walk.run, x) for x in traced(walk.run)], columns=2),
        ]


LAWS = {"implicit": laws.implicit_gain, "delta": laws.lms_gain}
GAINS = {"implicit": laws.implicit_gain(1.0), "delta": laws.lms_gain(0.5)}
MARKED = "marks: simulated, 95 % intervals over streams; the lines through them: laws"
PARTS = (
    "What E|S - W|^2 is made of. Staleness: the map moves while the fit remembers. Interference: "
    "noise and too few pairs. Solver gap: what the exact fit of the same weights would remove; a "
    "rule without weights is held against those of decayed least squares."
)


@cache
def _rho() -> float:
    return laws.sphere_correlation(D, STEP)


def _table(run: xr.DataTree) -> Table:
    rows, longest = [], min(60, run["stream"].sizes["step"] // 2)
    for label in traced(run):
        behind = tracking.lag(run[f"solvers/{label}/S"], run["stream/target_map"], longest=longest)
        against = exact(run, label)
        late = against.isel(step=slice(-500, None)).mean()
        parted = [float(late[x]) for x in ("error", "staleness", "interference", "gap")]
        final = float(against["regret"].isel(step=-1).mean())
        far = float(behind.mean())
        rows.append([label, f"{longest} or more" if far > longest - 1 else far, *parted, final])
    title = "Lag in steps, the parts of |S - W|^2 over the last 500 steps, and regret at the end"
    columns = ("solver", "lag", "|S - W|^2", "staleness", "interference", "solver gap", "regret")
    return Table("tracking", title, columns, rows)


def _spread(what: str, seen: np.ndarray, sd: float) -> Claim:
    se = sd / np.sqrt(2 * (seen.size - 1))
    return Claim(what, float(seen.std(ddof=1)), None, sd, 3 * se + 0.0005, "3 se and rounding")


def _switch_law(gain: Gain, steps: int) -> np.ndarray:
    """Return the law after a switch: the memory is as a target at rest left it, of size Y."""
    size = laws.sphere_walk_error(gain, D, 1.0, NOISE) + 1.0  # 1 - 2X + Y with X = 1
    return laws.sphere_walk_errors(gain, D, 1.0, NOISE, steps, start=(0.0, size))


def _prediction_law(gain: Gain) -> float:
    """Return E|v - s.k|^2 before a write: |s - w|^2 is then (MSD - s^2 n0)/(1 - 2 m1 + m2)."""
    m1, m2, n0 = laws.moments(gain, D)
    after = laws.sphere_walk_error(gain, D, _rho(), NOISE)
    return float((after - NOISE**2 * n0) / (1 - 2 * m1 + m2) / D + NOISE**2)


def _gains(every: Sequence[Part], label: str) -> dict[float, Part]:
    """Return the parts that differ in a solver's step size."""
    name = f"solvers.{label}.beta"
    return {part.settings[name]: part for part in every if name in part.settings}


def _squares(part: Part, label: str) -> np.ndarray:
    """Return the steady squared prediction error of each trial."""
    predicted, values = part.run[f"solvers/{label}/prediction"], part.run["stream/values"]
    square = ((predicted - values) ** 2).sum("value").transpose("step", "trial").values
    return np.asarray(square[len(square) // 2 :].mean(axis=0))


def _under(run: xr.DataTree, law: Mapping[str, np.ndarray], start: int) -> list[Curve]:
    """Return squared errors from a step on, and the laws over them."""
    curves = []
    for label in traced(run):
        square = errors(run, label)[start:] ** 2
        # Least squares is all but singular around d pairs; the law of its mean holds beyond.
        first = 6 * D if label == "uniform_ls" and label in law else 1
        some, many = (
            np.unique(np.geomspace(i, len(square), n).round().astype(int)) - 1
            for i, n in ((first, 24), (1, 120))
        )
        if label not in law:
            seen = estimate(square[many].T)
            curves.append(Curve(label, many + 1, seen.value, seen.low, seen.high))
            continue
        seen = estimate(square[some].T)
        curves.append(Curve("", some + 1, seen.value, seen.low, seen.high, "points", label))
        many = many[many + 1 >= first]
        curves.append(Curve(label, many + 1, law[label][many]))
    return curves


def _gain_panel(every: Sequence[Part]) -> Panel:
    curves = []
    for label, gain in LAWS.items():
        found = {beta: estimate(_squares(p, label)) for beta, p in _gains(every, label).items()}
        value, low, high = (
            np.array([getattr(e, x) for e in found.values()]) for x in ("value", "low", "high")
        )
        curves.append(Curve("", list(found), value, low, high, look="points", like=label))
        fine = np.geomspace(min(found), max(found), 60)
        curves.append(Curve(label, fine, [_prediction_law(gain(b)) for b in fine]))
    return Panel(
        "step size beta", "E|prediction - v|^2", curves, log="x", y_range=(0, None),
        levels=[(NOISE**2, "noise alone")], note="marks: simulated, 95 % intervals; lines: law",
    )  # fmt: skip


def _parts(run: xr.DataTree, label: str) -> Panel:
    against, curves = exact(run, label), []
    for name in ("error", "staleness", "interference", "gap"):
        part = against[name].transpose("step", "trial").values[WINDOW:]  # beyond the first pairs
        line = smooth(part, WINDOW)
        seen = estimate(line.T)
        x = np.arange(2 * WINDOW, 2 * WINDOW + len(line))
        text = {"error": "|S - W|^2", "gap": "solver gap"}.get(name, name)
        curves.append(Curve(text, x, seen.value, seen.low, seen.high))
    return Panel(
        "pairs written", "part of |S - W|^2", curves, label,
        f"running means of {WINDOW} steps; bands: 95 % intervals", x_range=(0, None),
    )  # fmt: skip


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the two reports on tracking."""
    return {"drift": Drift, "tracking": Tracking}

"""Pictures of runs. The only file that names matplotlib."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.answers import last
from engine.errors import InputError
from engine.measure import error_curve, smooth
from engine.sealed import mark

if TYPE_CHECKING:
    import xarray as xr

# Okabe and Ito's colour-blind-safe palette, darkest first, without its yellow; with a dash each,
# so that lines stay apart in grey.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = (
    "-",
    (0, (5, 1)),
    (0, (1, 1)),
    (0, (3, 1, 1, 1)),
    (0, (8, 2)),
    (0, (2, 2)),
    (0, (4, 1, 1, 1, 1, 1)),
)


def report(run: xr.DataTree, folder: Path) -> list[Path]:
    """Write a run's error curves and probes: NAME.png, and NAME.csv with the curves.

    Parameters
    ----------
    run : DataTree
        A run.
    folder : Path
        Where to; made if missing.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    InputError
        If matplotlib is missing or the run has no steps.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise InputError("pictures need matplotlib: pip install 'ttr-engine[plot]'") from error
    if not run["stream"].sizes["step"]:
        raise InputError("the run has no steps: there is nothing to draw")
    name = run.attrs["scenario"]["name"]
    labels = list(run.attrs["scenario"]["resolved"]["solvers"])
    curves = {label: error_curve(run, label) for label in labels}
    if len({str(curve.name) for curve in curves.values()}) > 1:  # one axis, one measure
        curves = {label: error_curve(run, label, kind="prediction error") for label in labels}
    diverged = {label: np.asarray(run[f"solvers/{label}/diverged_at"]) for label in labels}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made a folder: {error.strerror}") from error
    picture, table = folder / f"{name}.png", folder / f"{name}.csv"
    asked = run.attrs["scenario"]["resolved"]["probes"]
    probes = {n: last(p) for n, p in run["probes"].children.items()} if "probes" in run else {}
    probes = {n: p for n, p in probes.items() if asked[n]["ask"] == "keys"}  # the rest has no age
    figure, panels = plt.subplots(
        1, 1 + len(probes), figsize=(8.0 + 6.0 * len(probes), 4.5), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    try:
        _errors(panels[0, 0], curves, diverged)
        panels[0, 0].set_title(
            run.attrs["scenario"]["resolved"]["title"] or name, loc="left", fontsize=11
        )
        for axes, (probe, answers) in zip(panels[0, 1:], probes.items(), strict=True):
            stop = int(answers.coords.get("probe_step", run["stream"].sizes["step"]))
            _recall(axes, list(curves), answers.isel(query=slice(stop)), stop)
            axes.set_title(
                f"{probe}: every key asked for after {stop} steps", loc="left", fontsize=11
            )
        if sealed := mark(run.attrs):
            figure.suptitle(sealed, fontsize=9, ha="right", x=0.99)
        figure.savefig(picture, dpi=150)
    finally:
        plt.close(figure)
    _write_table(table, curves)
    return [picture, table]


def _errors(axes: Any, curves: dict[str, xr.DataArray], diverged: dict[str, np.ndarray]) -> None:
    """Draw the smoothed mean over trials with its 95 % band, labelled at the right end."""
    steps = next(iter(curves.values())).sizes["step"]
    window = max(1, min(50, steps // 10))
    arrays = {label: curve.transpose("step", "trial").values for label, curve in curves.items()}
    sound = [a[np.isfinite(a)] for label, a in arrays.items() if (diverged[label] < 0).all()]
    # Beyond ten times what the others do, a diverging curve says nothing more.
    limit = 10.0 * max((float(np.quantile(a, 0.95)) for a in sound if a.size), default=1e3)
    lines = []
    for i, (label, values) in enumerate(arrays.items()):
        text, x = label, np.arange(len(values))
        if (diverged[label] >= 0).any():
            first = int(diverged[label][diverged[label] >= 0].min())
            text = f"{label}: off scale, diverged at step {first}"
            beyond = np.flatnonzero((values > limit).any(axis=1) | (x >= first))
            values = values[: beyond[0]]
        # Masked steps predict nothing: the curve goes on where there is something to say.
        there = np.isfinite(values).all(axis=1)
        values, x = values[there], x[: len(there)][there]
        if not len(values):
            continue
        width = min(window, len(values))
        line = smooth(values, width)
        _line(axes, i, x[width - 1 :], line)
        lines.append((i, text, int(x[-1]), float(line[-1].mean())))
    kind = str(next(iter(curves.values())).name)
    what = {"tracking error": "|S - W|", "prediction error": "|prediction - value|"}[kind]
    _finish(axes, "step", f"{kind}, {what}, mean of {window} steps")
    if any(a.shape[1] > 1 for a in arrays.values()):
        _note(axes, "bands: 95 % intervals of the mean over trials")
    axes.set_xlim(0, steps)
    means = [y for _, _, _, y in lines if y > 0]
    if means and max(means) > 30 * min(means):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)
    _label(axes, [(i, text, y) for i, text, _, y in lines if ":" not in text])
    for i, text, end, y in lines:
        if ":" in text:  # it leaves the picture: named where it does
            axes.plot([end], [y], "x", color=COLOURS[i % len(COLOURS)])
            axes.annotate(
                text, (end, y), (6, 0), textcoords="offset points", color=COLOURS[i % len(COLOURS)],
                fontsize=9, va="center",
            )  # fmt: skip


def _recall(axes: Any, labels: list[str], answers: xr.DataTree, steps: int) -> None:
    """Draw the share of keys that decode to their present binding against their age.

    Ages are cut into bins of equal count; bands are Wilson 95 % intervals.
    """
    from scipy.stats import binomtest

    wanted = answers["wanted"].transpose("query", "trial").values >= 0
    age = np.broadcast_to(np.arange(steps - 1, -1, -1)[:, None], wanted.shape)[wanted]
    order = np.argsort(age, kind="stable")
    bins = np.array_split(order, max(1, min(12, age.size // 30, np.unique(age).size)))
    middle = np.array([age[b].mean() for b in bins])
    lines = []
    for i, label in enumerate(labels):
        hit = answers[f"{label}/recalled"].transpose("query", "trial").values[wanted] > 0
        tests = [binomtest(int(hit[b].sum()), b.size) for b in bins]
        shares = np.array([t.statistic for t in tests])
        bands = np.array([t.proportion_ci(method="wilson") for t in tests]).T
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(
            middle, shares, color=colour, linestyle=DASHES[i % len(DASHES)], linewidth=1.6,
            marker="o", markersize=3,
        )  # fmt: skip
        axes.fill_between(middle, *bands, color=colour, alpha=0.15, linewidth=0)
        lines.append((i, label, float(shares[-1])))
    _finish(
        axes,
        "age of the key, steps since it was written",
        "share recalled (nearest value is right)",
    )
    _note(axes, "bands: 95 % Wilson intervals")
    axes.set_xlim(0, max(float(middle[-1]) * 1.05, 1.0))
    axes.set_ylim(-0.02, 1.02)
    _label(axes, lines)


def _line(axes: Any, i: int, x: np.ndarray, values: np.ndarray) -> None:
    """Draw one curve (step, trial): its mean over trials, and the 95 % interval of that mean."""
    from scipy.stats import t

    mean, colour = values.mean(axis=1), COLOURS[i % len(COLOURS)]
    axes.plot(x, mean, color=colour, linestyle=DASHES[i % len(DASHES)], linewidth=1.6)
    if values.shape[1] > 1:
        trials = values.shape[1]
        half = t.ppf(0.975, trials - 1) * values.std(axis=1, ddof=1) / np.sqrt(trials)
        axes.fill_between(x, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)


def _finish(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def _note(axes: Any, text: str) -> None:
    place = {"xycoords": "axes fraction", "ha": "right", "va": "bottom"}
    axes.annotate(text, (0.99, 0.01), fontsize=8, color="0.4", **place)


def _label(axes: Any, lines: list[tuple[int, str, float]]) -> None:
    """Write each curve's name beside its end, neighbours moved apart equally."""
    if not lines:
        return
    lines = sorted(lines, key=lambda line: line[2])
    to_axes = axes.transData + axes.transAxes.inverted()
    place = np.array([to_axes.transform((0.0, y))[1] for _, _, y in lines])
    gap = 0.058
    for _ in range(200):
        short = gap - np.diff(place)
        if (short <= 1e-6).all():
            break
        shift = np.clip(short, 0.0, None) / 2
        place[:-1] -= shift
        place[1:] += shift
    place += np.clip(0.0 - place[0], 0.0, None) - np.clip(place[-1] - 1.0, 0.0, None)
    for (i, text, _), y in zip(lines, place, strict=True):
        axes.annotate(
            text, (1.01, y), xycoords="axes fraction", color=COLOURS[i % len(COLOURS)], va="center",
            fontsize=9, annotation_clip=False,
        )  # fmt: skip


def _write_table(path: Path, curves: dict[str, xr.DataArray]) -> None:
    """Write the mean over trials of every curve, a row per step."""
    # A trial that is not finite makes the mean so: survivors alone would not be a mean.
    means = {label: curve.mean("trial", skipna=False).values for label, curve in curves.items()}
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["step", *(f"{label} ({curves[label].name})" for label in means)])
        for step, row in enumerate(zip(*means.values(), strict=True)):
            rows.writerow([step, *(repr(float(x)) for x in row)])

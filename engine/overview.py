"""What any run shows, whatever it was run for: errors, recall by age, spectra of states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from engine.answers import last
from engine.measure import error_curve, smooth
from engine.measure.statistics import estimate, wilson
from engine.reporting import Curve, Figure, Panel, labels

if TYPE_CHECKING:
    import xarray as xr

FEW = 4  # trials of a stored stream that are drawn one by one
SPECTRA = 6  # solvers whose spectra are drawn
MOMENTS = 60  # steps at which they are taken


def figures(run: xr.DataTree) -> list[Figure]:
    """Return the figures of a single run."""
    found = [errors(run)]
    if "probes" in run.children:
        asked = run.attrs["scenario"]["resolved"]["probes"]
        names = [n for n in run["probes"].children if asked[n]["ask"] == "keys"]  # the rest: no age
        if names:
            panels = [recall(run, name) for name in names]
            found.append(Figure("recall", "Every key asked for, by its age.", panels))
    return found + list(spectra(run))


def errors(run: xr.DataTree) -> Figure:
    """Return the error of every solver at every step: the mean over trials with its interval.

    Few trials of a stored stream, the heads of a layer say, are no draws of one law: each has a
    panel of its own.
    """
    curves = {label: error_curve(run, label) for label in labels(run)}
    if len({str(curve.name) for curve in curves.values()}) > 1:  # one axis, one measure
        curves = {x: error_curve(run, x, kind="prediction error") for x in curves}
    arrays = {x: curve.transpose("step", "trial").values for x, curve in curves.items()}
    kind = str(next(iter(curves.values())).name)
    trials = next(iter(arrays.values())).shape[1]
    stored = run.attrs["scenario"]["resolved"]["stream"]["generator"] == "stored"
    apart = stored and 1 < trials <= FEW
    panels = [
        _errors(run, arrays, kind, at, f"trial {at.start}" if apart else "")
        for at in ([slice(i, i + 1) for i in range(trials)] if apart else [slice(None)])
    ]
    return Figure("errors", f"The {kind} of every solver along the stream.", panels)


def _errors(
    run: xr.DataTree, arrays: Mapping[str, np.ndarray], kind: str, at: slice, title: str
) -> Panel:
    """Return the errors of some trials."""
    arrays = {label: values[:, at] for label, values in arrays.items()}
    steps, trials = next(iter(arrays.values())).shape
    window = max(1, min(50, steps // 10))
    diverged = {label: np.asarray(run[f"solvers/{label}/diverged_at"])[at] for label in arrays}
    sound = [a[np.isfinite(a)] for label, a in arrays.items() if (diverged[label] < 0).all()]
    window = window if sound else 1  # a mean of a growing error is its last step
    # Beyond ten times what the others do, a diverging curve says nothing more; squares of 1e100
    # are finite.
    limit = 10.0 * max((float(np.quantile(a, 0.95)) for a in sound if a.size), default=1e100)
    drawn, left_out = [], []
    for label, values in arrays.items():
        text, x = label, np.arange(steps)
        if (diverged[label] >= 0).any():
            first = int(diverged[label][diverged[label] >= 0].min())
            text = f"{label} (diverged at {first})"
            beyond = np.flatnonzero((values > limit).any(axis=1) | (x >= first))
            values = values[: beyond[0]]
        # Masked steps predict nothing: the curve goes on where there is something to say.
        there = np.isfinite(values).all(axis=1)
        values, x = values[there], x[: len(there)][there]
        if len(values) < window and sound:
            left_out.append(text)
        elif len(values):
            width = min(window, len(values))
            line = smooth(values, width)
            drawn.append(Curve(text, x[width - 1 :], *interval(line)))
    what = {"tracking error": "|S - W|", "prediction error": "|prediction - value|"}[kind]
    means = [float(c.y[-1]) for c in drawn if c.y[-1] > 0]
    wide = bool(means) and (max(means) > 30 * min(means) or not sound)
    notes = [f"running means of {window} steps"] if window > 1 else []
    notes += ["bands: 95 % intervals of the mean over trials"] if trials > 1 else []
    notes += [f"not drawn: {', '.join(left_out)}"] if left_out else []
    return Panel(
        "step", f"{kind}, {what}", drawn, title, "; ".join(notes), log="y" if wide else "",
        x_range=(0, steps), y_range=None if wide else (0, None),
    )  # fmt: skip


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over trials of (step, trial), and its interval; of one trial, no width."""
    found = estimate(values, over=1)
    if values.shape[1] == 1:
        return found.value, found.value, found.value
    return found.value, found.low, found.high


def recall(run: xr.DataTree, probe: str) -> Panel:
    """Return the share of keys that decode to their present binding, against their age.

    Ages are cut into bins of equal count; bands are over trials, for queries of one trial are not
    independent. Of a single trial they are Wilson's, as if they were.
    """
    answers = last(cast("xr.DataTree", run[f"probes/{probe}"]))
    steps = int(answers.coords.get("probe_step", run["stream"].sizes["step"]))
    answers = answers.isel(query=slice(steps))
    wanted = answers["wanted"].transpose("query", "trial").values >= 0
    age = np.arange(steps - 1, -1, -1)
    asked = np.flatnonzero(wanted.any(axis=1))[::-1]
    bins = np.array_split(asked, max(1, min(12, wanted.sum() // 30, asked.size)))
    middle = np.array([age[b].mean() for b in bins if b.size])
    curves = []
    for label in labels(run):
        hit = (answers[f"{label}/recalled"].transpose("query", "trial").values > 0) & wanted
        bands = [share(hit[b].sum(axis=0), wanted[b].sum(axis=0)) for b in bins if b.size]
        mean, low, high = np.array(bands).reshape(-1, 3).T
        curves.append(Curve(label, middle, mean, low, high, look="marks"))
    chance = 1.0 / max(int(answers["wanted"].max()) + 1, 1)
    kind = (
        "95 % intervals of the mean over trials" if wanted.shape[1] > 1 else "95 % Wilson intervals"
    )
    return Panel(
        "age of the key, steps since it was written",
        "share recalled (nearest value is right)", curves,
        title=f"{probe}: asked after {steps} steps",
        note=f"bands: {kind}", levels=[(chance, "chance")], y_range=(-0.02, 1.02),
    )  # fmt: skip


def share(hits: np.ndarray, n: np.ndarray) -> tuple[float, float, float]:
    """Return the share of hits, of the trials (trial,) that were asked at all, and its interval."""
    hits, n = hits[n > 0], n[n > 0]
    found = estimate(hits / n) if n.size > 1 else wilson(hits.sum(), n.sum())
    return float(found.value), max(float(found.low), 0.0), min(float(found.high), 1.0)


def spectra(run: xr.DataTree) -> Iterator[Figure]:
    """Yield the singular values of every recorded matrix state over time, trial 0."""
    panels, diverged = [], []
    for label in labels(run):
        S = run[f"solvers/{label}"].to_dataset().get("S")
        if S is None or S.dims[:2] != ("step", "trial") or min(S.shape[2:], default=0) < 2:
            continue
        if (np.asarray(run[f"solvers/{label}/diverged_at"]) >= 0).any():
            diverged.append(label)
            continue
        steps = np.unique(np.geomspace(1, S.sizes["step"], MOMENTS).astype(int) - 1)
        states = S.isel(step=steps, trial=0).values
        finite = np.isfinite(states).all(axis=(-2, -1))
        values = np.linalg.svd(states[finite], compute_uv=False)
        named = {0: "largest", values.shape[1] - 1: "smallest"}
        curves = [
            Curve(
                named.get(i, str(i)),
                steps[finite] + 1,
                values[:, i],
                look="line" if i in named else "thin",
            )
            for i in range(values.shape[1])
        ]
        top = float(values.max(initial=0.0))
        ends = [float(x) for x in values[-1:, -1] if x > 1e-12 * top]  # 0, up to rounding: no end
        floor = min([1e-4 * top, *(x / 3 for x in ends)])
        panels.append(
            Panel(
                "pairs written",
                "singular values of S",
                curves,
                title=label,
                log="xy",
                y_range=(floor, 2 * top) if top > 0 else None,
            )  # fmt: skip
        )
    if panels:
        said = "Singular values of the state along the stream (first trial)."
        said += f" Not drawn, for it diverged: {', '.join(diverged)}." if diverged else ""
        columns = 2 if len(panels) in (2, 4) else 3
        yield Figure("spectra", said, panels[:SPECTRA], columns)

"""Figures drawn. The only file that names matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import InputError
from engine.reporting import Curve, Figure, Panel

# Okabe and Ito's colour-blind-safe palette, darkest first, without its yellow; with a dash and a
# mark each, so that curves stay apart in grey. Beyond seven, colours return with other dashes.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (8, 2)), (0, (2, 2)),
    (0, (4, 1, 1, 1, 1, 1)), (0, (6, 1, 1, 1)),
)  # fmt: skip
MARKS = "osD^vP*X<>h"
STYLE: Any = {
    "font.size": 10, "axes.titlesize": 11, "axes.labelsize": 10, "svg.hashsalt": "ttr-engine",
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
TEXT = 9.0  # points: size of labels
WIDTH, HEIGHT = 5.6, 4.0  # inches: of a panel with its labels


def draw(figure: Figure, folder: Path, mark: str = "") -> list[Path]:
    """Write NAME.png and NAME.svg; `mark` is written across the top.

    Raises
    ------
    InputError
        If matplotlib is missing.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise InputError("pictures need matplotlib: pip install 'ttr-engine[plot]'") from error
    columns = min(figure.columns, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    order: dict[str, int] = {}
    for panel in figure.panels:
        for curve in panel.curves:
            if curve.look != "thin":
                order.setdefault(curve.like or curve.label, len(order))
    paths = [folder / f"{figure.name}.{kind}" for kind in ("png", "svg")]
    with matplotlib.rc_context(STYLE):
        size = ((WIDTH + 1.4 * (columns == 1)) * columns, HEIGHT * rows)
        drawn, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
        try:
            for panel, one in zip(figure.panels, axes.flat, strict=False):
                _panel(one, panel, order)
            for one in axes.flat[len(figure.panels) :]:
                one.remove()
            if mark:
                drawn.suptitle(mark, fontsize=9, ha="right", x=0.99)
            # Names right of the axes make these narrower; those inside come where they then lie.
            for place in (_beside, _around):
                drawn.canvas.draw()
                for panel, one in zip(figure.panels, axes.flat, strict=False):
                    place(one, _places(one, panel, place is _around), order)
            drawn.set_layout_engine("none")
            for path in paths:
                # Without a date, the same figure is the same file.
                drawn.savefig(
                    path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {}
                )
        finally:
            plt.close(drawn)
    return paths


def _panel(axes: Any, panel: Panel, order: dict[str, int]) -> None:
    """Draw everything but the labels of curves."""
    axes.set_xscale("log" if "x" in panel.log else "linear")
    axes.set_yscale("log" if "y" in panel.log else "linear")
    for curve in panel.curves:
        _curve(axes, curve, order)
    for y, text in panel.levels:
        axes.axhline(y, color="0.45", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            text, (0.01, y), (0, 2), xycoords=axes.get_yaxis_transform(),
            textcoords="offset points", fontsize=8, color="0.3",
        )  # fmt: skip
    for x, text in panel.marks:
        axes.axvline(x, color="0.45", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            text, (x, 0.99), (3, 0), xycoords=axes.get_xaxis_transform(), va="top",
            textcoords="offset points", fontsize=8, color="0.3", rotation=90,
        )  # fmt: skip
    if panel.x_range:
        axes.set_xlim(*panel.x_range)
    if panel.y_range:
        axes.set_ylim(*panel.y_range)
    for which in panel.log:
        _ticks(axes, which)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.set_title(panel.title)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    if panel.note:
        axes.annotate(
            panel.note, (0.0, -0.17), xycoords="axes fraction", fontsize=8, color="0.3", va="top"
        )


def _ticks(axes: Any, which: str) -> None:
    """Write plain numbers on a logarithmic axis, few of them, where they are not very large."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = sorted(getattr(axes, f"get_{which}lim")())
    decades = np.log10(high / low)
    if decades > 8:
        return
    axis = getattr(axes, f"{which}axis")
    steps = (1, 2, 5) if decades < 2.5 else (1,)
    axis.set_major_locator(LogLocator(10, steps))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _index(curve: Curve, order: dict[str, int]) -> int:
    return order.get(curve.like or curve.label, 0)


def _colour(curve: Curve, order: dict[str, int]) -> str:
    return COLOURS[_index(curve, order) % len(COLOURS)]


def _curve(axes: Any, curve: Curve, order: dict[str, int]) -> None:
    x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float)
    keep = np.isfinite(x) & np.isfinite(y)
    x, y, i, colour = x[keep], y[keep], _index(curve, order), _colour(curve, order)
    if curve.look in ("law", "thin"):
        how = {"color": colour, "linewidth": 1.0, "linestyle": (0, (2, 1.5)), "zorder": 3}
        thin = {"color": "0.6", "linewidth": 0.7, "zorder": 1}
        axes.plot(x, y, **(how if curve.look == "law" else thin))
        return
    bare = curve.look == "line" and y.size > 1  # a line of one point is its mark
    marked = {} if bare else {"marker": MARKS[i % len(MARKS)], "markersize": 4.5}
    line = "" if curve.look == "points" else DASHES[(i + 2 * (i // len(COLOURS))) % len(DASHES)]
    axes.plot(x, y, color=colour, linestyle=line, linewidth=1.6, zorder=2, **marked)
    if curve.low is None or curve.high is None:
        return
    low, high = (np.asarray(z, dtype=float)[keep] for z in (curve.low, curve.high))
    if curve.look == "points":
        axes.vlines(x, low, high, color=colour, linewidth=1.0)
    else:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def _places(axes: Any, panel: Panel, single: bool) -> list[tuple[Curve, Any]]:
    """Return the curves with a name and where they end: those of one point, or all others."""
    found: list[tuple[Curve, Any]] = []
    for curve in panel.curves:
        x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float)
        low, high = sorted(axes.get_ylim())
        seen = np.flatnonzero(np.isfinite(x) & np.isfinite(y) & (y >= low) & (y <= high))
        named = curve.look not in ("law", "thin") and curve.label
        if not named or not seen.size or (x.size == 1) != single:
            continue
        last = seen[np.argmax(x[seen])]
        found.append((curve, axes.transData.transform((x[last], y[last]))))
    return found


def _beside(axes: Any, ends: Sequence[tuple[Curve, Any]], order: dict[str, int]) -> None:
    """Write names right of the axes, neighbours moved apart equally."""
    if not ends:
        return
    ends = sorted(ends, key=lambda end: float(end[1][1]))
    box = axes.get_window_extent()
    gap = 1.25 * TEXT * axes.figure.dpi / 72
    wanted = np.array([at[1] for _, at in ends])
    place = _spread(wanted, gap, box.y0, box.y1)
    for (curve, at), y in zip(ends, place, strict=True):
        colour = _colour(curve, order)
        x = axes.transAxes.inverted().transform((0, y))[1]
        reach = axes.transAxes.inverted().transform(at)
        axes.annotate(
            curve.label, (1.03, x), xycoords="axes fraction", color=colour, va="center",
            fontsize=TEXT, annotation_clip=False,
        )  # fmt: skip
        axes.plot(
            [max(reach[0], 0.0), 1.025], [reach[1], x], color=colour, linewidth=0.5, alpha=0.6,
            transform=axes.transAxes, clip_on=False,
        )  # fmt: skip


def _spread(wanted: np.ndarray, gap: float, low: float, high: float) -> np.ndarray:
    """Return places near the wanted ones, in their order, at least `gap` apart where that fits."""
    place = wanted.astype(float).copy()
    for _ in range(500):
        short = gap - np.diff(place)
        if (short <= 1e-3 * gap).all():
            break
        shift = np.clip(short, 0.0, None) / 2
        place[:-1] -= shift
        place[1:] += shift
        if (len(place) - 1) * gap <= high - low:
            place = np.clip(place, low + 0.0, high)
            place += np.linspace(-1e-3, 1e-3, len(place)) * gap  # clipped ones can part again
    return place


def _around(axes: Any, single: Sequence[tuple[Curve, Any]], order: dict[str, int]) -> None:
    """Write names beside single points, each at the nearest place where it covers nothing."""
    per_point = axes.figure.dpi / 72
    box, edge = axes.get_window_extent(), axes.figure.bbox.x1
    taken = [(at[0] - 4, at[1] - 4, at[0] + 4, at[1] + 4) for _, at in single]
    for curve, at in sorted(single, key=lambda one: -float(one[1][1])):
        measured = axes.text(0, 0, curve.label, fontsize=TEXT)
        wide, tall = measured.get_window_extent().width, 1.15 * TEXT * per_point
        measured.remove()
        spots = [
            (at[0] + side * (8 + away) - wide * (side < 0), at[1] + up * tall - tall / 2)
            for away in (0, 20, 50, 90) for up in (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6)
            for side in (1, -1)
        ]  # fmt: skip
        spots = [
            s for s in spots
            if s[0] >= box.x0 and s[0] + wide <= edge and s[1] >= box.y0 and s[1] + tall <= box.y1
        ]  # fmt: skip
        others = [t for t in taken if not (t[0] <= at[0] <= t[2] and t[1] <= at[1] <= t[3])]
        free = (
            (x, y) for x, y in spots
            if not any(_meets((x, y, x + wide, y + tall), t) for t in taken)
            and not _crosses(at, (x + wide if x < at[0] else x, y + tall / 2), others)
        )  # fmt: skip
        x, y = next(free, (at[0] + 8, at[1]))
        taken.append((x, y, x + wide, y + tall))
        ends = axes.transAxes.inverted().transform([(x, y + tall / 2), at])
        left = axes.transAxes.inverted().transform((x + wide if x < at[0] else x, y))[0]
        colour = _colour(curve, order)
        axes.annotate(
            curve.label, ends[0], xycoords="axes fraction", color=colour, va="center",
            fontsize=TEXT, annotation_clip=False,
        )  # fmt: skip
        axes.plot(
            [left, ends[1][0]], [ends[0][1], ends[1][1]], color=colour, linewidth=0.5,
            transform=axes.transAxes, clip_on=False,
        )  # fmt: skip


def _crosses(a: Any, b: Any, boxes: Sequence[tuple[float, ...]]) -> bool:
    """Return whether a line from a to b, seen as some of its points, runs through a box."""
    points = np.asarray(a) + np.linspace(0, 1, 40)[:, None] * (np.asarray(b) - np.asarray(a))
    return any(_meets((x, y, x, y), box) for x, y in points for box in boxes)


def _meets(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]

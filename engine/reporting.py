"""What a report says: claims, tables and figures as plain values that the host prints and draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Claim:
    """A number that was published, the same number of this run, and what it should be.

    Parameters
    ----------
    what : str
        The quantity.
    ours : float
        Its value in this run.
    published : float, optional
        As the study printed it.
    expected : float, optional
        The population's value, or what a law says.
    within : float
        How far `ours` may lie from `expected`, or from `published` where nothing is expected.
    why : str
        Where `expected` and `within` come from, such as "3 standard errors".
    """

    what: str
    ours: float
    published: float | None = None
    expected: float | None = None
    within: float = 0.0
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether our number is where it should be; one that is not finite never is."""
        target = self.published if self.expected is None else self.expected
        return target is not None and abs(self.ours - target) <= self.within


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under named columns."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Curve:
    """One curve of a panel.

    Parameters
    ----------
    label : str
        Written beside it, not in a legend.
    x, y : array (n,)
        Points that are not finite are left out.
    low, high : array (n,), optional
        An interval: drawn as a band, or as bars around points.
    look : "line", "marks", "points", "law" or "thin"
        A line; a line with a mark at each point; marks alone; a dashed line without a label; a thin
        grey line without one.
    like : str
        Label of the curve whose colour it shares, as a law does with what it describes; or a name
        of several that share one.
    """

    label: str
    x: Any
    y: Any
    low: Any = None
    high: Any = None
    look: Literal["line", "marks", "points", "law", "thin"] = "line"
    like: str = ""


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Parameters
    ----------
    x, y : str
        What the axes show, with their units.
    curves : sequence of Curve
        Drawn in this order.
    title, note : str
        Above it; small, below the axis.
    log : "", "x", "y" or "xy"
        Logarithmic axes.
    levels, marks : sequence of (float, str)
        Horizontal and vertical lines, and what they mark: a chance level, a bound.
    x_range, y_range : (float, float), optional
        Limits of the axes.
    """

    x: str
    y: str
    curves: Sequence[Curve]
    title: str = ""
    note: str = ""
    log: Literal["", "x", "y", "xy"] = ""
    levels: Sequence[tuple[float, str]] = ()
    marks: Sequence[tuple[float, str]] = ()
    x_range: tuple[float | None, float | None] | None = None
    y_range: tuple[float | None, float | None] | None = None


@dataclass(frozen=True)
class Figure:
    """Panels side by side, `columns` to a row, and what they show in a sentence or two."""

    name: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 3


class Report:
    """What a study says of its run. Subclass it, and override what it has to say.

    Subclasses are frozen dataclasses; every method is a function of the run alone.
    """

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return the numbers of the study beside those of the run."""
        return ()

    def tables(self, run: xr.DataTree) -> Sequence[Table]:
        """Return further tables."""
        return ()

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return figures."""
        return ()


@dataclass(frozen=True)
class Part:
    """One run of a sweep: the settings that tell it from the others, and the run."""

    settings: Mapping[str, Any]
    run: xr.DataTree = field(repr=False)


def parts(run: xr.DataTree) -> Iterator[Part]:
    """Yield the runs of a sweep in order; a single run is its own only part."""
    if "parts" not in run.children:
        yield Part({}, run)
        return
    for name in sorted(run["parts"].children, key=int):
        one = cast("xr.DataTree", run[f"parts/{name}"])
        yield Part(one.attrs["settings"], one)


def labels(run: xr.DataTree) -> list[str]:
    """Return the labels of a run's solvers, as its scenario orders them."""
    return list(run.attrs["scenario"]["resolved"]["solvers"])

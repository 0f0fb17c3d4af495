"""How well a moving target is followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.api import View
from engine.measure.lift import lift
from engine.measure.runs import mapped, view_of

if TYPE_CHECKING:
    import xarray as xr


def tracking_error(S: Any, target_map: Any, /) -> Any:
    """Return |S - W|, the Frobenius distance of a fit to the map it tracks.

    Parameters
    ----------
    S, target_map : array (..., key, value), or DataArray with dims key and value
        Recorded state and the map that made the values.

    Returns
    -------
    array (...), or DataArray without these dims

    Examples
    --------
    >>> float(tracking_error(np.zeros((2, 1)), np.array([[3.0], [4.0]])))
    5.0
    """
    return lift(
        lambda a, b: np.sqrt(np.sum((a - b) ** 2, axis=(-2, -1))),
        [["key", "value"]] * 2,
        S,
        target_map,
    )


def prediction_error(prediction: Any, values: Any, /) -> Any:
    """Return |prediction - v|, the error at each pair before it is written (prequential error).

    Parameters
    ----------
    prediction, values : array (..., value), or DataArray with dim value
        The read at k before the write, and what was then written.

    Returns
    -------
    array (...), or DataArray without this dim
    """
    return lift(
        lambda a, b: np.sqrt(np.sum((a - b) ** 2, axis=-1)), [["value"]] * 2, prediction, values
    )


def smooth(x: Any, window: int) -> Any:
    """Return the running mean over `window` steps, along the first axis or dim step.

    Parameters
    ----------
    x : array (step, ...), or DataArray with dim step
        What to smooth.
    window : int
        Steps that a mean is taken over.

    Returns
    -------
    array or DataArray
        Shorter by window - 1: its row i is the mean of rows i .. i + window - 1.
    """

    def mean(a: np.ndarray) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(a, window, axis=0)
        return np.asarray(windows.mean(axis=-1))

    if not hasattr(x, "dims"):
        return mean(np.asarray(x))
    return x.rolling(step=window).mean().isel(step=slice(window - 1, None))


def error_curve(
    run: xr.DataTree, label: str, start: int = 0, block: int = 4096, kind: str | None = None
) -> xr.DataArray:
    """Return the error of one solver of a run at every step from `start` on.

    Parameters
    ----------
    run : DataTree
        A run, in memory or lazy.
    label : str
        The solver's label.
    start : int
        First step.
    block : int
        Steps that are read at a time.
    kind : "prediction error", optional
        Ask for that one even where the tracking error is known.

    Returns
    -------
    DataArray (step, trial)
        Named "tracking error", |S - W|, where the stream knows its target map, the states were
        recorded, and no view stands between; "prediction error", |prediction - v|, elsewhere, v as
        the view maps it.
    """
    import xarray as xr

    solver, stream = run[f"solvers/{label}"].to_dataset(), run["stream"].to_dataset()
    view = view_of(solver)
    tracks = "target_map" in stream and "step" in solver.get("S", xr.DataArray()).dims
    name, measure, a, b = (
        "prediction error",
        prediction_error,
        solver["prediction"],
        stream["values"],
    )
    plain = view is None or getattr(type(view), "values", View.values) is View.values
    # The target maps the stream's keys to its values, not what a view makes of them.
    if tracks and view is None and kind is None:
        name, measure, a, b = "tracking error", tracking_error, solver["S"], stream["target_map"]
    parts = []
    for begin in range(start, max(a.sizes["step"], start + 1), block):
        steps = slice(begin, begin + block)
        right = b.isel(step=steps).load()
        if not plain:
            right = xr.DataArray(mapped(view, right.values), dims=right.dims)
        parts.append(measure(a.isel(step=steps).load(), right))
    curve: xr.DataArray = xr.concat(parts, "step").rename(name)
    return curve

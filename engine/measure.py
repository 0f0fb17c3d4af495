"""Measures of a trajectory. Each takes arrays, or DataArrays whose dims it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.api import View

if TYPE_CHECKING:
    import xarray as xr


def _lift(function: Callable[..., np.ndarray], dims: Sequence[Sequence[str]], *args: Any) -> Any:
    """Apply an array function along named dims where any argument is a DataArray."""

    def quiet(*arrays: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # a diverged state has no finite error
            return function(*arrays)

    if not any(hasattr(x, "dims") for x in args):
        return quiet(*args)
    import xarray as xr

    return xr.apply_ufunc(
        quiet, *args, input_core_dims=dims, dask="parallelized", output_dtypes=[np.float64]
    )


def tracking_error(S: Any, target_map: Any, /) -> Any:
    """Return |S - W|, the Frobenius distance of a fit to the map it tracks.

    Parameters
    ----------
    S, target_map : array (..., key, value), or DataArray with dims key and value
        Recorded state and the map that made the values.

    Examples
    --------
    >>> float(tracking_error(np.zeros((2, 1)), np.array([[3.0], [4.0]])))
    5.0
    """
    return _lift(
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
    """
    return _lift(
        lambda a, b: np.sqrt(np.sum((a - b) ** 2, axis=-1)), [["value"]] * 2, prediction, values
    )


def recalled(read: Any, book: Any, wanted: Any) -> Any:
    """Return whether the entry of `book` nearest to each read is the wanted one, as 0.0 or 1.0.

    Parameters
    ----------
    read : array (..., value), or DataArray with dim value
        What a memory answered.
    book : array (..., entry, value), or DataArray with dims entry and value
        Every value it might have meant; entries that are not finite are left out.
    wanted : array of int (...)
        Index of the right entry; where it is negative there is none, and the result is NaN.

    Notes
    -----
    Nearest in Euclidean distance; a read that is not finite recalls nothing.
    """

    def nearest(x: np.ndarray, entries: np.ndarray, index: np.ndarray) -> np.ndarray:
        # |x - e|^2 = |x|^2 - 2 x.e + |e|^2, and |x|^2 is the same for every entry.
        distance = np.sum(entries**2, axis=-1) - 2.0 * _products(x, entries)
        finite = np.isfinite(x).all(-1)
        distance = np.where(np.isfinite(entries).all(-1), distance, np.inf)
        hit = (np.argmin(np.where(finite[..., None], distance, 0.0), axis=-1) == index) & finite
        return np.where(index < 0, np.nan, hit.astype(np.float64))

    return _lift(nearest, [["value"], ["entry", "value"], []], read, book, wanted)


def _products(x: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Return x.e for every entry: (query, trial, value) and (1, trial, entry, value), or alike."""
    if x.ndim == 3 and entries.ndim == 4 and len(entries) == 1:  # one matrix product per trial
        return np.swapaxes(np.swapaxes(x, 0, 1) @ np.swapaxes(entries[0], -1, -2), 0, 1)
    return np.asarray(np.einsum("...v,...ev->...e", x, entries))


def smooth(x: Any, window: int) -> Any:
    """Return the running mean over `window` steps, along the first axis or dim step.

    The result is shorter by window - 1: its row i is the mean of rows i .. i + window - 1.
    """

    def mean(a: np.ndarray) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(a, window, axis=0)
        return np.asarray(windows.mean(axis=-1))

    if not hasattr(x, "dims"):
        return mean(np.asarray(x))
    return x.rolling(step=window).mean().isel(step=slice(window - 1, None))


def mapped(view: View | None, values: Any, /) -> Any:
    """Return values (..., value) as a solver behind this view is given them."""
    # A view that does not inherit from engine.api.View may have no such method.
    return values if view is None or not hasattr(view, "values") else view.values(values)


def error_curve(
    run: xr.DataTree, label: str, start: int = 0, block: int = 4096, kind: str | None = None
) -> xr.DataArray:
    """Return the error of one solver of a run at every step from `start` on.

    Parameters
    ----------
    run : DataTree
        A run, in memory or lazy: `block` steps are read at a time.
    label : str
        The solver's label.
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

    from engine import factories

    solver, stream = run[f"solvers/{label}"].to_dataset(), run["stream"].to_dataset()
    options = dict(solver.attrs.get("view") or {})
    view = factories.build("view", options.pop("view"), options) if options else None
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

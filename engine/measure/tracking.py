"""How well a moving target is followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.api import View
from engine.errors import InputError, whole
from engine.measure.lift import block_of, lift
from engine.measure.runs import mapped, solver_of, view_of

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

    Raises
    ------
    InputError
        If the window is not at least one step, or an array is shorter.
    """
    whole("window", window)

    def mean(a: np.ndarray) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(a, window, axis=0)
        return np.asarray(windows.mean(axis=-1))

    if not hasattr(x, "dims"):
        if window > len(x):
            raise InputError(f"window = {window}: there are only {len(x)} steps")
        return mean(np.asarray(x))
    return x.rolling(step=window).mean().isel(step=slice(window - 1, None))


def steady_state(error: Any, /, share: float = 0.25) -> Any:
    """Return the mean error over the last part of the steps, trial by trial.

    Parameters
    ----------
    error : array (step, ...), or DataArray with dim step
        Such as a tracking error.
    share : float
        Of the steps, in (0, 1], at least one.

    Returns
    -------
    array (...), or DataArray without this dim
        Where a step is not finite so is the mean. `statistics.estimate` makes an interval of it.

    Raises
    ------
    InputError
        If the share is outside (0, 1].

    Examples
    --------
    >>> float(steady_state(np.array([9.0, 5.0, 3.0, 1.0]), 0.5))
    2.0
    """
    if not 0 < share <= 1:
        raise InputError(f"share = {share} must be in (0, 1]")
    named = hasattr(error, "dims")
    steps = error.sizes["step"] if named else len(error)
    last = slice(steps - max(1, round(share * steps)), None)
    if named:
        return error.isel(step=last).mean("step", skipna=False)
    return np.asarray(error)[last].mean(axis=0)


def lag(S: Any, target_map: Any, /, longest: int = 100) -> Any:
    """Return the number of steps by which a fit trails its target.

    That is the L, from 0 to `longest`, at which the mean over steps of |S_t - W_(t-L)|^2 is least.
    A mean of past maps with weights w_a, such as that of least squares which forgets, trails a
    random walk by the median of its weights.

    Parameters
    ----------
    S, target_map : array (step, ..., key, value), or DataArray with these dims
        Recorded state and the map that made the values, of more than `longest` steps.
    longest : int
        The largest lag that is looked for. The first `longest` steps count in no mean.

    Returns
    -------
    array (...), or DataArray without these dims
        `longest` itself says that the lag may be longer; NaN where a state is not finite.

    Raises
    ------
    InputError
        If there are no more than `longest` steps.

    Examples
    --------
    >>> W = np.cumsum(np.random.default_rng(0).normal(size=(300, 4, 1)), axis=0)
    >>> float(lag(np.roll(W, 7, axis=0), W, longest=20))
    7.0
    """
    named = hasattr(S, "dims")
    steps = S.sizes["step"] if named else len(S)
    whole("longest", longest, 0)
    if steps <= longest:
        raise InputError(f"longest = {longest}: there are only {steps} steps")

    def rows(x: Any, start: int, stop: int) -> Any:
        if not named:
            return x[start:stop]
        # Without their labels, by which steps would be matched with themselves.
        x = x.drop_vars("step", errors="ignore")
        return x.isel(step=slice(start, stop)).transpose("step", ...).load()

    def square(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(np.sum((a - b) ** 2, axis=(-2, -1)))

    total: Any = [0.0] * (longest + 1)
    block = max(block_of(S, target_map) if named else steps, longest)
    for start in range(longest, steps, block):
        stop = min(start + block, steps)
        a, b = rows(S, start, stop), rows(target_map, start - longest, stop)
        for i in range(longest + 1):
            end = stop - start + longest - i
            shifted = b.isel(step=slice(longest - i, end)) if named else b[longest - i : end]
            error = lift(square, [["key", "value"]] * 2, a, shifted)
            total[i] = total[i] + (error.sum("step", skipna=False) if named else error.sum(axis=0))

    def least(*sums: np.ndarray) -> np.ndarray:
        stacked = np.stack(np.broadcast_arrays(*sums), axis=-1)
        found = np.argmin(np.where(np.isfinite(stacked), stacked, np.inf), axis=-1)
        return np.where(np.isfinite(stacked).all(-1), found, np.nan)

    return lift(least, [[]] * len(total), *total)


def recovery_time(error: Any, switch: int, level: Any, /, hold: int = 1) -> Any:
    """Return the steps from a switch of the target until the error is down at a level again.

    Parameters
    ----------
    error : array (step, ...), or DataArray with dim step
        Such as a tracking error, perhaps smoothed.
    switch : int
        First step of the new target.
    level : float, array (...), or DataArray
        What the error must be at or below: for instance its steady state before the switch.
    hold : int
        For how many steps in a row.

    Returns
    -------
    array (...), or DataArray without dim step
        0 if the error is down at the switch itself; NaN if it is not down before the end.

    Raises
    ------
    InputError
        If the switch is not one of the steps.

    Examples
    --------
    >>> float(recovery_time(np.array([0.1, 4.0, 2.0, 1.0, 0.5]), 1, 1.0))
    2.0
    """
    named = hasattr(error, "dims")
    steps = error.sizes["step"] if named else len(error)
    if not 0 <= switch < steps:
        raise InputError(f"switch = {switch} must be one of the {steps} steps")
    after = error.isel(step=slice(switch, None)) if named else np.moveaxis(error[switch:], 0, -1)

    def first(e: np.ndarray, bound: np.ndarray) -> np.ndarray:
        down = e <= np.asarray(bound)[..., None]
        if down.shape[-1] < hold:
            return np.full(down.shape[:-1], np.nan)
        kept = np.lib.stride_tricks.sliding_window_view(down, hold, axis=-1).all(-1)
        return np.where(kept.any(-1), np.argmax(kept, axis=-1), np.nan)

    if named and after.chunks:
        after = after.chunk(step=-1)
    return lift(first, [["step"], []], after, level)


def error_curve(
    run: xr.DataTree,
    label: str,
    start: int = 0,
    block: int | None = None,
    kind: str | None = None,
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
    block : int, optional
        Steps that are read at a time; default: as many as fit into `lift.BLOCK_BYTES`.
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

    solver, stream = solver_of(run, label), run["stream"].to_dataset()
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
    block = block or block_of(a, b)
    parts = []
    for begin in range(start, max(a.sizes["step"], start + 1), block):
        steps = slice(begin, begin + block)
        right = b.isel(step=steps).load()
        if not plain:
            right = xr.DataArray(mapped(view, right.values), dims=right.dims)
        parts.append(measure(a.isel(step=steps).load(), right))
    curve: xr.DataArray = xr.concat(parts, "step").rename(name)
    return curve

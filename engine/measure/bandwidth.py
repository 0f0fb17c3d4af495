"""The bandwidth of kernel regression, learnt from stored pairs by leaving one out."""

from __future__ import annotations

import math

import numpy as np

from engine import ops
from engine.api import Array
from engine.errors import InputError, between


def leave_one_out(keys: Array, values: Array, bandwidth: float) -> float:
    """Return the mean over i of |v_i - the fit at k_i without pair i|^2.

    Parameters
    ----------
    keys, values : array (pair, key), (pair, value)
        At least two pairs.
    bandwidth : float
        Width of the kernel, above 0.

    Returns
    -------
    float
    """
    between("bandwidth", bandwidth, 0.0, math.inf, "()")
    square, targets = _pairs(keys, values)
    return _loss_and_slope(square, targets, 1.0 / bandwidth)[0]


def learn_bandwidth(keys: Array, values: Array) -> float:
    """Return the bandwidth of least leave-one-out error, the global one.

    The error may have several minima: it is scanned over every bandwidth that matters, from a tenth
    of the smallest to ten times the largest distance, 40 per factor of ten, and each dip refined.

    Parameters
    ----------
    keys, values : array (pair, key), (pair, value)
        At least two pairs.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If there are fewer than two pairs, or all keys are equal: every bandwidth fits alike.
    """
    from scipy.optimize import minimize_scalar

    square, targets = _pairs(keys, values)
    apart = np.sqrt(square[np.isfinite(square) & (square > 0)])
    if not apart.size:
        raise InputError("all keys are equal: every bandwidth fits alike")
    low, high = math.log10(apart.min() / 10.0), math.log10(10.0 * apart.max())
    grid = np.linspace(low, high, 1 + math.ceil(40 * (high - low)))

    def loss(exponent: float) -> float:
        return _loss_and_slope(square, targets, 10.0**-exponent)[0]

    losses = np.array([loss(x) for x in grid])
    around = np.concatenate([[np.inf], losses, [np.inf]])
    dips = np.flatnonzero((losses < around[:-2]) & (losses <= around[2:])).tolist()
    found = [(losses[i], grid[i]) for i in dips]
    for i in dips:
        bounds = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
        fit = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9})
        found.append((fit.fun, fit.x))
    return float(10.0 ** min(found)[1])


def descend(
    keys: Array, values: Array, w: float = 1.0, rate: float = 0.5, epochs: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Return the way down the gradient of the leave-one-out error, in w = 1 / bandwidth.

    Parameters
    ----------
    keys, values : array (pair, key), (pair, value)
        At least two pairs.
    w : float
        Where to start.
    rate : float
        Step size on w.
    epochs : int
        Number of steps.

    Returns
    -------
    w : array (epochs + 1,)
        From the start on.
    loss : array (epochs,)
        The error before each step.
    """
    square, targets = _pairs(keys, values)
    path, losses = [float(w)], []
    for _ in range(epochs):
        loss, slope = _loss_and_slope(square, targets, path[-1])
        losses.append(loss)
        path.append(path[-1] - rate * slope)
    return np.array(path), np.array(losses)


def _pairs(keys: Array, values: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return squared distances between keys, a key's own infinite, and the values as columns."""
    from scipy.spatial.distance import cdist

    x, y = (np.asarray(a, dtype=np.float64).reshape(len(a), -1) for a in (keys, values))
    if len(x) != len(y) or len(x) < 2:
        raise InputError(f"{len(x)} keys and {len(y)} values must be as many, and at least 2")
    square = cdist(x, x, "sqeuclidean")
    np.fill_diagonal(square, np.inf)
    return square, y


def _loss_and_slope(square: np.ndarray, values: np.ndarray, w: float) -> tuple[float, float]:
    """Return the leave-one-out error at w = 1 / bandwidth and its derivative in w."""
    p = ops.kernel_weights(square, 1.0 / w)
    far = p * np.where(np.isinf(square), 0.0, square)
    fit = p @ values
    error = fit - values
    # d p_ij / dw = w p_ij (sum_l p_il |k_i - k_l|^2 - |k_i - k_j|^2)
    change = w * (far.sum(axis=1, keepdims=True) * fit - far @ values)
    loss = np.mean(np.sum(error * error, axis=1))
    return float(loss), float(np.mean(2.0 * np.sum(error * change, axis=1)))

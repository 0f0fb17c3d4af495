"""Never a bare mean: estimates with their intervals.

The trials of a run are independent, the steps and queries of a trial are not: an interval is over
trials.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import InputError, between, whole

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number, or an array of them, with what is known of its accuracy.

    Parameters
    ----------
    value, low, high, se : float, array or DataArray
        Estimate, the ends of its interval, its standard error.
    n : int
        Independent observations.
    level : float
        Probability with which such intervals cover the truth.

    Examples
    --------
    >>> print(Estimate(0.3819, 0.3796, 0.3842, 0.0012, 2000))
    0.3819 [0.3796, 0.3842] (95 %, n = 2000)
    """

    value: Any
    low: Any
    high: Any
    se: Any
    n: int
    level: float = LEVEL

    def __str__(self) -> str:
        if np.ndim(self.value):
            return f"estimates of shape {np.shape(self.value)} ({self.level:.0%}, n = {self.n})"
        value, low, high = (f"{float(x):.4g}" for x in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}] ({100 * self.level:g} %, n = {self.n})"

    def agrees(self, number: Any, errors: float = 3.0) -> Any:
        """Return whether the value is within so many standard errors of a number.

        False where the standard error is not known: one trial agrees with nothing.
        """
        return abs(self.value - number) <= errors * self.se

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        parts = {k: np.asarray(getattr(self, k)).tolist() for k in ("value", "low", "high", "se")}
        return {**parts, "n": self.n, "level": self.level}


def estimate(x: Any, /, over: str | int = "trial", level: float = LEVEL) -> Estimate:
    """Return the mean over trials, its standard error and its interval by Student's t.

    Parameters
    ----------
    x : array (trial, ...), or DataArray with dim trial
        One observation per trial; where one is NaN or infinite so is the mean, for the mean over
        the trials that survived is another quantity.
    over : str or int
        The dim, or the axis of an array, that is averaged over.
    level : float
        Of the interval.

    Returns
    -------
    Estimate
        Shaped like x without this dim; of one trial, se and interval are NaN.

    Examples
    --------
    >>> print(estimate(np.array([1.0, 2.0, 3.0])))
    2 [-0.4841, 4.484] (95 %, n = 3)
    """
    from scipy.special import stdtrit

    between("level", level, 0, 1, "()")
    named = hasattr(x, "dims")
    where: dict[str, Any] = {"dim": over} if named else {"axis": 0 if over == "trial" else over}
    n = int(x.sizes[over] if named else np.shape(x)[where["axis"]])
    x = x if named else np.asarray(x)
    keep = {"skipna": False} if named else {}
    with np.errstate(invalid="ignore", over="ignore"):
        value = x.mean(**where, **keep)
        if n < 2:
            return Estimate(value, value * np.nan, value * np.nan, value * np.nan, n, level)
        se = x.std(**where, **keep, ddof=1) / np.sqrt(n)
        half = float(stdtrit(n - 1, (1 + level) / 2)) * se
        return Estimate(value, value - half, value + half, se, n, level)


def paired(a: Any, b: Any, /, over: str | int = "trial", level: float = LEVEL) -> Estimate:
    """Return the mean of a - b over trials that both saw: the same streams, two solvers.

    What the trials have in common cancels, so this is far sharper than two means beside each other.

    Parameters
    ----------
    a, b : array (trial, ...), or DataArray with dim trial
        One observation per trial each.
    over : str or int
        The dim, or the axis of an array, that is averaged over.
    level : float
        Of the interval.

    Returns
    -------
    Estimate
        Of the difference, by Student's t.

    Raises
    ------
    InputError
        If a and b do not have the same trials.

    Examples
    --------
    >>> print(paired(np.array([3.0, 5.0, 8.0]), np.array([2.0, 4.0, 6.5])))
    1.167 [0.4496, 1.884] (95 %, n = 3)
    """
    if hasattr(a, "dims") and hasattr(b, "dims"):
        same = a.sizes.get(over) == b.sizes.get(over)
    else:
        axis = 0 if over == "trial" else int(over)
        same = np.shape(a)[axis] == np.shape(b)[axis]
    if not same:
        raise InputError("paired observations are of the same trials: their numbers differ")
    return estimate(a - b, over, level)


def wilson(hits: Any, n: Any, /, level: float = LEVEL) -> Estimate:
    """Return a proportion and its Wilson interval, for independent yes-or-no observations.

    Queries of one trial are not independent; where each trial has many, take `estimate` of their
    shares instead.

    Parameters
    ----------
    hits : int or array of int
        How often it was yes.
    n : int or array of int
        Of how many.
    level : float
        Of the interval.

    Returns
    -------
    Estimate
        se is that of the proportion, sqrt(p (1 - p)/n); where n is 0 all is NaN, and its `n` the
        total.

    Examples
    --------
    >>> print(wilson(371, 400))
    0.9275 [0.8978, 0.949] (95 %, n = 400)
    """
    from scipy.special import ndtri

    hits, n = np.asarray(hits, dtype=float), np.asarray(n, dtype=float)
    between("level", level, 0, 1, "()")
    between("hits", hits, 0, np.inf)
    if (hits > n).any():
        raise InputError("hits: no more than n may be yes")
    z = ndtri((1 + level) / 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        p = hits / n
        middle = (hits + z * z / 2) / (n + z * z)
        half = z / (n + z * z) * np.sqrt(n * p * (1 - p) + z * z / 4)
        # The ends are exact where nothing, or everything, was hit.
        low = np.where(hits == 0, 0 * p, middle - half)
        high = np.where(hits == n, p, middle + half)
        se = np.sqrt(p * (1 - p) / n)
    return Estimate(p[()], low[()], high[()], se[()], int(n.sum()), level)


def bootstrap(
    x: Any,
    /,
    statistic: Callable[..., Any] = np.mean,
    over: str | int = "trial",
    level: float = LEVEL,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return a statistic of the trials and its BCa bootstrap interval (Efron 1987, by scipy).

    For what has no textbook interval: medians, quantiles, ratios.

    Parameters
    ----------
    x : array (trial, ...), or DataArray with dim trial
        One observation per trial.
    statistic : callable
        Takes an array and `axis`, such as np.median.
    over : str or int
        The dim, or the axis of an array, that is resampled.
    level : float
        Of the interval.
    resamples : int
        Number of resamples.
    seed : int
        Of the resampling.

    Returns
    -------
    Estimate
        Of arrays, shaped like x without this dim. Where resamples do not vary, an interval of
        length 0.

    Examples
    --------
    >>> e = bootstrap(np.arange(101.0), np.median)
    >>> bool(35 < e.low < e.value == 50 < e.high < 65)
    True
    """
    from scipy import stats

    between("level", level, 0, 1, "()")
    whole("resamples", resamples)
    if hasattr(x, "dims"):
        made = bootstrap(x.transpose(over, ...).values, statistic, 0, level, resamples, seed)
        like = x.isel({over: 0}, drop=True)
        value, low, high, se = (
            like.copy(data=np.asarray(y)) for y in (made.value, made.low, made.high, made.se)
        )
        return Estimate(value, low, high, se, made.n, level)
    x = np.moveaxis(np.asarray(x, dtype=float), 0 if over == "trial" else int(over), 0)
    whole("trials to resample", len(x), 2)
    value = np.asarray(statistic(x, axis=0))
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # constants: seen to below
        done = stats.bootstrap(
            (x,), statistic, axis=0, confidence_level=level, n_resamples=resamples, method="BCa",
            vectorized=True, rng=np.random.default_rng(seed),
        )  # fmt: skip
    flat = np.asarray(done.standard_error) == 0
    low = np.where(flat, value, done.confidence_interval.low)
    high = np.where(flat, value, done.confidence_interval.high)
    return Estimate(value[()], low[()], high[()], done.standard_error, len(x), level)


def chance(entries: int, asked: int, level: float = LEVEL) -> Estimate:
    """Return the recall of blind guesses, and the range that it would have by luck.

    Parameters
    ----------
    entries : int
        Values that an answer may decode to.
    asked : int
        Independent queries.
    level : float
        Probability that the share of hits lies in the range.

    Returns
    -------
    Estimate
        Of value 1/entries; low and high are quantiles of the binomial law.

    Examples
    --------
    >>> print(chance(8, 400))
    0.125 [0.0925, 0.1575] (95 %, n = 400)
    """
    from scipy.stats import binom

    whole("entries", entries)
    whole("asked", asked)
    p = 1 / entries
    low, high = binom(asked, p).interval(level)
    return Estimate(p, low / asked, high / asked, np.sqrt(p * (1 - p) / asked), asked, level)

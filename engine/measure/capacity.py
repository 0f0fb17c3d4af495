"""What a memory can still recall: decoding, intrusion, signal and interference, load."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.measure.decoding import decode, intruded, rank, recalled
from engine.measure.lift import lift
from engine.measure.statistics import LEVEL, Estimate

__all__ = [
    "answer", "by_age", "cosine", "crossing", "decode", "interference", "intruded", "rank",
    "recalled", "signal", "value_error",
]  # fmt: skip


def answer(S: Any, keys: Any, /) -> Any:
    """Return S^T k, what a linear memory answers to each key.

    Parameters
    ----------
    S : array (..., key, value), or DataArray with dims key and value
        Its state, of one step or of many.
    keys : array (..., query, key), or DataArray with dims query and key
        What is asked.

    Returns
    -------
    array (..., query, value), or DataArray with these dims
    """
    dims = [["key", "value"], ["query", "key"]]
    return lift(lambda s, k: k @ s, dims, S, keys, out=["query", "value"])


def value_error(read: Any, values: Any, /) -> Any:
    """Return |read - v|, the distance of an answer to the exact value.

    Parameters
    ----------
    read, values : array (..., value), or DataArray with dim value
        What a memory answered, and what is right.

    Returns
    -------
    array (...), or DataArray without this dim
    """
    return lift(lambda a, b: np.sqrt(np.sum((a - b) ** 2, axis=-1)), [["value"]] * 2, read, values)


def cosine(read: Any, values: Any, /) -> Any:
    """Return the cosine of an answer with the exact value; 0 where one of them is 0.

    Parameters
    ----------
    read, values : array (..., value), or DataArray with dim value
        What a memory answered, and what is right.

    Returns
    -------
    array (...), or DataArray without this dim
    """

    def angle(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        size = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        return np.asarray(np.sum(a * b, axis=-1) / np.where(size == 0, 1.0, size))

    return lift(angle, [["value"]] * 2, read, values)


def signal(read: Any, values: Any, /) -> Any:
    """Return read.v/|v|^2, the weight of a pair's own value in what is answered to its key.

    Parameters
    ----------
    read, values : array (..., value), or DataArray with dim value
        What a memory answered to each stored key, and the value stored under it.

    Returns
    -------
    array (...), or DataArray without this dim
        Its mean over values that are independent of one another is the exact weight; for one pair
        it holds the others' share along v too. NaN where v is 0.

    Notes
    -----
    A memory that is linear in its values gives the exact weights too, to values that are unit
    vectors: entry j of its answer to key i is the weight of value j.

    Examples
    --------
    >>> import engine
    >>> ds = engine.simulate("retnet", np.eye(3), np.eye(3), gamma=0.5, record="final")
    >>> np.diag(answer(ds.S.values, np.eye(3))).tolist()  # gamma^age
    [0.25, 0.5, 1.0]
    """

    def weight(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        square = np.sum(b * b, axis=-1)
        return np.asarray(np.sum(a * b, axis=-1) / np.where(square == 0, np.nan, square))

    return lift(weight, [["value"]] * 2, read, values)


def interference(read: Any, values: Any, weight: Any = None, /) -> Any:
    """Return |read - w v|, what the other pairs add to the answer.

    Parameters
    ----------
    read, values : array (..., value), or DataArray with dim value
        What a memory answered to each stored key, and the value stored under it.
    weight : array (...), or DataArray, optional
        w, the weight of the pair's own value where it is known (gamma^age, see `signal`); default:
        `signal`, which leaves the part across v.

    Returns
    -------
    array (...), or DataArray without this dim
    """
    w = signal(read, values) if weight is None else weight
    return lift(
        lambda a, b, c: np.sqrt(np.sum((a - c[..., None] * b) ** 2, axis=-1)),
        [["value"], ["value"], []], read, values, w,
    )  # fmt: skip


def by_age(x: Any, age: Any, edges: Any, /) -> Any:
    """Return the mean of a measure over the queries of each range of ages.

    Parameters
    ----------
    x : array (..., query), or DataArray with dim query
        Recall, error, signal, ...; NaN where nothing was asked.
    age : array of int (..., query), or DataArray with dim query
        Writes since each key's own.
    edges : sequence of int
        Bin i holds ages from edges[i] up to, not including, edges[i + 1].

    Returns
    -------
    array (..., age), or DataArray with dim age
        NaN where a bin holds nothing. Each trial has its own: `statistics.estimate` makes an
        interval of them.

    Examples
    --------
    >>> by_age(np.array([1.0, 0.0, 1.0]), np.array([0, 1, 5]), [0, 2, 10]).tolist()
    [0.5, 1.0]
    """
    edges = np.asarray(edges)

    def means(a: np.ndarray, ages: np.ndarray) -> np.ndarray:
        a, ages = np.broadcast_arrays(a, ages)
        out = np.full((*a.shape[:-1], len(edges) - 1), np.nan)
        for i, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            mine = (ages >= low) & (ages < high) & ~np.isnan(a)
            count = mine.sum(-1)
            total = np.where(mine, a, 0.0).sum(-1)
            out[..., i] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        return out

    dims, sizes = [["query"]] * 2, {"age": len(edges) - 1}
    return lift(means, dims, x, age, out=["age"], sizes=sizes)


def crossing(
    loads: Any, recall: Any, /, threshold: float = 0.5, level: float = LEVEL,
    resamples: int = 2000, seed: int = 0, shared: bool = False,
) -> Estimate:  # fmt: skip
    """Return the load at which mean recall falls below a threshold, with a bootstrap interval.

    Parameters
    ----------
    loads : array (load,)
        N/d, or N, increasing and above 0.
    recall : array (load, trial), or DataArray with dims load and trial
        Share recalled by each trial at each load.
    threshold : float
        What recall falls below.
    level : float
        Of the interval.
    resamples : int
        Number of resamples.
    seed : int
        Of the resampling.
    shared : bool
        Whether the trials are the same at every load (prefixes of one stream): they are then
        resampled together, else for each load apart.

    Returns
    -------
    Estimate
        By linear interpolation in log load at the first fall. 0 where the first load is below
        already, inf where no load is.

    Examples
    --------
    >>> print(crossing([1, 2, 4], np.array([[1.0, 1.0], [0.75, 0.75], [0.25, 0.25]])))
    2.828 [2.828, 2.828] (95 %, n = 2)
    """
    from scipy.stats import bootstrap

    shares = recall.transpose("load", "trial").values if hasattr(recall, "dims") else recall
    shares, x = np.asarray(shares, dtype=float), np.log(np.asarray(loads, dtype=float))

    def place(*rows: np.ndarray, axis: int = -1) -> np.ndarray:
        means = np.stack([row.mean(axis=axis) for row in rows], axis=-1)
        below = means < threshold
        i = np.argmax(below, axis=-1)
        before = np.maximum(i - 1, 0)
        a = np.take_along_axis(means, before[..., None], -1)[..., 0]
        b = np.take_along_axis(means, i[..., None], -1)[..., 0]
        part = (a - threshold) / np.where(i > 0, a - b, 1.0)
        at = np.exp(x[before] + part * (x[i] - x[before]))
        return np.where(below.any(-1), np.where(i == 0, 0.0, at), np.inf)

    value = float(place(*shares))
    n = shares.shape[1]
    if n < 2:
        return Estimate(value, np.nan, np.nan, np.nan, n, level)
    with np.errstate(invalid="ignore"):  # the spread of crossings that are not all reached
        drawn = bootstrap(
            tuple(shares), place, paired=shared, vectorized=True, n_resamples=resamples,
            method="percentile", confidence_level=level, rng=np.random.default_rng(seed),
        ).bootstrap_distribution  # fmt: skip
        # Quantiles that are drawn values: between a number and inf there is no other.
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
        se = float(np.std(drawn, ddof=1))
    return Estimate(value, float(low), float(high), se, n, level)

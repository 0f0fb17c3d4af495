"""Laws of tracking: the steady error of an adaptive filter whose target moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.errors import between

Gain = Callable[[Any], Any]
"""Step size of an adaptive filter as a function of |k|^2."""


def lms_gain(beta: float) -> Gain:
    """Return Delta(|k|^2) = beta, the step size of the delta rule and LMS.

    Parameters
    ----------
    beta : float
        Write strength.

    Returns
    -------
    callable
        What `free_walk_error` and `sphere_walk_error` take.
    """
    return lambda k2: beta + 0 * k2


def implicit_gain(beta: float) -> Gain:
    """Return Delta(|k|^2) = beta/(1 + beta |k|^2), the step size of the implicit rule (Longhorn).

    Parameters
    ----------
    beta : float
        Write strength.

    Returns
    -------
    callable
        What `free_walk_error` and `sphere_walk_error` take.
    """
    return lambda k2: beta / (1 + beta * k2)


def moments(gain: Gain, d: int) -> tuple[float, float, float]:
    """Return the moments of a step size that decide its tracking, for keys N(0, I/d).

    Parameters
    ----------
    gain : callable
        Delta as a function of k2 = |k|^2.
    d : int
        Length of a key.

    Returns
    -------
    m1, m2, n0 : float
        E[Delta k2]/d, E[Delta^2 k2^2]/d and E[Delta^2 k2], by quadrature.
    """
    from scipy import integrate

    log_scale = math.lgamma(d / 2) + d / 2 * math.log(2)

    def density(x: float) -> float:  # of chi2, some fifty times as fast as scipy.stats
        return math.exp((d / 2 - 1) * math.log(x) - x / 2 - log_scale)

    def mean(f: Gain) -> float:
        # chi2 has mass below 1e-30 beyond 200 + 10 d; breakpoints keep the peak in sight.
        return float(integrate.quad(
            lambda x: f(x / d) * density(x), 0, 200 + 10 * d, epsabs=1e-12, limit=200,
            points=[d],
        )[0])  # fmt: skip

    return (
        mean(lambda k2: gain(k2) * k2) / d,
        mean(lambda k2: (gain(k2) * k2) ** 2) / d,
        mean(lambda k2: gain(k2) ** 2 * k2),
    )


def free_walk_error(gain: Gain, d: int, walk: float, noise: float) -> float:
    """Return the steady E|s - w|^2 = [Q (1 - kappa) + s^2 n0]/kappa, kappa = 2 m1 - m2.

    For s <- s + Delta k (v - s.k), v = w.k + noise, w a random walk without bound; keys N(0, I/d).

    Parameters
    ----------
    gain : callable
        Delta as a function of |k|^2, such as `implicit_gain(1.0)`.
    d : int
        Length of a key.
    walk : float
        Q = E|w_t - w_(t-1)|^2.
    noise : float
        Standard deviation s of the noise on a value.

    Returns
    -------
    float
        Per value channel: channels are independent. inf where the filter does not contract.

    Examples
    --------
    >>> round(free_walk_error(implicit_gain(1.0), 8, 0.01, 0.1), 4)
    0.1301
    """
    m1, m2, n0 = moments(gain, d)
    kappa = 2 * m1 - m2
    return (walk * (1 - kappa) + noise**2 * n0) / kappa if kappa > 0 else np.inf


def sphere_correlation(d: int, step: float) -> float:
    """Return rho with E[w_t | w_(t-1)] = rho w_(t-1) for a walk on the unit sphere.

    w_t = x/|x|, x = w_(t-1) + step N(0, I): the walk of the generator `drifting`.

    Parameters
    ----------
    d : int
        Length of w.
    step : float
        Standard deviation of each entry of an increment.

    Returns
    -------
    float
        By quadrature.

    Examples
    --------
    >>> round(sphere_correlation(8, 0.03), 8)
    0.99686061
    """
    from scipy.special import ndtr, roots_genlaguerre, roots_hermitenorm

    if d == 1:
        return float(2 * ndtr(1 / step) - 1)
    along, p = roots_hermitenorm(64)
    across, q = roots_genlaguerre(64, (d - 3) / 2)  # of half a chi2 of d - 1: the rest of |g|^2
    x = (1 + step * along)[:, None]
    cosine = x / np.sqrt(x * x + 2 * step**2 * across)
    return float(p @ cosine @ q / (p.sum() * q.sum()))


def sphere_walk_error(gain: Gain, d: int, rho: float, noise: float) -> float:
    """Return the steady E|s - w|^2 = 1 - 2X + Y for a target that walks on the unit sphere.

    For s <- s + Delta k (v - s.k), v = w.k + noise, E[w_t | w_(t-1)] = rho w_(t-1); keys N(0, I/d).
    X = E[s.w] = m1/(1 - rho (1 - m1)), Y = E|s|^2 =
    [2 m1 rho X + m2 (1 - 2 rho X) + s^2 n0]/(2 m1 - m2). The mean of |s - w| is a little less
    than the root of this (.962 of it at d = 8, step .03, noise .1).

    Parameters
    ----------
    gain : callable
        Delta as a function of |k|^2, such as `implicit_gain(1.0)`.
    d : int
        Length of a key.
    rho : float
        What `sphere_correlation` gives.
    noise : float
        Standard deviation s of the noise on a value.

    Returns
    -------
    float
        Per value channel: channels are independent. inf where the filter does not contract.

    Examples
    --------
    >>> round(sphere_walk_error(implicit_gain(1.0), 8, 0.99686061, 0.1), 6)
    0.08845
    """
    m1, m2, n0 = moments(gain, d)
    if 2 * m1 - m2 <= 0:
        return np.inf
    X = m1 / (1 - rho * (1 - m1))
    Y = (2 * m1 * rho * X + m2 * (1 - 2 * rho * X) + noise**2 * n0) / (2 * m1 - m2)
    return float(1 - 2 * X + Y)


def sphere_walk_errors(
    gain: Gain, d: int, rho: float, noise: float, steps: int,
    start: tuple[float, float] = (0.0, 0.0),
) -> np.ndarray:  # fmt: skip
    """Return E|s_t - w_t|^2 = 1 - 2 X_t + Y_t after every write, on the way to the steady state.

    The filter and the walk of `sphere_walk_error`: X_t = (1 - m1) rho X_(t-1) + m1 and
    Y_t = (1 - 2 m1 + m2) Y_(t-1) + 2 (m1 - m2) rho X_(t-1) + m2 + s^2 n0.

    Parameters
    ----------
    gain : callable
        Delta as a function of |k|^2, such as `implicit_gain(1.0)`.
    d : int
        Length of a key.
    rho : float
        What `sphere_correlation` gives; 1 for a target at rest.
    noise : float
        Standard deviation s of the noise on a value.
    steps : int
        Writes.
    start : (float, float)
        X and Y before the first write: (0, 0) is an empty memory, (0, Y) one whose target has just
        been replaced by another.

    Returns
    -------
    array (step,)
        Per value channel.

    Examples
    --------
    >>> sphere_walk_errors(implicit_gain(1.0), 8, 0.99686061, 0.1, 300)[[0, 299]].round(6).tolist()
    [0.914244, 0.08845]
    """
    m1, m2, n0 = moments(gain, d)
    error, (X, Y) = np.empty(steps), start
    for t in range(steps):
        Y = (1 - 2 * m1 + m2) * Y + 2 * (m1 - m2) * rho * X + m2 + noise**2 * n0
        X = (1 - m1) * rho * X + m1
        error[t] = 1 - 2 * X + Y
    return error


def mean_map_error(rho: float, steps: Any) -> Any:
    """Return E|mean of w_1 .. w_t - w_t|^2 of a walk on the unit sphere: where uniform weights end.

    With c = E[mean.w_t] = (1 - rho^t)/(t (1 - rho)) it is 1 - 2c + E|mean|^2, and
    E|mean|^2 = [1 + rho - 2 rho c]/(t (1 - rho)). Least squares over all pairs comes to it, up to
    the order of d/t and its noise, d^2 s^2/t. It rises to 1, the error of knowing nothing.

    Parameters
    ----------
    rho : float
        E[w_t.w_(t-1)], below 1, as `sphere_correlation` gives.
    steps : int or array of int
        t, at least 1.

    Returns
    -------
    float or array
        Per value channel.

    Examples
    --------
    >>> mean_map_error(0.99686061, np.array([1, 100, 2000, 10**6])).round(3).tolist()
    [0.0, 0.184, 0.95, 1.0]
    """
    between("rho", rho, 0, 1, "[)")
    between("steps", steps, 1, np.inf)
    t = np.asarray(steps, dtype=float)
    c = (1 - rho**t) / (t * (1 - rho))
    return 1 - 2 * c + (1 + rho - 2 * rho * c) / (t * (1 - rho))


def decayed_fit_error(gamma: float, d: int, walk: float, noise: float) -> tuple[float, float]:
    """Return noise and lag of decayed least squares, in the limit of a long memory.

    Asymptotic in d (1 - g) -> 0, for keys N(0, I/d): at g = .95, d = 8 they are 7 % and 36 % off.

    Parameters
    ----------
    gamma : float
        Decay g, below 1.
    d : int
        Length of a key.
    walk : float
        Q = E|w_t - w_(t-1)|^2 of a free walk.
    noise : float
        Standard deviation s of the noise on a value.

    Returns
    -------
    noise, lag : float
        d^2 s^2 (1 - g)/(1 + g) and Q g^2/(1 - g^2): their sum is E|s - w|^2.

    Examples
    --------
    >>> [round(x, 6) for x in decayed_fit_error(0.99, 2, 0.001, 0.1)]
    [0.000201, 0.049251]
    """
    between("gamma", gamma, 0, 1, "[)")
    return (
        d * d * noise**2 * (1 - gamma) / (1 + gamma),
        walk * gamma**2 / (1 - gamma**2),
    )


def memory_length(gamma: Any) -> tuple[Any, Any]:
    """Return how many pairs an exponential memory holds, in two senses.

    Parameters
    ----------
    gamma : float or array
        Decay g, below 1.

    Returns
    -------
    weight, variance : float or array
        1/(1 - g), the sum of its weights, and (1 + g)/(1 - g), the pairs of equal weight whose
        mean varies as much.

    Examples
    --------
    >>> [round(x, 9) for x in memory_length(0.95)]
    [20.0, 39.0]
    """
    between("gamma", gamma, 0, 1, "[)")
    return 1 / (1 - gamma), (1 + gamma) / (1 - gamma)

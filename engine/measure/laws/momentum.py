"""Laws of adaptive filters with momentum: when they hold on, and how well they track.

U <- eta U + Delta k (v - s.k), s <- s + U, v = w.k + noise, keys N(0, I/d). The second moments of
s, U and w close under a step, because E[Delta k k^T] = m1 I and E[Delta^2 |k|^2 k k^T] = m2 I; so
the laws are exact.
"""

from __future__ import annotations

import numpy as np

from engine.errors import between
from engine.measure.laws.tracking import Gain, implicit_gain, moments


def momentum_growth(gain: Gain, d: int, eta: float) -> float:
    """Return the factor per step of E|s - w|^2 in the long run, for a target that stands still.

    Parameters
    ----------
    gain : callable
        Delta as a function of |k|^2, such as `implicit_gain(1.0)`.
    d : int
        Length of a key.
    eta : float
        Momentum, in [0, 1].

    Returns
    -------
    float
        Above 1: the mean square diverges, iff m2 (1 + eta) > 2 m1 (1 - eta^2 + eta m1). A single
        run need not: almost every one grows by less than the root of this.

    Examples
    --------
    >>> round(momentum_growth(implicit_gain(1.0), 8, 0.9), 4)
    1.1102
    """
    between("eta", eta, 0, 1)
    m1, m2, _ = moments(gain, d)
    return float(np.abs(np.linalg.eigvals(_step(m1, m2, eta))).max())


def momentum_limit(gain: Gain, d: int) -> float:
    """Return the momentum below which a step size is stable in mean square.

    Parameters
    ----------
    gain : callable
        Delta as a function of |k|^2, such as `implicit_gain(1.0)`.
    d : int
        Length of a key.

    Returns
    -------
    float
        The root of 2 m1 (1 - eta^2 + eta m1) = m2 (1 + eta); below 0 where 2 m1 < m2, for then no
        momentum is.

    Examples
    --------
    >>> round(momentum_limit(implicit_gain(1.0), 8), 4)
    0.7742
    """
    m1, m2, _ = moments(gain, d)
    half = (m2 - 2 * m1**2) / (4 * m1)
    return float(np.sqrt(half**2 + 1 - m2 / (2 * m1)) - half)


def momentum_bound(eta: float, d: int) -> float:
    """Return the largest beta of an implicit step with momentum that is stable in mean square.

    Without momentum the implicit step, Delta = beta/(1 + beta |k|^2), is stable at every beta.

    Parameters
    ----------
    eta : float
        Momentum, in [0, 1].
    d : int
        Length of a key.

    Returns
    -------
    float
        inf where every beta is stable: up to eta = .544 at d = 8.

    Examples
    --------
    >>> [round(momentum_bound(eta, 8), 3) for eta in (0.5, 0.8, 0.9)]
    [inf, 0.775, 0.251]
    """
    from scipy.optimize import brentq

    def room(log: float) -> float:
        return momentum_limit(implicit_gain(np.exp(log)), d) - eta

    if 2 * (1 - eta**2 + eta / d) >= 1 + eta:  # beta = inf, where Delta |k|^2 = 1
        return np.inf
    if eta == 1:
        return 0.0
    low = high = np.log(1 - eta)
    while room(low) < 0:
        low -= 2.0
    while room(high) > 0:
        high += 2.0
    return float(np.exp(brentq(room, low, high, xtol=1e-11)))


def momentum_error(gain: Gain, d: int, eta: float, turn: complex, noise: float) -> float:
    """Return the steady E|s - w|^2 for a target that walks or turns on the unit sphere.

    Parameters
    ----------
    gain : callable
        Delta as a function of |k|^2, such as `implicit_gain(1.0)`.
    d : int
        Length of a key.
    eta : float
        Momentum, in [0, 1].
    turn : complex
        What a step makes of w: rho of a walk, E[w_t | w_(t-1)] = rho w_(t-1), as
        `sphere_correlation` gives it; exp(1j angle) of a rotation in a plane.
    noise : float
        Standard deviation of the noise on a value.

    Returns
    -------
    float
        Per value channel: channels are independent. inf where the mean square diverges.

    Examples
    --------
    >>> round(momentum_error(implicit_gain(1.0), 8, 0.0, 0.99686061, 0.1), 6)
    0.08845
    >>> round(momentum_error(implicit_gain(0.1), 8, 0.9, np.exp(0.02j), 0.1), 4)
    0.1285
    """
    m1, m2, n0 = moments(gain, d)
    if np.abs(np.linalg.eigvals(_step(m1, m2, eta))).max() >= 1:
        return np.inf
    # Of s.w and U.w; a plane's second axis is the imaginary part, and w moves before the write.
    mean = np.array([[1 - m1, eta], [-m1, eta]]) * np.conj(turn)
    sw, uw = np.linalg.solve(np.eye(2) - mean, np.array([m1, m1], dtype=complex))
    x, y = (np.conj(turn) * sw).real, (np.conj(turn) * uw).real
    # Of |s|^2, s.U and |U|^2: as for s - w with w at rest, and what w and the noise put in.
    cross = m1 * x
    square = m2 * (1 - 2 * x) + 2 * eta * m1 * y + noise**2 * n0
    put = np.array([2 * cross + square, cross + square, square])
    energy = np.linalg.solve(np.eye(3) - _step(m1, m2, eta), put)[0]
    return float(1 - 2 * sw.real + energy)


def _step(m1: float, m2: float, eta: float) -> np.ndarray:
    """Return what a step makes of E|e|^2, E[e.U] and E|U|^2, e = s - w with w at rest."""
    square = np.array([m2, -2 * eta * m1, eta**2])  # |U'|^2, U' = eta U - Delta k k^T e
    cross = np.array([-m1, eta, 0.0])  # e.U'
    return np.stack([np.array([1.0, 0.0, 0.0]) + 2 * cross + square, cross + square, square])

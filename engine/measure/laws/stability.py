"""The law of stability of delta rules with momentum."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import between, whole


def titans_bound(eta: float, alpha: float, gap: Any = None) -> Any:
    """Return the 2 theta |k|^2 below which a key revisited every `gap` steps is stable.

    Titans with a linear memory, U <- eta U + 2 theta k (v - S^T k)^T, S <- r S + U, r = 1 - alpha;
    in between nothing is written along the key. Stable iff 2 theta |k|^2 (r^n - eta^n)/(r - eta) <
    (1 + r^n)(1 + eta^n), the fraction n r^(n-1) at r = eta. Momentum rules with r = 1 are the case
    alpha = 0; the delta rule that of eta = alpha = 0, where the bound is 2.

    Parameters
    ----------
    eta : float
        Momentum, in [0, 1].
    alpha : float
        Weight decay, in [0, 1].
    gap : int or array of int, optional
        n, at least 1; default: the bound that is safe at every gap.

    Returns
    -------
    float or array
        The bound, inf where nothing is left of a write at the next.

    Examples
    --------
    >>> round(float(titans_bound(0.9, 0.1)), 4)
    0.4238
    >>> float(titans_bound(0.9, 0.1, [4, 33]).max()) < 1.0  # unstable at theta = .5
    True
    >>> round(float(titans_bound(0.9, 0.0)), 12)  # 2 (1 - eta)
    0.2
    """
    between("eta", eta, 0, 1)
    between("alpha", alpha, 0, 1)
    high, low = max(1.0 - alpha, eta), min(1.0 - alpha, eta)
    if gap is None:
        if high == 1.0:  # falls with n, to this limit
            return 2 * (1 - low)
        # A write is all but gone after as many steps as high^n takes to be nothing.
        last = int(np.ceil(np.log(1e-6) / np.log(high))) if high > 0 else 1
        return float(titans_bound(eta, alpha, np.arange(1, max(last, 2) + 1)).min())
    between("gap", gap, 1, np.inf)
    n = np.asarray(gap, dtype=float)
    # (r^n - eta^n)/(r - eta) = high^(n-1) (1 - x^n)/(1 - x), x = low/high; exact as x -> 1.
    with np.errstate(divide="ignore", over="ignore"):
        if low == high:
            carried = n * high ** (n - 1)
        elif low == 0:
            carried = high ** (n - 1)
        else:
            log = np.log1p((low - high) / high)
            carried = high ** (n - 1) * np.expm1(n * log) / np.expm1(log)
        bound = (1 + high**n) * (1 + low**n) / carried
    return bound if bound.ndim else float(bound)


def titans_growth(gap: int, theta: float, eta: float, alpha: float, k2: float = 1.0) -> float:
    """Return the factor per revisit by which an error along a key grows in the long run.

    The spectral radius of one write followed by gap - 1 steps of decay and coasting, on (S, U);
    at most 1 where `titans_bound` says stable.

    Parameters
    ----------
    gap : int
        Steps from one visit to the next.
    theta, eta, alpha : float
        Step size, momentum and weight decay of Titans.
    k2 : float
        |k|^2.

    Returns
    -------
    float
        Above 1: the memory diverges.

    Examples
    --------
    >>> round(titans_growth(8, 0.5, 0.9, 0.1), 6)
    2.901578
    """
    whole("gap", gap)
    between("eta", eta, 0, 1)
    between("alpha", alpha, 0, 1)
    r, g = 1 - alpha, 2 * theta * k2
    write = np.array([[r - g, eta], [-g, eta]])
    coast = np.array([[r, eta], [0.0, eta]])
    turn = np.linalg.matrix_power(coast, gap - 1) @ write
    return float(np.abs(np.linalg.eigvals(turn)).max())

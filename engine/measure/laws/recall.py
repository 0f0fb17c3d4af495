"""Laws of recall: the error of a stored pair by its age."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import between, whole


def hebbian_error(pairs: Any, d: int) -> Any:
    """Return E|S^T k - v|^2 = (N - 1)/d of a Hebbian memory, S = sum of k v^T.

    Parameters
    ----------
    pairs : int or array of int
        N, the pairs written.
    d : int
        Length of a key.

    Returns
    -------
    float or array
        The same for every pair, whatever its age.

    Examples
    --------
    >>> hebbian_error(64, 16)
    3.9375
    """
    between("pairs", pairs, 1, np.inf)
    between("d", d, 1, np.inf)
    return (pairs - 1) / d


def decayed_signal(gamma: Any, age: Any) -> Any:
    """Return gamma^age, the weight of a pair's own value in its answer, S <- gamma S + k v^T.

    Parameters
    ----------
    gamma : float or array
        Decay, in [0, 1].
    age : int or array of int
        Writes since the pair's own.

    Returns
    -------
    float or array
        The weight; no expectation is taken.

    Examples
    --------
    >>> decayed_signal(0.5, 3)
    0.125
    """
    between("gamma", gamma, 0, 1)
    between("age", age, 0, np.inf)
    return gamma**age


def decayed_interference(gamma: float, age: Any, pairs: int, d: int) -> Any:
    """Return E|S^T k - gamma^a v|^2 = [(1 - g^2N)/(1 - g^2) - g^2a]/d: what other pairs add.

    Parameters
    ----------
    gamma : float
        Decay g, in [0, 1].
    age : int or array of int
        Writes a since the pair's own.
    pairs : int
        N, the pairs written.
    d : int
        Length of a key.

    Returns
    -------
    float or array
        Of a decayed Hebbian memory, S <- g S + k v^T.

    Examples
    --------
    >>> float(decayed_interference(1.0, 0, 64, 16))
    3.9375
    """
    between("age", age, 0, pairs, "[)")
    between("d", d, 1, np.inf)
    return (decayed_energy(gamma, pairs) - gamma ** (2 * np.asarray(age))) / d


def decayed_energy(gamma: float, pairs: float = np.inf) -> float:
    """Return E|S|^2 = (1 - g^2N)/(1 - g^2) of a decayed Hebbian memory.

    Parameters
    ----------
    gamma : float
        Decay g, in [0, 1].
    pairs : float
        N, the pairs written; inf for the limit.

    Returns
    -------
    float
        Squared Frobenius norm.

    Examples
    --------
    >>> decayed_energy(0.5)
    1.3333333333333333
    """
    between("gamma", gamma, 0, 1)
    between("pairs", pairs, 0, np.inf)
    return float((1 - gamma ** (2 * pairs)) / (1 - gamma**2)) if gamma < 1 else float(pairs)


def delta_error(beta: float, d: int, pairs: int) -> np.ndarray:
    """Return E|S^T k - v|^2 of the delta rule by age, for keys that never return.

    S <- S + b k (v - S^T k)^T. With rho = 1 - (2b - b^2)/d, a pair of age a, the i = N - a-th
    written, has 1 - 2b (1 - b/d)^a + b^2 P_a + b/(2 - b) [(1 - rho^a) + (1 - rho^(i-1))
    (rho^a - (2b - b^2) P_a)], P_0 = 1, P_a+1 = P_a (1 - 2b/d + 2b^2/(d (d+2))) +
    b^2 rho^a/(d (d+2)). Old pairs end at 1 + b/(2 - b).

    Parameters
    ----------
    beta : float
        Write strength b, in (0, 2).
    d : int
        Length of a key.
    pairs : int
        N, the pairs written.

    Returns
    -------
    array (age,)
        The newest pair, of age 0, first.

    Examples
    --------
    >>> delta_error(1.0, 8, 64)[[0, 1, 2, 4, 8, 16, 63]].round(4).tolist()
    [0.0, 0.25, 0.4687, 0.8276, 1.3127, 1.7637, 1.9994]
    """
    between("beta", beta, 0, 2, "()")
    whole("d", d)
    whole("pairs", pairs)
    b, P, error = beta, 1.0, np.empty(pairs)
    rho, c = 1 - (2 * b - b * b) / d, d * (d + 2)
    for a in range(pairs):
        older = (1 - rho ** (pairs - a - 1)) * (rho**a - (2 * b - b * b) * P)
        rest = b / (2 - b) * (1 - rho**a + older)
        error[a] = 1 - 2 * b * (1 - b / d) ** a + b * b * P + rest
        P = P * (1 - 2 * b / d + 2 * b * b / c) + b * b * rho**a / c
    return error


def delta_energy(beta: float, d: int, pairs: Any) -> Any:
    """Return E|S|^2 = d b/(2 - b) (1 - rho^n), rho = 1 - (2b - b^2)/d, of the delta rule.

    Parameters
    ----------
    beta : float
        Write strength b, in (0, 2).
    d : int
        Length of a key.
    pairs : int or array of int
        n, the pairs written.

    Returns
    -------
    float or array
        Squared Frobenius norm.

    Examples
    --------
    >>> delta_energy(1.0, 8, 1)
    1.0
    """
    between("beta", beta, 0, 2, "()")
    between("d", d, 1, np.inf)
    between("pairs", pairs, 0, np.inf)
    rho = 1 - (2 * beta - beta * beta) / d
    return d * beta / (2 - beta) * (1 - rho**pairs)


def delta_best(d: int, pairs: int) -> float:
    """Return the write strength with the least mean error over all pairs after one pass.

    Parameters
    ----------
    d : int
        Length of a key.
    pairs : int
        N, the pairs written.

    Returns
    -------
    float
        The minimiser of the mean of `delta_error` over ages.

    Examples
    --------
    >>> [round(delta_best(8, n), 2) for n in (4, 8, 16, 32, 64)]
    [0.86, 0.66, 0.44, 0.26, 0.14]
    """
    from scipy.optimize import minimize_scalar

    whole("d", d)
    whole("pairs", pairs)

    found = minimize_scalar(
        lambda b: delta_error(b, d, pairs).mean(), bounds=(0, 2), method="bounded"
    )
    return float(found.x)

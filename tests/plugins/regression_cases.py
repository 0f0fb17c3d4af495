"""Random pairs, stored arrays, and the direct solution of a weighted ridge regression."""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent / "data"
EPS = np.finfo(np.float64).eps


def load(name):
    """Return the arrays of a fixture, floats as float64."""
    with np.load(HERE / f"{name}.npz", allow_pickle=False) as file:
        return {n: x.astype(float) if x.dtype.kind == "f" else x for n, x in file.items()}


def pairs(steps=60, key=6, value=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(steps, key)) / np.sqrt(key), rng.normal(size=(steps, value))


def weighted_ridge(keys, values, weights, ridge):
    """Return argmin_S sum_i w_i |S^T k_i - v_i|^2 + ridge |S|^2, and the system's condition."""
    A = (keys * weights[:, None]).T @ keys + ridge * np.eye(keys.shape[1])
    return np.linalg.solve(A, (keys * weights[:, None]).T @ values), np.linalg.cond(A)

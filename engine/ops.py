"""Array operations that solvers are written in: any array library, any leading axes.

A scalar coefficient arrives with one trailing axis of length 1, so `beta * k` broadcasts like a
vector and `scale_rows(gamma, S)` takes a scalar or a per-channel decay alike.
"""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

Array = Any


def outer(a: Array, b: Array) -> Array:
    """Return a b^T: (..., n) and (..., m) to (..., n, m)."""
    return a[..., :, None] * b[..., None, :]


def vecmat(x: Array, matrix: Array) -> Array:
    """Return matrix^T x: (..., n) and (..., n, m) to (..., m). The read of a linear memory."""
    return (x[..., None, :] @ matrix)[..., 0, :]


def matvec(matrix: Array, x: Array) -> Array:
    """Return matrix x: (..., n, m) and (..., m) to (..., n)."""
    return (matrix @ x[..., :, None])[..., 0]


def dot(a: Array, b: Array) -> Array:
    """Return a . b with the axis kept: (..., n) and (..., n) to (..., 1)."""
    # One matrix product per trial: its bits do not depend on how many trials stand beside it.
    return (a[..., None, :] @ b[..., :, None])[..., 0]


def scale_rows(a: Array, matrix: Array) -> Array:
    """Return Diag(a) matrix for a scalar coefficient (..., 1) or one per row (..., n)."""
    return (a[..., None] if hasattr(a, "shape") else a) * matrix


def scale_columns(matrix: Array, a: Array) -> Array:
    """Return matrix Diag(a) for a scalar coefficient (..., 1) or one per column (..., m)."""
    return matrix * (a[..., None, :] if hasattr(a, "shape") else a)


def where(condition: Array, a: Array, b: Array | float) -> Array:
    """Return `a` where the condition holds and `b` elsewhere."""
    return array_namespace(a).where(condition, a, b)


def divide(a: Array, b: Array) -> Array:
    """Return a / b, and 0 where b is 0: an empty memory reads zeros."""
    xp = array_namespace(a, b)
    empty = b == 0
    return xp.where(empty, xp.zeros_like(a), a / xp.where(empty, xp.ones_like(b), b))


def log(x: Array | float) -> Array | float:
    """Return log x, and -inf without a warning where x is 0: a decay of 0 is a full reset."""
    if not hasattr(x, "shape"):
        return math.log(x) if x else -math.inf
    xp = array_namespace(x)
    empty = x == 0
    return xp.where(empty, xp.full_like(x, -xp.inf), xp.log(xp.where(empty, xp.ones_like(x), x)))


def unit(x: Array) -> Array:
    """Return x / |x| along the last axis; zero stays zero, and tiny or huge x stay exact."""
    xp = array_namespace(x)
    x = divide(x, xp.max(xp.abs(x), axis=-1, keepdims=True))
    return divide(x, xp.sqrt(dot(x, x)))


def softmax(scores: Array) -> Array:
    """Return softmax along the last axis, shifted by its maximum so that no exponent overflows.

    A row in which every score is -inf gives zeros, and no scores give no weights: nothing is there
    to attend to.
    """
    if scores.shape[-1] == 0:
        return scores
    xp = array_namespace(scores)
    top = xp.max(scores, axis=-1, keepdims=True)
    weight = xp.exp(scores - xp.where(top == -xp.inf, xp.zeros_like(top), top))
    return divide(weight, xp.sum(weight, axis=-1, keepdims=True))

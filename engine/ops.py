"""Array operations that solvers are written in: any array library, any leading axes.

A scalar coefficient arrives with one trailing axis of length 1, so `beta * k` broadcasts like a
vector and `scale_rows(gamma, S)` takes a scalar or a per-channel decay alike.
"""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace, device, is_numpy_array

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


def add_diagonal(matrix: Array, a: Array | float) -> Array:
    """Return matrix + Diag(a), (..., n, n), for a scalar (..., 1) or one per channel (..., n)."""
    eye = array_namespace(matrix).eye(matrix.shape[-1], dtype=matrix.dtype, device=device(matrix))
    return matrix + scale_rows(a, eye)


def ridge_solve(A: Array, B: Array, ridge: Array | float) -> Array:
    """Return (A + Diag(ridge))^-1 B for A positive semidefinite, (..., n, n) and (..., n, m).

    Where the ridge vanishes beside A, the diagonal is lifted by rounding's own size, eps trace(A):
    a singular matrix has no solution, and one trial's would stop all the others.
    """
    xp = array_namespace(A)
    noise = float(xp.finfo(A.dtype).eps) * xp.linalg.trace(A)[..., None]
    lift = xp.where(noise > ridge, noise, xp.zeros_like(noise))
    return xp.linalg.solve(add_diagonal(A, ridge + lift), B)


def where(condition: Array, a: Array, b: Array | float) -> Array:
    """Return `a` where the condition holds and `b` elsewhere."""
    return array_namespace(a).where(condition, a, b)


def divide(a: Array, b: Array) -> Array:
    """Return a / b, and 0 where b is 0: an empty memory reads zeros."""
    xp = array_namespace(a, b)
    empty = b == 0
    if is_numpy_array(empty) and not empty.any():  # there a look is cheap, and passes are not
        return a / b
    return xp.where(empty, xp.zeros_like(a), a / xp.where(empty, xp.ones_like(b), b))


def channels(numbers: float | tuple[float, ...], like: Array) -> Array | float:
    """Return a hyperparameter that is one number, or one per channel as an array beside `like`."""
    if not isinstance(numbers, tuple):
        return numbers
    return array_namespace(like).asarray(numbers, dtype=like.dtype, device=device(like))


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
    size = xp.sqrt(dot(x, x))
    if is_numpy_array(x) and size.all():
        x /= size  # in place: fresh memory costs more than the division
        return x
    return divide(x, size)


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


def kernel_weights(square: Array, bandwidth: float) -> Array:
    """Return a Gaussian kernel's weights at squared distances, their sum 1 along the last axis."""
    if square.shape[-1] == 0:
        return square
    xp = array_namespace(square)
    # From the nearest on, so that it weighs 1; in two divisions, so that none underflows to 0 / 0.
    further = square - xp.min(square, axis=-1, keepdims=True)
    scores = further / bandwidth / (-2.0 * bandwidth)
    # Where nothing is further, 0 / bandwidth may be 0 / 0; a distance that is NaN stays NaN.
    return softmax(where(further != 0, scores, 0.0))


# erf(x) = x T(x^2) / U(x^2) for |x| < 1; from there to 6, beyond which it rounds to 1,
# 1 - exp(-x^2) P(x) / Q(x): Moshier, Cephes Mathematical Library, ndtr.c. Highest power first.
_T = (
    9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3,
    7.00332514112805075473e3, 5.55923013010394962768e4,
)  # fmt: skip
_U = (
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3,
    2.26290000613890934246e4, 4.92673942608635921086e4,
)  # fmt: skip
_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
    4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2,
    9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2,
)  # fmt: skip
_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
    9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3,
    1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip


def erf(x: Array) -> Array:
    """Return the error function; the array API has none, so SciPy's is used on NumPy arrays only.

    Elsewhere it is evaluated to 1e-15, relative, in float64.
    """
    if is_numpy_array(x):
        from scipy import special

        return special.erf(x)
    xp = array_namespace(x)
    size = xp.abs(x)
    size = where(~(size > 6.0), size, 6.0)  # written so that NaN stays NaN
    square = size * size
    near = size * _polynomial(_T, square) / _polynomial(_U, square)
    far = 1.0 - xp.exp(-square) * _polynomial(_P, size) / _polynomial(_Q, size)
    return xp.sign(x) * xp.where(size < 1.0, near, far)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Return the polynomial in x, highest power first, by Horner's rule."""
    first, *rest = coefficients
    y = first * array_namespace(x).ones_like(x)
    for c in rest:
        y = y * x + c
    return y


def gate(a: Array, b: Array) -> Array:
    """Return exp(-exp(a) softplus(b)), the decay that Mamba-2 and gated delta nets emit, in [0, 1].

    Taken through logarithms: exp(a) overflowing against softplus(b) underflowing is not NaN.
    """
    xp = array_namespace(a, b)
    small = b < -15.0
    # log softplus(b) = b - exp(b)/2 + O(exp(2b)): below -15 the rest is under float64 rounding.
    safe = xp.where(small, xp.zeros_like(b), b)
    softplus = xp.where(safe > 0, safe, xp.zeros_like(b)) + xp.log1p(xp.exp(-xp.abs(safe)))
    power = a + xp.where(small, b - xp.exp(b) / 2, xp.log(softplus))
    # exp(-exp(80)) is 0 in every dtype, and exp(80) overflows in none but float16.
    return xp.exp(-xp.exp(xp.where(power > 80.0, xp.zeros_like(power) + 80.0, power)))

"""Array operations: laws against einsum and SciPy, bits that do not depend on the batch."""

import array_api_strict
import numpy as np
import pytest
import scipy.special

from engine import ops

DTYPES = ["float32", "float64"]
LEADS = [(), (3,), (2, 3)]


def draw(seed, *shape, dtype="float64"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def bound(dtype, n, size):
    """Return how far two orders of summing n products of total size `size` can differ."""
    return 2 * n * np.finfo(dtype).eps * size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 4), (5, 1), (5, 4)])
def test_products_are_what_einsum_says(dtype, lead, n, m):
    a, b = draw(0, *lead, n, dtype=dtype), draw(1, *lead, m, dtype=dtype)
    c, matrix = draw(2, *lead, n, dtype=dtype), draw(3, *lead, n, m, dtype=dtype)
    for got, spec, args in (
        (ops.outer(a, b), "...i,...j->...ij", (a, b)),
        (ops.vecmat(a, matrix), "...i,...ij->...j", (a, matrix)),
        (ops.matvec(matrix, b), "...ij,...j->...i", (matrix, b)),
        (ops.dot(a, c)[..., 0], "...i,...i->...", (a, c)),
        (ops.scale_rows(a, matrix), "...i,...ij->...ij", (a, matrix)),
        (ops.scale_columns(matrix, b), "...ij,...j->...ij", (matrix, b)),
    ):
        want = np.einsum(spec, *(x.astype("float64") for x in args))
        size = np.einsum(spec, *(abs(x.astype("float64")) for x in args))
        assert got.dtype == dtype and got.shape == want.shape
        assert (abs(got - want) <= bound(dtype, n + m, size)).all(), spec


def test_a_scalar_coefficient_scales_everything():
    matrix, one = draw(0, 3, 5, 4), draw(1, 3, 1)
    for a in (one, 0.5, 2):
        want = (one[..., None] if a is one else a) * matrix
        np.testing.assert_array_equal(ops.scale_rows(a, matrix), want)
        np.testing.assert_array_equal(ops.scale_columns(matrix, a), want)
    assert ops.scale_rows(0.5, matrix.astype("float32")).dtype == "float32"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 7), (7, 1), (16, 16), (33, 65)])
def test_the_bits_of_a_trial_do_not_depend_on_its_neighbours(dtype, n, m):
    x, y = draw(0, 6, n, dtype=dtype), draw(1, 6, m, dtype=dtype)
    z, matrix = draw(2, 6, n, dtype=dtype), draw(3, 6, n, m, dtype=dtype)
    for function, args in (
        (ops.vecmat, (x, matrix)), (ops.matvec, (matrix, y)), (ops.dot, (x, z)),
        (ops.outer, (x, y)), (ops.unit, (x,)), (ops.softmax, (x,)), (ops.divide, (x, z)),
    ):  # fmt: skip
        whole = function(*args)
        for b in range(6):
            for first in range(b + 1):
                part = function(*(a[first : b + 1] for a in args))
                assert part[-1].tobytes() == whole[b].tobytes(), function.__name__


def test_division_by_zero_reads_zero_and_does_not_warn():
    got = ops.divide(np.array([1.0, -2.0, 0.0, 3.0]), np.array([0.0, -0.0, 0.0, 2.0]))
    np.testing.assert_array_equal(got, [0.0, 0.0, 0.0, 1.5])
    rows = ops.divide(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.0], [2.0]]))
    np.testing.assert_array_equal(rows, [[0.0, 0.0], [1.5, 2.0]])
    # Not a comparison with a threshold: however small, a divisor that is there divides.
    assert ops.divide(np.array([1e-300]), np.array([1e-300]))[0] == 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_is_scipys(dtype):
    x = draw(0, 20, 9, dtype=dtype) * 30
    got, want = ops.softmax(x), scipy.special.softmax(x.astype("float64"), axis=-1)
    assert got.dtype == dtype
    # The argument of exp carries an absolute error of eps |x - max|, a relative one of its result.
    spread = (x.max(-1, keepdims=True) - x).astype("float64")
    assert (abs(got - want) <= np.finfo(dtype).eps * (12 + spread) * want + 1e-45).all()
    assert (abs(got.sum(-1) - 1) <= 10 * np.finfo(dtype).eps).all()


def test_softmax_of_large_scores_does_not_overflow():
    """burn issue 4694, mlx issue 2395."""
    for x in ([1000.0, 1000.0, 0.0], [1e300, 1e300, 0.0]):
        np.testing.assert_array_equal(ops.softmax(np.array(x)), [0.5, 0.5, 0.0])
    np.testing.assert_array_equal(ops.softmax(np.array([-1000.0, -1000.0])), [0.5, 0.5])


def test_softmax_over_nothing_is_zero_and_masked_scores_weigh_nothing():
    """A row of -inf has nothing to attend to."""
    inf = np.inf
    scores = np.array([[-inf, -inf, -inf], [-inf, 0.0, 0.0]])
    np.testing.assert_array_equal(ops.softmax(scores), [[0, 0, 0], [0, 0.5, 0.5]])


def test_softmax_of_an_infinite_score_is_flagged_not_hidden():
    """A score of +inf is flagged."""
    with np.errstate(invalid="ignore"):
        assert np.isnan(ops.softmax(np.array([0.0, np.inf]))).any()
        assert np.isnan(ops.softmax(np.array([0.0, np.nan]))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_vectors_over_the_whole_range(dtype):
    tiny, huge = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    x = np.array([[3, 0, 4], [0, 0, 0], [tiny, 0, 0], [huge, huge, 0]], dtype=dtype)
    root = np.sqrt(0.5)
    want = np.array([[0.6, 0, 0.8], [0, 0, 0], [1, 0, 0], [root, root, 0]])
    np.testing.assert_allclose(ops.unit(x), want, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation_stays_within_the_array_api(dtype):
    """On a device that raises on a hidden copy to the host, with the bits of NumPy."""
    strict, device = array_api_strict, array_api_strict.Device("device1")

    def put(x):
        return strict.asarray(x, device=device)

    x, y = draw(0, 4, 5, dtype=dtype), draw(1, 4, 5, dtype=dtype)
    matrix = draw(2, 4, 5, 5, dtype=dtype)
    for function, args in (
        (ops.outer, (x, y)), (ops.vecmat, (x, matrix)), (ops.matvec, (matrix, x)),
        (ops.dot, (x, y)), (ops.scale_rows, (x, matrix)), (ops.scale_columns, (matrix, x)),
        (ops.divide, (x, y)), (ops.unit, (x,)), (ops.softmax, (x,)),
    ):  # fmt: skip
        got = function(*map(put, args))
        assert got.device == device and str(got.dtype).endswith(dtype)
        host = np.asarray(strict.asarray(got, device=strict.Device("CPU_DEVICE")))
        assert host.tobytes() == function(*args).tobytes(), function.__name__


def strict(x):
    return array_api_strict.asarray(x, device=array_api_strict.Device("device1"))


def host(x):
    return np.asarray(array_api_strict.asarray(x, device=array_api_strict.Device("CPU_DEVICE")))


def test_erf_equals_scipys_on_any_array_library():
    x = np.concatenate(
        [np.linspace(-7, 7, 20001), np.logspace(-300, 1, 2000), [0.0, np.inf, -np.inf]]
    )
    want = scipy.special.erf(x)
    np.testing.assert_allclose(host(ops.erf(strict(x))), want, rtol=1e-15)
    np.testing.assert_array_equal(ops.erf(x), want)
    small = x.astype(np.float32)
    got = host(ops.erf(strict(small)))
    assert got.dtype == np.float32
    exact = scipy.special.erf(small.astype(float))
    np.testing.assert_allclose(got, exact, rtol=4 * np.finfo(np.float32).eps, atol=1e-44)
    assert np.isnan(host(ops.erf(strict(np.array([np.nan])))))


def test_diagonals_take_one_number_or_one_per_channel():
    matrix = np.random.default_rng(0).normal(size=(2, 3, 3))
    for a in (0.5, np.array([[0.5], [2.0]]), np.array([1.0, 2.0, 3.0])):
        full = np.broadcast_to(a, (2, 3))[..., None] * np.eye(3)
        np.testing.assert_array_equal(ops.add_diagonal(matrix, a), matrix + full)
        assert ops.add_diagonal(matrix.astype("float32"), np.float32(0.5)).dtype == "float32"


def test_numbers_per_channel_become_an_array_beside_the_other():
    like = strict(np.zeros((2, 3), np.float32))
    assert ops.channels(0.5, like) == 0.5
    made = ops.channels((1.0, 2.0, 3.0), like)
    assert made.dtype == like.dtype and made.device == like.device and made.shape == (3,)


def test_log_of_a_decay():
    """log 0 = -inf without a warning: a full reset."""
    np.testing.assert_array_equal(ops.log(np.array([0.0, 1.0, 0.5])), [-np.inf, 0.0, np.log(0.5)])
    assert ops.log(0.0) == -np.inf and ops.log(1) == 0.0
    assert ops.log(np.float32([0.5])).dtype == np.float32

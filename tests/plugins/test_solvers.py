"""Solvers against direct solutions of the problems they stand for, and at the edges of numbers.

Error bounds are first-order: eps times the number of operations times the condition of the problem.
"""

from fractions import Fraction

import numpy as np
import pytest
import scipy.special

import engine
from engine.api import Space
from engine.plugins.solvers.delta import Delta
from engine.plugins.solvers.least_squares import LeastSquares
from engine.plugins.solvers.linear_attention import LinearAttention
from engine.plugins.solvers.longhorn import Longhorn
from engine.plugins.solvers.rls import RLS
from engine.plugins.solvers.softmax_attention import SoftmaxAttention

from .regression_cases import EPS, pairs

SOLVERS = {
    "softmax": SoftmaxAttention(scale=0.5),
    "linear": LinearAttention(),
    "linear normalised": LinearAttention(normalise=True),
    "delta": Delta(),
    "longhorn": Longhorn(),
    "rls": RLS(),
    "least squares": LeastSquares(ridge=1e-3),
}
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())


# Every solver


@each_solver
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_empty_memory_reads_zeros(solver, dtype):
    state = solver.init(Space({"key": 5, "value": 4}, (3,), np, np.dtype(dtype)))
    read = solver.read(state, np.random.default_rng(0).normal(size=(3, 5)).astype(dtype))
    assert read.shape == (3, 4) and read.dtype == dtype and not read.any()
    ds = engine.simulate(solver, *pairs())
    assert not ds.prediction[0].values.any()


@each_solver
def test_methods_are_pure(solver):
    """A write changes neither the state before it nor its arguments: states can be kept."""
    rng = np.random.default_rng(0)
    state = solver.init(Space({"key": 5, "value": 4}, (3,), np, np.dtype("float64")))
    for _ in range(20):
        k, v, q = rng.normal(size=(3, 5)), rng.normal(size=(3, 4)), rng.normal(size=(3, 5))
        for x in (k, v, q):
            x.flags.writeable = False
        read = solver.read(state, q)
        for x in state:
            if isinstance(x, np.ndarray):
                x.flags.writeable = False
        new = solver.write(state, k, v)
        assert solver.read(state, q).tobytes() == read.tobytes()
        assert solver.write(state, k, v) is not state
        again = solver.write(state, k, v)
        assert solver.read(again, q).tobytes() == solver.read(new, q).tobytes()
        state = new


@each_solver
def test_a_zero_key_stores_nothing_that_a_read_could_divide_by(solver):
    keys, values = np.zeros((20, 4)), np.ones((20, 2))
    ds = engine.simulate(solver, keys, values)
    assert int(ds.diverged_at) == -1
    if not isinstance(solver, SoftmaxAttention):  # which weighs its values equally, and rightly so
        assert not ds.output.values.any()


@each_solver
@pytest.mark.parametrize("size", [1e-150, 1e-30, 1e30])
def test_keys_of_any_size_leave_a_finite_state_or_a_named_step(solver, size):
    keys, values = pairs(40)
    ds = engine.simulate(solver, size * keys, values)
    bad = ~np.isfinite(ds.output.values).all(-1) | ~np.isfinite(ds.prediction.values).all(-1)
    for name in {"S", "P", "z", "A", "B"} & set(ds.data_vars):
        bad |= ~np.isfinite(ds[name].values).reshape(40, -1).all(-1)
    assert int(ds.diverged_at) == (int(bad.argmax()) if bad.any() else -1)


# Softmax attention


@pytest.mark.parametrize("scale", [1.0, 32**-0.5, 50.0])
def test_softmax_is_the_mean_of_all_values_weighted_by_softmax(scale):
    """Vaswani et al. 2017, equation 1, causal; scores carry d roundings, magnified by exp."""
    keys, values = pairs(50, 8, 3)
    queries = np.random.default_rng(1).normal(size=(50, 8))
    ds = engine.simulate(SoftmaxAttention(scale=scale), keys, values, queries)
    scores = scale * queries @ keys.T
    for t in range(50):
        want = scipy.special.softmax(scores[t, : t + 1]) @ values[: t + 1]
        bound = EPS * (50 + 2 * 8 * abs(scale * queries[t]) @ abs(keys).max(0)) * abs(values).max()
        assert (abs(ds.output.values[t] - want) <= bound).all()
    np.testing.assert_array_equal(ds["keys"], keys)
    np.testing.assert_array_equal(ds["values"], values)
    np.testing.assert_array_equal(ds.rows, np.arange(1, 51))


def test_softmax_with_large_scores():
    """Scores 1000, 1000, 0 weigh .5, .5, 0."""
    ds = engine.simulate(
        "softmax_attention", [[1000.0], [1000.0], [0.0]], [[1.0], [4.0], [1e6]], np.ones((3, 1))
    )
    np.testing.assert_array_equal(ds.output, [[1.0], [2.5], [2.5]])


def test_softmax_over_scores_of_minus_infinity_reads_zeros():
    """An all-empty row reads zeros, not NaN."""
    ds = engine.simulate("softmax_attention", [[-np.inf]], [[3.0]], [[1.0]])
    np.testing.assert_array_equal(ds.output, [[0.0]])
    assert int(ds.diverged_at) == -1


def test_softmax_over_a_score_of_plus_infinity_is_flagged():
    """A score of +inf is flagged."""
    ds = engine.simulate("softmax_attention", [[1.0], [np.inf], [1.0]], np.ones((3, 1)))
    assert int(ds.diverged_at) == 1


# Linear attention


@pytest.mark.parametrize("view", ["elu1", "exp", "relu"])
def test_linear_attention_equals_the_full_traversal_at_every_prefix(view):
    """sum_j phi(q).phi(k_j) v_j / sum_j phi(q).phi(k_j) (Katharopoulos et al. 2020, equation 5).

    Every term of the denominator is >= 0, so n d roundings cost (n + d) eps each way, relative to
    the largest value: 2 (32 + 8) eps / 2 < 1e-14.
    """
    phi = engine.view(view)
    keys, values = pairs(32, 8, 3)
    queries = np.random.default_rng(1).normal(size=(32, 8))
    k, q = phi(keys), phi.queries(queries)
    ds = engine.simulate(LinearAttention(normalise=True), k, values, q)
    for t in range(32):
        weight = q[t] @ k[: t + 1].T
        want = weight @ values[: t + 1] / weight.sum() if weight.any() else np.zeros(3)
        assert (abs(ds.output.values[t] - want) <= 1e-14 * abs(values).max()).all()
        total = engine.simulate(LinearAttention(), k[: t + 1], values[: t + 1], q[: t + 1])
        bound = 1e-14 * weight @ abs(values[: t + 1])
        assert (abs(total.output.values[-1] - weight @ values[: t + 1]) <= bound).all()
    np.testing.assert_allclose(ds.z, np.cumsum(k, axis=0), rtol=32 * EPS)


def test_without_the_normaliser_the_weighted_mean_is_lost():
    """Published: dropping z breaks the equality by 9.5 to 98."""
    keys, values = engine.view("elu1")(pairs(200, 8, 3)[0]), pairs(200, 8, 3)[1]
    mean = engine.simulate(LinearAttention(normalise=True), keys, values).output.values
    total = engine.simulate(LinearAttention(), keys, values).output.values
    assert abs(mean - total).max() > 9.5


def test_elu1_does_not_lose_small_weights_in_float16_input():
    """flash-linear-attention issue 1261: elu(x) + 1 cancels to 0 at x = -10."""
    x = np.array([-6, -8, -10, 0, 2], dtype=np.float16)
    features = engine.view("elu1")(x)
    assert features.dtype == np.float16
    want = np.array([0.00248, 0.0003355, 4.54e-5, 1, 3])
    np.testing.assert_allclose(features.astype(float), want, rtol=1e-3)
    assert features[2] > 0
    key = np.full((1, 5), -10, dtype=np.float16)
    value = np.array([[1.5, -0.25]], dtype=np.float16)
    ds = engine.simulate(LinearAttention(normalise=True), engine.view("elu1")(key), value)
    assert ds.output.dtype == np.float32
    np.testing.assert_allclose(ds.output.values, value, rtol=1e-2)


def test_linear_attention_scales_the_query_and_adds_eps_to_the_normaliser():
    keys, values = np.abs(pairs(10)[0]), pairs(10)[1]
    ds = engine.simulate(LinearAttention(normalise=True, scale=0.25, eps=0.5), keys, values)
    S, z = keys.T @ values, keys.sum(0)
    want = 0.25 * keys[-1] @ S / (0.25 * keys[-1] @ z + 0.5)
    np.testing.assert_allclose(ds.output.values[-1], want, rtol=1e-13)


# The delta rule


def test_delta_at_beta_one_stores_a_unit_key_exactly():
    """I - k k^T annihilates k: S^T k = v after the write, to d roundings of k.k."""
    keys, values = pairs(40, 8, 3)
    keys = engine.view("unit")(keys)
    ds = engine.simulate("delta", keys, values, beta=1.0)
    error = abs(ds.output.values - values)
    assert error.max() <= 2 * 8 * EPS * (abs(values).max() + abs(ds.S.values).max())
    basis = engine.simulate("delta", np.eye(8), pairs(8)[1], beta=1.0)
    np.testing.assert_array_equal(basis.output, pairs(8)[1])
    np.testing.assert_array_equal(basis.S[-1], pairs(8)[1])


@pytest.mark.parametrize(("beta", "size"), [(2.1, 1.899e8), (2.0, None), (1.9, 1.0)])
def test_delta_on_one_key_repeated(beta, size):
    """S_t = 1 - (1 - beta)^t exactly: beyond beta |k|^2 = 2 it diverges.

    A rounding of step i is multiplied by |1 - beta|^(t-i), as S is: at most t roundings, relative
    to the largest state so far.
    """
    ds = engine.simulate("delta", np.ones((200, 1)), np.ones((200, 1)), beta=beta)
    S = ds.S.values[:, 0, 0]
    exact = [float(1 - (1 - Fraction(beta)) ** t) for t in range(1, 201)]
    largest = np.maximum.accumulate(np.abs(exact))
    assert (abs(S - exact) <= 3 * EPS * np.arange(1, 201) * np.maximum(largest, 1)).all()
    if beta == 2.1:
        assert abs(abs(S[-1]) / size - 1) < 5e-4
        assert (np.diff(abs(S[40:])) > 0).all()  # once 1.1^t / 10 is above the 2 it swings about
    elif beta == 2.0:
        np.testing.assert_array_equal(S, [2.0, 0.0] * 100)
    else:
        assert abs(S[-1] - 1) <= 0.9**200 + 3 * EPS * 200


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_delta_on_long_random_keys_grows_as_a_plain_loop_does(dtype):
    """flash-linear-attention issue 736: standard normal keys, 64 x 64.

    The loop runs in extended precision. S is dominated by its growing part, and a rounding made at
    step t is multiplied by the same factors as S from there on: d operations in each of T steps.
    """
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(64, 64)).astype(dtype), rng.normal(size=(64, 64)).astype(dtype)
    beta = (1 / (1 + np.exp(-rng.normal(size=64)))).astype(dtype)
    ds = engine.simulate("delta", keys, values, beta=beta)
    assert ds.S.dtype == dtype and int(ds.diverged_at) == -1
    S = np.zeros((64, 64), dtype=np.longdouble)
    for t in range(64):
        k, v = keys[t].astype(np.longdouble), values[t].astype(np.longdouble)
        S += beta[t] * np.outer(k, v - k @ S)
        bound = 64 * (t + 1) * np.finfo(dtype).eps * np.linalg.norm(S.astype(float))
        assert np.linalg.norm((ds.S.values[t] - S).astype(float)) <= bound
    assert np.linalg.norm(S.astype(float)) > 1e20


def test_delta_names_the_step_at_which_it_leaves_the_numbers():
    """Each step multiplies S by 1 - beta: |S| passes 2^1024 where 3^t does, and is inf there."""
    ds = engine.simulate("delta", np.ones((700, 1)), np.ones((700, 1)), beta=4.0)
    # S_t = 1 - (-3)^(t+1) in exact numbers; write t + 1 overflows already in beta (v - S).
    finite = [abs(1 - (-3) ** (t + 1)) * 4 < 2**1024 for t in range(700)]
    first = finite.index(False)
    assert int(ds.diverged_at) in (first, first + 1)
    assert np.isfinite(ds.S.values[: int(ds.diverged_at)]).all()
    assert not np.isfinite(ds.S.values[int(ds.diverged_at)]).all()


# Longhorn


@pytest.mark.parametrize("beta", [1e-3, 1.0, 1e3])
def test_longhorn_is_the_minimiser_of_its_objective(beta):
    """argmin |S - S_old|^2 + beta |S^T k - v|^2 (Liu et al. 2024, equation 5), by a solve."""
    keys, values = pairs(50, 6, 3)
    ds = engine.simulate("longhorn", keys, values, beta=beta)
    old = np.zeros((6, 3))
    for t in range(50):
        A = np.eye(6) + beta * np.outer(keys[t], keys[t])
        want = np.linalg.solve(A, old + beta * np.outer(keys[t], values[t]))
        bound = 6 * EPS * np.linalg.cond(A) * (np.linalg.norm(want) + np.linalg.norm(values[t]))
        assert np.linalg.norm(ds.S.values[t] - want) <= bound
        old = ds.S.values[t]


@pytest.mark.parametrize("beta", [0.25, 1.0, 8.0])
def test_longhorn_is_nlms_with_eps_one_over_beta(beta):
    """Published: S + k e / (1/beta + k.k) (3e-16)."""
    keys, values = pairs(50, 6, 3)
    ds = engine.simulate("longhorn", keys, values, beta=beta)
    S = np.zeros((6, 3))
    for t in range(50):
        S = S + np.outer(keys[t], values[t] - keys[t] @ S) / (1 / beta + keys[t] @ keys[t])
        # The map is a contraction: t steps add up at most t times some 10 roundings of an entry.
        assert abs(ds.S.values[t] - S).max() <= 10 * (t + 1) * EPS * abs(values).max()


def test_longhorn_is_stable_for_any_beta():
    keys, values = 100 * pairs(300)[0], pairs(300)[1]
    for beta in (0.0, 1e-300, 1e3, 1e100):
        ds = engine.simulate("longhorn", keys, values, beta=beta)
        assert int(ds.diverged_at) == -1
        # After a write with a strong beta the newest pair is read back.
        if beta >= 1e3:
            np.testing.assert_allclose(ds.output, values, atol=1e-5)

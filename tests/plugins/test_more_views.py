"""Feature views: the kernels that they stand for, and fixed projections."""

import math

import array_api_strict
import numpy as np
import pytest

import engine
from engine import ops
from engine.plugins.views import projection, random_features, taylor
from engine.plugins.views.projection import Projection
from engine.plugins.views.random_features import PositiveRandom, RandomFourier
from engine.plugins.views.taylor import Taylor

W_K = ((1.0, 0.0, 2.0, 0.0, 0.5), (0.0, -1.0, 0.0, 3.0, 0.0))
W_Q = ((0.0, 1.0, 1.0, 0.0, 0.0), (2.0, 0.0, 0.0, 0.0, -1.0))
VIEWS = {
    "taylor": Taylor(order=4, scale=0.3),
    "positive": PositiveRandom(features=11),
    "positive iid": PositiveRandom(features=11, orthogonal=False, scale=0.2),
    "fourier": RandomFourier(features=9, bandwidth=2.0),
    "projection": Projection(features=4),
    "projection untied": Projection(tie=False, seed=3),
    "projection given": Projection(w_k=W_K, w_q=W_Q, tie=False),
}
each_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())


def points(*shape, length=1.0, seed=0):
    """Return random vectors of about this length."""
    return length * np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[-1])


def test_the_hooks_name_every_view():
    named = {
        **taylor.engine_views(), **random_features.engine_views(), **projection.engine_views(),
    }  # fmt: skip
    assert named == {
        "taylor": Taylor, "positive_random": PositiveRandom, "random_fourier": RandomFourier,
        "projection": Projection,
    }  # fmt: skip


# What holds for every view.


@each_view
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_views_run_on_a_strict_device_and_keep_the_dtype(view, dtype):
    """array-api-strict's device1 raises on every hidden copy to the host."""
    x, away = points(3, 2, 5), array_api_strict.Device("device1")
    strict = array_api_strict.asarray(x, dtype=getattr(array_api_strict, dtype), device=away)
    for method in (view.__call__, view.queries):
        got = method(strict)
        assert got.dtype == strict.dtype and got.device == away
        assert got.shape == (3, 2, view.size(5))
        home = array_api_strict.asarray(got, device=array_api_strict.Device("CPU_DEVICE"))
        np.testing.assert_array_equal(np.asarray(home), method(x.astype(dtype)))


@each_view
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_do_not_see_each_other(view, dtype):
    x = points(4, 16, 5).astype(dtype)
    for method in (view.__call__, view.queries):
        whole = method(x)
        assert whole.dtype == dtype
        np.testing.assert_array_equal(whole, np.stack([method(block) for block in x]))
        rows = np.stack([method(row) for row in x.reshape(-1, 5)])
        np.testing.assert_array_equal(whole.reshape(64, -1), rows)


@each_view
def test_no_rows_map_to_no_rows(view):
    assert view(np.zeros((0, 3, 5))).shape == (0, 3, view.size(5))


@each_view
def test_nan_is_not_hidden(view):
    assert np.isnan(view(np.array([np.nan, 1.0, 1.0, 1.0, 1.0]))).any()


@each_view
def test_views_are_hashable_values_and_the_same_every_time(view):
    twin = type(view)(**{f: getattr(view, f) for f in view.__dataclass_fields__})
    assert twin == view and hash(twin) == hash(view)
    x = points(6, 5)
    random_features._directions.cache_clear()
    first = view(x)
    random_features._directions.cache_clear()
    np.testing.assert_array_equal(first, twin(x))


@pytest.mark.parametrize("cls", [PositiveRandom, RandomFourier, Projection])
def test_another_seed_is_another_map(cls):
    x = points(5)
    assert not np.isclose(cls(seed=0)(x), cls(seed=1)(x)).any()


@pytest.mark.parametrize("name", ["taylor", "positive_random", "random_fourier", "projection"])
def test_any_solver_runs_behind_a_view(name):
    run = engine.run({
        "stream": {"generator": "random", "steps": 6, "key": 3, "value": 2},
        "solvers": {"delta": {"beta": 0.1, "view": name}},
    })  # fmt: skip
    assert run["solvers/delta"]["S"].shape[-2:] == (engine.view(name).size(3), 2)


# taylor


@pytest.mark.parametrize("order", [2, 4, 6])
@pytest.mark.parametrize("scale", [1.0, 0.25, 3.0])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_taylor_kernel_is_the_cut_series_to_rounding(order, scale, n):
    view, q, k = Taylor(order, scale), points(50, n, length=2), points(50, n, length=2, seed=1)
    s = scale * (q * k).sum(-1)
    want = sum(s**j / math.factorial(j) for j in range(order + 1))
    # Terms of either sign cancel: rounding is relative to their absolute sum.
    size = (np.abs(view(q)) * np.abs(view(k))).sum(-1)
    got = ops.dot(view(q), view(k))[..., 0]
    assert (np.abs(got - want) <= 16 * np.finfo(float).eps * size).all()
    assert (got > 0).all()


def test_taylor_features_are_monomials_by_degree():
    x, y = 3.0, 5.0
    want = [1, x, y, x * x / 2**0.5, x * y, y * y / 2**0.5]
    np.testing.assert_allclose(Taylor()(np.array([x, y])), want, rtol=1e-15)
    quartic = Taylor(order=4)(np.array([x, y]))
    np.testing.assert_allclose(quartic[-3], x**2 * y**2 / 2, rtol=1e-14)
    np.testing.assert_allclose(quartic[-1], y**4 / 24**0.5, rtol=1e-14)


def test_taylor_sizes_are_binomial():
    for n, order, size in ((16, 2, 153), (16, 4, 4845), (1, 6, 7), (3, 4, 35)):
        assert Taylor(order).size(n) == size == Taylor(order)(np.zeros(n)).shape[-1]


def test_the_taylor_kernel_tends_to_softmax():
    q, k = points(30, 6), points(30, 6, seed=1)
    want = np.exp((q * k).sum(-1))
    errors = [
        np.abs(ops.dot(Taylor(order)(q), Taylor(order)(k))[..., 0] / want - 1).max()
        for order in (2, 4, 6, 8)
    ]
    assert (np.diff(errors) < 0).all() and errors[-1] < 1e-4


# positive_random and random_fourier


def kernels(make, q, k, seeds, **options):
    """Return the kernel phi(q).phi(k) for each of many seeds."""
    views = (make(seed=seed, **options) for seed in range(seeds))
    return np.array([(view(q) * view(k)).sum() for view in views])


PAIRS = [(points(6), points(6, seed=1)), (points(6, length=0.5), points(6, length=0.5, seed=2))]


@pytest.mark.parametrize(("q", "k"), PAIRS)
@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_positive_features_are_unbiased(assert_mean, q, k, orthogonal, scale):
    seen = kernels(PositiveRandom, q, k, 2000, features=16, orthogonal=orthogonal, scale=scale)
    assert_mean(seen, np.exp(scale * q @ k))


@pytest.mark.parametrize("features", [4, 64])
def test_positive_features_have_their_variance(assert_mean, features):
    """exp(2 s) (exp(|q + k|^2) - 1) / m, s = q.k, for independent directions."""
    q, k = PAIRS[1]
    seen = kernels(PositiveRandom, q, k, 4000, features=features, orthogonal=False)
    variance = np.exp(2 * q @ k) * np.expm1(((q + k) ** 2).sum()) / features
    assert_mean((seen - np.exp(q @ k)) ** 2, variance)


@pytest.mark.parametrize(("make", "kernel"), [
    (PositiveRandom, lambda q, k: np.exp(q @ k)),
    (RandomFourier, lambda q, k: np.exp(-((q - k) ** 2).sum() / 2)),
])  # fmt: skip
def test_more_features_mean_less_error(make, kernel):
    """The mean square error falls as 1 / m."""
    q, k = PAIRS[0]
    error = [
        np.mean((kernels(make, q, k, 400, features=m) - kernel(q, k)) ** 2) for m in (16, 64, 256)
    ]
    assert error[0] > 2 * error[1] > 4 * error[2]
    np.testing.assert_allclose(error[0] / error[2], 16, rtol=0.5)


def test_orthogonal_directions_have_less_variance():
    q, k = PAIRS[0]
    loose, tight = (
        kernels(PositiveRandom, q, k, 2000, features=6, orthogonal=o).var() for o in (False, True)
    )
    assert tight < 0.9 * loose


def test_directions_are_orthogonal_in_groups_and_of_gaussian_length(assert_mean):
    w = random_features._directions(0, 5, 13, True)
    for start in (0, 5, 10):
        group = w[:, start : start + 5]
        gram = group.T @ group
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-13)
    many = random_features._directions(1, 3, 6000, True).T
    assert_mean(many, 0)
    assert_mean(ops.outer(many, many), np.eye(3))
    assert_mean((many**2).sum(-1) ** 2, 15)  # E|w|^4 = n (n + 2)


@pytest.mark.parametrize("view", [
    PositiveRandom(features=40), PositiveRandom(features=40, orthogonal=False),
    RandomFourier(features=40),
])  # fmt: skip
def test_the_first_features_do_not_depend_on_how_many(view):
    x = points(8, 5)
    few = type(view)(**{f: getattr(view, f) for f in view.__dataclass_fields__} | {"features": 10})
    np.testing.assert_allclose(few(x) * np.sqrt(10), view(x)[:, :10] * np.sqrt(40), rtol=1e-13)


@pytest.mark.parametrize(("dtype", "n"), [("float64", 1000), ("float32", 100), ("float16", 4)])
def test_positive_features_stay_finite_and_positive_or_zero(dtype, n):
    """The worst x is a direction itself: the exponent is then |w|^2 / 2."""
    view = PositiveRandom(features=64)
    w = random_features._directions(0, n, 64, True).T
    got = view(np.concatenate([w, 0 * w, points(9, n)]).astype(dtype))
    assert np.isfinite(got).all() and (got >= 0).all() and (got[-9:] > 0).all()
    assert not view((100 * np.ones(n)).astype(dtype)).any()


def test_fourier_features_are_unbiased_for_the_gaussian_kernel(assert_mean):
    for bandwidth in (0.5, 1.0, 3.0):
        for q, k in PAIRS:
            seen = kernels(RandomFourier, q, k, 2000, features=8, bandwidth=bandwidth)
            assert_mean(seen, np.exp(-((q - k) ** 2).sum() / (2 * bandwidth**2)))


def test_many_fourier_features_give_the_gram_matrix():
    x = points(40, 3)
    phi = RandomFourier(features=20000)(x)
    want = np.exp(-((x[:, None] - x) ** 2).sum(-1) / 2)
    np.testing.assert_allclose(phi @ phi.T, want, atol=6 / np.sqrt(20000))
    assert np.abs(phi).max() <= np.sqrt(2 / 20000)


# projection


def test_given_matrices_are_applied_to_keys_and_queries():
    x = points(4, 5)
    untied = Projection(w_k=W_K, w_q=W_Q, tie=False)
    np.testing.assert_allclose(untied(x), x @ np.array(W_K).T, atol=1e-15)
    np.testing.assert_allclose(untied.queries(x), x @ np.array(W_Q).T, atol=1e-15)
    tied = Projection(w_k=W_K)
    np.testing.assert_array_equal(tied.queries(x), tied(x))
    np.testing.assert_array_equal(tied(x), untied(x))
    assert untied.size(5) == tied.size(5) == 2


def test_matrices_of_a_scenario_are_lists():
    view = engine.view("projection", w_k=[[1, 0], [0, 2], [1, 1]])
    np.testing.assert_array_equal(view(np.array([3.0, 4.0])), [3, 8, 7])
    view = engine.view("projection", w_k=np.eye(2))
    np.testing.assert_array_equal(view(np.array([3.0, 4.0])), [3, 4])


def test_drawn_projections_keep_lengths_and_products_on_average(assert_mean):
    """E|W x|^2 = |x|^2; E[(W q).(W k)] = q.k if tied, and 0 if not."""
    q, k = points(6, length=2), points(6, seed=1)
    views = [Projection(features=3, seed=seed) for seed in range(3000)]
    assert_mean([(view(q) ** 2).sum() for view in views], q @ q)
    assert_mean([view.queries(q) @ view(k) for view in views], q @ k)
    loose = [Projection(features=3, seed=seed, tie=False) for seed in range(3000)]
    assert_mean([(view.queries(q) ** 2).sum() for view in loose], q @ q)
    assert_mean([view.queries(q) @ view(k) for view in loose], 0)


def test_tying_changes_queries_only():
    x = points(5)
    tied, loose = Projection(), Projection(tie=False)
    np.testing.assert_array_equal(tied(x), loose(x))
    assert not np.isclose(tied.queries(x), loose.queries(x)).any()
    assert tied.size(5) == 5


def test_a_matrix_for_other_keys_is_refused():
    with pytest.raises(ValueError, match="w_k has rows of 5 numbers and keys have 4"):
        Projection(w_k=W_K).size(4)
    with pytest.raises(ValueError, match="w_k has rows of 5 numbers and keys have 1"):
        Projection(w_k=W_K)(np.zeros((2, 1)))


W_V = ((1.0, 2.0), (0.0, -1.0), (3.0, 0.5))


@pytest.mark.parametrize("options", [{"w_v": W_V}, {"value_features": 3, "seed": 5}], ids=str)
def test_projected_values_arrive_at_the_solver(options):
    """A rule behind W_V is the rule on values @ W_V^T."""
    view = Projection(w_k=tuple(map(tuple, np.eye(4).tolist())), **options)
    table = {
        "trials": 2,
        "stream": {"generator": "random", "steps": 30, "key": 4, "value": 2},
        "solvers": {
            "delta": {"view": {"view": "projection", "w_k": np.eye(4).tolist(), **options}},
        },
    }
    run = engine.run(table)
    stream = run["stream"].to_dataset()
    w = view.values(np.eye(2)).T
    assert w.shape == (3, 2) and view.value_size(2) == 3
    want = engine.simulate("delta", stream["keys"].values, stream["values"].values @ w.T)
    for name in ("S", "prediction", "output"):
        np.testing.assert_allclose(run[f"solvers/delta/{name}"], want[name], atol=1e-13)
    if "w_v" in options:
        np.testing.assert_array_equal(w, W_V)


def test_values_are_drawn_apart_from_keys_and_left_alone_by_default():
    x, view = points(6, 5), Projection(features=5, value_features=5)
    assert not np.isclose(view.values(x), view(x)).any()
    np.testing.assert_array_equal(view(x), Projection(features=5)(x))
    assert Projection().values(x) is x and Projection().value_size(5) == 5
    with pytest.raises(ValueError, match="w_v has rows of 2 numbers and values have 5"):
        Projection(w_v=W_V).value_size(5)


# What cannot be made.


@pytest.mark.parametrize(("cls", "options", "match"), [
    (Taylor, {"order": 3}, "order = 3 must be 2, 4, 6, ...: cut at an odd degree"),
    (Taylor, {"order": 0}, "order = 0"),
    (Taylor, {"order": -2}, "order = -2"),
    (Taylor, {"scale": 0.0}, "scale = 0.0 must be finite and above 0"),
    (Taylor, {"scale": float("nan")}, "scale = nan"),
    (PositiveRandom, {"features": 0}, "features = 0 must be at least 1"),
    (PositiveRandom, {"seed": -1}, "seed = -1 must be at least 0"),
    (PositiveRandom, {"scale": -1.0}, "scale = -1.0 must be finite and above 0"),
    (RandomFourier, {"features": 0}, "features = 0 must be at least 1"),
    (RandomFourier, {"seed": -1}, "seed = -1 must be at least 0"),
    (RandomFourier, {"bandwidth": float("inf")}, "bandwidth = inf must be finite and above 0"),
    (Projection, {"features": 0}, "features = 0 must be at least 1"),
    (Projection, {"seed": -1}, "seed = -1 must be at least 0"),
    (Projection, {"w_k": W_K, "w_q": W_Q}, "tie = True has no use for w_q"),
    (Projection, {"w_k": W_K, "tie": False}, "tie = False needs w_k and w_q, or neither"),
    (Projection, {"w_q": W_Q, "tie": False}, "tie = False needs w_k and w_q, or neither"),
    (Projection, {"w_k": W_K, "features": 2}, "features = 2 is for drawn matrices"),
    (Projection, {"value_features": 0}, "value_features = 0 must be at least 1"),
    (Projection, {"w_v": W_V, "value_features": 3}, "value_features = 3 is for drawn matrices"),
    (Projection, {"w_v": ((1.0,), (2.0, 3.0))}, r"w_v has rows of lengths \[1, 2\]"),
    (Projection, {"w_k": ((1.0, 2.0), (3.0,))}, r"w_k has rows of lengths \[1, 2\]"),
    (Projection, {"w_k": ()}, r"w_k has rows of lengths \[\]"),
    (Projection, {"w_k": ((),)}, r"w_k has rows of lengths \[0\]"),
    (Projection, {"w_k": ((1.0,), (float("nan"),))}, "w_k: row 1 holds nan"),
    (Projection, {"w_k": W_K, "w_q": W_Q[:1], "tie": False}, r"w_q is \(1, 5\) and w_k \(2, 5\)"),
])  # fmt: skip
def test_bad_options_are_named_with_their_value(cls, options, match):
    with pytest.raises(ValueError, match=match):
        cls(**options)

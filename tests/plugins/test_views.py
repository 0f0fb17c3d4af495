"""Views: norms, signs, rounding, and nothing but the array API."""

import array_api_strict
import numpy as np
import pytest

from engine.plugins.views import positive, unit

VIEWS = {**unit.engine_views(), **positive.engine_views()}
DTYPES = ["float32", "float64"]


def test_the_hooks_name_every_view():
    assert sorted(VIEWS) == ["elu1", "exp", "relu", "unit"]


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_equal_hashable_and_keep_the_size(name):
    view = VIEWS[name]()
    assert view == VIEWS[name]() and hash(view) == hash(VIEWS[name]())
    assert view.size(7) == 7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VIEWS)
def test_views_run_on_the_strict_array_api_and_keep_the_dtype(name, dtype):
    view, x = VIEWS[name](), np.random.default_rng(0).normal(size=(3, 2, 5))
    strict = array_api_strict.asarray(x, dtype=getattr(array_api_strict, dtype))
    got = view(strict)
    assert got.dtype == strict.dtype and got.shape == strict.shape
    np.testing.assert_array_equal(np.asarray(got), view(np.asarray(strict)))
    np.testing.assert_array_equal(np.asarray(view.queries(strict)), np.asarray(got))


@pytest.mark.parametrize("name", VIEWS)
def test_views_keep_float16_and_rows_do_not_see_each_other(name):
    view, x = VIEWS[name](), np.random.default_rng(1).normal(size=(64, 9))
    assert view(x.astype(np.float16)).dtype == np.float16
    np.testing.assert_array_equal(view(x), np.stack([view(row) for row in x]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_unit_has_norm_one_and_the_direction_of_x(dtype):
    x = np.random.default_rng(2).normal(size=(50, 8)).astype(dtype)
    got, eps = unit.Unit()(x), np.finfo(dtype).eps
    wide = x.astype(np.float64)
    want = wide / np.linalg.norm(wide, axis=-1, keepdims=True)
    np.testing.assert_allclose(got.astype(np.float64), want, atol=8 * eps)


def test_unit_of_zero_is_zero_and_extremes_do_not_leave_the_range():
    assert not unit.Unit()(np.zeros((2, 3))).any()
    for size in (5e-324, 1e-300, 1e300):
        np.testing.assert_allclose(unit.Unit()(np.array([3.0, 0, 4]) * size), [0.6, 0, 0.8])


def test_elu1_is_one_plus_x_above_zero_and_exp_below():
    x = np.linspace(-5, 5, 101)
    got = positive.Elu1()(x)
    np.testing.assert_array_equal(got[x >= 0], x[x >= 0] + 1)
    np.testing.assert_allclose(got[x < 0], np.expm1(x[x < 0]) + 1, rtol=1e-13)
    assert got.min() > 0 and (np.diff(got) > 0).all()


def test_elu1_does_not_cancel_in_float16():
    """exp(-10) = 4.53999e-5: (exp(x) - 1) + 1 would give 0 there."""
    got = positive.Elu1()(np.array([-10, -16], dtype=np.float16))
    np.testing.assert_array_equal(got, np.exp([-10.0, -16.0]).astype(np.float16))
    assert (got > 0).all()


def test_elu1_of_large_entries_does_not_overflow():
    np.testing.assert_array_equal(positive.Elu1()(np.array([1e4, -1e4])), [1e4 + 1, 0])


def test_relu_with_a_power_and_an_offset():
    got = positive.Relu(power=2, offset=0.5)(np.array([-3.0, 0.0, 1.5]))
    np.testing.assert_array_equal(got, [0.5, 0.5, 2.75])


@pytest.mark.parametrize(
    "options", [{"power": 0}, {"offset": -1.0}, {"offset": np.inf}, {"offset": np.nan}]
)
def test_relu_names_an_option_that_makes_no_features(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} = .* must be"):
        positive.Relu(**options)


def test_exp_and_relu():
    x = np.array([-2.0, 0.0, 3.0])
    np.testing.assert_allclose(positive.Exp()(x), [np.e**-2, 1, np.e**3], rtol=1e-15)
    np.testing.assert_array_equal(positive.Relu()(x), [0, 0, 3])


@pytest.mark.parametrize("name", VIEWS)
def test_nan_is_not_hidden(name):
    assert np.isnan(VIEWS[name]()(np.array([np.nan, 1.0]))[0])

"""`engine.simulate`: every layout, label and dtype of its arrays, and what it refuses."""

from itertools import permutations

import numpy as np
import pytest
import xarray as xr

import engine

from .simulation_cases import (
    SOLVERS,
    STATES,
    B,
    D,
    M,
    T,
    assert_equal,
    assert_same,
    coefficients,
    draw,
    each_solver,
    made,
)

# Forms of input


def layouts(x):
    """Yield `x` in every layout that NumPy knows, read-only, and in another byte order."""
    wide = np.full((2 * len(x), *x.shape[1:]), np.nan, dtype=x.dtype)
    wide[::2] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    yield "strided", wide[::2]
    yield "reversed", np.ascontiguousarray(x[::-1])[::-1]
    yield "last axis reversed", np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    yield "transposed", x.T.copy().T
    yield "fortran", np.asfortranarray(x)
    yield "big-endian", x.astype(x.dtype.newbyteorder(">"))
    yield "read-only", frozen
    yield "broadcast", np.lib.stride_tricks.as_strided(frozen, x.shape, x.strides, writeable=False)
    yield "nested lists", x.tolist()


@each_solver
@pytest.mark.parametrize("trials", [None, B])
def test_every_layout_gives_the_same_bits_and_is_left_alone(case, trials, tmp_path):
    """flash-linear-attention 759, FlagGems 5896, scikit-learn 25165."""
    given = draw(trials=trials)
    want = engine.simulate(made(case), *given, **coefficients(case, trials=trials))
    variants = list(zip(*(layouts(x) for x in given), strict=True))
    np.save(tmp_path / "keys.npy", given[0])
    memmap = np.load(tmp_path / "keys.npy", mmap_mode="r")
    variants.append((("memmap", memmap), *((n, x) for n, x in variants[0][1:])))
    for variant in variants:
        arrays = [x for _, x in variant]
        before = [np.array(x).tobytes() for x in arrays]
        got = engine.simulate(made(case), *arrays, **coefficients(case, trials=trials))
        assert_equal(got, want)
        assert [np.array(x).tobytes() for x in arrays] == before, variant[0][0]


def test_coefficients_come_in_every_layout_too():
    keys, values, _ = draw(trials=None)
    beta = np.random.default_rng(0).uniform(size=T)
    want = engine.simulate("delta", keys, values, beta=beta)
    for _, x in layouts(beta):
        assert_equal(engine.simulate("delta", keys, values, beta=x), want)


@pytest.mark.parametrize("dims", list(permutations(("step", "trial", "key"))))
def test_labelled_arrays_are_matched_by_name(dims):
    keys, values, queries = draw(trials=4, value=4)  # square throughout, so no shape would show it
    want = engine.simulate("rls", keys, values, queries, gamma=0.9)
    a = xr.DataArray(keys, dims=("step", "trial", "key")).transpose(*dims)
    v = xr.DataArray(values, dims=("step", "trial", "value"))
    q = xr.DataArray(queries, dims=("step", "trial", "key"), coords={"step": np.arange(T) * 10.0})
    for label in (a, a.chunk(), a.copy(data=np.asfortranarray(a.data))):
        assert_equal(engine.simulate("rls", label, v.T, q, gamma=0.9), want)
    single = a.isel(trial=1)
    got = engine.simulate("rls", single, values[:, 1], queries[:, 1], gamma=0.9)
    assert "trial" not in got.dims
    assert_same(got.S, want.S.isel(trial=1))


def test_labelled_arrays_with_other_dims_are_refused_by_name():
    keys, values, _ = draw()
    for dims in (("time", "trial", "key"), ("step", "trial", "value"), ("step", "batch", "key")):
        with pytest.raises(engine.InputError, match=f"keys has dims .*{dims[0]}.*expected.*step"):
            engine.simulate("delta", xr.DataArray(keys, dims=dims), values)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64", ">i2"])
def test_integers_count_as_floats_and_never_wrap(dtype):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 100, size=(T, D)).astype(dtype)
    values = rng.integers(0, 100, size=(T, M)).astype(dtype)
    before = keys.copy(), values.copy()
    for case in SOLVERS.values():
        got = engine.simulate(made(case), keys, values)
        want = engine.simulate(made(case), keys.astype(float), values.astype(float))
        assert_equal(got, want)
        assert got.attrs["dtype"] == "float64"
    assert_same(keys, before[0])
    assert_same(values, before[1])


def test_integer_products_do_not_wrap():
    """numpy issues 6128, 5626: int16 wraps to -6901, uint8 to [[109, 235], ...]."""
    key = np.array([[-91, -119, -137, -132]], dtype=np.int16)
    assert float(engine.simulate("linear_attention", key, [[1.0]]).output[0, 0]) == 58635.0
    keys = np.array([[30, 12, 91], [18, 4, 13]], dtype=np.uint8)
    ds = engine.simulate("linear_attention", keys, np.eye(2), keys)
    gram = np.array([[9325.0, 1771.0], [1771.0, 509.0]])
    assert_same(ds.output[1], gram[1])
    assert_same(ds.prediction[1], [1771.0, 0.0])
    assert_same(ds.output[0], [9325.0, 0.0])
    # An unsigned error v - S^T k may be negative.
    ds = engine.simulate("delta", np.ones((2, 1), "uint8"), np.array([[200], [3]], "uint8"))
    assert_same(ds.S[:, 0, 0], [200.0, 3.0])


def test_bools_are_zeros_and_ones():
    keys = np.random.default_rng(0).random((T, D)) < 0.5
    for case in SOLVERS.values():
        got = engine.simulate(made(case), keys, keys)
        assert_equal(got, engine.simulate(made(case), keys.astype(float), keys.astype(float)))


# Precision


@each_solver
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (("float64", "float64"), "float64"),
        (("float32", "float32"), "float32"),
        (("float16", "float16"), "float32"),
        (("float16", "float64"), "float64"),
        (("float32", "int64"), "float64"),
        (("bool", "float32"), "float64"),
        (("longdouble", "float32"), "float64"),
        ((">f4", "<f4"), "float32"),
    ],
)
def test_the_precision_is_the_widest_of_the_inputs(case, given, kept):
    keys, values, _ = draw(trials=None)
    keys, values = (abs(keys) > 0.5).astype(given[0]), values.astype(given[1])
    ds = engine.simulate(made(case), keys, values, **coefficients(case, trials=None))
    assert ds.attrs["dtype"] == kept
    for name in ("prediction", "output", *STATES):
        if name in ds and name != "rows":
            assert ds[name].dtype == kept and ds[name].dtype.isnative, name


@each_solver
def test_coefficients_do_not_widen_the_state(case):
    """cupy issue 7418: a 0-d int64 array must not turn float32 into float64."""
    keys, values, _ = draw(trials=None, dtype="float32")
    for one in (1, 1.0, np.int64(1), np.float64(1), np.array(1), np.ones(T), xr.DataArray(1)):
        ds = engine.simulate(made(case), keys, values, **dict.fromkeys(case[2], one))
        assert all(ds[n].dtype == "float32" for n in ("prediction", "output"))
        assert all(ds[n].dtype == "float32" for n in STATES if n in ds and n != "rows")


def test_a_precision_may_be_asked_for():
    keys, values, _ = draw(trials=None)
    narrow = engine.simulate("delta", keys, values, dtype="float32")
    want = engine.simulate("delta", keys.astype("float32"), values.astype("float32"))
    assert_equal(narrow, want)
    wide = engine.simulate("delta", want.output.values, want.output.values, dtype=np.float64)
    assert wide.S.dtype == "float64"
    for dtype in ("float16", "int64", np.complex128, "single precision", object):
        with pytest.raises(engine.InputError, match="dtype = .*float32.*float64"):
            engine.simulate("delta", keys, values, dtype=dtype)


# Refusals


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"keys": (T - 1, B, D)}, (f"{T} steps", f"{T - 1}")),
        ({"values": (T + 2, B, M)}, (f"values has {T + 2} steps", f"keys have {T}")),
        ({"values": (T, B + 1, M)}, (f"values has {B + 1} trials", f"keys have {B}")),
        ({"queries": (T + 1, B, D)}, (f"queries has {T + 1} steps", f"keys have {T}")),
        ({"queries": (T, B, D + 1)}, (f"queries have {D + 1} channels", f"keys have {D}")),
        ({"values": (T, M)}, ("values has 2 axes", "keys have 3")),
        ({"keys": (T,)}, (f"keys has shape ({T},)", "(step, key)", "keys[:, None]")),
        ({"keys": ()}, ("keys has shape ()",)),
        ({"values": (T, B, M, 1)}, (f"values has shape ({T}, {B}, {M}, 1)",)),
        ({"keys": (T, B, 0)}, (f"keys has shape ({T}, {B}, 0)", "only the number of steps")),
        ({"keys": (T, 0, D), "values": (T, 0, M)}, (f"({T}, 0, {D})",)),
        ({"mask": (T + 1, B)}, (f"mask has shape ({T + 1}, {B})", f"{T} steps", f"{B} trials")),
        ({"mask": (T, B + 1)}, (f"mask has shape ({T}, {B + 1})", f"{T} steps", f"{B} trials")),
    ],
)  # fmt: skip
def test_lengths_that_do_not_fit_are_both_named(change, says):
    arrays = dict(zip(("keys", "values", "queries"), draw(), strict=True))
    if "keys" in change and len(change["keys"]) != 3:
        del arrays["queries"]
    arrays |= {name: np.ones(shape) for name, shape in change.items()}
    if change.get("keys") == (T, 0, D):
        del arrays["queries"]
    with pytest.raises(engine.InputError) as error:
        engine.simulate("delta", **arrays)
    for part in says:
        assert part in str(error.value), str(error.value)


@pytest.mark.parametrize(
    "bad",
    [
        np.ones((T, B, D), complex),
        np.full((T, B, D), "x"),
        np.full((T, B, D), None),
        np.zeros((T, B, D), "datetime64[s]"),
        np.zeros((T, B), [("a", float)]),
        None,
        "keys",
        {"a": 1},
        [[1.0], [1.0, 2.0]],
        np.ma.masked_less(np.ones((T, B, D)), 0),
    ],
    ids=[
        "complex",
        "str",
        "object",
        "datetime",
        "record",
        "none",
        "text",
        "dict",
        "ragged",
        "masked",
    ],
)
@pytest.mark.parametrize("name", ["keys", "values", "queries", "mask", "beta"])
def test_what_is_not_numbers_is_refused_by_name(name, bad):
    arrays = dict(zip(("keys", "values", "queries"), draw(), strict=True))
    if bad is None and name in ("queries", "mask", "beta"):
        return  # which is how to leave them out
    with pytest.raises(engine.InputError, match=f"^{name} "):
        engine.simulate("delta", **arrays | {name: bad})


def test_unknown_names_are_refused_with_the_nearest():
    keys, values, _ = draw()
    with pytest.raises(engine.InputError, match="no solver is named 'dleta'.*'delta'"):
        engine.simulate("dleta", keys, values)
    with pytest.raises(engine.InputError, match="Delta takes no coefficient 'bta'.*'beta'"):
        engine.simulate("delta", keys, values, bta=1.0)
    with pytest.raises(engine.InputError, match="'ridge' is a hyperparameter.*engine.solver"):
        engine.simulate("rls", keys, values, ridge=1.0)
    with pytest.raises(engine.InputError, match="record = 'last'"):
        engine.simulate("delta", keys, values, record="last")
    with pytest.raises(engine.InputError, match="no backend is named 'nunpy'.*'numpy'"):
        engine.simulate("delta", keys, values, backend="nunpy")
    for solver in (engine.solvers()["delta"].cls, 3, None):
        with pytest.raises(engine.InputError, match="solver"):
            engine.simulate(solver, keys, values)


def test_what_is_returned_shares_no_memory_with_what_was_given():
    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((2, 6, 2, 3))
    given = {"gamma": np.full((6, 2), 0.9), "beta": np.full((6, 2), 0.5)}
    for kernel in ("loop", "auto"):
        ds = engine.simulate("gated_delta", keys, values, kernel=kernel, **given)
        whole = [x.values for x in ds.variables.values()]
        for i, x in enumerate(whole):
            assert x.flags.writeable
            others = [*whole[:i], keys, values, *given.values()]
            assert not any(np.shares_memory(x, other) for other in others)

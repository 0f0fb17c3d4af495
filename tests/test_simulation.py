"""`engine.simulate`: its dims and conventions, every form of input, every refusal."""

from dataclasses import dataclass
from itertools import permutations
from typing import Annotated, NamedTuple

import numpy as np
import pytest
import xarray as xr

import engine
from engine.api import Array, Gain, KeyDecay
from engine.linear import LinearRule, Token

T, B, D, M = 12, 3, 4, 2

# Name, hyperparameters, and coefficients that vary from step to step.
SOLVERS = {
    "softmax": ("softmax_attention", {"scale": 0.5}, {}),
    "linear": ("linear_attention", {}, {}),
    "linear normalised": ("linear_attention", {"normalise": True, "eps": 0.5}, {}),
    "delta": ("delta", {}, {"beta": (0.1, 1.0)}),
    "longhorn": ("longhorn", {}, {"beta": (0.0, 3.0)}),
    "rls": ("rls", {}, {"gamma": (0.9, 1.0)}),
    "least squares": ("least_squares", {"ridge": 1e-3}, {"gamma": (0.0, 1.0)}),
}
each_solver = pytest.mark.parametrize("case", SOLVERS.values(), ids=SOLVERS.keys())
STATES = ("S", "P", "z", "A", "B", "keys", "values", "rows")


def draw(steps=T, trials=B, key=D, value=M, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    lead = (steps,) if trials is None else (steps, trials)
    return tuple(rng.normal(size=(*lead, n)).astype(dtype) for n in (key, value, key))


def coefficients(case, steps=T, trials=B, seed=1):
    rng = np.random.default_rng(seed)
    lead = (steps,) if trials is None else (steps, trials)
    return {name: rng.uniform(*limits, size=lead) for name, limits in case[2].items()}


def made(case):
    return engine.solver(case[0], **case[1])


def assert_same(got, want):
    """Assert that two arrays have the same bits, dtype and shape."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)  # for the message
    assert got.tobytes() == want.tobytes()


def assert_equal(a, b):
    """Assert that two results have the same bits in every variable."""
    assert set(a.data_vars) == set(b.data_vars) and a.sizes == b.sizes
    for name in a.data_vars:
        assert a[name].dims == b[name].dims
        assert_same(a[name], b[name])


@dataclass(frozen=True)
class Gated(LinearRule):
    """S <- Diag(gamma) S + beta k (v - S^T k)^T: a decay of its own for each key channel."""

    def token(self, k, v, *, gamma: KeyDecay = 1.0, beta: Gain = 1.0) -> Token:
        return Token(write=beta * k, value=v, address=gamma * k, decay=gamma)


# Dims and conventions


def test_one_stream_has_no_trial_dim():
    keys, values, _ = draw(trials=None)
    ds = engine.simulate("delta", keys, values, beta=0.5)
    assert ds.sizes == {"step": T, "key": D, "value": M}
    assert ds.prediction.dims == ds.output.dims == ("step", "value")
    assert ds.S.dims == ("step", "key", "value")
    assert ds.diverged_at.dims == () and int(ds.diverged_at) == -1
    assert set(ds.data_vars) == {"prediction", "output", "S", "beta", "diverged_at"}
    assert ds.attrs == {"solver": "Delta", "dtype": "float64", "backend": "numpy"}


def test_trials_have_a_dim_even_if_there_is_one():
    for trials in (1, 3):
        ds = engine.simulate("delta", *draw(trials=trials)[:2])
        assert ds.S.dims == ("step", "trial", "key", "value")
        assert ds.sizes["trial"] == trials and ds.diverged_at.dims == ("trial",)


def test_a_second_axis_of_the_same_length_has_another_name():
    """isel, mean and chunk act on one axis; warnings are errors here."""
    ds = engine.simulate("rls", *draw(2, None, 3, 3)[:2])
    assert ds.P.dims == ("step", "key", "key_2")
    assert ds.P.isel(key_2=0).shape == (2, 3)
    assert_same(ds.P.isel(key_2=1), ds.P.values[:, :, 1])
    np.testing.assert_allclose(ds.P.mean("key_2"), ds.P.values.mean(-1))
    chunked = ds.chunk(key_2=2)
    assert chunked.P.chunks == ((2,), (3,), (2, 1))
    assert_same(chunked.P.compute(), ds.P)


def test_predictions_come_before_the_write_and_outputs_after_it():
    keys, values, queries = draw(trials=None)
    ds = engine.simulate("delta", keys, values, queries, beta=0.5)
    S = np.zeros((D, M))
    for t in range(T):
        np.testing.assert_allclose(ds.prediction[t], S.T @ keys[t], rtol=1e-13, atol=1e-14)
        S = S + 0.5 * np.outer(keys[t], values[t] - S.T @ keys[t])
        np.testing.assert_allclose(ds.S[t], S, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(ds.output[t], S.T @ queries[t], rtol=1e-12, atol=1e-13)
    assert not ds.prediction[0].values.any()


@each_solver
def test_queries_default_to_the_keys(case):
    keys, values, _ = draw()
    given = coefficients(case)
    assert_equal(
        engine.simulate(made(case), keys, values, **given),
        engine.simulate(made(case), keys, values, keys.copy(), **given),
    )


@each_solver
def test_queries_change_nothing_but_the_output(case):
    keys, values, queries = draw()
    a = engine.simulate(made(case), keys, values, **coefficients(case))
    b = engine.simulate(made(case), keys, values, queries, **coefficients(case))
    assert (a.output != b.output).any()
    assert_equal(a.drop_vars("output"), b.drop_vars("output"))


@each_solver
def test_a_solver_by_name_is_one_with_its_defaults(case):
    keys, values, _ = draw()
    assert_equal(
        engine.simulate(case[0], keys, values),
        engine.simulate(engine.solver(case[0]), keys, values),
    )


@each_solver
def test_no_steps_give_an_empty_result(case):
    keys, values, queries = draw(0)
    given = coefficients(case, 0)
    ds = engine.simulate(made(case), keys, values, queries, **given)
    full = engine.simulate(made(case), *draw(), **coefficients(case))
    assert set(ds.data_vars) == set(full.data_vars)
    for name in ds.data_vars:
        assert ds[name].dims == full[name].dims and ds[name].dtype == full[name].dtype
    assert ds.prediction.shape == ds.output.shape == (0, B, M)
    assert (ds.diverged_at == -1).all()
    final = engine.simulate(made(case), keys, values, record="final", **given)
    assert "step" in final.sizes and all("step" not in final[n].dims for n in STATES if n in final)


@each_solver
def test_the_final_record_is_the_last_state(case):
    keys, values, queries = draw()
    given = coefficients(case)
    every = engine.simulate(made(case), keys, values, queries, **given)
    final = engine.simulate(made(case), keys, values, queries, record="final", **given)
    for name in every.data_vars:
        state = name in STATES and "step" in every[name].dims
        assert_same(final[name], every[name].isel(step=-1) if state else every[name])


def test_a_result_may_be_changed_without_changing_another():
    """nothing recorded is a reference to anything that lives on."""
    keys, values, _ = draw(trials=None)
    first = engine.simulate("delta", keys, values)
    kept = first.copy(deep=True)
    second = engine.simulate("delta", keys, values, state=first)
    second.S.values[:] = 7.0
    keys[:], values[:] = -1.0, -1.0
    assert_equal(first, kept)


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


# Coefficients


def gated_loop(keys, values, gamma, beta):
    """Return the states of `Gated` as a plain loop over one trial gives them."""
    S, states = np.zeros((keys.shape[1], values.shape[1])), []
    for k, v, g, b in zip(keys, values, gamma, beta, strict=True):
        S = g[:, None] * S
        S = S + b * np.outer(k, v - S.T @ k)
        states.append(S)
    return np.array(states)


FORMS = {
    "number": (),
    "step": ("step",),
    "step trial": ("step", "trial"),
    "step trial key": ("step", "trial", "key"),
}


@pytest.mark.parametrize("dims", FORMS.values(), ids=FORMS.keys())
def test_a_coefficient_varies_along_what_it_is_given_along(dims):
    keys, values, _ = draw()
    sizes = {"step": T, "trial": B, "key": D}
    rng = np.random.default_rng(1)
    gamma = rng.uniform(size=tuple(sizes[d] for d in dims))
    beta = rng.uniform(size=(T, B))
    ds = engine.simulate(Gated(), keys, values, gamma=gamma, beta=beta)
    shape = tuple(n if d in dims else 1 for d, n in sizes.items())
    full = np.broadcast_to(gamma.reshape(shape), (T, B, D))
    for b in range(B):
        want = gated_loop(keys[:, b], values[:, b], full[:, b], beta[:, b])
        np.testing.assert_allclose(ds.S[:, b], want, rtol=1e-12, atol=1e-13)
    assert ds.gamma.dims == dims
    assert_same(ds.gamma, gamma)
    spelled = engine.simulate(Gated(), keys, values, gamma=full, beta=beta)
    assert_equal(ds.drop_vars("gamma"), spelled.drop_vars("gamma"))
    for order in permutations(dims):
        labelled = xr.DataArray(gamma, dims=dims).transpose(*order)
        got = engine.simulate(Gated(), keys, values, gamma=labelled, beta=beta)
        assert_equal(got, ds)


def test_a_channel_gate_without_trials():
    keys, values, _ = draw(trials=None)
    gamma = np.random.default_rng(1).uniform(size=(T, D))
    want = gated_loop(keys, values, gamma, np.ones(T))
    for given in (gamma, xr.DataArray(gamma, dims=("step", "key")).T):
        ds = engine.simulate(Gated(), keys, values, gamma=given)
        np.testing.assert_allclose(ds.S, want, rtol=1e-12, atol=1e-13)
        assert ds.gamma.dims == ("step", "key")
    labelled = xr.DataArray(gamma[:, 0], dims="step")
    ds = engine.simulate(Gated(), keys, values, gamma=labelled)
    assert_equal(ds, engine.simulate(Gated(), keys, values, gamma=gamma[:, 0]))


def test_a_decay_of_zero_is_a_full_reset():
    keys, values, _ = draw(trials=None)
    gamma = np.ones(T)
    gamma[5] = 0.0
    ds = engine.simulate(Gated(), keys, values, gamma=gamma)
    fresh = engine.simulate(Gated(), keys[5:], values[5:])
    assert_same(ds.S[5:], fresh.S)


def test_a_recorded_coefficient_can_be_given_back():
    keys, values, _ = draw()
    for beta in (0.5, np.random.default_rng(0).uniform(size=(T, B))):
        ds = engine.simulate("delta", keys, values, beta=beta)
        assert_equal(engine.simulate("delta", keys, values, beta=ds.beta), ds)


@pytest.mark.parametrize("shape", [(T + 1,), (B,), (T, B + 1), (B, T), (T, B, D), (1, 1, 1, 1)])
def test_a_coefficient_that_does_not_fit_is_refused_with_its_shape(shape):
    keys, values, _ = draw()
    with pytest.raises(engine.InputError) as error:
        engine.simulate("delta", keys, values, beta=np.ones(shape))
    for part in ("beta", str(shape), f"{T} steps", f"{B} trials"):
        assert part in str(error.value)


def test_a_channel_gate_of_another_width_is_refused():
    keys, values, _ = draw()
    with pytest.raises(engine.InputError, match=f"gamma.*{D + 1}.*{D}"):
        engine.simulate(Gated(), keys, values, gamma=np.ones((T, B, D + 1)))


@pytest.mark.parametrize(
    ("solver", "given", "says"),
    [
        ("delta", -0.5, "beta = -0.5 must be at least 0"),
        ("delta", np.nan, "beta = nan must be at least 0"),
        ("delta", np.inf, "beta = inf must be"),
        ("longhorn", -1, "beta = -1 must be at least 0"),
        ("rls", 1.5, r"gamma = 1.5 must be in \(0, 1\]"),
        ("rls", 0, r"gamma = 0 must be in \(0, 1\]"),
        ("rls", -0.1, r"gamma = -0.1 must be in \(0, 1\]"),
        ("least_squares", 1 + 1e-15, r"gamma = 1.00\d* must be in \[0, 1\]"),
    ],
)
def test_coefficients_out_of_bounds_are_refused_before_the_run(solver, given, says, monkeypatch):
    monkeypatch.setattr("engine.loop.Track.advance", lambda *args: pytest.fail("it ran"))
    keys, values, _ = draw()
    name = "gamma" if "gamma" in says else "beta"
    with pytest.raises(engine.InputError, match=says):
        engine.simulate(solver, keys, values, **{name: given})
    late = np.ones((T, B))
    late[T - 2, 1] = given
    with pytest.raises(engine.InputError, match=f"{name} = .* at step {T - 2}, trial 1 must be"):
        engine.simulate(solver, keys, values, **{name: late})


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


# Masks


@each_solver
def test_a_masked_step_changes_no_bit_of_the_state(case):
    keys, values, _ = draw()
    mask = np.random.default_rng(2).random((T, B)) < 0.6
    mask[0] = [True, False, True]
    mask[4] = False
    ds = engine.simulate(made(case), keys, values, mask=mask, **coefficients(case))
    start = engine.simulate(made(case), *(x[:1] for x in draw()[:2]), mask=np.zeros((1, B), bool),
                            **coefficients(case, 1))  # fmt: skip
    for name in STATES:
        if name in ds and "step" in ds[name].dims:
            for t in range(T):
                before = ds[name][t - 1] if t else start[name][0]
                for b in range(B):
                    if not mask[t, b]:
                        assert_same(ds[name][t, b], before[b])
                    elif name in ("S", "rows"):
                        assert (ds[name][t, b] != before[b]).any()


@each_solver
@pytest.mark.parametrize("junk", [0.0, 1e6, np.nan, np.inf])
def test_a_masked_stream_is_the_stream_of_its_unmasked_steps(case, junk):
    """Whatever stands at a masked step: key, value, coefficient."""
    keys, values, _ = draw()
    mask = np.random.default_rng(2).random((T, B)) < 0.6
    given = coefficients(case)
    for array in (keys, values, *given.values()):
        array[~mask] = junk
    ds = engine.simulate(made(case), keys, values, mask=mask, **given)
    assert (ds.diverged_at == -1).all()
    for b in range(B):
        on = mask[:, b]
        alone = {name: x[on, b] for name, x in given.items()}
        want = engine.simulate(made(case), keys[on, b], values[on, b], **alone)
        for name in ("prediction", "output", *STATES):
            if name in ("keys", "values") and name in want:
                assert_same(ds[name][: on.sum(), b], want[name])
            elif name in want:
                assert_same(ds[name][on, b], want[name])
        assert np.isnan(ds.prediction[~on, b]).all() and np.isnan(ds.output[~on, b]).all()


@each_solver
def test_queries_are_answered_at_masked_steps(case):
    keys, values, queries = draw()
    mask = np.random.default_rng(2).random((T, B)) < 0.6
    given = coefficients(case)
    ds = engine.simulate(made(case), keys, values, queries, mask=mask, **given)
    assert np.isfinite(ds.output).all()
    assert np.isnan(ds.prediction.values[~mask]).all()
    for b in range(B):
        for t in np.flatnonzero(~mask[:, b])[:3]:
            on = mask[:t, b]
            want = np.zeros(M)
            if on.any():
                # The same writes, then the query of step t asked right after the last of them.
                asked = keys[:t, b][on].copy()
                asked[-1] = queries[t, b]
                alone = {name: x[:t, b][on] for name, x in given.items()}
                run = engine.simulate(
                    made(case), keys[:t, b][on], values[:t, b][on], asked, **alone
                )
                want = run.output[-1]
            assert_same(ds.output[t, b], want)


def test_masks_come_in_several_forms():
    keys, values, _ = draw()
    mask = np.arange(T) % 3 > 0
    want = engine.simulate("rls", keys, values, mask=np.repeat(mask[:, None], B, 1), gamma=0.9)
    by_trial = np.repeat(mask[:, None], B, 1)
    for form in (
        mask, mask.astype(int), mask.astype(float), mask.tolist(), mask[:, None],
        xr.DataArray(mask, dims="step"), xr.DataArray(by_trial.T, dims=("trial", "step")),
    ):  # fmt: skip
        assert_equal(engine.simulate("rls", keys, values, mask=form, gamma=0.9), want)
    for bad in (mask + 1, mask * 0.5, np.where(mask, 1.0, np.nan)):
        with pytest.raises(engine.InputError, match="mask must hold bools"):
            engine.simulate("rls", keys, values, mask=bad)


@each_solver
def test_a_mask_of_ones_is_no_mask(case):
    given = coefficients(case)
    ds = engine.simulate(made(case), *draw(), mask=np.ones(T, bool), **given)
    assert_equal(ds, engine.simulate(made(case), *draw(), **given))


# Starting from a state


@each_solver
@pytest.mark.parametrize("trials", [None, B])
@pytest.mark.parametrize("split", [1, 7, T - 1])
@pytest.mark.parametrize("record", ["every", "final"])
def test_a_run_split_anywhere_is_one_run(case, trials, split, record):
    keys, values, queries = draw(trials=trials)
    given = coefficients(case, trials=trials)
    mask = np.random.default_rng(2).random(keys.shape[:-1]) < 0.8
    whole = engine.simulate(made(case), keys, values, queries, mask=mask, **given)
    first, rest = (
        {"mask": mask[part], **{n: x[part] for n, x in given.items()}}
        for part in (slice(None, split), slice(split, None))
    )
    a = engine.simulate(
        made(case), keys[:split], values[:split], queries[:split], record=record, **first
    )
    names = [n for n in STATES if n in a]
    last = {n: a[n].isel(step=-1) if "step" in a[n].dims else a[n] for n in names}
    by_name = {n: x.transpose(*reversed(x.dims)) for n, x in last.items()}
    plain = {n: x.values.tolist() for n, x in last.items()}
    shuffled = a.transpose(*sorted(a.dims, reverse=True))
    for state in (a, shuffled, last, by_name, {n: x.values for n, x in last.items()}, plain):
        b = engine.simulate(
            made(case), keys[split:], values[split:], queries[split:], state=state, **rest
        )
        for name in ("prediction", "output", *STATES):
            if name in ("keys", "values"):
                if name in whole:
                    assert_same(b[name], whole[name])
            elif name in whole:
                assert_same(b[name], whole[name][split:])


@each_solver
def test_a_run_may_go_on_from_any_step_of_another(case, tmp_path):
    """In memory or stored: as a Dataset, as a node of a tree, cut by xarray."""
    solvers = {"it": {"solver": case[0], **case[1]}}
    stream = {"generator": "random", "steps": T, "key": D, "value": M}
    scenario = {"trials": B, "stream": stream, "solvers": solvers}
    for run in (engine.run(scenario), engine.run(scenario, tmp_path / "run.zarr")):
        keys, values = run["stream/keys"], run["stream/values"]
        whole, ds = run["solvers/it"], run["solvers/it"].to_dataset()
        for cut in (ds.isel(step=4), ds.isel(step=slice(5)), whole.isel(step=slice(5))):
            rest = slice(5, None)
            got = engine.simulate(made(case), keys[rest], values[rest], state=cut)
            assert_same(got.output, whole["output"][rest])
        after = engine.simulate(made(case), keys, values, state=whole)
        assert_equal(after, engine.simulate(made(case), keys, values, state=ds))


def test_a_given_state_is_read_not_written():
    """Neither a linear state nor rows that have room for more."""
    keys, values, _ = draw(trials=None)
    S = np.random.default_rng(3).normal(size=(D, M))
    before = S.copy()
    engine.simulate("delta", keys, values, state={"S": S})
    assert_same(S, before)
    rows, stored = np.ones((9, D)), np.ones((9, M))
    state = {"keys": rows, "values": stored, "rows": np.array(2)}
    ds = engine.simulate("softmax_attention", keys, values, state=state)
    assert (rows == 1).all() and (stored == 1).all()
    assert ds.rows.values.tolist() == list(range(3, T + 3))
    assert_same(ds["keys"], np.concatenate([rows[:2], keys]))


def test_a_state_that_does_not_fit_is_refused_by_name():
    keys, values, _ = draw()
    S = np.zeros((B, D, M))
    for state, says in (
        ({}, "no 'S'; it must give S"),
        ({"T": S}, "unknown 'T'; it must give S"),
        ({"S": S, "z": S}, "unknown 'z'; it must give S"),
        ({"S": S[:2]}, rf"'S' has shape \(2, {D}, {M}\), expected \({B}, {D}, {M}\)"),
        ({"S": S[..., :1]}, rf"'S' has shape \({B}, {D}, 1\), expected \({B}, {D}, {M}\)"),
        ({"S": S[0]}, rf"'S' has shape \({D}, {M}\), expected \(trial, key, value\)"),
        ({"S": S.astype(complex)}, "S has dtype complex128"),
        ({"S": xr.DataArray(S, dims=("trial", "key", "step"))}, "S has dims"),
        (S, "must map state variables to arrays, not be a ndarray"),
        (3, "must map state variables to arrays, not be a int"),
    ):
        with pytest.raises(engine.InputError, match=f"^state.*{says}"):
            engine.simulate("delta", keys, values, state=state)
    k, v = np.zeros((5, B, D)), np.zeros((5, B, M))
    for state, says in (
        ({"keys": k}, "no 'values'"),
        ({"keys": k[..., :2], "values": v}, rf"'keys' has shape \(5, {B}, 2\)"),
        ({"keys": k[:, :1], "values": v}, rf"'keys' has shape \(5, 1, {D}\)"),
        ({"keys": k, "values": v[:3]}, "equal numbers of rows"),
        ({"keys": k, "values": v, "rows": np.array([0, 5, 6])}, r"'rows' = \[0, 5, 6\] .* 0 to"),
        ({"keys": k, "values": v, "rows": np.array([-1, 0, 0])}, r"'rows' = \[-1"),
        ({"keys": k, "values": v, "rows": np.array([1, 1])}, r"'rows' = \[1, 1\] must be 3"),
    ):
        with pytest.raises(engine.InputError, match=f"^state: .*{says}"):
            engine.simulate("softmax_attention", keys, values, state=state)


@each_solver
def test_a_result_without_steps_has_no_last_state(case):
    empty = engine.simulate(made(case), *draw(0))
    with pytest.raises(engine.InputError, match="state: .* no steps"):
        engine.simulate(made(case), *draw(), state=empty)


# Other people's solvers


class Counted(NamedTuple):
    S: Annotated[Array, "key value"]
    count: Annotated[Array, ""]
    seen: Annotated[Array, "key"]


@dataclass(frozen=True)
class Counter:
    """S <- S + k v^T in place, with an integer and a bool beside it."""

    def init(self, space):
        count = space.xp.zeros(space.lead, dtype=space.xp.int64)
        seen = space.xp.zeros(space.shape("key"), dtype=space.xp.bool)
        return Counted(space.zeros("key value"), count, seen)

    def write(self, s, k, v):
        s.S[...] += k[..., :, None] * v[..., None, :]
        s.count[...] += 1
        s.seen[...] |= k != 0
        return s

    def read(self, s, q):
        return (q[..., None, :] @ s.S)[..., 0, :]


def test_a_state_updated_in_place_is_recorded_step_by_step():
    """mizer issue 285: every step, not the last one everywhere."""
    ds = engine.simulate(Counter(), np.eye(3), np.ones((3, 1)))
    assert ds.S.values[..., 0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert ds["count"].dtype == "int64" and ds["count"].values.tolist() == [1, 2, 3]
    assert ds.seen.dtype == "bool" and ds.seen.values.sum(-1).tolist() == [1, 2, 3]
    assert ds["count"].dims == ("step",) and ds.seen.dims == ("step", "key")


def test_a_state_updated_in_place_is_rolled_back_where_masked():
    keys, values, _ = draw()
    mask = np.random.default_rng(2).random((T, B)) < 0.6
    got = engine.simulate(Counter(), keys, values, mask=mask)
    assert_same(got["count"], np.cumsum(mask, axis=0))
    want = engine.simulate("linear_attention", keys, values, mask=mask)
    assert_same(got.S, want.S)


def test_a_state_updated_in_place_is_not_the_callers():
    keys, values, _ = draw(trials=None)
    first = engine.simulate(Counter(), keys, values)
    kept = first.copy(deep=True)
    second = engine.simulate(Counter(), keys, values, state=first)
    assert int(second["count"][-1]) == 2 * T
    assert_equal(first, kept)
    given = {"S": np.zeros((D, M)), "count": np.array(0), "seen": np.zeros(D, bool)}
    engine.simulate(Counter(), keys, values, state=given)
    assert not given["S"].any() and not given["count"] and not given["seen"].any()


@dataclass(frozen=True)
class Scribbler(LinearRule):
    """Normalises its key where it stands."""

    def token(self, k, v) -> Token:
        k /= 2
        return Token(write=k, value=v)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_solver_cannot_write_into_the_stream(dtype):
    keys, values, _ = draw(trials=None)
    before = keys.copy()
    with pytest.raises(engine.RunError, match="'scribbler' failed at step 0: .*read-only"):
        engine.simulate(Scribbler(), keys, values, dtype=dtype)
    assert_same(keys, before)
    assert keys.flags.writeable


@each_solver
def test_every_solver_runs_on_a_device(case):
    """array-api-strict raises on a hidden copy to the host; its bits are NumPy's."""
    keys, values, queries = draw()
    mask = np.random.default_rng(2).random((T, B)) < 0.8
    given = coefficients(case) | {"mask": mask}
    want = engine.simulate(made(case), keys, values, queries, **given)
    got = engine.simulate(made(case), keys, values, queries, backend="array_api_strict", **given)
    assert got.attrs["backend"] == "array_api_strict"
    assert_equal(got, want)


# Divergence


def test_each_trial_is_flagged_at_its_own_first_step():
    keys, values = np.ones((400, 3, 1)), np.ones((400, 3, 1))
    ds = engine.simulate("delta", keys, values, beta=np.broadcast_to([1.0, 9.0, 50.0], (400, 3)))
    S = ds.S.values[..., 0, 0]
    assert int(ds.diverged_at[0]) == -1 and np.isfinite(S[:, 0]).all()
    for b in (1, 2):
        first = int(ds.diverged_at[b])
        reads = np.stack([ds.prediction.values[:, b, 0], ds.output.values[:, b, 0], S[:, b]])
        assert np.isfinite(reads[:, :first]).all() and not np.isfinite(reads[:, first]).all()
    assert 300 < int(ds.diverged_at[1]) < 345 and 175 < int(ds.diverged_at[2]) < 190


@pytest.mark.skipif(np.finfo(np.longdouble).max == np.finfo(float).max, reason="no wider float")
def test_a_long_double_out_of_range_is_flagged():
    keys = np.ones((T, D), dtype=np.longdouble)
    keys[3] = np.longdouble("1e4000")
    assert int(engine.simulate("delta", keys, draw(trials=None)[1]).diverged_at) == 3


def test_a_missing_value_is_flagged_where_it_enters():
    keys, values, _ = draw(trials=None)
    values[5, 1] = np.nan
    for solver in ("delta", "softmax_attention"):
        ds = engine.simulate(solver, keys, values)
        assert int(ds.diverged_at) == 5
    mask = np.arange(T) != 5
    assert int(engine.simulate("delta", keys, values, mask=mask).diverged_at) == -1


def test_a_query_that_is_not_finite_is_not_the_solvers_fault():
    keys, values, queries = draw(trials=None)
    queries[3] = np.nan
    ds = engine.simulate("delta", keys, values, queries)
    assert np.isnan(ds.output[3]).all() and int(ds.diverged_at) == -1

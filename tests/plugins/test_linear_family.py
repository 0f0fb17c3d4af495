"""The linear family: limits, and the laws each rule states for itself.

What each rule computes is compared with its authors' code in tests/test_golden.py.
"""

import dataclasses

import numpy as np
import pytest

import engine
from engine.cards import evaluate

from .linear_family_cases import DK, DV, FAMILY, VECTORS, B, T, unit

NO_RESET = (  # no decay, or an erasure that reads the undecayed state
    "delta kaczmarz linear_attention lms longhorn longhorn_diagonal longhorn_momentum nlms mamba "
    "mamba2 dplr rwkv7 momentum_delta titans rwkv6"
).split()


STATE = ("S", "U", "R", "A", "z", "position")
ERRORS = {"before decay", "after decay", "no decay", "no error"}


# Stability and limits.


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.5, 2.0])
def test_a_delta_step_contracts_up_to_beta_two(draw, beta):
    # |I - beta k k^T| <= 1 iff 0 <= beta |k|^2 <= 2
    S = draw.rng.normal(size=(B, DK, DV))
    c = {"v": 0 * draw.v, "k": draw.unit, "state": {"S": S}, "beta": beta}
    for name in ("delta", "gated_delta", "kda"):
        size = np.linalg.norm(draw(name, **c).S.values, axis=(-2, -1))
        assert (np.diff(size, axis=0) <= 1e-14 * size[:-1]).all()


@pytest.mark.parametrize("name, beta", [("delta", "beta"), ("lms", "mu"), ("kaczmarz", "mu")])
def test_a_repeated_unit_key_at_beta_near_two(name, beta):
    # S_t = 1 - (1 - beta)^t: 1.899e8 at 2.1 after 200 writes, 2, 0, 2, 0 at 2, towards 1 at 1.9
    one = np.ones((200, 1))
    S = {b: engine.simulate(name, one, one, **{beta: b}).S.values[:, 0, 0] for b in (2.1, 2, 1.9)}
    np.testing.assert_allclose(abs(S[2.1][-1]), 1.1**200 - 1, rtol=1e-9)
    assert S[2].tolist() == [2.0, 0.0] * 100
    assert abs(S[1.9][-1] - 1) < 1e-8


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_an_exploding_delta_rule_is_a_plain_loop_while_finite_and_says_when_not(dtype):
    rng = np.random.default_rng(0)
    k, v = (rng.normal(size=(64, 64)).astype(dtype) for _ in range(2))
    beta = 1 / (1 + np.exp(-rng.normal(size=64)))
    ds = engine.simulate("delta", k, v, beta=beta)
    S, wide = np.zeros((64, 64)), (k.astype(np.float64), v.astype(np.float64))
    for t, (key, value) in enumerate(zip(*wide, strict=True)):
        S = S + np.outer(beta[t] * key, value - S.T @ key)
        error = np.abs(ds.S.values[t] - S).max() / np.abs(S).max()
        assert error < (1e-10 if dtype == "float64" else 1e-3)
    assert np.abs(S).max() > 1e20 and int(ds.diverged_at) == -1
    more = engine.simulate("delta", np.tile(k, (20, 1)), np.tile(v, (20, 1)), beta=1.0)
    first = int(more.diverged_at)
    assert first > 0 and np.isfinite(more.S.values[:first]).all()


@pytest.mark.parametrize("name", FAMILY)
def test_a_rule_diverges_where_its_card_says_and_not_by_default(name):
    card, n = engine.solvers()[name].cls.card, 200
    k = np.tile(unit(np.arange(1.0, DK + 1)), (n, 1))
    v = np.tile(unit(np.ones(DV)), (n, 1))
    given = {} if name == "dplr" else {x: k for x in VECTORS.get(name, ())}
    if card.diverges:
        ds = engine.simulate(name, k, v, **given | card.diverges)
        assert int(ds.diverged_at) >= 0 or np.abs(ds.S.values[-1]).max() > 1e20
    if name != "dplr":
        ds = engine.simulate(name, k, v, **given)
        assert np.abs(ds.S.values).max() <= n


def titans_growth(gap, theta, eta, alpha):
    """Growth of the readout at a key per revisit, every `gap` steps, of Titans-linear."""
    k = np.tile(np.eye(gap), (60, 1))
    S = np.ones((gap, 1))
    c = {"theta": theta, "eta": eta, "alpha": alpha}
    ds = engine.simulate("titans", k, np.zeros((len(k), 1)), state={"S": S, "U": 0 * S}, **c)
    size = np.abs(ds.S.values[gap - 1 :: gap, 0, 0])
    return size, size[-1] / size[-2]


def test_titans_at_the_published_setting_grows_per_revisit():
    assert abs(titans_growth(8, 0.5, 0.9, 0.1)[1] - 2.901578) < 1e-6


@pytest.mark.parametrize("n, eta, r", [(1, 0.5, 1.0), (3, 0.5, 0.8), (6, 0.8, 0.9), (4, 0.0, 0.7)])
def test_titans_is_stable_up_to_its_law(n, eta, r):
    # 2 theta |k|^2 (r^n - eta^n) / (r - eta) < (1 + r^n)(1 + eta^n), r = 1 - alpha, gap n
    edge = (1 + r**n) * (1 + eta**n) * (r - eta) / (r**n - eta**n) / 2
    below, above = (titans_growth(n, edge * x, eta, 1 - r)[0] for x in (0.97, 1.03))
    assert below[-10:].max() < below[:10].max() and above[-10:].max() > above[:10].max()


@pytest.mark.parametrize("name", [n for n in FAMILY if n not in NO_RESET])
def test_gamma_zero_is_a_full_reset(draw, name):
    gamma = np.ones(T)
    gamma[20:22] = 0.0
    options = {"micro_steps": 1} if name == "delta_product" else {}
    solver, c = engine.solver(name, **options), draw.vectors(name)
    if name.startswith("preconditioned"):
        c["gamma_a"] = gamma
    c["gamma"] = gamma
    whole = engine.simulate(solver, draw.k, draw.v, **c)
    later = {n: x[20:] for n, x in c.items()}
    later["gamma"] = np.where(np.arange(T - 20) == 0, 1.0, later["gamma"])
    fresh = engine.simulate(solver, draw.k[20:], draw.v[20:], **later)
    np.testing.assert_array_equal(whole.S.values[20:], fresh.S.values)
    np.testing.assert_array_equal(whole.output.values[20:], fresh.output.values)


# Adaptive filters on keys of no length.


@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_a_zero_key_writes_nothing(eps):
    ds = engine.simulate(engine.solver("nlms", eps=eps), np.zeros((2, 2)), np.ones((2, 1)))
    assert not ds.S.values.any() and int(ds.diverged_at) == -1
    assert not engine.simulate("kaczmarz", np.zeros((2, 2)), np.ones((2, 1))).S.values.any()


@pytest.mark.parametrize("solver", [("nlms", 1e-8), ("nlms", 0.0), ("kaczmarz", None)])
@pytest.mark.parametrize("size", [1e-30, 1e-22, 1e-20])
def test_a_tiny_float32_key_neither_divides_by_zero_nor_overflows(solver, size):
    name, eps = solver
    rule = engine.solver(name, **({} if eps is None else {"eps": eps}))
    k = np.array([[size, 0], [1, 0], [1, 0], [1, 0]], np.float32)
    ds = engine.simulate(rule, k, np.array([[-1], [1], [1], [1]], np.float32), mu=1.0)
    assert ds.S.dtype == np.float32 and int(ds.diverged_at) == -1
    np.testing.assert_allclose(ds.S.values[-1, :, 0], [1, 0], rtol=1e-6)


# Hyperparameters.


REFUSED = [
    ("nlms", {"eps": -1.0}, "eps = -1.0 must be at least 0"),
    ("nlms", {"eps": float("nan")}, "eps = nan"),
    ("mamba2", {"A": 0.5}, "A = 0.5 must be at most 0"),
    ("mamba", {"A": 0.5}, "A has 0.5"),
    ("mamba", {"A": [[-1.0, float("nan")]]}, "A has nan"),
    ("mamba", {"A": [[-1.0, -2.0], [-1.0]]}, "rows of one length"),
    ("mamba", {"A": [[-1.0] * DV] * DK}, r"A has shape \(5, 4\), expected .* = \(4, 5\)"),
    ("rwkv6", {"bonus": [1.0] * 3}, "bonus has 3 numbers, expected one per key channel: 5"),
    ("delta_product", {"micro_steps": 0}, "micro_steps = 0 must be at least 1"),
    ("preconditioned_kda", {"eps": 0.0}, "eps = 0.0 must be above 0"),
    ("preconditioned_kda", {"base": 0.5}, "base = 0.5 must be at least 1"),
]


@pytest.mark.parametrize("name, options, words", REFUSED)
def test_a_hyperparameter_that_cannot_be_is_refused_by_name(draw, name, options, words):
    with pytest.raises(ValueError, match=words):
        draw(name, options=options)


def test_a_vector_without_a_natural_default_must_be_given(draw):
    for name in VECTORS:
        with pytest.raises(engine.InputError, match="needs the coefficient"):
            draw(name)


# Every rule alike.


OPTIONS = {
    "mamba": {"A": (-np.arange(1.0, DV * DK + 1).reshape(DV, DK) / 9).tolist()},
    "rwkv6": {"bonus": [0.1, 0.2, 0.3, 0.4, 0.5]},
    "linear_attention": {"normalise": True},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FAMILY)
def test_the_strict_array_api_gives_the_same_and_the_dtype_stays(draw, name, dtype):
    c = draw.vectors(name)
    for solver in (name, engine.solver(name, **OPTIONS.get(name, {}))):
        ours, strict = (
            engine.simulate(solver, draw.k, draw.v, draw.q, backend=b, dtype=dtype, **c)
            for b in ("numpy", "array_api_strict")
        )
        for variable in ours.data_vars:
            a, b = ours[variable].values, strict[variable].values
            assert np.abs(a - b).max() <= 100 * np.finfo(dtype).eps * max(1.0, np.abs(a).max())
        assert {ours[n].dtype for n in ours if n in (*STATE, "prediction", "output")} == {
            np.dtype(dtype)
        }


@pytest.mark.parametrize("name", FAMILY)
def test_an_empty_memory_reads_zeros_and_trials_do_not_see_each_other(draw, name):
    c = draw.vectors(name)
    whole = engine.simulate(name, draw.k, draw.v, **c)
    assert not whole.prediction.values[0].any()
    alone = engine.simulate(name, draw.k[:, 1], draw.v[:, 1], **{n: x[:, 1] for n, x in c.items()})
    np.testing.assert_array_equal(whole.S.values[:, 1], alone.S.values)


@pytest.mark.parametrize("name", FAMILY)
def test_a_card_counts_what_the_state_holds(draw, name):
    info, ds = engine.solvers()[name], draw(name, **draw.vectors(name))
    card, own = info.cls.card, dataclasses.asdict(engine.solver(name))
    names = {n: x for n, x in own.items() if isinstance(x, (int, float))} | {"dk": DK, "dv": DV}
    held = sum(ds[n].isel(step=-1, trial=0).size for n in STATE if n in ds)
    assert evaluate(card.retained, **names) == held
    assert evaluate(card.write, **names) >= DK * DV and evaluate(card.query, **names) >= DK * DV
    assert "<-" in info.rule and card.error in ERRORS

"""The linear family: identities between rules, limits, and the laws each rule states for itself.

What each rule computes is compared with its authors' code in tests/test_golden.py.
"""

import dataclasses

import numpy as np
import pytest

import engine
from engine.cards import evaluate

T, B, DK, DV = 40, 3, 5, 4
FAMILY = (
    "comba delta delta_product dplr gated_delta gdn2 gla kaczmarz kda lightning linear_attention "
    "lms longhorn longhorn_diagonal mamba mamba2 momentum_delta nlms oja preconditioned_kda "
    "preconditioned_gated_delta retnet rwkv6 rwkv7 titans"
).split()
NO_RESET = (  # no decay, or an erasure that reads the undecayed state
    "delta kaczmarz linear_attention lms longhorn longhorn_diagonal nlms mamba mamba2 "
    "dplr rwkv7 momentum_delta titans rwkv6"
).split()
VECTORS = {"dplr": ["a", "b"]} | {n: ["erase_key"] for n in ("rwkv7", "comba", "momentum_delta")}
STATE = ("S", "U", "R", "A", "z", "position")
ERRORS = {"before decay", "after decay", "no decay", "no error"}


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


class Draw:
    """One random stream, and gates of every shape for it."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.k, self.q, self.p = (self.rng.normal(size=(T, B, DK)) / DK**0.5 for _ in range(3))
        self.v = self.rng.normal(size=(T, B, DV))
        self.unit = unit(self.k)
        self.hot = np.eye(DK)[self.rng.integers(DK, size=(T, B))]
        self.beta, self.gamma, self.eta, self.alpha = self.rng.uniform(size=(4, T, B))
        self.gammas, self.gates = self.rng.uniform(size=(2, T, B, DK))
        self.dt, self.gamma_v = self.rng.uniform(size=(2, T, B, DV))
        self.bv, self.bk = self.beta[..., None] * self.v, self.beta[..., None] * self.k

    def __call__(self, name, k=None, v=None, options=(), **coefficients):
        solver = engine.solver(name, **dict(options))
        k, v = self.k if k is None else k, self.v if v is None else v
        return engine.simulate(solver, k, v, self.q, **coefficients)

    def vectors(self, name):
        """What a rule needs that has no default."""
        return {x: 0.4 * self.rng.normal(size=(T, B, DK)) for x in VECTORS.get(name, ())}


@pytest.fixture
def draw():
    return Draw()


# An equation: a relative tolerance (0: bit for bit), and two runs that it says are one.
IDENTITIES = {
    "LMS(mu = beta) = delta(beta)": (
        0, lambda d: d("lms", mu=d.beta), lambda d: d("delta", beta=d.beta)),
    "Kaczmarz = delta(beta = 1) if |k| = 1": (
        1e-13, lambda d: d("kaczmarz", d.unit), lambda d: d("delta", d.unit)),
    "Kaczmarz = NLMS(mu = 1, eps = 0)": (
        0, lambda d: d("kaczmarz"), lambda d: d("nlms", options={"eps": 0.0})),
    "Longhorn(b) = NLMS(mu = 1, eps = 1 / b)": (
        1e-14, lambda d: d("longhorn", beta=7.0), lambda d: d("nlms", options={"eps": 1 / 7.0})),
    "Longhorn(b) = delta(b / (1 + b k.k))": (
        1e-14, lambda d: d("longhorn", beta=d.beta),
        lambda d: d("delta", beta=d.beta / (1 + d.beta * (d.k**2).sum(-1)))),
    "diagonal Longhorn = Longhorn if k is one-hot": (
        1e-14, lambda d: d("longhorn_diagonal", d.hot, beta=d.beta),
        lambda d: d("longhorn", d.hot, beta=d.beta)),
    "gated delta(gamma = 1) = delta": (
        1e-14, lambda d: d("gated_delta", beta=d.beta), lambda d: d("delta", beta=d.beta)),
    "KDA(one gamma) = gated delta": (
        1e-14, lambda d: d("kda", beta=d.beta, gamma=d.gamma),
        lambda d: d("gated_delta", beta=d.beta, gamma=d.gamma)),
    "GDN-2(both gates beta) = KDA": (
        1e-14, lambda d: d("gdn2", erase_gate=d.beta, write_gate=d.beta, gamma=d.gammas),
        lambda d: d("kda", beta=d.beta, gamma=d.gammas)),
    "Comba(p = k) = gated delta": (
        1e-14, lambda d: d("comba", erase_key=d.k, beta=d.beta, gamma=d.gamma),
        lambda d: d("gated_delta", beta=d.beta, gamma=d.gamma)),
    "DeltaProduct(n = 1) = gated delta": (
        1e-14, lambda d: d("delta_product", options={"micro_steps": 1}, beta=d.beta, gamma=d.gamma),
        lambda d: d("gated_delta", beta=d.beta, gamma=d.gamma)),
    "DPLR(a = -gamma k, b = beta k, beta v) = KDA": (
        1e-14, lambda d: d("dplr", v=d.bv, a=-d.gammas * d.k, b=d.bk, gamma=d.gammas),
        lambda d: d("kda", beta=d.beta, gamma=d.gammas)),
    "RWKV-7 = DPLR(a = -p, b = gate p)": (
        1e-14, lambda d: d("rwkv7", erase_key=d.p, gate=d.gates, gamma=d.gammas),
        lambda d: d("dplr", a=-d.p, b=d.gates * d.p, gamma=d.gammas)),
    "RWKV-7(p = k, gate = beta, beta v, gamma = 1) = delta": (
        1e-14, lambda d: d("rwkv7", v=d.bv, erase_key=d.k, gate=d.beta),
        lambda d: d("delta", beta=d.beta)),
    "Titans = momentum delta(eta = 2 theta, mu = eta, gamma = 1 - alpha, beta = 1, p = k)": (
        1e-14, lambda d: d("titans", theta=d.beta / 4, eta=d.eta, alpha=d.alpha),
        lambda d: d("momentum_delta", erase_key=d.k, eta=d.beta / 2, mu=d.eta, gamma=1 - d.alpha)),
    "momentum delta(mu = 0, p = gamma k) = gated delta(beta = eta)": (
        1e-14, lambda d: d("momentum_delta", erase_key=d.gamma[..., None] * d.k, eta=d.beta,
                           gamma=d.gamma),
        lambda d: d("gated_delta", beta=d.beta, gamma=d.gamma)),
    "lightning = RetNet": (
        0, lambda d: d("lightning", gamma=d.gamma), lambda d: d("retnet", gamma=d.gamma)),
    "GLA(one gamma) = RetNet": (
        1e-14, lambda d: d("gla", gamma=d.gamma), lambda d: d("retnet", gamma=d.gamma)),
    "Mamba-2 = RetNet(gamma = exp(dt A), dt v)": (
        1e-14, lambda d: d("mamba2", options={"A": -0.7}, dt=d.beta),
        lambda d: d("retnet", v=d.bv, gamma=np.exp(-0.7 * d.beta))),
    "Mamba(one dt, one A) = Mamba-2": (
        1e-14, lambda d: d("mamba", options={"A": -0.7}, dt=d.beta),
        lambda d: d("mamba2", options={"A": -0.7}, dt=d.beta)),
    "Mamba(A_ji = -(i + 1)) is the default": (
        0, lambda d: d("mamba", options={"A": -np.tile(np.arange(1.0, DK + 1), (DV, 1))}, dt=d.dt),
        lambda d: d("mamba", dt=d.dt)),
    "RetNet(gamma = 1) = linear attention": (
        1e-14, lambda d: d("retnet", gamma=1.0), lambda d: d("linear_attention")),
    "RetNet's default is head 0": (
        0, lambda d: d("retnet", gamma=1 - 2.0**-5), lambda d: d("retnet")),
    "RWKV-6(bonus = 1, gamma = 1) = linear attention": (
        1e-14, lambda d: d("rwkv6"), lambda d: d("linear_attention")),
    "preconditioned KDA(base = 1) = KDA": (
        1e-14,
        lambda d: d("preconditioned_kda", options={"base": 1.0}, beta=d.beta, gamma=d.gammas),
        lambda d: d("kda", beta=d.beta, gamma=d.gammas)),
    "preconditioned gated delta = preconditioned KDA(one gamma)": (
        1e-14, lambda d: d("preconditioned_gated_delta", beta=d.beta, gamma=d.gamma, beta_a=d.eta),
        lambda d: d("preconditioned_kda", beta=d.beta, gamma=d.gamma, beta_a=d.eta)),
}  # fmt: skip


@pytest.mark.parametrize("equation", IDENTITIES)
def test_identity(draw, equation):
    tolerance, one, other = IDENTITIES[equation]
    one, other = one(draw), other(draw)
    for name in {"S", "output", "prediction", "U"} & set(one) & set(other):
        a, b = one[name].values, other[name].values
        assert np.isfinite(a).all() and np.abs(a).max() > 0.1
        assert np.abs(a - b).max() <= tolerance * max(1.0, np.abs(a).max()), name


def test_oja_is_kda_with_keys_and_values_swapped(draw):
    oja = draw("oja", beta=0.3 * draw.beta, gamma=draw.gamma_v)
    kda = engine.simulate("kda", draw.v, draw.k, beta=0.3 * draw.beta, gamma=draw.gamma_v)
    swapped = kda.S.transpose("step", "trial", "value", "key").values
    np.testing.assert_allclose(oja.S.values, swapped, rtol=0, atol=1e-13)


@pytest.mark.parametrize("beta", [0.1, 1.0, 30.0])
def test_one_longhorn_step_is_one_nlms_step_to_rounding(draw, beta):
    nlms, k, v = engine.solver("nlms", eps=1 / beta), draw.k[:1], draw.v[:1]
    one, other = engine.simulate("longhorn", k, v, beta=beta), engine.simulate(nlms, k, v)
    np.testing.assert_allclose(one.S.values, other.S.values, rtol=5e-16, atol=0)


def test_longhorn_with_a_huge_beta_interpolates_the_newest_pair(draw):
    ds = engine.simulate("longhorn", draw.k, draw.v, beta=1e12)
    np.testing.assert_allclose(ds.output.values, draw.v, atol=1e-8)


def test_longhorn_leaves_the_delta_rule_as_beta_squared(draw):
    # |longhorn - delta| -> beta^2 |k|^3 |r| as beta -> 0
    k, v, S = draw.k[:1], draw.v[:1], draw.rng.normal(size=(B, DK, DV))
    size = np.linalg.norm(k[0], axis=-1)
    r = np.linalg.norm(v[0] - np.einsum("bk,bkv->bv", k[0], S), axis=-1)
    for beta in (1e-2, 1e-3, 1e-4):
        one, other = (
            engine.simulate(name, k, v, state={"S": S}, beta=beta).S.values[0]
            for name in ("longhorn", "delta")
        )
        ratio = np.linalg.norm(one - other, axis=(-2, -1)) / (beta**2 * size**3 * r)
        np.testing.assert_allclose(ratio, 1.0, rtol=2 * beta * float(size.max()) ** 2)


def test_delta_product_decays_at_the_first_of_n_steps_only(draw):
    gamma = np.where(np.arange(T)[:, None] % 3 == 0, draw.gamma, 1.0)
    product = draw("delta_product", options={"micro_steps": 3}, gamma=draw.gamma)
    gated = draw("gated_delta", gamma=gamma)
    np.testing.assert_allclose(product.S.values, gated.S.values, rtol=0, atol=1e-13)
    assert product.position.values[:, 0].tolist() == [(t + 1) % 3 for t in range(T)]


def test_delta_product_does_not_count_a_masked_step(draw):
    mask = np.arange(T) % 6 < 3  # whole tokens of three
    product = engine.solver("delta_product", micro_steps=3)
    masked = engine.simulate(product, draw.k, draw.v, mask=mask, gamma=draw.gamma)
    alone = engine.simulate(product, draw.k[mask], draw.v[mask], gamma=draw.gamma[mask])
    np.testing.assert_array_equal(masked.S.values[mask], alone.S.values)
    np.testing.assert_array_equal(masked.position.values[mask], alone.position.values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_titans_without_momentum_and_decay_is_delta_bit_for_bit(draw, dtype):
    # the gradient of |S^T k - v|^2 has a factor 2: beta = 2 theta
    theta = (draw.beta / 2).astype(dtype)
    titans = draw("titans", theta=theta, eta=0.0, alpha=0.0, dtype=dtype)
    delta = draw("delta", beta=2 * theta, dtype=dtype)
    for name in ("S", "output", "prediction"):
        np.testing.assert_array_equal(titans[name].values, delta[name].values)


def test_rwkv6_reads_the_pairs_before_its_own(draw):
    none = draw("rwkv6", options={"bonus": 0.0}, gamma=draw.gammas)
    gla = draw("gla", gamma=draw.gammas)
    np.testing.assert_allclose(none.S.values, gla.S.values, rtol=0, atol=1e-14)
    before = np.concatenate([np.zeros((1, B, DK, DV)), none.S.values[:-1]])
    np.testing.assert_array_equal(none.R.values, before)
    newest = draw.k[..., :, None] * draw.v[..., None, :]
    np.testing.assert_array_equal(draw("rwkv6", gamma=0.0).S.values, newest)


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

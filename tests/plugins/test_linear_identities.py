"""The linear family: identities between rules.

What each rule computes is compared with its authors' code in tests/test_golden.py.
"""

import numpy as np
import pytest

import engine

from .linear_family_cases import DK, DV, B, T

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
    "Longhorn with momentum(eta = 0) = Longhorn": (
        1e-14, lambda d: d("longhorn_momentum", beta=d.beta), lambda d: d("longhorn", beta=d.beta)),
    "Longhorn with momentum = momentum delta(b / (1 + b k.k), mu = eta, p = k)": (
        1e-14, lambda d: d("longhorn_momentum", beta=d.beta, eta=d.eta),
        lambda d: d("momentum_delta", erase_key=d.k, mu=d.eta,
                    eta=d.beta / (1 + d.beta * (d.k**2).sum(-1)))),
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

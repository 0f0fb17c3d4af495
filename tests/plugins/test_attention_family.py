"""Memories that keep rows, slots or levels: each against its equation, written as a plain loop."""

import numpy as np
import pytest

import engine
from engine.errors import InputError

from .attention_cases import (
    BETA,
    CASES,
    GAMMA,
    KEY,
    SCALE,
    SLOTS,
    STEPS,
    TRIALS,
    VALUE,
    K,
    Q,
    R,
    V,
    by_loop,
    close,
    each_solver,
    run,
    softmax,
    unit,
)

# Rows: softmax, forgetting, PaTH, DeltaFormer, Parallax


def test_forgetting_attention_is_softmax_with_summed_log_decays():
    """o_t = sum_j softmax_j(scale q_t.k_j + sum_{s=j+1..t} log gamma_s) v_j; the gate unscaled."""

    def read(t, b):
        fade = [np.log(GAMMA[j + 1 : t + 1, b]).sum() for j in range(t + 1)]
        return softmax(SCALE * K[: t + 1, b] @ Q[t, b] + fade) @ V[: t + 1, b]

    ours = run("forgetting_attention", options={"scale": SCALE}, gamma=GAMMA)
    close(ours.output, by_loop(read))


@pytest.mark.parametrize("kernel", ["loop", "tile"])
def test_forgetting_attention_at_gamma_one_is_softmax_attention(kernel):
    options = {"scale": SCALE}
    ours, softmax_ = (
        run("forgetting_attention", options=options, kernel=kernel),
        run("softmax_attention", options=options, kernel=kernel),
    )
    np.testing.assert_array_equal(ours.output, softmax_.output)
    np.testing.assert_array_equal(ours.prediction, softmax_.prediction)


def test_path_attention_is_softmax_along_the_product_of_householders():
    """logit_tj = q_t.(H_t ... H_{j+1} k_j) + b_j, H = I - beta w w^T; o_t = softmax(scale logit) V.

    b_j = sum_{s=j+1..t} log gamma_s: the gate is scaled too.
    """
    w = unit(R)

    def read(t, b):
        logits = np.empty(t + 1)
        product, fade = np.eye(KEY), 0.0
        for j in range(t, -1, -1):
            logits[j] = Q[t, b] @ product @ K[j, b] + fade
            product = product @ (np.eye(KEY) - BETA[j, b] * np.outer(w[j, b], w[j, b]))
            fade += np.log(GAMMA[j, b])
        return softmax(SCALE * logits) @ V[: t + 1, b]

    options = {"scale": SCALE}
    ours = run("path_attention", options=options, gamma=GAMMA, beta=BETA, householder_key=w)
    close(ours.output, by_loop(read))


def test_path_attention_at_beta_zero_is_forgetting_attention_with_a_scaled_gate():
    """softmax(scale (q.k + log gamma)): forgetting attention at gamma^scale."""
    path = run("path_attention", options={"scale": SCALE}, beta=0.0, gamma=GAMMA)
    fox = run("forgetting_attention", options={"scale": SCALE}, gamma=GAMMA**SCALE)
    close(path.output, fox.output)


def test_path_attention_turns_by_the_key_itself_unless_told():
    given = run("path_attention", unit(K), beta=BETA, householder_key=unit(K))
    np.testing.assert_array_equal(run("path_attention", unit(K), beta=BETA).output, given.output)
    # beta = 1 with unit keys: the stored keys are orthogonal to the newest one.
    ds = run("path_attention", unit(K))
    stored = ds["keys"].values  # (row, trial, key)
    close(np.einsum("jbk,bk->jb", stored[:-1], unit(K)[-1]), 0.0, 1e-14)


@pytest.mark.parametrize("address", [None, Q], ids=["key", "query"])
def test_deltaformer_stores_what_it_does_not_recall(address):
    """u_t = v_t - beta_t sum_{j<t} softmax_{j<t}(scale a_t.k_j) u_j; o_t = softmax over u."""
    u = np.zeros_like(V)
    a = K if address is None else address
    for b in range(TRIALS):
        for t in range(STEPS):
            recalled = softmax(SCALE * K[:t, b] @ a[t, b]) @ u[:t, b] if t else 0.0
            u[t, b] = V[t, b] - BETA[t, b] * recalled
    optional = {} if address is None else {"address": address}
    ours = run("deltaformer", options={"scale": SCALE}, beta=BETA, **optional)
    expected = by_loop(lambda t, b: softmax(SCALE * K[: t + 1, b] @ Q[t, b]) @ u[: t + 1, b])
    close(ours.output, expected)
    close(ours["values"], u)


def test_deltaformer_keeps_its_bound():
    """|u| <= max |v| / (1 - beta), since the correction is a mean of stored u."""
    stored = run("deltaformer", options={"scale": 50.0}, values=unit(V), beta=0.9)["values"].values
    assert np.linalg.norm(stored, axis=-1).max() <= 1.0 / (1.0 - 0.9)


def test_deltaformer_at_beta_zero_is_softmax_attention():
    options = {"scale": SCALE}
    ours = run("deltaformer", options=options, beta=0.0)
    np.testing.assert_array_equal(
        ours.output, run("softmax_attention", options=options, kernel="loop").output
    )


def test_parallax_is_the_mean_times_one_plus_the_mean_slope_less_their_product():
    """o = E_p[v] (1 + E_p[r.k]) - E_p[(r.k) v], p = softmax(scale q.k), r unscaled."""

    def read(t, b):
        p, c = softmax(SCALE * K[: t + 1, b] @ Q[t, b]), K[: t + 1, b] @ R[t, b]
        return (p @ V[: t + 1, b]) * (1.0 + p @ c) - (p * c) @ V[: t + 1, b]

    ours = run("parallax", options={"scale": SCALE}, second_query=R)
    close(ours.output, by_loop(read))


@pytest.mark.parametrize("kernel", ["loop", "tile"])
def test_parallax_without_a_second_query_is_softmax_attention(kernel):
    options = {"scale": SCALE}
    expected = run("softmax_attention", options=options, kernel=kernel).output
    for given in ({}, {"second_query": np.zeros(())}):
        ours = run("parallax", options=options, kernel=kernel, **given)
        np.testing.assert_array_equal(ours.output, expected)


@pytest.mark.parametrize(
    ("name", "coefficients"),
    [
        ("softmax_attention", {}),
        ("forgetting_attention", {}),
        ("path_attention", {"beta": 0.0}),
        ("deltaformer", {"beta": 0.0}),
        ("parallax", {}),
    ],
)
def test_large_scores_do_not_overflow(name, coefficients):
    """softmax([1000, 1000, 0]) = [.5, .5, 0], read through values that are unit vectors."""
    keys, queries = np.array([[1000.0], [1000.0], [0.0]]), np.ones((3, 1))
    ds = run(name, keys, np.eye(3), queries, **coefficients)
    np.testing.assert_array_equal(ds.output[-1], [0.5, 0.5, 0.0])


@pytest.mark.parametrize("name", ["forgetting_attention", "path_attention"])
@pytest.mark.parametrize("at", [0, 1, 40])
def test_gamma_zero_forgets_every_earlier_row(name, at):
    """gamma_t = 0: every earlier pair has weight 0, so the run goes on as if it began at t."""
    gamma = GAMMA.copy()
    gamma[at] = 0.0
    gamma[-2:] = 0.0  # again, and twice in a row
    later = gamma[at:].copy()
    options = {"scale": SCALE}
    whole = run(name, unit(K), options=options, gamma=gamma)
    since = run(name, unit(K)[at:], V[at:], Q[at:], options=options, gamma=later)
    assert np.isfinite(whole.output).all() and np.isfinite(whole.prediction).all()
    close(whole.output[at:], since.output)
    close(whole.output[-2:], V[-2:], 0.0)


# All of them


@each_solver
def test_each_trial_of_a_ragged_batch_equals_it_alone_to_the_bit(name):
    options, coefficients = CASES[name]
    mask = np.random.default_rng(5).uniform(size=(STEPS, TRIALS)) < 0.7
    mask[50:, 0], mask[:7, 1] = False, False
    padded = {n: x.copy() for n, x in {"k": K, "v": V, **coefficients}.items()}
    for n, x in padded.items():
        if n not in ("second_query", "level_scales"):  # a masked step still reads, if it is asked
            x[~mask] = np.nan
    keys, values = padded.pop("k"), padded.pop("v")
    whole = run(name, keys, values, Q, options, mask, **padded)
    for b in range(TRIALS):
        live, one = mask[:, b], slice(b, b + 1)
        cut = {n: x[live, one] for n, x in coefficients.items()}
        alone = run(name, K[live, one], V[live, one], Q[live, one], options, **cut)
        for variable in ("output", "prediction"):
            np.testing.assert_array_equal(
                whole[variable].values[live, one], alone[variable].values, variable
            )


@each_solver
def test_a_strict_array_library_gives_the_same_numbers(name):
    options, coefficients = CASES[name]
    solver = engine.solver(name, **options)
    ours = engine.simulate(solver, K, V, Q, **coefficients)
    strict = engine.simulate(solver, K, V, Q, backend="array_api_strict", **coefficients)
    for variable in ours.data_vars:
        close(strict[variable].astype(float), ours[variable].astype(float), 1e-12)


@each_solver
def test_float32_is_kept_and_close_to_float64(name):
    options, coefficients = CASES[name]
    solver = engine.solver(name, **options)
    double = engine.simulate(solver, K, V, Q, **coefficients)
    single = engine.simulate(solver, K, V, Q, dtype="float32", **coefficients)
    assert single.output.dtype == np.float32
    # Keys and scores are of order 1 to 10, sums of at most 70 terms.
    close(single.output, double.output, 1e-4)


@each_solver
def test_a_memory_that_was_never_written_reads_zeros(name):
    options, coefficients = CASES[name]
    ds = run(name, options=options, mask=np.zeros(STEPS, bool), **coefficients)
    assert not ds.output.any()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nadaraya_watson", {"bandwidth": 0.0}, "bandwidth = 0.0 must be above 0"),
        ("nadaraya_watson", {"bandwidth": float("inf")}, "bandwidth = inf must be"),
        ("path_attention", {"scale": 0.0}, "scale = 0.0 must be above 0"),
        ("gsa", {"slots": 0}, "slots = 0 must be at least 1"),
        ("abc", {"slots": -1}, "slots = -1 must be at least 1"),
        ("log_linear_attention", {"levels": 1}, "levels = 1 must be from 2"),
    ],
)
def test_what_makes_no_memory_is_refused(name, options, words):
    with pytest.raises(InputError, match=words):
        engine.solver(name, **options)


def test_methods_take_plain_numbers_where_a_coefficient_is_not_given():
    """`write` and `read` are pure functions that anybody may call, without the host's arrays."""
    from engine.api import Space

    space = Space({"key": KEY, "value": VALUE}, (TRIALS,), np, np.dtype(np.float64))
    for name, (options, _) in CASES.items():
        rule = engine.solver(name, **options)
        needed = {"gsa": {"gamma": np.full((TRIALS, SLOTS), 0.9)}}
        needed["abc"] = {"s": np.zeros((TRIALS, SLOTS))}
        state = rule.init(space)
        for t in range(3):
            state = rule.write(state, unit(K[t]), V[t], **needed.get(name, {}))
        assert np.isfinite(rule.read(state, Q[0])).all(), name
    fox = engine.solver("forgetting_attention")
    state = fox.write(fox.write(fox.init(space), K[0], V[0]), K[1], V[1], gamma=0.0)
    np.testing.assert_array_equal(fox.read(state, Q[0]), V[1])

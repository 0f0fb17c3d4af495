"""Memories that keep rows, slots or levels: each against its equation, written as a plain loop."""

from pathlib import Path

import numpy as np
import pytest

import engine
from engine import ops
from engine.errors import InputError
from engine.plugins.solvers.nadaraya_watson import descend, learn_bandwidth, leave_one_out

STEPS, TRIALS, KEY, VALUE = 70, 3, 8, 5  # more than two growths of a buffer of rows
SLOTS, LEVELS = 4, 8


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal((STEPS, TRIALS, *shape))


def gates(low, high, *shape, seed=0):
    return np.random.default_rng(seed).uniform(low, high, (STEPS, TRIALS, *shape))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


K, V, Q = draw(KEY, seed=1), draw(VALUE, seed=2), draw(KEY, seed=3)
R, GAMMA, BETA = draw(KEY, seed=4), gates(0.7, 1.0, seed=5), gates(0.0, 1.0, seed=6)
SCALE = KEY**-0.5

CASES = {
    "softmax_attention": ({"scale": SCALE}, {}),
    "nadaraya_watson": ({"bandwidth": 0.8}, {}),
    "forgetting_attention": ({"scale": SCALE}, {"gamma": GAMMA}),
    "path_attention": (
        {"scale": SCALE},
        {"gamma": GAMMA, "beta": BETA, "householder_key": unit(R)},
    ),
    "deltaformer": ({"scale": SCALE}, {"beta": BETA, "address": R}),
    "parallax": ({"scale": SCALE}, {"second_query": R}),
    "gsa": (
        {"slots": SLOTS, "scale": SCALE},
        {"gamma": gates(0.5, 1.0, SLOTS, seed=7), "s": draw(SLOTS, seed=8)},
    ),
    "abc": ({"slots": SLOTS, "scale": SCALE}, {"s": 3.0 * draw(SLOTS, seed=8)}),
    "log_linear_attention": (
        {"levels": LEVELS},
        {"gamma": GAMMA, "level_scales": gates(0.1, 1.0, LEVELS, seed=9)},
    ),
}
each_solver = pytest.mark.parametrize("name", CASES)


def run(name, keys=K, values=V, queries=Q, options=None, mask=None, **coefficients):
    """Simulate a solver and return its Dataset; nothing may diverge."""
    rule = engine.solver(name, **(options or {}))
    ds = engine.simulate(rule, keys, values, queries, mask=mask, **coefficients)
    assert (ds.diverged_at == -1).all()
    return ds


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def by_loop(read):
    """Outputs (step, trial, value) of `read(t, b)`, the equation for one token of one trial."""
    return np.array([[read(t, b) for b in range(TRIALS)] for t in range(STEPS)])


def close(ours, expected, tolerance=1e-11):
    np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance)


# Rows: softmax, forgetting, PaTH, DeltaFormer, Parallax


def test_forgetting_attention_is_softmax_with_summed_log_decays():
    """o_t = sum_j softmax_j(scale q_t.k_j + sum_{s=j+1..t} log gamma_s) v_j; the gate unscaled."""

    def read(t, b):
        fade = [np.log(GAMMA[j + 1 : t + 1, b]).sum() for j in range(t + 1)]
        return softmax(SCALE * K[: t + 1, b] @ Q[t, b] + fade) @ V[: t + 1, b]

    ours = run("forgetting_attention", options={"scale": SCALE}, gamma=GAMMA)
    close(ours.output, by_loop(read))


def test_forgetting_attention_at_gamma_one_is_softmax_attention():
    options = {"scale": SCALE}
    ours, softmax_ = (
        run("forgetting_attention", options=options),
        run("softmax_attention", options=options),
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
    np.testing.assert_array_equal(ours.output, run("softmax_attention", options=options).output)


def test_parallax_is_the_mean_times_one_plus_the_mean_slope_less_their_product():
    """o = E_p[v] (1 + E_p[r.k]) - E_p[(r.k) v], p = softmax(scale q.k), r unscaled."""

    def read(t, b):
        p, c = softmax(SCALE * K[: t + 1, b] @ Q[t, b]), K[: t + 1, b] @ R[t, b]
        return (p @ V[: t + 1, b]) * (1.0 + p @ c) - (p * c) @ V[: t + 1, b]

    ours = run("parallax", options={"scale": SCALE}, second_query=R)
    close(ours.output, by_loop(read))


def test_parallax_without_a_second_query_is_softmax_attention():
    options = {"scale": SCALE}
    expected = run("softmax_attention", options=options).output
    for given in ({}, {"second_query": np.zeros(())}):
        np.testing.assert_array_equal(run("parallax", options=options, **given).output, expected)


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


# Nadaraya-Watson


def test_nadaraya_watson_is_the_kernel_weighted_mean():
    """o = sum_j w_j v_j / sum_j w_j, w_j = exp(-|k_j - q|^2 / (2 bandwidth^2))."""

    def read(t, b):
        square = ((K[: t + 1, b] - Q[t, b]) ** 2).sum(-1)
        return softmax(-square / (2 * 0.8**2)) @ V[: t + 1, b]

    close(run("nadaraya_watson", options={"bandwidth": 0.8}).output, by_loop(read))


def test_nadaraya_watson_on_keys_of_one_length_is_softmax_attention():
    """-|k - q|^2 / (2 s^2) = q.k / s^2 + constant when |k| is constant: scale = s^-2."""
    ours = run("nadaraya_watson", 3.0 * unit(K), options={"bandwidth": SCALE**-0.5})
    close(ours.output, run("softmax_attention", 3.0 * unit(K), options={"scale": SCALE}).output)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bandwidth", [1e-3, 1e-30, 1e-60, 1e-200, 5e-324])
def test_a_narrow_bandwidth_reads_the_nearest_pair(dtype, bandwidth):
    """The kernel's sum underflows long before the nearest pair's share of it does."""
    ds = engine.simulate(
        engine.solver("nadaraya_watson", bandwidth=bandwidth),
        *(x.astype(dtype) for x in (K, V, Q)),
    )
    nearest = by_loop(
        lambda t, b: V[((K[: t + 1, b] - Q[t, b]) ** 2).sum(-1).argmin(), b].astype(dtype)
    )
    np.testing.assert_array_equal(ds.output, nearest)


def test_pairs_at_equal_distance_weigh_the_same():
    """Scores of [0, 0, -1 / (2 s^2)] at s = 1e-3: weights [.5, .5, 0]."""
    keys, queries = np.array([[1.0], [-1.0], [2.0]]), np.zeros((3, 1))
    ds = run("nadaraya_watson", keys, np.eye(3), queries, options={"bandwidth": 1e-3})
    np.testing.assert_array_equal(ds.output[-1], [0.5, 0.5, 0.0])


def test_a_wide_bandwidth_reads_the_mean():
    ours = run("nadaraya_watson", options={"bandwidth": 1e9}).output
    close(ours, by_loop(lambda t, b: V[: t + 1, b].mean(0)))


@pytest.fixture(scope="module")
def published():
    """The kernel regression of "Dive into Deep Learning" (d2l.ai), and what its code gave."""
    with np.load(Path(__file__).parent / "data" / "bandwidth.npz") as file:
        return {name: file[name].astype(np.float64) for name in file.files}


def fit(published, bandwidth):
    """Store the training pairs, then ask for the validation points at masked steps."""
    x, n = published["x_train"], len(published["x_val"])
    keys = np.concatenate([x, np.zeros(n)])[:, None]
    values = np.concatenate([published["y_train"], np.zeros(n)])[:, None]
    queries = np.concatenate([x, published["x_val"]])[:, None]
    mask = np.arange(len(keys)) < len(x)
    options = {"bandwidth": float(bandwidth)}
    return run("nadaraya_watson", keys, values, queries, options, mask).output.values[len(x) :, 0]


def test_the_published_fits_at_fixed_bandwidths(published):
    """MSE to the truth at bandwidth .1, .5, 2: .350008 .136017 .741049 (print: .350 .136 .741)."""
    fits = [fit(published, bandwidth) for bandwidth in published["sweep_sigma"]]
    close(fits, published["est"][:3], 1e-13)
    mse = [np.mean((f - published["y_val"]) ** 2) for f in fits]
    close(mse, [0.350008, 0.136017, 0.741049], 1e-6)


def test_the_published_descent_of_the_bandwidth(published):
    """Five steps of .5 on w = 1 / bandwidth: loss 1.259 1.146 1.102 1.078 1.062, w 1.268 ... 1.716.

    The loss is the mean of squared leave-one-out errors, taken before each step.
    """
    w, loss = descend(published["x_train"], published["y_train"], w=1.0, rate=0.5, epochs=5)
    close(w, published["loo_w"], 1e-14)
    close(loss, published["loo_loss"], 1e-14)
    close(loss, [1.259244, 1.146086, 1.102227, 1.078055, 1.062166], 1e-6)
    close(w[1:], [1.268184, 1.428363, 1.544541, 1.637496, 1.716012], 1e-6)
    close((w[:-1] - w[1:]) / 0.5, published["loo_grad"], 1e-14)


def test_five_steps_have_not_converged(published):
    """The optimum is .3207 with MSE .0862; after five steps bandwidth .5827 has MSE .1725."""
    x, y = published["x_train"], published["y_train"]
    best, five = learn_bandwidth(x, y), 1.0 / descend(x, y)[0][-1]
    close([best, five], [0.3207, 0.582747], 5e-5)
    mse = [np.mean((fit(published, s) - published["y_val"]) ** 2) for s in (best, five)]
    close(mse, [0.0862, 0.1725], 5e-5)


def test_leave_one_out_leaves_each_pair_out():
    """mean_i |v_i - NW_{j != i}(k_i)|^2, and its derivative in w = 1 / bandwidth."""
    k, v, bandwidth = K[:20, 0], V[:20, 0], 0.9
    errors = []
    for i in range(20):
        others = np.arange(20) != i
        square = ((k[others] - k[i]) ** 2).sum(-1)
        errors.append(v[i] - softmax(-square / (2 * bandwidth**2)) @ v[others])
    assert leave_one_out(k, v, bandwidth) == pytest.approx(np.mean(np.sum(np.square(errors), 1)))
    w, h = 1.0 / bandwidth, 1e-6
    path, _ = descend(k, v, w=w, rate=1.0, epochs=1)
    slope = (leave_one_out(k, v, 1 / (w + h)) - leave_one_out(k, v, 1 / (w - h))) / (2 * h)
    assert path[0] - path[1] == pytest.approx(slope, rel=1e-6)


def test_the_learnt_bandwidth_is_the_global_optimum():
    """A ripple on a slow wave gives two dips of the leave-one-out error; the deeper one wins."""
    x = np.linspace(0.0, 10.0, 120)
    grid = np.geomspace(0.02, 20.0, 150)
    found = []
    for ripple in (0.2, 0.3):
        y = np.sin(x / 2.0) + ripple * np.sin(12.0 * x)
        y += 0.3 * np.random.default_rng(1).standard_normal(x.size)
        losses = np.array([leave_one_out(x, y, s) for s in grid])
        dips = (losses[1:-1] < losses[:-2]) & (losses[1:-1] < losses[2:])
        assert dips.sum() == 2
        found.append(learn_bandwidth(x, y))
        assert leave_one_out(x, y, found[-1]) <= losses.min()
    assert found[0] > 5.0 * found[1]


@pytest.mark.parametrize(
    ("keys", "values", "words"),
    [
        (np.zeros((1, 2)), np.zeros((1, 1)), "at least 2"),
        (np.zeros((3, 2)), np.zeros((4, 1)), "3 keys and 4 values"),
        (np.ones((5, 2)), np.zeros((5, 1)), "all keys are equal"),
    ],
)
def test_a_bandwidth_that_cannot_be_learnt_is_refused(keys, values, words):
    with pytest.raises(ValueError, match=words):
        learn_bandwidth(keys, values)


# Slots: GSA, ABC


def slots_by_loop(decay, gain):
    """Hk <- Hk Diag(a) + k g^T; Hv <- Diag(a) Hv + g v^T; o = Hv^T softmax(scale Hk^T q)."""
    out = np.empty_like(V)
    for b in range(TRIALS):
        Hk, Hv = np.zeros((KEY, SLOTS)), np.zeros((SLOTS, VALUE))
        for t in range(STEPS):
            Hk = Hk * decay[t, b] + np.outer(K[t, b], gain[t, b])
            Hv = decay[t, b][:, None] * Hv + np.outer(gain[t, b], V[t, b])
            out[t, b] = softmax(SCALE * Hk.T @ Q[t, b]) @ Hv
    return out


def test_gsa_is_softmax_attention_over_gated_slots():
    """Both given, and s = 1 - gamma where it is not."""
    options, given = CASES["gsa"]
    gamma, s = given["gamma"], given["s"]
    close(run("gsa", options=options, **given).output, slots_by_loop(gamma, s))
    close(run("gsa", options=options, gamma=gamma).output, slots_by_loop(gamma, 1.0 - gamma))


@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_abc_is_attention_over_softmax_averages_of_the_past(size):
    """Slot m holds sum_i softmax_{i<=t}(s_im) of keys and of values: no exponent overflows."""
    s = size * draw(SLOTS, seed=8)

    def read(t, b):
        share = np.stack([softmax(s[: t + 1, b, m]) for m in range(SLOTS)])
        means_k, means_v = share @ K[: t + 1, b], share @ V[: t + 1, b]
        return softmax(SCALE * means_k @ Q[t, b]) @ means_v

    options = {"slots": SLOTS, "scale": SCALE}
    close(run("abc", options=options, s=s).output, by_loop(read))


def test_abc_has_nothing_to_subtract_before_its_first_pair():
    """z starts at log 0: the first write is whole, whatever its logit, and a masked start waits."""
    options, mask = {"slots": SLOTS}, np.arange(STEPS) >= 3
    for logit in (-500.0, 0.0, 500.0):
        ds = run("abc", options=options, mask=mask, s=np.full((STEPS, TRIALS, SLOTS), logit))
        close(ds.Hv[3], np.broadcast_to(V[3][:, None], (TRIALS, SLOTS, VALUE)), 0.0)
        close(ds.z[3], logit, 0.0)
        assert not ds.Hv[:3].any()


def test_with_one_slot_per_pair_both_are_softmax_attention():
    """s_t = e_t and gamma = 1 (GSA), or logits that single out slot t (ABC): Hk = K^T, Hv = V."""
    own = np.broadcast_to(np.eye(STEPS)[:, None], (STEPS, TRIALS, STEPS))
    options = {"slots": STEPS, "scale": SCALE}
    expected = run("softmax_attention", options={"scale": SCALE}).output[-1]
    close(run("gsa", options=options, gamma=1.0, s=own).output[-1], expected)
    close(run("abc", options=options, s=2000.0 * own).output[-1], expected)


def test_gsa_at_gamma_zero_holds_the_newest_pair():
    gamma = gates(0.5, 1.0, SLOTS)
    gamma[30:32] = 0.0
    ds = run("gsa", options={"slots": SLOTS}, gamma=gamma)
    close(ds.output[30:32], V[30:32], 1e-14)


# Levels: log-linear attention


@pytest.mark.parametrize("levels", [2, 3, 5, LEVELS])
def test_log_linear_attention_scales_each_pair_by_its_level(levels):
    """o_t = sum_j scale_t[l(t,j)] prod_{s=j+1..t} gamma_s (q_t.k_j) v_j, l = bit_length(t XOR j).

    The level is at most levels - 1, into which everything older has merged.
    """
    scales = gates(0.1, 1.0, levels, seed=9)

    def read(t, b):
        level = [min((t ^ j).bit_length(), levels - 1) for j in range(t + 1)]
        decay = np.array([GAMMA[j + 1 : t + 1, b].prod() for j in range(t + 1)])
        return (scales[t, b][level] * decay * (K[: t + 1, b] @ Q[t, b])) @ V[: t + 1, b]

    options = {"levels": levels}
    ours = run("log_linear_attention", options=options, gamma=GAMMA, level_scales=scales)
    close(ours.output, by_loop(read))
    np.testing.assert_array_equal(ours["count"][-1], STEPS)


def test_log_linear_attention_with_equal_scales_is_decayed_linear_attention():
    """S_t = gamma_t S_{t-1} + k_t v_t^T, at every prefix and beyond the last level; gamma = 0."""
    gamma = GAMMA.copy()
    gamma[[0, 20, 41]] = 0.0
    expected, S = np.empty_like(V), np.zeros((TRIALS, KEY, VALUE))
    for t in range(STEPS):
        S = gamma[t][:, None, None] * S + K[t][:, :, None] * V[t][:, None, :]
        expected[t] = np.einsum("bkv,bk->bv", S, Q[t])
    for levels in (3, LEVELS):
        close(run("log_linear_attention", options={"levels": levels}, gamma=gamma).output, expected)
    close(run("log_linear_attention").output, run("linear_attention").output)


def test_levels_merge_by_what_each_trial_has_written():
    """A masked step does not count: levels come from a trial's own count, not from the step."""
    mask = np.random.default_rng(3).uniform(size=(STEPS, TRIALS)) < 0.5
    mask[:, 0] = True
    ds = run("log_linear_attention", options={"levels": LEVELS}, mask=mask)
    np.testing.assert_array_equal(ds["count"], mask.cumsum(0))
    filled = (np.abs(ds.S) > 0).any(("key", "value")).values[..., 1:]
    last = np.maximum(mask.cumsum(0) - 1, 0)[..., None]  # bit l - 1 of the newest pair's index
    np.testing.assert_array_equal(filled, last >> np.arange(LEVELS - 1) & 1)


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


def test_log_of_a_decay():
    """log 0 = -inf without a warning: a full reset."""
    np.testing.assert_array_equal(ops.log(np.array([0.0, 1.0, 0.5])), [-np.inf, 0.0, np.log(0.5)])
    assert ops.log(0.0) == -np.inf and ops.log(1) == 0.0
    assert ops.log(np.float32([0.5])).dtype == np.float32

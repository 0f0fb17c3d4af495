"""Memories of slots (GSA, ABC) and of levels: each against its equation as a plain loop."""

import numpy as np
import pytest

from .attention_cases import (
    CASES,
    GAMMA,
    KEY,
    LEVELS,
    SCALE,
    SLOTS,
    STEPS,
    TRIALS,
    VALUE,
    K,
    Q,
    V,
    by_loop,
    close,
    draw,
    gates,
    run,
    softmax,
)

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

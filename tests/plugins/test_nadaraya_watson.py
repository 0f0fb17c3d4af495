"""Kernel regression: its equation, its limits, and a bandwidth that is learnt."""

from pathlib import Path

import numpy as np
import pytest

import engine
from engine.measure.bandwidth import descend, learn_bandwidth, leave_one_out

from .attention_cases import SCALE, K, Q, V, by_loop, close, run, softmax, unit


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
    with pytest.raises(engine.InputError, match=words):
        learn_bandwidth(keys, values)


def test_a_bandwidth_that_is_none_is_refused():
    with pytest.raises(engine.InputError, match=r"bandwidth = 0 must lie in \(0, inf\)"):
        leave_one_out(np.eye(3), np.eye(3), 0.0)

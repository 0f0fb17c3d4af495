"""The sealed recall study: how many random pairs fit, with the engine and by hand.

N iid unit keys and values in R^d, one pass: a Hebbian sum, the delta rule with step .2, and the
delta rule with .2 for a quarter of the pairs at random positions and .02 for the rest. Then every
key is asked, and an answer counts if the right value is the nearest of all N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

import engine
from engine.measure import recalled
from tests.benchmarks.timing import Row, interleaved, row

LOADS = (0.5, 1.0, 2.0, 4.0, 8.0)
METHODS = ("hebbian", "delta", "gated")
Recall = dict[tuple[str, int, float], np.ndarray]  # method, width, load -> recall of each trial


def studies(widths: tuple[int, ...]) -> Iterator[tuple[int, float, int]]:
    for d in widths:
        for load in LOADS:
            yield d, load, round(load * d)


def with_engine(widths: tuple[int, ...], trials: int, seed: int) -> Recall:
    """Return the recall of every trial, one run for each width and load."""
    found: Recall = {}
    for d, load, n in studies(widths):
        tree = engine.run({
            "seed": seed, "trials": trials, "record": "final",
            "stream": {
                "generator": "random", "steps": n, "key": d, "value": d, "priority": 0.25,
                "exact": True,
            },
            "solvers": {
                "hebbian": {"solver": "linear_attention"},
                "delta": {"beta": 0.2},
                "gated": {
                    "solver": "delta", "beta": {"gate": "priority", "low": 0.02, "high": 0.2}
                },
            },
            "probes": {"recall": {}},
        })  # fmt: skip
        for method in METHODS:
            hits = tree[f"probes/recall/{method}"]["recalled"].values
            found[method, d, load] = hits.mean(axis=0)
    return found


def with_arrays(widths: tuple[int, ...], trials: int, seed: int) -> Recall:
    """Return the same from a caller's arrays: `simulate` and `recalled`, all trials at once."""
    rng, found = np.random.default_rng(seed), {}
    for d, load, n in studies(widths):
        keys, values = rng.standard_normal((2, n, trials, d))
        keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
        values /= np.linalg.norm(values, axis=-1, keepdims=True)
        ranks = rng.permuted(np.tile(np.arange(n)[:, None], trials), axis=0)
        beta = np.where(ranks < round(n / 4), 0.2, 0.02)
        rules = {"hebbian": ("linear_attention", {}), "delta": ("delta", {"beta": 0.2})}
        wanted = np.broadcast_to(np.arange(n)[:, None], (n, trials))
        for method, (rule, given) in {**rules, "gated": ("delta", {"beta": beta})}.items():
            state = engine.simulate(rule, keys, values, record="final", **given)["S"].values
            read = np.matmul(keys.swapaxes(0, 1), state).swapaxes(0, 1)
            hits = recalled(read, values.swapaxes(0, 1)[None], wanted)
            found[method, d, load] = hits.mean(axis=0)
    return found


def by_hand(widths: tuple[int, ...], trials: int, seed: int) -> Recall:
    """Return the same, trial by trial and pair by pair in NumPy."""
    rng, found = np.random.default_rng(seed), {}
    for d, load, n in studies(widths):
        recall = {method: np.zeros(trials) for method in METHODS}
        for trial in range(trials):
            keys, values = rng.standard_normal((n, d)), rng.standard_normal((n, d))
            keys /= np.linalg.norm(keys, axis=1, keepdims=True)
            values /= np.linalg.norm(values, axis=1, keepdims=True)
            priority = np.zeros(n, dtype=bool)
            priority[rng.permutation(n)[: round(n / 4)]] = True
            for method in METHODS:
                H = np.zeros((d, d))
                for k, v, first in zip(keys, values, priority, strict=True):
                    if method == "hebbian":
                        H += np.outer(v, k)
                    else:
                        g = 0.2 if method == "delta" or first else 0.02
                        H += g * np.outer(v - H @ k, k)
                hits = 0
                for i in range(n):
                    distance = ((values - H @ keys[i]) ** 2).sum(axis=1)
                    hits += np.argmin(distance) == i
                recall[method][trial] = hits / n
        found |= {(method, d, load): x for method, x in recall.items()}
    return found


def apart(a: Recall, b: Recall, method: str) -> tuple[float, float, float]:
    """Return both mean recalls of a method and how many standard errors lie between them."""
    means, variance = [], 0.0
    for side in (a, b):
        cells = [x for (name, *_), x in side.items() if name == method]
        means.append(float(np.mean([x.mean() for x in cells])))
        variance += sum(x.var(ddof=1) / len(x) for x in cells) / len(cells) ** 2
    return means[0], means[1], abs(means[0] - means[1]) / float(np.sqrt(variance))


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows."""
    widths, trials = ((8, 16), 10) if quick else ((8, 16, 32), 30)
    sides: dict[str, Callable[[], Recall]] = {
        "engine.run": lambda: with_engine(widths, trials, 1),
        "engine.simulate and recalled": lambda: with_arrays(widths, trials, 2),
        "numpy": lambda: by_hand(widths, trials, 3),
    }
    recalls = {name: side() for name, side in sides.items()}
    took = interleaved(sides, 1 if quick else 5, warm=False)
    size = f"{len(widths)} widths, {len(LOADS)} loads, {trials} repetitions, 3 methods, decoded"
    theirs, by_numpy = recalls.pop("numpy"), took.pop("numpy")
    rows = []
    for side, ours in recalls.items():
        what = f"sealed capacity study by {side}"
        # A run keeps more than its answer (stream, reads, ranks, provenance), which the other
        # sides throw away: its row is there to see what that costs.
        goal = None if side == "engine.run" else 10.0
        kept = ", all of it recorded" if side == "engine.run" else ""
        rows.append(
            row(f"{what}: {size}{kept}", "NumPy, trial by trial", took[side], by_numpy, goal)
        )
        for method in METHODS:
            a, b, z = apart(ours, theirs, method)
            against, numbers = "NumPy, trial by trial, other draws", (f"{a:.4f}", f"{b:.4f}")
            rows.append(
                Row(
                    f"{what}: mean recall, {method}",
                    against,
                    f"{z:.1f} se apart",
                    *numbers,
                    "within 3 se",
                    z <= 3.0,
                )  # fmt: skip
            )
    return rows, []

"""Recursive least squares against a NumPy loop, and adaptive filters against padasip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import engine
from tests.benchmarks import rules, sides
from tests.benchmarks.rules import Stream, batched, outer
from tests.benchmarks.timing import Row, absent, installed, interleaved, row

GAMMA = rules.RANGES["rls"]["gamma"][0]


def numpy_rls(stream: Stream, ridge: float) -> np.ndarray:
    """Recursive least squares over steps, every trial at once, as the textbook has it."""
    keys, values, queries = stream.arrays[:3]
    (steps, trials, d), dtype = keys.shape, keys.dtype
    S = np.zeros((trials, d, values.shape[-1]), dtype)
    P = np.tile(np.eye(d, dtype=dtype) / dtype.type(ridge), (trials, 1, 1))
    prediction, output, gamma = np.empty_like(values), np.empty_like(values), dtype.type(GAMMA)
    for t in range(steps):
        k, v = keys[t], values[t]
        prediction[t] = batched(S, k)
        Pk = batched(P, k)
        den = gamma + (k * Pk).sum(-1, keepdims=True)
        P = (P - outer(Pk / den, Pk)) / gamma
        S = S + outer(Pk / den, v - prediction[t])
        output[t] = batched(S, queries[t])
    return output


def padasip_filter(name: str, stream: Stream, **options: float) -> np.ndarray:
    """Return padasip's prediction before every update, trial by trial."""
    import padasip

    made = getattr(padasip.filters, name)
    runs = []
    for b in range(stream.keys.shape[1]):
        filtered = made(n=stream.keys.shape[-1], w="zeros", **options)
        runs.append(filtered.run(stream.values[:, b, 0], stream.keys[:, b])[0])
    return np.stack(runs, axis=1)


def run(quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows."""
    repetitions, rows = (2 if quick else 5), []
    for d in (16, 64):
        trials, steps = 30, 64 if quick else 256
        for dtype in ("float32", "float64"):
            stream = rules.draw("rls", trials, steps, d, dtype)
            rls = engine.solver("rls", ridge=0.1)
            ours = sides.engine_loop(stream, rls)
            both: dict[str, Callable[[], Any]] = {
                "engine": ours,
                "numpy": lambda stream=stream: numpy_rls(stream, 0.1),
                "stepped": sides.engine_loop(stream, rls, "loop"),
            }
            found = np.concatenate([output for _, output in ours()])
            assert np.allclose(found, both["numpy"](), rtol=1e-2, atol=1e-2)
            took, title = interleaved(both, repetitions), f"RLS ({trials}, {steps}, {d}) {dtype}"
            against = "NumPy loop batched over trials"
            rows.append(row(title, against, took["engine"], took["numpy"], 2.0))
            against = "the engine's step loop (kernel = loop)"
            rows.append(row(title, against, took["engine"], took["stepped"]))
    return rows + against_padasip(quick), []


def against_padasip(quick: bool) -> list[Row]:
    """Return the rows against padasip; both sides keep every weight, one value per step."""
    titles = {"nlms": "NLMS", "rls": "RLS"}
    if not installed("padasip"):
        return [absent(f"{title} against padasip", "padasip") for title in titles.values()]
    rows, trials, steps, d = [], 30, 64 if quick else 512, 16
    stream = rules.draw("", trials, steps, d, "float64", value=1)
    calls = {
        "nlms": (
            lambda: engine.simulate("nlms", stream.keys, stream.values, mu=0.5),
            lambda: padasip_filter("FilterNLMS", stream, mu=0.5, eps=1e-8),
        ),
        "rls": (
            lambda: engine.simulate(
                engine.solver("rls", ridge=0.1), stream.keys, stream.values, gamma=GAMMA
            ),
            lambda: padasip_filter("FilterRLS", stream, mu=GAMMA, eps=0.1),
        ),
    }
    for name, (ours, theirs) in calls.items():
        assert np.allclose(ours().prediction.values[..., 0], theirs(), rtol=1e-5, atol=1e-5), name
        took = interleaved({"engine": ours, "padasip": theirs}, 2 if quick else 5)
        title = f"{titles[name]} ({trials}, {steps}, {d}) float64, every state kept"
        rows.append(row(title, "padasip, per trial", took["engine"], took["padasip"]))
    return rows

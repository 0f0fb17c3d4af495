"""Five linear rules as anyone would write them, for NumPy, JAX and torch, and the loops over them.

A step takes (read, state, k, v, q, coefficients) and returns the state, the read at k before the
write, and the read at q after it. It works on one trial or on a batch: axes come from the right,
and a coefficient is (..., 1) or (..., key).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


def outer(a: Any, b: Any) -> Any:
    return a[..., :, None] * b[..., None, :]


def linear_attention(read, state, k, v, q):
    (S,) = state
    before = read(S, k)
    S = S + outer(k, v)
    return (S,), before, read(S, q)


def retnet(read, state, k, v, q, gamma):
    (S,) = state
    before = read(S, k)
    S = gamma[..., None] * S + outer(k, v)
    return (S,), before, read(S, q)


def gated_delta(read, state, k, v, q, beta, gamma):
    (S,) = state
    before = read(S, k)
    S = gamma[..., None] * S + outer(beta * k, v - gamma * before)
    return (S,), before, read(S, q)


def kda(read, state, k, v, q, beta, gamma):
    (S,) = state
    before = read(S, k)
    S = gamma[..., None] * S
    S = S + outer(beta * k, v - read(S, k))
    return (S,), before, read(S, q)


def longhorn(read, state, k, v, q, beta):
    (S,) = state
    before = read(S, k)
    D = beta / (1.0 + beta * (k * k).sum(-1)[..., None])
    S = S + outer(D * k, v - before)
    return (S,), before, read(S, q)


def titans(read, state, k, v, q, theta, eta, alpha):
    S, U = state
    before = read(S, k)
    U = eta[..., None] * U + outer(2.0 * theta * k, v - before)
    S = (1.0 - alpha[..., None]) * S + U
    return (S, U), before, read(S, q)


STEPS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (linear_attention, gated_delta, kda, longhorn, titans, retnet)
}
# Every coefficient is drawn anew for each token, as a model would emit it.
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "linear_attention": {},
    "retnet": {"gamma": (1.0, 1.0)},
    "gated_delta": {"beta": (0.1, 0.9), "gamma": (0.9, 1.0)},
    "kda": {"beta": (0.1, 0.9), "gamma": (0.9, 1.0)},
    "longhorn": {"beta": (0.5, 2.0)},
    "titans": {"theta": (0.05, 0.2), "eta": (0.3, 0.8), "alpha": (0.05, 0.1)},
    "rls": {"gamma": (0.99, 0.99)},
}


@dataclass(frozen=True)
class Stream:
    """Tokens (step, trial, ...) with the coefficients of a rule, each (step, trial, 1 or key)."""

    rule: str
    keys: np.ndarray
    values: np.ndarray
    queries: np.ndarray
    coefficients: Mapping[str, np.ndarray]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.keys, self.values, self.queries, *self.coefficients.values()

    def first(self, steps: int) -> Stream:
        """Return the first steps only."""
        cut = {name: x[:steps] for name, x in self.coefficients.items()}
        return Stream(self.rule, *(x[:steps] for x in self.arrays[:3]), cut)


def draw(
    rule: str, trials: int, steps: int, d: int, dtype: str, value: int | None = None
) -> Stream:
    """Return a random stream with unit keys and queries."""
    rng = np.random.default_rng(0)
    k, v, q = (rng.standard_normal((steps, trials, n)) for n in (d, value or d, d))
    k, q = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (k, q))
    wide = ("gamma",) if rule == "kda" else ()
    coefficients = {
        name: rng.uniform(*low_high, (steps, trials, d if name in wide else 1)).astype(dtype)
        for name, low_high in RANGES.get(rule, {}).items()
    }
    tokens = (np.ascontiguousarray(x, dtype=dtype) for x in (k, v / np.sqrt(d), q))
    return Stream(rule, *tokens, coefficients)


def batched(S: Any, x: Any) -> Any:
    """Read a batch with one matrix product per trial."""
    return (x[..., None, :] @ S)[..., 0, :]


def alone(S: Any, x: Any) -> Any:
    """Read one trial."""
    return x @ S


def summed(S: Any, x: Any) -> Any:
    """Read a batch as flash-linear-attention's reference loops do."""
    return (S * x[..., None]).sum(-2)


def zeros(rule: str, lead: tuple[int, ...], d: int, dv: int, zero: Callable[..., Any]) -> Any:
    return tuple(zero((*lead, d, dv)) for _ in range(2 if rule == "titans" else 1))


def over_steps(rule: str, arrays: Any, read: Any, empty: Any, zero: Any) -> tuple[Any, Any]:
    """Loop over the steps of (step, trial, ...) or (step, ...) arrays of NumPy or torch."""
    step, (keys, values, *_) = STEPS[rule], arrays
    state = zeros(rule, tuple(keys.shape[1:-1]), keys.shape[-1], values.shape[-1], zero)
    prediction, output = empty(values.shape), empty(values.shape)
    for t in range(len(keys)):
        state, prediction[t], output[t] = step(read, state, *(x[t] for x in arrays))
    return prediction, output


def numpy_batched(stream: Stream) -> tuple[Any, Any]:
    """A NumPy loop over steps, every trial at once."""
    dtype = stream.keys.dtype
    return over_steps(
        stream.rule,
        stream.arrays,
        batched,
        lambda n: np.empty(n, dtype),
        lambda n: np.zeros(n, dtype),
    )


def numpy_per_trial(stream: Stream) -> list[tuple[Any, Any]]:
    """A NumPy loop over trials, in each a loop over steps, as in the published code."""
    dtype = stream.keys.dtype
    return [
        over_steps(
            stream.rule, [x[:, b] for x in stream.arrays], alone,
            lambda n: np.empty(n, dtype), lambda n: np.zeros(n, dtype),
        )
        for b in range(stream.keys.shape[1])
    ]  # fmt: skip


def torch_loop(stream: Stream) -> Callable[[], Any]:
    """A torch loop over tokens, every trial at once."""
    import torch

    arrays = [torch.from_numpy(x) for x in stream.arrays]
    dtype = arrays[0].dtype

    def run() -> Any:
        with torch.inference_mode():
            return over_steps(
                stream.rule, arrays, summed,
                lambda n: torch.empty(tuple(n), dtype=dtype), lambda n: torch.zeros(n, dtype=dtype),
            )  # fmt: skip

    return run


def jax_scan(stream: Stream) -> Callable[[], Any]:
    """`jax.lax.scan` over steps under `jit`, `vmap` over trials; arrays stay step first."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    step, d, dv = STEPS[stream.rule], stream.keys.shape[-1], stream.values.shape[-1]

    def one(*arrays: Any) -> Any:
        def body(state: Any, token: Any) -> Any:
            state, before, after = step(alone, state, *token)
            return state, (before, after)

        start = zeros(stream.rule, (), d, dv, lambda n: jnp.zeros(n, arrays[0].dtype))
        state, reads = jax.lax.scan(body, start, arrays)
        return reads, state

    compiled = jax.jit(jax.vmap(one, in_axes=1, out_axes=(1, 0)))
    arrays = [jnp.asarray(x) for x in stream.arrays]
    return lambda: jax.block_until_ready(compiled(*arrays))

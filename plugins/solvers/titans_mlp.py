"""Titans with a two-layer memory: the only rule here whose model is not linear in its state.

Longer than its neighbours: the gradient is written out by hand for both activations, with and
without biases, so that it runs on any array library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Coefficient, Gain, Space, hookimpl

Fraction = Annotated[Array, Coefficient(low=0.0, high=1.0)]


class TitansMLPState(NamedTuple):
    """The weights W1, b1, W2, b2 and their velocities U_W1, U_b1, U_W2, U_b2."""

    W1: Annotated[Array, "key hidden"]
    b1: Annotated[Array, "hidden"]
    W2: Annotated[Array, "hidden value"]
    b2: Annotated[Array, "value"]
    U_W1: Annotated[Array, "key hidden"]
    U_b1: Annotated[Array, "hidden"]
    U_W2: Annotated[Array, "hidden value"]
    U_b2: Annotated[Array, "value"]


class UnbiasedState(NamedTuple):
    """The weights and their velocities where there are no biases."""

    W1: Annotated[Array, "key hidden"]
    W2: Annotated[Array, "hidden value"]
    U_W1: Annotated[Array, "key hidden"]
    U_W2: Annotated[Array, "hidden value"]


State = TitansMLPState | UnbiasedState


@dataclass(frozen=True)
class TitansMLP:
    """U <- eta U - theta dL/dW; W <- (1 - alpha) W + U; L = |M(k) - v|^2, M a two-layer MLP.

    Titans (Behrouz et al. 2024, arXiv:2501.00663) with the memory M(x) = W2^T act(W1^T x + b1) + b2
    and act = GELU; W stands for every parameter. The gradient is taken at the undecayed weights.
    W2, b1 and b2 start at zero, so that an empty memory reads zeros; W1 is drawn, the same for all
    trials. No range of theta is stable for all streams, for the curvature depends on the weights;
    with eta = alpha = 0 the output layer alone needs theta (|act|^2 + 1) <= 1. Shapes as the state
    names them; theta, eta, alpha one number each.

    Parameters
    ----------
    hidden : int
        Width of the hidden layer.
    activation : "erf" or "tanh"
        GELU exactly, x Phi(x), or by its tanh approximation (4e-4 apart).
    biases : bool
        Whether there are b1 and b2.
    loss : "sum" or "mean"
        Over the value channels; the paper's is the sum, titans-pytorch's default the mean.
    seed : int
        Of W1.
    init_scale : float
        Standard deviation of W1 times sqrt(dk): with unit keys, that of the hidden layer's input
        times sqrt(dk).
    """

    hidden: int = 64
    activation: Literal["erf", "tanh"] = "erf"
    biases: bool = True
    loss: Literal["sum", "mean"] = "sum"
    seed: int = 0
    init_scale: float = 1.0
    card: ClassVar[Card] = Card(
        history="recent pairs overwrite older ones, carried on by momentum",
        model="two-layer MLP, W2^T GELU(W1^T q + b1) + b2",
        inner="one gradient step with momentum and weight decay",
        error="before decay",
        stable="small theta; no bound holds for all streams",
        retained="2*hidden*(dk + dv) + biases*2*(hidden + dv)",
        write="5*dk*hidden + 6*hidden*dv",
        query="hidden*(dk + dv)",
        lost="what later gradients overwrote, in no fixed direction",
        diverges={"theta": 5.0},
    )

    def __post_init__(self) -> None:
        if not self.hidden >= 1:
            raise ValueError(f"hidden = {self.hidden} must be at least 1")
        if self.activation not in _GELU:
            raise ValueError(f"activation = {self.activation!r} must be one of {', '.join(_GELU)}")
        if self.loss not in ("sum", "mean"):
            raise ValueError(f"loss = {self.loss!r} must be 'sum' or 'mean'")
        if not self.seed >= 0:
            raise ValueError(f"seed = {self.seed} must be at least 0")
        if not 0 <= self.init_scale < math.inf:
            raise ValueError(f"init_scale = {self.init_scale} must be at least 0 and finite")

    def init(self, space: Space) -> State:
        """Return W1 as drawn, everything else zero."""
        dk, n = space.sizes["key"], self.hidden
        draw = np.random.default_rng(self.seed).standard_normal((dk, n))
        U_W1, W2 = space.zeros("key hidden", hidden=n), space.zeros("hidden value", hidden=n)
        W1 = space.array(draw * (self.init_scale / math.sqrt(dk))) + U_W1
        if not self.biases:
            return UnbiasedState(W1, W2, U_W1, W2)
        b1, b2 = space.zeros("hidden", hidden=n), space.zeros("value")
        return TitansMLPState(W1, b1, W2, b2, U_W1, b1, W2, b2)

    def write(
        self,
        s: State,
        k: Array,
        v: Array,
        *,
        theta: Gain = 0.005,
        eta: Fraction = 0.5,
        alpha: Fraction = 0.0,
    ) -> State:
        """Take one gradient step on every parameter."""
        new = {}
        for name, slope in self.gradient(s, k, v).items():
            # A scalar coefficient, (..., 1), needs one more axis beside a matrix.
            times = ops.scale_rows if name in ("W1", "W2") else _times
            U = times(eta, getattr(s, f"U_{name}")) - times(theta, slope)
            new |= {name: times(1.0 - alpha, getattr(s, name)) + U, f"U_{name}": U}
        return s._replace(**new)

    def read(self, s: State, q: Array) -> Array:
        """Return M(q)."""
        return self._outer(s, _GELU[self.activation](self._inner(s, q))[0])

    def gradient(self, s: State, k: Array, v: Array) -> dict[str, Array]:
        """Return the gradient of the loss at (k, v) with respect to every parameter, by name."""
        act, slope = _GELU[self.activation](self._inner(s, k))
        out = 2.0 * (self._outer(s, act) - v)
        if self.loss == "mean":
            out = out / v.shape[-1]
        inner = ops.matvec(s.W2, out) * slope
        weights = {"W1": ops.outer(k, inner), "W2": ops.outer(act, out)}
        return weights | ({"b1": inner, "b2": out} if isinstance(s, TitansMLPState) else {})

    def _inner(self, s: State, x: Array) -> Array:
        y = ops.vecmat(x, s.W1)
        return y + s.b1 if isinstance(s, TitansMLPState) else y

    def _outer(self, s: State, act: Array) -> Array:
        y = ops.vecmat(act, s.W2)
        return y + s.b2 if isinstance(s, TitansMLPState) else y


def _times(a: Array | float, x: Array) -> Array:
    return a * x


def _gelu_erf(x: Array) -> tuple[Array, Array]:
    """Return x Phi(x), Phi the normal distribution function, and its derivative."""
    phi = array_namespace(x).exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    Phi = 0.5 * (1.0 + ops.erf(x * math.sqrt(0.5)))
    return x * Phi, Phi + x * phi


def _gelu_tanh(x: Array) -> tuple[Array, Array]:
    """Return x (1 + tanh(sqrt(2 / pi) (x + .044715 x^3))) / 2 and its derivative."""
    c = math.sqrt(2.0 / math.pi)
    t = array_namespace(x).tanh(c * (x + 0.044715 * x * x * x))
    inner = c * (1.0 + 3.0 * 0.044715 * x * x)
    return 0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner


_GELU = {"erf": _gelu_erf, "tanh": _gelu_tanh}


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return Titans with a two-layer memory."""
    return {"titans_mlp": TitansMLP}

"""Attention over a fixed number of slots: gated slot attention, and attention with bounded memory.

Two rules share one recurrence, decay and write per slot, and one read, so they share a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Coefficient, Space, hookimpl

SlotDecay = Annotated[Array, Coefficient("slot", low=0.0, high=1.0)]
SlotVector = Annotated[Array, Coefficient("slot")]


class GSAState(NamedTuple):
    """What each slot holds: Hk of keys, Hv of values."""

    Hk: Annotated[Array, "key slot"]
    Hv: Annotated[Array, "slot value"]


class ABCState(NamedTuple):
    """What each slot holds: Hk of keys, Hv of values, z the log-sum-exp of its s so far."""

    Hk: Annotated[Array, "key slot"]
    Hv: Annotated[Array, "slot value"]
    z: Annotated[Array, "slot"]


def _check(slots: int) -> None:
    if slots < 1:
        raise ValueError(f"slots = {slots} must be at least 1")


def _write(s: GSAState | ABCState, k: Array, v: Array, decay: Array, gain: Array) -> GSAState:
    Hk = ops.scale_columns(s.Hk, decay) + ops.outer(k, gain)
    return GSAState(Hk, ops.scale_rows(decay, s.Hv) + ops.outer(gain, v))


def _read(s: GSAState | ABCState, q: Array) -> Array:
    return ops.vecmat(ops.softmax(ops.vecmat(q, s.Hk)), s.Hv)


@dataclass(frozen=True)
class GSA:
    """Hk <- Hk Diag(gamma) + k s^T, Hv <- Diag(gamma) Hv + s v^T; read Hv^T softmax(scale Hk^T q).

    Gated slot attention (Zhang et al. 2024, arXiv:2409.07146): softmax attention over `slots`
    gated sums of keys and values. gamma and s have one number per slot; slots with equal numbers
    hold the same. With s = 1 - gamma a slot is a running mean, and bounded for gamma in [0, 1]. An
    empty memory reads zeros.

    Parameters
    ----------
    slots : int
        Number of slots.
    scale : float
        Factor on the query in the scores; the second product is not scaled. Models use dk^-1/2.
    """

    slots: int = 8
    scale: float = 1.0

    card: ClassVar[Card] = Card(
        history="s, times the product of gamma since the write, per slot",
        model="kernel average over slots, exp(scale q.Hk)",
        inner="weighted mean of slots at the read",
        error="no error",
        stable="0 <= gamma < 1; with s = 1 - gamma also gamma = 1",
        retained="slots*(dk+dv)",
        write="2*slots*(dk+dv)",
        query="slots*(dk+dv)",
        lost="which pairs a slot was made of",
    )

    def __post_init__(self) -> None:
        _check(self.slots)

    def init(self, space: Space) -> GSAState:
        """Return empty slots."""
        n = self.slots
        return GSAState(space.zeros("key slot", slot=n), space.zeros("slot value", slot=n))

    def write(
        self, state: GSAState, k: Array, v: Array, *, gamma: SlotDecay, s: SlotVector = None
    ) -> GSAState:
        """Decay every slot, then add the pair to it with gain s; s is 1 - gamma unless given."""
        return _write(state, k, v, gamma, 1.0 - gamma if s is None else s)

    def read(self, state: GSAState, q: Array) -> Array:
        """Return the slots' values, weighted by the softmax of their keys' scores."""
        return _read(state, self.scale * q)


@dataclass(frozen=True)
class ABC:
    """z' = log(e^z + e^s); GSA with gamma = e^(z - z') and gain e^(s - z'); then z <- z'.

    Attention with bounded-memory control (Peng et al. 2022, arXiv:2110.02488): each of `slots`
    slots is the mean of all keys (and values) so far under the softmax over time of its logits s.
    Nothing is forgotten, but a large logit outweighs everything before it. Stable for every s. An
    empty memory reads zeros.

    Parameters
    ----------
    slots : int
        Number of slots.
    scale : float
        Factor on the query in the scores; the second product is not scaled. Models use dk^-1/2.
    """

    slots: int = 8
    scale: float = 1.0

    card: ClassVar[Card] = Card(
        history="softmax over time of s, per slot",
        model="kernel average over slots, exp(scale q.Hk)",
        inner="weighted mean of slots at the read",
        error="no error",
        stable="every s",
        retained="slots*(dk+dv+1)",
        write="2*slots*(dk+dv)",
        query="slots*(dk+dv)",
        lost="which pairs a slot was made of",
    )

    def __post_init__(self) -> None:
        _check(self.slots)

    def init(self, space: Space) -> ABCState:
        """Return empty slots; their log-sum-exp is the lowest finite number."""
        n = self.slots
        # Not -inf: a difference of two would be NaN, and a state that is not finite has diverged.
        z = space.full("slot", space.xp.finfo(space.dtype).min, slot=n)
        return ABCState(space.zeros("key slot", slot=n), space.zeros("slot value", slot=n), z)

    def write(self, state: ABCState, k: Array, v: Array, *, s: SlotVector) -> ABCState:
        """Fold the pair into every slot's mean."""
        xp = array_namespace(state.z)
        z = xp.logaddexp(state.z, s)
        new = _write(state, k, v, xp.exp(state.z - z), xp.exp(s - z))
        return ABCState(new.Hk, new.Hv, z)

    def read(self, state: ABCState, q: Array) -> Array:
        """Return the slots' values, weighted by the softmax of their keys' scores."""
        return _read(state, self.scale * q)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return gated slot attention and attention with bounded memory."""
    return {"gsa": GSA, "abc": ABC}

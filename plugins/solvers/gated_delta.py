"""Delta rules that forget first: gated delta, KDA, gated delta 2, Comba.

The error is taken on the decayed state S^ = Diag(gamma) S. Longer than most: four rules and their
cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from engine.api import Array, Card, Decay, Gain, KeyDecay, KeyGain, KeyVector, ValueGain, hookimpl
from engine.linear import LinearRule, Token


def forgetful(k: Array, v: Array, beta: Array | None, gamma: Array, address: Array) -> Token:
    """Return the token of S^ = Diag(gamma) S; S <- S^ + beta k (v - S^^T address)^T."""
    return Token(k, v, address, strength=beta, decay=gamma, forgets_first=True)


@dataclass(frozen=True)
class GatedDelta(LinearRule):
    """S^ = gamma S; S <- S^ + beta k (v - S^^T k)^T.

    Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464): forget, then correct.
    gamma = 1 is the delta rule; gamma = 0 forgets everything before the write. I - beta k k^T
    contracts iff 0 <= beta |k|^2 <= 2. S (key, value), beta and gamma one number each.
    """

    card: ClassVar[Card] = Card(
        history="exponential in age, and recent pairs overwrite older ones along their keys",
        model="linear, S^T q",
        inner="one gradient step on the newest pair from the decayed fit",
        error="after decay",
        stable="0 <= beta |k|^2 <= 2",
        retained="dk*dv",
        write="3*dk*dv",
        query="dk*dv",
        lost="what was decayed, or erased along a later key",
        diverges={"beta": 3.0},
    )

    def token(self, k: Array, v: Array, *, beta: Gain = 1.0, gamma: Decay = 1.0) -> Token:
        """Return w = beta k, addressed by k, forgetting first."""
        return forgetful(k, v, beta, gamma, k)


@dataclass(frozen=True)
class KDA(LinearRule):
    """S^ = Diag(gamma) S; S <- S^ + beta k (v - S^^T k)^T.

    Kimi delta attention (Kimi Team 2025, arXiv:2510.26692): the gated delta rule with a decay per
    key channel. I - beta k k^T contracts iff 0 <= beta |k|^2 <= 2, whatever gamma.
    S (key, value), gamma (key), beta one number.
    """

    card: ClassVar[Card] = replace(
        GatedDelta.card,
        history="exponential in age per key channel, and recent pairs overwrite older ones",
    )

    def token(self, k: Array, v: Array, *, beta: Gain = 1.0, gamma: KeyDecay = 1.0) -> Token:
        """Return w = beta k, addressed by k, forgetting first."""
        return forgetful(k, v, beta, gamma, k)


@dataclass(frozen=True)
class GDN2(LinearRule):
    """S^ = Diag(gamma) S; S <- S^ + k (write_gate * v - S^^T (erase_gate * k))^T.

    Gated DeltaNet-2 (Hatamizadeh, Choi and Kautz 2026, arXiv:2605.22791): erasing and writing are
    gated apart, per key channel and per value channel; in the model both gates lie in [0, 1]. Both
    gates equal to beta is KDA. A repeated key stays bounded iff 0 < k.(erase_gate * k) <= 2.
    S (key, value), gamma and erase_gate (key), write_gate (value).
    """

    card: ClassVar[Card] = replace(
        KDA.card,
        inner="one step on the newest pair, erasure and write gated per channel",
        stable="0 < k.(erase_gate * k) <= 2",
        diverges={"erase_gate": 3.0},
    )

    def token(
        self,
        k: Array,
        v: Array,
        *,
        erase_gate: KeyGain = 1.0,
        write_gate: ValueGain = 1.0,
        gamma: KeyDecay = 1.0,
    ) -> Token:
        """Return w = k and value write_gate v, addressed by erase_gate k."""
        return forgetful(k, write_gate * v, None, gamma, erase_gate * k)


@dataclass(frozen=True)
class Comba(LinearRule):
    """S^ = gamma S; S <- S^ + beta k (v - S^^T p)^T, p the erase key.

    Closed-loop control (Hu et al. 2025, arXiv:2506.02475): the error is fed back through p, in the
    model a weaker copy of k (p = k is the gated delta rule). Its correction of the query,
    q - D p, is left to the caller. A repeated key stays bounded iff 0 <= beta k.p <= 2.
    S (key, value), p (key), beta and gamma one number each.
    """

    card: ClassVar[Card] = replace(
        GatedDelta.card,
        inner="one step on the newest pair, its error read through a second key",
        stable="0 <= beta k.p <= 2",
        diverges={"beta": 3.0, "erase_key": 1.0},
    )

    def token(
        self, k: Array, v: Array, *, erase_key: KeyVector, beta: Gain = 1.0, gamma: Decay = 1.0
    ) -> Token:
        """Return w = beta k, addressed by p, forgetting first."""
        return forgetful(k, v, beta, gamma, erase_key)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the delta rules that forget."""
    return {"gated_delta": GatedDelta, "kda": KDA, "gdn2": GDN2, "comba": Comba}

"""Diagonal plus low rank: the general rank-one transition, and RWKV-7.

Longer than most: two rules and their cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from engine.api import Array, Card, KeyDecay, KeyGain, KeyVector, hookimpl
from engine.linear import LinearRule, Token


@dataclass(frozen=True)
class DPLR(LinearRule):
    """S <- Diag(gamma) S + b (a^T S) + k v^T.

    The transition is Diag(gamma) + b a^T, diagonal plus rank one; a reads S before it decays, so
    gamma = 0 forgets all but what a carries over. The structure is S4's (Gu et al. 2021,
    arXiv:2111.00396). As a fast weight rule it generalises the delta rules: a = -gamma k,
    b = beta k, value beta v is KDA. Bounded where the transitions contract: with b = -c a and
    gamma = 1 iff 0 <= c |a|^2 <= 2. S (key, value), gamma, a, b (key).
    """

    card: ClassVar[Card] = Card(
        history="products of diag(gamma) + b a^T over later tokens",
        model="linear, S^T q",
        inner="none of its own: what a and b make of it",
        error="before decay",
        stable="the transitions diag(gamma) + b a^T contract",
        retained="dk*dv",
        write="4*dk*dv",
        query="dk*dv",
        lost="what later tokens decayed or moved",
        diverges={"a": 1.0, "b": 1.0},
    )

    def token(
        self, k: Array, v: Array, *, a: KeyVector, b: KeyVector, gamma: KeyDecay = 1.0
    ) -> Token:
        """Return w = k, erasing along -b what a reads."""
        return Token(write=k, value=v, address=a, erase=-b, decay=gamma)


@dataclass(frozen=True)
class RWKV7(LinearRule):
    """S <- Diag(gamma) S - (gate * p) (p^T S) + k v^T, p the erase key.

    Goose (Peng et al. 2025, arXiv:2503.14456): what p reads is erased before k writes, per key
    channel as strongly as the gate says; p reads S before it decays, so that gamma = 0 is no full
    reset. The model takes a unit p, gate in (0, 1) and gamma in (exp(-exp(-1/2)), 1) = (.545, 1).
    At gamma = 1 and p = k, a repeated key stays bounded iff 0 < k.(gate * k) <= 2. S (key, value),
    all coefficients (key).
    """

    card: ClassVar[Card] = replace(
        DPLR.card,
        history="recent pairs overwrite older ones along their erase keys; older ones fade",
        inner="a decayed step that erases along one key and writes along another",
        stable="0 < k.(gate * k) <= 2 at gamma = 1, p = k",
        lost="what was decayed, or erased along an erase key",
        diverges={"gate": 3.0, "erase_key": 1.0},
    )

    def token(
        self,
        k: Array,
        v: Array,
        *,
        erase_key: KeyVector,
        gate: KeyGain = 1.0,
        gamma: KeyDecay = 1.0,
    ) -> Token:
        """Return w = k, erasing along gate p what p reads."""
        return Token(write=k, value=v, address=erase_key, erase=gate * erase_key, decay=gamma)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return the diagonal plus low rank rules."""
    return {"dplr": DPLR, "rwkv7": RWKV7}

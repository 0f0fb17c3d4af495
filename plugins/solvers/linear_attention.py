"""Linear attention: the sum of all pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine import ops
from engine.api import Array, Card, hookimpl
from engine.linear import Token, WeightedRule


@dataclass(frozen=True)
class LinearAttention(WeightedRule):
    """S <- S + k v^T, z <- z + k; reads S^T q, or S^T q / (z.q + eps) when normalised.

    Hebbian storage (Katharopoulos et al. 2020, arXiv:2006.16236). Feature maps of keys and queries
    are views; the normaliser wants positive ones (`elu1`, `exp`, `relu`). A zero normaliser reads
    zeros.

    Parameters
    ----------
    normalise : bool
        Divide the read by z.q, so that it is a weighted mean of the values.
    scale : float
        Factor on the query.
    eps : float
        Added to the normaliser; 0 keeps the mean exact.
    """

    normalise: bool = False
    scale: float = 1.0
    eps: float = 0.0
    card: ClassVar[Card] = Card(
        history="all pairs alike",
        model="linear, S^T q, or a weighted mean of the values when normalised",
        inner="nothing is solved: a sum of k v^T",
        error="no error",
        stable="always; S grows with the number of pairs",
        retained="dk*dv + dk",
        write="dk*dv",
        query="dk*dv",
        lost="single pairs: only their sum is kept",
    )

    def token(self, k: Array, v: Array) -> Token:
        """Return w = k."""
        return Token(write=k, value=v)

    def combine(self, total: Array, weight: Array) -> Array:
        """Return the sum, or the weighted mean, of the stored values."""
        total = total if self.scale == 1.0 else self.scale * total
        return ops.divide(total, self.scale * weight + self.eps) if self.normalise else total


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return linear attention."""
    return {"linear_attention": LinearAttention}

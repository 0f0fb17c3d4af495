"""Monomials, as the kernel of a truncated exponential."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from array_api_compat import array_namespace, device

from engine.api import Array, View, hookimpl


@dataclass(frozen=True)
class Taylor(View):
    """Monomials up to a degree: phi(q).phi(k) = sum_{j <= order} (scale q.k)^j / j!.

    One feature per monomial x^a = prod_i x_i^a_i of degree |a| <= order, times
    sqrt(scale^|a| / prod_i a_i!), which by the multinomial theorem adds up to the Taylor series of
    exp(scale q.k) cut at `order`, to rounding. Ordered by degree; the first feature is 1.

    Its size is C(n + order, order), as a monomial is kept once: 153 for n = 16 at order 2, where
    the full tensor powers have 273; 4845 at order 4.

    Parameters
    ----------
    order : int
        Highest degree: 2, 4, 6, ... Only a series cut at an even degree is positive for every q.k,
        as a normaliser needs.
    scale : float
        Factor on q.k, above 0. Softmax attention has n^-1/2.

    Notes
    -----
    Order 2 is the kernel of Based (Arora et al. 2024, arXiv:2402.18668).
    """

    order: int = 2
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.order < 2 or self.order % 2:
            raise ValueError(
                f"order = {self.order} must be 2, 4, 6, ...: cut at an odd degree, "
                "the series of exp is negative somewhere"
            )
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale = {self.scale} must be finite and above 0")

    def __call__(self, x: Array) -> Array:
        """Map x (..., n) to its monomials (..., size(n))."""
        xp, where = array_namespace(x), device(x)
        x = math.sqrt(self.scale) * x
        terms = xp.ones_like(x[..., :1])
        degrees = [terms]
        for parent, factor, weight in _monomials(x.shape[-1], self.order):
            parents = xp.take(terms, xp.asarray(parent, device=where), axis=-1)
            factors = xp.take(x, xp.asarray(factor, device=where), axis=-1)
            terms = parents * factors * xp.asarray(weight, dtype=x.dtype, device=where)
            degrees.append(terms)
        return xp.concat(degrees, axis=-1)

    def size(self, n: int) -> int:
        """Return C(n + order, order)."""
        return math.comb(n + self.order, self.order)


@lru_cache(maxsize=32)
def _monomials(n: int, order: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return, per degree, which monomial of the degree before times which entry, and a weight."""
    degrees = []
    last: list[tuple[int, ...]] = [()]
    for _ in range(order):
        made = [(p, i) for p, a in enumerate(last) for i in range(a[-1] if a else 0, n)]
        # x_i^c / sqrt(c!) is x_i^(c-1) / sqrt((c-1)!) times x_i / sqrt(c).
        counts = [last[p].count(i) + 1 for p, i in made]
        parent, factor = (np.array(index, dtype=np.int64) for index in zip(*made, strict=True))
        degrees.append((parent, factor, 1 / np.sqrt(counts)))
        last = [(*last[p], i) for p, i in made]
    return degrees


@hookimpl
def engine_views() -> Mapping[str, type]:
    """Return the truncated exponential kernel."""
    return {"taylor": Taylor}

"""Vectors of unit length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine import ops
from engine.api import Array, View, hookimpl


@dataclass(frozen=True)
class Unit(View):
    """x / |x|; zero stays zero, and neither tiny nor huge x under- or overflow."""

    def __call__(self, x: Array) -> Array:
        """Return the direction of x (..., n)."""
        return ops.unit(x)


@hookimpl
def engine_views() -> Mapping[str, type]:
    """Return the unit norm."""
    return {"unit": Unit}

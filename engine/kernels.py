"""Forms of a recurrence by name, and which one a rule on a backend takes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from engine import chunkwise, steps, tiles
from engine.api import Solver
from engine.backend import Backend
from engine.errors import InputError, nearest
from engine.linear import MomentumRule, is_plain

KERNELS = ("auto", "loop", "numba", "chunk", "tile")


def choose(solver: Solver, state: Any, backend: Backend, wanted: str = "auto") -> str:
    """Return the name of the form to run.

    "auto" is the fastest that there is: the compiled recurrence on NumPy arrays where numba is
    installed, chunks where a call costs more than its arithmetic, tiles for softmax attention and
    its kin, steps elsewhere. A velocity makes the decay of a chunk a product of 2 x 2 matrices, so
    rules with momentum have no chunks.

    Raises
    ------
    InputError
        If the form asked for does not exist, is not installed, or does not fit the rule.
    """
    if wanted not in KERNELS:
        raise InputError(f"kernel = {wanted!r}: no such kernel; {nearest(wanted, KERNELS)}")
    rule, plain = type(solver).__name__, is_plain(solver)
    # A class says itself that it is the covariance rule; a subclass with rules of its own does not.
    covariance = vars(type(solver)).get("compiled") == "covariance"
    compiles = (plain or covariance) and backend.name == "numpy"
    chunks = plain and not isinstance(solver, MomentumRule)
    tiled = bool(vars(type(solver)).get("tiled"))
    installed = find_spec("numba") is not None
    if wanted == "numba" and not compiles:
        raise InputError(
            f"kernel = 'numba': it runs the linear family and rls on NumPy arrays, not "
            f"{rule} on {backend.name}; use 'auto' or 'loop'"
        )
    if wanted == "numba" and not installed:
        raise InputError("kernel = 'numba' needs numba: pip install 'ttr-engine[fast]'")
    if wanted == "chunk" and not chunks:
        raise InputError(
            f"kernel = 'chunk': it runs the linear family without momentum, not {rule}; use "
            "'auto' or 'loop'"
        )
    if wanted == "tile" and not tiled:
        raise InputError(
            f"kernel = 'tile': it runs softmax_attention, forgetting_attention and parallax, not "
            f"{rule}; use 'auto' or 'loop'"
        )
    if wanted != "auto":
        return wanted
    if tiled:
        return "tile"
    if compiles and installed:
        return "numba"
    return "chunk" if chunks and backend.launches_dear else "loop"


def find(name: str) -> Callable[[Any, Any, steps.Block, Backend], steps.Advanced]:
    """Return the function that runs a block in the form of that name; compiled ones load here."""
    if name == "loop":
        return steps.advance
    if name == "chunk":
        return chunkwise.advance
    if name == "tile":
        return tiles.advance
    form: Callable[[Any, Any, steps.Block, Backend], steps.Advanced]
    form = import_module("engine.compiled").advance
    return form

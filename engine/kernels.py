"""Forms of a recurrence by name, and which one a rule on a backend takes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from engine import steps
from engine.api import Solver
from engine.backend import Backend
from engine.errors import InputError, nearest
from engine.linear import is_plain

KERNELS = ("auto", "loop", "numba")


def choose(solver: Solver, state: Any, backend: Backend, wanted: str = "auto") -> str:
    """Return the name of the form to run: the fastest that there is, unless one is asked for.

    Raises
    ------
    InputError
        If the form asked for does not exist, is not installed, or does not fit the rule.
    """
    if wanted not in KERNELS:
        raise InputError(f"kernel = {wanted!r}: no such kernel; {nearest(wanted, KERNELS)}")
    fits = is_plain(solver) and backend.name == "numpy"
    installed = find_spec("numba") is not None
    if wanted == "numba" and not fits:
        raise InputError(
            f"kernel = 'numba': it runs the linear family on NumPy arrays, not "
            f"{type(solver).__name__} on {backend.name}; use 'auto' or 'loop'"
        )
    if wanted == "numba" and not installed:
        raise InputError("kernel = 'numba' needs numba: pip install 'ttr-engine[fast]'")
    if wanted == "auto":
        return "numba" if fits and installed else "loop"
    return wanted


def find(name: str) -> Callable[[Any, Any, steps.Block, Backend], steps.Advanced]:
    """Return the function that runs a block in the form of that name; compiled ones load here."""
    if name == "loop":
        return steps.advance
    form: Callable[[Any, Any, steps.Block, Backend], steps.Advanced]
    form = import_module("engine.compiled").advance
    return form

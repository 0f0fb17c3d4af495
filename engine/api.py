"""What a plugin author needs: the protocols, the coefficients, and the hooks.

A *solver* is a frozen dataclass of hyperparameters with three pure methods over a NamedTuple state.
A *generator* is a frozen dataclass of options that draws a stream block by block. A *view* maps
keys and queries, and values if it likes, before a solver sees them. A *report* compares a run with
a study. A plugin is a module whose hook implementations return ``{"name": Class}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Protocol

import pluggy

from engine.draws import Channel, Draws, Visits
from engine.reporting import Claim, Curve, Figure, Panel, Part, Report, Table, labels, parts
from engine.rows import Rows, attend, each_length, fade

__all__ = [
    "Array", "Card", "Channel", "Claim", "Coefficient", "Curve", "Decay", "Draws", "Extent",
    "Figure", "Gain", "Generator", "KeyDecay", "KeyGain", "KeyVector", "Panel", "Part", "Report",
    "Rows", "Solver", "Space", "Table", "ValueDecay", "ValueGain", "View", "Visits", "attend",
    "each_length", "fade", "hookimpl", "hookspec", "labels", "parts",
]  # fmt: skip

Array = Any
"""An array of any library: NumPy, CuPy, or another that follows the array API standard."""

hookspec = pluggy.HookspecMarker("engine")
hookimpl = pluggy.HookimplMarker("engine")

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""What a plugin may be called: a solver names a group in a store."""


@dataclass(frozen=True)
class Coefficient:
    """A per-step input of a rule: what a model would emit per token.

    Declared as an annotation of a keyword-only argument of `write` or `read`, such as
    ``beta: Gain = 1.0``. It reaches the method with shape (..., 1), or (..., n) when it has an axis
    of its own, so it always broadcasts against a key or value vector.

    Parameters
    ----------
    axis : str
        Name of its trailing dimension ("key", "value", ...); empty for one number per step.
    low, high : float, optional
        Inclusive bounds; a value outside them is refused before the run.
    above : bool
        Whether `low` itself is refused.
    """

    axis: str = ""
    low: float | None = None
    high: float | None = None
    above: bool = False

    @property
    def bounds(self) -> str:
        """The admitted values in words, such as "in [0, 1]"."""
        if self.low is not None and self.high is not None:
            return f"in {'(' if self.above else '['}{self.low:g}, {self.high:g}]"
        if self.low is not None:
            return f"{'above' if self.above else 'at least'} {self.low:g}"
        return f"at most {self.high:g}" if self.high is not None else "finite"


Gain = Annotated[Array, Coefficient(low=0.0)]
"""A write strength: one number >= 0 per step."""
Decay = Annotated[Array, Coefficient(low=0.0, high=1.0)]
"""A plain multiplier in [0, 1] per step: 1 keeps everything, 0 is a full reset; never a log."""
KeyGain = Annotated[Array, Coefficient("key", low=0.0)]
"""A gain per key channel; one number per step is spread over the channels."""
KeyDecay = Annotated[Array, Coefficient("key", low=0.0, high=1.0)]
"""A decay per key channel; one number per step is spread over the channels."""
KeyVector = Annotated[Array, Coefficient("key")]
"""A second vector of the key's length (an erase key, a second query): any finite numbers."""
ValueGain = Annotated[Array, Coefficient("value", low=0.0)]
"""A gain per value channel; one number per step is spread over the channels."""
ValueDecay = Annotated[Array, Coefficient("value", low=0.0, high=1.0)]
"""A decay per value channel; one number per step is spread over the channels."""


@dataclass(frozen=True)
class Card:
    """What a solver is, as the comparison of all solvers prints it: class attribute ``card``.

    Costs are formulas in dk, dv, t (pairs written so far) and the solver's own hyperparameters,
    such as "2*dk*dv"; `engine.cards.evaluate` computes them. They count real numbers and
    multiply-adds per trial, leading terms exact.

    Parameters
    ----------
    history : str
        How past pairs are weighted in the fit.
    model : str
        Model class of the fit.
    inner : str
        What is solved per write, or at the read.
    order : str
        What the output of a token sees.
    error : str
        Where the error is taken: "before decay", "after decay", "no decay", or "no error".
    stable : str
        Range of coefficients in which the state stays bounded.
    retained : str
        Numbers kept.
    write, query : str
        Multiply-adds per write and per read.
    lost : str
        What cannot be reconstructed from the state.
    diverges : mapping of str to float
        Coefficients at which repeated unit keys make it diverge; empty if nothing does.
    """

    history: str
    model: str
    inner: str
    error: str
    stable: str
    retained: str
    write: str
    query: str
    lost: str
    order: str = "after its own write"
    diverges: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Space:
    """Where a state lives: the sizes of its dimensions, the trials, the array library.

    Parameters
    ----------
    sizes : mapping of str to int
        Length of "key" and "value".
    lead : tuple of int
        Leading axes of every array (the trials).
    xp, dtype, device
        Array namespace, floating dtype and device.
    """

    sizes: Mapping[str, int]
    lead: tuple[int, ...]
    xp: Any
    dtype: Any
    device: Any = None

    def shape(self, dims: str, **sizes: int) -> tuple[int, ...]:
        """Return the full shape of an array with these dims; `sizes` adds lengths of new ones."""
        known = {**self.sizes, **sizes}
        # "key_2" is a second axis of the same length as "key".
        return self.lead + tuple(known[dim.removesuffix("_2")] for dim in dims.split())

    def full(self, dims: str, value: float, **sizes: int) -> Array:
        """Return an array of these dims filled with `value`."""
        shape = self.shape(dims, **sizes)
        return self.xp.full(shape, value, dtype=self.dtype, device=self.device)

    def zeros(self, dims: str, **sizes: int) -> Array:
        """Return zeros, such as ``space.zeros("key value")``."""
        return self.full(dims, 0.0, **sizes)

    def eye(self, dim: str) -> Array:
        """Return one identity matrix per trial, dims ``"{dim} {dim}_2"``."""
        one = self.xp.eye(self.sizes[dim], dtype=self.dtype, device=self.device)
        return one + self.zeros(f"{dim} {dim}_2")

    def array(self, values: Any) -> Array:
        """Return `values` (numbers or a NumPy array) in this space's library and dtype."""
        return self.xp.asarray(values, dtype=self.dtype, device=self.device)

    def rows(self, dims: str) -> Rows:
        """Return an empty append-only memory of rows with these dims."""
        trials = 1
        for n in self.lead:
            trials *= n
        shape = self.shape(dims)[len(self.lead) :]
        empty = self.xp.zeros((trials, 0, *shape), dtype=self.dtype, device=self.device)
        return Rows(empty)


class Solver(Protocol):
    """A memory update rule. Implementations are frozen dataclasses; the docstring's first line is
    the rule in plain algebra. All arrays carry the same leading axes, which are nobody's business.
    """

    def init(self, space: Space) -> Any:
        """Return the empty state: a NamedTuple whose annotations name the dims of each array."""

    def write(self, s: Any, k: Array, v: Array) -> Any:
        """Return the state after folding in key (..., key) and value (..., value)."""

    def read(self, s: Any, q: Array) -> Array:
        """Return the answer (..., value) to the query (..., key); zeros from an empty state."""


class Extent(NamedTuple):
    """How much a generator can give: None where it has no limit of its own; `why` says why."""

    steps: int | None = None
    trials: int | None = None
    why: str = ""


class Generator(Protocol):
    """A source of keys and values. Implementations are frozen dataclasses of options.

    Every array is NumPy, float64 or integer or bool, shape (step, trial, ...). All randomness
    comes from `draws`, whose first axis is time, and nothing else may depend on how a stream is
    cut into blocks. Subclass it to inherit the defaults of `dims`, `extent` and `facts`.
    """

    @property
    def dims(self) -> Mapping[str, str]:
        """Trailing dims of variables beyond the standard ones, "" for one number per step.

        Standard: keys and queries "key", values "value", mask "", target_map "key value"; a
        variable not listed is one number per step.
        """
        return {}

    def extent(self) -> Extent:
        """Return the most steps and trials this generator can give."""
        return Extent()

    def facts(self, state: Any) -> dict[str, Array]:
        """Return what it knows that does not change: arrays (trial, ...), such as codebooks."""
        return {}

    def start(self, draws: Draws, steps: int | None) -> Any:
        """Return the state before the first step of a stream of `steps` steps (None: endless)."""

    def draw(self, state: Any, draws: Draws, steps: range) -> tuple[Any, dict[str, Array]]:
        """Return the state after `steps`, and "keys", "values" and whatever else is known.

        `steps` may be empty: the arrays then have length 0 and nothing is drawn.
        """


class View(Protocol):
    """A map applied to keys, queries and values before a solver sees them, along the last axis.

    Subclass it to inherit the defaults of all but `__call__`. `values` takes NumPy arrays too,
    whatever the backend: what a solver answers is compared with mapped values on the host.
    """

    def __call__(self, x: Array) -> Array:
        """Map keys, shape (..., n) to (..., size(n))."""

    def queries(self, x: Array) -> Array:
        """Map queries; the same map as for keys unless overridden."""
        return self(x)

    def size(self, n: int) -> int:
        """Return the length of the mapped axis (default: unchanged)."""
        return n

    def values(self, v: Array) -> Array:
        """Map values, shape (..., n) to (..., value_size(n)) (default: unchanged)."""
        return v

    def value_size(self, n: int) -> int:
        """Return the length of mapped values (default: unchanged)."""
        return n


@hookspec
def engine_solvers() -> Mapping[str, type]:
    """Return solvers by name."""
    raise AssertionError("a specification is never called")


@hookspec
def engine_generators() -> Mapping[str, type]:
    """Return generators by name."""
    raise AssertionError("a specification is never called")


@hookspec
def engine_views() -> Mapping[str, type]:
    """Return views by name."""
    raise AssertionError("a specification is never called")


@hookspec
def engine_reports() -> Mapping[str, type]:
    """Return reports by name."""
    raise AssertionError("a specification is never called")

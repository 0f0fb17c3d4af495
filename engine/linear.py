"""The linear family: one recurrence that every rule with a matrix state is a case of.

S_t = a_t S_{t-1} - e_t (r_t^T S_{t-1}) + w_t v_t^T, read S^T q; with momentum, the last two terms
pass through U_t = m_t U_{t-1} + (...) first. A rule states its coefficients as a pure function of
its token and inherits the rest. Coefficients stay apart (a key, its strength, a decay) instead of
multiplied into vectors: the compiled recurrence then reads each number once.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

from engine import ops
from engine.api import Array, Space


class LinearState(NamedTuple):
    """The fit: S maps keys to values."""

    S: Annotated[Array, "key value"]


class MomentumState(NamedTuple):
    """The fit S and its velocity U."""

    S: Annotated[Array, "key value"]
    U: Annotated[Array, "key value"]


class WeightedState(NamedTuple):
    """The sum of w v^T, and the sum of w: what S would be of values that are all 1."""

    S: Annotated[Array, "key value"]
    z: Annotated[Array, "key"]


class Token(NamedTuple):
    """What one step does to S: decay it, erase along `erase` what `address` reads, write.

    Parameters
    ----------
    write : array, shape (..., key)
        w / strength: where the value goes.
    value : array, shape (..., value)
        v: what is written.
    address : array, shape (..., key), optional
        r: what the erased content is read with. None: nothing is erased.
    strength : array, shape (..., 1), optional
        Factor on `write`. None: 1.
    erase : array, shape (..., key), optional
        e: where the erased content is taken from; None means w, the delta rules' choice.
    decay : array, shape (..., 1) or (..., key), optional
        a: factor on the rows of S. None: no decay.
    forgets_first : bool
        Whether the erased content is read from the decayed state.
    momentum : array, shape (..., 1), optional
        m: factor on the velocity, for rules whose state has one.
    gain : array, shape (..., 1), optional
        Factor on the velocity as it enters S. None: 1.
    """

    write: Array
    value: Array
    address: Array | None = None
    strength: Array | None = None
    erase: Array | None = None
    decay: Array | None = None
    forgets_first: bool = False
    momentum: Array | None = None
    gain: Array | None = None


def decayed(S: Array, token: Token) -> Array:
    """Return a S."""
    return S if token.decay is None else ops.scale_rows(token.decay, S)


def change(S: Array, kept: Array, token: Token) -> Array:
    """Return w v^T - e (r^T S): what a token adds; `kept` is the decayed S."""
    w = token.write if token.strength is None else token.strength * token.write
    if token.address is None:
        return ops.outer(w, token.value)
    old = ops.vecmat(token.address, kept if token.forgets_first else S)
    if token.erase is None:
        return ops.outer(w, token.value - old)
    return ops.outer(w, token.value) - ops.outer(token.erase, old)


STABLE = 2.0 + 1e-6
"""Largest stable `correction`: 2, and what rounding may add to it."""


def correction(token: Token) -> Array | None:
    """Return strength w.r (..., 1): the share of its error that a write takes back at its own key.

    1 is exact, 2 as wrong as before on the other side; beyond 2 a key that returns diverges. None
    for tokens that do not correct, or whose velocity does.
    """
    if token.address is None or token.erase is not None or token.momentum is not None:
        return None
    size = ops.dot(token.write, token.address)
    return size if token.strength is None else token.strength * size


def step(S: Array, token: Token) -> Array:
    """Return a S + w v^T - e (r^T S): one step of the recurrence without momentum."""
    kept = decayed(S, token)
    return kept + change(S, kept, token)


class LinearRule:
    """Base of the linear family: a subclass is a frozen dataclass with a method `token`.

    ``token(self, k, v, *, <coefficients>) -> Token`` is a pure function of the token.
    """

    coefficient_methods: ClassVar[tuple[str, ...]] = ("token", "read")

    # Typed as open as Python allows: a type checker then takes any rule's own keywords.
    def token(self, *pair: Any, **coefficients: Any) -> Token:
        """Return the coefficients of the recurrence for one step, from k and v."""
        raise TypeError(f"{type(self).__name__} must define token(self, k, v, *, ...)")

    def init(self, space: Space) -> Any:
        """Return S = 0."""
        return LinearState(space.zeros("key value"))

    def write(self, s: Any, k: Array, v: Array, **coefficients: Array) -> Any:
        """Return the state after one step of the recurrence."""
        return LinearState(step(s.S, self.token(k, v, **coefficients)))

    def read(self, s: Any, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


class MomentumRule(LinearRule):
    """Base of linear rules with a velocity: U <- m U + change, S <- a S + gain U."""

    def init(self, space: Space) -> Any:
        """Return S = 0, U = 0."""
        return MomentumState(space.zeros("key value"), space.zeros("key value"))

    def write(self, s: Any, k: Array, v: Array, **coefficients: Array) -> Any:
        """Return the state after one step of the recurrence."""
        token = self.token(k, v, **coefficients)
        kept = decayed(s.S, token)
        U = ops.scale_rows(token.momentum, s.U) + change(s.S, kept, token)
        return MomentumState(kept + (U if token.gain is None else ops.scale_rows(token.gain, U)), U)


class WeightedRule(LinearRule):
    """Base of linear rules that erase nothing and sum their weights beside their values."""

    def init(self, space: Space) -> Any:
        """Return S = 0, z = 0."""
        return WeightedState(space.zeros("key value"), space.zeros("key"))

    def write(self, s: Any, k: Array, v: Array, **coefficients: Array) -> Any:
        """Return the state after one step of the recurrence, in S and in z."""
        token = self.token(k, v, **coefficients)
        w = token.write if token.strength is None else token.strength * token.write
        z = s.z if token.decay is None else token.decay * s.z
        return WeightedState(step(s.S, token), z + w)

    def read(self, s: Any, q: Array) -> Array:
        """Return what `combine` makes of S^T q and z.q."""
        return self.combine(ops.vecmat(q, s.S), ops.dot(q, s.z))

    def combine(self, total: Array, weight: Array) -> Array:
        """Return the answer from S^T q (..., value) and z.q (..., 1)."""
        raise TypeError(f"{type(self).__name__} must define combine(self, total, weight)")


def is_plain(rule: Any) -> bool:
    """Return whether a rule is the recurrence of its tokens and nothing else.

    Then a fast form may run it; a rule with a write, a read or a state of its own steps.
    """
    own = type(rule)
    bases = (b for b in (MomentumRule, WeightedRule, LinearRule) if isinstance(rule, b))
    base = next(bases, None)
    return base is not None and all(
        getattr(own, name) is getattr(base, name) for name in ("init", "write", "read")
    )

"""The linear family: one recurrence that every rule with a matrix state is a case of.

S_t = a_t S_{t-1} - e_t (r_t^T S_{t-1}) + w_t v_t^T, read S^T q. A rule states the four coefficients
as a pure function of its token and inherits the rest.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

from engine import ops
from engine.api import Array, Space


class LinearState(NamedTuple):
    """The fit: S maps keys to values."""

    S: Annotated[Array, "key value"]


class Token(NamedTuple):
    """What one step does to S: decay it, erase along `erase` what `address` reads, write.

    Parameters
    ----------
    write : array, shape (..., key)
        w: where the value goes, gain included.
    value : array, shape (..., value)
        v: what is written.
    address : array, shape (..., key), optional
        r: what the erased content is read with, from the undecayed state (a rule that decays first
        multiplies r by its decay). None: nothing is erased.
    erase : array, shape (..., key), optional
        e: where the erased content is taken from; None means `write`, the delta rules' choice.
    decay : array, shape (..., 1) or (..., key), optional
        a: factor on the rows of S. None: no decay.
    """

    write: Array
    value: Array
    address: Array | None = None
    erase: Array | None = None
    decay: Array | None = None


class LinearRule:
    """Base of the linear family: a subclass is a frozen dataclass with a method `token`.

    ``token(self, k, v, *, <coefficients>) -> Token`` is a pure function of the token.
    """

    coefficient_methods: ClassVar[tuple[str, ...]] = ("token", "read")

    def token(self, k: Array, v: Array, **coefficients: Array) -> Token:
        """Return the coefficients of the recurrence for one step."""
        raise TypeError(f"{type(self).__name__} must define token(self, k, v, *, ...)")

    def init(self, space: Space) -> Any:
        """Return S = 0."""
        return LinearState(space.zeros("key value"))

    def write(self, s: Any, k: Array, v: Array, **coefficients: Array) -> Any:
        """Return the state after one step of the recurrence."""
        write, value, address, erase, decay = self.token(k, v, **coefficients)
        S = s.S if decay is None else ops.scale_rows(decay, s.S)
        if address is None:
            return LinearState(S + ops.outer(write, value))
        old = ops.vecmat(address, s.S)
        if erase is None:
            return LinearState(S + ops.outer(write, value - old))
        return LinearState(S - ops.outer(erase, old) + ops.outer(write, value))

    def read(self, s: Any, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)

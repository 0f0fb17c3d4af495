"""DeltaProduct: several delta steps per token.

Longer than most: a token is several steps, so the state counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from array_api_compat import array_namespace

from engine import ops
from engine.api import Array, Card, Decay, Gain, Space, hookimpl
from engine.linear import Token, step


class DeltaProductState(NamedTuple):
    """The fit, and how many micro-steps of the present token are done."""

    S: Annotated[Array, "key value"]
    position: Annotated[Array, ""]


@dataclass(frozen=True)
class DeltaProduct:
    """S^ = gamma S at the first of n micro-steps; S <- S^ + beta k (v - S^^T k)^T at each.

    Gated DeltaProduct (Siems et al. 2025, arXiv:2502.10297): a token is n keys and values, so its
    transition is a product of n Householder-like factors. Here a token of n micro-steps is n
    consecutive steps of the stream: gamma acts at the first of each n, at the others it is ignored,
    and the output of the n-th is the token's. A mask should cover whole tokens, for a masked step
    is not counted. Each factor contracts iff 0 <= beta |k|^2 <= 2. S (key, value), position ().

    Parameters
    ----------
    micro_steps : int
        n; 1 is the gated delta rule.
    """

    micro_steps: int = 2
    card: ClassVar[Card] = Card(
        history="exponential in tokens, and recent pairs overwrite older ones along their keys",
        model="linear, S^T q",
        inner="one gradient step on each of a token's pairs, from the fit decayed once",
        error="after decay",
        stable="0 <= beta |k|^2 <= 2",
        retained="dk*dv + 1",
        write="3*dk*dv",
        query="dk*dv",
        lost="what was decayed, or erased along a later key",
        diverges={"beta": 3.0},
    )

    def __post_init__(self) -> None:
        if not self.micro_steps >= 1:
            raise ValueError(f"micro_steps = {self.micro_steps} must be at least 1")

    def init(self, space: Space) -> DeltaProductState:
        """Return S = 0 at the start of a token."""
        return DeltaProductState(space.zeros("key value"), space.zeros(""))

    def write(
        self, s: DeltaProductState, k: Array, v: Array, *, beta: Gain = 1.0, gamma: Decay = 1.0
    ) -> DeltaProductState:
        """Take one micro-step."""
        xp = array_namespace(s.S)
        first = s.position[..., None] == 0
        decay = xp.where(first, gamma, xp.ones_like(s.position)[..., None])
        S = step(s.S, Token(k, v, k, strength=beta, decay=decay, forgets_first=True))
        return DeltaProductState(S, (s.position + 1.0) % self.micro_steps)

    def read(self, s: DeltaProductState, q: Array) -> Array:
        """Return S^T q."""
        return ops.vecmat(q, s.S)


@hookimpl
def engine_solvers() -> Mapping[str, type]:
    """Return DeltaProduct."""
    return {"delta_product": DeltaProduct}

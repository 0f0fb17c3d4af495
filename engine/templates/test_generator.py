"""The contract of every generator, and what new_generator promises."""

from __future__ import annotations

import numpy as np
import pytest

from engine.api import Draws
from engine.templates.generator import NewGenerator
from engine.testing import Check, generator_checks


@pytest.mark.parametrize("check", generator_checks(NewGenerator()), ids=str)
def test_the_contract(check: Check) -> None:
    """Blocks, lengths, trials and seeds."""
    check()


def test_values_are_the_map_of_keys() -> None:
    """Without noise v = W^T k, and every k has length 1."""
    made, draws = NewGenerator(noise=0.0), Draws(0, trials=2)
    _, drawn = made.draw(made.start(draws, 50), draws, range(50))
    mapped = np.einsum("tbkv,tbk->tbv", drawn["target_map"], drawn["keys"])
    np.testing.assert_allclose(drawn["values"], mapped, rtol=0, atol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(drawn["keys"], axis=-1), 1.0, rtol=1e-14)


@pytest.mark.parametrize("options", [{"key": 0}, {"noise": -1.0}, {"noise": np.nan}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    """By name, before anything is drawn."""
    with pytest.raises(ValueError, match=f"{next(iter(options))} = "):
        NewGenerator(**options)  # type: ignore[arg-type]

"""A solver that begins with what the stream knows: the same rule from there on, everywhere."""

import numpy as np
import pytest
import xarray as xr

import engine
from engine.errors import InputError

RNG = np.random.default_rng(0)
KEYS, VALUES = RNG.normal(size=(40, 3, 4)) / 2, RNG.normal(size=(40, 3, 2))
START = RNG.normal(size=(3, 4, 2))


@pytest.fixture
def scenario(tmp_path):
    """A stored stream with a fact to begin with, and a scenario on it."""
    step = ("step", "trial")
    stream = xr.Dataset(
        {
            "keys": ((*step, "key"), KEYS),
            "values": ((*step, "value"), VALUES),
            "S_start": (("trial", "key", "value"), START),
        }
    )
    stream.to_zarr(tmp_path / "stream.zarr", zarr_format=3, consolidated=False)
    text = '[stream]\ngenerator = "stored"\npath = "stream.zarr"\n[solvers.delta]\nbeta = 0.5\n'
    (tmp_path / "s.toml").write_text(text + 'state = { S = "S_start" }\n', encoding="utf-8")
    return tmp_path / "s.toml"


def test_it_begins_where_the_stream_says(scenario):
    """S_t = S_{t-1} + .5 k (v - S_{t-1}^T k)^T by NumPy, from the given S on."""
    S = START.copy()
    run = engine.run(scenario)
    for t in range(40):
        error = VALUES[t] - np.einsum("bkv,bk->bv", S, KEYS[t])
        S += 0.5 * KEYS[t][:, :, None] * error[:, None, :]
        np.testing.assert_allclose(run["solvers/delta/S"].values[t], S, rtol=1e-12, atol=1e-13)
    assert "state" not in run["solvers/delta"].attrs["hyperparameters"]
    resolved = run.attrs["scenario"]["resolved"]["solvers"]["delta"]
    assert resolved["state"] == {"S": "S_start"}


def test_what_is_read_again_begins_there_too(scenario, tmp_path):
    """A replay, and the states between keyframes, of which the first ones have none before them."""
    whole = engine.run(scenario, out=tmp_path / "whole.zarr")["solvers/delta"]
    again = engine.replay(tmp_path / "whole.zarr")["solvers/delta"]
    sparse = engine.run(scenario, out=tmp_path / "keys.zarr", record={"keyframes": 16})
    sparse = sparse["solvers/delta"]
    for name in ("S", "output", "prediction"):
        np.testing.assert_array_equal(again[name].values, whole[name].values)
        np.testing.assert_array_equal(sparse[name].values[20:], whole[name].values[20:])
        np.testing.assert_array_equal(sparse[name].values, whole[name].values)


def test_candidates_of_a_tuning_begin_there(scenario):
    """From the fit that has no error, beta = 0 is best; from an empty state it is the worst."""
    exact = np.einsum("tbk,bkv->tbv", KEYS, START)
    path = scenario.parent / "stream.zarr"
    xr.Dataset({"values": (("step", "trial", "value"), exact)}).to_zarr(
        path, mode="r+", zarr_format=3, consolidated=False
    )
    text = scenario.read_text(encoding="utf-8") + "[tune.delta]\nbeta = [0.0, 0.5]\n"
    scenario.write_text(text, encoding="utf-8")
    (found,) = engine.tune(scenario)
    assert found.best.settings == {"beta": 0.0}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"s": "S_start"}, "state.s = 'S_start': no such state variable; did you mean 'S'?"),
        ({"S": "S_stat"}, "state.S = 'S_stat': the stream has no fact 'S_stat'; did you mean"),
        ({"S": "wide"}, "state.S = 'wide': has shape (3, 5, 2), but S has (3, 4, 2)"),
        ({"S": 3}, "state = {'S': 3}: must be a table of state variables and the facts"),
        ("S_start", "state = 'S_start': must be a table of state variables and the facts"),
    ],
)
def test_what_cannot_be_begun_with_is_named(scenario, state, words):
    wide = xr.Dataset({"wide": (("trial", "wider", "value"), np.zeros((3, 5, 2)))})
    wide.to_zarr(scenario.parent / "stream.zarr", mode="a", zarr_format=3, consolidated=False)
    with pytest.raises(InputError) as error:
        engine.run(scenario, **{"solvers.delta.state": state})
    assert f"solvers.delta: {words}" in str(error.value).replace("delta.state =", "delta: state =")


def test_rows_begin_empty_and_pairs_of_a_pipe_know_no_facts(scenario):
    with pytest.raises(InputError, match="keys grows by a row per write"):
        engine.run(scenario, solvers={"softmax_attention": {"state": {"keys": "S_start"}}})
    with pytest.raises(InputError, match="no fact 'S_start'; it has none"):
        engine.run(
            {
                "stream": {"generator": "random", "steps": 3},
                "solvers": {"delta": {"state": {"S": "S_start"}}},
            }
        )

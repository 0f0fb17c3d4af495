"""Real data from end to end: data sets that river ships, and a language model's attention."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import engine
from engine.api import Draws

SETS = Path(find_spec("river").origin).parent / "datasets"
DATA = Path(__file__).parents[1] / "data"


def test_approval_polls_against_other_people_s_filters(tmp_path):
    """Tail errors of padasip's NLMS (mu .5) and RLS (forgetting .99): .064 and .155."""
    engine.ingest(
        SETS / "trump_approval.csv.gz", tmp_path / "polls.zarr", values="five_thirty_eight",
        keys="ordinal_date,gallup,ipsos,morning_consult,rasmussen,you_gov",
    )  # fmt: skip
    run = engine.run({
        "stream": {"generator": "stored", "path": str(tmp_path / "polls.zarr")},
        "solvers": {
            "lms": {"mu": 0.01}, "nlms": {"mu": 0.5}, "rls": {"gamma": 0.99, "ridge": 1.0},
        },
    })  # fmt: skip
    error = {n: run[f"solvers/{n}/prediction"] - run["stream/values"] for n in ("nlms", "rls")}
    tails = {n: float((e[-100:] ** 2).mean()) for n, e in error.items()}
    assert tails["nlms"] == pytest.approx(0.064, abs=5e-4)
    assert tails["rls"] == pytest.approx(0.155, abs=5e-4)
    # A day number of 736,000 among the keys: each step of LMS multiplies the error by about -5e9,
    # so float64 ends after 308 / 9.7 = 32 of them.
    assert 30 <= int(run["solvers/lms/diverged_at"][0]) <= 34


def test_yeast_genes_past_the_dimension(tmp_path):
    """2417 keys of 103 numbers, unit length to 1e-6: least squares is exact to N = d only."""
    tree = engine.ingest(
        SETS / "yeast.csv.gz", tmp_path / "yeast.zarr", keys="Att*", values="Class*"
    )
    norms = np.linalg.norm(tree["stream/keys"].values, axis=-1)
    assert np.abs(norms - 1.0).max() < 2e-6
    assert set(np.unique(tree["stream/values"].values)) == {0.0, 1.0}
    for steps, exact in ((100, True), (300, False)):
        run = engine.run({
            "stream": {"generator": "stored", "path": str(tmp_path / "yeast.zarr"), "steps": steps},
            "record": "final",
            "solvers": {"least_squares": {"ridge": 1e-9}},
            "probes": {"recall": {}},
        })  # fmt: skip
        read = run["probes/recall/least_squares/read"].values[:, 0]
        left = np.abs(read - run["stream/values"].values[:, 0]).max()
        assert (left < 1e-3) == exact


def test_water_flow_has_a_clock_that_is_put_forward(tmp_path):  # CASES A15
    tree = engine.ingest(
        SETS / "water-flow.csv", tmp_path / "w.zarr", keys="1:", values="1:", time="Time"
    )  # fmt: skip
    text = pd.read_csv(SETS / "water-flow.csv")["Time"]
    assert {stamp[-6:] for stamp in text} == {"+01:00", "+02:00"}
    utc = [pd.Timestamp(stamp).tz_convert("UTC").tz_localize(None) for stamp in text]
    stored = tree["stream/time"].values[:, 0]
    assert len(stored) == 1268
    np.testing.assert_array_equal(stored, np.array(utc, dtype="datetime64[ns]"))
    assert (np.diff(stored) > np.timedelta64(0)).all()


def test_chickens_are_ragged(tmp_path):
    tree = engine.ingest(
        SETS / "chick-weights.csv", tmp_path / "c.zarr", keys="time", values="weight",
        sequence="chick", channels="diet",
    )  # fmt: skip
    frame = pd.read_csv(SETS / "chick-weights.csv")
    lengths = frame.groupby("chick", sort=False).size()
    assert tree["stream"].attrs["sequences"] == [str(c) for c in lengths.index]
    assert tree["stream/mask"].sum("step").values.tolist() == lengths.tolist()
    one = frame[frame.chick == 18]
    at = list(lengths.index).index(18)
    stored = tree["stream/values"].values[: len(one), at, 0]
    np.testing.assert_array_equal(stored, one.weight)


def test_the_attention_of_a_language_model(tmp_path):
    """Taken out of its store as arrays, through a file, and back: the same run."""
    source = engine.generator("stored", path=DATA / "attention.zarr")
    extent = source.extent()
    draws = Draws(0, extent.trials)
    _, arrays = source.draw(source.start(draws, extent.steps), draws, range(extent.steps))
    np.savez(tmp_path / "attention.npz", **{n: arrays[n] for n in ("keys", "values", "queries")})
    engine.ingest(tmp_path / "attention.npz", tmp_path / "a.zarr")
    solvers = {"delta": {"beta": 1.0, "view": "unit"}, "softmax": {"solver": "softmax_attention"}}
    runs = [
        engine.run({"stream": {"generator": "stored", "path": str(path)}, "solvers": solvers})
        for path in (DATA / "attention.zarr", tmp_path / "a.zarr")
    ]
    for label in solvers:
        a, b = (run[f"solvers/{label}/output"].values for run in runs)
        np.testing.assert_array_equal(a, b)

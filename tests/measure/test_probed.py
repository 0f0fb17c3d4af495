"""Probes of recorded runs against what can be worked out from their streams and states."""

import numpy as np
import pytest

import engine
from engine.measure import capacity, laws, probed, statistics

TABLE = {
    "trials": 40, "seed": 2,
    "stream": {"generator": "random", "steps": 32, "key": 8, "value": 8},
    "solvers": {"delta": {"beta": 0.5}, "seen": {
        "solver": "delta", "beta": 0.5,
        "view": {"view": "projection", "value_features": 5, "seed": 1},
    }},
    "probes": {"end": {}, "often": {"every": 8}},
}  # fmt: skip


@pytest.fixture(scope="module")
def run():
    return engine.run(TABLE)


def test_pairs_are_measured_against_the_values_they_were_written_with(run):
    S = run["solvers/delta/S"].values
    keys, values = run["stream/keys"].values, run["stream/values"].values
    for name, stops in (("end", [32]), ("often", [8, 16, 24, 32])):
        got = probed.pairs(run, name, "delta")
        for i, stop in enumerate(stops):
            row = got.isel(probe_step=i) if name == "often" else got
            row = row.isel(query=slice(stop))
            read = np.einsum("qbk,bkv->qbv", keys[:stop], S[stop - 1])
            want = np.linalg.norm(read - values[:stop], axis=-1)
            np.testing.assert_allclose(row.error.values, want, atol=1e-12)
            want = (read * values[:stop]).sum(-1)  # unit values
            np.testing.assert_allclose(row.signal.values, want, atol=1e-12)
            np.testing.assert_array_equal(row.age.values[:, 0], np.arange(stop)[::-1])
        if name == "often":
            first = got.isel(probe_step=0, query=slice(8, None))
            assert np.isnan(first.error).all() and (first.age == -1).all()


def test_behind_a_view_the_right_value_is_the_mapped_one(run):
    view = engine.view("projection", value_features=5, seed=1)
    want = np.asarray(view.values(run["stream/values"].values))
    read = run["probes/end/seen/read"].values
    got = probed.pairs(run, "end", "seen")
    np.testing.assert_allclose(got.error.values, np.linalg.norm(read - want, axis=-1), atol=1e-12)


def test_the_error_by_age_is_the_delta_rule_s_law():
    """Law 3, squared errors of single ages, within 4 standard errors of 400 trials."""
    run = engine.run({**TABLE, "trials": 400})
    made = probed.pairs(run, "end", "delta")
    made["square"] = made.error**2
    ages = np.array([0, 1, 4, 16, 31])
    law = laws.delta_error(0.5, 8, 32)
    for age in ages:
        mine = made.square.where(made.age == age).sum("query")
        assert statistics.estimate(mine).agrees(law[age], 4), age
    got = probed.by_age(run, "end", "delta", [0, 1, 2, 32], of="error")
    assert got.dims == ("trial", "age") and got.age.values.tolist() == [0, 1, 2]
    np.testing.assert_allclose(got.values[:, 0], made.error.values[-1])
    np.testing.assert_allclose(got.values[:, 2], made.error.values[:30].mean(0))


def test_recall_by_load(run):
    got = probed.by_load(run, "often", "delta")
    assert got["load"].values.tolist() == [1.0, 2.0, 3.0, 4.0] and got.sizes["trial"] == 40
    want = run["probes/often/delta/recalled"].values
    np.testing.assert_allclose(got.values[0], want[0, :8].mean(0))
    np.testing.assert_allclose(got.values[-1], want[-1].mean(0))
    at = capacity.crossing(got["load"], got, shared=True, resamples=200)
    assert 1 <= at.low <= at.value <= at.high
    end = probed.by_load(run, "end", "delta")
    assert end["load"].values.tolist() == [4.0] and end.dims == ("load", "trial")


def test_recall_of_each_trial_counts_the_queries_that_have_an_answer(run):
    table = {"generator": "rebinding", "entries": 4, "rebindings": 5, "key": 8, "value": 8}
    again = engine.run({"trials": 3, "stream": table, "solvers": {"delta": {"beta": 0.4}},
                        "probes": {"end": {}}})  # fmt: skip
    hits, wanted = (again[f"probes/end/{n}"].values for n in ("delta/recalled", "wanted"))
    for trial in range(3):
        mine = hits[wanted[:, trial] >= 0, trial]
        got = probed.recall(again, "end", "delta").values[trial]
        assert mine.size == 4 and got == pytest.approx((mine == 1).sum() / 4)
    first = np.zeros((32, 40), dtype=bool)
    first[:5] = True
    want = run["probes/end/delta/recalled"].values[:5].sum(axis=0) / 5
    np.testing.assert_allclose(probed.recall(run, "end", "delta", where=first), want)
    assert probed.recall(run, "often", "delta").dims == ("probe_step", "trial")
    for name, words in (("bok", "no probe 'bok'"), ("end", "delto")):
        with pytest.raises(engine.InputError, match=words):
            probed.recall(run, name, "delto")


def test_rebound_keys_have_the_load_and_the_age_of_their_latest_binding():
    table = {"generator": "rebinding", "entries": 4, "rebindings": 5, "key": 8, "value": 8,
             "basis": "orthonormal"}  # fmt: skip
    run = engine.run({"trials": 3, "stream": table, "solvers": {"delta": {"beta": 1.0}},
                      "probes": {"end": {}}})  # fmt: skip
    got = probed.pairs(run, "end", "delta")
    wanted = run["probes/end/wanted"].values >= 0
    assert (wanted.sum(0) == 4).all() and (got.age.values[wanted] >= 0).all()
    assert (got.age.values[~wanted] == -1).all() and np.isnan(got.error.values[~wanted]).all()
    # Orthonormal keys, beta 1: the latest binding is held exactly, whatever came before.
    assert got.error.values[wanted].max() < 1e-12
    np.testing.assert_allclose(probed.by_load(run, "end", "delta")["load"], 0.5)
    assert (probed.by_load(run, "end", "delta") == 1).all()


def test_a_codebook_has_no_ages_and_an_unknown_probe_is_named():
    table = {"generator": "rebinding", "entries": 4, "rebindings": 5, "key": 8, "value": 8}
    run = engine.run({"stream": table, "solvers": {"delta": {}},
                      "probes": {"book": {"ask": "codebook"}}})  # fmt: skip
    assert "age" not in probed.pairs(run, "book", "delta")
    with pytest.raises(engine.InputError, match="no ages"):
        probed.by_age(run, "book", "delta", [0, 1])
    with pytest.raises(engine.InputError, match="no probe 'bok'.*book"):
        probed.by_load(run, "bok", "delta")

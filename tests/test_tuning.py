"""Tuning: every candidate on the same development streams, and the best written down."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.fill import filled
from engine.measure.laws import tracking
from engine.summary import _mean
from engine.tuning import tune

from .scenario_cases import refused

pytestmark = pytest.mark.usefixtures("own_folder")
TABLE = {
    "seeds": {"development": 2, "sealed": 9}, "trials": 4,
    "stream": {"generator": "random", "steps": 24, "key": 6, "value": 6, "priority": 0.3},
    "solvers": {"delta": {"beta": 0.5}, "rls": {}},
    "probes": {"recall": {}, "early": {"steps": [5, 10]}},
}  # fmt: skip


@pytest.mark.parametrize("objective", ["recall", "early", "error"])
@pytest.mark.parametrize("kernel", ["loop", "auto"])
def test_a_candidate_scores_what_its_own_run_gives(objective, kernel):
    """In one batch, and yet each sees the streams and has the numbers of a run by itself."""
    betas = [0.1, 0.4, 0.9]
    table = {**TABLE, "kernel": kernel, "tune": {"delta": {"beta": betas, "objective": objective}}}
    (tuned,) = tune(table)
    for beta, candidate in zip(betas, tuned.candidates, strict=True):
        run = engine.run(TABLE, **{"solvers.delta.beta": beta})
        if objective == "error":
            error = run["solvers/delta/prediction"] - run["stream/values"]
            want = float(np.sqrt((error**2).sum("value"))[-6:].mean())
        else:
            hits = run[f"probes/{objective}/delta/recalled"]
            want = float((hits if objective == "recall" else hits.isel(probe_step=-1)).mean())
        assert candidate.settings == {"beta": beta} and candidate.score.n == 4
        assert float(candidate.score.value) == pytest.approx(want, rel=1e-13)
    means = [float(c.score.value) for c in tuned.candidates]
    best = min(means) if objective == "error" else max(means)
    assert float(tuned.best.score.value) == best and float(tuned.best.behind.value) == 0.0


def test_the_printed_error_of_a_run_is_the_one_that_is_tuned(call):
    """The tracking error where the target is known, by the summary that `engine run` prints."""
    stream = {"generator": "drifting", "steps": 50, "key": 3, "value": 2}
    table = {**TABLE, "stream": stream, "probes": {}, "solvers": {"longhorn": {"beta": 2.0}},
             "tune": {"longhorn": {"beta": [2.0, 1.0]}}}  # fmt: skip
    (tuned,) = tune(table)
    assert tuned.measure == "tracking error"
    from engine.measure import error_curve

    want = _mean(error_curve(engine.run(table), "longhorn", start=38).values)
    assert float(tuned.candidates[0].score.value) == pytest.approx(want, rel=1e-13)


def test_the_best_step_is_the_one_of_the_law():
    """Law of tracking on the sphere (the steady state of the implicit step): where its minimum is.

    Neighbours on this grid differ by 10 % and more in the square, 5 % in the distance.
    """
    betas = [0.25, 0.5, 1.0, 4.0, 8.0]
    rho, noise = tracking.sphere_correlation(8, 0.03), 0.1
    law = [tracking.sphere_walk_error(tracking.implicit_gain(b), 8, rho, noise) for b in betas]
    assert 0 < int(np.argmin(law)) < len(betas) - 1
    stream = {"generator": "drifting", "steps": 1200, "key": 8, "noise": noise}
    table = {**TABLE, "trials": 40, "stream": stream, "probes": {}, "solvers": {"longhorn": {}},
             "tune": {"longhorn": {"beta": betas}}}  # fmt: skip
    (tuned,) = tune(table)
    assert tuned.best.settings == {"beta": betas[int(np.argmin(law))]} and not tuned.edges
    others = [c for c in tuned.candidates if c is not tuned.best]
    assert all(float(c.behind.low) > 0 for c in others)
    # And a search between the ends finds a step at least as good as the best of the grid.
    table["tune"] = {"longhorn": {"beta": {"low": 0.25, "high": 8.0, "scale": "log"}}}
    (searched,) = tune(table)
    assert float(searched.best.score.value) <= float(tuned.best.score.value) * 1.001
    assert abs(np.log(searched.best.settings["beta"] / betas[int(np.argmin(law))])) < np.log(2)


def test_hyperparameters_and_coefficients_are_tried_together():
    grid = {"ridge": [1e-3, 1.0], "gamma": [0.9, 1.0], "objective": "recall"}
    (tuned,) = tune({**TABLE, "tune": {"rls": grid}})
    tried = [tuple(c.settings.values()) for c in tuned.candidates]
    assert tried == [(1e-3, 0.9), (1e-3, 1.0), (1.0, 0.9), (1.0, 1.0)]
    for (ridge, gamma), c in zip(tried, tuned.candidates, strict=True):
        run = engine.run(TABLE, **{"solvers.rls.ridge": ridge, "solvers.rls.gamma": gamma})
        want = float(run["probes/recall/rls/recalled"].mean())
        assert float(c.score.value) == pytest.approx(want, rel=1e-13)


def test_what_is_already_per_trial_stays_with_its_trial():
    betas = [0.1, 0.2, 0.3, 0.4]
    solvers = {"gated": {"solver": "gated_delta", "beta": {"trials": betas}}}
    grid = {"gated": {"gamma": [0.8, 1.0], "objective": "recall"}}
    (tuned,) = tune({**TABLE, "solvers": solvers, "tune": grid})
    run = engine.run({**TABLE, "solvers": solvers}, **{"solvers.gated.gamma": 0.8})
    want = float(run["probes/recall/gated/recalled"].mean())
    assert float(tuned.candidates[0].score.value) == pytest.approx(want, rel=1e-13)


def test_batches_and_their_size_change_nothing(monkeypatch):
    grid = {"delta": {"beta": {"low": 0.1, "high": 0.9, "count": 5}, "objective": "recall"}}
    (whole,) = tune({**TABLE, "tune": grid})
    monkeypatch.setattr("engine.tuning.BATCH", 1)
    (single,) = tune({**TABLE, "tune": grid})
    assert [c.settings["beta"] for c in whole.candidates] == pytest.approx(
        [0.1, 0.3, 0.5, 0.7, 0.9]
    )
    for a, b in zip(whole.candidates, single.candidates, strict=True):
        assert a.settings == b.settings and a.score == b.score


def test_a_candidate_that_diverges_is_never_the_best():
    stream = {**TABLE["stream"], "steps": 400}
    grid = {"delta": {"beta": [1e200, 0.3], "objective": "error"}}
    (tuned,) = tune({**TABLE, "stream": stream, "tune": grid})
    assert tuned.best.settings == {"beta": 0.3} and np.isnan(tuned.candidates[0].score.value)
    with pytest.raises(engine.InputError, match="tune.delta: every candidate diverged"):
        tune({**TABLE, "stream": stream, "tune": {"delta": {"beta": [1e200]}}})


TEXT = """title = "A study"   # kept
trials = 4
[seeds]
sealed = 9
[stream]
generator = "random"
steps = 24
key = 6
value = 6
[solvers.delta]     # the rule
beta = 0.5          # by hand
[solvers.rls]
gamma = 1.0
[probes.recall]
[tune.delta]
beta = [0.1, 0.4]
objective = "recall"
[tune.rls]
ridge = [0.001, 10.0]
"""


def test_the_best_is_printed_and_written_into_the_scenario(call):
    Path("s.toml").write_text(TEXT)
    code, out, err = call("tune", "s.toml", "-o", "best.toml", "--set", "trials=5")
    assert code == 0 and "behind the best" in out and "written to best.toml" in out
    wrote = Path("best.toml").read_text()
    plain = json.loads(call("tune", "s.toml", "--set", "trials=5", "--json")[1])
    table = tomllib.loads(wrote)
    for key, value in plain["best"].items():
        _, label, name = key.split(".")
        assert table["solvers"][label][name] == value
    assert set(plain["best"]) == {"solvers.delta.beta", "solvers.rls.ridge"}
    assert table["trials"] == 5 and "# kept" in wrote and "# the rule" in wrote
    assert "# by hand" in wrote
    best = max(plain["solvers"][0]["candidates"], key=lambda c: c["score"]["value"])
    assert plain["solvers"][0]["best"] == best["settings"]
    run = engine.run("best.toml")
    assert float(run["probes/recall/delta/recalled"].mean()) == best["score"]["value"]
    only = json.loads(call("tune", "s.toml", "--solver", "rls", "--json")[1])
    assert [t["solver"] for t in only["solvers"]] == ["rls"]
    assert not Path("s.ledger.jsonl").exists()  # nothing sealed was opened


def test_a_text_that_is_not_plain_enough_is_not_guessed_at():
    Path("s.toml").write_text(
        'solvers = { delta = { beta = 0.5 } }\n[stream]\ngenerator = "random"\n'
    )
    with pytest.raises(engine.InputError, match="write by hand: solvers.delta.beta = 0.25"):
        filled("s.toml", {"solvers.delta.beta": 0.25})


MISTAKES = {
    "nothing": ("", "tune: missing; write [tune.<label>] with candidates"),
    "label": ("[tune.dleta]\nbeta = [1.0]", "tune.dleta: no such solver; did you mean 'delta'?"),
    "setting": ("[tune.delta]\nbta = [1.0]", "tune.delta.bta = [1.0]: no such setting; did you me"),
    "no list": ("[tune.delta]\nbeta = 1.0", "tune.delta.beta = 1.0: must be a list of candidates"),
    "empty": ("[tune.delta]\nbeta = []", "tune.delta.beta = []: must be a list of candidates"),
    "nothing to try": ("[tune.delta]", "tune.delta: nothing to try; Known: beta"),
    "objective": (
        '[tune.delta]\nobjective = "recal"\nbeta = [1.0]',
        "tune.delta.objective = 'recal': no such objective; did you mean 'recall'? Known: error, r",
    ),
    "bounds": ("[tune.delta]\nbeta = [0.1, -1.0]", "tune.delta.beta = [0.1, -1.0]: beta = -1 must"),
    "text": ('[tune.delta]\nbeta = ["a"]', "tune.delta.beta = ['a']: must be a number"),
    "range": ("[tune.delta]\nbeta = { low = 1.0 }", "tune.delta.beta = {'low': 1.0}: needs 'high'"),
    "range key": (
        "[tune.delta]\nbeta = { low = 0.1, high = 1.0, cont = 3 }",
        "no key 'cont'; did you mean 'c",
    ),
    "range turned": ("[tune.delta]\nbeta = { low = 2.0, high = 1.0 }", "low must be below high"),
    "range log": (
        '[tune.delta]\nbeta = { low = 0.0, high = 1.0, scale = "log" }',
        "low above 0 must be below",
    ),
    "mixed": (
        "[tune.rls]\ngamma = { low = 0.5, high = 1.0 }\nridge = [1.0]",
        "tune.rls: 'gamma' without count beside 'ridge'; give every range a count, or none",
    ),
    "a table": ("[tune]\ndelta = 3", "tune.delta = 3: must be a table"),
}


@pytest.mark.parametrize("text, said", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_what_to_tune(text, said, capsys, monkeypatch):
    Path("s.toml").write_text(TEXT[: TEXT.index("[tune.delta]")] + text + "\n")
    err = refused(capsys, monkeypatch, "tune", "s.toml", "-o", "out.toml")
    assert "s.toml: " in err and said in err


def test_a_mistake_about_where_to_write(capsys, monkeypatch):
    Path("s.toml").write_text(TEXT)
    err = refused(capsys, monkeypatch, "tune", "s.toml", "-o", "s.toml")
    assert "s.toml exists; choose another place" in err
    assert "is not a folder" in refused(capsys, monkeypatch, "tune", "s.toml", "-o", "no/t.toml")
    err = refused(capsys, monkeypatch, "tune", "s.toml", "--solver", "rsl")
    assert "tune.rsl: missing; did you mean 'rls'?" in err
    err = refused(capsys, monkeypatch, "tune", "s.toml", "--set", "seed=9")
    assert "seed = 9: it is sealed" in err


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_a_search_that_ends_at_an_end_says_so_and_tries_nothing_twice(scale):
    """Far beyond its load, plain delta is best with the weakest write."""
    stream = {"generator": "random", "steps": 64, "key": 4, "value": 4}
    beta = {"low": 0.4, "high": 1.5, "scale": scale}
    (tuned,) = tune({**TABLE, "stream": stream, "tune": {"delta": {"beta": beta}}})
    assert tuned.edges == ["beta"] and tuned.best.settings["beta"] == pytest.approx(0.4, rel=5e-3)
    tried = [c.settings["beta"] for c in tuned.candidates]
    assert len(set(tried)) == len(tried) > 3


def test_a_candidate_given_twice_is_tried_once():
    (tuned,) = tune({**TABLE, "tune": {"delta": {"beta": [0.5, 0.1, 0.5]}}})
    assert [c.settings["beta"] for c in tuned.candidates] == [0.5, 0.1]


def test_one_trial_has_no_interval_and_none_is_printed(call):
    Path("one.toml").write_text(
        'trials = 1\n[stream]\ngenerator = "random"\nsteps = 8\nkey = 3\n[solvers.delta]\n'
        "[tune.delta]\nbeta = [0.2, 0.5, 0.9]\n"
    )
    code, out, _ = call("tune", "one.toml")
    assert code == 0 and "nan" not in out and "one trial: no intervals; take more" in out
    found = json.loads(call("tune", "one.toml", "--json")[1])["solvers"][0]["candidates"]
    assert [c["score"]["low"] for c in found] == [None] * 3

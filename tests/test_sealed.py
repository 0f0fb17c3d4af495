"""The sealed protocol: who may use which seed, and a ledger that keeps every opening."""

import json
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import sealed

from .cli_cases import SMALL
from .scenario_cases import refused

TEXT = SMALL.replace("seed = 3\n", "") + "\n[seeds]\ndevelopment = 3\nsealed = 77\n"


@pytest.fixture(autouse=True)
def study(own_folder):
    Path("study.toml").write_text(TEXT)


def ledger():
    return sealed.read(Path("study.ledger.jsonl"))


def test_development_and_sealed_seeds_draw_their_own_streams():
    table = {"trials": 2, "stream": {"generator": "random", "steps": 40, "key": 4, "value": 3},
             "solvers": {"delta": {"beta": 0.5}}}  # fmt: skip
    development, opened = engine.run("study.toml"), engine.run("study.toml", sealed=True)
    for run, seed in ((development, 3), (opened, 77)):
        want = engine.run({**table, "seed": seed})
        np.testing.assert_array_equal(run["stream/keys"], want["stream/keys"])
        assert run.attrs["provenance"]["seed"] == seed
    assert "sealed" not in development.attrs and sealed.mark(development.attrs) is None


def test_an_opening_is_marked_in_the_run_and_written_to_the_ledger(call):
    code, out, _ = call("run", "study.toml", "--sealed", "-o", "a.zarr")
    (entry,) = ledger()
    assert code == 0
    seal = engine.open("a.zarr").attrs["sealed"]
    assert (seal["number"], seal["changed"], seal["seed"]) == (1, False, 77)
    assert seal["hash"] == seal["first"] == entry["hash"]
    assert (entry["opening"], entry["run"], entry["seed"]) == (1, "a.zarr", 77)
    assert set(entry["versions"]) == {"ttr-engine", "numpy"} and entry["time"].endswith("+00:00")
    told = f"sealed seeds: opening 1, scenario {seal['hash'][:12]}"
    assert told in out
    assert told in call("show", "a.zarr")[1]
    assert json.loads(call("show", "a.zarr", "--json")[1])["sealed"] == seal
    assert sealed.mark(engine.open("a.zarr").attrs) == told


@pytest.mark.parametrize("change", ["set", "trials", "file"])
def test_a_changed_scenario_is_marked_for_ever(change, call):
    """And the same one, opened again, is not: reproducing is no change."""
    call("run", "study.toml", "--sealed", "-o", "a.zarr")
    args = {"set": ["--set", "solvers.delta.beta=0.6"], "trials": ["--trials", "4"]}.get(change, [])
    if change == "file":
        Path("study.toml").write_text(TEXT.replace("beta = 0.5", "beta = 0.6"))
    code, out, _ = call("run", "study.toml", "--sealed", "-o", "b.zarr", *args)
    assert code == 0
    Path("study.toml").write_text(TEXT.replace("A small one", "Another title") + "# a comment\n")
    call("run", "study.toml", "--sealed", "-o", "c.zarr")
    assert [e["changed"] for e in ledger()] == [False, True, False]
    first, second, third = (engine.open(f"{n}.zarr").attrs["sealed"] for n in "abc")
    assert first["hash"] == second["first"] == third["hash"] != second["hash"]
    told = f"CHANGED SCENARIO: opening 2, scenario {second['hash'][:12]}, first opened with "
    assert told + first["hash"][:12] in out
    assert told in call("show", "b.zarr")[1] and "CHANGED" not in call("show", "c.zarr")[1]


def test_a_first_opening_with_overrides_is_a_changed_one():
    run = engine.run("study.toml", sealed=True, trials=5)
    assert run.attrs["sealed"]["changed"] and ledger()[0]["changed"]


def test_every_picture_of_a_sealed_run_says_so(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    seen, save = [], Figure.savefig

    def watched(self, *args, **kwargs):
        seen.append(self._suptitle)
        save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", watched)
    from engine.publishing import publish

    run = engine.run("study.toml", sealed=True, **{"solvers.delta.beta": 0.1})
    page = publish(run, tmp_path / "report")[0]
    assert {text.get_text() for text in seen} == {sealed.mark(run.attrs)}
    assert "CHANGED SCENARIO" in seen[0].get_text()
    assert f'<p class="mark">{sealed.mark(run.attrs)}</p>' in page.read_text()


@pytest.mark.parametrize("edit", [
    lambda lines: [lines[0].replace('"changed": true', '"changed": false'), *lines[1:]],
    lambda lines: lines[1:],
    lambda lines: [lines[0], lines[2]],
    lambda lines: [lines[1], lines[0], lines[2]],
    lambda lines: [*lines[:2], lines[2].replace("77", "78")],
    lambda lines: [*lines, "{}"],
    lambda lines: [*lines, "hello"],
])  # fmt: skip
def test_a_ledger_that_was_edited_is_found_and_opens_nothing(edit, capsys, monkeypatch):
    for beta in (0.1, 0.2, 0.3):
        engine.run("study.toml", sealed=True, **{"solvers.delta.beta": beta})
    path = Path("study.ledger.jsonl")
    path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")
    err = refused(capsys, monkeypatch, "run", "study.toml", "--sealed")
    assert "study.ledger.jsonl, line " in err and "not as it was written" in err
    engine.run("study.toml")  # development goes on


def test_a_run_that_is_refused_opens_nothing(capsys, monkeypatch):
    Path("taken").mkdir()
    Path("taken/mine.txt").write_text("mine")
    args = ("run", "study.toml", "--sealed", "-o", "taken")
    assert "taken exists" in refused(capsys, monkeypatch, *args)
    with pytest.raises(engine.InputError, match="beta"):
        engine.run("study.toml", sealed=True, **{"solvers.delta.beta": -1.0})
    assert not Path("study.ledger.jsonl").exists()


def test_a_shipped_scenario_keeps_its_ledger_in_runs(tmp_path, monkeypatch):
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "study.toml").write_text(TEXT)
    Path("study.toml").unlink()
    monkeypatch.setattr("engine.scenario.shipped", lambda: {"study": folder / "study.toml"})
    engine.run("study", sealed=True)
    assert [p.name for p in folder.iterdir()] == ["study.toml"]
    assert len(sealed.read(Path("runs/study.ledger.jsonl"))) == 1


MISTAKES = {
    "no seeds": ("", ["--sealed"], "seeds.sealed: missing; a sealed run needs [seeds] with"),
    "no sealed seed": ("development = 1", [], "seeds.sealed: missing; write the number that no"),
    "seed beside": (
        "sealed = 7",
        ["--sealed", "--seed", "1"],
        "seed = 1: a sealed run takes seeds",
    ),
    "sealed used": ("sealed = 7", ["--seed", "7"], "seed = 7: it is sealed; open it with engine"),
    "the same": ("sealed = 7\ndevelopment = 7", [], "seed = 7: it is sealed; open it with engine"),
    "misspelt": ("sealed = 7\ndevelop = 7", [], "seeds.develop = 7: no such key; did you mean"),
    "below zero": ("sealed = -7", [], "seeds.sealed = -7: must be greater than or equal"),
    "no number": ('sealed = "x"', [], "seeds.sealed = 'x': must be a whole number"),
}


@pytest.mark.parametrize("text, args, said", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_about_seeds(text, args, said, capsys, monkeypatch):
    small = SMALL.replace("seed = 3\n", "")
    Path("s.toml").write_text(f"{small}\n[seeds]\n{text}\n" if text else small)
    err = refused(capsys, monkeypatch, "run", "s.toml", *args)
    assert f"s.toml: {said}" in err


def test_a_table_in_memory_has_no_place_for_a_ledger():
    table = {"stream": {"generator": "random", "steps": 4}, "solvers": {"delta": {}},
             "seeds": {"sealed": 4}}  # fmt: skip
    with pytest.raises(engine.InputError, match="a sealed run needs a scenario file"):
        engine.run(table, sealed=True)
    with pytest.raises(engine.InputError, match="seed = 4: it is sealed"):
        engine.stream({**table, "seed": 4})


@pytest.mark.parametrize("change, changed", [
    ({}, False), ({"solvers.delta.beta": 0.6}, True), ({"record": "final"}, True),
])  # fmt: skip
def test_a_replay_of_sealed_streams_is_marked_too(change, changed):
    """What was opened stays open: other settings on its stream are a changed scenario."""
    opened = engine.run("study.toml", "a.zarr", sealed=True).attrs["sealed"]
    first = engine.replay("a.zarr", out="b.zarr", **change)
    again = engine.replay("b.zarr")
    for run in (first, again):
        seal = run.attrs["sealed"]
        assert (seal["changed"], seal["first"]) == (changed, opened["hash"])
        assert (seal["hash"] == opened["hash"]) is not changed
        assert ("CHANGED" in sealed.mark(run.attrs)) is changed
    assert len(ledger()) == 1


def test_a_scenario_that_reads_sealed_streams_is_marked_and_not_tuned(call):
    engine.run("study.toml", "a.zarr", sealed=True)
    Path("other.toml").write_text(
        '[stream]\ngenerator = "stored"\npath = "a.zarr"\n[solvers.delta]\nbeta = 0.9\n'
        "[tune.delta]\nbeta = [0.5, 0.9]\n"
    )
    code, out, _ = call("run", "other.toml", "-o", "c.zarr")
    assert code == 0 and "SEALED SEEDS, CHANGED SCENARIO: opening 1" in out
    assert engine.open("c.zarr").attrs["sealed"]["changed"]
    code, _, err = call("tune", "other.toml")
    assert code == 2 and "other.toml: stream.path: a run on sealed seeds; tune on a dev" in err


def test_every_part_of_a_sealed_sweep_is_marked():
    Path("study.toml").write_text(TEXT + "[sweep]\n'solvers.delta.beta' = [0.1, 0.2]\n")
    root = engine.run("study.toml", "a.zarr", sealed=True)
    assert len(ledger()) == 1
    for run in (root, engine.open("a.zarr/parts/1"), engine.replay("a.zarr/parts/1")):
        assert sealed.mark(run.attrs) == sealed.mark(root.attrs) is not None

"""Scenarios: every mistake a user can make is told in one message, and nothing is written."""

import sys
import warnings
from pathlib import Path

import pytest

import engine

from .scenario_cases import GOOD, LABEL, refused, stream
from .scenario_solver_mistakes import SOLVER_MISTAKES
from .scenario_stream_mistakes import STREAM_MISTAKES

pytestmark = pytest.mark.usefixtures("own_folder")

MISTAKES = STREAM_MISTAKES | SOLVER_MISTAKES


@pytest.mark.parametrize("text, said", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_scenario(text, said, capsys, monkeypatch):
    Path("s.toml").write_text(text, encoding="utf-8")
    err = refused(capsys, monkeypatch, "run", "s.toml")
    for part in said:
        assert part in err
    assert "s.toml" in err


ARGUMENTS = {
    "no file": (["nothing.toml"], ["scenario file 'nothing.toml' does not exist"]),
    "no file in a folder": (["a/b"], ["scenario file 'a/b' does not exist"]),
    "a folder": (["folder.toml"], ["scenario file 'folder.toml' is a folder, not a file"]),
    "no such name": (
        ["drfit"],
        ["no scenario is named 'drfit', and there is no such file; did you mean 'drift'? Known: "],
    ),
    "no name": ([""], ["no scenario is named ''", ", attention, "]),
    "not UTF-8": (["latin.toml"], ["latin.toml: not UTF-8 text, as TOML must be"]),
    "set malformed": (["good.toml", "--set", "seed"], ["--set 'seed': expected PATH=VALUE, as s"]),
    "set nothing": (["good.toml", "--set", "=3"], ["--set '=3': expected PATH=VALUE"]),
    "set into a value": (
        ["good.toml", "--set", "title.deep=3"],
        ["good.toml: override title.deep = 3: 'title' is a value, not a table"],
    ),
    "set into a coefficient": (
        ["good.toml", "--set", "solvers.delta.beta.low=3"],
        ["override solvers.delta.beta.low = 3: 'beta' is a value, not a table"],
    ),
    "set misspelt": (
        ["good.toml", "--set", "solvers.delta.bta=0.5"],
        ["good.toml: solvers.delta.bta = 0.5: delta takes no 'bta'; did you mean 'beta'?"],
    ),
    "set a label misspelt": (
        ["drift", "--set", "solvers.implict.beta=1"],
        ["(is the label 'implicit' meant?): no solver is named 'implict'; Known: "],
    ),
    "set a table misspelt": (
        ["good.toml", "--set", "solver.delta.beta=0.5"],
        ["good.toml: solver = {'delta': {'beta': 0.5}}: no such key; did you mean 'solvers'?"],
    ),
    "set a wrong value": (
        ["good.toml", "--set", "solvers.delta.beta=much"],
        ["good.toml: solvers.delta.beta = 'much': must be a number"],
    ),
    "set an empty value": (
        ["good.toml", "--set", "solvers.delta.beta="],
        ["good.toml: solvers.delta.beta = '': must be a number"],
    ),
    "set an empty label": (["good.toml", "--set", "solvers..x=1"], [f"solvers: '' {LABEL}"]),
    "set two lines": (["good.toml", "--set", "seed=1\nx=2"], ["seed = '1\\nx=2': must be a whole"]),
    "seed": (["good.toml", "--seed", "-1"], ["good.toml: seed = -1: must be greater than or equ"]),
    "trials": (["good.toml", "--trials", "0"], ["good.toml: trials = 0: must be greater than 0"]),
    "more trials than a file has": (
        ["drift", "--trials", "2"],
        ["drift.toml: stream: ", "has 1 trials and 2 were asked for", "holds 1 trials of 2000"],
    ),
    "more steps than a file has": (
        ["drift", "--set", "stream.steps=2001"],
        ["drift.toml: stream: ", "has 2000 steps and 2001 were asked for"],
    ),
    "backend": (
        ["good.toml", "--backend", "cuppy"],
        ["good.toml: backend = 'cuppy': no backend is named 'cuppy'; did you mean 'cupy'? Known"],
    ),
    "a folder of plugins": (
        ["good.toml", "--plugins-dir", "nowhere"],
        ["--plugins-dir 'nowhere' is not a folder"],
    ),
    "out is taken": (
        ["good.toml", "-o", "folder.toml"],
        ["folder.toml exists; choose another place, or replace it with --force"],
    ),
    "out is no run": (
        ["good.toml", "-o", "folder.toml", "--force"],
        ["folder.toml exists and is not a run's store, so --force does not replace it"],
    ),
    "out is a file": (
        ["good.toml", "-o", "latin.toml", "--force"],
        ["latin.toml exists and is not a run's store, so --force does not replace it"],
    ),
    "out is below a file": (
        ["good.toml", "-o", "latin.toml/r.zarr"],
        ["latin.toml/r.zarr cannot be written: "],
    ),
}


@pytest.mark.parametrize("args, said", ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_mistake_on_the_command_line(args, said, capsys, monkeypatch):
    Path("good.toml").write_text(GOOD)
    Path("latin.toml").write_bytes(b'title = "caf\xe9"\n')
    Path("folder.toml").mkdir()
    Path("folder.toml/letter.txt").write_text("not ours")
    err = refused(capsys, monkeypatch, "run", *args)
    for part in said:
        assert part in err


def test_cupy_without_a_gpu(capsys, monkeypatch):
    """Without CuPy the message says what to install; with it but no device, what to check."""
    import types

    Path("good.toml").write_text(GOOD)
    monkeypatch.setitem(sys.modules, "cupy", None)
    err = refused(capsys, monkeypatch, "run", "good.toml", "--backend", "cupy")
    assert "good.toml: backend = 'cupy': " in err
    assert "not installed" in err and "pip install 'ttr-engine[gpu13]'" in err
    blind = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "cupy", blind)
    err = refused(capsys, monkeypatch, "run", "good.toml", "--backend", "cupy")
    assert "finds no GPU" in err and "nvidia-smi" in err and "backend 'numpy'" in err


def test_a_run_never_overwrites_what_it_reads(capsys, monkeypatch):
    Path("good.toml").write_text(GOOD)
    engine.run("good.toml", "first.zarr")
    text = '[stream]\ngenerator = "stored"\npath = "{}"\n[solvers.delta]\n'
    for path in ("first.zarr", "first.zarr/stream"):
        Path("again.toml").write_text(text.format(path))
        err = refused(capsys, monkeypatch, "run", "again.toml", "-o", "first.zarr", "--force")
        assert f"first.zarr holds what the stream is read from (stream.path = {path})" in err


def test_asking_for_a_broken_plugin_gives_its_cause(capsys, monkeypatch):
    Path("folder").mkdir()
    Path("folder/exotic.py").write_text("import no_such_library_anywhere")
    Path("s.toml").write_text(stream("beta = 0.5", 'solver = "exotic"'))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        err = refused(capsys, monkeypatch, "run", "s.toml", "--plugins-dir", "folder")
    assert err.startswith("warning: plugin 'exotic' from ")
    assert "s.toml: solvers.delta.solver = 'exotic': no solver is named 'exotic'" in err
    assert "not loaded, may have provided it: exotic from " in err
    assert "ModuleNotFoundError: No module named 'no_such_library_anywhere'" in err


def test_a_file_that_may_not_be_read(capsys, monkeypatch):
    Path("s.toml").write_text(GOOD)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied", "s.toml")

    monkeypatch.setattr(Path, "read_text", refuse)
    err = refused(capsys, monkeypatch, "run", "s.toml")
    assert err == "error: s.toml: cannot be read: Permission denied\n"

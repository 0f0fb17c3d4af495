"""Scenarios: every mistake a user can make is told in one message, and nothing is written."""

import json
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import cli
from engine.errors import InputError
from engine.scenario import load, shipped

GOOD = """title = "good"
[stream]
generator = "random"
steps = 20
key = 4
value = 3
priority = 0.5
[solvers.delta]
beta = 0.5
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", "")  # restored even where a command sets it
    monkeypatch.chdir(tmp_path)


def tree(folder):
    """Return every file below a folder with what is in it."""
    return {p: p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def refused(capsys, monkeypatch, *args):
    """Run the command line on bad input; return its one message."""
    before = tree(Path.cwd())
    monkeypatch.setattr(sys, "argv", ["engine", *args])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert "Traceback" not in err and "pydantic" not in err and "Input should" not in err
    lines = [line for line in err.splitlines() if not line.startswith("warning: plugin ")]
    assert lines[0].startswith("error: ") and err.count("error:") == 1
    assert tree(Path.cwd()) == before, "something was written"
    return err


def stream(old, new):
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def top(line):
    return stream('title = "good"', line)


def beta(value):
    return stream("beta = 0.5", f"beta = {value}")


def more(text):
    return GOOD + text


SOLVERS = "delta, least_squares"
FORMS = "Known: channel, gate, schedule, trials"
LABEL = "cannot be a label; use letters, digits, '_' and '-', a letter first"
MISTAKES = {
    # ------------------------------------------------------------------------------ the file
    "not TOML": ("hello", ["s.toml: not TOML: Expected '=' after a key", "(at end of document)"]),
    "not TOML, a line": (more("beta = 1\n"), ["s.toml: not TOML: ", "line 10"]),
    "empty": ("", ["s.toml: stream: missing", "solvers: missing"]),
    # --------------------------------------------------------------------------- the top level
    "key misspelt": (
        stream("title", "ttle"),
        ["s.toml: ttle = 'good': no such key; did you mean 'title'? Known: backend, dtype, probes"],
    ),
    "table misspelt": (
        stream("solvers.delta", "solver.delta"),
        ["s.toml: solver = {'delta': {'beta': 0.5}}: no such key; did you mean 'solvers'?"],
    ),
    "no stream": (
        "[solvers.delta]\n",
        ["s.toml: stream: missing; a scenario needs [stream] and [solvers.<label>]"],
    ),
    "no solvers": (
        '[stream]\ngenerator = "random"\n',
        ["s.toml: solvers: missing; a scenario needs [stream] and [solvers.<label>]"],
    ),
    "not one solver": (
        '[stream]\ngenerator = "random"\n[solvers]\n',
        ["s.toml: solvers: missing; a scenario needs [stream] and [solvers.<label>]"],
    ),
    "stream is a value": (
        "stream = 3\n[solvers.delta]\n",
        ["s.toml: stream = 3: must be a table"],
    ),
    "solver is a value": (
        stream("[solvers.delta]\nbeta", "[solvers]\ndelta"),
        ["s.toml: solvers.delta = 0.5: must be a table"],
    ),
    "title is a number": (top("title = 3"), ["s.toml: title = 3: must be a string"]),
    "seed below 0": (top("seed = -1"), ["s.toml: seed = -1: must be greater than or equal to 0"]),
    "seed with a point": (top("seed = 1.5"), ["s.toml: seed = 1.5: must be a whole number"]),
    "seed in quotes": (top('seed = "1"'), ["s.toml: seed = '1': must be a whole number"]),
    "seed nan": (top("seed = nan"), ["s.toml: seed = nan: must be a"]),
    "no trials": (top("trials = 0"), ["s.toml: trials = 0: must be greater than 0"]),
    "trials true": (top("trials = true"), ["s.toml: trials = True: must be a whole number"]),
    "dtype unknown": (
        top('dtype = "flaot32"'),
        ["s.toml: dtype = 'flaot32'", "did you mean 'float32'? Known: float32, float64"],
    ),
    "record unknown": (
        top('record = "evry"'),
        ["s.toml: record = 'evry'", "did you mean 'every'? Known: every, final"],
    ),
    "backend unknown": (
        top('backend = "nunpy"'),
        ["s.toml: backend = 'nunpy'", "did you mean 'numpy'?", "cupy"],
    ),
    "backend a number": (top("backend = 3"), ["s.toml: backend = 3: must be a string"]),
    "two at once": (
        stream("title", "ttle") + '[probes.recall]\nask = "kyes"\n',
        ["ttle = 'good': no such key", "probes.recall.ask = 'kyes'", "did you mean 'keys'"],
    ),
    # ------------------------------------------------------------------------------ the stream
    "no generator": (
        stream('generator = "random"\n', ""),
        ["s.toml: stream.generator: missing; Known: ", "drifting, "],
    ),
    "generator unknown": (
        stream('"random"', '"randm"'),
        ["s.toml: stream.generator = 'randm': no generator is named 'randm'; did you mean 'ran"],
    ),
    "generator a number": (
        stream('"random"', "3"),
        ["s.toml: stream.generator = 3: must be the name of a generator; Known: ", "drifting, "],
    ),
    "a solver as generator": (
        stream('"random"', '"rls"'),
        ["s.toml: stream.generator = 'rls': no generator is named 'rls'; Known: "],
    ),
    "option misspelt": (
        stream("priority", "prioriti"),
        ["s.toml: stream.prioriti = 0.5: random takes no 'prioriti'; did you mean 'priority'?"],
    ),
    "steps misspelt": (
        stream("steps", "stps"),
        ["s.toml: stream.stps = 20: random takes no 'stps'; did you mean 'steps'?"],
    ),
    "option of wrong type": (
        stream("key = 4", 'key = "four"'),
        ["s.toml: stream.key = 'four': must be a whole number"],
    ),
    "option with a point": (
        stream("key = 4", "key = 4.5"),
        ["s.toml: stream.key = 4.5: must be a whole number"],
    ),
    "option true": (
        stream("key = 4", "key = true"),
        ["s.toml: stream.key = True: must be a whole number"],
    ),
    "flag a number": (
        stream("key = 4", "exact = 1"),
        ["s.toml: stream.exact = 1: must be true or false"],
    ),
    "option out of range": (
        stream("priority = 0.5", "priority = 1.5"),
        ["s.toml: stream.priority = 1.5 must be in [0, 1]"],
    ),
    "option nan": (
        stream("priority = 0.5", "priority = nan"),
        ["s.toml: stream.priority = nan must be in [0, 1]"],
    ),
    "option infinite": (
        '[stream]\ngenerator = "drifting"\nsteps = 3\nnoise = inf\n[solvers.delta]\n',
        ["s.toml: stream.noise = inf must be finite and at least 0"],
    ),
    "no channels": (stream("key = 4", "key = 0"), ["s.toml: stream.key = 0 must be at least 1"]),
    "choice unknown": (
        stream("key = 4", 'keys = "gausian"'),
        ["s.toml: stream.keys = 'gausian'", "did you mean 'gaussian'? Known: gaussian, sign, unit"],
    ),
    "steps below 0": (
        stream("steps = 20", "steps = -2"),
        ["s.toml: stream.steps = -2: must be a whole number, 0 or more"],
    ),
    "steps in quotes": (
        stream("steps = 20", 'steps = "20"'),
        ["s.toml: stream.steps = '20': must be a whole number, 0 or more"],
    ),
    "steps true": (stream("steps = 20", "steps = true"), ["s.toml: stream.steps = True: must be"]),
    "endless": (
        stream("steps = 20\n", ""),
        ["s.toml: stream.steps: missing; this generator is endless"],
    ),
    "more than the generator has": (
        '[stream]\ngenerator = "orthonormal"\nkey = 4\nsteps = 5\n[solvers.delta]\n',
        ["s.toml: stream: ", "orthonormal", "4 steps", "5 were asked for", "4 orthonormal vectors"],
    ),
    "more than the disk has": (
        stream("steps = 20", "steps = 1_000_000_000_000"),
        ["s.toml: stream.steps: 1,000,000,000,000 steps of ", "do not fit", 'record = "final"'],
    ),
    "more than an integer has": (
        stream("steps = 20", "steps = 100_000_000_000_000_000_000"),
        ["s.toml: stream.steps: 100,000,000,000,000,000,000 steps of ", "do not fit into the "],
    ),
    "exact without an end": (
        stream("steps = 20", "exact = true"),
        ["s.toml: stream: exact = True needs a stream of known length: give a number of steps"],
    ),
    "a file without a path": (
        '[stream]\ngenerator = "stored"\n[solvers.delta]\n',
        ["s.toml: stream: stored needs 'path', which is not given"],
    ),
    "a file that is not there": (
        '[stream]\ngenerator = "stored"\npath = "no.zarr"\n[solvers.delta]\n',
        ["s.toml: stream.path = no.zarr cannot be read as a zarr v3 group: nothing is there"],
    ),
    "a path that is a number": (
        '[stream]\ngenerator = "stored"\npath = 3\n[solvers.delta]\n',
        ["s.toml: stream.path = 3: must be a Path"],
    ),
    # ------------------------------------------------------------------------------- a solver
    "solver unknown": (
        stream("beta = 0.5", 'solver = "dleta"'),
        [
            "s.toml: solvers.delta.solver = 'dleta': no solver is named 'dleta'; did you mean "
            "'delta'? Known: ",
            SOLVERS[:5],
        ],
    ),
    "label for a solver": (
        stream("solvers.delta", "solvers.mine"),
        ["s.toml: solvers.mine (without a key 'solver', the label is the name): no solver is nam"],
    ),
    "solver a number": (
        stream("beta = 0.5", "solver = 3"),
        ["s.toml: solvers.delta.solver = 3: must be the name of a solver; Known: "],
    ),
    **{
        f"label {label!r}": (
            stream("solvers.delta", f"solvers.{json.dumps(label, ensure_ascii=False)}"),
            [f"s.toml: solvers: {label!r} {LABEL}"],
        )
        for label in ("a/b", "", "..", "zarr.json", "a b", "κ", "9", "_a", "a\n")
    },
    "option and coefficient unknown": (
        stream("beta", "betta"),
        ["s.toml: solvers.delta.betta = 0.5: delta takes no 'betta'; did you mean 'beta'?"],
    ),
    "a coefficient of other solvers": (
        stream("beta = 0.5", "gamma = 0.5"),
        ["s.toml: solvers.delta.gamma = 0.5: delta takes no 'gamma'; Known: beta, solver, view"],
    ),
    "hyperparameter of wrong type": (
        more('[solvers.rls]\nridge = "little"\n'),
        ["s.toml: solvers.rls.ridge = 'little': must be a number"],
    ),
    "hyperparameter a list": (
        more("[solvers.rls]\nridge = [1.0]\n"),
        ["s.toml: solvers.rls.ridge = ", "must be a number"],
    ),
    "hyperparameter out of range": (
        more("[solvers.rls]\nridge = -1.0\n"),
        ["s.toml: solvers.rls.ridge = -1.0 must be above 0"],
    ),
    "hyperparameter nan": (
        more("[solvers.rls]\nridge = nan\n"),
        ["s.toml: solvers.rls.ridge = nan must be above 0"],
    ),
    "the label names the plugin too": (
        more('[solvers.mine]\nsolver = "rls"\nridge = 0\n'),
        ["s.toml: solvers.mine.ridge = 0", "must be above 0"],
    ),
    "view unknown": (
        more('view = "unt"\n'),
        ["s.toml: solvers.delta.view = 'unt': no view is named 'unt'; did you mean 'unit'? Known"],
    ),
    "view a number": (
        more("view = 3\n"),
        ["s.toml: solvers.delta.view = 3: must be the name of a view; Known: "],
    ),
    "view option": (
        more('view = { view = "unit", eps = 3 }\n'),
        ["s.toml: solvers.delta.view.eps = 3: unit takes no 'eps'; "],
    ),
    "view without a name": (
        more("view = { eps = 3 }\n"),
        ["s.toml: solvers.delta.view.view: missing; Known: "],
    ),
    # -------------------------------------------------------------------------- a coefficient
    "below its bound": (
        beta("-0.5"),
        ["s.toml: solvers.delta.beta = -0.5: beta = -0.5 must be at least 0"],
    ),
    "above its bound": (
        more("[solvers.rls]\ngamma = 1.5\n"),
        ["s.toml: solvers.rls.gamma = 1.5: gamma = 1.5 must be in (0, 1]"],
    ),
    "a hair above its bound": (
        more("[solvers.rls]\ngamma = 1.00000001\n"),
        ["gamma = 1.00000001 must be in (0, 1]"],
    ),
    "on an open bound": (
        more("[solvers.rls]\ngamma = 0\n"),
        ["s.toml: solvers.rls.gamma = 0", "must be in (0, 1]"],
    ),
    "nan": (beta("nan"), ["s.toml: solvers.delta.beta = nan: must be finite"]),
    "infinite": (beta("inf"), ["s.toml: solvers.delta.beta = inf: must be finite"]),
    "text": (
        beta('"much"'),
        ["s.toml: solvers.delta.beta = 'much': must be a number or a table such as { gate = ...,"],
    ),
    "true": (beta("true"), ["s.toml: solvers.delta.beta = True: must be a number or a table"]),
    "a date": (beta("2024-01-01"), ["solvers.delta.beta = ", "must be a number or a table"]),
    "a list": (
        beta("[0.1, 0.2]"),
        ["s.toml: solvers.delta.beta = [0.1, 0.2]: ", "for one value per trial write { trials = "],
    ),
    "an empty table": (
        beta("{}"),
        [f"s.toml: solvers.delta.beta = {{}}: a table needs one of the forms; {FORMS}"],
    ),
    "form misspelt": (
        beta('{ gat = "priority", low = 0.0, high = 1.0 }'),
        ["solvers.delta.beta = {'gat'", f"needs one of the forms; did you mean 'gate'? {FORMS}"],
    ),
    "two forms": (
        beta('{ schedule = "linear", gate = "priority" }'),
        ["solvers.delta.beta = {", "has both 'schedule' and 'gate'; give one of them"],
    ),
    "gate key misspelt": (
        beta('{ gate = "priority", low = 0.0, hgh = 1.0 }'),
        ["gate = 'priority' takes no 'hgh'; did you mean 'high'? Known: gate, high, low"],
    ),
    "gate incomplete": (
        beta('{ gate = "priority", low = 0.0 }'),
        ["s.toml: solvers.delta.beta = {'gate': 'priority', 'low': 0.0}: gate needs 'high' too"],
    ),
    "gate on a missing channel": (
        beta('{ gate = "prority", low = 0.0, high = 1.0 }'),
        [
            "s.toml: solvers.delta.beta = {'gate': 'prority'",
            "the stream has no side channel 'prority' of one number per step; did you mean "
            "'priority'? Known: age, binding, key_id, priority, value_id",
        ],
    ),
    "gate on vectors": (
        beta('{ gate = "keys", low = 0.0, high = 1.0 }'),
        ["the stream has no side channel 'keys' of one number per step"],
    ),
    "gate out of bounds below": (
        beta('{ gate = "priority", low = -1, high = 1 }'),
        ["solvers.delta.beta = {'gate': 'priority', 'low': -1", "low = -1 must be at least 0"],
    ),
    "gate out of bounds above": (
        more('[solvers.rls]\ngamma = { gate = "priority", low = 0.5, high = 2 }\n'),
        ["solvers.rls.gamma = {", "high = 2 must be in (0, 1]"],
    ),
    "gate nan": (
        beta('{ gate = "priority", low = nan, high = 1.0 }'),
        ["solvers.delta.beta = {", "low = nan: must be finite"],
    ),
    "gate of text": (
        beta('{ gate = "priority", low = "no", high = 1.0 }'),
        ["solvers.delta.beta = {", "low = 'no': must be a number"],
    ),
    "channel missing": (
        beta('{ channel = "prio" }'),
        [
            "solvers.delta.beta = {'channel': 'prio'}: the stream has no side channel 'prio'",
            "Known",
        ],
    ),
    "channel a number": (
        beta("{ channel = 3 }"),
        ["solvers.delta.beta = {'channel': 3}: channel = 3: must be a string"],
    ),
    "too many for the trials": (
        beta("{ trials = [0.1, 0.2] }"),
        ["solvers.delta.beta = {'trials': [0.1, 0.2]}: 2 values for 1 trials", "trials = 2"],
    ),
    "no trials' values": (
        beta("{ trials = [] }"),
        ["solvers.delta.beta = {'trials': []}: trials = []: must have at least 1 item"],
    ),
    "a trial's value of text": (
        beta('{ trials = ["a"] }'),
        ["solvers.delta.beta = {'trials': ['a']}: trials.0 = 'a': must be a number"],
    ),
    "a trial's value out of bounds": (
        "trials = 3\n" + beta("{ trials = [0.5, 0.5, -1.0] }"),
        ["solvers.delta.beta = {'trials'", "beta = -1, trial 2 must be at least 0"],
    ),
    "trials' values nan": (
        beta("{ trials = [nan] }"),
        ["solvers.delta.beta = {'trials': [nan]}", "trials.0 = nan: must be finite"],
    ),
    "schedule incomplete": (
        beta('{ schedule = "linear", start = 1.0, stop = 0.0 }'),
        ["solvers.delta.beta = {'schedule': 'linear'", ": schedule needs 'over' too"],
    ),
    "schedule unknown": (
        beta('{ schedule = "linea", start = 1.0, stop = 0.1, over = 3 }'),
        ["schedule = 'linea'", "did you mean 'linear'? Known: cosine, exponential, linear"],
    ),
    "schedule over nothing": (
        beta('{ schedule = "linear", start = 1.0, stop = 0.1, over = 0 }'),
        ["over = 0: must be greater than 0"],
    ),
    "schedule through zero": (
        beta('{ schedule = "exponential", start = 1.0, stop = 0.0, over = 3 }'),
        ["an exponential schedule needs start and stop above 0"],
    ),
    "schedule out of bounds": (
        beta('{ schedule = "linear", start = 1.0, stop = -0.1, over = 3 }'),
        ["solvers.delta.beta = {'schedule'", "beta = -0.1 at step 3 must be at least 0"],
    ),
    # ------------------------------------------------------------------------------- a probe
    "probe key": (
        more('[probes.recall]\nasks = "keys"\n'),
        ["s.toml: probes.recall.asks = 'keys': no such key; did you mean 'ask'? Known: ask, at"],
    ),
    "probe choice": (
        more('[probes.recall]\nask = "kys"\n'),
        ["s.toml: probes.recall.ask = 'kys'", "did you mean 'keys'? Known: keys"],
    ),
    "probe a value": (
        more("[probes]\nrecall = 3\n"),
        ["s.toml: probes.recall = 3: must be a table"],
    ),
    "probe at no time": (
        more('[probes.recall]\nat = "ned"\n'),
        ["s.toml: probes.recall.at = 'ned'", "did you mean 'end'? Known: end"],
    ),
    "probe label": (more('[probes."a/b"]\n'), [f"s.toml: probes: 'a/b' {LABEL}"]),
    "a label that a probe needs": (
        more('[solvers.wanted]\nsolver = "rls"\n[probes.recall]\n'),
        ["s.toml: solvers.wanted: a probe stores 'wanted' beside its answers; rename the label"],
    ),
}


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
    "no name": ([""], ["no scenario is named ''", "Known: attention, capacity, drift, rebinding"]),
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


# ------------------------------------------------------------------------------------ what is right


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_scenarios_are_sound_and_titled(name):
    made = load(name)
    assert made.name == name
    assert made.table.title
    assert made.text == shipped()[name].read_text(encoding="utf-8")


def test_the_resolved_form_is_complete_and_runs_the_same():
    Path("s.toml").write_text(GOOD)
    run = engine.run("s.toml")
    told = run.attrs["scenario"]
    assert (told["name"], told["text"]) == ("s", GOOD)
    resolved = told["resolved"]
    assert resolved["stream"] == {
        "generator": "random", "steps": 20, "key": 4, "value": 3, "keys": "unit", "values": "unit",
        "pairs": None, "priority": 0.5, "exact": False,
    }  # fmt: skip
    assert resolved["solvers"] == {"delta": {"solver": "delta", "view": None, "beta": 0.5}}
    plain = {"seed": 0, "trials": None, "dtype": "float64", "backend": "numpy", "record": "every"}
    assert plain.items() <= resolved.items()
    again = engine.run(resolved)
    assert run["solvers/delta"].to_dataset().identical(again["solvers/delta"].to_dataset())


def test_a_caller_s_table_is_left_alone_and_may_hold_numpy():
    table = {
        "seed": np.int64(3),
        "trials": np.int32(2),
        "stream": {"generator": "random", "steps": np.int64(5), "priority": np.float32(0.5)},
        "solvers": {
            "delta": {"beta": {"trials": np.array([0.25, 0.5])}},
            "rls": {"ridge": np.float64(0.5), "gamma": np.float32(0.75)},
        },
    }
    kept = json.dumps(table, default=repr)
    run = engine.run(table, **{"solvers.rls.gamma": np.float64(0.5), "seed": np.int8(4)})
    assert json.dumps(table, default=repr) == kept
    resolved = run.attrs["scenario"]["resolved"]
    assert resolved["seed"] == 4 and type(resolved["seed"]) is int
    assert resolved["solvers"]["delta"]["beta"] == {"trials": [0.25, 0.5]}
    assert resolved["solvers"]["rls"]["gamma"] == 0.5
    assert run.sizes["trial"] == 2
    json.dumps(run.attrs)


def test_overrides_reach_what_the_file_says_and_what_it_does_not():
    Path("s.toml").write_text(GOOD)
    made = load("s.toml", {"seed": 7, "stream.steps": 3, "solvers.rls.ridge": 0.5})
    assert made.table.seed == 7 and made.steps == 3
    assert made.entries["rls"].solver.ridge == 0.5
    assert made.text == GOOD


def test_paths_are_relative_to_the_scenario_before_the_caller():
    Path("good.toml").write_text(GOOD)
    engine.run("good.toml", "here.zarr")
    Path("below").mkdir()
    engine.run("good.toml", "below/beside.zarr", **{"stream.steps": 7})
    text = '[stream]\ngenerator = "stored"\npath = "{}.zarr"\n[solvers.delta]\n'
    Path("below/beside.toml").write_text(text.format("beside"))
    Path("below/here.toml").write_text(text.format("here"))
    assert engine.run("below/beside.toml").sizes["step"] == 7
    assert engine.run("below/here.toml").sizes["step"] == 20


def test_a_byte_order_mark_is_not_part_of_the_text():
    Path("bom.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load("bom.toml").table.title == "good"


def test_a_file_goes_before_a_shipped_name():
    Path("drift").write_text(GOOD)
    assert load("drift").table.title == "good"
    assert load(Path("drift")).where == "drift"


def test_a_view_may_be_a_name_or_a_table():
    plain = load({**tomllib.loads(GOOD), "solvers": {"delta": {"view": "unit"}}})
    table = load({**tomllib.loads(GOOD), "solvers": {"delta": {"view": {"view": "unit"}}}})
    assert plain.entries["delta"].view == table.entries["delta"].view
    assert plain.resolved["solvers"] == table.resolved["solvers"]


ANYTHING = """
from dataclasses import dataclass
from typing import Any, Literal

from engine.api import Generator, hookimpl
from engine.plugins.solvers.delta import Delta


@dataclass(frozen=True)
class Anything(Delta):
    \"\"\"The delta rule with an option of any kind.\"\"\"

    thing: Any = None
    numbers: tuple[float, ...] = ()
    listed: list[int] | None = None
    kind: Literal["a", "b"] | None = None

    def __post_init__(self):
        if self.thing == "odd":
            raise TypeError("thing is odd")


@hookimpl
def engine_solvers():
    return {"anything": Anything}
"""


@pytest.fixture
def anything(monkeypatch, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "anything.py").write_text(ANYTHING)
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(tmp_path / "folder"))

    def table(**options):
        return {
            "stream": {"generator": "random", "steps": 3},
            "solvers": {"anything": {k: v for k, v in options.items()}},
        }

    return table


@pytest.mark.parametrize(
    "given, stored",
    [
        (np.int32(9), 9),
        (np.float32("nan"), float("nan")),
        (float("inf"), float("inf")),
        (None, None),
        (True, True),
        (np.bool_(False), False),
        ({"g": np.zeros(2)}, {"g": [0.0, 0.0]}),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        ([1, [2.5, "x"]], [1, [2.5, "x"]]),
        ({1: np.int8(3)}, {"1": 3}),
        # What JSON has no form for is stored as its text.
        (Path("a/b"), "a/b"),
        (1j, "1j"),
        (np.complex128(1j), "1j"),
        (np.datetime64("2024-01-02"), "2024-01-02"),
        (np.datetime64("2024-01-02T00:00:00.000000001"), "2024-01-02T00:00:00.000000001"),
        (np.array([1j]), ["1j"]),
        (np.dtype("float32"), "float32"),
        (np.random.default_rng(0), "Generator(PCG64)"),
    ],
    ids=str,
)
def test_options_of_every_kind_are_stored_or_told_as_text(given, stored, anything):
    run = engine.run(anything(thing=given), "r.zarr")
    assert run.attrs["status"] == "complete"
    kept = run["solvers/anything"].attrs["hyperparameters"]["thing"]
    assert json.dumps(kept) == json.dumps(stored)
    told = engine.open("r.zarr").attrs["scenario"]["resolved"]["solvers"]["anything"]["thing"]
    assert json.dumps(told) == json.dumps(stored)


def test_lists_reach_fields_of_tuples_and_of_lists(anything):
    made = engine.solver("anything", numbers=[1, 2.5], listed=[1, 2])
    assert made.numbers == (1, 2.5)
    assert list(made.listed) == [1, 2]


def test_whatever_a_plugin_s_own_check_raises_is_bad_input(anything):
    with pytest.raises(InputError, match=r"solvers.anything: anything: TypeError: thing is odd"):
        engine.run(anything(thing="odd"))
    with pytest.raises(InputError, match=r"solvers.anything.kind = 'c': no such choice; Known: a"):
        engine.run(anything(kind="c"))


def test_a_file_that_may_not_be_read(capsys, monkeypatch):
    Path("s.toml").write_text(GOOD)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied", "s.toml")

    monkeypatch.setattr(Path, "read_text", refuse)
    err = refused(capsys, monkeypatch, "run", "s.toml")
    assert err == "error: s.toml: cannot be read: Permission denied\n"

"""The command line as a user meets it: what it prints, what it writes, how it ends."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import engine
from engine import cli

ENGINE = str(Path(sys.executable).with_name("engine"))
SMALL = """title = "A small one"
seed = 3
trials = 2

[stream]
generator = "random"
steps = 40
key = 4
value = 3

[solvers.delta]
beta = 0.5

[solvers.exact]
solver = "rls"

[probes.recall]
"""
FAULTY = '''
"""Rules and generators that fail on the way."""

import sys
import time
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from engine import ops
from engine.api import Array, Decay, Generator, Space, View, hookimpl


class State(NamedTuple):
    S: Annotated[Array, "key value"]
    n: Annotated[Array, ""]


class Clash(NamedTuple):
    S: Annotated[Array, "key value"]
    gamma: Annotated[Array, ""]


class Undescribed(NamedTuple):
    S: Array


@dataclass(frozen=True)
class Faulty:
    """S <- S + k v^T until step `at`, then `how`."""

    at: int = 5
    how: str = "raise"
    pause: float = 0.0

    def init(self, space: Space):
        if self.how == "init":
            raise LookupError("no weights here")
        S, n = space.zeros("key value"), space.zeros("")
        states = {"clash": Clash(S, n), "dict": {"S": S}, "undescribed": Undescribed(S)}
        if self.how == "shape":
            return State(space.zeros("value key"), n)
        return states.get(self.how, State(S, n))

    def write(self, s, k, v, *, gamma: Decay = 1.0):
        time.sleep(self.pause)
        if np.max(s.n) == self.at:
            if self.how == "raise":
                raise FloatingPointError("the fit is gone")
            if self.how == "exit":
                sys.exit(0)
            if self.how == "none":
                return None
            if self.how == "wide":
                return State(s.S[..., None], s.n)
        return State(s.S + ops.outer(k, v), s.n + 1)

    def read(self, s, q):
        if self.how == "read" and np.max(s.n) == self.at:
            raise KeyError("no such key")
        return ops.vecmat(q, s.S)


@dataclass(frozen=True)
class Torn(Generator):
    """Random pairs until step `at`, then `how`."""

    at: int = 5
    how: str = "raise"

    def start(self, draws, steps):
        if self.how == "start":
            raise OSError("the tape is torn")
        return None

    def draw(self, state, draws, steps):
        if steps.stop > self.at and self.how == "raise":
            raise RuntimeError("the tape is torn")
        pair = {"keys": draws("keys").normal(len(steps), 4)}
        if self.how == "name":
            pair["a/b"] = pair["keys"][..., 0]
        return state, pair if self.how == "half" else {**pair, "values": pair["keys"]}


@dataclass(frozen=True)
class Blind(View):
    """Raises."""

    def __call__(self, x):
        raise ArithmeticError("cannot see")


@hookimpl
def engine_solvers():
    return {"faulty": Faulty}


@hookimpl
def engine_generators():
    return {"torn": Torn}


@hookimpl
def engine_views():
    return {"blind": Blind}
'''


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", "")  # restored even where a command sets it
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)


@pytest.fixture
def faulty(monkeypatch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "faulty.py").write_text(FAULTY)
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(folder))


@pytest.fixture
def call(capsys, monkeypatch):
    """Return a function that runs the command line here: (exit code, stdout, stderr)."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["engine", *map(str, args)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return stop.value.code or 0, out, err

    return run


# --------------------------------------------------------------------------------------------- run


def test_run_prints_its_table_and_says_where_the_store_is(call):
    code, out, err = call("run", "small.toml")
    assert (code, err) == (0, "")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert lines[0] == "small: A small one"
    assert lines[1] == "40 steps, trials 2, seed 3"
    columns = re.split(r"\s{2,}", lines[2])
    assert columns == ["solver", "prediction error", "recall", "diverged", "state bytes", "steps/s"]
    rows = {line.split()[0]: line.split() for line in lines[4:6]}
    assert set(rows) == {"delta", "exact"}
    assert lines[-2] == "errors: mean over trials and the last 10 steps"
    assert lines[-1] == "stored in runs/small.zarr"
    run = engine.open("runs/small.zarr")
    for label, row in rows.items():
        error = run[f"solvers/{label}/prediction"] - run["stream/values"]
        mean = np.sqrt((error**2).sum("value")).isel(step=slice(30, None)).mean()
        assert row[1] == f"{float(mean):.4f}"
        assert row[2] == f"{float(run[f'probes/recall/{label}/recalled'].mean()):.3f}"
        assert row[3] == "-"
    assert rows["delta"][4] == "96" and rows["exact"][4] == f"{8 * (12 + 16)}"


def test_run_without_a_place_takes_the_next_free_one(call):
    for wanted in ("small", "small-2", "small-3"):
        assert call("run", "small.toml")[1].rstrip().endswith(f"stored in runs/{wanted}.zarr")
    first, third = engine.open("runs/small.zarr"), engine.open("runs/small-3.zarr")
    assert first["solvers/delta"].to_dataset().identical(third["solvers/delta"].to_dataset())


def test_run_json_is_one_object(call):
    code, out, err = call("run", "small.toml", "--json", "-o", "r.zarr")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["store"], told["steps"], told["trials"]) == ("r.zarr", 40, 2)
    delta, exact = told["solvers"]
    assert (delta["solver"], exact["solver"]) == ("delta", "exact")
    assert delta["error"] > 0 and delta["error_kind"] == "prediction error"
    assert delta["diverged_at"] is None and 0 <= delta["recall"]["recall"] <= 1
    assert delta["state_bytes"] == 96 and delta["steps_per_second"] > 0


def test_json_has_no_words_for_infinity(call):
    """A diverged run and a run of no steps are JSON that any reader takes."""

    def strict(text):
        def refuse(constant):
            raise AssertionError(constant)

        return json.loads(text, parse_constant=refuse)

    table = SMALL.replace("beta = 0.5", "beta = 1e200").replace("[probes.recall]", "")
    Path("wild.toml").write_text(table.replace('solver = "rls"', 'solver = "rls"\nlimit = inf'))
    code, out, _ = call("run", "wild.toml", "--json", "-o", "wild.zarr")
    wild = strict(out)["solvers"][0]
    assert code == 0 and wild["error"] is None and 0 <= wild["diverged_at"] < 5
    shown = strict(call("show", "wild.zarr", "--json")[1])
    assert shown["solvers"]["exact"]["limit"] is None
    empty = strict(call("run", "small.toml", "--set", "stream.steps=0", "--json")[1])
    assert empty["steps"] == 0 and empty["solvers"][0]["error"] is None
    code, out, _ = call("run", "wild.toml")
    assert code == 0 and f"at step {wild['diverged_at']}" in out


def test_overrides(call):
    args = ["--seed", "9", "--trials", "3", "--set", "stream.steps=16", "--set", 'title="Other"']
    args += ["--set", "solvers.delta.beta = 0.25", "--set", "solvers.third.solver=longhorn"]
    args += ["--set", "dtype=float32", "--set", "record=final"]
    code, out, _ = call("run", "small.toml", "-o", "r.zarr", *args)
    assert code == 0
    assert out.startswith("small: Other\n16 steps, trials 3, seed 9\n")
    run = engine.open("r.zarr")
    resolved = run.attrs["scenario"]["resolved"]
    assert (resolved["seed"], resolved["trials"], resolved["dtype"]) == (9, 3, "float32")
    assert run.attrs["scenario"]["text"] == SMALL
    assert float(run["solvers/delta/beta"]) == 0.25
    assert run["solvers/third"].attrs["solver"] == "longhorn"
    assert run["solvers/delta/S"].dims == ("trial", "key", "value")
    assert run["solvers/delta/S"].dtype == np.float32
    same = engine.run("small.toml", **{
        "seed": 9, "trials": 3, "stream.steps": 16, "solvers.delta.beta": 0.25, "dtype": "float32",
    })  # fmt: skip
    assert np.array_equal(run["solvers/delta/output"], same["solvers/delta/output"])


def test_force_replaces_a_run_and_only_that(call):
    call("run", "small.toml", "-o", "r.zarr")
    code, _, err = call("run", "small.toml", "-o", "r.zarr", "--set", "stream.steps=8")
    assert code == 2 and "r.zarr exists; choose another place, or replace it with --force" in err
    assert engine.open("r.zarr").sizes["step"] == 40
    assert call("run", "small.toml", "-o", "r.zarr", "--set", "stream.steps=8", "--force")[0] == 0
    assert engine.open("r.zarr").sizes["step"] == 8
    bad = call("run", "small.toml", "-o", "r.zarr", "--force", "--set", "solvers.delta.beta=-1")
    assert bad[0] == 2
    assert engine.open("r.zarr").sizes["step"] == 8, "a wrong scenario cost the run that was there"


def test_force_through_a_link_replaces_what_it_points_to(call):
    call("run", "small.toml", "-o", "r.zarr")
    Path("link.zarr").symlink_to("r.zarr", target_is_directory=True)
    assert call("run", "small.toml", "-o", "link.zarr", "--force", "--seed", "1")[0] == 0
    assert Path("link.zarr").is_symlink()
    assert engine.open("r.zarr").attrs["provenance"]["seed"] == 1
    Path("ahead.zarr").symlink_to("later.zarr", target_is_directory=True)
    assert call("run", "small.toml", "-o", "ahead.zarr")[0] == 0
    assert engine.open("later.zarr").attrs["status"] == "complete"


def test_paths_with_spaces_and_letters_of_any_script_and_a_last_slash(call):
    place = Path("mein Ordner/κλειδί 鍵")
    place.mkdir(parents=True)
    (place / "ein Fall.toml").write_text(SMALL, encoding="utf-8")
    code, out, err = call("run", f"{place}/ein Fall.toml/", "-o", f"{place}/ein Lauf.zarr/")
    assert (code, err) == (0, "")
    assert out.rstrip().endswith(f"stored in {place}/ein Lauf.zarr")
    code, out, _ = call("show", f"{place}/ein Lauf.zarr/")
    assert code == 0 and out.startswith("ein Fall: A small one\nstatus complete, 40 of 40 steps")
    assert call("report", f"{place}/ein Lauf.zarr", "-o", f"{place}/Bilder/")[0] == 0
    assert sorted(p.name for p in (place / "Bilder").iterdir()) == ["ein Fall.csv", "ein Fall.png"]
    code, out, _ = call("run", f"{place}/ein Fall.toml")
    assert code == 0 and out.rstrip().endswith("stored in runs/ein Fall.zarr")


def test_a_shipped_scenario_runs_by_name(call):
    code, out, err = call("run", "drift")
    assert (code, err) == (0, "")
    assert out.rstrip().endswith("stored in runs/drift.zarr")


# -------------------------------------------------------------------------------------------- show


def test_show_says_what_is_in_a_run(call):
    call("run", "small.toml", "-o", "r.zarr")
    code, out, err = call("show", "r.zarr")
    assert (code, err) == (0, "")
    assert out.startswith("small: A small one\nstatus complete, 40 of 40 steps valid, trials 2\n")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    keys = re.split(r"\s{2,}", lines["stream/keys"].strip())
    assert keys == ["stream/keys", "step 40 x trial 2 x key 4", "float64", f"{40 * 2 * 4 * 8:,}"]
    assert "one number" in lines["solvers/delta/beta"]
    for variable in ("solvers/exact/P", "solvers/delta/diverged_at", "probes/recall/exact/read"):
        assert variable in lines
    assert f"numpy {np.__version__}" in lines["versions:"]
    assert re.fullmatch(r"stream sha256: [0-9a-f]{64}", out.splitlines()[-1])


def test_show_json_is_the_same_and_more(call):
    call("run", "small.toml", "-o", "r.zarr")
    facts = json.loads(call("show", "r.zarr", "--json")[1])
    assert (facts["status"], facts["committed"], facts["steps"]) == ("complete", 40, 40)
    assert facts["trials"] == 2 and facts["format"] == 1
    assert facts["scenario"]["text"] == SMALL
    assert set(facts["solvers"]) == {"delta", "exact"}
    assert facts["variables"]["solvers/exact/P"] == {
        "dims": {"step": 40, "trial": 2, "key": 4, "key_2": 4},
        "dtype": "float64",
        "bytes": 40 * 2 * 16 * 8,
    }
    stored = sum(p.stat().st_size for p in Path("r.zarr").rglob("*") if p.is_file())
    assert facts["bytes_on_disk"] == stored
    assert "prediction" in facts["provenance"]["conventions"]


def test_show_does_not_want_what_is_not_a_run(call):
    import zarr

    Path("file").write_text("x")
    Path("folder").mkdir()
    zarr.create_group("foreign.zarr")
    call("run", "small.toml", "-o", "newer.zarr")
    zarr.open_group("newer.zarr").update_attributes({"format": 99})
    zarr.create_group("cut.zarr").update_attributes({"format": 1, "status": "running"})
    for command in (["show"], ["report", "-o", "out"]):
        for path, said in {
            "none": "none does not exist",
            "file": "file is not a run's store",
            "folder": "folder is not a run's store: it has no attribute 'format'",
            "foreign.zarr": "foreign.zarr is not a run's store: it has no attribute 'format'",
            "newer.zarr": "newer.zarr has format 99, this release reads up to 1; upgrade",
            "cut.zarr": "cut.zarr has no stream: its run was killed, or has only just begun",
        }.items():
            code, out, err = call(command[0], path, *command[1:])
            assert (code, out) == (2, "")
            assert err.startswith("error: ") and said in err
    assert not Path("out").exists()


# ------------------------------------------------------------------------------------------ report


def test_report_draws_a_picture_and_writes_its_numbers(call):
    call("run", "small.toml", "-o", "r.zarr")
    code, out, err = call("report", "r.zarr", "-o", "out/deep")
    assert (code, err) == (0, "")
    assert out.split() == ["out/deep/small.png", "out/deep/small.csv"]

    import matplotlib.image

    picture = matplotlib.image.imread("out/deep/small.png")
    height, width, _ = picture.shape
    assert height > 400 and width > 1500  # an error panel and a probe panel
    ink = (picture[..., :3] < 0.9).any(-1)
    assert ink[:, : width // 2].mean() > 0.01 and ink[:, width // 2 :].mean() > 0.01
    colours = {tuple(c) for c in np.round(picture[..., :3] * 255).astype(int)[ink].tolist()}
    assert (0, 0, 0) in colours and (0, 114, 178) in colours  # a line for each solver

    with open("out/deep/small.csv", newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["step", "delta (prediction error)", "exact (prediction error)"]
    assert [int(row[0]) for row in rows] == list(range(40))
    run = engine.open("r.zarr")
    for column, label in ((1, "delta"), (2, "exact")):
        error = run[f"solvers/{label}/prediction"] - run["stream/values"]
        mean = np.sqrt((error**2).sum("value")).mean("trial").values
        np.testing.assert_allclose([float(row[column]) for row in rows], mean, rtol=1e-15)


def test_report_of_one_step_and_of_a_run_that_diverged(call):
    call("run", "small.toml", "-o", "one.zarr", "--set", "stream.steps=1")
    assert call("report", "one.zarr", "-o", "out")[0] == 0
    call("run", "small.toml", "-o", "wild.zarr", "--set", "solvers.delta.beta=1e200")
    assert call("report", "wild.zarr", "-o", "out")[0] == 0
    code, _, err = call("run", "small.toml", "-o", "none.zarr", "--set", "stream.steps=0")
    code, _, err = call("report", "none.zarr", "-o", "out")
    assert (code, err) == (2, "error: the run has no steps: there is nothing to draw\n")


def test_report_needs_a_folder_and_matplotlib(call, monkeypatch):
    call("run", "small.toml", "-o", "r.zarr")
    code, _, err = call("report", "r.zarr", "-o", "small.toml")
    assert code == 2 and "small.toml cannot be made a folder: " in err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = call("report", "r.zarr", "-o", "out")
    assert code == 2 and "pip install 'ttr-engine[plot]'" in err


# --------------------------------------------------------------------------------- runs that fail


def scenario(how, *, at=5, steps=20, extra="", generator="random", pause=0.0):
    text = f'[stream]\ngenerator = "{generator}"\nsteps = {steps}\n{extra}\n[solvers.plain]\n'
    text += f'solver = "delta"\n[solvers.bad]\nsolver = "faulty"\nhow = "{how}"\nat = {at}\n'
    Path("faulty.toml").write_text(text + f"pause = {pause}\n")


@pytest.mark.parametrize(
    "how, said",
    [
        ("raise", "FloatingPointError: the fit is gone"),
        ("read", "KeyError: 'no such key'"),
        ("none", "TypeError: write gave NoneType, not State"),
        ("wide", "TypeError: read gave float64 (1, 16, 1), expected float64 (1, 16)"),
        ("exit", "SystemExit: 0"),
    ],
)
def test_a_solver_that_fails_on_the_way(how, said, call, faulty):
    scenario(how, at=1500, steps=2000)
    code, out, err = call("run", "faulty.toml", "-o", "r.zarr")
    assert (code, out) == (1, "")
    first, second = err.splitlines()
    assert first.startswith("error: solver 'bad' failed at step 1") and said in first
    assert int(re.search(r"at step (\d+)", first)[1]) in (1499, 1500)
    run = engine.open("r.zarr")
    kept = run.attrs["committed"]
    assert second.strip() == f"r.zarr keeps the first {kept} steps, with status 'failed'"
    assert run.attrs["status"] == "failed" and 1000 < kept <= 1500
    whole = engine.run("faulty.toml", **{"solvers.bad.how": "not at all", "stream.steps": kept})
    for name in ("stream/keys", "solvers/plain/S", "solvers/bad/S", "solvers/bad/output"):
        assert np.array_equal(run[name].values, whole[name].values)
    # Plain xarray opens it without this project, warnings as errors.
    with xr.open_datatree("r.zarr", engine="zarr") as plain:
        assert plain.attrs["status"] == "failed"
    code, out, _ = call("show", "r.zarr")
    assert code == 0 and f"status failed, {kept} of 2000 steps valid" in out
    assert call("report", "r.zarr", "-o", "out")[0] == 0


def test_a_failure_in_the_first_block_leaves_an_empty_store_that_opens(call, faulty):
    scenario("raise", at=5)
    code, _, err = call("run", "faulty.toml", "-o", "r.zarr")
    assert code == 1 and "solver 'bad' failed at step 5: FloatingPointError" in err
    assert engine.open("r.zarr").sizes["step"] == 0
    assert call("show", "r.zarr")[0] == 0
    code, _, err = call("report", "r.zarr", "-o", "out")
    assert (code, err) == (2, "error: the run has no steps: there is nothing to draw\n")


@pytest.mark.parametrize(
    "how, code, said",
    [
        ("init", 1, ["solvers.bad", "init", "LookupError: no weights here"]),
        ("dict", 2, ["solvers.bad: a state must be a NamedTuple, not dict"]),
        ("undescribed", 2, ["solvers.bad: Undescribed.S does not name its dims; write S: Annot"]),
        ("shape", 2, ["solvers.bad: Faulty.init: S has shape (1, 3, 4), but its dims 'key value'"]),
        ("clash", 2, ["solvers.bad: ", "gamma", "rename"]),
    ],
)
def test_a_solver_that_cannot_begin_writes_nothing(how, code, said, call, faulty):
    scenario(how, extra="key = 4\nvalue = 3")
    got, out, err = call("run", "faulty.toml", "-o", "r.zarr")
    assert (got, out) == (code, "")
    for part in ["error: faulty.toml: ", *said]:
        assert part in err
    assert not Path("r.zarr").exists()


def test_a_generator_that_fails_on_the_way(call, faulty):
    scenario("never", generator="torn", steps=2000, extra="at = 1500")
    code, _, err = call("run", "faulty.toml", "-o", "r.zarr")
    assert code == 1
    assert "error: generator torn failed at steps 1024 to 1999: RuntimeError: the tape" in err
    run = engine.open("r.zarr")
    assert (run.attrs["status"], run.attrs["committed"]) == ("failed", 1024)


@pytest.mark.parametrize(
    "how, code, said",
    [
        ("start", 1, "generator torn failed at its start: OSError: the tape is torn"),
        ("half", 2, "generator torn draws no 'values'; it draws ['keys']"),
        ("name", 2, "generator torn draws 'a/b', which cannot name an array; use letters"),
    ],
)
def test_a_generator_that_cannot_begin_writes_nothing(how, code, said, call, faulty):
    scenario("never", generator="torn", extra=f'how = "{how}"')
    got, _, err = call("run", "faulty.toml", "-o", "r.zarr")
    assert got == code
    assert "faulty.toml: stream: " in err and said in err
    assert not Path("r.zarr").exists()


def test_a_view_that_fails(call, faulty):
    scenario("never", extra="key = 4")
    code, _, err = call("run", "faulty.toml", "-o", "r.zarr", "--set", "solvers.bad.view=blind")
    assert code == 1
    assert (
        "the view of solver 'bad' failed" in err
        and "ArithmeticError: cannot see" in err
        and "steps 0 to 19" in err
    )


def test_a_disk_that_fills_up(call, monkeypatch):
    from engine.store import ZarrSink

    def full(self, variable, start, rows):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ZarrSink, "write", full)
    code, out, err = call("run", "small.toml", "-o", "r.zarr")
    assert (code, out) == (1, "")
    assert err.startswith("error: ") and "No space left on device" in err


def test_usage_errors_are_bad_input(call):
    for args in (["run"], ["run", "small.toml", "--trials", "many"], ["walk"], ["report", "x"]):
        code, out, _ = call(*args)
        assert (code, out) == (2, "")


# ------------------------------------------------------------------------- pipes and interruptions


def finished(process, timeout=30):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def test_in_a_pipe_there_is_no_bar_and_no_colour():
    Path("small.toml").write_text(SMALL.replace("[probes.recall]", ""))
    code, out, err = finished(start(["run", "small.toml", "--set", "stream.steps=3000"]))
    assert (code, err) == (0, "")
    assert "\x1b" not in out and "\r" not in out
    assert out.rstrip().endswith("stored in runs/small.zarr")


def test_a_pipe_that_knows_only_ascii_loses_letters_not_the_run():
    small = SMALL.replace("[probes.recall]", "").replace("A small one", "Ein größeres 例")
    Path("small.toml").write_text(small, encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code, out, err = finished(start(["run", "small.toml"], env=env))
    assert (code, err) == (0, "")
    assert out.startswith("small: Ein gr\\xf6\\xdferes \\u4f8b\n")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
def test_on_a_terminal_there_is_a_bar_on_stderr():
    import pty

    Path("small.toml").write_text(SMALL.replace("[probes.recall]", ""))
    main, side = pty.openpty()
    process = start(["run", "small.toml", "--set", "stream.steps=3000"], stderr=side)
    os.close(side)
    shown = b""
    while True:
        try:
            part = os.read(main, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(main)
    assert finished(process)[0] == 0
    assert b"/3000" in shown and b"steps" in shown


def start(args, stderr=subprocess.PIPE, **more):
    return subprocess.Popen(
        [ENGINE, *args], stdout=subprocess.PIPE, stderr=stderr, text=True, **more
    )


def committed(path):
    """Return the mark of a live store, read as any program may."""
    try:
        return json.loads(Path(path, "zarr.json").read_text())["attributes"]["committed"]
    except (FileNotFoundError, KeyError, json.JSONDecodeError):
        return 0


def interrupt(process, path, ready):
    deadline = time.monotonic() + 30
    while not ready(path):
        assert process.poll() is None, finished(process)
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    return finished(process)


LONG = SMALL.replace("steps = 40", "steps = 3_000_000").replace("[probes.recall]", "")


def test_ctrl_c_ends_a_run_with_130_and_keeps_what_was_done():
    Path("long.toml").write_text(LONG)
    run = start(["run", "long.toml", "-o", "r.zarr"])
    code, out, err = interrupt(run, "r.zarr", lambda path: committed(path) > 0)
    assert (code, out) == (130, "")
    left = engine.open("r.zarr")
    kept = left.attrs["committed"]
    assert err == f"interrupted: r.zarr keeps the first {kept} steps, with status 'failed'\n"
    assert left.attrs["status"] == "failed" and 0 < kept < 3_000_000
    assert left.sizes["step"] == kept
    last = left["solvers/delta"].isel(step=-1)
    assert np.isfinite(last["S"].values).all() and np.isfinite(last["output"].values).all()
    whole = engine.run("small.toml", record="final", **{"stream.steps": 200})
    assert np.array_equal(left["stream/keys"][:200], whole["stream/keys"])
    assert np.array_equal(left["solvers/exact/output"][:200], whole["solvers/exact/output"])


@pytest.mark.parametrize("method", ["__init__", "describe", "create", "write", "commit", "close"])
def test_ctrl_c_in_the_middle_of_a_write_is_heard_when_it_is_whole(method, call, monkeypatch):
    """Whichever part of the writing it hits, what is left opens, or nothing is left."""
    from engine.store import ZarrSink

    whole = getattr(ZarrSink, method)
    hits = []

    def hit(self, *args, **kwargs):
        if not hits:
            hits.append(method)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.001)
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(ZarrSink, method, hit)
    code, out, err = call("run", "small.toml", "-o", "r.zarr")
    assert (code, out, hits) == (130, "", [method])
    if method == "__init__":
        assert err == "" and not Path("r.zarr").exists()
        return
    run = engine.open("r.zarr")
    done, kept = run.attrs["status"], run.attrs["committed"]
    assert err == f"interrupted: r.zarr keeps the first {kept} steps, with status {done!r}\n"
    # What was only to be closed is complete; what was to be committed was committed first.
    wanted = {"close": ("complete", 40), "commit": ("failed", 40), "write": ("failed", 0)}
    assert (done, kept) == wanted.get(method, ("failed", 0))
    assert call("show", "r.zarr")[0] == 0
    assert call("run", "small.toml", "-o", "r.zarr", "--force")[0] == 0


def test_ctrl_c_in_a_slow_solver_is_heard_at_once(tmp_path):
    (tmp_path / "plug").mkdir()
    (tmp_path / "plug/faulty.py").write_text(FAULTY)
    scenario("never", steps=1000, pause=0.2)
    run = start(["run", "faulty.toml", "-o", "r.zarr", "--plugins-dir", "plug"])
    began = []

    def ready(path):
        if Path(path, "solvers/bad/S/zarr.json").exists() and not began:
            began.append(time.monotonic())
        return began and time.monotonic() - began[0] > 0.5

    code, _, err = interrupt(run, "r.zarr", ready)
    assert code == 130
    assert time.monotonic() - began[0] < 20  # the run itself would take minutes
    assert err == "interrupted: r.zarr keeps the first 0 steps, with status 'failed'\n"
    assert engine.open("r.zarr").attrs["status"] == "failed"


def test_ctrl_c_in_the_api_is_a_keyboard_interrupt(monkeypatch):
    from engine import experiment

    def tired(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "loop", tired)
    with pytest.raises(KeyboardInterrupt):
        engine.run("small.toml", "r.zarr")
    assert engine.open("r.zarr").attrs["status"] == "failed"


def test_a_write_is_not_cut_and_the_interrupt_is_not_lost():
    from engine.experiment import uninterrupted

    done = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            done.append("the write")
        done.append("never")
    assert done == ["the write"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_in_a_thread_is_a_run():
    """Only the main thread may touch signals."""
    from threading import Thread

    worker = Thread(target=engine.run, args=("small.toml", "r.zarr"))
    worker.start()
    worker.join()
    assert engine.open("r.zarr").attrs["status"] == "complete"

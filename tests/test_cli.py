"""The command line as a user meets it: what it prints, what it writes, how it ends."""

import csv
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import cli

from .cli_cases import SMALL, finished, start

pytestmark = pytest.mark.usefixtures("small_toml")

# --------------------------------------------------------------------------------------------- run


def test_run_prints_its_table_and_says_where_the_store_is(call):
    code, out, err = call("run", "small.toml")
    assert (code, err) == (0, "")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert lines[0] == "small: A small one"
    assert lines[1] == "40 steps, trials 2, seed 3"
    columns = re.split(r"\s{2,}", lines[2])
    assert columns == ["solver", "prediction error", "recall", "diverged", "state bytes", "steps/s"]
    shown = [re.sub(r" \+- \S+", "", line).split() for line in lines[4:6]]  # intervals: elsewhere
    rows = {row[0]: row for row in shown}
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
    assert {"report.html", "errors.png"} <= {p.name for p in (place / "Bilder").iterdir()}
    code, out, _ = call("run", f"{place}/ein Fall.toml")
    assert code == 0 and out.rstrip().endswith("stored in runs/ein Fall.zarr")
    code, out, _ = call("show", f"{place}/ein Lauf.zarr/", "--check")
    assert (code, out) == (0, f"{place}/ein Lauf.zarr: nothing is damaged\n")
    for args in ([], ["--force"]):
        again = call("replay", f"{place}/ein Lauf.zarr/", "-o", f"{place}/noch einer.zarr/", *args)
        assert again[0] == 0 and again[1].rstrip().endswith(f"stored in {place}/noch einer.zarr")
    assert call("replay", f"{place}/ein Lauf.zarr/", "-o", f"{place}/noch einer.zarr/")[0] == 2
    stored = 'generator = "stored"\npath = "ein Lauf.zarr/"'
    table = re.sub(r"generator = .*?\n\n", stored + "\n\n", SMALL, count=1, flags=re.S)
    (place / "noch ein Fall.toml").write_text(table, encoding="utf-8")
    assert call("run", f"{place}/noch ein Fall.toml", "-o", f"{place}/三.zarr/")[0] == 0
    first, third = (engine.open(f"{place}/{name}.zarr/") for name in ("ein Lauf", "三"))
    np.testing.assert_array_equal(third["solvers/delta/S"], first["solvers/delta/S"])


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
    assert facts["trials"] == 2 and facts["format"] == 2
    assert facts["scenario"]["text"] == SMALL
    assert set(facts["solvers"]) == {"delta", "exact"}
    assert facts["variables"]["solvers/exact/P"] == {
        "dims": {"step": 40, "trial": 2, "key": 4, "key_2": 4},
        "dtype": "float64",
        "bytes": 40 * 2 * 16 * 8,
        "stored": True,
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
            "newer.zarr": "newer.zarr has format 99, this release reads up to 2; upgrade",
            "cut.zarr": "cut.zarr has no stream: its run was killed, or has only just begun",
        }.items():
            code, out, err = call(command[0], path, *command[1:])
            assert (code, out) == (2, "")
            assert err.startswith("error: ") and said in err
    assert not Path("out").exists()


# ------------------------------------------------------------------------------------------ report

KINDS = ("png", "svg", "csv")


def test_report_draws_pictures_and_writes_their_numbers(call):
    call("run", "small.toml", "-o", "r.zarr")
    code, out, err = call("report", "r.zarr", "-o", "out/deep")
    assert (code, err) == (0, "")
    names = [f"{name}.{kind}" for name in ("errors", "recall", "spectra") for kind in KINDS]
    assert out.split() == [f"out/deep/{name}" for name in ["report.html", *names]]

    import matplotlib.image

    picture = matplotlib.image.imread("out/deep/errors.png")
    height, width, _ = picture.shape
    assert height > 400 and width > 800
    ink = (picture[..., :3] < 0.9).any(-1)
    assert ink.mean() > 0.01
    colours = {tuple(c) for c in np.round(picture[..., :3] * 255).astype(int)[ink].tolist()}
    assert (0, 0, 0) in colours and (0, 114, 178) in colours  # a line for each solver

    with open("out/deep/errors.csv", newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["panel", "curve", "look", "x", "y", "low", "high"]
    run, window = engine.open("r.zarr"), 4
    for label in ("delta", "exact"):
        error = run[f"solvers/{label}/prediction"] - run["stream/values"]
        mean = np.sqrt((error**2).sum("value")).mean("trial").values
        want = [mean[i : i + window].mean() for i in range(len(mean) - window + 1)]
        ours = [row for row in rows if row[1] == label]
        np.testing.assert_allclose([float(row[4]) for row in ours], want, rtol=1e-13)
        assert [float(row[3]) for row in ours] == list(range(window - 1, 40))
        assert all(float(row[5]) < float(row[4]) < float(row[6]) for row in ours)


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


def test_usage_errors_are_bad_input(call):
    for args in (["run"], ["run", "small.toml", "--trials", "many"], ["walk"], ["report", "x"]):
        code, out, _ = call(*args)
        assert (code, out) == (2, "")


# ------------------------------------------------------------------------------------------- pipes


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


def test_help_shows_what_stands_in_brackets(capsys, monkeypatch):
    """Where help is read as markup, [names] vanish from it."""
    said = ""
    for command in ("run", "tune"):
        monkeypatch.setattr(sys, "argv", ["engine", command, "--help"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 0
        said += capsys.readouterr().out
    assert "[default: runs/NAME.zarr]" in said and "[tune]" in said

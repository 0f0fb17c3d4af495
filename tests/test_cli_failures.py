"""The command line where a solver, a generator, a view or the disk fails."""

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import engine

from .cli_cases import scenario

pytestmark = pytest.mark.usefixtures("small_toml")


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

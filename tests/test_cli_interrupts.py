"""Ctrl-C: what is heard, when, and what is left of the run."""

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import engine

from .cli_cases import FAULTY, SMALL, finished, scenario, start

pytestmark = pytest.mark.usefixtures("small_toml")


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


# It may come while a solver is at work, or in between.
TOLD = (
    r"interrupted( at step \d+)?( in solver '\w+')?: r.zarr keeps the first {kept} steps, "
    r"with status 'interrupted'\n"
)
LONG = SMALL.replace("steps = 40", "steps = 3_000_000").replace("[probes.recall]", "")


def test_ctrl_c_ends_a_run_with_130_and_keeps_what_was_done():
    Path("long.toml").write_text(LONG)
    run = start(["run", "long.toml", "-o", "r.zarr"])
    code, out, err = interrupt(run, "r.zarr", lambda path: committed(path) > 0)
    assert (code, out) == (130, "")
    left = engine.open("r.zarr")
    kept = left.attrs["committed"]
    assert re.fullmatch(TOLD.format(kept=kept), err), err
    assert left.attrs["status"] == "interrupted" and 0 < kept < 3_000_000
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
    wanted = {"close": ("complete", 40), "commit": ("interrupted", 40), "write": ("interrupted", 0)}
    assert (done, kept) == wanted.get(method, ("interrupted", 0))
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
    told = r"interrupted at step \d+ in solver 'bad': r.zarr keeps the first 0 steps, with status"
    assert re.match(told, err), err
    assert engine.open("r.zarr").attrs["status"] == "interrupted"


def test_ctrl_c_in_the_api_is_a_keyboard_interrupt(monkeypatch):
    from engine import experiment

    def tired(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "loop", tired)
    with pytest.raises(KeyboardInterrupt):
        engine.run("small.toml", "r.zarr")
    assert engine.open("r.zarr").attrs["status"] == "interrupted"


def test_a_write_is_not_cut_and_the_interrupt_is_not_lost():
    from engine.interrupts import uninterrupted

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


def test_sigterm_ends_a_run_as_ctrl_c_does_with_143():
    Path("long.toml").write_text(LONG)
    run = start(["run", "long.toml", "-o", "r.zarr"])
    deadline = time.monotonic() + 30
    while not committed("r.zarr"):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    run.send_signal(signal.SIGTERM)
    code, out, err = finished(run)
    assert (code, out) == (143, "")
    left = engine.open("r.zarr")
    kept = left.attrs["committed"]
    assert re.fullmatch(TOLD.format(kept=kept), err), err
    assert left.sizes["step"] == kept > 0
    assert np.isfinite(left["solvers/delta/S"].isel(step=-1).values).all()


def test_a_store_has_one_writer_which_a_kill_ends():
    """The lock is the process's: no file of it is left behind, no process id is taken over."""
    Path("long.toml").write_text(LONG)
    run = start(["run", "long.toml", "-o", "r.zarr"])
    deadline = time.monotonic() + 30
    while not committed("r.zarr"):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    before = committed("r.zarr")
    with pytest.raises(engine.InputError, match=f"is being written by process {run.pid}; "):
        from engine.store import ZarrSink

        ZarrSink(Path("r.zarr"), 1, force=True)
    assert run.poll() is None and committed("r.zarr") >= before
    run.kill()
    assert finished(run)[0] == -signal.SIGKILL
    left = engine.open("r.zarr")
    assert left.attrs["status"] == "running" and left.sizes["step"] >= before
    ZarrSink(Path("r.zarr"), 1, force=True)


def test_a_store_that_is_being_written_is_refused_in_the_same_process_too():
    from engine import experiment
    from engine.store import ZarrSink

    plan = experiment.prepare("small.toml", {})
    sink = experiment.store_sink(plan, Path("r.zarr"))
    with pytest.raises(engine.InputError, match=f"written by process {os.getpid()}; "):
        ZarrSink(Path("r.zarr"), 1, force=True)
    experiment.execute(plan, sink)
    assert engine.open("r.zarr").attrs["status"] == "complete"
    ZarrSink(Path("r.zarr"), 1, force=True)


@pytest.mark.parametrize(
    "name", ["with a space", "\u03bb-\u8a18\u61b6", "trailing.zarr/", "a'b\"c"]
)
def test_a_store_may_be_called_anything(name, call):
    """Spaces, letters of any script, a slash at the end: written, shown, read, replaced."""
    assert call("run", "small.toml", "-o", name)[0] == 0
    assert engine.open(name).attrs["status"] == "complete"
    assert call("show", name)[0] == 0
    code, _, err = call("run", "small.toml", "-o", name)
    assert code == 2 and "--force" in err
    assert call("run", "small.toml", "-o", name, "--force")[0] == 0

"""SIGKILL at random moments: every store opens, is a prefix of the whole run, and becomes it."""

import json
import multiprocessing
import random
import shutil
import subprocess
import time

import numpy as np
import pytest

import engine
from engine import integrity, store

from .cli_cases import ENGINE
from .store_cases import assert_same, flat

SEVERAL = {
    "seed": 3,
    "trials": 2,
    "stream": {"generator": "random", "steps": 700, "key": 6, "value": 4},
    "solvers": {"softmax": {"solver": "softmax_attention"}, "rls": {}, "titans": {}, "delta": {}},
    "probes": {"recall": {"every": 100}},
}
KEYFRAMES = {"keyframes": 16}
TOML = """seed = 3
trials = 2
record = {record}

[stream]
generator = "random"
steps = 700
key = 6
value = 4

[solvers.softmax]
solver = "softmax_attention"

[solvers.rls]
[solvers.titans]
[solvers.delta]

[probes.recall]
every = 100
"""


def written(scenario, path, resume):
    """What a process does that is going to be killed: shards of 32 steps, frames of 16."""
    from engine import recorder

    recorder.SHARD_STEPS, recorder.BLOCK_STEPS = 32, 16
    engine.run(scenario, path, resume=resume)


@pytest.fixture(scope="module")
def context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.compiled", "engine.resume", "xarray", "scipy"])
    return context


def killed(context, scenario, path, chance, resume=False):
    """Kill a run at some moment: most often between two marks, sometimes as it begins."""
    process = context.Process(target=written, args=(scenario, path, resume))
    process.start()
    while process.is_alive() and not path.exists():
        time.sleep(0.0005)
    mark = chance.uniform(-0.15, 1) * 700
    while process.is_alive() and mark > 0 and committed(path) < mark:
        time.sleep(0.0005)
    process.join(chance.uniform(0, 0.02 if mark > 0 else 0.1))
    process.kill()
    process.join()


def committed(path):
    """Return the mark of a live store, read as any program may."""
    try:
        return json.loads(path.joinpath("zarr.json").read_text())["attributes"]["committed"]
    except FileNotFoundError:
        return 0


def opens_as_prefix(path, whole):
    """Check all that a store shows against the whole run; return how many steps it has."""
    left = engine.open(path)
    mark = left.attrs["committed"]
    assert left.attrs["format"] == store.FORMAT and mark == int(mark) >= 0
    for name, (dims, x) in flat(left).items():
        want = whole[name][1]
        if dims[:1] == ("step",) and "/" in name:
            assert len(x) == mark, name
        if dims[:1] in (("step",), ("keyframe",), ("probe_step",)):
            want = want[: len(x)]
        if left.attrs["status"] == "complete" or not name.endswith("diverged_at"):
            assert x.tobytes() == want.tobytes(), name
    if mark:
        assert not integrity.check(path)
        assert len(flat(left)) > 8 * len(SEVERAL["solvers"]) // 2
    return mark


def survives(record, kills, context, tmp_path):
    """Kill so many runs; of every second one the resume is killed too."""
    scenario = {**SEVERAL, "record": record}
    whole = flat(engine.run(scenario, tmp_path / "whole.zarr"))
    assert whole["solvers/softmax/output"][1].shape == (700, 2, 4)
    chance, marks = random.Random(str(record)), []
    for kill in range(kills):
        path = tmp_path / f"{kill}.zarr"
        killed(context, scenario, path, chance)
        marks.append(opens_as_prefix(path, whole))
        if kill % 2:
            killed(context, scenario, path, chance, resume=True)
            opens_as_prefix(path, whole)
        assert_same(flat(engine.run(scenario, path, resume=True)), whole)
        assert engine.open(path).attrs["status"] == "complete" and not integrity.check(path)
        shutil.rmtree(path)
    return np.array(marks)


@pytest.mark.parametrize("record", ["every", KEYFRAMES])
def test_a_few_kills_lose_nothing(record, context, tmp_path):
    survives(record, 2, context, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("record", ["every", KEYFRAMES])
def test_kills_at_random_moments_lose_nothing(record, context, tmp_path):
    """25 in each mode; most fall into the midst of the run."""
    marks = survives(record, 25, context, tmp_path)
    assert ((marks > 0) & (marks < 700)).sum() >= 8


@pytest.mark.parametrize("record", ['"every"', "{ keyframes = 16 }"])
def test_the_command_line_resumes_too(record, context, tmp_path):
    (tmp_path / "several.toml").write_text(TOML.format(record=record))
    scenario = str(tmp_path / "several.toml")
    engine.run(scenario, tmp_path / "whole.zarr")
    path = tmp_path / "run.zarr"
    while not path.exists() or engine.open(path).attrs["status"] == "complete":
        shutil.rmtree(path, ignore_errors=True)
        killed(context, scenario, path, random.Random(1))
    done = subprocess.run(
        [ENGINE, "run", scenario, "-o", str(path), "--resume"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert_same(flat(engine.open(path)), flat(engine.open(tmp_path / "whole.zarr")))
    again = subprocess.run(
        [ENGINE, "run", scenario, "-o", str(path), "--resume"], capture_output=True, text=True
    )
    assert again.returncode == 0 and "nothing to resume" in again.stderr

"""Types reach whoever imports the engine, and `make lint` refuses code that lacks them."""

import inspect
import subprocess
import sys
import tomllib
from importlib.metadata import files
from importlib.resources import files as resources
from importlib.util import find_spec
from pathlib import Path

import pytest

import engine
from engine import api, live, liveframes, ops, push, reporting, testing

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MYPY = PROJECT["tool"]["mypy"]


def test_the_marker_of_a_typed_package_is_shipped():
    assert resources("engine").joinpath("py.typed").is_file()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["engine"]
    # Where the engine is installed by copying, its own list of files has it.
    listed = [str(f) for f in files("ttr-engine") or []]
    assert "engine/py.typed" in listed or not any(f.startswith("engine/") for f in listed)


def public():
    for module in (engine, api, ops, reporting, testing):
        names = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
        for name in names:
            thing = getattr(module, name)
            if inspect.isfunction(thing) and thing.__module__.startswith("engine"):
                yield f"{module.__name__}.{name}", thing
    for cls in (push.Memory, push.Snapshot, live.Stream, liveframes.LiveFrame, liveframes.Measures,
                api.Space, api.Draws, testing.Check):  # fmt: skip
        for name, thing in vars(cls).items():
            thing = thing.fget if isinstance(thing, property) else thing
            if inspect.isfunction(thing) and name[0] != "_":
                yield f"{cls.__name__}.{name}", thing


PUBLIC = dict(public())


@pytest.mark.parametrize("name", PUBLIC)
def test_every_parameter_and_result_of_the_public_api_has_a_type(name):
    signature = inspect.signature(PUBLIC[name])
    bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    assert [p for p in bare if p not in ("self", "cls")] == []
    assert signature.return_annotation is not signature.empty


def test_the_public_api_is_all_of_it():
    assert {"engine.simulate", "engine.memory", "Memory.write", "Stream.skip"} <= set(PUBLIC)


def test_the_type_check_is_strict_and_excuses_two_files_of_numba_alone():
    assert MYPY["strict"] is True and MYPY["packages"] == ["engine"]
    excused = {m for o in MYPY["overrides"] for m in o["module"] if m.startswith("engine")}
    assert excused == {"engine.recurrences", "engine.lanes"}
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert "$(BIN)/mypy\n" in lint + "\n"


CONSUMER = """
from typing import assert_type
import numpy as np, xarray as xr
import engine
from engine.api import Solver
from engine.push import Memory
a = np.zeros((3, 2))
assert_type(engine.simulate("delta", a, a), xr.Dataset)
assert_type(engine.run("drift"), xr.DataTree)
assert_type(engine.memory("delta", key=2, value=2), Memory)
assert_type(engine.solver("delta"), Solver)
"""


def mypy(code, folder):
    """Check a text as the project's own files are checked."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'packages = ["engine"]\n' in text
    (folder / "pyproject.toml").write_text(text.replace('packages = ["engine"]\n', ""))
    options = ["--config-file", folder / "pyproject.toml", "-c", code]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(find_spec("mypy") is None, reason="needs mypy: extra `lint`")
def test_a_caller_is_told_the_types_and_a_function_without_them_is_refused(tmp_path):
    done = mypy(CONSUMER, tmp_path)
    assert done.returncode == 0, done.stdout
    done = mypy(
        CONSUMER + "def f(x): return x\nengine.memory('delta', key='wide', value=2)\n", tmp_path
    )
    assert done.returncode == 1
    assert "[no-untyped-def]" in done.stdout and "[arg-type]" in done.stdout

"""Folders, plugins and a command line of their own for the tests that need them."""

import itertools
import os
import signal
import sys
import warnings
from pathlib import Path

import pytest

from engine import cli

from .cli_cases import FAULTY, SMALL

# Assertions in the modules that tests share tell as much as those in tests.
for shared in (
    "loop_cases", "registry_cases", "scenario_cases", "simulation_cases", "store_cases",
    "plugins.attention_cases", "plugins.replay",
):  # fmt: skip
    pytest.register_assert_rewrite(f"{__package__}.{shared}")

COUNT = itertools.count()

# A job that a shell starts in the background ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_folder(monkeypatch):
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", "")  # restored even where a command sets it


@pytest.fixture
def own_folder(no_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small_toml(own_folder):
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


@pytest.fixture
def small_shards(monkeypatch):
    """Make shards of 16 steps and frames of 8, so that a short run has many of both."""
    monkeypatch.setattr("engine.recorder.SHARD_STEPS", 16)
    monkeypatch.setattr("engine.recorder.BLOCK_STEPS", 8)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that lays a distribution out as an installer does, on the path."""

    def lay_out(dist, text, *, name="stranger", value="{module}", folder="site"):
        module = f"stranger_{os.getpid()}_{next(COUNT)}"
        site = tmp_path / folder
        info = site / f"{dist}-2.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 2.5\n")
        target = value.format(module=module)
        (info / "entry_points.txt").write_text(f"[engine.plugins]\n{name} = {target}\n")
        if text is not None:
            (site / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(str(site))
        return site

    known = set(sys.modules)
    yield lay_out
    for module in [m for m in sys.modules if m not in known and m.startswith("stranger_")]:
        del sys.modules[module]

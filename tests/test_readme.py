"""Every block of README and CONTRIBUTING runs as it stands, from top to bottom, in one folder.

A python block is executed, unless the text before it says "Save this as `FILE`"; so is a TOML block
saved, as my.toml unless it says otherwise. Lines of other blocks are shell; of `make` it is asked
what it would do. A block marked `text` is a picture: what it names must exist.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import engine

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^(?P<before>[^\n]*)\n\n?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
SAVED = re.compile(r"[Ss]ave this as `([^`]+)`")


def shell(text, folder):
    """Run lines of shell with the `engine` of this environment, warnings as errors."""
    code = "from engine.cli import main; main()"
    engine = f'engine() {{ "{sys.executable}" -W error -c "{code}" "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", engine + text],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout


def run_blocks(document, folder):
    """Run every block of a document and return (language, text, what it printed)."""
    ran = []
    for found in BLOCK.finditer(document):
        before, language, text = found["before"], found["language"], found["text"]
        saved = SAVED.search(before)
        if saved or language == "toml":
            if language == "toml":
                tomllib.loads(text)
            name = saved[1] if saved else "my.toml"
            if saved or "[stream]" in text:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
            ran.append((language, text, ""))
        elif language == "text":
            ran.append((language, text, ""))
        elif language == "python":
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", text],
                cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{text}\n{done.stderr}"
            ran.append((language, text, done.stdout))
        else:
            lines = [re.sub("^make ", f"make -n -C '{ROOT}' ", line) for line in text.splitlines()]
            ran.append((language, text, shell("\n".join(lines), folder)))
    return ran


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    (folder / "runs").mkdir()
    return folder, run_blocks((ROOT / "README.md").read_text(encoding="utf-8"), folder)


def test_every_block_is_run(ran):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(ran[1]) == text.count("```") // 2 > 8


def test_the_drift_study_comes_out(ran):
    """The published study prints .3, and its data give .2968922229."""
    printed = next(out for _, text, out in ran[1] if 'engine.run("drift")' in text)
    assert abs(float(printed.split()[0]) - 0.2968922229) < 1e-9


def test_every_block_of_contributing_is_run(ran, tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = run_blocks(text, tmp_path)
    assert len(blocks) == text.count("```") // 2 >= 3
    for _, picture, _ in (block for block in blocks if block[0] == "text"):
        named = re.findall(r"\b[a-z_]+\.py\b", picture)
        assert named and [n for n in named if not (ROOT / "engine" / n).is_file()] == []
    made = next(out for _, text, out in blocks if "make lint" in text)
    assert "mypy" in made and "pytest" in made
    assert (tmp_path / "my_rule" / "pyproject.toml").is_file()


def test_the_four_examples_are_there_and_come_out(ran):
    """Write a solver; replay a stored stream with it; analyse in xarray; pipe a live stream."""
    folder, blocks = ran
    first, lazy = (engine.open(folder / "runs" / name) for name in ("my.zarr", "lazy.zarr"))
    assert lazy["stream"].attrs["sha256"] == first["stream"].attrs["sha256"]
    assert lazy["solvers/lazy"].attrs["hyperparameters"] == {"threshold": 0.5}
    assert list(lazy["solvers"].children) == ["lazy"]
    norms = next(out for _, text, out in blocks if "plain xarray" in text)
    assert "[" in norms
    piped = next(out for _, text, out in blocks if "engine stream drift" in text).splitlines()
    assert [type(json.loads(line)) for line in piped] == [dict] * 4  # three frames, one answer


def test_the_plugin_keeps_the_contract_and_runs(ran):
    folder, blocks = ran
    printed = next(out for _, text, out in blocks if "plugins check lazy" in text)
    assert "passed" in printed and "failed" not in printed and "lazy" in printed
    assert (folder / "runs" / "my" / "report.html").stat().st_size > 10_000

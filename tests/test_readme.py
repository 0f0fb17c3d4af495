"""Every block of the README runs as it stands, from top to bottom, in one folder.

A python block is executed, unless the text before it says "Save this as `FILE`"; so is a TOML block
saved, as my.toml unless it says otherwise. Lines of other blocks are shell; `make` is not run.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
        elif language == "python":
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", text],
                cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{text}\n{done.stderr}"
            ran.append((language, text, done.stdout))
        else:
            lines = [line for line in text.splitlines() if not line.startswith("make ")]
            ran.append((language, text, shell("\n".join(lines), folder) if lines else ""))
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


def test_the_plugin_keeps_the_contract_and_runs(ran):
    folder, blocks = ran
    printed = next(out for _, text, out in blocks if "plugins check lazy" in text)
    assert "passed" in printed and "failed" not in printed and "lazy" in printed
    assert (folder / "runs" / "my" / "report.html").stat().st_size > 10_000

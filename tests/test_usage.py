"""The command line as a user meets it: help that is whole, usage mistakes, completion."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .registry_cases import LEAKY, plugin
from .scenario_cases import refused
from .test_documented import COMMANDS

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_all_that_was_written(name, call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(*name.split()[1:], "--help")
    shown = " ".join(out.split())
    assert code == 0
    for text in [COMMANDS[name].help, *(p.help for p in COMMANDS[name].params)]:
        assert " ".join(text.split()) in shown


def test_without_arguments_it_says_what_there_is(call):
    code, out, err = call()
    assert (code, err) == (2, "") and out.startswith("Usage: engine [OPTIONS] COMMAND")
    assert all(f"\n  {name.split()[1]} " in out for name in COMMANDS)


MISTAKES = {
    "command": (
        ["rnu", "drift"],
        ["No such command 'rnu'. Did you mean 'run'?; see engine --help"],
    ),
    "command of plugins": (["plugins", "lst"], ["No such command 'lst'. Did you mean 'list'?"]),
    "option": (["run", "drift", "--sede", "3"], ["No such option: --sede", "--seed", "engine run"]),
    "no scenario": (["run"], ["Missing argument 'scenario'; see engine run --help"]),
    "no out": (["report", "r.zarr"], ["Missing option '--out'", "; see engine report --help"]),
    "whole number": (["run", "drift", "--seed", "x"], ["'--seed': must be a whole number; see"]),
    "half a trial": (["run", "drift", "--trials", "1.5"], ["'--trials': must be a whole number"]),
    "choice": (["stream", "drift", "--reads", "al"], ["'al' is not one of 'last', 'every'; see"]),
    "no value": (["run", "drift", "--seed"], ["'--seed' requires an argument; see engine "]),
    "a value": (["run", "drift", "--force=3"], ["'--force' does not take a value; see engine"]),
    "one too many": (
        ["run", "drift", "rls"],
        ["unexpected extra argument(s) (rls); see engine run"],
    ),
    "no run": (["show", "no.zarr"], ["no.zarr"]),
    "solver of a replay": (["replay", "no.zarr", "--solver", "dleta"], ["no.zarr"]),
    "plugin": (
        ["plugins", "check", "dleta"],
        ["no plugin is named 'dleta'; did you mean 'delta'?"],
    ),
    "stream of nothing": (["stream"], ["give a scenario, or - for pairs on standard input"]),
    "pairs without a solver": (["stream", "-"], ["- needs a solver: --solver NAME, or NAME:LABEL"]),
    "pairs through no solver": (
        ["stream", "-", "--solver", "dleta"],
        ["did you mean 'delta'? Known"],
    ),
    "label of a stream": (["stream", "drift", "--solver", "implict"], ["did you mean 'implicit'?"]),
    "no steps": (
        ["stream", "drift", "--every", "0"],
        ["--every = 0 must be a whole number, 1 or mo"],
    ),
    "tuned": (["tune", "drift"], ["tune: missing; write [tune.<label>] with candidates"]),
    "no file": (["ingest", "no.csv", "-o", "x.zarr"], ["no.csv: there is no such file"]),
    "no plugins": (
        ["plugins", "list", "--plugins-dir", "no"],
        ["--plugins-dir 'no' is not a folder"],
    ),
    "set of check": (
        ["plugins", "check", "rls", "--set", "rige=1"],
        ["rls takes no 'rige'; did you m"],
    ),
}


@pytest.mark.parametrize("args, said", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_that_says_what_would_be_right(args, said, capsys, monkeypatch):
    err = refused(capsys, monkeypatch, *args)
    assert all(line.startswith("  ") for line in err.splitlines()[1:])
    for part in said:
        assert part in err


# ---------------------------------------------------------------------------------- completion

COMPLETED = {
    "commands": ("re", ["replay", "report"]),
    "commands of plugins": ("plugins li", ["list"]),
    "options": ("run drift --see", ["--seed"]),
    "scenarios": ("run dri", ["drift"]),
    "scenarios to tune": ("tune reb", ["rebinding"]),
    "solvers": ("stream - --solver soft", ["softmax_attention"]),
    "solvers to replay": ("replay r.zarr --solver longhorn_d", ["longhorn_diagonal"]),
    "choices": ("stream drift --reads e", ["every"]),
    "backends": ("run drift --backend c", ["cupy"]),
    "what a failure does": ("run drift --on-error d", ["drop"]),
    "plugins": ("plugins check rebin", ["rebinding"]),
    "a stranger's": ("stream - --plugins-dir folder --solver leak", ["leaky"]),
    "nothing": ("run no_such_scenario", []),
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("typed, offered", COMPLETED.values(), ids=COMPLETED)
def test_bash_completes(typed, offered, tmp_path):
    """The script that `engine completions bash` prints, called as bash calls it."""
    plugin(tmp_path / "folder", "mine.py", LEAKY)
    plugin(tmp_path / "folder", "kaputt.py", "import no_such_library_anywhere")
    engine = Path(sys.executable).with_name("engine")
    script = f"""
    source <({engine} completions bash)
    COMP_WORDS=(engine {typed}) COMP_CWORD={len(typed.split())}
    _engine_completion {engine}
    [ ${{#COMPREPLY[@]}} = 0 ] || printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    # Bash itself leaves out what does not begin so.
    assert [x for x in ran.stdout.split() if x.startswith(typed.split()[-1])] == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(shell, call):
    code, out, err = call("completions", shell)
    assert (code, err) == (0, "")
    assert "_ENGINE_COMPLETE" in out and f"complete_{shell}" in out

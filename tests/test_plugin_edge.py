"""Strangers' plugins from end to end: a broken one beside a good one, one twice, two of a name."""

import warnings
from pathlib import Path

import pytest

import engine
from engine import registry

from .registry_cases import LEAKY, swap

SCENARIO = """
[stream]
generator = "random"
steps = 5

[solvers.leaky]
"""
BROKEN = {
    "ImportError": ("raise ImportError('libfoo.so.9: not found')", "{module}", "libfoo.so.9"),
    "SyntaxError": ("def f(:\n", "{module}", "SyntaxError: invalid syntax"),
    "missing module": (None, "{module}", "ModuleNotFoundError: No module named"),
    "attribute missing": ("x = 1\n", "{module}:nothing", "has no attribute 'nothing'"),
    "sys.exit at import": ("raise SystemExit(3)\n", "{module}", "SystemExit: 3"),
}


@pytest.fixture
def fresh(own_folder, monkeypatch):
    """Let the next command look for plugins anew."""
    Path("empty").mkdir()
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(Path("empty").resolve()))
    Path("s.toml").write_text(SCENARIO)


def warned(call, *args):
    """Run a command with every warning shown; return what it gave and its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, out, err = call(*args)
    lines = err.splitlines()
    told = [line for line in lines if line.startswith("warning: ")]
    return code, out, [line for line in lines if line not in told], told


@pytest.mark.parametrize("text, value, cause", BROKEN.values(), ids=BROKEN)
def test_one_broken_plugin_is_named_once_and_the_good_one_runs(
    text, value, cause, fresh, install, call
):
    install("good-dist", LEAKY, folder="good")
    install("broken-dist", text, name="exotic", value=value, folder="broken")
    code, _, rest, told = warned(call, "run", "s.toml", "-o", "r.zarr")
    assert (code, rest) == (0, []) and len(told) == 1
    assert told[0].startswith("warning: plugin 'exotic' from broken-dist 2.5 was not loaded: ")
    assert cause in told[0]
    assert engine.open("r.zarr")["solvers/leaky"].attrs["plugin"] == "good-dist 2.5"

    # Asking for it gives its cause, where it came from, and nothing is written.
    asked = ["run", "s.toml", "-o", "x.zarr", "--set", "solvers.leaky.solver=exotic"]
    code, out, rest, _ = warned(call, *asked)
    assert (code, out) == (2, "") and not Path("x.zarr").exists()
    assert "solvers.leaky.solver = 'exotic': no solver is named 'exotic'" in rest[0]
    assert "not loaded, may have provided it: exotic from broken-dist 2.5: " in rest[1]
    assert cause in rest[1]


def test_where_warnings_are_errors_a_broken_plugin_ends_a_command(fresh, install, call):
    install("broken-dist", "1 / 0", name="exotic")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code, out, err = call("run", "s.toml", "-o", "x.zarr")
    assert (code, out) == (2, "") and not Path("x.zarr").exists()
    assert err == (
        "error: plugin 'exotic' from broken-dist 2.5 was not loaded: "
        "ZeroDivisionError: division by zero\n"
    )


def test_a_distribution_that_fails_half_way_leaves_nothing_of_itself(fresh, install, call):
    half = swap('{"leaky": Leaky}', '{"leaky": Leaky, "a/b": Leaky}')
    install("half-dist", half, folder="half")
    code, out, rest, told = warned(call, "run", "s.toml", "-o", "x.zarr")
    assert (code, out) == (2, "") and len(told) == 1
    assert "'a/b' cannot be a name; use lower-case letters, digits and underscores" in told[0]
    assert "no solver is named 'leaky'" in rest[0]


def test_a_plugin_on_two_paths_is_no_fault(fresh, install, call, tmp_path, monkeypatch):
    site = install("twice-dist", LEAKY)
    (tmp_path / "lib64").symlink_to(site, target_is_directory=True)
    monkeypatch.syspath_prepend(str(tmp_path / "lib64"))
    code, _, rest, told = warned(call, "run", "s.toml", "-o", "r.zarr")
    assert (code, rest, told) == (0, [], [])


def test_two_plugins_of_one_name_are_told_apart_by_their_distributions(fresh, install, call):
    install("first-dist", LEAKY, folder="one")
    install("second-dist", LEAKY, folder="two")
    code, out, rest, told = warned(call, "run", "s.toml", "-o", "x.zarr")
    assert (code, out, told) == (2, "", []) and not Path("x.zarr").exists()
    assert rest == [
        "error: s.toml: solvers.leaky (without a key 'solver', the label is the name): 2 solvers "
        "are named 'leaky', from second-dist 2.5 and first-dist 2.5; remove or rename all but one"
    ]
    assert warned(call, "run", "s.toml", "--set", "solvers.leaky.solver=delta")[0] == 0


@pytest.mark.parametrize("kind", registry.KINDS)
@pytest.mark.parametrize("name", ["a/b", "", "..", "k with space", "zarr.json", "κ"])
def test_a_name_that_names_no_group_of_a_store_is_refused_at_registration(kind, name):
    """A variable "a/b" would vanish: xarray shows no variable of a group below."""
    with pytest.raises(engine.InputError, match="cannot be a name; use lower-case letters"):
        registry._entries(kind, registry.KINDS[kind], {name: object}, "here")

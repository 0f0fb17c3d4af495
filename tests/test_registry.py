"""The plugin edge: what is found, what is refused, and what a stranger's fault costs."""

import itertools
import json
import os
import subprocess
import sys
import tomllib
import warnings
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import cli, registry
from engine.errors import InputError, PluginWarning

ROOT = Path(__file__).parents[1]
COUNT = itertools.count()

# A whole plugin: what every broken one below is a change of.
HEAD = """
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from engine import ops
from engine.api import Array, Coefficient, Decay, Gain, Generator, Space, View, hookimpl
from engine.linear import LinearRule, Token


class State(NamedTuple):
    S: Annotated[Array, "key value"]


@dataclass(frozen=True)
class Leaky:
    \"\"\"S <- keep S + k v^T; reads scale S^T q.

    The rest of the docstring.
    \"\"\"

    scale: float = 1.0

    def init(self, space: Space) -> State:
        return State(space.zeros("key value"))

    def write(self, s: State, k: Array, v: Array, *, keep: Decay = 1.0) -> State:
        return State(ops.scale_rows(keep, s.S) + ops.outer(k, v))

    def read(self, s: State, q: Array) -> Array:
        return self.scale * ops.vecmat(q, s.S)

"""
HOOK = """
@hookimpl
def engine_solvers():
    return {"leaky": Leaky}
"""
LEAKY = HEAD + HOOK


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", "")  # restored even where a command sets it


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


def plugin(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def load_broken(folder=None):
    """Load, and return the registry and its one warning."""
    with pytest.warns(PluginWarning) as caught:
        found = registry.load(folder)
    assert len(caught) == 1
    assert len(found.broken) == 1
    return found, str(caught[0].message)


# ---------------------------------------------------------------------------------- built-ins


def test_every_built_in_enters_through_its_own_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["entry-points"]["engine.plugins"]
    files = {
        f"engine.plugins.{path.parent.name}.{path.stem}"
        for path in ROOT.glob("plugins/*/*.py")
        if path.stem != "__init__"
    }
    assert set(declared.values()) == files
    assert all(name == module.rpartition(".")[2] for name, module in declared.items())


def test_built_ins_say_where_they_come_from():
    found = registry.load()
    assert found.broken == []
    assert found.ambiguous() == []
    rls = found.get("solver", "rls")
    assert rls.source == f"ttr-engine {version('ttr-engine')}"
    assert rls.rule.startswith("P <- ") and "\n" not in rls.rule
    for kind in registry.KINDS:
        for info in found.names(kind).values():
            assert info.rule and len(info.rule) < 140, f"{info.name} has no one-line rule"


def test_public_listings_are_the_registry():
    assert set(engine.solvers()) == set(registry.default().names("solver"))
    assert {"random", "stored"} <= set(engine.generators())
    assert {"unit", "elu1"} <= set(engine.views())


# ------------------------------------------------------------------ one that cannot be imported

IMPORTS = {
    "missing import": ("import no_such_library_anywhere", "No module named 'no_such_library_any"),
    "import error": ("raise ImportError('libfoo.so.9: not found')", "libfoo.so.9: not found"),
    "syntax error": ("def f(:\n", "SyntaxError"),
    "exit": ("import sys\nsys.exit('no licence')", "SystemExit: no licence"),
    "exit zero": ("raise SystemExit(0)", "SystemExit: 0"),
    "any error": ("1 / 0", "ZeroDivisionError: division by zero"),
    "not an Exception": ("class Odd(BaseException): pass\nraise Odd('odd')", "Odd: odd"),
    "not UTF-8": ("# coding: no_such_coding\n", "no_such_coding"),
}


@pytest.mark.parametrize("text, cause", IMPORTS.values(), ids=IMPORTS)
@pytest.mark.parametrize("door", ["entry point", "file"])
def test_a_plugin_that_cannot_be_imported_is_named_and_the_rest_works(
    door, text, cause, install, tmp_path
):
    folder = None
    if door == "entry point":
        install("strange-dist", text, name="kaputt")
        source = "strange-dist 2.5"
    else:
        folder = plugin(tmp_path / "folder", "kaputt.py", text)
        source = str(folder / "kaputt.py")
    found, warning = load_broken(folder)
    assert warning.startswith(f"plugin 'kaputt' from {source} was not loaded: ")
    assert cause in warning
    broken = found.broken[0]
    assert (broken.name, broken.source) == ("kaputt", source)
    assert cause in broken.cause
    assert found.get("solver", "rls").name == "rls"
    with pytest.raises(InputError) as error:
        found.get("solver", "kaputt_solver")
    assert f"not loaded, may have provided it: kaputt from {source}: " in str(error.value)
    assert cause in str(error.value)


@pytest.mark.parametrize(
    "value, cause",
    [
        ("no_such_module_of_ours", "No module named 'no_such_module_of_ours'"),
        ("{module}:nothing_here", "has no attribute 'nothing_here'"),
        ("{module}.part:plugin", "is not a package"),
        ("{module}:Leaky", "Leaky is a class where a module or an instance with hooks is meant"),
        ("{module}:ops", "it provides nothing; mark engine_solvers"),
        ("{module}:hookimpl.nope.nope", "has no attribute 'nope'"),
        ("!!", "was not loaded: "),
    ],
)
def test_an_entry_point_that_names_the_wrong_thing(value, cause, install):
    install("strange-dist", LEAKY, value=value)
    found, warning = load_broken()
    assert "'stranger' from strange-dist 2.5" in warning
    assert cause in warning
    assert "leaky" not in found.names("solver")


def test_a_distribution_without_metadata_is_still_named(install):
    site = install("nameless", "1 / 0", name="kaputt")
    (site / "nameless-2.5.dist-info" / "METADATA").unlink()
    found, warning = load_broken()
    assert "plugin 'kaputt' from " in warning and "ZeroDivisionError" in warning
    assert "rls" in found.names("solver")


@pytest.mark.parametrize(
    "points", [b"[engine.plugins]\ngarbage\n", b"\xff\xfe[engine"], ids=["a line", "bytes"]
)
def test_metadata_that_cannot_be_read_stops_nothing(points, install):
    site = install("garbled", None)
    (site / "garbled-2.5.dist-info" / "entry_points.txt").write_bytes(points)
    found, warning = load_broken()
    assert warning.startswith("plugin 'entry_points.txt' from garbled 2.5 was not loaded: ")
    assert "rls" in found.names("solver")


def test_entry_points_of_other_groups_are_left_alone(install):
    site = install("other-host", "1 / 0")
    points = site / "other-host-2.5.dist-info" / "entry_points.txt"
    points.write_text(points.read_text().replace("engine.plugins", "engine.plugins.more"))
    assert registry.load().broken == []


def test_a_failed_import_leaves_no_half_made_module(tmp_path):
    folder = plugin(tmp_path / "folder", "half.py", "x = 1\n1 / 0\n")
    load_broken(folder)
    assert "engine_plugin_half" not in sys.modules


def test_interrupting_an_import_interrupts(tmp_path):
    folder = plugin(tmp_path / "folder", "slow.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.load(folder)


def test_a_strict_mode_raises(tmp_path):
    folder = plugin(tmp_path / "folder", "kaputt.py", "1 / 0")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PluginWarning)
        with pytest.raises(PluginWarning, match="'kaputt' from .* ZeroDivisionError"):
            registry.load(folder)


# ------------------------------------------------------------------------ one that is ill made


def swap(old, new, text=LEAKY):
    assert text.count(old) == 1, old
    return text.replace(old, new)


WRITE = "def write(self, s: State, k: Array, v: Array, *, keep: Decay = 1.0) -> State:"
READ = "def read(self, s: State, q: Array) -> Array:"
INIT = "def init(self, space: Space) -> State:"
RULE = (
    HEAD
    + '''
@dataclass(frozen=True)
class Own(LinearRule):
    """S <- S + k v^T."""

    def token(self, k, v, *, beta: Gain = 1.0):
        return Token(write=beta * k, value=v)


@hookimpl
def engine_solvers():
    return {"own": Own}
'''
)
GENERATOR = (
    HEAD
    + '''
@dataclass(frozen=True)
class Ones(Generator):
    """k = v = 1."""

    size: int = 2

    def start(self, draws, steps):
        return None

    def draw(self, state, draws, steps):
        return state, {}


@hookimpl
def engine_generators():
    return {"ones": Ones}
'''
)
VIEW = (
    HEAD
    + '''
@dataclass(frozen=True)
class Twice(View):
    """2 x."""

    def __call__(self, x):
        return x + x


@hookimpl
def engine_views():
    return {"twice": Twice}
'''
)
MISSPELT = swap("def engine_solvers", "def engine_solver")
FAULTS = {
    "misspelt hook": (MISSPELT, ["unknown hook 'engine_solver'", "engine_solvers, engine_gen"]),
    "hook with an argument": (
        swap("def engine_solvers()", "def engine_solvers(registry)"),
        ["engine_solvers", "registry", "without arguments"],
    ),
    "no hookimpl": (swap("@hookimpl\ndef", "def"), ["it provides nothing", "@hookimpl"]),
    "another host's hookimpl": (
        swap("@hookimpl\ndef", "import pluggy\n@pluggy.HookimplMarker('datasette')\ndef"),
        ["it provides nothing"],
    ),
    "hook returns a list": (
        swap('{"leaky": Leaky}', "[Leaky]"),
        ["engine_solvers returned list", 'return {"name": Class}'],
    ),
    "hook returns nothing": (swap('return {"leaky": Leaky}', "pass"), ["returned NoneType"]),
    "hook raises": (swap('{"leaky": Leaky}', '{"leaky": Laeky}'), ["'Laeky' is not defined"]),
    "an empty hook": (swap('{"leaky": Leaky}', "{}"), ["it provides nothing"]),
    "instance for a class": (
        swap('{"leaky": Leaky}', '{"leaky": Leaky()}'),
        ["'leaky' is a Leaky instance; return its class"],
    ),
    "function for a class": (
        swap('{"leaky": Leaky}', '{"leaky": print}'),
        ["'leaky' is a builtin_function_or_method instance; return its class"],
    ),
    "no dataclass": (
        swap("@dataclass(frozen=True)\nclass Leaky", "class Leaky"),
        ["decorate Leaky with @dataclass(frozen=True)"],
    ),
    "no init": (swap(INIT, "def innit(self, space):"), ["Leaky has no method init(self, space"]),
    "no write": (swap(WRITE, "def wriet(self, s, k, v):"), ["no method write(self, s, k, v, *"]),
    "no read": (swap(READ, "def raed(self, s, q):"), ["Leaky has no method read(self, s, q, *"]),
    "write lacks v": (
        swap(WRITE, "def write(self, s, k):"),
        ["Leaky.write must take write(self, s, k, v, *, ...)", "too many positional"],
    ),
    "read wants more": (
        swap(READ, "def read(self, s, q, tail):"),
        ["Leaky.read must take read(self, s, q, *, ...)", "missing a required argument: 'tail'"],
    ),
    "no self": (swap(INIT, "def init(space):"), ["Leaky.init must take init(self, space"]),
    "static read": (swap(READ, "@staticmethod\n    " + READ), ["no method read(self, s, q"]),
    "coefficient by position": (
        swap(WRITE, "def write(self, s, k, v, keep: Decay = 1.0):"),
        ["Leaky.write must take", "'keep' is never given by position; put it behind a *"],
    ),
    "coefficient of text": (
        swap("keep: Decay = 1.0", 'keep: Decay = "all"'),
        ["Leaky.write: the default of 'keep' must be a number, not 'all'"],
    ),
    "coefficient in two ways": (
        swap(READ, "def read(self, s, q, *, keep: Gain = 0.5):"),
        ["write and read declare 'keep' differently"],
    ),
    "coefficient and option": (
        swap("keep: Decay = 1.0", "scale: Decay = 1.0"),
        ["the name 'scale' is taken"],
    ),
    "coefficient of the host's": (
        swap("keep: Decay = 1.0", "prediction: Decay = 1.0"),
        ["the name 'prediction' is taken"],
    ),
    "annotation unreadable": (
        swap("*, keep: Decay", "*, keep: 'Dceay'"),
        ["Leaky.write: cannot read its annotations", "Dceay"],
    ),
    "field type unreadable": (
        swap("scale: float", "scale: 'flaot'"),
        ["Leaky: cannot read its fields' types", "flaot"],
    ),
    "option of the host's": (
        swap("    scale: float = 1.0\n", "    view: float = 1.0\n    scale: float = 1.0\n"),
        ["Leaky: the name 'view' is the host's; rename that option"],
    ),
    "no token": (
        swap("def token", "def tokne", RULE),
        ["Own has no method token(self, k, v, *, ...)"],
    ),
    "wrong token": (
        swap("def token(self, k, v, *,", "def token(self, k, *,", RULE),
        ["Own.token must take token(self, k, v, *, ...)"],
    ),
    "no draw": (
        swap("def draw", "def drwa", GENERATOR),
        ["Ones has no method draw(self, state, draws, steps)"],
    ),
    "wrong start": (
        swap("def start(self, draws, steps)", "def start(self)", GENERATOR),
        ["Ones.start must take start(self, draws, steps)"],
    ),
    "a generator of no kin": (
        swap("class Ones(Generator)", "class Ones", GENERATOR),
        ["Ones has no method extent(self)", "inherit it from engine.api.Generator"],
    ),
    "wrong facts": (
        GENERATOR.replace("    def start", "    def facts(self): return {}\n\n    def start"),
        ["Ones.facts must take facts(self, state)"],
    ),
    "generator option of the host's": (
        swap("size: int", "steps: int", GENERATOR),
        ["the name 'steps' is the host's"],
    ),
    "a view that is not called": (
        swap("def __call__", "def call", VIEW),
        ["Twice has no method __call__(self, x)"],
    ),
    "a view of no kin": (
        swap("class Twice(View)", "class Twice", VIEW),
        ["Twice has no method queries(self, x)", "inherit it from engine.api.View"],
    ),
}


@pytest.mark.parametrize("text, said", FAULTS.values(), ids=FAULTS)
def test_an_ill_made_plugin_is_refused_at_load(text, said, tmp_path):
    found, warning = load_broken(plugin(tmp_path / "folder", "stranger.py", text))
    for part in ["plugin 'stranger' from ", "stranger.py was not loaded: ", *said]:
        assert part in warning
    for kind, name in (("solver", "leaky"), ("solver", "own"), ("view", "twice")):
        assert name not in found.names(kind)


@pytest.mark.parametrize("text", [LEAKY, RULE, GENERATOR, VIEW])
def test_what_the_faults_were_changes_of_is_sound(text, tmp_path):
    assert registry.load(plugin(tmp_path / "folder", "stranger.py", text)).broken == []


@pytest.mark.parametrize(
    "name", ["a/b", "", "..", "k with space", "zarr.json", "κ", "Delta", "_x", "9x", "a-b", "a\n"]
)
@pytest.mark.parametrize("base", [LEAKY, GENERATOR, VIEW], ids=["solver", "generator", "view"])
def test_names_that_a_store_could_not_hold_are_refused(name, base, tmp_path):
    text = base.replace('return {"', f"return {{{name!r}: None, " + '"', 1)
    _, warning = load_broken(plugin(tmp_path / "folder", "stranger.py", text))
    assert f"{name!r} cannot be a name; use lower-case letters, digits and underscores" in warning


def test_a_name_must_be_text(tmp_path):
    text = swap('{"leaky": Leaky}', "{7: Leaky}")
    _, warning = load_broken(plugin(tmp_path / "folder", "stranger.py", text))
    assert "engine_solvers: 7 cannot be a name" in warning


def test_half_done_registration_is_rolled_back(tmp_path):
    half = HEAD + (
        "@hookimpl\ndef engine_solvers():\n    return {'leaky': Leaky, 'second': Leaky}\n\n"
        "@hookimpl\ndef engine_views():\n    return {'a/b': Leaky}\n"
    )
    folder = plugin(tmp_path / "folder", "a_half.py", half)
    plugin(folder, "b_whole.py", LEAKY)
    found, warning = load_broken(folder)
    assert "a_half" in warning
    assert found.get("solver", "leaky").source == str(folder / "b_whole.py")
    assert "second" not in found.names("solver")
    assert found.ambiguous() == []


def test_one_misspelt_hook_is_not_held_against_the_next_plugin(tmp_path):
    folder = plugin(tmp_path / "folder", "a.py", MISSPELT)
    plugin(folder, "b.py", swap("def engine_solvers()", "def engine_solvers(x)"))
    plugin(folder, "c.py", LEAKY)
    with pytest.warns(PluginWarning) as caught:
        found = registry.load(folder)
    assert [b.name for b in found.broken] == ["a", "b"]
    assert len(caught) == 2
    assert "leaky" in found.names("solver")


# ------------------------------------------------------------------------------ twice the name


def test_two_plugins_of_one_name_are_both_named_and_neither_is_used(install, tmp_path):
    install("first-dist", LEAKY, folder="one")
    install("second-dist", LEAKY, folder="two")
    folder = plugin(tmp_path / "folder", "third.py", LEAKY)
    two = registry.load()
    with pytest.raises(InputError) as error:
        two.get("solver", "leaky")
    assert "2 solvers are named 'leaky'" in str(error.value)
    assert "first-dist 2.5" in str(error.value) and "second-dist 2.5" in str(error.value)
    assert "leaky" not in two.names("solver")
    assert {i.source for i in two.ambiguous()} == {"first-dist 2.5", "second-dist 2.5"}
    assert two.get("solver", "rls").name == "rls"
    with pytest.raises(InputError, match="3 solvers are named 'leaky'") as error:
        registry.load(folder).get("solver", "leaky")
    assert str(folder / "third.py") in str(error.value)


def test_a_stranger_cannot_take_a_built_in_name(tmp_path):
    text = swap('"leaky"', '"delta"')
    folder = plugin(tmp_path / "folder", "mine.py", text)
    with pytest.raises(InputError) as error:
        registry.load(folder).get("solver", "delta")
    assert f"ttr-engine {version('ttr-engine')}" in str(error.value)
    assert str(folder / "mine.py") in str(error.value)


def test_names_of_different_kinds_do_not_meet(tmp_path):
    folder = plugin(tmp_path / "folder", "mine.py", VIEW.replace('"twice"', '"delta"'))
    found = registry.load(folder)
    assert found.get("view", "delta").source == str(folder / "mine.py")
    assert found.get("solver", "delta").source.startswith("ttr-engine ")


def test_a_distribution_that_is_seen_twice_is_one(install, tmp_path, monkeypatch):
    site = install("strange-dist", LEAKY)
    (tmp_path / "lib64").symlink_to(site, target_is_directory=True)
    monkeypatch.syspath_prepend(str(tmp_path / "lib64"))
    monkeypatch.syspath_prepend(str(site))
    found = registry.load()
    assert found.broken == [] and found.ambiguous() == []
    assert found.get("solver", "leaky").source == "strange-dist 2.5"


def test_of_two_copies_of_a_distribution_the_first_on_the_path_counts(install):
    install("strange-dist", swap("S <- keep S", "S <- older S"), folder="old")
    install("Strange_Dist", LEAKY, folder="new")
    found = registry.load()
    assert found.broken == [] and found.ambiguous() == []
    assert found.get("solver", "leaky").rule.startswith("S <- keep S")


def test_a_module_with_two_entry_points_is_one_plugin(install):
    site = install("strange-dist", LEAKY)
    points = site / "strange-dist-2.5.dist-info" / "entry_points.txt"
    line = points.read_text().splitlines()[1]
    points.write_text(f"[engine.plugins]\n{line}\n{line.replace('stranger =', 'again =')}\n")
    found = registry.load()
    assert found.broken == [] and found.ambiguous() == []
    assert "leaky" in found.names("solver")


@pytest.mark.parametrize("hashable", [True, False])
def test_an_instance_with_hooks_is_a_plugin_too(hashable, install):
    text = HEAD + (
        "class Hooks:\n"
        f"    __hash__ = {'object.__hash__' if hashable else None}\n"
        "    @hookimpl\n    def engine_solvers(self):\n        return {'leaky': Leaky}\n\n"
        "hooks = Hooks()\n"
    )
    install("strange-dist", text, value="{module}:hooks")
    found = registry.load()
    assert found.broken == []
    assert found.get("solver", "leaky").source == "strange-dist 2.5"


# ----------------------------------------------------------------------------- folders of files


def test_a_folder_gives_its_python_files_and_no_others(tmp_path):
    folder = plugin(tmp_path / "my plugins", "mine.py", LEAKY)
    plugin(folder, "_draft.py", "1 / 0")
    plugin(folder, "notes.txt", "not Python")
    (folder / "deeper").mkdir()
    plugin(folder / "deeper", "below.py", "1 / 0")
    found = registry.load(folder)
    assert found.broken == []
    assert found.get("solver", "leaky").source == str(folder / "mine.py")
    assert found.get("solver", "leaky").rule == "S <- keep S + k v^T; reads scale S^T q."


@pytest.mark.parametrize("what", ["missing", "file"])
def test_a_folder_that_is_none(what, tmp_path, monkeypatch):
    path = tmp_path / what
    if what == "file":
        path.write_text("")
    with pytest.raises(InputError, match=f"{what}' is not a folder"):
        registry.load(path)
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(path))
    with pytest.raises(InputError) as error:
        engine.run({"stream": {"generator": "random", "steps": 1}, "solvers": {"rls": {}}})
    assert str(error.value) == f"plugins folder {str(path)!r} is not a folder"


def test_the_environment_names_the_folder_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(plugin(tmp_path / "one", "mine.py", LEAKY)))
    assert engine.solver("leaky", scale=2.0).scale == 2.0
    assert registry.default() is registry.default()
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", "")
    with pytest.raises(InputError, match="no solver is named 'leaky'; Known: "):
        engine.solver("leaky")


def test_the_folder_s_modules_pickle(tmp_path, monkeypatch):
    import pickle

    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(plugin(tmp_path / "pk", "mine.py", LEAKY)))
    made = engine.solver("leaky", scale=3.0)
    assert pickle.loads(pickle.dumps(made)) == made


# ---------------------------------------------------------------------------------- the listing


def listed(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["engine", "plugins", "list", *args])
    # The command line tells a broken plugin as a warning of its own form.
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with warnings.catch_warnings(), pytest.raises(SystemExit) as stop:
        warnings.simplefilter("always")
        cli.main()
    assert not stop.value.code
    return capsys.readouterr()


def test_plugins_list_shows_everything_with_the_broken_ones(monkeypatch, capsys, tmp_path):
    folder = plugin(tmp_path / "shown", "mine.py", LEAKY)
    plugin(folder, "kaputt.py", "import no_such_library_anywhere")
    plugin(folder, "other.py", swap('"leaky"', '"rls"'))
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", "unused: --plugins-dir replaces it")
    out, err = listed(monkeypatch, capsys, "--plugins-dir", str(folder))
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert lines["name"].split() == ["name", "kind", "source", "rule"]
    file = str(folder / "mine.py")
    rule = "S <- keep S + k v^T; reads scale S^T q."
    assert lines["leaky"].split() == f"leaky solver {file} {rule}".split()
    assert "S <- S + beta k (v - S^T k)^T" in lines["delta"]
    assert "generator" in lines["random"] and "view" in lines["unit"]
    assert "NOT LOADED: ModuleNotFoundError: No module named 'no_such_lib" in lines["kaputt"]
    assert str(folder / "kaputt.py") in lines["kaputt"]
    assert "NOT USABLE: another plugin has this name" in lines["rls"]
    assert err.startswith("warning: plugin 'kaputt' from ")
    assert "PluginWarning" not in err and err.count("\n") == 1

    out, _ = listed(monkeypatch, capsys, "--json", "--plugins-dir", str(folder))
    rows = json.loads(out)
    assert all(set(row) == {"name", "kind", "source", "rule"} for row in rows)
    assert [r["source"] for r in rows if r["name"] == "rls"] == [
        f"ttr-engine {version('ttr-engine')}", str(folder / "other.py"),
    ]  # fmt: skip
    assert len(rows) > 15


# ------------------------------------------------------ a stranger's solver, in a real scenario


def wheel(folder, dist, files, points):
    """Write a wheel: what a stranger would publish."""
    path = folder / f"{dist}-2.5-py3-none-any.whl"
    info = f"{dist}-2.5.dist-info"
    meta = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {dist}\nVersion: 2.5\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    files = {**files, **meta}
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


SCENARIO = """
[stream]
generator = "random"
steps = 30
key = 4
value = 3

[solvers.packaged]
solver = "leaky"
scale = 2.0
keep = 0.75

[solvers.own]
beta = 0.5
view = "twice"
"""


def test_strangers_run_in_a_scenario_from_a_package_and_from_a_file(tmp_path):
    site, folder = tmp_path / "site", tmp_path / "folder"
    built = wheel(
        tmp_path, "leaky_memory", {"leaky_memory/__init__.py": "", "leaky_memory/solver.py": LEAKY},
        "[engine.plugins]\nleaky = leaky_memory.solver\n",
    )  # fmt: skip
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--disable-pip-version-check", "--no-compile", "--target", str(site), str(built)]
    subprocess.run(pip, check=True, cwd=tmp_path)
    plugin(folder, "mine.py", RULE)
    plugin(folder, "view.py", VIEW)
    (tmp_path / "s.toml").write_text(SCENARIO)
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("engine")), "run", "s.toml", "-o", "r.zarr"],
        env={**os.environ, "PYTHONPATH": str(site), "ENGINE_PLUGINS_DIR": str(folder)},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    run = engine.open(tmp_path / "r.zarr")
    keys, values = (run["stream"][n].values[:, 0] for n in ("keys", "values"))
    S, fits = np.zeros((4, 3)), []
    for k, v in zip(keys, values, strict=True):
        S = 0.75 * S + np.outer(k, v)
        fits.append(S)
    packaged = run["solvers/packaged"]
    np.testing.assert_allclose(packaged["S"].values[:, 0], fits, rtol=1e-14, atol=1e-15)
    output = 2.0 * np.einsum("tk,tkv->tv", keys, np.array(fits))
    np.testing.assert_allclose(packaged["output"].values[:, 0], output, rtol=1e-13, atol=1e-15)
    assert packaged.attrs["plugin"] == "leaky_memory 2.5"
    assert packaged.attrs["hyperparameters"] == {"scale": 2.0}
    own = run["solvers/own"]
    hebbian = np.cumsum(0.5 * np.einsum("tk,tv->tkv", 2 * keys, values), axis=0)
    np.testing.assert_allclose(own["S"].values[:, 0], hebbian, rtol=1e-13, atol=1e-14)
    assert own.attrs["plugin"] == str(folder / "mine.py")

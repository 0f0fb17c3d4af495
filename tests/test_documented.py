"""What is not documented does not exist: hooks, commands, the API, and what a store holds.

Scenario keys are asked for in test_schema.py, measures in measure/test_documented.py.
"""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import typer.main
import xarray as xr

import engine
from engine import api, live, liveframes, measure, push, registry
from engine.api import Space
from engine.cli import app

pytestmark = pytest.mark.usefixtures("no_folder")

ROOT = Path(__file__).parents[1]
README, CONTRIBUTING = (ROOT.joinpath(n).read_text() for n in ("README.md", "CONTRIBUTING.md"))
SOLVERS = registry.default().names("solver")
GENERATORS = registry.default().names("generator")


def words(text):
    return set(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", text))


def code(text):
    """Return the words of a text that are marked as code: in backticks or in a block."""
    blocks = re.findall(r"```.*?\n(.*?)```", text, re.S)
    rest = re.sub(r"```.*?```", "", text, flags=re.S)
    return {word for part in blocks + re.findall(r"`([^`]+)`", rest) for word in words(part)}


def doc(thing):
    return inspect.getdoc(thing) or ""


def silent(names, where):
    return sorted(set(names) - where)


# --------------------------------------------------------------------------------------- hooks


def test_every_hook_says_what_it_returns_and_is_named_for_plugin_authors():
    hooks = {n: x for n, x in vars(api).items() if hasattr(x, "engine_spec")}
    assert set(hooks) == set(registry.KINDS.values())
    assert [n for n, x in hooks.items() if not doc(x).startswith("Return ")] == []
    assert silent(hooks, code(CONTRIBUTING)) == []


def test_every_name_of_the_api_for_plugins_is_described():
    tree = ast.parse(inspect.getsource(api)).body
    told = {  # a constant's text is the string below it
        ast.unparse(a.targets[0])
        for a, b in zip(tree, tree[1:], strict=False)
        if isinstance(a, ast.Assign) and isinstance(b, ast.Expr)
        and isinstance(b.value, ast.Constant) and isinstance(b.value.value, str)
    }  # fmt: skip
    told |= {n for n in api.__all__ if inspect.isclass(x := getattr(api, n)) and doc(x)}
    told |= {n for n in api.__all__ if inspect.isfunction(x := getattr(api, n)) and doc(x)}
    assert silent(api.__all__, told) == ["hookimpl", "hookspec"], "pluggy describes those two"


# -------------------------------------------------------------------------------- command line


def commands(command, path):
    if hasattr(command, "commands"):
        for name, sub in command.commands.items():
            yield from commands(sub, f"{path} {name}")
    else:
        yield path, command


COMMANDS = dict(commands(typer.main.get_command(app), "engine"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_its_arguments_and_its_options_are_described(name):
    command = COMMANDS[name]
    assert command.help and command.help.endswith(".")
    assert [p.opts for p in command.params if not p.help] == [], "no help text"
    assert re.search(rf"[`(\n]{name}\b", README), f"README shows no call of {name!r}"


def test_every_variable_of_the_environment_is_named():
    text = "".join(p.read_text() for p in ROOT.joinpath("engine").rglob("*.py"))
    names = set(re.findall(r'"(ENGINE_[A-Z_]+)"', text))
    assert names >= {"ENGINE_PLUGINS_DIR"}
    assert silent(names, words(README)) == []


# --------------------------------------------------------------------------------- the package

FUNCTIONS = {n: x for n in engine.__all__ if inspect.isroutine(x := getattr(engine, n))}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_takes_and_returns(name):
    function = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters
    assert doc(function).partition("\n")[0].endswith(".")
    head, _, rest = doc(function).partition("Parameters\n----------\n")
    assert bool(rest) == bool(parameters)
    assert silent(parameters, words(rest)) == []
    assert not parameters or "\nReturns\n-------\n" in rest
    assert re.search(rf"\bengine\.{name}\b", README), "README does not name it"


def test_every_error_and_warning_says_when_it_comes():
    errors = {n for n in engine.__all__ if n not in FUNCTIONS}
    assert [n for n in errors if not doc(getattr(engine, n))] == []
    assert silent(errors, code(README) | code(CONTRIBUTING)) == []


@pytest.mark.parametrize(
    "cls", [push.Memory, push.Snapshot, live.Stream, liveframes.LiveFrame, liveframes.Measures]
)
def test_every_public_method_and_attribute_says_what_it_does(cls):
    own = {
        n: x for n, x in vars(cls).items()
        if not n.startswith("_") and (inspect.isfunction(x) or isinstance(x, property))
    }  # fmt: skip
    assert [n for n, x in own.items() if not doc(x)] == []
    fields = set(getattr(cls, "__dataclass_fields__", {}))
    fields = {n for n in fields if not n.startswith("_")}
    assert silent(fields, words(doc(cls))) == []
    for name, x in own.items():
        if inspect.isfunction(x):
            taken = [p for p in inspect.signature(x).parameters if p != "self"]
            assert silent(taken, words(doc(x))) == [], name


def test_every_topic_of_measures_is_named():
    topics = {p.stem for p in Path(measure.__file__).parent.glob("[a-z]*") if p.name != "lift.py"}
    assert {"laws", "capacity", "tracking"} <= topics
    assert silent(topics - {"decoding", "runs"}, code(README)) == []


# ------------------------------------------------------------------------------------- a store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a run that has every group of variables that the engine writes."""
    table = {
        "trials": 2, "record": {"keyframes": 4},
        "stream": {"generator": "random", "steps": 8, "pairs": 3},
        "solvers": {"delta": {}, "softmax_attention": {}, "rls": {"gamma": 0.9}},
        "probes": {"end": {}, "often": {"every": 4, "ask": "codebook"}},
    }  # fmt: skip
    path = tmp_path_factory.mktemp("store") / "r.zarr"
    engine.run(table, path)
    return path


def test_what_a_run_and_its_groups_say_of_themselves_is_described(store):
    attrs = {name for group in engine.open(store).subtree for name in group.attrs}
    assert attrs >= {"committed", "hyperparameters"}
    assert silent(attrs, code(README)) == []


def test_every_group_and_variable_of_the_engine_s_own_is_described(store):
    with xr.open_datatree(store, engine="zarr") as stored:
        groups = {p.path: set(map(str, p.variables)) for p in stored.subtree}
    for p in engine.open(store).subtree:  # with what is recomputed
        groups.setdefault(p.path, set()).update(map(str, p.variables))
    states = {name for info in SOLVERS.values() for name in state(info.cls)._fields}
    labels = {"delta", "softmax_attention", "rls", "end", "often"}
    parts = {part for path in groups for part in path.split("/") if part} - labels
    assert {"stream", "solvers", "probes", "keyframes"} <= parts
    assert silent(parts, code(README)) == []
    own = {name for path, names in groups.items() if path != "/stream" for name in names}
    assert {"prediction", "diverged_at", "read", "rows", "keyframe_step"} <= own
    assert silent(own - states - {"gamma", "beta"}, code(README)) == []


def state(cls):
    space = Space({"key": 4, "value": 4}, (1,), np, np.dtype("float64"))
    return type(cls().init(space))


@pytest.mark.parametrize("name", SOLVERS)
def test_every_variable_of_a_state_is_named_in_its_docstring(name):
    kind = state(SOLVERS[name].cls)
    assert silent(kind._fields, words(doc(kind)) | words(doc(SOLVERS[name].cls))) == []


@pytest.mark.parametrize("name", GENERATORS)
def test_every_variable_of_a_stream_is_named(name, store):
    options = {"path": str(store)} if name == "stored" else {}
    run = engine.run({
        "stream": {"generator": name, "steps": 8, **options}, "solvers": {"delta": {}},
    })  # fmt: skip
    found = set(map(str, run["stream"].to_dataset().variables))
    told = code(README) | code(doc(GENERATORS[name].cls)) | {"step", "trial"}
    if name == "stored":
        told |= code(doc(GENERATORS["random"].cls))
    assert {"keys", "values"} <= found
    assert silent(found, told) == []

"""`engine show --schema`: what an editor is told agrees with what the engine takes."""

import json
import tomllib

import pytest

import engine
from engine import building, experiment, registry, scenario, schema

from .registry_cases import LEAKY, plugin
from .scenario_cases import GOOD, beta, more, stream, top

pytestmark = pytest.mark.usefixtures("no_folder")


@pytest.fixture(scope="module")
def whole():
    return schema.scenario()


@pytest.fixture(scope="module")
def validator(whole):
    return pytest.importorskip("jsonschema").Draft202012Validator(whole)


def subschemas(node, path=""):
    """Yield every schema below one with its path."""
    if isinstance(node, list):
        for i, x in enumerate(node):
            yield from subschemas(x, f"{path}[{i}]")
    if isinstance(node, dict):
        yield path, node
        for key, x in node.items():
            if key in ("properties", "$defs"):
                for name, y in x.items():
                    yield from subschemas(y, f"{path}/{key}/{name}")
            elif key not in ("default", "const", "enum", "required"):
                yield from subschemas(x, f"{path}/{key}")


def test_it_is_a_json_schema(whole, validator):
    validator.check_schema(whole)
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole


def test_every_reference_leads_somewhere_and_every_definition_is_used(whole):
    found = {node["$ref"] for _, node in subschemas(whole) if "$ref" in node}
    assert found == {f"#/$defs/{name}" for name in whole["$defs"]}


@pytest.mark.parametrize("name", scenario.shipped())
def test_a_shipped_scenario_is_valid(name, validator):
    table = tomllib.loads(scenario.shipped()[name].read_text())
    assert [e.message for e in validator.iter_errors(table)] == []


SOUND = {
    "good": GOOD,
    "keyframes": top("record = { keyframes = 4 }"),
    "seeds": top("[seeds]\nsealed = 3"),
    "a schedule": beta('{ schedule = "cosine", start = 1.0, stop = 0.1, over = 10 }'),
    "a gate": beta('{ gate = "priority", low = 0.02, high = 0.2 }'),
    "trials": top("trials = 2").replace("beta = 0.5", "beta = { trials = [0.1, 0.2] }"),
    "a label of one's own": stream("[solvers.delta]", '[solvers.mine]\nsolver = "delta"'),
    "another solver's name": stream("beta = 0.5", 'solver = "rls"\ngamma = 0.9'),
    "an axis": more('[solvers.kda]\ngamma = [1.0, 0.9, 0.8, 1.0]\nbeta = 1\n'),
    "a view": stream("beta = 0.5", 'view = "unit"'),
    "a view's options": stream("beta = 0.5", 'view = { view = "taylor", order = 2 }'),
    "probes": more('[probes.p]\nevery = 5\ndecode = "dot"\n[probes.q]\nqueries = [[1, 0, 0, 0]]\n'),
    "tuned": more('[tune.delta]\nbeta = [0.1, 0.2]\nobjective = "error"\n'),
    "tuned by range": more("[tune.delta]\nbeta = { low = 0.1, high = 1.0, count = 3 }\n"),
    "numbers per layer": more("[solvers.ttt_linear]\nminibatch = 2\n[solvers.mesa]\nridge = 1\n"),
}  # fmt: skip


@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_what_the_engine_takes_is_valid(text, validator):
    table = tomllib.loads(text)
    scenario.load(table)
    assert [e.message for e in validator.iter_errors(table)] == []


TYPOS = {
    "top level": top("tile = 'x'"),
    "a generator": stream('"random"', '"randon"'),
    "an option": stream("priority", "priorty"),
    "an option of another generator": stream("priority", "rebindings"),
    "a solver": stream("beta = 0.5", 'solver = "dleta"'),
    "a label": stream("[solvers.delta]", "[solvers.dleta]"),
    "a coefficient": stream("beta", "bta"),
    "a coefficient's form": beta('{ gates = "priority", low = 0.1, high = 0.2 }'),
    "a form's key": beta('{ gate = "priority", lo = 0.1, high = 0.2 }'),
    "a view": stream("beta = 0.5", 'view = "unti"'),
    "a probe's key": more("[probes.p]\nevry = 5\n"),
    "a record": top('record = "evry"'),
    "keyframes": top("record = { keyframe = 4 }"),
    "seeds": top("[seeds]\nseald = 3\nsealed = 2"),
    "a kernel": top('kernel = "lop"'),
    "a report": top('report = "capacty"'),
    "a range": more("[tune.delta]\nbeta = { low = 0.1, hgih = 1.0, count = 3 }\n"),
    "no path": stream('"random"\nsteps = 20\nkey = 4\nvalue = 3\npriority = 0.5', '"stored"'),
    "no generator": stream('generator = "random"\n', ""),
    "no stream": "[solvers.delta]\n",
    "a label that is none": stream("solvers.delta", 'solvers."a/b"'),
    "out of bounds": beta("-1.0"),
    "text for a number": beta('"much"'),
    "a type": stream("key = 4", 'key = "4"'),
}


@pytest.mark.parametrize("text", TYPOS.values(), ids=TYPOS)
def test_a_mistake_is_seen_by_the_schema_as_by_the_engine(text, validator):
    table = tomllib.loads(text)
    with pytest.raises(engine.InputError):
        (engine.tune if "tune" in table else experiment.prepare)(table, {})
    assert not validator.is_valid(table)


def test_a_sweep_may_give_what_is_missing(validator):
    table = tomllib.loads(GOOD)
    del table["stream"]["generator"]
    assert not validator.is_valid(table)
    table["sweep"] = {"stream": {"generator": ["random", "orthonormal"]}}
    assert validator.is_valid(table)
    assert not validator.is_valid({**table, "sweep": []})


def test_every_key_says_what_it_is(whole):
    tables = {"top": whole, **whole["$defs"]}
    silent = [
        f"{table}: {name}"
        for table, made in tables.items()
        for name, key in made.get("properties", {}).items()
        if not key.get("description")
    ]
    assert silent == [], "not in the Parameters section of its class's docstring"


def test_a_plugin_s_defaults_are_its_own(whole):
    for name, info in registry.default().names("solver").items():
        properties = whole["$defs"][f"solver.{name}"]["properties"]
        _, resolved = building.entry(name, {}, whole=False)
        given = {n: key["default"] for n, key in properties.items() if "default" in key}
        assert given == {n: x for n, x in resolved.items() if n in given}, name
        assert info.rule == whole["$defs"][f"solver.{name}"]["description"]


def test_the_command_knows_a_stranger_s_options(call, tmp_path):
    folder = plugin(tmp_path / "folder", "mine.py", LEAKY)
    code, out, _ = call("show", "--schema", "--plugins-dir", folder)
    made = json.loads(out)
    assert code == 0
    leaky = made["$defs"]["solver.leaky"]
    assert leaky["description"] == "S <- keep S + k v^T; reads scale S^T q."
    assert leaky["properties"]["scale"] == {"type": "number", "default": 1.0, "description": ""}
    assert leaky["properties"]["keep"]["anyOf"][0] == {
        "type": "number",
        "minimum": 0.0,
        "maximum": 1.0,
    }


def test_an_option_that_json_has_no_form_for_takes_anything(tmp_path, monkeypatch):
    folder = plugin(tmp_path / "folder", "odd.py", LEAKY.replace("scale: float", "scale: Space"))
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(folder))
    key = schema.scenario()["$defs"]["solver.leaky"]["properties"]["scale"]
    assert key == {"description": "", "default": 1.0}


def test_show_needs_a_run_or_the_schema(call):
    code, _, err = call("show")
    assert code == 2
    assert err == "error: give a run's store, or --schema for the keys of a scenario\n"

"""JSON Schema of scenario files, plugins included: what an editor completes and checks."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from engine import registry, signatures
from engine.backend import BACKENDS
from engine.building import plain
from engine.coefficients import FORMS
from engine.probes import Probe
from engine.registry import PluginInfo
from engine.scenario import LABEL, Keyframes, Table
from engine.sealed import Seeds
from engine.signatures import Declared
from engine.tuning import Range

MODELS: tuple[type[BaseModel], ...] = (Keyframes, Probe, Range, Seeds, *FORMS.values())
TOLD = {
    "generator": "What draws the stream.",
    "steps": "How many steps to draw; default: all that the generator has.",
    "solver": "The rule; default: the label.",
    "view": "What the solver sees keys, values and queries through: a name, or a table with it.",
    "state": "Facts of the stream that state variables begin with, by variable.",
    "objective": 'By what candidates are judged: "error", or the name of a probe (its recall).',
    "sweep": "Several runs: key paths, with a list of values each, whose product is run; several "
    "tables, [[sweep]], follow one another.",
}
"""What is said of the keys that are not a field of any class."""

Schema = dict[str, Any]


class _Toml(GenerateJsonSchema):
    """Pydantic's schema without what TOML has no word for, and without titles that repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def nullable_schema(self, schema: Any) -> Schema:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> Schema:
        made = super().default_schema(schema)
        if made.get("default", 0) is None:
            del made["default"]
        return made


def described(cls: type) -> dict[str, str]:
    """Return what the Parameters section of a docstring says of each name, its bases' included.

    >>> described(Seeds)["sealed"]
    'The seed of `engine run --sealed`, and of nothing else.'
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(vars(base).get("__doc__") or "")
        text = text.partition("Parameters\n----------\n")[2]
        for part in re.split(r"\n(?=\S)", re.split(r"\n\n\S+\n-+\n", text)[0]):
            head, _, body = part.partition("\n")
            for name in head.partition(" : ")[0].split(","):
                found[name.strip()] = " ".join(body.split())
    return found


def scenario() -> Schema:
    """Return the JSON Schema of a scenario file, with the options of every plugin that is loaded.

    It asks for what is missing only where there is no sweep, which may give it.
    """
    kinds = {kind: registry.default().names(kind) for kind in registry.KINDS}
    streams, solvers = kinds["generator"], kinds["solver"]
    schema = _of_model(Table)
    keys = schema["properties"]
    keys["backend"]["enum"] = list(BACKENDS)
    keys["report"]["enum"] = list(kinds["report"])
    keys["stream"] |= {"anyOf": [_ref(f"generator.{n}") for n in streams]}
    named = _ref("solver")
    candidates = {"anyOf": [{"type": "array", "minItems": 1}, _ref("Range")]}
    objective = {"type": "string", "default": "error", "description": TOLD["objective"]}
    tables: dict[str, tuple[Schema, Schema]] = {
        # A label that is a solver's name needs no key "solver".
        "solvers": (named, {n: {"anyOf": [named, _ref(f"solver.{n}")]} for n in solvers}),
        "probes": (_ref("Probe"), {}),
        "tune": (_table({"objective": objective}, candidates), {}),
    }
    for name, (any_label, labels) in tables.items():
        del keys[name]["patternProperties"]
        keys[name] |= {"propertyNames": {"pattern": LABEL}, **_table(labels, any_label)}
    several = {"type": "array", "items": {"type": "object"}, "minItems": 1}
    keys["sweep"] = {"description": TOLD["sweep"], "anyOf": [{"type": "object"}, several]}
    whole = {
        "required": schema.pop("required"),
        "properties": {"stream": {"required": ["generator"], "allOf": _needed(streams)}},
    }
    defs = {model.__name__: _of_model(model) for model in MODELS}
    defs["solver"] = {"required": ["solver"], "anyOf": [_ref(f"solver.{n}") for n in solvers]}
    defs["view"] = {"anyOf": [{"enum": list(kinds["view"])}]}
    defs["view"]["anyOf"] += [_ref(f"view.{n}") for n in kinds["view"]]
    for kind in ("generator", "solver", "view"):
        defs |= {f"{kind}.{name}": _of_plugin(info) for name, info in kinds[kind].items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema, "title": "A scenario of ttr-engine",
        "anyOf": [{"required": ["sweep"]}, whole], "$defs": defs,
    }  # fmt: skip


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _table(properties: Schema, more: Any) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": more}


def _of_model(model: type[BaseModel]) -> Schema:
    """Return the schema of one of the models, its docstring's words beside the keys."""
    made = model.model_json_schema(schema_generator=_Toml)
    made.pop("$defs", None)
    made["description"] = (inspect.getdoc(model) or "").partition("\n\n")[0]
    words = described(model)
    for name, key in made["properties"].items():
        key["description"] = words.get(name, "")
    return made


def _of_plugin(info: PluginInfo) -> Schema:
    """Return the schema of a plugin's table: its name, its options, its coefficients."""
    words, hints = described(info.cls), signatures.hints(info.cls)
    properties: Schema = {info.kind: {"const": info.name, "description": TOLD[info.kind]}}
    if info.kind == "generator":
        properties["steps"] = {"type": "integer", "minimum": 0, "description": TOLD["steps"]}
    if info.kind == "solver":
        properties["view"] = {**_ref("view"), "description": TOLD["view"]}
        begins = _table({}, {"type": "string"})
        properties["state"] = {**begins, "description": TOLD["state"]}
    for name, field in signatures.options(info.cls).items():
        properties[name] = _of_hint(hints[name]) | {"description": words.get(name, "")}
        if field.default not in (dataclasses.MISSING, None):
            properties[name]["default"] = plain(field.default)
    if info.kind == "solver":
        for name, declared in signatures.coefficients(info.cls).items():
            properties[name] = _of_coefficient(declared, words.get(name, ""))
    return {**_table(properties, False), "description": info.rule}


def _of_hint(hint: Any) -> Schema:
    """Return the schema of an option's type; of a type that JSON has no form for, any value."""
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
        return dict(adapter.json_schema(schema_generator=_Toml))
    except PydanticUserError:
        return {}


def _of_coefficient(declared: Declared, words: str) -> Schema:
    spec = declared.spec
    low = "exclusiveMinimum" if spec.above else "minimum"
    bounds = {n: x for n, x in ((low, spec.low), ("maximum", spec.high)) if x is not None}
    number = {"type": "number", **bounds}
    forms = [number, *(_ref(form.__name__) for form in FORMS.values())]
    if spec.axis:
        forms.append({"type": "array", "items": number})
    along = f", or one for every channel of the {spec.axis}" if spec.axis else ""
    text = f"{words} A coefficient: one number per step{along}, {spec.bounds}.".strip()
    made = {"anyOf": forms, "description": text}
    return made if declared.default is None else {**made, "default": declared.default}


def _needed(infos: Mapping[str, PluginInfo]) -> list[Schema]:
    """Return conditions: a plugin that is named is given the options that have no default."""
    found = []
    for name, info in infos.items():
        options = signatures.options(info.cls).items()
        if needed := [n for n, field in options if signatures.required(field)]:
            when = {"properties": {info.kind: {"const": name}}, "required": [info.kind]}
            found.append({"if": when, "then": {"required": needed}})
    return found

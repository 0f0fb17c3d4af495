"""Scenarios: a TOML file checked, completed and turned into a stream and solvers."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine import coefficients, factories, registry, signatures
from engine.api import Generator, Solver, View
from engine.coefficients import Binding
from engine.errors import InputError, nearest

Label = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]


class Probe(BaseModel):
    """``[probes.<name>]``: read every key written so far, at the end of the run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ask: Literal["keys"] = "keys"
    at: Literal["end"] = "end"


class Table(BaseModel):
    """The top level of a scenario file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    trials: Annotated[int, Field(gt=0)] | None = None
    dtype: Literal["float32", "float64"] = "float64"
    backend: str = "numpy"
    record: Literal["every", "final"] = "every"
    stream: dict[str, Any]
    solvers: Annotated[dict[Label, dict[str, Any]], Field(min_length=1)]
    probes: dict[Label, Probe] = {}


@dataclass(frozen=True)
class Entry:
    """One solver of a scenario: the rule, what its coefficients are bound to, and its view."""

    name: str
    solver: Solver
    bindings: Mapping[str, Binding]
    view: View | None = None
    source: str = ""


@dataclass(frozen=True)
class Scenario:
    """A checked scenario; `resolved` is its complete form, every default filled in."""

    name: str
    text: str
    table: Table
    generator: Generator
    steps: int | None
    entries: Mapping[str, Entry]
    resolved: dict[str, Any] = field(repr=False)


def shipped() -> dict[str, Path]:
    """Return the scenarios that ship with the engine, by name."""
    folder = Path(str(files("engine.scenarios")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(
    scenario: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> Scenario:
    """Return a scenario from a file, a shipped name, or a table.

    Parameters
    ----------
    scenario : str, Path or mapping
        Path of a TOML file, name of a shipped scenario, or what such a file would hold.
    overrides : mapping of str to value, optional
        Dotted key paths and the values to put there, such as ``{"solvers.delta.beta": 0.5}``.

    Raises
    ------
    InputError
        Naming the file, the key path, the value, and what would be right.
    """
    if isinstance(scenario, Mapping):
        name, where, text, table, folder = (
            "scenario",
            "scenario",
            "",
            deepcopy(dict(scenario)),
            Path(),
        )
    else:
        path = _find(scenario)
        name, where, folder = path.stem, str(path), path.parent
        text = path.read_text(encoding="utf-8")
        with _at(where):
            try:
                table = tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                raise InputError(f"not TOML: {error}") from error
    for key, value in (overrides or {}).items():
        with _at(f"override {key} = {value!r}"):
            _override(table, key, value)
    with _at(where):
        return _resolve(name, text, table, folder)


def _find(scenario: str | Path) -> Path:
    path = Path(scenario)
    if path.is_file():
        return path
    known = shipped()
    if str(scenario) in known:
        return known[str(scenario)]
    if path.suffix == ".toml" or len(path.parts) > 1:
        raise InputError(f"scenario file {str(path)!r} does not exist")
    raise InputError(f"no scenario is named {str(scenario)!r}; {nearest(str(scenario), known)}")


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Say where an error arose."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _override(table: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for part in parents:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"{part!r} is a value, not a table")
    table[last] = value


def _resolve(name: str, text: str, raw: dict[str, Any], folder: Path) -> Scenario:
    try:
        table = Table.model_validate(raw)
    except ValidationError as error:
        raise InputError("\n  ".join(_explain(e) for e in error.errors())) from error
    with _at("stream"):
        generator, steps, stream = _stream(table.stream, folder)
    entries, solvers = {}, {}
    for label, options in table.solvers.items():
        with _at(f"solvers.{label}"):
            entries[label], solvers[label] = _entry(label, options)
    plain = table.model_dump(exclude={"stream", "solvers"})
    resolved = {**plain, "stream": stream, "solvers": solvers}
    return Scenario(name, text, table, generator, steps, entries, resolved)


def _explain(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"] if part != "[key]")
    value = error["input"]
    if error["type"] == "extra_forbidden":
        known = Probe.model_fields if path.startswith("probes.") else Table.model_fields
        return f"{path} = {value!r}: no such key; {nearest(path.rpartition('.')[2], known)}"
    if error["type"] == "missing":
        return f"{path}: missing; a scenario needs [stream] and [solvers.<label>]"
    if error["type"] == "string_pattern_mismatch":
        return (
            f"{path}: {value!r} cannot be a label; use letters, digits, '_' and '-', a letter first"
        )
    return f"{path} = {value!r}: {error['msg']}"


def _take(options: dict[str, Any], key: str, kind: str, default: str | None = None) -> str:
    value = options.pop(key, default)
    if value is None:
        raise InputError(f"{key}: missing; {nearest('', registry.default().names(kind))}")
    with _at(f"{key} = {value!r}"):
        if not isinstance(value, str):
            raise InputError(f"must be a name; {nearest('', registry.default().names(kind))}")
        registry.default().get(kind, value)
    return value


def _build(kind: str, name: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a plugin and all its options; an option that is wrong is named with its value."""
    info = registry.default().get(kind, name)
    known = signatures.options(info.cls)
    for option, value in options.items():
        with _at(f"{option} = {value!r}"):
            if option not in known:
                raise InputError(f"{name} takes no {option!r}; {nearest(option, known)}")
    plugin = factories.build(kind, name, options)
    return plugin, {n: _plain(getattr(plugin, n)) for n in known}


def _plain(value: Any) -> Any:
    """Return an option as JSON can hold it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(x) for k, x in value.items()}
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _stream(options: dict[str, Any], folder: Path) -> tuple[Generator, int | None, dict[str, Any]]:
    options = dict(options)
    name = _take(options, "generator", "generator")
    steps = options.pop("steps", None)
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 0):
        raise InputError(f"steps = {steps!r}: must be a whole number, 0 or more")
    hints = signatures.hints(registry.default().get("generator", name).cls)
    for option, value in options.items():
        if hints.get(option) is Path and isinstance(value, str):
            # A path in a scenario is relative to the scenario; one given by hand, to where one is.
            beside = folder / value
            options[option] = str(beside if beside.exists() else Path(value))
    generator, resolved = _build("generator", name, options)
    return generator, steps, {"generator": name, "steps": steps, **resolved}


def _entry(label: str, options: dict[str, Any]) -> tuple[Entry, dict[str, Any]]:
    options = dict(options)
    name = _take(options, "solver", "solver", default=label)
    info = registry.default().get("solver", name)
    view, resolved_view = _view(options.pop("view", None))
    declared, hyper = signatures.coefficients(info.cls), signatures.options(info.cls)
    for option, value in options.items():
        with _at(f"{option} = {value!r}"):
            if option not in declared and option not in hyper:
                known = [*declared, *hyper, "solver", "view"]
                raise InputError(f"{name} takes no {option!r}; {nearest(option, known)}")
    solver, resolved = _build("solver", name, {n: x for n, x in options.items() if n in hyper})
    bindings = {}
    for coefficient, d in declared.items():
        value = options.get(coefficient, d.default)
        if value is None and d.required:
            raise InputError(f"{coefficient}: missing; {name} needs it at every step")
        if value is None:
            continue
        with _at(f"{coefficient} = {value!r}"):
            bindings[coefficient] = coefficients.parse(coefficient, d.spec, value)
        resolved[coefficient] = _plain(value)
    resolved = {"solver": name, "view": resolved_view, **resolved}
    return Entry(name, solver, bindings, view, info.source), resolved


def _view(given: Any) -> tuple[View | None, Any]:
    """Return the view that a name, or a table with a name under "view", asks for."""
    if given is None:
        return None, None
    options = dict(given) if isinstance(given, Mapping) else {"view": given}
    name = _take(options, "view", "view")
    with _at("view"):
        made, resolved = _build("view", name, options)
    return made, {"view": name, **resolved}

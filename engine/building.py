"""Tables of a scenario made into plugins: the generator, solvers with their coefficients, views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine import coefficients, factories, registry, signatures
from engine.api import Generator, Solver, View
from engine.coefficients import Binding
from engine.errors import InputError, at, nearest


@dataclass(frozen=True)
class Entry:
    """One solver of a scenario: the rule, what its coefficients are bound to, and its view.

    `state` names the facts of the stream that it begins with, by state variable.
    """

    name: str
    solver: Solver
    bindings: Mapping[str, Binding]
    view: View | None = None
    source: str = ""
    state: Mapping[str, str] = field(default_factory=dict)


def stream(options: dict[str, Any], folder: Path) -> tuple[Generator, int | None, dict[str, Any]]:
    """Return a generator, the steps asked for, and all of its options."""
    options = dict(options)
    name = _take(options, "stream", "generator", "generator")
    steps = options.pop("steps", None)
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 0):
        raise InputError(f"stream.steps = {steps!r}: must be a whole number, 0 or more")
    hints = signatures.hints(registry.default().get("generator", name).cls)
    for option, value in options.items():
        if isinstance(value, str) and signatures.takes(hints.get(option), Path):
            # A path in a scenario is relative to the scenario; one given by hand, to where one is.
            beside = folder / value
            options[option] = str(beside if beside.exists() else Path(value))
    generator, resolved = _build("generator", name, "stream", options)
    return generator, steps, {"generator": name, "steps": steps, **resolved}


def entry(
    label: str, options: dict[str, Any], whole: bool = True, others: Iterable[str] = ()
) -> tuple[Entry, dict[str, Any]]:
    """Return a solver and its options; unless `whole`, a coefficient may be given later."""
    options, where = dict(options), f"solvers.{label}"
    name = _take(options, where, "solver", "solver", label, others)
    info = registry.default().get("solver", name)
    view, resolved_view = _view(where, options.pop("view", None))
    state = _state(where, options.pop("state", {}))
    declared, hyper = signatures.coefficients(info.cls), signatures.options(info.cls)
    for option, value in options.items():
        if option not in declared and option not in hyper:
            advice = nearest(option, [*declared, *hyper, *registry.OWN["solver"]])
            text = f"{where}.{option} = {value!r}: {name} takes no {option!r}; {advice}"
            raise InputError(f"{text}\n  {name} takes {signatures.told(info.cls)}")
    given = {n: x for n, x in options.items() if n in hyper}
    solver, resolved = _build("solver", name, where, given)
    bindings = {}
    for coefficient, d in declared.items():
        value = options.get(coefficient)
        value = d.default if value is None else value
        if value is None and d.required and whole:
            raise InputError(
                f"{where}.{coefficient}: missing; {name} needs it at every step"
                f"\n  {name} takes {signatures.told(info.cls)}"
            )
        if value is None:
            continue
        with at(f"{where}.{coefficient} = {value!r}"):
            bindings[coefficient] = coefficients.parse(
                coefficient, d.spec, value, "read" in d.methods
            )
        resolved[coefficient] = plain(value)
    begins = {"state": state} if state else {}
    resolved = {"solver": name, "view": resolved_view, **begins, **resolved}
    return Entry(name, solver, bindings, view, info.source, state), resolved


def _state(where: str, given: Any) -> dict[str, str]:
    """Return the facts of the stream that a solver begins with, by state variable."""
    if not isinstance(given, Mapping) or not all(isinstance(x, str) for x in given.values()):
        raise InputError(
            f"{where}.state = {given!r}: must be a table of state variables and the facts of the "
            'stream that they begin with, such as { S = "S_start" }'
        )
    return dict(given)


def _view(where: str, given: Any) -> tuple[View | None, Any]:
    """Return the view that a name, or a table with a name under "view", asks for."""
    if given is None:
        return None, None
    if isinstance(given, Mapping):
        options, where = dict(given), f"{where}.view"
    else:
        options = {"view": given}
    name = _take(options, where, "view", "view")
    made, resolved = _build("view", name, where, options)
    return made, {"view": name, **resolved}


def _take(
    options: dict[str, Any], where: str, key: str, kind: str, default: str | None = None,
    others: Iterable[str] = (),
) -> str:  # fmt: skip
    """Remove a plugin's name from the options of a table and return it."""
    names = registry.default().names(kind)
    if key in options:
        path = f"{where}.{key} = {options[key]!r}"
    elif default is not None:
        path = f"{where} (without a key {key!r}, the label is the name)"
        if close := [x for x in others if nearest(default, [x]).startswith("did you mean")]:
            path += f" (is the label {close[0]!r} meant?)" if default not in names else ""
    else:
        raise InputError(f"{where}.{key}: missing; {nearest('', names)}")
    name = options.pop(key, default)
    with at(path):
        if not isinstance(name, str):
            raise InputError(f"must be the name of a {kind}; {nearest('', names)}")
        registry.default().get(kind, name)
    return name


def _build(kind: str, name: str, where: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a plugin and all its options; an option that is wrong is named with its value."""
    info = registry.default().get(kind, name)
    known = signatures.options(info.cls)
    for option, value in options.items():
        if option not in known:
            advice = nearest(option, [*known, *registry.OWN[kind]])
            text = f"{where}.{option} = {value!r}: {name} takes no {option!r}; {advice}"
            raise InputError(f"{text}\n  {name} takes {signatures.told(info.cls)}")
    try:
        plugin = factories.build(kind, name, options)
    except InputError as error:
        text = str(error).removeprefix(f"{name}: ")
        of_option = text.partition(" = ")[0] in known
        raise InputError(f"{where}.{text}" if of_option else f"{where}: {error}") from error
    return plugin, {n: plain(getattr(plugin, n)) for n in known}


def plain(value: Any) -> Any:
    """Return an option as JSON can hold it: what JSON has no form for, as its text."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind in "biufU":
            value = value.tolist()
        elif isinstance(value, np.ndarray) and value.ndim:
            return [plain(x) for x in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in value]
    if isinstance(value, Mapping):
        return {str(k): plain(x) for k, x in value.items()}
    return str(value)

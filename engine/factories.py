"""Plugins by name: make a solver, a generator or a view from its options, or list what there is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from engine import registry, signatures
from engine.api import Generator, Solver, View
from engine.errors import InputError, nearest, told
from engine.registry import PluginInfo


def build(kind: str, name: str, options: Mapping[str, Any]) -> Any:
    """Return a plugin instance, its options checked against the types of its fields.

    Parameters
    ----------
    kind : "solver", "generator", "view" or "report"
        What it is.
    name : str
        Its name.
    options : mapping
        Values for its dataclass fields.

    Raises
    ------
    InputError
        If there is no such plugin, or an option is unknown, missing, of the wrong type or refused.
    """
    return made(registry.default().get(kind, name), options)


def made(info: PluginInfo, options: Mapping[str, Any]) -> Any:
    """Return an instance of a plugin; options and errors as for `build`."""
    name = info.name
    try:
        return info.cls(**check_options(info, options))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{name}: {error}") from error
    except Exception as error:  # a stranger's check of its options may raise anything
        raise InputError(f"{name}: {type(error).__name__}: {error}") from error


def check_options(info: PluginInfo, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options converted to the types of a plugin's fields.

    Raises
    ------
    InputError
        Naming the option, the value given and what would be right.
    """
    fields = signatures.options(info.cls)
    schema = f"\n  {info.name} takes {signatures.told(info.cls)}"
    for name in options:
        if name not in fields:
            raise InputError(f"{info.name} takes no {name!r}; {nearest(name, fields)}{schema}")
    hints = signatures.hints(info.cls)
    # Only what is given is validated: defaults are the plugin's own business.
    for name, field in fields.items():
        if name not in options and signatures.required(field):
            raise InputError(f"{info.name} needs {name!r}, which is not given{schema}")
    given = {n: _as(hints[n], x) for n, x in options.items()}
    try:
        valid = _model(info.cls, tuple(given)).model_validate({f"x_{n}": given[n] for n in given})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])[2:]
        text = f"{info.name}: {name} = {first['input']!r}: {told(first)}{schema}"
        raise InputError(text) from error
    return {n: getattr(valid, f"x_{n}") for n in given}


@lru_cache(maxsize=256)
def _model(cls: type, names: tuple[str, ...]) -> type[BaseModel]:
    """Return what checks these fields of a plugin class: made once, for that takes longest."""
    hints = signatures.hints(cls)
    model: type[BaseModel] = create_model(
        cls.__name__,
        __config__=ConfigDict(strict=True, arbitrary_types_allowed=True, protected_namespaces=()),
        **{f"x_{n}": (hints[n], ...) for n in names},
    )  # type: ignore[call-overload]
    return model


def _as(hint: Any, value: Any) -> Any:
    """Return a value in the form that a field of this type has: TOML knows no paths, no tuples."""
    if isinstance(value, str) and signatures.takes(hint, Path) and not signatures.takes(hint, str):
        return Path(value)
    kept = signatures.takes(hint, list) or signatures.takes(hint, np.ndarray)
    return value if kept else _tuples(value)


def _tuples(value: Any) -> Any:
    """Return lists and arrays as tuples: options are frozen, and TOML knows only lists."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    return tuple(_tuples(x) for x in value) if isinstance(value, list) else value


def solver(name: str, **hyperparameters: Any) -> Solver:
    """Return a solver by name.

    Parameters
    ----------
    name : str
        One of `engine.solvers()`.
    **hyperparameters
        Its dataclass fields.

    Returns
    -------
    Solver

    Raises
    ------
    InputError
        If there is none of that name, or a field is unknown, missing or not admitted.

    Examples
    --------
    >>> solver("rls", ridge=0.01).ridge
    0.01
    """
    rule: Solver = build("solver", name, hyperparameters)
    return rule


def generator(name: str, **options: Any) -> Generator:
    """Return a generator by name.

    Parameters
    ----------
    name : str
        One of `engine.generators()`.
    **options
        Its dataclass fields.

    Returns
    -------
    Generator

    Raises
    ------
    InputError
        As for `solver`.
    """
    stream: Generator = build("generator", name, options)
    return stream


def view(name: str, **options: Any) -> View:
    """Return a view by name; call it on keys, and its `queries` on queries.

    Parameters
    ----------
    name : str
        One of `engine.views()`.
    **options
        Its dataclass fields.

    Returns
    -------
    View

    Raises
    ------
    InputError
        As for `solver`.

    Examples
    --------
    >>> import numpy as np
    >>> view("unit")(np.array([3.0, 4.0])).tolist()
    [0.6, 0.8]
    """
    mapping: View = build("view", name, options)
    return mapping


def solvers() -> dict[str, PluginInfo]:
    """Return every solver by name."""
    return registry.default().names("solver")


def generators() -> dict[str, PluginInfo]:
    """Return every generator by name."""
    return registry.default().names("generator")


def views() -> dict[str, PluginInfo]:
    """Return every view by name."""
    return registry.default().names("view")


def reports() -> dict[str, PluginInfo]:
    """Return every report by name."""
    return registry.default().names("report")

"""What a plugin class declares, read from its annotations: coefficients, dims, options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from engine.api import Coefficient
from engine.errors import InputError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Declared:
    """A coefficient that a method takes: what it may be and what it is when not given.

    `default` is None for one that must be given, and for an optional one, whose own default is
    None: the method is then called without it.
    """

    spec: Coefficient
    default: float | None
    methods: frozenset[str]
    required: bool = False


def _once(read: Callable[[type], T]) -> Callable[[type], T]:
    """Remember what a class says: reading its hints takes as long as many steps of a rule."""
    known: WeakKeyDictionary[type, T] = WeakKeyDictionary()

    @functools.wraps(read)
    def remembered(cls: type) -> T:
        if cls not in known:
            known[cls] = read(cls)
        return known[cls]

    return remembered


def _annotation(hint: Any) -> Coefficient:
    if get_origin(hint) is Annotated:
        for extra in get_args(hint)[1:]:
            if isinstance(extra, Coefficient):
                return extra
    return Coefficient()


@_once
def coefficients(cls: type) -> Mapping[str, Declared]:
    """Return the coefficients that `cls` takes, by name, from keyword-only arguments.

    Raises
    ------
    InputError
        If a method's hints cannot be read or two methods declare a coefficient differently.
    """
    declared: dict[str, Declared] = {}
    for method in getattr(cls, "coefficient_methods", ("write", "read")):
        function = getattr(cls, method)
        try:
            hints = get_type_hints(function, include_extras=True)
        except Exception as error:  # any name in a stranger's annotation may fail to resolve
            raise InputError(
                f"{cls.__name__}.{method}: cannot read its annotations: {error}"
            ) from error
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is not parameter.KEYWORD_ONLY:
                continue
            required = parameter.default is parameter.empty
            default = None if required else _default(f"{cls.__name__}.{method}", parameter)
            new = Declared(_annotation(hints.get(name)), default, frozenset([method]), required)
            old = declared.get(name)
            if old and (old.spec, old.default) != (new.spec, new.default):
                raise InputError(f"{cls.__name__}: write and read declare {name!r} differently")
            methods = new.methods | old.methods if old else new.methods
            declared[name] = dataclasses.replace(new, methods=methods)
    return declared


def _default(method: str, parameter: inspect.Parameter) -> float | None:
    given = parameter.default
    if given is None:
        return None
    try:
        return float(given)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{method}: the default of {parameter.name!r} must be a number, not {given!r}"
        ) from error


@_once
def state_dims(state: type) -> dict[str, tuple[str, ...]]:
    """Return the trailing dims of each field of a state NamedTuple, from its annotations.

    Raises
    ------
    InputError
        If a field has no ``Annotated[Array, "dims"]`` annotation.
    """
    if not (issubclass(state, tuple) and hasattr(state, "_fields")):
        raise InputError(f"a state must be a NamedTuple, not {state.__name__}")
    hints = get_type_hints(state, include_extras=True)
    dims: dict[str, tuple[str, ...]] = {}
    for field in state._fields:
        texts = [x for x in get_args(hints.get(field, Any))[1:] if isinstance(x, str)]
        if not texts:
            raise InputError(
                f"{state.__name__}.{field} does not name its dims; "
                f'write {field}: Annotated[Array, "key value"]'
            )
        dims[field] = tuple(texts[0].split())
    return dims


def options(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the hyperparameters of a plugin class, by name."""
    return {f.name: f for f in dataclasses.fields(cls) if f.init}


def told(cls: type) -> str:
    """Return what a plugin takes, in words: its options, and a solver's coefficients.

    >>> from engine import factories
    >>> told(factories.solvers()["kda"].cls)
    'per step: beta, at least 0 = 1.0; gamma per key, in [0, 1] = 1.0'
    """
    types = hints(cls)
    parts = []
    for name, field in options(cls).items():
        kind = inspect.formatannotation(types[name]).replace("typing.", "").replace("pathlib.", "")
        default = "" if required(field) else f" = {field.default!r}"
        parts.append(f"{name}: {kind}{default}")
    per_step = coefficients(cls) if hasattr(cls, "read") else {}
    for i, (name, declared) in enumerate(per_step.items()):
        axis = f" per {declared.spec.axis}" if declared.spec.axis else ""
        default = "" if declared.default is None else f" = {declared.default!r}"
        first = "per step: " if i == 0 else ""
        parts.append(f"{first}{name}{axis}, {declared.spec.bounds}{default}")
    return "; ".join(parts) or "nothing"


def required(field: dataclasses.Field[Any]) -> bool:
    """Return whether a hyperparameter has no default."""
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def takes(hint: Any, kind: type) -> bool:
    """Return whether a field of this type takes a value of `kind`, alone or among others.

    >>> takes(list[int] | None, list), takes(tuple[int, ...], list)
    (True, False)
    """
    return kind in {get_origin(part) or part for part in (hint, *get_args(hint))}


@_once
def hints(cls: type) -> Mapping[str, Any]:
    """Return the resolved type of every field of a plugin class."""
    return get_type_hints(cls, include_extras=True)

"""Whatever can be loaded as a plugin: by its name, from a file, or as a class of a module."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType

from engine import api, registry
from engine.errors import InputError, PluginWarning, at, nearest
from engine.linear import LinearRule
from engine.registry import PluginInfo

_KNOWN_BY = {"solver": ("write", "read"), "generator": ("draw",), "report": ("claims",)}


def plugins(target: str) -> list[PluginInfo]:
    """Return every plugin that a text names.

    Parameters
    ----------
    target : str
        The name of a plugin, the path of a file with hooks, or `module:Class`, which needs none.

    Raises
    ------
    InputError
        If there is no such thing, it cannot be loaded, or the host could not call it.
    """
    if ":" in target:
        return [_of_class(target)]
    if target.endswith(".py") or os.sep in target:
        return _of_file(Path(target))
    found = registry.default()
    infos = [found.names(kind)[target] for kind in registry.KINDS if target in found.names(kind)]
    if infos:
        return infos
    for info in found.ambiguous():
        if info.name == target:
            found.get(info.kind, target)  # which says whose they are
    known = [name for kind in registry.KINDS for name in found.names(kind)]
    message = f"no plugin is named {target!r}; {nearest(target, known)}"
    for b in found.broken:
        message += f"\n  not loaded: {b.name} from {b.source}: {b.cause}"
    raise InputError(message)


def _of_file(path: Path) -> list[PluginInfo]:
    if not path.is_file():
        raise InputError(f"{str(path)!r} is not a file; a plugin is a .py file, a name or a class")
    found = registry.Registry()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # raised below
        found.add_file(path.resolve())
    for broken in found.broken:
        raise InputError(f"{path}: {broken.cause}")
    return [info for kind in registry.KINDS for info in found.names(kind).values()]


def _of_class(target: str) -> PluginInfo:
    name, _, attribute = target.partition(":")
    module = _imported(name)
    cls = getattr(module, attribute, None)
    if cls is None:
        classes = [n for n, x in vars(module).items() if getattr(x, "__module__", "") == name]
        raise InputError(f"{name} has no class {attribute!r}; {nearest(attribute, classes)}")
    with at(target):
        return registry.describe(_kind(cls), attribute, cls, name)


def _imported(name: str) -> ModuleType:
    """Import a module as `python -m` would: from the folder that one is in, too."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"{name!r} is no module; write module:Class, as my_package.lazy:Lazy")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a stranger's import may raise anything, SystemExit too
        raise InputError(f"cannot import {name}: {type(error).__name__}: {error}") from error


def _kind(cls: object) -> str:
    """Return which kind of plugin a class is, by what it has."""
    bases = {"solver": LinearRule, "generator": api.Generator, "view": api.View}
    for kind, base in bases.items():
        if base in getattr(cls, "__mro__", ()):  # two of them are protocols
            return kind
    for kind, methods in _KNOWN_BY.items():
        if any(hasattr(cls, method) for method in methods):
            return kind
    raise InputError(
        "is no plugin: a solver has init, write and read (or token), a generator start and draw, "
        "a report claims, and a view inherits engine.api.View"
    )

"""The plugin edge: find, check and name plugins. One broken plugin never stops the host."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import re
import sys
import threading
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from engine import api, signatures
from engine.errors import InputError, PluginWarning, at, nearest
from engine.linear import LinearRule

GROUP = "engine.plugins"
KINDS = {
    "solver": "engine_solvers", "generator": "engine_generators", "view": "engine_views",
    "report": "engine_reports",
}  # fmt: skip
OWN = {
    "solver": ("solver", "view", "state"),
    "generator": ("generator", "steps"),
    "view": ("view",),
    "report": (),
}
"""Keys of a plugin's table in a scenario that are the host's own."""

_METHODS = {
    "solver": {"init": ["space"], "write": ["s", "k", "v"], "read": ["s", "q"]},
    "generator": {"start": ["draws", "steps"], "draw": ["state", "draws", "steps"]},
    "view": {"__call__": ["x"]},
    "report": {},
}
_INHERITED: dict[str, dict[str, list[str]]] = {
    "solver": {},
    "generator": {"extent": [], "facts": ["state"]},
    "view": {"queries": ["x"], "size": ["n"]},
    "report": {"claims": ["run"], "tables": ["run"], "figures": ["run"]},
}
# What only newer views have: a view without them leaves values as they are.
_OPTIONAL: dict[str, dict[str, list[str]]] = {
    "solver": {},
    "generator": {},
    "view": {"values": ["v"], "value_size": ["n"]},
    "report": {},
}
# What a protocol or a base has under these names is a description, not an implementation.
_STUBS: set[Any] = {
    api.Solver.init, api.Solver.write, api.Solver.read, api.Generator.start, api.Generator.draw,
    api.View.__call__, LinearRule.token,
}  # fmt: skip
_TAKEN = {"prediction", "output", "diverged_at", "mask", "rows", "step", "trial", "solver", "view"}


@dataclasses.dataclass(frozen=True)
class PluginInfo:
    """One plugin that can be asked for by name.

    Parameters
    ----------
    name, kind : str
        Its name and "solver", "generator", "view" or "report".
    cls : type
        The dataclass behind it.
    source : str
        Distribution and version, or file, that it came from.
    """

    name: str
    kind: str
    cls: type
    source: str

    @property
    def rule(self) -> str:
        """The first line of its docstring: the rule in one line."""
        return (inspect.getdoc(self.cls) or "").partition("\n\n")[0].replace("\n", " ")


@dataclasses.dataclass(frozen=True)
class Broken:
    """A plugin that could not be used, where it came from and why."""

    name: str
    source: str
    cause: str


class Registry:
    """Every plugin that was found, by kind and name, and those that are broken."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager("engine")
        self._manager.add_hookspecs(api)
        self._found: dict[str, dict[str, list[PluginInfo]]] = {kind: {} for kind in KINDS}
        self.broken: list[Broken] = []

    def names(self, kind: str) -> dict[str, PluginInfo]:
        """Return the plugins of one kind by name, ambiguous names left out."""
        found = self._found[kind]
        return {name: infos[0] for name, infos in sorted(found.items()) if len(infos) == 1}

    def ambiguous(self) -> list[PluginInfo]:
        """Return plugins whose name another plugin of their kind has too."""
        every = (infos for found in self._found.values() for infos in found.values())
        return [info for infos in every if len(infos) > 1 for info in infos]

    def get(self, kind: str, name: str) -> PluginInfo:
        """Return one plugin.

        Raises
        ------
        InputError
            If there is none of that name, or more than one.
        """
        infos = self._found[kind].get(name, [])
        if len(infos) == 1:
            return infos[0]
        if infos:
            every = " and ".join(info.source for info in infos)
            raise InputError(
                f"{len(infos)} {kind}s are named {name!r}, from {every}; "
                "remove or rename all but one"
            )
        message = f"no {kind} is named {name!r}; {nearest(name, self.names(kind))}"
        for broken in sorted(self.broken, key=lambda b: b.name != name):
            message += f"\n  not loaded, may have provided it: {broken.name} from {broken.source}: "
            message += broken.cause
        raise InputError(message)

    def add_distributions(self) -> None:
        """Load the entry points of every installed distribution, one by one.

        A failure is recorded and warned about, not raised. Of a distribution that is seen through
        several folders of the path, the first counts, as for the import itself.
        """
        seen = set()
        for distribution in distributions():
            try:
                entries = list(distribution.entry_points.select(group=GROUP))
            except Exception as error:  # a stranger's metadata may be anything
                self._fail("entry_points.txt", _source(distribution), error)
                continue
            source = _source(distribution) if entries else ""
            name = re.sub(r"[-_.]+", "-", source.partition(" ")[0]).lower()
            if name not in seen:
                for entry in entries:
                    self._add(entry.name, source, entry.load)
            seen.add(name)

    def add_file(self, path: Path) -> None:
        """Load a one-file plugin; a failure is recorded and warned about, not raised."""
        self._add(path.stem, str(path), lambda: _import_file(path))

    def _add(self, name: str, source: str, load: Any) -> None:
        plugin = None
        try:
            plugin = load()
            if any(plugin is other for _, other in self._manager.list_name_plugin()):
                return  # found twice, as through two folders of the path
            infos = self._register(plugin, f"{source}:{name}", source)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a stranger's import may raise anything, SystemExit too
            if plugin is not None and self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            self._fail(name, source, error)
            return
        for info in infos:
            self._found[info.kind].setdefault(info.name, []).append(info)

    def _fail(self, name: str, source: str, error: BaseException) -> None:
        cause = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        self.broken.append(Broken(name, source, cause))
        message = f"plugin {name!r} from {source} was not loaded: {cause}"
        warnings.warn(message, PluginWarning, stacklevel=5)

    def _register(self, plugin: Any, name: str, source: str) -> list[PluginInfo]:
        if inspect.isclass(plugin):
            raise InputError(
                f"{plugin.__name__} is a class where a module or an instance with hooks is meant; "
                "let the entry point name the module, and return the class from its hook"
            )
        try:
            self._manager.register(plugin, name=name)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            text = " ".join(str(error).split())
            raise InputError(
                f"{text}; the hooks are {', '.join(KINDS.values())}, without arguments"
            ) from error
        infos = []
        for kind, hook in KINDS.items():
            for impl in getattr(self._manager.hook, hook).get_hookimpls():
                if impl.plugin is plugin:
                    infos += _entries(kind, hook, impl.function(), source)
        if not infos and getattr(plugin, "__file__", "") is None:
            raise InputError(
                f"the folder {next(iter(plugin.__path__))} hides it; run elsewhere, or rename that"
            )
        if not infos:
            raise InputError(
                f"it provides nothing; mark {', '.join(KINDS.values())} with @hookimpl"
            )
        return infos


def _source(distribution: Distribution) -> str:
    """Return the name and version of a distribution, or where it lies if it has none."""
    try:
        if name := distribution.metadata["Name"]:
            return f"{name} {distribution.version}"
    except Exception as error:  # a stranger's metadata may lack anything
        return f"{distribution.locate_file('')} ({type(error).__name__}: {error})"
    return str(distribution.locate_file(""))


def _import_file(path: Path) -> ModuleType:
    name = f"engine_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, so that its annotations and pickles can find it.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _entries(kind: str, hook: str, provided: Any, source: str) -> list[PluginInfo]:
    if not isinstance(provided, Mapping):
        raise InputError(f'{hook} returned {type(provided).__name__}; return {{"name": Class}}')
    infos = []
    for name, cls in provided.items():
        if not isinstance(name, str) or not api.NAME.fullmatch(name):
            raise InputError(
                f"{hook}: {name!r} cannot be a name; use lower-case letters, digits and "
                "underscores, a letter first"
            )
        with at(hook):
            infos.append(describe(kind, name, cls, source))
    return infos


def describe(kind: str, name: str, cls: Any, source: str) -> PluginInfo:
    """Return what the host knows of a plugin class.

    Raises
    ------
    InputError
        If it is not one, or the host could not make or call it.
    """
    if not inspect.isclass(cls):
        raise InputError(f"{name!r} is a {type(cls).__name__} instance; return its class")
    if not dataclasses.is_dataclass(cls):
        raise InputError(f"{name!r}: decorate {cls.__name__} with @dataclass(frozen=True)")
    _check_methods(kind, cls)
    _check_options(kind, cls)
    return PluginInfo(name, kind, cls, source)


def _check_methods(kind: str, cls: type) -> None:
    """Refuse a class whose methods cannot be called as the host will call them."""
    own = {"token": ["k", "v"]} if issubclass(cls, LinearRule) else {}
    own |= {name: x for name, x in _OPTIONAL[kind].items() if hasattr(cls, name)}
    for method, wanted in {**own, **_METHODS[kind], **_INHERITED[kind]}.items():
        call = f"{method}({', '.join(['self', *wanted])}{', *, ...' if kind == 'solver' else ''})"
        function = inspect.getattr_static(cls, method, None)
        if not inspect.isfunction(function) or function in _STUBS:
            advice = f"; inherit it from engine.api.{kind.title()}"
            raise InputError(
                f"{cls.__name__} has no method {call}{advice if method in _INHERITED[kind] else ''}"
            )
        _check_call(f"{cls.__name__}.{method}", call, function, wanted)
    if kind == "generator" and not hasattr(cls, "dims"):
        raise InputError(f"{cls.__name__} has no dims; inherit it from engine.api.Generator")
    if kind == "solver":
        names = set(signatures.coefficients(cls))
        clash = names & (_TAKEN | set(signatures.options(cls)))
        if clash:
            raise InputError(
                f"{cls.__name__}: the name {sorted(clash)[0]!r} is taken, by a hyperparameter or "
                "by the host; rename that coefficient"
            )


def _check_call(name: str, call: str, function: Any, wanted: list[str]) -> None:
    """Refuse a method that does not take these arguments, or takes more than keywords beyond."""
    parameters = inspect.signature(function).parameters.values()
    keywords = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        bound = inspect.signature(function).bind(None, *wanted, **keywords)
    except TypeError as error:
        raise InputError(f"{name} must take {call}: {error}") from error
    for p in parameters:
        if p.name not in bound.arguments and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            raise InputError(
                f"{name} must take {call}: {p.name!r} is never given by position; put it behind a *"
            )


def _check_options(kind: str, cls: type) -> None:
    """Refuse a class whose options cannot be given in a scenario."""
    try:
        signatures.hints(cls)
    except Exception as error:  # any name in a stranger's annotation may fail to resolve
        raise InputError(f"{cls.__name__}: cannot read its fields' types: {error}") from error
    clash = [name for name in signatures.options(cls) if name in OWN[kind]]
    if clash:
        raise InputError(f"{cls.__name__}: the name {clash[0]!r} is the host's; rename that option")


def load(folder: str | os.PathLike[str] | None = None) -> Registry:
    """Return a registry of every installed plugin and the one-file plugins of a folder.

    Parameters
    ----------
    folder : path, optional
        Folder of one-file plugins, each `*.py` (names starting with "_" are left out), or one
        such file.

    Raises
    ------
    InputError
        If there is no such folder or file.
    """
    registry = Registry()
    registry.add_distributions()
    if folder:
        for path in one_files(folder, "plugins folder"):
            registry.add_file(path.resolve())
    return registry


def one_files(folder: str | os.PathLike[str], what: str) -> list[Path]:
    """Return the files of a folder that may be plugins, or the one file that it names."""
    path = Path(folder)
    if path.is_file() and path.suffix == ".py":
        return [path]
    if not path.is_dir():
        raise InputError(f"{what} {str(folder)!r} is not a folder, nor a .py file")
    return sorted(path.glob("[!_]*.py"))


@cache
def _cached(folder: str | None) -> Registry:
    return load(folder)


_under_way = threading.local()  # is this thread loading plugins?


def default() -> Registry:
    """Return the registry of this process; `ENGINE_PLUGINS_DIR` names its folder of plugins."""
    if getattr(_under_way, "now", False):
        raise InputError(
            "it asks for plugins while they are being loaded; do that inside a function, and keep "
            "scripts apart from plugins"
        )
    _under_way.now = True
    try:
        return _cached(os.environ.get("ENGINE_PLUGINS_DIR") or None)
    finally:
        _under_way.now = False

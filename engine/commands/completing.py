"""What a shell completes: names that exist, of the folder of plugins that the line names."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import typer


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in sorted(names) if name.startswith(incomplete)]


def _plugins(context: typer.Context, *kinds: str) -> set[str]:
    from engine.commands.options import use_plugins

    with warnings.catch_warnings():  # a line that is being typed is no place for them
        warnings.simplefilter("ignore")
        use_plugins(context.params.get("plugins_dir"))
        from engine import registry

        found = registry.default()
        return {name for kind in kinds or registry.KINDS for name in found.names(kind)}


def scenarios(incomplete: str) -> list[str]:
    """Return shipped scenarios that begin so; where there are none, the shell offers files."""
    from engine.scenario import shipped

    return _starting(shipped(), incomplete)


def solvers(context: typer.Context, incomplete: str) -> list[str]:
    """Return solvers that begin so."""
    return _starting(_plugins(context, "solver"), incomplete)


def plugins(context: typer.Context, incomplete: str) -> list[str]:
    """Return plugins of any kind that begin so."""
    return _starting(_plugins(context), incomplete)


def backends(incomplete: str) -> list[str]:
    """Return array libraries that begin so."""
    return _starting(["numpy", "cupy"], incomplete)


def on_error(incomplete: str) -> list[str]:
    """Return what a failing solver may do, if it begins so."""
    return _starting(["stop", "drop"], incomplete)

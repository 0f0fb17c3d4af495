"""Runs in xarray: `xr.open_dataset(run, engine="engine", group="solvers/delta")`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xarray as xr
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core import indexing

from engine.errors import InputError, PluginWarning, nearest


class Recomputed(BackendArray):
    """One variable of a trajectory, recomputed where it is indexed."""

    def __init__(self, trajectory: Any, name: str) -> None:
        self.trajectory, self.name = trajectory, name
        self.shape = trajectory.variables[name].shape
        self.dtype = trajectory.variables[name].dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER, self._read
        )

    def _read(self, key: tuple[Any, ...]) -> Any:
        import numpy as np

        steps = np.arange(self.shape[0])[key[0]]
        found = self.trajectory.read(self.name, np.atleast_1d(steps), key[1:])
        return found[0] if steps.ndim == 0 else found


def recomputed(trajectory: Any) -> dict[str, xr.Variable]:
    """Return every variable of a trajectory, to be computed when it is read."""
    found = {}
    for name, v in trajectory.variables.items():
        data = indexing.LazilyIndexedArray(Recomputed(trajectory, name))
        size = max(trajectory.piece_steps(name), trajectory.n)
        chunks = dict(zip(v.dims, (min(size, max(v.shape[0], 1)), *v.shape[1:]), strict=True))
        found[name] = xr.Variable(v.dims, data, encoding={"preferred_chunks": chunks})
    return found


def completed(solver: xr.DataTree, path: Path, label: str, chunks: Any = None) -> xr.DataTree:
    """Return a solver's group of a keyframed run with what it did at every step.

    A solver that cannot be made again is shown as it is stored, with a warning.
    """
    from engine.trajectory import Trajectory

    stored = solver.to_dataset(inherit=False)
    try:
        trajectory = Trajectory(path, label)
    except InputError as error:
        message = f"{path}: the states of {label!r} between keyframes cannot be computed: {error}"
        warnings.warn(message, PluginWarning, stacklevel=2)
        return xr.DataTree(stored, name=label)
    found = recomputed(trajectory)
    if chunks is not None:
        own = chunks in ({}, "auto")  # then whole keyframes, as a piece is recomputed
        found = {
            n: v.chunk(v.encoding["preferred_chunks"] if own else chunks) for n, v in found.items()
        }
    return xr.DataTree(stored.assign(found), name=label)


class EngineBackend(BackendEntrypoint):
    """Opens a run as `engine.open` does: only complete steps, every state of a keyframed run."""

    description = "Runs of ttr-engine, states between keyframes included"
    supports_groups = True

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str = "/",
        decode_times: bool = True,
    ) -> xr.Dataset:
        """Return one group of a run, such as `solvers/delta`, lazily; only a stream has times."""
        from engine import opening

        if group.strip("/") == "stream":  # no solver is asked for, and each takes time to make
            stream = opening.stored(Path(os.fspath(filename_or_obj)), decode_times=decode_times)
            return stream["stream"].to_dataset().drop_vars(drop_variables or (), errors="ignore")
        tree = self.open_datatree(filename_or_obj, drop_variables=drop_variables)
        groups = [node.path for node in tree.subtree]
        if f"/{group.strip('/')}" not in groups:
            raise InputError(f"{filename_or_obj} has no group {group!r}; {nearest(group, groups)}")
        return tree[f"/{group.strip('/')}"].to_dataset()

    def open_datatree(
        self, filename_or_obj: Any, *, drop_variables: str | Iterable[str] | None = None
    ) -> xr.DataTree:
        """Return a whole run, lazily."""
        from engine import opening

        tree = opening.open(Path(os.fspath(filename_or_obj)))
        drop = [drop_variables] if isinstance(drop_variables, str) else list(drop_variables or ())
        if drop:
            tree = tree.map_over_datasets(lambda ds: ds.drop_vars(drop, errors="ignore"))
        return tree

    def open_groups_as_dict(
        self, filename_or_obj: Any, *, drop_variables: str | Iterable[str] | None = None
    ) -> dict[str, xr.Dataset]:
        """Return every group by its path."""
        tree = self.open_datatree(filename_or_obj, drop_variables=drop_variables)
        return {node.path: node.to_dataset(inherit=False) for node in tree.subtree}

"""A stored run as xarray shows it: lazily, and only as far as it is complete."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cut import only_begun, shown, strangers_ignored, unfinished
from engine.errors import InputError
from engine.guard import Guard, followed, is_store, readable
from engine.store import Guarded, group

if TYPE_CHECKING:
    import xarray as xr


def open(path: str | Path, *, chunks: Any = None) -> xr.DataTree:
    """Open a run, lazily.

    Parameters
    ----------
    path : str or Path
        A store that `engine run` wrote, or is still writing.
    chunks : mapping of str to int, {} or "auto", optional
        Open as chunked arrays (needs dask), as `xarray.open_datatree` does: ``{"step": 1000}``, {}
        for the chunks on disk. By default variables are read when they are used, whole; measures
        then read blocks of steps by themselves, so only expressions of one's own need chunks.

    Returns
    -------
    DataTree
        Groups `stream` and `solvers/<label>`, or `parts/<i>` with these for each part of a sweep.
        Only steps that are complete for every variable are shown, only parts that have begun; of a
        run killed before its first step, the attributes.

    Raises
    ------
    InputError
        If there is no run at `path`, or it was written by a newer release, or there is no dask for
        the chunks.
    """
    import xarray as xr

    if chunks is not None and not importlib.util.find_spec("dask"):
        raise InputError(f"chunks = {chunks!r} needs dask: pip install 'ttr-engine[cluster]'")
    path = readable(path).path
    if only_begun(path):
        return xr.DataTree(xr.Dataset(attrs=dict(Guard(path).attrs)))
    attrs: dict[str, Any] = group(path).attrs.asdict()
    if "parts" in attrs:
        return _open_parts(path, attrs, chunks)
    tree = stored(path, chunks)
    if "keyframes" in tree.children:
        from engine import xarray_backend

        solvers = dict(tree.children["solvers"].children)
        for label in tree.children["keyframes"].children:
            tree[f"solvers/{label}"] = xarray_backend.completed(solvers[label], path, label, chunks)
    return tree


def stored(path: Path, chunks: Any = None, decode_times: bool = True) -> xr.DataTree:
    """Return what a run stored, lazily, as far as it is complete: `open` without recomputing."""
    import xarray as xr

    root = group(path)
    attrs: dict[str, Any] = root.attrs.asdict()
    # A store that is still being written, or was cut, even at its very end, has none.
    consolidated = attrs["status"] != "running" and bool(root.metadata.consolidated_metadata)
    with followed(path), strangers_ignored():
        tree: xr.DataTree = xr.open_datatree(
            Guarded(path),  # type: ignore[arg-type]
            engine="zarr", consolidated=consolidated, chunks=chunks, decode_times=decode_times,
        )  # fmt: skip
    committed = int(attrs["committed"])
    for name in unfinished(root):
        where, _, variable = name.rpartition("/")
        node: xr.DataTree = tree[where]  # type: ignore[assignment]
        node.dataset = node.to_dataset(inherit=False).drop_vars(variable)
    if committed != tree.sizes.get("step", committed):
        tree = tree.map_over_datasets(lambda ds: shown(ds, committed))
    return tree


def _open_parts(path: Path, attrs: dict[str, Any], chunks: Any) -> xr.DataTree:
    import xarray as xr

    tree = xr.DataTree(xr.Dataset(attrs=attrs))
    for i in range(int(attrs["parts"])):
        part = path / "parts" / str(i)
        if i < int(attrs["committed"]) or (is_store(part) and not only_begun(part)):
            tree[f"parts/{i}"] = open(part, chunks=chunks)
    return tree

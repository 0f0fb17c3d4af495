"""What a store holds whose run was cut, or still goes on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.guard import Guard, is_store
from engine.lock import is_unused

if TYPE_CHECKING:
    import xarray as xr


def laid_out(attrs: Mapping[str, Any]) -> bool:
    """Return whether every variable has its place; these are said once they have."""
    said = any(name in attrs for name in ("block", "first_step", "parts"))
    return said or bool(attrs.get("committed")) or attrs.get("status") == "complete"


def only_begun(path: Path) -> bool:
    """Return whether a store of ours is at `path` that has no place for its stream yet."""
    if not is_store(path):
        return is_unused(path)
    return not laid_out(Guard(path).attrs)


def grown(root: Any, name: str) -> Any:
    """Return a group of a store, its parents made before it.

    zarr itself writes all of them at once, in any order: a kill may then leave a child whose parent
    is none, and nobody who walks from the root finds it.
    """
    for part in filter(None, name.split("/")):
        root = root.require_group(part)
    return root


def unfinished(root: Any) -> list[str]:
    """Return what a kill left without all its numbers, of what is written only once."""
    if root.attrs["status"] == "complete":
        return []
    with strangers_ignored():
        arrays = [(n, x) for n, x in root.members(max_depth=None) if hasattr(x, "shape")]
    once = [
        (n, x) for n, x in arrays
        if (x.metadata.dimension_names or ())[:1] not in (("step",), ("keyframe",), ("probe_step",))
    ]  # fmt: skip
    return [n for n, x in once if x.nchunks_initialized < x.nchunks]


def shown(ds: xr.Dataset, committed: int) -> xr.Dataset:
    """Return what a run that is not complete holds: its first steps, and probes up to there."""
    if "probe_step" in ds:
        ds = ds.isel(probe_step=ds["probe_step"].values <= committed)
    frames = slice(committed // ds.attrs.get("keyframes", 1))
    return ds.isel(step=slice(committed), keyframe=frames, missing_dims="ignore")


@contextmanager
def strangers_ignored() -> Iterator[None]:
    """Ignore files that are being put in place: zarr warns of each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Object at .* is not recognized")
        yield

"""Whether a store holds what was written into it: every chunk read, every file accounted for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine import store
from engine.cut import unfinished
from engine.errors import DamageError, InputError

PARTIAL = re.compile(r".*\.partial|.*\.tmp")


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong with a store.

    Parameters
    ----------
    what : str
        "missing", "damaged", "foreign", "metadata" or "mark".
    variable : str
        Path of the array, or of the file.
    steps : tuple of int, optional
        First and last row concerned: steps, or rows of what the variable's first dim is.
    dim : str
        That dim; "" if there is none.
    why : str
        What was found.
    """

    what: str
    variable: str
    steps: tuple[int, int] | None
    dim: str
    why: str

    def __str__(self) -> str:
        where = f", {self.dim} {self.steps[0]} to {self.steps[1]}" if self.steps else ""
        return f"{self.what}: {self.variable}{where}: {self.why}"

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**asdict(self), "steps": list(self.steps) if self.steps else None}


def check(path: str | Path) -> list[Damage]:
    """Return all that is wrong with a run's store; an empty list if nothing is.

    Parameters
    ----------
    path : str or Path
        A store that `engine run` wrote. One that is being written may seem to hold foreign files.

    Raises
    ------
    InputError
        If there is no store at `path`, or not even its first metadata can be read.
    """
    path = Path(path).expanduser()
    found = list(_metadata(path))
    try:
        root = store.group(path)
        arrays = dict(_arrays(root))
    except (DamageError, InputError):
        if not found:
            raise
        return found
    except Exception as error:  # whatever zarr makes of metadata that it cannot follow
        why = f"{type(error).__name__}: {error}"
        return found or [Damage("metadata", "zarr.json", None, "", why)]
    committed, known = int(root.attrs["committed"]), {"zarr.json"}
    found += _mark(root, committed, arrays)
    cut = unfinished(root)  # a kill came in between: no damage, and not shown either
    for name, array in arrays.items():
        known.add(f"{name}/zarr.json")
        found += _chunks(path, name, array, _rows(root, name, array, committed, cut), known)
    known |= {f"{name}/zarr.json" for name in _groups(root)}
    for file in sorted(p for p in path.rglob("*") if not p.is_dir()):
        name = file.relative_to(path).as_posix()
        if name not in known and not PARTIAL.fullmatch(file.name):
            found.append(Damage("foreign", name, None, "", "no run writes such a file"))
    return found


def _arrays(root: Any) -> Iterator[tuple[str, Any]]:
    for name, node in sorted(root.members(max_depth=None)):
        if hasattr(node, "shape"):
            yield name, node


def _groups(root: Any) -> Iterator[str]:
    for name, node in root.members(max_depth=None):
        if not hasattr(node, "shape"):
            yield name


def _rows(root: Any, name: str, array: Any, committed: int, cut: list[str]) -> int:
    """Return how many rows of an array must be there."""
    if name in cut:
        return 0
    if not array.shape:
        return 1
    dim = (array.metadata.dimension_names or ("",))[0]
    if dim == "step" and "/" in name:
        return min(committed, int(array.shape[0]))
    if dim == "keyframe" and not name.endswith("keyframe_step"):
        n = int(root[name.rpartition("/")[0]].attrs["keyframes"])
        return min(committed // n, int(array.shape[0]))
    if dim == "probe_step" and root.attrs["status"] != "complete":
        return 0
    return int(array.shape[0])


def _chunks(path: Path, name: str, array: Any, rows: int, known: set[str]) -> Iterator[Damage]:
    """Read every chunk that must be there, file by file, and note the files that may be."""
    dims = array.metadata.dimension_names or ()
    size = int((array.shards or array.chunks or (1,))[0])
    many = -(-int(array.shape[0]) // size) if array.shape else 1
    rest = "/0" * max(len(array.shape) - 1, 0)
    for i in range(many if all(array.shape) else 0):
        file = f"{name}/c/{i}{rest}" if array.shape else f"{name}/c"
        known.add(file)
        first, last = i * size, min((i + 1) * size, rows) - 1
        if first > last:
            continue
        span = (first, last) if array.shape else None
        dim = str(dims[0]) if dims else ""
        if not (path / file).is_file():
            yield Damage("missing", name, span, dim, f"no file {file}")
            continue
        yield from _read(array, name, span, dim)


def _read(array: Any, name: str, span: tuple[int, int] | None, dim: str) -> Iterator[Damage]:
    """Read rows chunk by chunk; a checksum that is wrong is said with the rows of its chunk."""
    if span is None:
        parts: list[Any] = [(None, ...)]
    else:
        step = int(array.chunks[0])
        starts = range(span[0] - span[0] % step, span[1] + 1, step)
        ends = [(max(a, span[0]), min(a + step - 1, span[1])) for a in starts]
        parts = [(end, slice(end[0], end[1] + 1)) for end in ends]
    for rows, index in parts:
        try:
            array[index]
        except Exception as error:  # zarr, its codecs and the disk raise many kinds
            yield Damage("damaged", name, rows, dim, f"{type(error).__name__}: {error}")


def _mark(root: Any, committed: int, arrays: dict[str, Any]) -> Iterator[Damage]:
    """Check the mark and the status against the arrays."""
    steps, status = int(root["stream/keys"].shape[0]), root.attrs["status"]
    if not 0 <= committed <= steps:
        why = f"committed = {committed}, but the run has {steps} steps"
        yield Damage("mark", "zarr.json", None, "", why)
    elif status == "complete" and committed != steps:
        why = f"status is 'complete', but committed = {committed} of {steps} steps"
        yield Damage("mark", "zarr.json", None, "", why)
    if status not in ("running", "complete", "failed", "interrupted"):
        yield Damage("mark", "zarr.json", None, "", f"status = {status!r} is none that a run has")
    for name, array in arrays.items():
        dims = array.metadata.dimension_names or ()
        if dims[:1] == ("step",) and int(array.shape[0]) != steps:
            why = f"has {array.shape[0]} steps, stream/keys has {steps}"
            yield Damage("mark", name, None, "step", why)


def _metadata(path: Path) -> Iterator[Damage]:
    """Compare the metadata that are kept twice: in each node's file and in the root's."""
    try:
        told = json.loads((path / "zarr.json").read_bytes())
        kept = (told.get("consolidated_metadata") or {}).get("metadata") or {}
    except FileNotFoundError:
        raise InputError(f"{path} is not a run's store: it has no zarr.json") from None
    except (ValueError, AttributeError) as error:
        yield Damage("metadata", "zarr.json", None, "", f"not what zarr writes: {error}")
        return
    for name, copy in sorted(kept.items()):
        try:
            own = json.loads((path / name / "zarr.json").read_bytes())
        except (OSError, ValueError) as error:
            yield Damage("metadata", f"{name}/zarr.json", None, "", f"cannot be read: {error}")
            continue
        own.pop("consolidated_metadata", None)
        if own != {k: x for k, x in copy.items() if k != "consolidated_metadata"}:
            why = "differs from the copy in the root's zarr.json"
            yield Damage("metadata", f"{name}/zarr.json", None, "", why)

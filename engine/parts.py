"""The store of a sweep: a group `parts` whose children are stores of their own, by number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine import store
from engine.guard import SEAL


class Parts:
    """Writes the root of a sweep's store; each part is written by a sink of its own.

    Parameters
    ----------
    path : Path
        As for `ZarrSink`.
    attrs : mapping
        Attributes of the root.
    count : int
        How many parts there will be.
    force : bool
        Replace a store that is there.
    """

    def __init__(
        self, path: Path, attrs: Mapping[str, Any], count: int, force: bool = False
    ) -> None:
        self._path, self._root, self._lock = store.create(path, {"parts": count, **attrs}, force)
        self._root.create_group("parts")

    @classmethod
    def reopen(cls, path: Path) -> Parts:
        """Return the root of a sweep that ended early, to be gone on with."""
        made = cls.__new__(cls)
        made._path, made._root, made._lock = store.reopen(path)
        made._root.metadata.attributes.pop(SEAL, None)  # what it seals is about to change
        made._root.update_attributes({"status": "running"})
        made._root.require_group("parts")
        return made

    def path(self, i: int) -> Path:
        """Return where part `i` belongs."""
        return self._path / "parts" / str(i)

    def commit(self, count: int) -> None:
        """Declare the first `count` parts complete."""
        self._root.update_attributes({"committed": count})

    def close(self, status: str) -> None:
        """Set the final status; the metadata are gathered and sealed."""
        store.close(self._path, self._root.store, status)
        self._lock.release()

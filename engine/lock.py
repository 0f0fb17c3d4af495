"""One writer per store: a lock on its folder that ends with the process that holds it."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import InputError
from engine.guard import Guard, is_store

CAN_LOCK = True
try:
    import fcntl
except ImportError:  # there, a second writer goes unnoticed
    CAN_LOCK = False


class Lock:
    """A lock on a folder, held until it is released or its process ends, however it ends.

    Raises
    ------
    BlockingIOError
        If somebody holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._file: int | None = None
        if not CAN_LOCK:
            return
        file = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise
        except OSError:  # a file system without locks
            os.close(file)
        else:
            self._file = file

    def release(self) -> None:
        """Let others write."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        self.release()


def claim(path: Path) -> Lock:
    """Return the lock of a store that nobody else writes.

    Raises
    ------
    InputError
        If somebody does.
    """
    try:
        return Lock(path)
    except BlockingIOError:
        told = Guard(path).attrs if is_store(path) else {}
        writer = told.get("writer") or {}
        raise InputError(
            f"{path} is being written by process {writer.get('process')}; choose another place, or "
            "end that run first"
        ) from None


def check_free(path: Path, force: bool = False) -> None:
    """Refuse a path that a new store would overwrite.

    Raises
    ------
    InputError
        If something is there and may not be replaced.
    """
    if not path.exists() or is_unused(path):
        return
    if not force:
        raise InputError(f"{path} exists; choose another place, or replace it with --force")
    if not is_store(path):
        raise InputError(f"{path} exists and is not a run's store, so --force does not replace it")
    claim(path).release()


def is_unused(path: Path) -> bool:
    """Return whether a folder is empty, or as a run leaves it that was killed as it began."""
    return path.is_dir() and {p.name for p in path.iterdir()} <= {"zarr.json.partial"}

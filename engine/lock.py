"""One writer per store: a lock on its folder that ends with the process that holds it."""

from __future__ import annotations

import os
from pathlib import Path

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

"""Ctrl-C, and a SIGTERM that is caught, held back until a write is whole.

Cut in the middle, zarr leaves tasks hanging.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """Signals of a run: ``with Interrupts() as interrupts:``, and in it ``interrupts.held()``.

    Handlers are set once: setting them takes longer than many a write.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[..., Any]] = {}
        self._caught: list[tuple[Any, ...]] = []
        self._holds = 0

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            asked = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            self._handlers = {n: handler for n, handler in asked.items() if callable(handler)}
            for number in self._handlers:
                signal.signal(number, self._came)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _came(self, *signalled: Any) -> None:
        if self._holds:
            self._caught.append(signalled)
        else:
            self._handlers[signalled[0]](*signalled)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back from here to the end of the block."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if self._caught and not self._holds:
                caught, self._caught = self._caught, []
                self._came(*caught[0])


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold signals back from one block: a write by itself."""
    with Interrupts() as interrupts, interrupts.held():
        yield

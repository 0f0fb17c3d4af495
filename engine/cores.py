"""Work shared among the machine's cores by threads, where NumPy does it without Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def share(call: Callable[[T], object], items: Sequence[T], worth: int) -> None:
    """Call with every item, on as many cores as there are but no more than the work is worth.

    Parameters
    ----------
    call : callable of one item
        It may be called with several at once.
    items : sequence
        What to call it with; a core takes every n-th.
    worth : int
        How many threads have enough to do to be started, at about 0.1 ms each.
    """
    workers = min(len(items), worth)
    if workers > 1:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        workers = min(workers, cores or 1)
    if workers <= 1:
        for item in items:
            call(item)
        return

    def some(first: int) -> None:
        for item in items[first::workers]:
            call(item)

    with ThreadPoolExecutor(workers - 1) as pool:
        # A context carries how NumPy treats what overflows.
        others = [pool.submit(copy_context().run, some, i) for i in range(1, workers)]
        some(0)
        for done in others:
            done.result()

"""Stream key-value pairs through test-time regression solvers and record every state.

See README.md for a tour. Everything below is loaded when it is first used, so that importing this
package is quick.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.errors import (
        DamageError,
        DroppedWarning,
        EngineError,
        InputError,
        PluginWarning,
        ReplayWarning,
        RunError,
        StabilityWarning,
    )  # fmt: skip
    from engine.experiment import run
    from engine.factories import generator, generators, reports, solver, solvers, view, views
    from engine.ingestion import ingest
    from engine.live import stream
    from engine.opening import open
    from engine.push import memory
    from engine.rerun import replay
    from engine.simulation import simulate
    from engine.tuning import tune

_HOMES = {
    "EngineError": "errors",
    "InputError": "errors",
    "DamageError": "errors",
    "ReplayWarning": "errors",
    "DroppedWarning": "errors",
    "PluginWarning": "errors",
    "RunError": "errors",
    "StabilityWarning": "errors",
    "generator": "factories",
    "generators": "factories",
    "memory": "push",
    "ingest": "ingestion",
    "open": "opening",
    "replay": "rerun",
    "reports": "factories",
    "run": "experiment",
    "simulate": "simulation",
    "solver": "factories",
    "solvers": "factories",
    "stream": "live",
    "tune": "tuning",
    "view": "factories",
    "views": "factories",
}

__all__ = [
    "DamageError",
    "EngineError",
    "InputError",
    "DroppedWarning",
    "PluginWarning",
    "ReplayWarning",
    "RunError",
    "StabilityWarning",
    "generator",
    "generators",
    "ingest",
    "memory",
    "open",
    "replay",
    "reports",
    "run",
    "simulate",
    "solver",
    "solvers",
    "stream",
    "tune",
    "view",
    "views",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"engine.{_HOMES[name]}"), name)
    text = f"module 'engine' has no attribute {name!r}"
    raise AttributeError(text, name=name, obj=sys.modules[__name__])  # Python adds the nearest


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

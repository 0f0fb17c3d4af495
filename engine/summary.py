"""What a run came to, solver by solver: the table that `engine run` ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.answers import last
from engine.api import Rows
from engine.linear import STABLE
from engine.measure import error_curve
from engine.measure.statistics import estimate
from engine.track import Track

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Row:
    """One solver of a finished run.

    Parameters
    ----------
    solver : str
        Its label.
    error : float or None
        Mean over trials and the last quarter of the steps; None if the run has no steps, if its
        predictions are not stored, if it was dropped, or if a trial diverged: a mean over those
        that did not would say nothing of the rule.
    error_half, recall_half : float or None, and mapping of str to the same
        Half the width of the 95 % interval over trials (Student's t); None of one trial, where
        one has no mean, and where trials do not differ.
    error_kind : str
        "tracking error" or "prediction error".
    recall : mapping of str to float or None
        Per probe, asked last, the share of keys that decode to their present binding; None if
        nothing was right or wrong.
    diverged_at : int or None
        First step at which any trial had a non-finite state or read.
    diverged_trials : int
        How many did.
    dropped_at : int or None
        First step without it, if it was dropped, and `dropped_because`.
    correction : float
        Largest share of its error that a write took back: beyond 2 a delta rule is unstable.
    state_bytes : int
        Bytes retained per trial at the end.
    steps_per_second : float
        Steps of all trials together, per second of this solver's own time.
    """

    solver: str
    error: float | None
    error_kind: str
    recall: dict[str, float | None]
    error_half: float | None
    recall_half: dict[str, float | None]
    diverged_at: int | None
    diverged_trials: int
    dropped_at: int | None
    dropped_because: str
    correction: float
    state_bytes: int
    steps_per_second: float

    @property
    def overshoots(self) -> bool:
        """Whether a write took back so much that the rule is unstable there."""
        return self.correction > STABLE

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        row = asdict(self)
        finite = self.error is not None and np.isfinite(self.error)
        return {**row, "error": self.error if finite else None}


def state_bytes(track: Track) -> int:
    """Return the bytes that a track's state holds per trial (of its longest trial)."""
    total = 0
    for x in track.state:
        array = x.array if isinstance(x, Rows) else x
        count = int(np.prod(array.shape[1:]))
        total += count * np.dtype(str(array.dtype).rpartition(".")[2]).itemsize
    return total


def _mean(errors: np.ndarray) -> float | None:
    known = errors[~np.isnan(errors)]
    with np.errstate(over="ignore"):  # of a solver on its way to divergence
        return float(known.mean()) if known.size else None


def _half(errors: np.ndarray) -> float | None:
    """Return half the interval of a mean over (..., trial)."""
    known = ~np.isnan(errors)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        trials = np.where(known, errors, 0.0).sum(axis=0) / known.sum(axis=0)
        found = estimate(trials)
        half = float(found.high - found.value)
    return half if 0 < half < np.inf else None


def summarise(run: xr.DataTree, tracks: Sequence[Track]) -> list[Row]:
    """Return one row per solver."""
    steps = run["stream"].sizes["step"]
    rows = []
    for track in tracks:
        error, half, kind = None, None, "prediction error"
        if "prediction" in run[f"solvers/{track.label}"]:  # between keyframes nothing is stored
            start = steps - steps // 4 if steps >= 4 else 0
            curve = error_curve(run, track.label, start=start)
            error, kind = _mean(curve.values), str(curve.name)
            half = _half(curve.transpose("step", "trial").values)
        diverged = track.diverged_at[track.diverged_at >= 0]
        probes = run["probes"].children if "probes" in run.children else {}
        hits = {
            n: last(p)[f"{track.label}/recalled"].transpose("query", "trial").values
            for n, p in probes.items()
        }
        gone = diverged.size or track.dropped_at is not None
        rows.append(
            Row(
                solver=track.label,
                error=None if gone else error,
                error_half=None if gone else half,
                error_kind=kind,
                recall={n: _mean(x) for n, x in hits.items()},
                recall_half={n: _half(x) for n, x in hits.items()},
                diverged_at=int(diverged.min()) if diverged.size else None,
                diverged_trials=int(diverged.size),
                dropped_at=track.dropped_at,
                dropped_because=track.why,
                correction=track.correction[0],
                state_bytes=state_bytes(track),
                steps_per_second=track.steps / track.seconds if track.seconds else 0.0,
            )
        )
    return rows

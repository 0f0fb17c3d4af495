"""Running sums against the whole history: equal at every prefix if the normaliser is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Report, Table, hookimpl

if TYPE_CHECKING:
    import xarray as xr

EPS = float(np.finfo(np.float64).eps)
FEATURES: Mapping[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "elu1": ("elu + 1", lambda x: np.where(x < 0, np.exp(np.minimum(x, 0)), x + 1)),
    "exp": ("exp", np.exp),
    "relu": ("relu + .1", lambda x: np.maximum(x, 0) + 0.1),
    "square": ("relu^2 + .001", lambda x: np.maximum(x, 0) ** 2 + 1e-3),
}
"""By the label of the solver that keeps z: what it is called, and the feature map anew."""


def history(run: xr.DataTree, weigh: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the weights (trial, step, pair) of every pair written so far, 0 of later ones."""
    keys = run["stream/keys"].transpose("trial", "step", "key").values
    return np.tril(weigh(keys))


def values(run: xr.DataTree) -> np.ndarray:
    """Return the values (trial, step, value)."""
    return run["stream/values"].transpose("trial", "step", "value").values


def output(run: xr.DataTree, label: str) -> np.ndarray:
    """Return what a solver answers at every step, (trial, step, value)."""
    return run[f"solvers/{label}/output"].transpose("trial", "step", "value").values


@dataclass(frozen=True)
class Compared:
    """How far the running sums of one feature map are from the history, (trial, step, value)."""

    with_z: np.ndarray
    without: np.ndarray
    law: np.ndarray

    @classmethod
    def of(cls, run: xr.DataTree, label: str) -> Compared:
        """Walk over the whole history at every step, and compare."""
        phi = FEATURES[label][1]
        weights = history(run, lambda keys: phi(keys) @ phi(keys).swapaxes(1, 2))
        total = weights.sum(axis=2, keepdims=True)
        mean = weights @ values(run) / total
        return cls(
            np.abs(output(run, label) - mean), np.abs(output(run, f"{label}_bare") - mean),
            np.abs(mean * (total - 1)),
        )  # fmt: skip


def leftover(run: xr.DataTree) -> np.ndarray:
    """Return sum_j p_j (v_j - o) of softmax attention with weights p and answer o.

    It is the gradient, up to -2, of sum_j p_j |v_j - c|^2 in the local constant c, at c = o.
    """
    scale = run["solvers/softmax"].attrs["hyperparameters"]["scale"]
    p = history(run, lambda keys: np.exp(scale * keys @ keys.swapaxes(1, 2)))
    p /= p.sum(axis=2, keepdims=True)
    away = values(run)[:, None] - output(run, "softmax")[:, :, None]
    return np.abs(np.einsum("bts,btsv->btv", p, away))


@dataclass(frozen=True)
class Prefix(Report):
    """Linear attention's state (S, z) is the whole history; S alone is not."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return the largest differences over all prefixes, with and without the normaliser."""
        found = []
        steps, key = (run["stream"].sizes[d] for d in ("step", "key"))
        bound = 4 * (steps + key) * EPS * np.abs(values(run)).max()
        why = "rounding: two sums of positive weights, above and below, either way"
        for label, (name, _) in FEATURES.items():
            apart = Compared.of(run, label).with_z.max()
            found.append(Claim(f"{name}: (S, z) - history", apart, None, 0.0, float(bound), why))
        for label, (name, _) in FEATURES.items():
            one = Compared.of(run, label)
            law = float(one.law.max())
            found.append(Claim(
                f"{name}: S alone - history", one.without.max(), None, law, 1e-12 * law,
                "|answer| |z.q - 1|",
            ))  # fmt: skip
        found.append(Claim(
            "softmax: gradient of the local constant at the answer", leftover(run).max(), None, 0.0,
            float(bound), "the answer is its minimum",
        ))  # fmt: skip
        return found

    def tables(self, run: xr.DataTree) -> Sequence[Table]:
        """Return the differences beside the published range, of other random pairs."""
        ranges = {"with_z": ("2e-16", "9e-16"), "without": ("9.5", "98")}
        rows = []
        for what, (low, high) in ranges.items():
            ours = [getattr(Compared.of(run, label), what).max() for label in FEATURES]
            rows.append([what.replace("_", " ").replace("without", "without z"), low, high, *ours])
        columns = ["state", "published, least", "most", *(name for name, _ in FEATURES.values())]
        return [Table("differences", "Largest difference from the history", columns, rows)]

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return the differences at every prefix."""
        t = np.arange(1, run["stream"].sizes["step"] + 1)
        kept, lost = [], []
        for label, (name, _) in FEATURES.items():
            one = Compared.of(run, label)
            # A prefix of one pair, and some others, are equal to the last bit.
            kept.append(Curve(name, t, np.maximum(one.with_z.max(axis=(0, 2)), EPS / 8)))
            lost.append(Curve(name, t, one.without.max(axis=(0, 2))))
        x, y = "pairs so far", "largest difference from the history"
        trials = f"largest of {run['stream'].sizes['trial']} trials and all value channels"
        equal = Panel(
            x, y, kept, "With the normaliser", f"{trials}; dashed: eps; equal: at eps / 8", "y",
            levels=[(EPS, "")], y_range=(EPS / 16, 2e-15),
        )  # fmt: skip
        other = Panel(x, y, lost, "Without it", trials, "y")
        said = "The state (S, z) answers as a walk over the whole history does, at every prefix."
        return [Figure("prefix", said, [equal, other], columns=2)]


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the report on prefixes."""
    return {"prefix": Prefix}

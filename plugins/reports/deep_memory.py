"""A memory that is a network: how well it retrieves after each gradient step, and what moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Report, hookimpl

if TYPE_CHECKING:
    import xarray as xr

PUBLISHED = (0.0312, 0.0023)  # before and after
EXPECTED = (0.03125, 0.00225106)
"""A float64 run of the published network, rounded."""
LABELS = ("deep", "linear")


def retrieval(run: xr.DataTree, label: str) -> np.ndarray:
    """Return the mean squared error over all pairs before the first and after every write."""
    values = run["stream/value_book"].rename(entry="query").astype(float)
    error = run[f"probes/retrieval/{label}/read"] - values
    after = (error**2).mean(["query", "trial", "value"])
    # What a memory reads before it was written to: the first prediction, at any key.
    first = run[f"solvers/{label}/prediction"].isel(step=0)
    return np.concatenate([[float(((first - values) ** 2).mean())], after.values])


def moved(run: xr.DataTree, name: str) -> np.ndarray:
    """Return how far a weight matrix is from where it began, after every write."""
    start = run["stream"].get(f"{name}_start", 0.0)
    return np.asarray(
        ((run[f"solvers/deep/{name}"] - start) ** 2).sum(["hidden", _other(name)])[:, 0] ** 0.5
    )


def _other(name: str) -> str:
    return "key" if name == "W1" else "value"


@dataclass(frozen=True)
class DeepMemory(Report):
    """Retrieval of all pairs by a two-layer network that is trained while the stream runs."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return retrieval errors before and after the stream, and an empty network's answer."""
        error = retrieval(run, "deep")
        writes = len(error) - 1
        answer = np.abs(run["solvers/deep/prediction"].isel(step=0).values).max()
        six = "a float64 run, rounded"
        return [
            Claim("largest answer before the first write", answer, None, 0.0, 0.0,
                  "the output layer is zero"),
            Claim("retrieval error before", error[0], PUBLISHED[0], EXPECTED[0], 5e-7, six),
            Claim(f"retrieval error after {writes} writes", error[-1], PUBLISHED[1], EXPECTED[1],
                  5e-9, six),
        ]  # fmt: skip

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return retrieval against writes, and how far either layer moves."""
        curves = []
        for label, name in zip(LABELS, ("network", "linear map"), strict=True):
            error = retrieval(run, label)
            curves.append(Curve(name, np.arange(len(error)), error))
        writes = len(run["solvers/deep/W1"])
        ends = Curve("", [0, writes], PUBLISHED, look="points", like="network")
        found = Panel(
            "writes", "mean squared error of all 16 pairs", [*curves, ends],
            "Retrieval", "marks: published", "y",
        )  # fmt: skip
        after = np.arange(1, writes + 1)
        layers = [Curve("output, W2", after, moved(run, "W2"))]
        layers.append(Curve("hidden, W1", after, moved(run, "W1")))
        far = Panel(
            "writes", "distance of a layer from its start", layers, "What the network learns",
            y_range=(0.0, None),
        )  # fmt: skip
        said = "Sixteen pairs, visited 64 times in random order: how well all are retrieved."
        return [Figure("deep_memory", said, [found, far], columns=2)]


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the report on a memory that is a network."""
    return {"deep_memory": DeepMemory}

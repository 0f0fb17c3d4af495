"""What is in a run, as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.guard import REDRAWN
from engine.opening import open
from engine.store import group


def describe(path: str | Path) -> dict[str, Any]:
    """Return what is in a run, as plain values: the facts that `engine show` prints.

    Raises
    ------
    InputError
        If there is no run at `path`.
    """
    tree, root, variables = open(path), group(path), {}
    for node in tree.subtree:
        for name, x in node.to_dataset(inherit=False).variables.items():
            dims = {str(d): n for d, n in x.sizes.items()}
            full = f"{node.path}/{name}".lstrip("/")
            variables[full] = {
                "dims": dims, "dtype": str(x.dtype), "bytes": int(x.nbytes),
                "stored": full in root and REDRAWN not in root[full].attrs,
            }  # fmt: skip
    attrs, resolved = tree.attrs, tree.attrs["scenario"]["resolved"]
    if "parts" in attrs:
        sizes = {"parts": attrs["parts"]}
    else:
        steps, trials = root["stream/keys"].shape[:2]
        hashed = tree["stream"].attrs.get("sha256")
        sizes = {"steps": int(steps), "trials": int(trials), "stream_sha256": hashed}
    solvers = tree["solvers"].children if "solvers" in tree.children else {}
    names = ("dropped_at", "dropped_because")
    dropped = {
        label: {n: node.attrs[n] for n in names}
        for label, node in solvers.items()
        if names[0] in node.attrs
    }
    return {
        **{key: attrs[key] for key in ("format", "status", "committed", "scenario", "provenance")},
        **({"sealed": attrs["sealed"]} if "sealed" in attrs else {}),
        **sizes,
        **({"dropped": dropped} if dropped else {}),
        "solvers": resolved["solvers"],
        "bytes_on_disk": sum(f.stat().st_size for f in Path(path).rglob("*") if f.is_file()),
        "variables": variables,
    }

"""A stored stream through the same solvers again, or through others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import experiment, opening, sealed, store
from engine.agreement import tolerance
from engine.experiment import Plan
from engine.recorded import RunStream, restored, scenario_sha256
from engine.recorder import MemorySink

if TYPE_CHECKING:
    import xarray as xr


def replay(
    path: str | Path,
    solvers: Sequence[str] | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    **overrides: Any,
) -> xr.DataTree:
    """Send the stream of a stored run through its solvers again, or through others.

    Parameters
    ----------
    path : str or Path
        A run's store. Of a run that did not finish, the steps that are complete.
    solvers : sequence of str, or mapping of str to table, optional
        Labels of the run or names of registered solvers; or tables as a scenario has them, by
        label. None is the solvers of the run.
    out : str or Path, optional
        Where to store the new run; None keeps it in memory.
    **overrides
        As for `engine.run`, except that nothing of the stream may be set.

    Returns
    -------
    DataTree
        The new run. Its attribute `parent` names the old one: path, hash of the stream and of the
        scenario, kernels of the solvers that both have.

    Raises
    ------
    InputError
        If there is no run at `path`, a solver or an override is wrong, or `out` is taken.
    RunError
        If a solver failed, or what is read is damaged.
    """
    plan = prepare(path, solvers, overrides)
    if out is None:
        sink = MemorySink()
        experiment.execute(plan, sink)
        return sink.tree()
    experiment.execute(plan, experiment.store_sink(plan, Path(out)))
    return opening.open(out)


def prepare(
    path: str | Path,
    solvers: Sequence[str] | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of a replay."""
    path = Path(path).expanduser()
    root = store.group(path)
    attrs: dict[str, Any] = root.attrs.asdict()
    asked_before = attrs["scenario"]["resolved"]
    before = {label: dict(x) for label, x in asked_before["solvers"].items()}
    made = restored(path, attrs, solvers, overrides)
    source = RunStream(path)
    made.resolved["stream"] = {**made.resolved["stream"], "steps": source.steps}
    asked = {n: probe.up_to(source.steps or 0) for n, probe in made.table.probes.items()}
    made.table.probes = {n: probe for n, probe in asked.items() if probe}
    made.resolved["probes"] = {n: p.model_dump() for n, p in made.table.probes.items()}
    asked_before = {**asked_before, "stream": made.resolved["stream"]}  # as far as it is complete
    seal = attrs.get("sealed")
    parent = {
        "path": str(path.resolve()),
        "stream_sha256": root["stream"].attrs.get("sha256"),
        "scenario_sha256": scenario_sha256(attrs),
        "kernels": {
            label: root[f"solvers/{label}"].attrs["kernel"]
            for label, table in made.resolved["solvers"].items()
            if before.get(label) == table
        },
        **({"sealed": seal} if seal else {}),
    }
    return Plan(
        made, source, experiment.tracks(made, source), experiment.questions(made, source), parent,
        seal and sealed.inherited(seal, asked_before, made.resolved),
    )  # fmt: skip


def kernels(plan: Plan) -> Iterator[str]:
    """Say of each solver of the parent that ran in another form which, and what that may change."""
    parent: Mapping[str, Any] = plan.parent or {}
    for track in plan.tracks:
        then = parent.get("kernels", {}).get(track.label, track.kernel)
        if then != track.kernel:
            allowed = tolerance(track.dtype, plan.source.steps or 0, track.sizes["key"])
            yield (
                f"{track.label}: kernel {then} in {parent['path']}, kernel {track.kernel} here: "
                f"equal up to {allowed:.2g} of the largest number so far (at least 1)"
            )

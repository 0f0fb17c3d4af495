"""What a run's probes say of its capacity: every pair that was asked for, by age and by load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import InputError, nearest
from engine.measure import capacity
from engine.measure.runs import mapped, solver_of, view_of

if TYPE_CHECKING:
    import xarray as xr


def _probe(run: xr.DataTree, probe: str) -> xr.Dataset:
    probes = run["probes"].children if "probes" in run.children else {}
    if probe not in probes:
        raise InputError(f"the run has no probe {probe!r}; {nearest(probe, probes)}")
    return probes[probe].to_dataset()


def _right(run: xr.DataTree, label: str, wanted: xr.DataArray) -> xr.DataArray:
    """Return the value that is right for each query, NaN where none is, as the solver knows it."""
    import xarray as xr

    stream = run["stream"].to_dataset()
    booked = "value_book" in stream and "value_id" in stream
    book = stream["value_book"] if booked else stream["values"]
    entry = next(d for d in book.dims if d not in ("trial", "value"))
    book = book.rename({entry: "entry"}).transpose("trial", "entry", "value")
    view = view_of(solver_of(run, label))
    values = np.asarray(mapped(view, book.values))
    w = wanted.transpose("trial", ...)
    rows = np.maximum(w.values, 0).reshape(w.shape[0], -1)
    right = np.take_along_axis(values, rows[..., None], axis=1).reshape(*w.shape, -1)
    right = np.where(w.values[..., None] < 0, np.nan, right)
    return xr.DataArray(right, dims=(*w.dims, "value"))


def pairs(run: xr.DataTree, probe: str, label: str, /) -> xr.Dataset:
    """Return what a solver answered to each query of a probe, measured against what is right.

    Parameters
    ----------
    run : DataTree
        A run, in memory or lazy.
    probe : str
        The probe's name.
    label : str
        The solver's label.

    Returns
    -------
    Dataset (query, trial), with probe_step in front if it was asked at several steps
        What the run recorded of each answer (`recalled`, `rank`, `intruded`), and `error`,
        |read - v|, `cosine`, `signal` and `interference` as `capacity` has them; NaN where nothing
        is wanted. `age`, the writes since the pair's own, where the probe asks for the keys that
        were written; -1 where nothing is wanted.

    Raises
    ------
    InputError
        If the run has no such probe.
    """
    import xarray as xr

    node = _probe(run, probe)
    given, wanted = run[f"probes/{probe}/{label}"].to_dataset(), node["wanted"]
    read, right = given["read"], _right(run, label, wanted)
    kept: dict[str, Any] = {
        name: given[name] for name in ("recalled", "rank", "intruded") if name in given
    }
    made = xr.Dataset({
        **kept,
        "error": capacity.value_error(read, right),
        "cosine": capacity.cosine(read, right),
        "signal": capacity.signal(read, right),
        "interference": capacity.interference(read, right),
    })  # fmt: skip
    asked = run.attrs.get("scenario", {}).get("resolved", {}).get("probes", {}).get(probe, {})
    if (asked or {}).get("ask", "keys") == "keys" and not (asked or {}).get("queries"):
        made["age"] = _age(run, node, wanted)
    return made.transpose(*wanted.dims)


def recall(run: xr.DataTree, probe: str, label: str, /, where: Any = None) -> xr.DataArray:
    """Return the share of a probe's queries that a solver recalled, of each trial.

    Parameters
    ----------
    run : DataTree
        A run, in memory or lazy.
    probe : str
        The probe's name.
    label : str
        The solver's label.
    where : array of bool (query, trial), optional
        Which queries count; default: all to which there is an answer.

    Returns
    -------
    DataArray (trial,), with probe_step in front if it was asked at several steps
        NaN where no query counts.

    Raises
    ------
    InputError
        If the run has no such probe, or no such solver.
    """
    import xarray as xr

    _probe(run, probe)
    solver_of(run, label)
    hit = run[f"probes/{probe}/{label}"].to_dataset()["recalled"]
    if where is not None:
        hit = hit.where(xr.DataArray(np.asarray(where, dtype=bool), dims=("query", "trial")))
    return hit.mean("query")


def _age(run: xr.DataTree, node: xr.Dataset, wanted: xr.DataArray) -> xr.DataArray:
    """Return the writes since each query's own, -1 where nothing is wanted."""
    import xarray as xr

    stream = run["stream"].to_dataset()
    steps, trials = stream.sizes["step"], stream.sizes["trial"]
    wrote = stream["mask"].transpose("step", "trial").values if "mask" in stream else True
    writes = np.cumsum(np.broadcast_to(wrote, (steps, trials)), axis=0)
    stops = np.atleast_1d(node["probe_step"].values if "probe_step" in node else steps)
    own = writes[: wanted.sizes["query"]]
    age = writes[stops - 1][:, None] - own  # (probe_step, query, trial)
    dims = ("probe_step", "query", "trial")
    whole = xr.DataArray(age, dims=dims)
    whole = whole if "probe_step" in wanted.dims else whole.isel(probe_step=0)
    return whole.where(wanted >= 0, -1)


def by_age(run: xr.DataTree, probe: str, label: str, edges: Any, /, of: str = "recalled") -> Any:
    """Return a measure of a probe's answers against the age of their pairs.

    Parameters
    ----------
    run : DataTree
        A run, in memory or lazy.
    probe : str
        The probe's name; it must ask for the keys that were written.
    label : str
        The solver's label.
    edges : sequence of int
        Bin i holds ages from edges[i] up to, not including, edges[i + 1].
    of : str
        One of the variables of `pairs`.

    Returns
    -------
    DataArray (trial, age), with probe_step too if it was asked at several steps
        Coordinate `age` is the lower edge. `statistics.estimate` makes intervals of it.

    Raises
    ------
    InputError
        If the run has no such probe, or it does not ask for the keys that were written.
    """
    made = pairs(run, probe, label)
    if "age" not in made:
        raise InputError(f"probe {probe!r} does not ask for the keys that were written: no ages")
    x = made[of].where(made["age"] >= 0)
    return capacity.by_age(x, made["age"], edges).assign_coords(age=np.asarray(edges)[:-1])


def by_load(run: xr.DataTree, probe: str, label: str, /, of: str = "recalled") -> Any:
    """Return the mean of a measure over the pairs held, at every step of a probe.

    Parameters
    ----------
    run : DataTree
        A run, in memory or lazy.
    probe : str
        The probe's name.
    label : str
        The solver's label.
    of : str
        One of the variables of `pairs`.

    Returns
    -------
    DataArray (load, trial)
        Coordinate `load` is N/d: the keys bound at that step (the most in any trial), over the
        length of the stream's keys. The trials of all loads are prefixes of the same streams:
        `capacity.crossing(x["load"], x, shared=True)` is the load at which it falls below one half.

    Raises
    ------
    InputError
        If the run has no such probe.
    """
    node = _probe(run, probe)
    x = pairs(run, probe, label)[of].where(node["wanted"] >= 0).mean("query")
    bound = (node["wanted"] >= 0).sum("query").max("trial") / run["stream"].sizes["key"]
    if "probe_step" not in x.dims:
        return x.expand_dims(load=[float(bound)])
    x = x.drop_vars("probe_step", errors="ignore").rename(probe_step="load")
    return x.assign_coords(load=bound.values)

"""What a run recorded, in the form that measures need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.api import View
from engine.errors import InputError, nearest

if TYPE_CHECKING:
    import xarray as xr


def mapped(view: View | None, values: Any, /) -> Any:
    """Return values as a solver behind a view is given them.

    Parameters
    ----------
    view : View or None
        What the solver looks at the stream through.
    values : array (..., value)
        Values of the stream.

    Returns
    -------
    array (..., value)
        The values that the solver writes.
    """
    # A view that does not inherit from engine.api.View may have no such method.
    return values if view is None or not hasattr(view, "values") else view.values(values)


def solver_of(run: xr.DataTree, label: str, /) -> xr.Dataset:
    """Return what a run recorded of a solver.

    Parameters
    ----------
    run : DataTree
        A run.
    label : str
        The solver's label.

    Returns
    -------
    Dataset
        Group `solvers/<label>`.

    Raises
    ------
    InputError
        If the run has no solver of that label.
    """
    labels = list(map(str, run["solvers"].children))
    if label not in labels:
        raise InputError(f"the run has no solver {label!r}; {nearest(label, labels)}")
    return run[f"solvers/{label}"].to_dataset()


def view_of(solver: xr.Dataset, /) -> View | None:
    """Return the view that a recorded solver looked through.

    Parameters
    ----------
    solver : Dataset
        Group `solvers/<label>` of a run.

    Returns
    -------
    View or None
        None if it saw the stream as it is.
    """
    from engine import factories

    options = dict(solver.attrs.get("view") or {})
    return factories.build("view", options.pop("view"), options) if options else None


def rule_of(solver: xr.Dataset, /) -> Any:
    """Return the rule of a recorded solver, with its hyperparameters.

    Parameters
    ----------
    solver : Dataset
        Group `solvers/<label>` of a run.

    Returns
    -------
    Solver
        As `engine.solver` makes it.

    Raises
    ------
    InputError
        If no such plugin is installed.
    """
    from engine import factories

    hyper = dict(solver.attrs.get("hyperparameters") or {})
    # What was left at None is the plugin's own default, which a scenario could not have stated.
    given = {name: x for name, x in hyper.items() if x is not None}
    return factories.build("solver", solver.attrs["solver"], given)

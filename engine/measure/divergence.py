"""Why a run diverged: the first bad step, what crossed which bound before it, what would hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import linear, signatures
from engine.measure import laws
from engine.measure.runs import mapped, rule_of, solver_of, view_of
from engine.measure.state import smallest_eigenvalue

if TYPE_CHECKING:
    import xarray as xr

    from engine.linear import Token


@dataclass(frozen=True)
class Divergence:
    """Why one trial of one solver diverged.

    Parameters
    ----------
    label : str
        The solver's label.
    trial : int
        Which trial.
    step : int
        First step whose state or read is not finite.
    quantity : str
        What crossed its bound.
    bound : float
        Its bound.
    crossed : int
        First step at which it did; -1 if nothing that is known did.
    worst : int
        Step, up to the first bad one, at which it was furthest beyond.
    value : float
        What it was there.
    holds : dict of str to float
        Coefficients, each by itself, that would have kept it within its bound at all steps seen,
        the others as they were.
    stable : str
        The range of stability on the solver's card.
    """

    label: str
    trial: int
    step: int
    quantity: str
    bound: float
    crossed: int
    worst: int
    value: float
    holds: dict[str, float] = field(default_factory=dict)
    stable: str = ""

    def __str__(self) -> str:
        text = f"{self.label}, trial {self.trial}: not finite from step {self.step}"
        if self.crossed < 0:
            text += "; no bound that is known was crossed before"
        else:
            text += (
                f"; {self.quantity} passed {self.bound:.4g} at step {self.crossed} and was "
                f"{self.value:.4g} at step {self.worst}"
            )
        if self.holds:
            settings = " or ".join(f"{name} <= {x:.4g}" for name, x in self.holds.items())
            text += f"; {settings} would have held"
        elif self.stable:
            text += f"; its card says it is stable for {self.stable}"
        return text


def explain(run: xr.DataTree, label: str, /) -> list[Divergence]:
    """Return why each trial of a solver that diverged did so.

    Parameters
    ----------
    run : DataTree
        A run, in memory or lazy.
    label : str
        The solver's label.

    Returns
    -------
    list of Divergence
        One per trial that diverged, in order; empty if none did. Looked for, in this order: numbers
        of the stream that are not finite; for delta rules, strength |k|^2 above 2; for those with
        momentum, the law of `laws.titans_bound`, at the gap since the key's last visit where the
        stream has `key_id`, else the bound that is safe at every gap (the law is of gaps that do
        not change: where they do, its setting is a guide); a recorded covariance P with
        a negative eigenvalue; a state whose square overflows.

    Examples
    --------
    >>> import engine
    >>> run = engine.run({"stream": {"generator": "random", "steps": 2000, "key": 2, "value": 2},
    ...                   "solvers": {"delta": {"beta": 4.0}}})
    >>> print(str(explain(run, "delta")[0]).rpartition("; ")[2])
    beta <= 2 would have held
    """
    import xarray as xr

    solver, stream = solver_of(run, label), run["stream"].to_dataset()
    rule, view = rule_of(solver), view_of(solver)
    stable = getattr(getattr(rule, "card", None), "stable", "")
    found = []
    for trial, step in enumerate(solver["diverged_at"].values.tolist()):
        if step < 0:
            continue
        rows = {"trial": trial, "step": slice(step + 1)}
        tokens = {
            n: x.isel(rows, missing_dims="ignore").values
            for n, x in stream.data_vars.items()
            if n in ("keys", "values", "mask", "key_id") and "step" in x.dims
        }
        keys, values = tokens["keys"], tokens["values"]
        if view is not None:
            keys, values = np.asarray(view(keys)), np.asarray(mapped(view, values))
        wrote = tokens.get("mask", np.ones(len(keys))).astype(bool)
        coefficients = {
            name: _column(solver[name].isel(rows, missing_dims="ignore"), len(keys))
            for name, d in signatures.coefficients(type(rule)).items()
            if name in solver and set(d.methods) & {"write", "token"}
        }
        cause = (
            _not_finite("an entry of a key", keys, wrote)
            or _not_finite("an entry of a value", values, wrote)
            or _unstable(rule, keys, values, wrote, coefficients, tokens.get("key_id"))
            or _indefinite(solver.get("P", xr.DataArray()).isel(rows, missing_dims="ignore"))
            or _overflow(solver, rows)
            or {"quantity": "", "bound": np.nan, "crossed": -1, "worst": -1, "value": np.nan}
        )
        found.append(Divergence(label, trial, step, **cause, stable=stable))
    return found


def _column(x: xr.DataArray, steps: int) -> np.ndarray:
    """Return a recorded coefficient as (step, 1), or (step, n) if it has an axis of its own."""
    axes = [d for d in x.dims if d != "step"]
    x = x if "step" in x.dims else x.expand_dims(step=steps)
    array = np.asarray(x.transpose("step", *axes).values, dtype=np.float64)
    return array if axes else array[:, None]


def _crossing(quantity: str, value: np.ndarray, bound: Any) -> dict[str, Any] | None:
    """Return where a quantity passed its bound first, and where by most."""
    bound = np.broadcast_to(bound, value.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        over = value > bound
        excess = np.where(over, value / bound, -np.inf)
    if not over.any():
        return None
    worst = int(np.argmax(excess))
    return {
        "quantity": quantity, "bound": float(bound[worst]), "crossed": int(np.argmax(over)),
        "worst": worst, "value": float(value[worst]),
    }  # fmt: skip


def _not_finite(quantity: str, x: np.ndarray, wrote: np.ndarray) -> dict[str, Any] | None:
    size = np.where(wrote, np.where(np.isfinite(x), 0.0, np.inf).max(-1), 0.0)
    found = _crossing(quantity, size, np.finfo(np.float64).max)
    return found and {**found, "worst": found["crossed"]}


def _unstable(
    rule: Any, keys: np.ndarray, values: np.ndarray, wrote: np.ndarray,
    coefficients: dict[str, np.ndarray], key_id: np.ndarray | None,
) -> dict[str, Any] | None:  # fmt: skip
    """Return where a rule of the linear family took back too much of its error."""
    if not isinstance(rule, linear.LinearRule):
        return None

    def taken(scaled: str = "") -> tuple[Token, Any]:
        token = rule.token(
            keys, values, **{n: x / 2 if n == scaled else x for n, x in coefficients.items()}
        )
        size: Any = linear.correction(token)
        if size is None and token.momentum is not None and token.address is not None:
            # The same for the velocity, which enters the state by `gain`.
            size = linear.correction(token._replace(momentum=None))
            size = size if size is None or token.gain is None else size * token.gain
        return token, None if size is None else np.where(wrote, size[..., 0], 0.0)

    token, size = taken()
    if size is None:
        return None
    quantity, bound = "strength |k|^2", np.full(len(size), linear.STABLE)
    if token.momentum is not None:
        bound = _law(token, len(size), key_id)
        at = "at the gap since its last visit" if key_id is not None else "safe at every gap"
        quantity = f"strength |k|^2 (bound {at})"
    found = _crossing(quantity, size, bound)
    if found is None:
        return None
    factor = np.min(np.where(size > 0, bound / np.where(size > 0, size, 1.0), np.inf))
    holds = {}
    for name, x in coefficients.items():
        _, half = taken(name)
        constant = (x == x[:1]).all()
        # A coefficient that it is proportional to can be turned down to where it holds.
        if constant and half is not None and np.allclose(half, size / 2, rtol=1e-9):
            holds[name] = float(x.max() * factor)
    return {**found, "holds": holds}


def _law(token: Token, steps: int, key_id: np.ndarray | None) -> np.ndarray:
    """Return the bound of the momentum law at every step, by the gap since the key's last visit."""

    def column(x: Any, absent: float) -> np.ndarray:
        return np.broadcast_to(np.asarray(absent if x is None else x.max(axis=-1)), (steps,))

    eta, decay = column(token.momentum, 0.0), column(token.decay, 1.0)
    gap = np.zeros(steps, dtype=int)
    seen: dict[int, int] = {}
    for t, key in enumerate([] if key_id is None else key_id.tolist()):
        gap[t] = t - seen[key] if key in seen else 0
        seen[key] = t
    known: dict[tuple[float, float, int], float] = {}
    bound = np.empty(steps)
    for t in range(steps):
        setting = float(eta[t]), float(decay[t]), int(gap[t])
        if setting not in known:
            if setting[2]:
                known[setting] = laws.titans_bound(setting[0], 1 - setting[1], setting[2])
            else:  # a first visit has nothing to overshoot
                safe = laws.titans_bound(setting[0], 1 - setting[1])
                known[setting] = np.inf if key_id is not None else safe
        bound[t] = known[setting]
    return bound


def _indefinite(P: xr.DataArray) -> dict[str, Any] | None:
    """Return where a covariance lost its definiteness."""
    if not {"step", "key", "key_2"} <= set(P.dims):
        return None
    least = smallest_eigenvalue(P).values
    found = _crossing("minus the smallest eigenvalue of P", -least, 0.0)
    worst = int(np.nanargmin(least)) if found else -1
    return found and {**found, "worst": worst, "value": float(-least[worst])}


def _overflow(solver: xr.Dataset, rows: dict[str, Any]) -> dict[str, Any] | None:
    """Return where the first recorded state variable became too large to be squared."""
    found = []
    for name, x in solver.data_vars.items():
        if x.dtype.kind != "f" or not {"step", "key"} <= set(x.dims):
            continue
        last = x.isel(rows, missing_dims="ignore")
        axes = [d for d in last.dims if d != "step"]
        size = abs(last).max(axes, skipna=False).values
        bound = np.sqrt(np.finfo(x.dtype).max)
        cause = _crossing(f"the largest entry of {name}", np.nan_to_num(size, nan=np.inf), bound)
        if cause:
            before = np.flatnonzero(np.isfinite(size) & (size > bound))
            worst = int(before[-1]) if len(before) else cause["crossed"]
            found.append({**cause, "worst": worst, "value": float(size[worst])})
    return min(found, key=lambda c: int(c["crossed"]), default=None)

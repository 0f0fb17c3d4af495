"""How far a memory is from the exact solution of the problem that its stream poses, and why.

At step t the exact fit W* minimises sum_i w_i |W^T k_i - v_i|^2 + r |W|^2 over the pairs written so
far, w_i the product of the decays since; A = sum w_i k_i k_i^T, B = sum w_i k_i v_i^T, so
W* = (A + r I)^-1 B. Where a map W_i made each value, v_i = W_i^T k_i + noise, the error of a state
S is the sum of three maps:

    S - W_t  =  (S - W*)  +  (W* - W')  +  (W' - W_t)
                solver gap   staleness     interference

W' is the exact fit of the same keys, noise and weights, had the map always been W_t. So the gap is
what a better solver would remove, staleness what the map's motion costs a fit with this history,
interference what is missed even so: noise, too few pairs, the ridge. Energies are inner products
with the whole error, <part, S - W_t>: they sum to |S - W_t|^2 exactly, and one of them is negative
where it makes up for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.measure.lift import BLOCK_BYTES, lift
from engine.measure.runs import mapped, solver_of, view_of

if TYPE_CHECKING:
    import xarray as xr


class Sums(NamedTuple):
    """What the exact fit needs of the past; arrays have the stream's trial axes first.

    Parameters
    ----------
    A, B, C : array (..., key, key), (..., key, value) twice
        Weighted sums of k k^T, k v^T and k k^T W, W the map that made v.
    ridge : array (...)
        Its weight r now.
    values : array (...)
        Weighted sum of |v|^2.
    """

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    ridge: np.ndarray
    values: np.ndarray


def _empty(keys: np.ndarray, values: np.ndarray, ridge: float) -> Sums:
    lead, d, n = keys.shape[1:-1], keys.shape[-1], values.shape[-1]
    zero = np.zeros((*lead, d, n))
    return Sums(np.zeros((*lead, d, d)), zero, zero, np.full(lead, float(ridge)), np.zeros(lead))


def _advance(
    s: Sums, keys: np.ndarray, values: np.ndarray, maps: np.ndarray | None,
    gamma: Any, mask: Any, decaying: bool,
) -> tuple[Sums, Sums]:  # fmt: skip
    """Return the sums after a block of steps, and the sums after every one of them."""
    n, lead = keys.shape[0], keys.shape[1:-1]
    gamma, wrote = (_spread(x, n, len(lead), lead) for x in (gamma, mask))
    every = Sums(*(np.empty((n, *x.shape)) for x in s))
    for t in range(n):
        w = wrote[t].astype(bool)
        # A masked step writes nothing and forgets nothing; what stands there may be NaN.
        g = np.where(w, gamma[t], 1.0)
        k, v = (np.where(w[..., None], x[t], 0.0).astype(np.float64) for x in (keys, values))
        kk, G = k[..., :, None] * k[..., None, :], g[..., None, None]
        A, B = G * s.A + kk, G * s.B + k[..., :, None] * v[..., None, :]
        C = s.C if maps is None else G * s.C + kk @ np.asarray(maps[t], dtype=np.float64)
        s = Sums(A, B, C, s.ridge * g if decaying else s.ridge, g * s.values + (v * v).sum(-1))
        for whole, x in zip(every, s, strict=True):
            whole[t] = x
    return s, every


def _spread(x: Any, n: int, axes: int, lead: tuple[int, ...]) -> np.ndarray:
    """Return a number, (step,) or (step, ...) as (step, ...)."""
    x = np.asarray(1.0 if x is None else x, dtype=np.float64)
    x = x.reshape(x.shape + (1,) * (axes + 1 - x.ndim)) if x.ndim else x
    return np.broadcast_to(x, (n, *lead))


def _solve(s: Sums, right: np.ndarray) -> np.ndarray:
    """Return (A + r I)^-1 times something; the solution of least norm where r is 0."""
    if (s.ridge > 0).all():
        eye = s.ridge[..., None, None] * np.eye(s.A.shape[-1])
        return np.asarray(np.linalg.solve(s.A + eye, right))
    return np.asarray(np.linalg.pinv(s.A, rcond=1e-12, hermitian=True) @ right)


def _block(keys: np.ndarray, values: np.ndarray) -> int:
    size = np.prod(keys.shape[1:-1], dtype=int) * keys.shape[-1]
    row = 8 * int(size) * (3 * keys.shape[-1] + 4 * values.shape[-1])
    return int(max(1, BLOCK_BYTES // max(row, 1)))


def least_squares(
    keys: Any, values: Any, /, gamma: Any = 1.0, ridge: float = 1e-6, mask: Any = None,
    decaying: bool = False,
) -> Any:  # fmt: skip
    """Return the exact weighted least-squares fit to the pairs written so far, at every step.

    Parameters
    ----------
    keys, values : array (step, ..., key) and (step, ..., value), or DataArrays with these dims
        The stream.
    gamma : float or array (step,) or (step, ...)
        Decay per step; of DataArrays, a number or a DataArray.
    ridge : float
        r, the weight of |W|^2, at least 0; at 0 the fit is the one of least norm.
    mask : array of bool (step, ...), optional
        False where a step writes nothing, and so forgets nothing.
    decaying : bool
        Whether the ridge is forgotten as pairs are, r gamma^t: what recursive least squares solves.

    Returns
    -------
    array (step, ..., key, value), or DataArray with these dims
        In float64, from the running sums A and B, each step solved by itself.

    Examples
    --------
    >>> least_squares(np.array([[1.0], [1.0]]), np.array([[2.0], [4.0]]), ridge=0).ravel().tolist()
    [2.0, 3.0]
    """

    def fits(k: np.ndarray, v: np.ndarray, g: np.ndarray, m: np.ndarray) -> np.ndarray:
        # Of DataArrays, the step axis comes behind the trials.
        k, v = np.moveaxis(k, -2, 0), np.moveaxis(v, -2, 0)
        g, m = np.moveaxis(g, -1, 0), np.moveaxis(m, -1, 0)
        found = _fits(k, v, g, ridge, m, decaying)
        return np.moveaxis(found, 0, -3)

    if not hasattr(keys, "dims"):
        return _fits(np.asarray(keys), np.asarray(values), gamma, ridge, mask, decaying)
    import xarray as xr

    steps = xr.ones_like(keys["step"], dtype=float).drop_vars("step", errors="ignore")
    g = gamma * steps
    m = steps if mask is None else mask.astype(float)
    dims = [["step", "key"], ["step", "value"], ["step"], ["step"]]
    found = lift(fits, dims, keys, values, g, m, out=["step", "key", "value"])
    return found.transpose("step", ..., "key", "value")


def _fits(
    keys: np.ndarray, values: np.ndarray, gamma: Any, ridge: float, mask: Any, decaying: bool
) -> np.ndarray:
    """Return `least_squares` of arrays."""
    n, axes, lead = len(keys), keys.ndim - 2, keys.shape[1:-1]
    gamma, mask = (_spread(x, n, axes, lead) for x in (gamma, mask))
    out = np.empty((*keys.shape, values.shape[-1]))
    sums, block = _empty(keys, values, ridge), _block(keys, values)
    for start in range(0, n, block):
        at = slice(start, start + block)
        sums, every = _advance(sums, keys[at], values[at], None, gamma[at], mask[at], decaying)
        out[at] = _solve(every, every.B)
    return out


class Split(NamedTuple):
    """The squared error of a state and its three parts, which sum to it.

    Parameters
    ----------
    gap, staleness, interference : array (...)
        <part, S - W>: what the solver, the map's motion and the data themselves account for.
    error : array (...)
        |S - W|^2.
    """

    gap: Any
    staleness: Any
    interference: Any
    error: Any


def split(S: Any, fit: Any, still: Any, target: Any, /) -> Split:
    """Return how solver gap, staleness and interference make up a squared error.

    Parameters
    ----------
    S, fit, still, target : arrays of one shape (..., key, value)
        The state, the exact fit of its problem, the exact fit had the target not moved, and the
        target. Answers (..., 1, value) to a key serve as well as whole maps.

    Returns
    -------
    Split
        gap + staleness + interference = error, up to rounding: the parts telescope.

    Examples
    --------
    >>> [float(x) for x in split(*(np.full((1, 1), x) for x in (4.0, 3.0, 1.0, 0.0)))]
    [4.0, 8.0, 4.0, 16.0]
    """
    error = S - target

    def along(part: Any) -> Any:
        return np.einsum("...kv,...kv->...", part, error)[()]

    return Split(along(S - fit), along(fit - still), along(still - target), along(error))


def split_at(
    S: np.ndarray, keys: np.ndarray, values: np.ndarray, target_map: np.ndarray, /,
    gamma: Any = 1.0, ridge: float = 1e-6, mask: Any = None, decaying: bool = False,
) -> Split:  # fmt: skip
    """Return the split of |S - W|^2 at every step of a stream whose maps are known.

    Parameters
    ----------
    S, target_map : array (step, ..., key, value)
        Recorded states and the maps that made the values.
    keys, values : array (step, ..., key) and (step, ..., value)
        The stream.
    gamma : float or array (step,) or (step, ...)
        Decay per step of the problem that the solver is held against.
    ridge : float
        Weight of |W|^2, at least 0.
    mask : array of bool (step, ...), optional
        False where a step writes nothing.
    decaying : bool
        Whether the ridge is forgotten as pairs are.

    Returns
    -------
    Split
        Arrays (step, ...).
    """
    made = _against(
        {"S": S, "keys": keys, "values": values, "target_map": target_map, "gamma": gamma,
         "mask": mask}, _empty(keys, values, ridge), decaying,
    )[1]  # fmt: skip
    return Split(made["gap"], made["staleness"], made["interference"], made["error"])


def regret(
    prediction: np.ndarray, keys: np.ndarray, values: np.ndarray, /, ridge: float = 1e-6,
    mask: Any = None,
) -> np.ndarray:  # fmt: skip
    """Return the regret at every step: summed prequential loss over that of the best fixed map.

    R_t = sum_(i<=t) |p_i - v_i|^2 - min_W [sum_(i<=t) |W^T k_i - v_i|^2 + r |W|^2], every pair of
    weight 1; p_i is read before pair i is written. It grows like the logarithm of t for recursive
    least squares, linearly for a solver that does not converge.

    Parameters
    ----------
    prediction, values : array (step, ..., value)
        The read at each key before its write, and what was then written.
    keys : array (step, ..., key)
        The keys.
    ridge : float
        r, at least 0.
    mask : array of bool (step, ...), optional
        False where a step writes nothing: it has no loss.

    Returns
    -------
    array (step, ...)
        Negative where following the map was better than any one map.
    """
    made = _against(
        {"prediction": prediction, "keys": keys, "values": values, "mask": mask},
        _empty(keys, values, ridge), False,
    )[1]  # fmt: skip
    return np.asarray(np.cumsum(made["loss"], axis=0) - made["best"])


def _against(
    given: Mapping[str, Any], sums: Sums, decaying: bool
) -> tuple[Sums, dict[str, np.ndarray]]:
    """Return what `against_optimum` does, for some steps after those summed up already.

    Beside it: "loss", of single steps, and "best", that of the best map.
    """
    keys, values, maps = given["keys"], given["values"], given.get("target_map")
    n, axes, lead = len(keys), keys.ndim - 2, keys.shape[1:-1]
    gamma, mask = (_spread(given.get(x), n, axes, lead) for x in ("gamma", "mask"))
    parts: list[dict[str, np.ndarray]] = []
    block = _block(keys, values)
    for start in range(0, n, block):
        at = slice(start, start + block)
        sums, every = _advance(
            sums, keys[at], values[at], None if maps is None else maps[at], gamma[at], mask[at],
            decaying,
        )  # fmt: skip
        fit, out = _solve(every, every.B), {}
        if "S" in given:
            S = np.asarray(given["S"][at], dtype=np.float64)
            with np.errstate(over="ignore", invalid="ignore"):  # of a state that diverged
                out["distance"] = np.sqrt(np.sum((S - fit) ** 2, axis=(-2, -1)))
                if maps is not None:
                    stale = _solve(every, every.C - every.A @ maps[at])
                    out |= split(S, fit, fit - stale, maps[at])._asdict()
        if "prediction" in given:
            out["best"] = every.values - np.sum(every.B * fit, axis=(-2, -1))
            wrote = mask[at].astype(bool)
            with np.errstate(over="ignore", invalid="ignore"):
                loss = np.sum((given["prediction"][at] - values[at]) ** 2, axis=-1)
            out["loss"] = np.where(wrote, loss, 0.0)
        parts.append(out)
    return sums, {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def against_optimum(
    run: xr.DataTree, label: str, /, gamma: Any = None, ridge: float | None = None,
    decaying: bool = False,
) -> xr.Dataset:  # fmt: skip
    """Return a solver's distance from the exact fit of its stream, and why, at every step of a run.

    Parameters
    ----------
    run : DataTree
        A run, in memory or lazy: as many steps as fit are read at a time.
    label : str
        The solver's label.
    gamma : float or DataArray, optional
        Decay of the problem that it is held against; default: its own recorded `gamma` if that is
        one number per step, else 1.
    ridge : float, optional
        Weight of |W|^2; default: its own hyperparameter `ridge`, else 1e-6.
    decaying : bool
        Whether the ridge is forgotten as pairs are (true of recursive least squares).

    Returns
    -------
    Dataset (step, trial)
        `regret`, against the best single map in hindsight; `distance`, |S - W*|, where the states
        S were recorded; `gap`, `staleness`, `interference` and their sum `error`, |S - W|^2, where
        the stream knows its map too and no view stands between.
    """
    import xarray as xr

    solver, stream = solver_of(run, label), run["stream"].to_dataset()
    view = view_of(solver)
    names = {"keys": stream["keys"], "values": stream["values"], "prediction": solver["prediction"]}
    if "step" in solver.get("S", xr.DataArray()).dims:
        names["S"] = solver["S"]
        if view is None and "target_map" in stream:
            names["target_map"] = stream["target_map"]
    if "mask" in stream:
        names["mask"] = stream["mask"]
    own = solver.get("gamma")
    if gamma is None:
        gamma = own if own is not None and set(own.dims) <= {"step", "trial"} else 1.0
    if ridge is None:
        ridge = float(solver.attrs.get("hyperparameters", {}).get("ridge") or 1e-6)
    gamma = xr.DataArray(gamma)
    steps, trials = stream.sizes["step"], stream.sizes["trial"]
    block = max(1, BLOCK_BYTES // max(1, sum(x.nbytes for x in names.values()) // max(steps, 1)))
    weighed, plain = None, None
    parts: list[dict[str, np.ndarray]] = []
    for start in range(0, steps, block):
        at = slice(start, start + block)
        given = {
            name: x.isel(step=at).transpose("step", "trial", ...).values
            for name, x in names.items()
        }
        if view is not None:
            given["keys"], given["values"] = view(given["keys"]), mapped(view, given["values"])
        g = gamma.isel(step=at) if "step" in gamma.dims else gamma.expand_dims("step")
        g = g if "trial" in g.dims else g.expand_dims("trial")
        given["gamma"] = np.broadcast_to(
            g.transpose("step", "trial").values, (len(given["keys"]), trials)
        )
        if weighed is None or plain is None:
            weighed = plain = _empty(given["keys"], given["values"], ridge)
        out: dict[str, np.ndarray] = {}
        loss = {n: x for n, x in given.items() if n in ("keys", "values", "prediction", "mask")}
        if "S" in given:
            weighed, out = _against({n: x for n, x in given.items() if n != "prediction"},
                                    weighed, decaying)  # fmt: skip
        plain, more = _against(loss, plain, False)
        parts.append({**out, **more})
    if not parts:
        return xr.Dataset()
    joined = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    joined["regret"] = np.cumsum(joined.pop("loss"), axis=0) - joined.pop("best")
    made = xr.Dataset({name: (("step", "trial"), x) for name, x in joined.items()})
    return made.assign_coords({d: stream[d] for d in ("step", "trial") if d in stream.coords})

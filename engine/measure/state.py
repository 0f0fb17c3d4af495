"""What a state is like: size, rank, spectrum, and what it costs to keep and to move."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import cards, signatures
from engine.errors import InputError
from engine.measure.lift import lift
from engine.measure.runs import rule_of, solver_of, view_of

if TYPE_CHECKING:
    import xarray as xr

MATRIX = ("key", "value")


def norm(S: Any, /, dims: Sequence[str] = MATRIX) -> Any:
    """Return the Frobenius norm of a state.

    Parameters
    ----------
    S : array (..., key, value), or DataArray with these dims
        Recorded state.
    dims : sequence of str
        Its matrix dims, such as key and key_2 for a covariance.

    Returns
    -------
    array (...), or DataArray without these dims

    Examples
    --------
    >>> float(norm(np.array([[3.0], [4.0]])))
    5.0
    """
    axes = tuple(range(-len(dims), 0))
    return lift(lambda s: np.sqrt(np.sum(s * s, axis=axes)), [dims], S)


def _sound(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return matrices with those that are not finite set to 0, and where they are finite."""
    sound = np.isfinite(s).all((-2, -1))
    return np.where(sound[..., None, None], s, 0.0), sound


def _singular(s: np.ndarray) -> np.ndarray:
    clean, sound = _sound(s)
    values = np.linalg.svd(clean, compute_uv=False)
    return np.where(sound[..., None], values, np.nan)


def spectrum(S: Any, /, dims: Sequence[str] = MATRIX) -> Any:
    """Return the singular values of a state, largest first.

    Parameters
    ----------
    S : array (..., key, value), or DataArray with these dims
        Recorded state.
    dims : sequence of str
        Its matrix dims, such as key and key_2 for a covariance.

    Returns
    -------
    array (..., mode), or DataArray with dim mode
        NaN where the state is not finite.

    Examples
    --------
    >>> spectrum(np.array([[0.0, 2.0], [3.0, 0.0]])).round(12).tolist()
    [3.0, 2.0]
    """
    sizes = [S.sizes.get(d, 1) for d in dims] if hasattr(S, "dims") else [1]
    return lift(_singular, [dims], S, out=["mode"], sizes={"mode": min(sizes)})


def rank(S: Any, /, rtol: float | None = None, dims: Sequence[str] = MATRIX) -> Any:
    """Return the number of singular values above rtol times the largest.

    Parameters
    ----------
    S : array (..., key, value), or DataArray with these dims
        Recorded state.
    rtol : float, optional
        Default: the rounding of the state's precision times its larger dimension.
    dims : sequence of str
        Its matrix dims.

    Returns
    -------
    array (...), or DataArray without these dims
        0 for a state of zeros, NaN where it is not finite.
    """

    def count(s: np.ndarray) -> np.ndarray:
        eps = np.finfo(s.dtype if s.dtype.kind == "f" else np.float64).eps
        values = _singular(s)
        bound = (rtol if rtol is not None else max(s.shape[-2:]) * eps) * values[..., :1]
        found = (values > bound).sum(-1)
        return np.where(np.isnan(values[..., 0]), np.nan, found.astype(np.float64))

    return lift(count, [dims], S)


def effective_rank(S: Any, /, dims: Sequence[str] = MATRIX) -> Any:
    """Return exp(H), H the entropy of the singular values as shares (Roy and Vetterli 2007).

    Parameters
    ----------
    S : array (..., key, value), or DataArray with these dims
        Recorded state.
    dims : sequence of str
        Its matrix dims.

    Returns
    -------
    array (...), or DataArray without these dims
        Between 1 and the rank; 0 for a state of zeros, NaN where it is not finite.

    Examples
    --------
    >>> float(effective_rank(np.eye(4).round()).round(12))
    4.0
    """

    def spread(s: np.ndarray) -> np.ndarray:
        values = _singular(s)
        total = values.sum(-1, keepdims=True)
        share = values / np.where(total == 0, 1.0, total)
        entropy = -np.sum(share * np.log(np.where(share > 0, share, 1.0)), axis=-1)
        return np.where(total[..., 0] == 0, 0.0, np.exp(entropy))

    return lift(spread, [dims], S)


def condition(S: Any, /, dims: Sequence[str] = MATRIX) -> Any:
    """Return the largest singular value over the smallest.

    Parameters
    ----------
    S : array (..., key, value), or DataArray with these dims
        Recorded state.
    dims : sequence of str
        Its matrix dims, such as key and key_2 for a covariance.

    Returns
    -------
    array (...), or DataArray without these dims
        inf for a singular matrix, NaN where it is 0 or not finite.
    """

    def ratio(s: np.ndarray) -> np.ndarray:
        values = _singular(s)
        with np.errstate(divide="ignore"):
            return np.asarray(values[..., 0] / values[..., -1])

    return lift(ratio, [dims], S)


def smallest_eigenvalue(P: Any, /, dims: Sequence[str] = ("key", "key_2")) -> Any:
    """Return the smallest eigenvalue of a symmetric matrix: below 0 it is no covariance any more.

    Parameters
    ----------
    P : array (..., key, key_2), or DataArray with these dims
        Recorded covariance; its lower triangle is read.
    dims : sequence of str
        Its matrix dims.

    Returns
    -------
    array (...), or DataArray without these dims
        NaN where P is not finite.

    Examples
    --------
    >>> float(smallest_eigenvalue(np.array([[2.0, 1.0], [1.0, 2.0]])).round(12))
    1.0
    """

    def least(p: np.ndarray) -> np.ndarray:
        clean, sound = _sound(p)
        return np.where(sound, np.linalg.eigvalsh(clean)[..., 0], np.nan)

    return lift(least, [dims], P)


def transition(beta: Any, keys: Any, /, gamma: Any = 1.0) -> Any:
    """Return gamma (1 - beta |k|^2), the eigenvalue along k of gamma (I - beta k k^T).

    That is the transition of a delta rule that decays; its other eigenvalues are gamma. Below
    -gamma, where beta |k|^2 > 2, it expands along a key that returns.

    Parameters
    ----------
    beta : float, array (...) or DataArray
        Write strength.
    keys : array (..., key), or DataArray with dim key
        The keys, as the solver sees them.
    gamma : float, array (...) or DataArray
        Decay.

    Returns
    -------
    array (...), or DataArray without this dim

    Examples
    --------
    >>> float(transition(0.5, np.array([0.6, 0.8]), 0.9).round(12))
    0.45
    """

    def along(b: Any, k: np.ndarray, g: Any) -> np.ndarray:
        return np.asarray(g * (1 - b * np.sum(k * k, axis=-1)))

    return lift(along, [[], ["key"], []], beta, keys, gamma)


def cost(rule: Any, which: str, /, key: int, value: int, steps: int) -> np.ndarray:
    """Return what a solver's card says of every step of a stream: numbers kept, or work done.

    Parameters
    ----------
    rule : Solver
        Made by `engine.solver`.
    which : "retained", "write" or "query"
        Numbers kept after step t, or multiply-adds of its write, or of one read after it.
    key, value : int
        Lengths of the keys and values that it sees.
    steps : int
        Number of pairs written.

    Returns
    -------
    array (step,)
        Per trial.

    Raises
    ------
    InputError
        If the solver has no card.

    Examples
    --------
    >>> import engine
    >>> cost(engine.solver("softmax_attention"), "retained", key=8, value=4, steps=3).tolist()
    [12.0, 24.0, 36.0]
    """
    card = getattr(rule, "card", None)
    if card is None:
        raise InputError(f"{type(rule).__name__} has no card, so its costs are not known")
    formula: str = getattr(card, which)
    fields = {n: getattr(rule, n) for n in signatures.options(type(rule))}
    numbers = {n: x for n, x in fields.items() if isinstance(x, (int, float))}
    numbers |= {"dk": key, "dv": value}
    if not re.search(r"\bt\b", formula):
        return np.full(steps, float(cards.evaluate(formula, **numbers)))
    each = (cards.evaluate(formula, **numbers, t=t) for t in range(1, steps + 1))
    return np.fromiter(each, dtype=np.float64, count=steps)


def costs(run: xr.DataTree, label: str, /) -> xr.Dataset:
    """Return what one solver of a run keeps and has done at every step, by its card.

    Parameters
    ----------
    run : DataTree
        A run.
    label : str
        The solver's label.

    Returns
    -------
    Dataset (step,), or (step, trial) where the stream has a mask
        Per trial: `numbers` and `bytes` kept after each step, `multiply_adds` spent until then, by
        one write and one read per step that is not masked. Before the first write they are those of
        one pair.

    Raises
    ------
    InputError
        If the solver has no card.
    """
    import xarray as xr

    solver, stream = solver_of(run, label), run["stream"].to_dataset()
    rule, view = rule_of(solver), view_of(solver)
    key, value = stream.sizes["key"], stream.sizes["value"]
    if view is not None:
        key = view.size(key)
        value = view.value_size(value) if hasattr(view, "value_size") else value
    steps = stream.sizes["step"]
    kept, write, query = (cost(rule, x, key, value, steps) for x in ("retained", "write", "query"))
    work = np.cumsum(write + query)
    dims: tuple[str, ...] = ("step",)
    if "mask" in stream:
        dims = ("step", "trial")
        written = stream["mask"].transpose(*dims).values.astype(bool).cumsum(axis=0)
        kept = kept[np.maximum(written, 1) - 1] if steps else np.zeros(written.shape)
        work = np.concatenate([[0.0], work])[written]
    made = xr.Dataset({
        "numbers": (dims, kept),
        "bytes": (dims, kept * solver["prediction"].dtype.itemsize),
        "multiply_adds": (dims, work),
    })  # fmt: skip
    return made.assign_coords({d: stream[d] for d in dims if d in stream.coords})

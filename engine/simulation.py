"""`engine.simulate`: one solver over a caller's arrays, into a labelled Dataset."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import registry, signatures
from engine.backend import backend as get_backend
from engine.backend import host
from engine.coefficients import Binding
from engine.errors import InputError, StabilityWarning, nearest
from engine.linear import STABLE
from engine.loop import loop
from engine.recorder import MemorySink, Recorder, States, block_steps
from engine.sources import ArraySource
from engine.track import Track

if TYPE_CHECKING:
    import xarray as xr


def simulate(
    solver: Any,
    keys: Any,
    values: Any,
    queries: Any = None,
    *,
    mask: Any = None,
    state: Any = None,
    record: States = "every",
    backend: str = "numpy",
    kernel: str = "auto",
    dtype: Any = None,
    **coefficients: Any,
) -> xr.Dataset:
    """Run one solver over arrays and return its whole trajectory.

    Parameters
    ----------
    solver : str or Solver
        Name of a solver, or one made by `engine.solver`.
    keys : array, shape (step, key) or (step, trial, key)
        NumPy or CuPy array, or DataArray with these dims in any order. Integers and bools are
        converted to float64 before any arithmetic. Inputs may be mixed: each is brought to the
        host, whatever it is, and from there, in the precision of `dtype`, to the backend.
    values : array, shape (step, value) or (step, trial, value)
        What is stored under each key.
    queries : array, shaped like keys, optional
        What is asked after each write; default: the keys.
    mask : array of bool, shape (step,) or (step, trial), optional
        False skips the write: the state stays as it is, bit for bit, and the prediction is NaN. So
        is the output, unless `queries` are given.
    state : mapping of str to array, or Dataset, optional
        State to start from: every state variable by name, or a result of this function, whose last
        state is taken.
    record : "every" or "final"
        Keep every state, or the last one only.
    backend : "numpy" or "cupy"
        Where to compute. The result is NumPy.
    kernel : "auto", "loop", "numba", "chunk" or "tile"
        Form of the recurrence. For the linear family "auto" takes the compiled one on NumPy where
        numba is installed (extra `fast`) and chunks on a GPU; softmax attention reads by tiles; the
        others step. Results differ by rounding.
    dtype : "float32" or "float64", optional
        Precision; default: the widest of keys, values and queries (integers count as float64,
        float16 as float32).
    **coefficients : number or array
        A number, (step,), (step, trial), or with the coefficient's own axis behind these.

    Returns
    -------
    Dataset
        Dims `step`, `trial` (if the input had it), `key`, `value`. Variables `prediction` (read at
        the key before the write), `output` (read at the query after it), every state variable
        (index t is the state after write t) and `diverged_at` (first step with a non-finite state
        or read; -1: none).

    Raises
    ------
    InputError
        If anything does not fit; the message names it, and both lengths.

    Warns
    -----
    StabilityWarning
        If a delta rule takes back more than twice its error: strength |k|^2 above 2.

    Examples
    --------
    >>> import numpy as np, engine
    >>> ds = engine.simulate("delta", np.eye(2), np.array([[1.0], [2.0]]), beta=1.0)
    >>> ds.S.isel(step=-1).values.ravel().tolist()
    [1.0, 2.0]
    """
    rule = registry.default().get("solver", solver).cls() if isinstance(solver, str) else solver
    if isinstance(rule, type) or not all(hasattr(rule, name) for name in ("init", "write", "read")):
        raise InputError(f"solver = {solver!r} must be a name, or made by engine.solver")
    if record not in ("every", "final"):
        raise InputError(f"record = {record!r}; {nearest(str(record), ['every', 'final'])}")
    arrays, trial = _tokens(keys, values, queries, mask)
    source = ArraySource(arrays)
    bindings = _bindings(rule, coefficients, source, trial)
    floats = [arrays[name] for name in ("keys", "values", "queries") if name in arrays]
    name, where = type(rule).__name__.lower(), get_backend(backend)
    working = precision(dtype, floats)
    track = Track(
        name, rule, source, bindings, None, where, working, record == "every", kernel
    )  # fmt: skip
    if state is not None:
        track.restore(as_state(state, track, trial))
    sink = MemorySink(left_out=("stream",))  # the caller has it
    recorder = Recorder(sink, source, [track], record)
    # A compiled rule takes all steps at once, into what is returned: there is nothing to copy.
    whole = source.steps or 1 if track.kernel == "numba" else block_steps(source, [track])
    for frame in loop(source, [track], whole):
        recorder.write(frame)
    recorder.close()
    if track.correction[0] > STABLE:
        warnings.warn(
            "a write overshoots: {:.3g} times its error is taken back at step {}, and beyond 2 a "
            "key that returns diverges; use unit keys (the view `unit`) or smaller "
            "coefficients".format(*track.correction),
            StabilityWarning,
            stacklevel=2,
        )
    ds = sink.dataset(f"solvers/{track.label}")
    ds.attrs = {
        "solver": type(rule).__name__,
        "dtype": track.dtype.name,
        "backend": backend,
        "kernel": track.kernel,
    }
    return ds if trial else ds.isel(trial=0)


def as_host(name: str, array: Any, dims: tuple[str, ...]) -> np.ndarray:
    """Return a host array of numbers with axes `dims`; a DataArray is matched by dim names."""
    if hasattr(array, "dims") and hasattr(array, "transpose") and hasattr(array, "coords"):
        wanted = [d for d in dims if d in array.dims or d != "trial"]
        if set(wanted) != set(array.dims):
            raise InputError(
                f"{name} has dims {tuple(array.dims)}, expected {dims} (trial may be absent)"
            )
        array = array.transpose(*wanted).data
    if isinstance(array, np.ma.MaskedArray):
        raise InputError(f"{name} is a masked array: give its data, and `mask` for missing steps")
    try:
        found: np.ndarray = host(array)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from error
    if found.dtype.kind not in "biuf":
        raise InputError(f"{name} has dtype {found.dtype}; expected floats, integers or bools")
    return found


def as_float(array: np.ndarray) -> np.ndarray:
    """Return a float32 or float64 copy or view in native byte order."""
    if array.dtype.kind != "f":
        return array.astype(np.float64)
    with np.errstate(over="ignore"):  # of a long double: the step that meets an inf is named
        return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32, copy=False)


def _tokens(keys: Any, values: Any, queries: Any, mask: Any) -> tuple[dict[str, np.ndarray], bool]:
    """Return (step, trial, ...) arrays, and whether the input had a trial axis."""
    given = {"keys": (keys, "key"), "values": (values, "value"), "queries": (queries, "key")}
    arrays = {}
    for name, (array, last) in given.items():
        if array is None and name == "queries":
            continue
        x = as_float(as_host(name, array, ("step", "trial", last)))
        if x.ndim not in (2, 3):
            raise InputError(
                f"{name} has shape {x.shape}; expected (step, {last}) or (step, trial, {last})"
                + (f", such as {name}[:, None]" if x.ndim == 1 else "")
            )
        arrays[name] = x
    k = arrays["keys"]
    for name, x in arrays.items():
        if x.ndim != k.ndim:
            raise InputError(f"{name} has {x.ndim} axes {x.shape}, keys have {k.ndim} {k.shape}")
        for axis, what in enumerate(("steps", "trials")[: k.ndim - 1]):
            if x.shape[axis] != k.shape[axis]:
                raise InputError(f"{name} has {x.shape[axis]} {what}, keys have {k.shape[axis]}")
        if name == "queries" and x.shape[-1] != k.shape[-1]:
            raise InputError(f"queries have {x.shape[-1]} channels, keys have {k.shape[-1]}")
        if 0 in x.shape[1:]:
            raise InputError(f"{name} has shape {x.shape}; only the number of steps may be 0")
    trial = k.ndim == 3
    arrays = {name: x if trial else x[:, None] for name, x in arrays.items()}
    if mask is not None:
        arrays["mask"] = _mask(mask, arrays["keys"].shape[:2], trial)
    return arrays, trial


def _mask(mask: Any, shape: tuple[int, ...], trial: bool) -> np.ndarray:
    m = as_host("mask", mask, ("step", "trial"))
    if m.dtype != bool and not np.isin(m, (0, 1)).all():
        raise InputError("mask must hold bools (True writes, False skips)")
    m = m.astype(bool)
    if m.ndim == 1:
        m = m[:, None]
    if m.shape not in (shape, (shape[0], 1)):
        dims = "(step, trial)" if trial else "(step,)"
        raise InputError(
            f"mask has shape {np.shape(mask)}, expected {dims} for {shape[0]} steps and "
            f"{shape[1]} trials"
        )
    return np.broadcast_to(m, shape).copy()


def precision(dtype: Any, floats: list[np.ndarray]) -> str:
    """Return the name of a precision that was asked for, or of the widest of these arrays."""
    if dtype is None:
        return str(np.result_type(*floats).name)
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        name = str(dtype)
    if name not in ("float32", "float64"):
        raise InputError(f"dtype = {name!r} must be 'float32' or 'float64'")
    return name


def _bindings(
    rule: Any, given: Mapping[str, Any], source: ArraySource, trial: bool
) -> dict[str, Binding]:
    declared = signatures.coefficients(type(rule))
    for name in given:
        if name in signatures.options(type(rule)):
            raise InputError(
                f"{name!r} is a hyperparameter of {type(rule).__name__}: make the solver with "
                f"engine.solver(..., {name}=...)"
            )
        if name not in declared:
            raise InputError(
                f"{type(rule).__name__} takes no coefficient {name!r}; {nearest(name, declared)}"
            )
    bindings = {}
    for name, d in declared.items():
        value = given.get(name)
        value = d.default if value is None else value
        if value is None and d.required:
            raise InputError(f"{type(rule).__name__} needs the coefficient {name!r}")
        if value is None:
            continue
        array, dims = _coefficient(name, value, d.spec.axis, source, trial)
        bindings[name] = Binding(name, d.spec, array, dims, "read" in d.methods)
        bindings[name].block(next(source.blocks(source.steps or 1), _nothing(source)))
    return bindings


def _nothing(source: ArraySource) -> Any:
    from engine.sources import Tokens

    return Tokens(0, source.sample)


def _coefficient(
    name: str, value: Any, axis: str, source: ArraySource, trial: bool
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return a coefficient as (step or 1, trial or 1, axis or 1), and the dims it varies along."""
    every = ("step", *(["trial"] if trial else []), *([axis] if axis else []))
    if hasattr(value, "dims") and hasattr(value, "transpose"):
        dims = tuple(d for d in every if d in value.dims)
        if set(dims) != set(value.dims):
            raise InputError(f"{name} has dims {tuple(value.dims)}, expected some of {every}")
        value = value.transpose(*dims).data
        x = as_float(as_host(name, value, dims))
    else:
        x = as_float(as_host(name, value, every))
        # By position: a number, (step,), (step, trial), or all of these with the axis behind.
        dims = every if x.ndim == len(every) else every[: x.ndim]
        if axis in dims and x.ndim < len(every):
            dims = ("?",) * x.ndim
    sizes = {"step": source.steps, "trial": source.trials}
    wanted = tuple(sizes.get(d, n) for d, n in zip(dims, x.shape, strict=False))
    if x.shape != wanted or len(dims) != x.ndim or "?" in dims:
        forms = "a number, (step,)" + (", (step, trial)" if trial else "")
        forms += f", or ({', '.join(every)})" if axis else ""
        raise InputError(
            f"{name} has shape {x.shape}, which does not fit {source.steps} steps"
            + (f" and {source.trials} trials" if trial else "") + f"; expected {forms}"
        )  # fmt: skip
    full = (source.steps or 0 if "step" in dims else 1, source.trials if "trial" in dims else 1)
    return x.reshape((*full, x.shape[-1] if axis and axis in dims else 1)), dims


def state_dims(track: Track) -> dict[str, tuple[str, ...]]:
    """Return the dims of what a state is given by: its variables, and `rows` where they grow."""
    dims: dict[str, tuple[str, ...]] = {}
    for name, own in track.state_dims.items():
        # Rows keep their row axis first, as the stream keeps its step axis first.
        grows = name not in track.recorded()
        dims[name] = ("row", "trial", *own[1:]) if grows else ("trial", *own)
    if "rows" in track.recorded():
        dims["rows"] = ("trial",)
    return dims


def as_state(state: Any, track: Track, trial: bool) -> dict[str, np.ndarray]:
    """Return state variables (trial, ...) from a mapping or from the end of another result."""
    dims = state_dims(track)
    if hasattr(state, "data_vars"):
        state = {name: state[name] for name in dims if name in state}
        if any("step" in x.dims and x.sizes["step"] == 0 for x in state.values()):
            raise InputError("state: the given result has no steps, so no last state")
        state = {n: x.isel(step=-1) if "step" in x.dims else x for n, x in state.items()}
    if not isinstance(state, Mapping):
        raise InputError(f"state must map state variables to arrays, not {type(state).__name__}")
    arrays = {}
    for name, x in state.items():
        if name not in dims:
            raise InputError(f"state: unknown {name!r}; it must give {', '.join(dims)}")
        array, rank = as_host(f"state: {name}", x, dims[name]), len(dims[name]) - (not trial)
        if array.ndim != rank:
            wanted = ", ".join(d for d in dims[name] if trial or d != "trial")
            raise InputError(f"state: {name!r} has shape {array.shape}, expected ({wanted})")
        arrays[name] = array if trial else np.expand_dims(array, dims[name].index("trial"))
    return arrays

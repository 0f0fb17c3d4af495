"""Array functions applied along named dims: how every measure takes arrays and DataArrays alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.errors import InputError

BLOCK_BYTES = 16 * 2**20
"""Input that is read at a time where the steps are independent: a run may exceed the memory."""


def lift(
    function: Callable[..., Any],
    dims: Sequence[Sequence[str]],
    *args: Any,
    out: Sequence[str] = (),
    sizes: dict[str, int] | None = None,
    over: str = "step",
    dtype: Any = np.float64,
) -> Any:
    """Apply an array function along named dims where any argument is a DataArray.

    Parameters
    ----------
    function : callable
        Takes arrays whose trailing axes are `dims`, broadcasts over the axes before them and
        returns one array with trailing axes `out`.
    dims : sequence of sequences of str
        Per argument, the names of the axes that the function works on.
    *args : array or DataArray
        Arrays have these axes last; DataArrays have them anywhere.
    out : sequence of str
        Names of the axes of the result that the function makes.
    sizes : dict of str to int, optional
        Lengths of those that no argument has.
    over : str
        The dim along which a large input is read in blocks of `BLOCK_BYTES`.
    dtype : dtype
        Of the result.

    Returns
    -------
    array or DataArray
        An array if no argument has dims. A DataArray otherwise: a lazy one if an argument is
        chunked, else in memory.

    Raises
    ------
    InputError
        If an argument is not numbers, lacks a dim, or has another length than the others there.
    """

    def quiet(*arrays: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):  # a diverged state has no finite error
            return function(*arrays)

    _check(dims, args)
    named = [x for x in args if hasattr(x, "dims")]
    if not named:
        return quiet(*args)
    import xarray as xr

    def apply(*arrays: Any) -> Any:
        return xr.apply_ufunc(
            quiet, *arrays, input_core_dims=dims, output_core_dims=[out], dask="parallelized",
            output_dtypes=[dtype], dask_gufunc_kwargs={"output_sizes": sizes or {}},
        )  # fmt: skip

    cut = [x for x in named if over in x.dims]
    # Bare arrays are matched by position, which blocks would change.
    pairs = zip(args, dims, strict=True)
    bare = any(np.ndim(x) > len(d) for x, d in pairs if not hasattr(x, "dims"))
    total = sum(x.nbytes for x in cut)
    inside = any(over in d for d in dims)
    if inside or bare or total <= BLOCK_BYTES or any(x.chunks for x in named):
        return apply(*args)
    steps = cut[0].sizes[over]
    block = block_of(*cut, over=over)
    parts = []
    for start in range(0, steps, block):
        rows = {over: slice(start, start + block)}
        # A block is loaded by itself: loading through the run would keep it there.
        part = [x.isel(rows).load() if hasattr(x, "dims") and over in x.dims else x for x in args]
        parts.append(apply(*part))
    return xr.concat(parts, over)


def _check(dims: Sequence[Sequence[str]], args: Sequence[Any]) -> None:
    """Refuse arguments that the function cannot work on, before NumPy says less."""
    lengths: dict[str, tuple[int, int]] = {}
    for i, (x, names) in enumerate(zip(args, dims, strict=True), 1):
        named, need = hasattr(x, "dims"), " and ".join(names)
        dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
        if getattr(dtype, "kind", "f") not in "biufc":
            raise InputError(f"argument {i}: must be numbers, not {type(x).__name__} {x!r:.40}")
        shape = np.shape(x)
        if named and (missing := [d for d in names if d not in x.dims]):
            has = ", ".join(map(str, x.dims)) or "none"
            raise InputError(f"argument {i}: needs dims {need}; it has {has}, no {missing[0]}")
        if not named and len(shape) < len(names):
            raise InputError(f"argument {i}: its last axes must be {need}; its shape is {shape}")
        trailing = [x.sizes[d] for d in names] if named else shape[len(shape) - len(names) :]
        for name, n in zip(names, trailing, strict=True):
            first, at = lengths.setdefault(name, (n, i))
            if n != first:
                raise InputError(
                    f"argument {i}: {name} is {n} long, {first} in argument {at}; they must be "
                    "equal"
                )


def block_of(*arrays: Any, over: str = "step") -> int:
    """Return how many steps of these DataArrays together are read at a time.

    Parameters
    ----------
    *arrays : DataArray
        Those with the dim count.
    over : str
        The dim that is cut into blocks.

    Returns
    -------
    int
        As many as `BLOCK_BYTES` hold, at least 1.
    """
    row = sum(x.nbytes // max(x.sizes[over], 1) for x in arrays if over in x.dims)
    return int(max(1, BLOCK_BYTES // max(row, 1)))

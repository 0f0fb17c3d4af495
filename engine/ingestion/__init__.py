"""Real data made into a stored stream.

A file is read twice, in blocks: once to see that every number is one, once to write it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import InputError, at
from engine.ingestion.readers import read
from engine.ingestion.roles import Names, Roles
from engine.ingestion.scan import look_through
from engine.ingestion.write import as_batch, in_blocks, write

if TYPE_CHECKING:
    import xarray as xr


def ingest(
    data: Any, out: str | Path, *, keys: Names = None, values: Names = None, queries: Names = None,
    mask: str | None = None, time: str | None = None, sequence: str | None = None,
    channels: Names = None, force: bool = False,
) -> xr.DataTree:  # fmt: skip
    """Store real data as a stream that scenarios read with ``generator = "stored"``.

    Parameters
    ----------
    data : str, Path, Dataset or mapping of str to array
        A file (npz, npy, csv, parquet, safetensors) or zarr folder; or arrays by name, each
        (row,), (row, channel) or (step, trial, channel), or a DataArray whose dims are named step,
        trial, key and value. A mapping of names to lists of arrays is a batch of sequences.
    out : str or Path
        The store to write.
    keys, values, queries : str or sequence of str, optional
        Columns, side by side in the order given: names, patterns (``"x*"``), or positions
        (``"0:16"``); several are separated by commas. Default: the columns ``keys`` (or ``key``),
        ``values``, ``queries``, where there are such.
    mask : str, optional
        Column that is true (not 0) where the pair is to be written.
    time : str, optional
        Column of time stamps, strictly increasing; stored as UTC, one without a zone taken as UTC.
    sequence : str, optional
        Column that says which sequence a row belongs to. Each becomes one trial, in order of
        appearance; shorter ones are padded with masked steps.
    channels : str or sequence of str, optional
        Columns to keep as side channels, ``"name=column"`` to rename.
    force : bool
        Replace a store that is there.

    Returns
    -------
    DataTree
        The stream, lazy. A step whose key or value is missing (NaN, null, an empty cell) keeps its
        place, and its mask is false. Whole numbers and bools become float64 keys and values.

    Raises
    ------
    InputError
        If a column is not there, holds text or infinite numbers, or does not fit the others; the
        message names it and the row. Nothing was written.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> data = {"x": np.eye(3), "y": np.array([1.0, np.nan, 3.0])}
    >>> tree = ingest(data, f"{folder}/three.zarr", keys="x", values="y")
    >>> tree["stream/mask"].values.ravel().tolist()
    [True, False, True]
    """
    from engine import opening
    from engine.lock import check_free

    path = Path(out).expanduser()
    check_free(path, force)
    where = str(data) if isinstance(data, (str, Path)) else "data"
    if where != "data":
        old, new = Path(data).expanduser().resolve(), path.resolve()
        if new == old or new in old.parents or old in new.parents:
            raise InputError(f"{path} holds what is to be read ({where}); choose another place")
    with at(where), read(data) as columns, tempfile.TemporaryDirectory(prefix="ingest-") as folder:
        roles = Roles.of(columns, keys, values, queries, mask, time, sequence, channels)
        scan = look_through(columns, roles)
        if roles.sequence is None:
            blocks = in_blocks(columns, roles, scan)
        else:
            blocks = as_batch(columns, roles, scan, folder)
        write(path, where, roles, scan, blocks, force)
    return opening.open(path)

"""Files and arrays as columns: what each holds, and its rows block by block."""

from __future__ import annotations

import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engine.errors import EngineError, InputError

if TYPE_CHECKING:
    import xarray as xr

ORDER = ("step", "trial", "key", "value")
"""Dims that are put in this order where an array names its own."""
SEQUENCE = "sequence"
"""Name of the column that says which sequence a row belongs to."""


class Columns(Protocol):
    """A table, or arrays whose first axis counts the same rows.

    A column is an array of shape (row, ...): one axis in a table, more in a file of arrays.
    """

    @property
    def names(self) -> Sequence[str]:
        """Every column, in the order of the file."""

    def blocks(self, names: Sequence[str], size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield at most `size` rows at a time of the named columns."""


@dataclass(frozen=True)
class Arrays:
    """Arrays, memory maps or lazy DataArrays with a common first axis."""

    arrays: Mapping[str, Any]

    @property
    def names(self) -> Sequence[str]:
        """Every array."""
        return list(self.arrays)

    def blocks(self, names: Sequence[str], size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows of the named arrays."""
        lengths = {name: self.arrays[name].shape[0] for name in names}
        if len(set(lengths.values())) > 1:
            raise InputError(f"{_told(lengths)} must be equal numbers of rows")
        for start in range(0, max(lengths.values(), default=0), size):
            yield {n: np.asarray(self.arrays[n][start : start + size]) for n in names}


class Careful:
    """The columns of a file; what its reader stumbles over further down is the file's fault."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.names: Sequence[str] = list(columns.names)
        self.arrays: Mapping[str, Any] = getattr(columns, "arrays", {})

    def blocks(self, names: Sequence[str], size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the rows of the columns."""
        try:
            yield from self._columns.blocks(names, size)
        except EngineError:
            raise
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(f"cannot be read: {str(error).strip()}") from error


def _told(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{name} has {n} rows" for name, n in lengths.items())


@contextmanager
def read(data: Any) -> Iterator[Columns]:
    """Give the columns of a file, a folder, or what Python holds.

    Raises
    ------
    InputError
        If there is no such file, it is of no known kind, or a library that reads it is missing.
    """
    if isinstance(data, (str, Path)):
        path = Path(data).expanduser()
        if not path.exists():
            raise InputError("there is no such file")
        with tempfile.TemporaryDirectory(prefix="ingest-") as folder:
            try:
                made: Columns = _reader(path)(_unpacked(path, folder))
            except (OSError, ValueError, zipfile.BadZipFile) as error:
                if isinstance(error, InputError):
                    raise
                raise InputError(f"cannot be read: {str(error).strip()}") from error
            yield Careful(made)
    elif hasattr(data, "data_vars"):
        yield _dataset(data)
    elif isinstance(data, Mapping):
        lists = {str(n): x for n, x in data.items() if isinstance(x, (list, tuple))}
        if lists and all(hasattr(part, "shape") for x in lists.values() for part in x):
            yield _ragged(lists, [str(n) for n in data if str(n) not in lists])
        else:
            yield Arrays({str(name): _first_axis(str(name), x) for name, x in data.items()})
    else:
        raise InputError(
            f"data is a {type(data).__name__}; expected a path, a Dataset, or a mapping of names "
            "to arrays"
        )


def _reader(path: Path) -> Any:
    if path.is_dir():
        return _zarr
    kinds: dict[str, Any] = {
        ".npz": _npz, ".npy": _npy, ".csv": Csv, ".tsv": Csv, ".parquet": Parquet,
        ".pq": Parquet, ".safetensors": Safetensors,
    }  # fmt: skip
    # A compressed table is named after both: stream.csv.gz.
    suffixes = [s.lower() for s in path.suffixes]
    packed = suffixes and suffixes[-1] in (".gz", ".bz2", ".xz", ".zip")
    suffix = (suffixes[-2] if len(suffixes) > 1 else "") if packed else "".join(suffixes[-1:])
    found = kinds.get(suffix)
    if found is None or packed and found is not Csv:
        raise InputError(
            f"no reader for {''.join(suffixes[-2:]) or 'a file without a suffix'!r}; "
            f"known: {', '.join(kinds)} (a table also compressed, .csv.gz), and zarr folders"
        )
    return found


def _npy(path: Path) -> Columns:
    return _from_array(np.load(path, mmap_mode="r", allow_pickle=False))


def _from_array(array: np.ndarray) -> Columns:
    """Return the columns of one array: those of a matrix are named by their position."""
    if array.ndim != 2:
        raise InputError(
            f"one array of shape {array.shape}: expected (row, column); save several arrays by "
            "name as .npz"
        )
    return Arrays({str(i): array[:, i] for i in range(array.shape[1])})


def _unpacked(path: Path, folder: str) -> Path:
    """Return the folder with an archive's arrays, which can be mapped there instead of loaded."""
    if path.suffix.lower() != ".npz":
        return path
    with zipfile.ZipFile(path) as packed:
        packed.extractall(folder)
    return Path(folder)


def _npz(folder: Path) -> Columns:
    arrays = {
        file.relative_to(folder).as_posix().removesuffix(".npy"): np.load(
            file, mmap_mode="r", allow_pickle=False
        )
        for file in sorted(folder.rglob("*.npy"))
    }
    return Arrays({name: x for name, x in arrays.items() if x.ndim})


def _zarr(path: Path) -> Columns:
    import xarray as xr

    from engine import guard, opening, store

    if guard.is_store(path):  # guarded: what is damaged is no missing value
        return _dataset(opening.open(path)["stream"].to_dataset())
    old = (path / ".zgroup").exists() or (path / ".zmetadata").exists()
    if not old and not (path / "zarr.json").is_file():
        raise InputError("a folder, and no zarr group")
    try:
        # Unmasked: the fill value of zarr's second format is mostly 0, and zeros are numbers.
        ds = xr.open_dataset(
            path, engine="zarr", zarr_format=2 if old else 3, consolidated=False,
            chunks=None, cache=False, mask_and_scale=False,
        )  # fmt: skip
    except KeyError:  # xarray wants names of axes, which zarr alone does not
        return Arrays({name: x for name, x in store.arrays(path).items() if x.ndim})
    for name, x in ds.variables.items():
        packed = {"scale_factor", "add_offset"} & set(x.attrs)
        if packed:
            raise InputError(
                f"{name} is packed ({', '.join(sorted(packed))}); open it with xarray and "
                "hand over the Dataset"
            )
    return _dataset(ds)


def _dataset(ds: xr.Dataset) -> Columns:
    names = [str(n) for n in ds.variables if ds[n].ndim and not (n in ds.dims and n != "time")]
    return Arrays({name: _first_axis(name, ds[name]) for name in names})


def _first_axis(name: str, x: Any) -> Any:
    """Return an array, or a DataArray with its known dims in their order."""
    if hasattr(x, "dims") and hasattr(x, "transpose"):
        if "step" in x.dims:
            known = [d for d in ORDER if d in x.dims]
            x = x.transpose(*known, ...)
        return x.variable
    x = x if hasattr(x, "shape") else np.asarray(x)
    if not x.ndim:
        raise InputError(f"{name} is a single number; expected an array with a row per step")
    return x


def _ragged(lists: Mapping[str, Sequence[Any]], others: Sequence[str]) -> Columns:
    """Return lists of arrays, one per sequence, as rows one after the other."""
    if others:
        raise InputError(f"{', '.join(others)}: expected a list of arrays, as the others are")
    lengths = {name: [len(part) for part in parts] for name, parts in lists.items()}
    first, own = next(iter(lengths.items()))
    for name, other in lengths.items():
        if other != own:
            raise InputError(
                f"{name} has sequences of {other} rows and {first} of {own}; they must be equal"
            )
    joined: dict[str, Any] = {n: np.concatenate(list(parts)) for n, parts in lists.items()}
    return Arrays({**joined, SEQUENCE: np.repeat(np.arange(len(own)), own)})


class Csv:
    """A text table, plain or compressed; one without a header names its columns by position."""

    def __init__(self, path: Path) -> None:
        import pandas as pd

        self._path = path
        self._sep = "\t" if ".tsv" in [s.lower() for s in path.suffixes] else ","
        head = pd.read_csv(path, nrows=0, sep=self._sep, index_col=False)
        self.names: Sequence[str] = [str(c) for c in head.columns]
        # Repeated numbers come back as 1.5, 1.5.1: a first row of numbers is data, not names.
        self._plain = all(_is_number(name) for name in self.names)
        if self._plain:
            self.names = [str(i) for i in range(len(self.names))]
        else:
            first = pd.read_csv(
                path, nrows=1, sep=self._sep, header=None, dtype=str, keep_default_na=False
            )
            given = first.iloc[0].tolist()
            twice = next((n for n in given if n and given.count(n) > 1), None)
            if twice is not None:
                raise InputError(f"two columns are named {twice!r}; rename one")

    def blocks(self, names: Sequence[str], size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows; text stays text, an empty cell is NaN."""
        import pandas as pd

        # All columns are read, for with `usecols` pandas drops what stands behind the last.
        with pd.read_csv(
            self._path, header=None if self._plain else 0, names=list(self.names),
            index_col=False, chunksize=size, sep=self._sep, low_memory=False,
        ) as parts:  # fmt: skip
            start = 0
            while (part := self._next(parts, start)) is not None:
                yield {name: part[name].to_numpy() for name in names}
                start += len(part)

    def _next(self, parts: Any, start: int) -> Any:
        import pandas as pd

        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Length of header or names does not match")
            try:
                return next(parts, None)
            except pd.errors.ParserWarning as error:
                raise InputError(
                    f"row {start}, or one soon after, has more cells than the first line has "
                    f"columns, {len(self.names)}"
                ) from error


def _is_number(name: str) -> bool:
    parts = name.split(".")
    try:
        float(".".join(parts[:2]))
    except ValueError:
        return False
    return True


class Parquet:
    """A parquet file; a column of lists of one length is an array (row, entry)."""

    def __init__(self, path: Path) -> None:
        parquet = _library("pyarrow.parquet", path)
        self._file = parquet.ParquetFile(path)
        self.names: Sequence[str] = list(self._file.schema_arrow.names)

    def blocks(self, names: Sequence[str], size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows; a null is NaN."""
        start = 0
        for batch in self._file.iter_batches(batch_size=size, columns=list(names)):
            yield {name: self._array(name, batch.column(name), start) for name in names}
            start += batch.num_rows

    def _array(self, name: str, column: Any, start: int) -> np.ndarray:
        if not str(column.type).startswith(("list", "fixed_size_list", "large_list")):
            return np.asarray(column.to_pandas())
        lengths = {len(x) if x is not None else None for x in column.to_pylist()}
        if len(lengths) > 1 or None in lengths:
            raise InputError(
                f"{name}: the lists in rows {start} to {start + len(column) - 1} have different "
                f"lengths, {sorted(map(str, lengths))}"
            )
        flat = np.asarray(column.flatten().to_pandas())
        return flat.reshape(len(column), -1)


class Safetensors:
    """A file of tensors, read slice by slice."""

    def __init__(self, path: Path) -> None:
        library = _library("safetensors", path)
        try:
            self._file = library.safe_open(str(path), framework="numpy")
        except library.SafetensorError as error:
            raise ValueError(error) from error
        self.names: Sequence[str] = sorted(self._file.keys())

    def blocks(self, names: Sequence[str], size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows."""
        slices = {name: self._file.get_slice(name) for name in names}
        for name, x in slices.items():
            if x.get_dtype() in ("BF16", "F8_E4M3", "F8_E5M2"):
                raise InputError(f"{name} is {x.get_dtype()}, which NumPy lacks; save it as F32")
        lengths = {name: (x.get_shape() or [0])[0] for name, x in slices.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"{_told(lengths)} must be equal numbers of rows")
        n = max(lengths.values(), default=0)
        for start in range(0, n, size):
            yield {name: x[start : min(start + size, n)] for name, x in slices.items()}


def _library(name: str, path: Path) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(f"reading it needs {package}; pip install 'ttr-engine[ingest]'") from error

"""Which columns are keys, values, and what goes with them; and their rows as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from engine.errors import InputError, nearest
from engine.ingestion.readers import SEQUENCE, Columns
from engine.sources import STANDARD, valid_name

EXACT = 2**53  # beyond it float64 skips whole numbers
PAIRS = ("keys", "values", "queries")  # what has channels
Names = str | Sequence[str] | None


@dataclass(frozen=True)
class Roles:
    """Which columns are what: standard names and side channels, each a list of columns."""

    columns: Mapping[str, Sequence[str]]
    time: str | None = None
    sequence: str | None = None

    @classmethod
    def of(
        cls, table: Columns, keys: Names, values: Names, queries: Names, mask: str | None,
        time: str | None, sequence: str | None, channels: Names,
    ) -> Roles:  # fmt: skip
        """Resolve what was asked for against what there is."""
        known = list(table.names)
        chosen: dict[str, Sequence[str]] = {}
        given = {"keys": keys, "values": values, "queries": queries, "mask": mask}
        for role, names in given.items():
            if names is None:
                names = next((n for n in (role, role.removesuffix("s")) if n in known), None)
            if names is not None:
                chosen[role] = _select(role, names, known)
                _check_dims(role, chosen[role], table)
            elif role in ("keys", "values"):
                raise InputError(f"which columns are the {role}? It has {_listed(known)}")
        if len(chosen.get("mask", "1")) > 1:
            raise InputError(f"mask must be one column, not {', '.join(chosen['mask'])}")
        for text in _split(channels):
            renamed, equals, column = text.rpartition("=")
            found = _select("channels", column, known)
            if equals and len(found) > 1:
                raise InputError(f"channels = {text!r} names {len(found)} columns; name one")
            for name in found:
                _add_channel(chosen, renamed or name, name)
        if sequence is None and SEQUENCE in known:
            sequence = SEQUENCE
        for role, one in (("time", time), ("sequence", sequence)):
            if one is not None:
                _select(role, one, known, single=True)
        return cls(chosen, time, sequence)

    @property
    def names(self) -> list[str]:
        """Every column that is read."""
        extra = [c for c in (self.time, self.sequence) if c is not None]
        return list(dict.fromkeys([*(c for cs in self.columns.values() for c in cs), *extra]))


def _check_dims(role: str, columns: Sequence[str], table: Columns) -> None:
    """Refuse an axis of trials where one of channels is expected."""
    for name in columns if role in PAIRS else ():
        dims = getattr(getattr(table, "arrays", {}).get(name), "dims", ())
        if dims[-1:] == ("trial",):
            raise InputError(
                f"{role}: {name} has the dims {', '.join(dims)} and no channels; add an axis of "
                "one: .expand_dims('value', -1)"
            )


def _add_channel(chosen: dict[str, Sequence[str]], name: str, column: str) -> None:
    if not valid_name(name) or name in chosen or name in (*STANDARD, "step", "trial", "time"):
        raise InputError(
            f"channels: {name!r} cannot name a side channel beside {', '.join(chosen)}; rename it "
            f"with 'name={column}' (letters, digits and '_', a letter first)"
        )
    chosen[name] = [column]


def _split(names: Names) -> list[str]:
    parts = names.split(",") if isinstance(names, str) else list(names or ())
    return [p for part in parts for p in (x.strip() for x in part.split(",")) if p]


def _select(role: str, names: Names, known: Sequence[str], single: bool = False) -> list[str]:
    """Return the columns that names, patterns and positions stand for."""
    found: list[str] = []
    for name in [names] if single and isinstance(names, str) else _split(names):
        start, colon, stop = name.partition(":")
        if name in known:
            some = [name]
        elif colon and all(not x or x.isdecimal() for x in (start, stop)):
            some = list(known[int(start or 0) : int(stop or len(known))])
            if int(stop or 0) > len(known) or not some:
                raise InputError(
                    f"{role}: {name!r} are positions, and there are {len(known)} columns: expected "
                    f"some within '0:{len(known)}', the last not included"
                )
        else:
            some = [n for n in known if fnmatchcase(n, name)]
        found += some
        if not some:
            raise InputError(f"{role}: no column {name!r}; {nearest(name, known)}")
    twice = sorted({n for n in found if found.count(n) > 1})
    if twice:
        raise InputError(f"{role} names the column {twice[0]!r} twice")
    return found


def _listed(names: Sequence[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > 20 else ""
    return f"the columns {', '.join(names[:20])}{more}"


def assemble(block: Mapping[str, np.ndarray], roles: Roles, first: int) -> dict[str, np.ndarray]:
    """Return one array per role, (row, channel) or (row, trial, channel), flags (row, ...)."""
    made = {}
    for role, columns in roles.columns.items():
        parts = [_numbers(name, block[name], first, role) for name in columns]
        if role in PAIRS:
            parts = [x[:, None] if x.ndim == 1 else x for x in parts]
            if len({x.ndim for x in parts}) > 1 or parts[0].ndim > 3:
                shapes = ", ".join(f"{n} {block[n].shape[1:]}" for n in columns)
                raise InputError(f"{role}: rows of shapes {shapes} cannot stand side by side")
            made[role] = np.concatenate(parts, axis=-1)
        elif role == "mask":
            made[role] = np.nan_to_num(parts[0].astype(np.float64)) != 0
        else:
            made[role] = parts[0]
    return made


def _numbers(name: str, x: np.ndarray, first: int, role: str) -> np.ndarray:
    """Return a column as numbers; what is no number is named with its row."""
    if x.dtype.kind in "OUST" or x.dtype.kind not in "biuf":
        x = _from_objects(name, x, first)
    if x.dtype.kind == "f" and x.dtype.itemsize not in (4, 8):
        x = x.astype(np.float32 if x.dtype.itemsize == 2 else np.float64)
    if role in STANDARD and x.dtype.kind in "biu":
        if x.dtype.kind in "iu" and x.size and max(-int(x.min()), int(x.max())) > EXACT:
            raise InputError(f"{name} holds whole numbers beyond 2^53, which float64 cannot hold")
        x = x.astype(np.float64)
    infinite = np.isinf(x) if x.dtype.kind == "f" else np.zeros(1, dtype=bool)
    if infinite.any():
        row = first + int(np.argwhere(infinite)[0, 0])
        raise InputError(f"column {name!r}, row {row}: the number is infinite")
    return x


def _from_objects(name: str, x: np.ndarray, first: int) -> np.ndarray:
    """Return objects as float64 where each is a number, a bool or missing."""
    out, wrong = np.full(x.shape, np.nan), None
    for index, one in np.ndenumerate(x if x.dtype.kind in "OUST" else x.astype(object)):
        if isinstance(one, (bool, int, float, np.number, np.bool_)):
            out[index] = float(one)
        elif one is not None and type(one).__name__ not in ("NAType", "NaTType"):
            wrong = wrong or (index[0], one)
            # One word makes a whole column of a table text: the word is to blame.
            if not _reads_as_number(one):
                wrong = index[0], one
                break
    if wrong is not None:
        row, one = wrong
        raise InputError(
            f"column {name!r}, row {first + row}: {one!r} is "
            f"{'text' if isinstance(one, str) else type(one).__name__}, not a number; leave "
            "the column out, or turn it into numbers first"
        )
    return out


def _reads_as_number(one: object) -> bool:
    try:
        float(str(one))
    except ValueError:
        return False
    return isinstance(one, str)


def missing(made: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return where a key or value is missing, (row,) or (row, trial)."""
    gaps: np.ndarray = either(np.isnan(made["keys"]).any(-1), np.isnan(made["values"]).any(-1))
    return gaps


def either(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a | b, each (row,) or (row, trial)."""
    rank = max(a.ndim, b.ndim)
    a, b = (x if x.ndim == rank else x[:, None] for x in (a, b))
    found: np.ndarray = np.logical_or(a, b)
    return found


def sequence_ids(block: Mapping[str, np.ndarray], roles: Roles, first: int = 0) -> np.ndarray:
    """Return the sequence that each row belongs to; empty where there is only one."""
    if roles.sequence is None:
        return np.zeros(0)
    import pandas as pd

    ids = np.asarray(block[roles.sequence])
    absent = pd.isna(ids)
    if ids.ndim != 1 or absent.any():
        row = first + int(np.argmax(absent)) if ids.ndim == 1 else first
        raise InputError(f"sequence: column {roles.sequence!r}, row {row}: no sequence is named")
    return np.array(ids, dtype=str) if ids.dtype.kind in "OT" else ids


def times(column: str, x: np.ndarray, first: int) -> np.ndarray:
    """Return time stamps as datetime64[ns] in UTC."""
    import pandas as pd

    if x.dtype.kind in "biuf":
        raise InputError(
            f"time: column {column!r} holds numbers, not time stamps; keep it as a side channel"
        )
    form = None if x.dtype.kind == "M" else "ISO8601"
    stamps = pd.to_datetime(pd.Series(x), utc=True, format=form, errors="coerce")
    wrong = stamps.isna().to_numpy() & ~pd.isna(x)
    utc: np.ndarray = stamps.dt.tz_convert(None).to_numpy()
    with np.errstate(all="ignore"):
        exact = utc.astype("datetime64[ns]")
    wrong |= ~np.isnat(utc) & (exact.astype(utc.dtype) != utc)
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            f"time: column {column!r}, row {first + row}: {str(x[row])!r} is no time stamp; "
            "expected ISO 8601, as 2026-01-31T12:00:00+01:00, within the years 1678 to 2262"
        )
    return exact

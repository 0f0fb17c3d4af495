"""Sealed seeds: opened by name only, and every opening is written down beside the scenario."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from engine.errors import InputError

Seed = Annotated[int, Field(ge=0)]


class Seeds(BaseModel):
    """``[seeds]``: what settings are found on, and what is reported.

    Parameters
    ----------
    development : int
        The seed of `engine run` and `engine tune`.
    sealed : int
        The seed of `engine run --sealed`, and of nothing else.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    development: Seed = 0
    sealed: Seed


def choose(table: dict[str, Any], sealed: bool) -> None:
    """Set the seed of a scenario's table, overrides put in, by its ``[seeds]``.

    Raises
    ------
    InputError
        If sealed seeds are asked for that are not there, or used without being opened.
    """
    seeds = table.get("seeds")
    given = seeds if isinstance(seeds, Mapping) else {}  # what is no table is refused elsewhere
    if sealed and "sealed" not in given:
        raise InputError("seeds.sealed: missing; a sealed run needs [seeds] with sealed = NUMBER")
    if sealed and "seed" in table:
        raise InputError(
            f"seed = {table['seed']!r}: a sealed run takes seeds.sealed; leave seed out"
        )
    if "sealed" not in given:
        return
    seed = given["sealed"] if sealed else table.get("seed", given.get("development", 0))
    if not sealed and seed == given["sealed"]:
        raise InputError(f"seed = {seed!r}: it is sealed; open it with engine run --sealed")
    table["seed"] = seed


def digest(table: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a scenario asks for: of its values, whatever their order.

    >>> digest({"trials": 2, "title": "a"}) == digest({"title": "b", "trials": 2})
    True
    """
    frozen = {name: x for name, x in table.items() if name not in ("title", "seed")}
    text = json.dumps(frozen, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Opening:
    """One opening of a scenario's sealed seeds.

    Parameters
    ----------
    ledger : Path
        Where it is written down.
    scenario : str
        Name of the scenario.
    hash, first : str
        Of the scenario as it runs, and as it was opened first.
    number : int
        1 for the first opening.
    changed : bool
        Whether what runs differs from what was opened first, or from the scenario's own file.
    seed : int
        What was opened.
    """

    ledger: Path
    scenario: str
    hash: str
    first: str
    number: int
    changed: bool
    seed: int

    @property
    def attrs(self) -> dict[str, Any]:
        """What a run keeps of it, under ``sealed``."""
        names = ("hash", "first", "number", "changed", "seed")
        return {**{name: getattr(self, name) for name in names}, "ledger": str(self.ledger)}

    def record(self, run: Path | None) -> None:
        """Add it to the ledger, which lies beside the scenario: from here on the seeds are open.

        Raises
        ------
        InputError
            If the ledger cannot be written, or has grown since this opening was prepared.
        """
        try:
            self.ledger.parent.mkdir(parents=True, exist_ok=True)
            with self.ledger.open("a+", encoding="utf-8") as file, _alone(file):
                file.seek(0)
                lines = _checked(self.ledger, file.read())
                if len(lines) + 1 != self.number:
                    raise InputError(f"{self.ledger}: another run opened these seeds just now")
                entry = {
                    "opening": self.number, "time": datetime.now(UTC).isoformat("T", "seconds"),
                    "scenario": self.scenario, "hash": self.hash, "changed": self.changed,
                    "seed": self.seed, "run": str(run) if run else None,
                    "versions": {n: version(n) for n in ("ttr-engine", "numpy")},
                    "previous": lines[-1]["digest"] if lines else "",
                }  # fmt: skip
                file.write(json.dumps({**entry, "digest": _digest(entry)}) + "\n")
        except OSError as error:
            raise InputError(
                f"{self.ledger} cannot be written, so the sealed seeds stay sealed: "
                f"{error.strerror or error}"
            ) from error


def opening(
    name: str, path: Path | None, table: Mapping[str, Any], own: Mapping[str, Any], shipped: bool
) -> Opening:
    """Return the opening that a sealed run of a scenario would be; nothing is written.

    Parameters
    ----------
    name, path
        The scenario's name and file; a shipped one keeps its ledger in ``runs``.
    table, own
        Its values with overrides, and without.
    shipped : bool
        Whether it comes with the engine.

    Raises
    ------
    InputError
        If the scenario has no file, or its ledger was edited.
    """
    if path is None:
        raise InputError("a sealed run needs a scenario file: its ledger lies beside it")
    ledger = (Path("runs") if shipped else path.parent) / f"{name}.ledger.jsonl"
    entries = read(ledger)
    now, written = digest(table), digest(own)
    first = entries[0]["hash"] if entries else written
    changed = now != first or now != written
    return Opening(ledger, name, now, first, len(entries) + 1, changed, int(table["seed"]))


def read(ledger: Path) -> list[dict[str, Any]]:
    """Return the entries of a ledger; a file that is not there has none.

    Raises
    ------
    InputError
        If a line was edited, added or taken out by hand.
    """
    if not ledger.exists():
        return []
    try:
        text = ledger.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{ledger}: the ledger cannot be read: {error}") from error
    return _checked(ledger, text)


def _checked(ledger: Path, text: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for i, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
            kept = {n: x for n, x in entry.items() if n != "digest"}
            sound = (entry["digest"], entry["opening"]) == (_digest(kept), i)
            sound &= entry["previous"] == (entries[-1]["digest"] if entries else "")
        except (ValueError, AttributeError, KeyError, TypeError):
            sound = False
        if not sound:
            raise InputError(
                f"{ledger}, line {i}: not as it was written; a ledger is only ever added to, so "
                "bring back the file that was"
            )
        entries.append(entry)
    return entries


def _digest(entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


@contextmanager
def _alone(file: IO[str]) -> Iterator[None]:
    """Hold other processes off a file; where the system cannot, its lines still tell."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    yield
    file.flush()


def inherited(
    seal: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a run keeps of the seal of the run that its stream is read from.

    Parameters
    ----------
    seal : mapping
        Of that run.
    before, now : mapping
        What that run asks for, and what this one does, all defaults filled in.

    Examples
    --------
    >>> seal = {"number": 1, "hash": "a", "first": "a", "changed": False}
    >>> inherited(seal, {"trials": 2}, {"trials": 2})["changed"]
    False
    >>> inherited(seal, {"trials": 2}, {"trials": 3})["changed"]
    True
    """
    if digest(before) == digest(now):
        return dict(seal)
    return {**seal, "hash": digest(now), "changed": True}


def of_streams(paths: Iterable[Path], now: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a run that reads files keeps of a sealed run among them; None if there is none.

    Parameters
    ----------
    paths : iterable of Path
        What its stream is read from.
    now : mapping
        What it does, all defaults filled in.

    Raises
    ------
    InputError
        If attributes on the way are not JSON.
    """
    for path in paths:
        for folder in (path.expanduser(), *path.expanduser().parents):
            told = folder / "zarr.json"
            if not told.is_file():
                break
            try:
                attrs = json.loads(told.read_text(encoding="utf-8")).get("attributes", {})
            except (OSError, ValueError) as error:
                raise InputError(f"{told} cannot be read: {error}") from error
            if seal := attrs.get("sealed"):
                return inherited(seal, {}, now)
    return None


def mark(attrs: Mapping[Any, Any]) -> str | None:
    """Return what every report and picture of a sealed run says; None if it was not sealed.

    Parameters
    ----------
    attrs : mapping
        Attributes of a run's root.
    """
    seal = attrs.get("sealed")
    if not seal:
        return None
    text = f"opening {seal['number']}, scenario {seal['hash'][:12]}"
    if seal["changed"]:
        return f"SEALED SEEDS, CHANGED SCENARIO: {text}, first opened with {seal['first'][:12]}"
    return f"sealed seeds: {text}"

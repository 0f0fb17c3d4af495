"""Scenarios: a TOML file checked, completed and turned into a stream and solvers."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from engine import building, registry
from engine import sealed as sealing
from engine.api import Generator
from engine.building import Entry
from engine.errors import InputError, at, nearest, told
from engine.probes import LABELS_TAKEN, Probe

LABEL = r"^[A-Za-z][A-Za-z0-9_-]*$"
Label = Annotated[str, Field(pattern=LABEL)]


class Keyframes(BaseModel):
    """``record = { keyframes = n }``: the stream, and the state after every n writes.

    Parameters
    ----------
    keyframes : int
        Writes from one kept state to the next.
    stream : bool
        False: the stream is not stored, but drawn again from its seed when it is read.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    keyframes: Annotated[int, Field(gt=0)]
    stream: bool = True


def _is_table(value: Any) -> str:
    return "[table]" if isinstance(value, (Mapping, Keyframes)) else "[word]"


class Table(BaseModel):
    """The top level of a scenario file.

    Parameters
    ----------
    title : str
        What it is about, in one line.
    seed : int
        All randomness comes from it.
    seeds : table
        A seed to find settings on and one, sealed, to report on; instead of `seed`.
    trials : int
        Independent streams, run side by side; default: as many as the generator has, or 1.
    dtype : str
        Precision of the states.
    backend : str
        Where to compute: "numpy", or "cupy" on a GPU.
    kernel : str
        The form in which rules run; "auto" picks the fastest, "loop" is step by step.
    record : str or table
        Which states are stored: "every" step's, the "final" ones, or { keyframes = n }.
    stream : table
        Where pairs come from: a generator, its options, `steps`.
    solvers : table
        The memories, by label: for each its rule, options, coefficients and view.
    probes : table
        What is asked of every solver on the way or at the end, by name.
    tune : table
        What `engine tune` tries for a solver, by label: candidates of its settings.
    on_error : str
        What a solver that fails does: "stop" the run, or be "drop"ped, the others going on.
    report : str
        The study that `engine report` sets the run beside.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: sealing.Seeds | None = None
    trials: Annotated[int, Field(gt=0)] | None = None
    dtype: Literal["float32", "float64"] = "float64"
    backend: str = "numpy"
    kernel: Literal["auto", "loop", "numba", "chunk", "tile"] = "auto"
    record: Annotated[
        Annotated[Literal["every", "final"], Tag("[word]")] | Annotated[Keyframes, Tag("[table]")],
        Discriminator(_is_table),
    ] = "every"
    on_error: Literal["stop", "drop"] = "stop"
    stream: dict[str, Any]
    solvers: Annotated[dict[Label, dict[str, Any]], Field(min_length=1)]
    probes: dict[Label, Probe] = {}
    tune: dict[Label, dict[str, Any]] = {}
    report: str | None = None

    @property
    def states(self) -> Literal["every", "final", "keyframes"]:
        """Which states are recorded."""
        return "keyframes" if isinstance(self.record, Keyframes) else self.record

    @property
    def keyframes(self) -> int:
        """Steps between keyframes; 0 if none are kept."""
        return self.record.keyframes if isinstance(self.record, Keyframes) else 0

    @property
    def redraws(self) -> bool:
        """Whether the stream is drawn again when it is read."""
        return isinstance(self.record, Keyframes) and not self.record.stream


@dataclass(frozen=True)
class Scenario:
    """A checked scenario; `resolved` is its complete form, every default filled in.

    `where` names it in messages: its file, or "scenario". `generator` may be the store of a run,
    whose stream is read instead of drawn.
    """

    name: str
    where: str
    text: str
    table: Table
    generator: Generator | Path
    steps: int | None
    entries: Mapping[str, Entry]
    resolved: dict[str, Any] = field(repr=False)
    seal: sealing.Opening | None = None


def shipped() -> dict[str, Path]:
    """Return the scenarios that ship with the engine, by name."""
    folder = Path(str(files("engine.scenarios")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(
    scenario: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    sealed: bool = False,
) -> Scenario:
    """Return a scenario from a file, a shipped name, or a table.

    Parameters
    ----------
    scenario : str, Path or mapping
        Path of a TOML file, name of a shipped scenario, or what such a file would hold.
    overrides : mapping of str to value, optional
        Dotted key paths and the values to put there, such as ``{"solvers.delta.beta": 0.5}``.
    sealed : bool
        Use the sealed seed; nothing is opened before `Opening.record`.

    Raises
    ------
    InputError
        Naming the file, the key path, the value, and what would be right.
    """
    raw = read(scenario, overrides, sealed)
    with at(raw.where):
        if "sweep" in raw.table:
            raise InputError("sweep: this scenario is several runs, which only `run` puts together")
        return replace(raw.resolve(), seal=raw.seal)


@dataclass(frozen=True)
class Raw:
    """A scenario as it was written, overrides put in; its paths are relative to `folder`."""

    name: str
    where: str
    text: str
    table: dict[str, Any]
    folder: Path
    seal: sealing.Opening | None = None

    def resolve(self, settings: Mapping[str, Any] | None = None) -> Scenario:
        """Return the checked scenario, further values put at dotted key paths first."""
        table = native(self.table)
        for key, value in (settings or {}).items():
            override(table, key, value)
        return resolve(self.name, self.where, self.text, table, self.folder)


def read(
    scenario: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None,
    sealed: bool = False,
) -> Raw:  # fmt: skip
    """Return a scenario as it was written, with the arguments of `load`."""
    registry.default()  # a missing folder of plugins is no fault of the scenario's
    if isinstance(scenario, Mapping):
        name, where, text, path = "scenario", "scenario", "", None
        table = native(scenario)
    else:
        path = find(scenario)
        name, where = path.stem, str(path)
        with at(where):
            text = _read(path)
            try:
                table = tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                raise InputError(f"not TOML: {error}") from error
    own = native(table)
    with at(where):
        for key, value in (overrides or {}).items():
            with at(f"override {key} = {value!r}"):
                override(table, key, native(value))
        sealing.choose(table, sealed)
        ours = path in shipped().values()
        seal = sealing.opening(name, path, table, own, ours) if sealed else None
    return Raw(name, where, text, table, path.parent if path else Path(), seal)


def find(scenario: object) -> Path:
    """Return the file of a scenario, by its path or its shipped name."""
    if not isinstance(scenario, (str, Path)):
        kind = type(scenario).__name__
        raise InputError(f"a scenario is a file, a shipped name or a table, not {kind}")
    path = Path(scenario)
    if path.is_file():
        return path
    known = shipped()
    if str(scenario) in known:
        return known[str(scenario)]
    if path.suffix == ".toml" or len(path.parts) > 1:
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise InputError(f"scenario file {str(path)!r} {what}")
    raise InputError(
        f"no scenario is named {str(scenario)!r}, and there is no such file; "
        f"{nearest(str(scenario), known)}"
    )


def _read(path: Path) -> str:
    try:
        # Some editors begin a file with a byte order mark, which TOML does not know.
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text, as TOML must be: {error}") from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from error


def native(value: Any) -> Any:
    """Return a copy with the types that TOML has: NumPy's numbers, and tuples, are Python's too."""
    if isinstance(value, Mapping):
        return {key: native(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [native(x) for x in value]
    return value.item() if isinstance(value, (np.number, np.bool_)) else value


def override(table: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at a dotted key path of a table."""
    *parents, last = key.split(".")
    if parents == ["record"] and isinstance(table.get("record"), str):
        del table["record"]  # a word, which the table that is asked for replaces
    for part in parents:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"{part!r} is a value, not a table")
    table[last] = value


def solvers(
    names: Mapping[str, str], overrides: Mapping[str, Any]
) -> tuple[Table, dict[str, Entry]]:
    """Return solvers without a stream, checked as a scenario's.

    Parameters
    ----------
    names : mapping of str to str
        Names of solvers by label.
    overrides : mapping of str to value
        As for `load`: what is of the solvers, and dtype, backend, kernel.
    """
    raw: dict[str, Any] = {"stream": {}, "solvers": {n: {"solver": x} for n, x in names.items()}}
    for key, value in overrides.items():
        with at(f"override {key} = {value!r}"):
            top = key.partition(".")[0]
            if top not in ("solvers", "dtype", "backend", "kernel"):
                raise InputError("without a scenario, only solvers, dtype, backend and kernel")
            label = key.removeprefix("solvers.").partition(".")[0]
            if top == "solvers" and label not in names:
                raise InputError(f"no solver has the label {label!r}; {nearest(label, names)}")
            override(raw, key, native(value))
    table = _validated(raw)
    return table, {
        n: building.entry(n, options, whole=False)[0] for n, options in table.solvers.items()
    }


def resolve(
    name: str, where: str, text: str, raw: dict[str, Any], folder: Path, stored: Path | None = None
) -> Scenario:
    """Return the scenario of a table; its stream is the one `stored` in a run, if given."""
    table = _validated(raw)
    clash = sorted(LABELS_TAKEN & set(table.solvers))
    if clash and table.probes:
        raise InputError(
            f"solvers.{clash[0]}: a probe stores {clash[0]!r} beside its answers; rename the label"
        )
    for what, names in (("solvers", table.solvers), ("probes", table.probes)):
        _check_twins(what, names)
    table.probes = {name: probe.beside(folder) for name, probe in table.probes.items()}
    if table.report is not None:
        with at(f"report = {table.report!r}"):
            registry.default().get("report", table.report)
    drawn = (stored, None, table.stream) if stored else building.stream(table.stream, folder)
    generator, steps, stream = drawn
    entries, solvers = {}, {}
    for label, options in table.solvers.items():
        others = [name for name in table.solvers if name != label]
        entries[label], solvers[label] = building.entry(label, options, others=others)
    top = table.model_dump(exclude={"stream", "solvers"})
    if table.keyframes and not table.redraws:
        del top["record"]["stream"]  # what every run did, before there was a choice
    resolved = {**top, "stream": stream, "solvers": solvers}
    return Scenario(name, where, text, table, generator, steps, entries, resolved)


def _validated(raw: dict[str, Any]) -> Table:
    try:
        return Table.model_validate(raw)
    except ValidationError as error:
        # What is misspelt comes first: it is often why something else is missing.
        errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise InputError("\n  ".join(_explain(e) for e in errors)) from error


def _explain(error: Any) -> str:
    tags = ("[key]", "[word]", "[table]")
    *parents, last = (str(part) for part in error["loc"] if part not in tags)
    path, value = ".".join([*parents, last]), error["input"]
    if error["type"] == "extra_forbidden":
        tables: dict[str, type[BaseModel]] = {
            "probes": Probe, "record": Keyframes, "seeds": sealing.Seeds,
        }  # fmt: skip
        known = (tables[parents[0]] if parents else Table).model_fields
        return f"{path} = {value!r}: no such key; {nearest(last, known)}"
    if error["type"] == "missing" or path == "solvers" and value == {}:
        if parents == ["seeds"]:
            return f"{path}: missing; write the number that no development run may use"
        if parents:
            return f'{path}: missing; write record = "every", "final" or {{ keyframes = 64 }}'
        return f"{path}: missing; a scenario needs [stream] and [solvers.<label>]"
    if error["type"] == "string_pattern_mismatch":
        return (
            f"{'.'.join(parents)}: {value!r} cannot be a label; use letters, digits, '_' and '-', "
            "a letter first"
        )
    return f"{path} = {value!r}: {told(error)}"


def _check_twins(what: str, names: Iterable[str]) -> None:
    """Refuse names that differ only in case: zarr's consolidated metadata mixes them up."""
    folded: dict[str, str] = {}
    for name in names:
        twin = folded.setdefault(name.casefold(), name)
        if twin != name:
            raise InputError(f"{what}.{name}: differs from {what}.{twin} only in case; rename one")

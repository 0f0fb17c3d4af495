"""A scenario's text with settings put in, everything else as its author wrote it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import InputError
from engine.scenario import find, override


def check_out(scenario: str, out: Path) -> None:
    """Refuse a place for a tuned scenario that is taken, or from where its files are not found.

    Raises
    ------
    InputError
        Before anything is run.
    """
    if out.exists():
        raise InputError(f"{out} exists; choose another place")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} is not a folder")
    path = find(scenario)
    if out.parent.resolve() == path.parent.resolve():
        return
    table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    texts = [*table.get("stream", {}).values()]
    texts += [p.get("queries") for p in table.get("probes", {}).values()]
    for text in texts:
        if isinstance(text, str) and not Path(text).is_absolute() and (path.parent / text).exists():
            raise InputError(
                f"{out}: the scenario reads {text!r} beside it; write to {path.parent}"
            )


def filled(scenario: str, settings: Mapping[str, Any]) -> str:
    """Return a scenario's text with settings put in, everything else as it was.

    Raises
    ------
    InputError
        If a setting's place in the text is not plain enough to be found.
    """
    path = find(scenario)
    text = path.read_text(encoding="utf-8-sig")
    wanted = tomllib.loads(text)
    for key, value in settings.items():
        override(wanted, key, value)
        text = _put(text, key, value)
    try:
        right = tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        right = False
    if not right:
        told = ", ".join(f"{key} = {value!r}" for key, value in settings.items())
        raise InputError(
            f"{path}: its settings cannot be put in line by line; write by hand: {told}"
        )
    return text


def _put(text: str, key: str, value: Any) -> str:
    """Return TOML text with one key set: its line replaced, or added under its table's header."""
    *parents, name = key.split(".")
    line, lines = f"{name} = {json.dumps(value)}", text.splitlines()
    inside, after = not parents, 0 if not parents else None
    for i, old in enumerate(lines):
        header = re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(#.*)?", old)
        if header or old.lstrip().startswith("[["):
            inside = bool(header) and header is not None and header[1].strip() == ".".join(parents)
            after = i + 1 if inside else after
        elif inside and re.match(rf"\s*{re.escape(name)}\s*=", old):
            comment = re.search(r"\s+#[^\"']*$", old)
            lines[i] = line + (comment[0] if comment else "")
            return "\n".join(lines) + "\n"
    if after is None:
        return text
    return "\n".join([*lines[:after], line, *lines[after:]]) + "\n"

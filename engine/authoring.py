"""A new plugin, written from a template: a package with its own tests, or one file."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from engine import api, registry
from engine.errors import InputError

KINDS = {
    "solver": "solver",
    "linear-solver": "solver",
    "generator": "generator",
    "view": "view",
}
"""What can be started: a template's name, and the kind of plugin that it is."""

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "0.1.0"
description = "A {kind} for ttr-engine"
requires-python = ">=3.11"
dependencies = ["ttr-engine"]

[project.optional-dependencies]
test = ["pytest", "array-api-strict"]

# What the engine looks for in every installed distribution: a module with hooks.
[project.entry-points."engine.plugins"]
{name} = "{name}"

[tool.setuptools]
py-modules = ["{name}"]
# Said so that `pip install -e` puts this folder on the path: a folder hides what it would else do.
package-dir = {{ "" = "." }}

[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
"""


def package(name: str, kind: str) -> dict[str, str]:
    """Return the files of a package, path to text, that provides one plugin.

    Parameters
    ----------
    name : str
        The plugin's name, and its module's.
    kind : "solver", "linear-solver", "generator" or "view"
        What it is.

    Raises
    ------
    InputError
        If the name cannot be one, is taken, or a module of that name can be imported already.
    """
    text = module(name, kind)
    if find_spec(name) is not None:
        raise InputError(
            f"a module named {name!r} is there already, and the package's would hide it or be "
            "hidden; choose another name, or write one file with --single-file"
        )
    template = kind.replace("-", "_")
    tests = _template(f"test_{template}", _names(name, kind))
    # The template imports its plugin from here; the package has it as a module of its own.
    line = rf"^from engine\.templates\.{template} import (\w+)\n"
    found = re.search(line, tests, re.M)
    assert found is not None
    tests = re.sub(line, "", tests, flags=re.M)
    last = tests.rindex("from engine.testing import")
    end = tests.index("\n", last) + 1
    tests = f"{tests[:end]}\nfrom {name} import {found[1]}\n{tests[end:]}"
    project = PROJECT.format(
        name=name, kind=KINDS[kind], distribution=f"ttr-engine-{name.replace('_', '-')}"
    )
    return {"pyproject.toml": project, f"{name}.py": text, f"tests/test_{name}.py": tests}


def module(name: str, kind: str) -> str:
    """Return the text of a module that provides one plugin; parameters and errors of `package`."""
    if not api.NAME.fullmatch(name) or keyword.iskeyword(name):
        close = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789")
        advice = f", as {close!r}" if api.NAME.fullmatch(close) and close != name else ""
        raise InputError(
            f"{name!r} cannot be a name; use lower-case letters, digits and underscores, a letter "
            f"first, and no word of Python's{advice}"
        )
    taken = [*registry.default().names(KINDS[kind]).values(), *registry.default().ambiguous()]
    for info in taken:
        if info.kind == KINDS[kind] and info.name == name:
            raise InputError(f"a {info.kind} named {name!r} is there already, from {info.source}")
    return _template(kind.replace("-", "_"), _names(name, kind))


def write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files into a folder, made if need be, and return their paths.

    Raises
    ------
    InputError
        If one of them, or something that is no folder, is there already; nothing is written then.
    """
    paths = {folder / name: text for name, text in texts.items()}
    for path in paths:
        if path.exists() or path.is_symlink():
            raise InputError(f"{str(path)!r} is there already; nothing was written")
        for parent in path.parents:
            if parent.exists() and not parent.is_dir():
                raise InputError(f"{str(parent)!r} is not a folder; nothing was written")
    for path, text in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    return list(paths)


def _template(file: str, names: Mapping[str, str]) -> str:
    text = (files("engine.templates") / f"{file}.py").read_text(encoding="utf-8")
    for old, new in names.items():
        text = text.replace(old, new)
    return text


def _names(name: str, kind: str) -> dict[str, str]:
    """Return what replaces the names in a template: the class's, and the plugin's."""
    word = KINDS[kind]
    made = "".join(part.capitalize() for part in name.split("_"))
    own = f"New{word.title()}"
    template = kind.replace("-", "_")
    text = _template(template, {}) + _template(f"test_{template}", {})
    if keyword.iskeyword(made) or re.search(rf"\b{made}\b", text):  # such as None, or Array
        made += word.title()
    return {own: made, f"new_{word}": name}

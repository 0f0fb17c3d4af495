"""The plugin edge: what is found, where, and how it is listed."""

import json
import os
import subprocess
import sys
import tomllib
import warnings
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import cli, registry
from engine.errors import InputError, PluginWarning

from .registry_cases import LEAKY, RULE, VIEW, plugin, swap

pytestmark = pytest.mark.usefixtures("no_folder")

ROOT = Path(__file__).parents[1]


# ---------------------------------------------------------------------------------- built-ins


def test_every_built_in_enters_through_its_own_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["entry-points"]["engine.plugins"]
    files = {
        f"engine.plugins.{path.parent.name}.{path.stem}"
        for path in ROOT.glob("plugins/*/*.py")
        if path.stem != "__init__"
    }
    assert set(declared.values()) == files
    for name, module in declared.items():
        *_, folder, stem = module.split(".")
        # A report is often of a scenario named as a generator is.
        assert name == (f"{stem}_report" if folder == "reports" else stem)


def test_built_ins_say_where_they_come_from():
    found = registry.load()
    assert found.broken == []
    assert found.ambiguous() == []
    rls = found.get("solver", "rls")
    assert rls.source == f"ttr-engine {version('ttr-engine')}"
    assert rls.rule.startswith("P <- ") and "\n" not in rls.rule
    for kind in registry.KINDS:
        for info in found.names(kind).values():
            assert info.rule and len(info.rule) < 140, f"{info.name} has no one-line rule"


def test_public_listings_are_the_registry():
    assert set(engine.solvers()) == set(registry.default().names("solver"))
    assert {"random", "stored"} <= set(engine.generators())
    assert {"unit", "elu1"} <= set(engine.views())


# ----------------------------------------------------------------------------- folders of files


def test_a_folder_gives_its_python_files_and_no_others(tmp_path):
    folder = plugin(tmp_path / "my plugins", "mine.py", LEAKY)
    plugin(folder, "_draft.py", "1 / 0")
    plugin(folder, "notes.txt", "not Python")
    (folder / "deeper").mkdir()
    plugin(folder / "deeper", "below.py", "1 / 0")
    found = registry.load(folder)
    assert found.broken == []
    assert found.get("solver", "leaky").source == str(folder / "mine.py")
    assert found.get("solver", "leaky").rule == "S <- keep S + k v^T; reads scale S^T q."


@pytest.mark.parametrize("what", ["missing", "file"])
def test_a_folder_that_is_none(what, tmp_path, monkeypatch):
    path = tmp_path / what
    if what == "file":
        path.write_text("")
    with pytest.raises(InputError, match=f"{what}' is not a folder"):
        registry.load(path)
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(path))
    with pytest.raises(InputError) as error:
        engine.run({"stream": {"generator": "random", "steps": 1}, "solvers": {"rls": {}}})
    assert str(error.value) == f"plugins folder {str(path)!r} is not a folder, nor a .py file"


def test_one_file_is_taken_without_those_beside_it(tmp_path):
    folder = plugin(tmp_path / "scripts", "mine.py", LEAKY)
    plugin(folder, "script.py", "raise SystemExit('a script was run')")
    found = registry.load(folder / "mine.py")
    assert found.broken == []
    assert found.get("solver", "leaky").source == str(folder / "mine.py")


def test_a_script_among_plugins_that_asks_for_them_is_named_and_the_rest_works(
    tmp_path, monkeypatch
):
    folder = plugin(tmp_path / "scripts", "mine.py", LEAKY)
    plugin(folder, "a_script.py", "import engine\nengine.view('unit')")
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(folder))
    with pytest.warns(PluginWarning, match="'a_script' .* asks for plugins while they are being"):
        assert engine.solver("leaky", scale=2.0).scale == 2.0
    assert [b.name for b in registry.default().broken] == ["a_script"]


def test_the_environment_names_the_folder_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(plugin(tmp_path / "one", "mine.py", LEAKY)))
    assert engine.solver("leaky", scale=2.0).scale == 2.0
    assert registry.default() is registry.default()
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", "")
    with pytest.raises(InputError, match="no solver is named 'leaky'; Known: "):
        engine.solver("leaky")


def test_the_folder_s_modules_pickle(tmp_path, monkeypatch):
    import pickle

    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(plugin(tmp_path / "pk", "mine.py", LEAKY)))
    made = engine.solver("leaky", scale=3.0)
    assert pickle.loads(pickle.dumps(made)) == made


# ---------------------------------------------------------------------------------- the listing


def listed(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["engine", "plugins", "list", *args])
    # The command line tells a broken plugin as a warning of its own form.
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with warnings.catch_warnings(), pytest.raises(SystemExit) as stop:
        warnings.simplefilter("always")
        cli.main()
    assert not stop.value.code
    return capsys.readouterr()


def test_plugins_list_shows_everything_with_the_broken_ones(monkeypatch, capsys, tmp_path):
    folder = plugin(tmp_path / "shown", "mine.py", LEAKY)
    plugin(folder, "kaputt.py", "import no_such_library_anywhere")
    plugin(folder, "other.py", swap('"leaky"', '"rls"'))
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", "unused: --plugins-dir replaces it")
    out, err = listed(monkeypatch, capsys, "--plugins-dir", str(folder))
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert lines["name"].split() == ["name", "kind", "source", "rule"]
    file = str(folder / "mine.py")
    rule = "S <- keep S + k v^T; reads scale S^T q."
    assert lines["leaky"].split() == f"leaky solver {file} {rule}".split()
    assert "S <- S + beta k (v - S^T k)^T" in lines["delta"]
    assert "generator" in lines["random"] and "view" in lines["unit"]
    assert "NOT LOADED: ModuleNotFoundError: No module named 'no_such_lib" in lines["kaputt"]
    assert str(folder / "kaputt.py") in lines["kaputt"]
    assert "NOT USABLE: another plugin has this name" in lines["rls"]
    assert err.startswith("warning: plugin 'kaputt' from ")
    assert "PluginWarning" not in err and err.count("\n") == 1

    out, _ = listed(monkeypatch, capsys, "--json", "--plugins-dir", str(folder))
    rows = json.loads(out)
    assert all(set(row) == {"name", "kind", "source", "rule"} for row in rows)
    assert [r["source"] for r in rows if r["name"] == "rls"] == [
        f"ttr-engine {version('ttr-engine')}", str(folder / "other.py"),
    ]  # fmt: skip
    assert len(rows) > 15


# ------------------------------------------------------ a stranger's solver, in a real scenario


def wheel(folder, dist, files, points):
    """Write a wheel: what a stranger would publish."""
    path = folder / f"{dist}-2.5-py3-none-any.whl"
    info = f"{dist}-2.5.dist-info"
    meta = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {dist}\nVersion: 2.5\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    files = {**files, **meta}
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


SCENARIO = """
[stream]
generator = "random"
steps = 30
key = 4
value = 3

[solvers.packaged]
solver = "leaky"
scale = 2.0
keep = 0.75

[solvers.own]
beta = 0.5
view = "twice"
"""


def test_strangers_run_in_a_scenario_from_a_package_and_from_a_file(tmp_path):
    site, folder = tmp_path / "site", tmp_path / "folder"
    built = wheel(
        tmp_path, "leaky_memory", {"leaky_memory/__init__.py": "", "leaky_memory/solver.py": LEAKY},
        "[engine.plugins]\nleaky = leaky_memory.solver\n",
    )  # fmt: skip
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--disable-pip-version-check", "--no-compile", "--target", str(site), str(built)]
    subprocess.run(pip, check=True, cwd=tmp_path)
    plugin(folder, "mine.py", RULE)
    plugin(folder, "view.py", VIEW)
    (tmp_path / "s.toml").write_text(SCENARIO)
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("engine")), "run", "s.toml", "-o", "r.zarr"],
        env={**os.environ, "PYTHONPATH": str(site), "ENGINE_PLUGINS_DIR": str(folder)},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    run = engine.open(tmp_path / "r.zarr")
    keys, values = (run["stream"][n].values[:, 0] for n in ("keys", "values"))
    S, fits = np.zeros((4, 3)), []
    for k, v in zip(keys, values, strict=True):
        S = 0.75 * S + np.outer(k, v)
        fits.append(S)
    packaged = run["solvers/packaged"]
    np.testing.assert_allclose(packaged["S"].values[:, 0], fits, rtol=1e-14, atol=1e-15)
    output = 2.0 * np.einsum("tk,tkv->tv", keys, np.array(fits))
    np.testing.assert_allclose(packaged["output"].values[:, 0], output, rtol=1e-13, atol=1e-15)
    assert packaged.attrs["plugin"] == "leaky_memory 2.5"
    assert packaged.attrs["hyperparameters"] == {"scale": 2.0}
    own = run["solvers/own"]
    hebbian = np.cumsum(0.5 * np.einsum("tk,tv->tkv", 2 * keys, values), axis=0)
    np.testing.assert_allclose(own["S"].values[:, 0], hebbian, rtol=1e-13, atol=1e-14)
    assert own.attrs["plugin"] == str(folder / "mine.py")

"""What `engine plugins new` writes works as it stands: checked, tested and found as installed."""

import importlib.util
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from engine import authoring, registry

pytestmark = pytest.mark.usefixtures("own_folder")

KINDS = list(authoring.KINDS)


def listing(site, folder):
    """Return the lines of `engine plugins list` with a folder on the path, by name and kind."""
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("engine")), "plugins", "list"],
        cwd=folder, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )  # fmt: skip
    assert ran.stderr == ""
    words = [line.split() for line in ran.stdout.splitlines() if line.strip()]
    return {tuple(w[:2]): w[2:4] for w in words}


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_keeps_the_contract_passes_its_tests_and_is_found(kind, call, tmp_path):
    code, out, err = call("plugins", "new", "fresh_one", "--kind", kind)
    assert (code, err) == (0, "")
    assert [line.split()[-1] for line in out.splitlines()[:3]] == [
        "fresh_one/pyproject.toml", "fresh_one/fresh_one.py", "fresh_one/tests/test_fresh_one.py",
    ]  # fmt: skip
    package = tmp_path / "fresh_one"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=package, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout and "skipped" not in ran.stdout

    # As an installer lays it out, from what its own pyproject.toml says.
    about = tomllib.loads((package / "pyproject.toml").read_text())
    project, group = about["project"], registry.GROUP
    site = tmp_path / "site"
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head)
    points = [f"{n} = {m}" for n, m in project["entry-points"][group].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *points, ""]))
    for module in about["tool"]["setuptools"]["py-modules"]:
        (site / f"{module}.py").write_text((package / f"{module}.py").read_text())
    found = listing(site, tmp_path)
    assert found["fresh_one", authoring.KINDS[kind]] == ["ttr-engine-fresh-one", "0.1.0"]
    assert project["dependencies"] == ["ttr-engine"]


def old(package):
    return importlib.util.find_spec(package) is None or int(version(package).split(".")[0]) < 77


NEW = "needs setuptools 77 or later here, for pip is told to fetch nothing: extra `test` has it"


@pytest.mark.skipif(old("setuptools"), reason=NEW)
def test_pip_installs_it(call, tmp_path):
    call("plugins", "new", "fresh_one", "-o", "here")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    pip += ["--disable-pip-version-check", "--no-build-isolation", "--target", "site", "./here"]
    subprocess.run(pip, check=True, cwd=tmp_path)
    found = listing(tmp_path / "site", tmp_path)
    assert found["fresh_one", "solver"] == ["ttr-engine-fresh-one", "0.1.0"]


@pytest.mark.skipif(old("setuptools"), reason=NEW)
def test_its_own_folder_does_not_hide_it_where_it_was_made(call, tmp_path):
    call("plugins", "new", "fresh_one")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    pip += ["--disable-pip-version-check", "--no-build-isolation", "--prefix", "site"]
    subprocess.run([*pip, "-e", "./fresh_one"], check=True, cwd=tmp_path)
    (folder,) = (tmp_path / "site").glob("**/site-packages")
    code = f"import site; site.addsitedir({str(folder)!r}); import engine; print(engine.solvers())"
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, check=True,
                          stdout=subprocess.PIPE).stdout  # fmt: skip
    assert "fresh_one" in told


@pytest.mark.parametrize("kind", KINDS)
def test_one_file_keeps_the_contract(kind, call, tmp_path):
    folder = tmp_path / "my plugins"
    code, out, _ = call("plugins", "new", "single", "--kind", kind, "--single-file", "-o", folder)
    assert code == 0 and f"--plugins-dir '{folder / 'single.py'}'" in out
    assert [p.name for p in folder.iterdir()] == ["single.py"]
    code, out, err = call("plugins", "check", "single", "--plugins-dir", folder / "single.py")
    assert (code, err) == (0, "")
    assert "passed" in out and "failed" not in out and f"{authoring.KINDS[kind]} single" in out


def test_one_file_goes_where_plugins_are_looked_for(call, tmp_path):
    (tmp_path / "mine").mkdir()
    folder = tmp_path / "mine"
    assert call("plugins", "new", "single", "--single-file", "--plugins-dir", folder)[0] == 0
    assert "single" in registry.load(folder).names("solver")


@pytest.mark.parametrize("name", ["gain", "card", "none", "check", "new_solver", "a_2", "mapping"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_the_template_uses_hides_nothing(kind, name):
    files = authoring.package(name, kind)
    made = {}
    exec(compile(files[f"{name}.py"], name, "exec"), made)
    hook = made[registry.KINDS[authoring.KINDS[kind]]]
    assert list(hook()) == [name]
    assert (
        files[f"tests/test_{name}.py"].count(f"from {name} import {hook()[name].__name__}\n") == 1
    )


MISTAKES = {
    "taken": (["delta"], "a solver named 'delta' is there already, from ttr-engine "),
    "taken by a generator": (
        ["random", "--kind", "generator"],
        "a generator named 'random' is there already, from ttr-engine ",
    ),
    "capitals": (["MyRule"], "'MyRule' cannot be a name; use lower-case letters, digits and"),
    "dash": (["my-rule"], "and no word of Python's, as 'my_rule'"),
    "path": (["../rule"], "'../rule' cannot be a name; "),
    "nothing": ([""], "'' cannot be a name; use lower-case letters"),
    "keyword": (["lambda"], "'lambda' cannot be a name; "),
    "a module's": (["numpy"], "a module named 'numpy' is there already, and the package's would"),
    "there": (["fresh", "-o", "full"], "'full/fresh.py' is there already; nothing was written"),
    "a file": (["fresh", "-o", "full/fresh.py"], "'full/fresh.py' is not a folder; nothing was"),
    "file there": (
        ["fresh", "-o", "full", "--single-file"],
        "'full/fresh.py' is there already; nothing was written",
    ),
    "no plugins": (
        ["fresh", "--plugins-dir", "nowhere"],
        "--plugins-dir 'nowhere' is not a folder",
    ),
}


@pytest.mark.parametrize("args, said", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_and_writes_nothing(args, said, call, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "fresh.py").write_text("mine")
    code, out, err = call("plugins", "new", *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and said in err
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "fresh.py"]
    assert (tmp_path / "full" / "fresh.py").read_text() == "mine"


def test_a_kind_that_is_none_is_told_the_kinds(call):
    code, _, err = call("plugins", "new", "fresh", "--kind", "linear")
    assert code == 2
    for kind in KINDS:
        assert f"'{kind}'" in err


def test_a_name_that_a_stranger_took_is_named_with_its_file(call, tmp_path):
    folder = tmp_path / "mine"
    call("plugins", "new", "single", "--single-file", "-o", folder)
    _, _, err = call("plugins", "new", "single", "--plugins-dir", folder)
    assert f"a solver named 'single' is there already, from {folder / 'single.py'}" in err

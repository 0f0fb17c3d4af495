"""Who may import whom, read from the source: the layers of the engine and the edge of plugins."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the bottom. A module may import its own layer and those below it, without a circle.
LAYERS = (
    {"errors", "ops", "rows", "draws", "reporting", "api", "agreement", "cores", "interrupts"},
    {
        "linear", "signatures", "registry", "backend", "sources", "coefficients", "factories",
        "loading", "cards", "measure", "steps", "tiles", "lanes", "recurrences", "compiled",
        "chunkwise", "kernels",
    },
    {
        "frames", "track", "initial", "drop", "loop", "recorder", "simulation", "building",
        "scenario", "experiment", "probes",
        "answers", "push", "live", "liveframes", "midway", "sealed", "tuning", "fill", "sweep",
        "lines", "schema",
    },
    {
        "shards", "lock", "guard", "redrawn", "cut", "resume", "ingestion", "store", "summary",
        "recorded", "opening",
        "trajectory", "xarray_backend", "rerun", "verify", "integrity", "overview", "contents",
        "parts",
    },
    {"figures", "publishing", "printing", "commands", "cli", "testing", "templates", "authoring"},
)  # fmt: skip
LEVEL = {module: level for level, layer in enumerate(LAYERS) for module in layer}
# A function of the API that stores needs the store; it loads it when it is called.
UPWARD_WHEN_CALLED = {
    ("experiment", "store"), ("experiment", "opening"), ("experiment", "resume"),
    ("sweep", "opening"), ("sweep", "parts"), ("sweep", "resume"),
    ("experiment", "lock"), ("sweep", "lock"),
}  # fmt: skip
# Heavy or optional: each is the business of one file.
ONE_FILE = ("zarr", "cupy", "matplotlib", "numba", "dask", "distributed")
PLUGIN_MAY = {"numpy", "array_api_compat", "scipy", "xarray", *sys.stdlib_module_names}
PLUGIN_MAY_OF_ENGINE = {"engine.api", "engine.ops", "engine.linear"}
REPORT_MAY_OF_ENGINE = {"engine.measure", "engine.cards", "engine.factories"}  # it analyses a run

SOURCES = sorted(p for folder in ("engine", "plugins") for p in ROOT.joinpath(folder).rglob("*.py"))
ENGINE = [p for p in SOURCES if p.is_relative_to(ROOT / "engine")]
PLUGINS = [p for p in SOURCES if p.is_relative_to(ROOT / "plugins")]


def short(path):
    return path.relative_to(ROOT).as_posix()


def module(path):
    """Return "loop" for engine/loop.py and "testing" for whatever is in engine/testing/."""
    return path.relative_to(ROOT / "engine").parts[0].removesuffix(".py")


def is_typing_only(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(path):
    """Yield (module, whether it happens at import) for every import but those for types."""

    def walk(node, top):
        for child in ast.iter_child_nodes(node):
            if is_typing_only(child):
                continue
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if isinstance(child, ast.Import):
                for name in child.names:
                    yield name.name, top
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{short(path)}: a relative import"
                for name in child.names:
                    # `from engine import ops` names a module as `from engine.ops import dot` does.
                    whole = child.module == "engine"
                    yield (f"engine.{name.name}" if whole else child.module), top
            elif isinstance(child, ast.Call) and ast.unparse(child.func).endswith("import_module"):
                if isinstance(child.args[0], ast.Constant):
                    yield child.args[0].value, top
            yield from walk(child, top and not inside)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


def of_engine(path):
    for name, top in imports(path):
        if name.startswith("engine."):
            yield name.split(".")[1], top


def test_every_module_has_a_layer():
    found = {module(path) for path in ENGINE} - {"__init__"}
    assert found <= set(LEVEL), f"no layer for {sorted(found - set(LEVEL))}"
    assert len(LEVEL) == sum(map(len, LAYERS))


@pytest.mark.parametrize("path", ENGINE, ids=short)
def test_nothing_imports_upwards(path):
    mine = module(path)
    if mine == "__init__":
        assert not list(of_engine(path)), "the package loads its parts when they are used"
        return
    for other, top in of_engine(path):
        if LEVEL[other] > LEVEL[mine]:
            assert not top, f"{mine} imports {other}, which is above it"
            assert (mine, other) in UPWARD_WHEN_CALLED, f"{mine} imports {other} in a function"


def test_nothing_imports_in_a_circle():
    graph = {}
    for path in ENGINE:
        others = {other for other, top in of_engine(path) if top} - {module(path)}
        graph.setdefault(module(path), set()).update(others)
    TopologicalSorter(graph).prepare()


def test_the_exceptions_are_still_needed():
    seen = {(module(path), other) for path in ENGINE for other, _ in of_engine(path)}
    assert seen >= UPWARD_WHEN_CALLED


@pytest.mark.parametrize("path", ENGINE, ids=short)
def test_the_host_knows_no_plugin(path):
    for name, _ in imports(path):
        assert not name.startswith(("engine.plugins", "engine.scenarios", "engine.data")), name


@pytest.mark.parametrize("library", ONE_FILE)
def test_a_heavy_library_is_one_file_s_business(library):
    named = {
        short(path)
        for path in SOURCES
        for name, _ in imports(path)
        if name.partition(".")[0] == library
    }
    assert len(named) <= 1


@pytest.mark.parametrize("path", PLUGINS, ids=short)
def test_a_plugin_imports_the_api_and_never_another_plugin(path):
    for name, _ in imports(path):
        if name.startswith("engine"):
            allowed = REPORT_MAY_OF_ENGINE if path.parent.name == "reports" else set()
            name = ".".join(name.split(".")[:2])
            assert name in PLUGIN_MAY_OF_ENGINE | allowed, f"{short(path)} imports {name}"
        else:
            assert name.partition(".")[0] in PLUGIN_MAY, f"{short(path)} imports {name}"


@pytest.mark.parametrize("path", SOURCES, ids=short)
def test_a_file_can_be_read_in_one_go(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def loaded_by(statement):
    """Return what a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert ran.returncode == 0, ran.stderr
    return {name.partition(".")[0] for name in ran.stderr.split()}


def test_importing_the_engine_loads_nothing_heavy():
    loaded = loaded_by("import engine; dir(engine)")
    assert "engine" in loaded
    heavy = {"numpy", "xarray", "zarr", "pydantic", "matplotlib", "scipy", "pandas", "rich"}
    assert not loaded & heavy


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["plugins", "--help"]], ids=str)
def test_help_loads_nothing_heavy(args):
    loaded = loaded_by(
        f"sys.argv = ['engine', *{args}]\nfrom engine import cli\n"
        "try: cli.main()\nexcept SystemExit as stop: assert not stop.code"
    )
    assert "typer" in loaded
    assert not loaded & {"xarray", "zarr", "matplotlib", "scipy", "pandas"}


def test_making_a_solver_draws_and_stores_nothing():
    assert not loaded_by("import engine; engine.solver('delta')") & {"zarr", "matplotlib", "dask"}

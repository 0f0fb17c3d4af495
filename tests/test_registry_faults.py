"""The plugin edge: what is refused, and what a stranger's fault costs."""

import sys
import warnings

import pytest

import engine
from engine import registry
from engine.errors import InputError, PluginWarning
from engine.measure import error_curve

from .registry_cases import GENERATOR, HEAD, LEAKY, RULE, VIEW, load_broken, plugin, swap

pytestmark = pytest.mark.usefixtures("no_folder")

# ------------------------------------------------------------------ one that cannot be imported

IMPORTS = {
    "missing import": ("import no_such_library_anywhere", "No module named 'no_such_library_any"),
    "import error": ("raise ImportError('libfoo.so.9: not found')", "libfoo.so.9: not found"),
    "syntax error": ("def f(:\n", "SyntaxError"),
    "exit": ("import sys\nsys.exit('no licence')", "SystemExit: no licence"),
    "exit zero": ("raise SystemExit(0)", "SystemExit: 0"),
    "any error": ("1 / 0", "ZeroDivisionError: division by zero"),
    "not an Exception": ("class Odd(BaseException): pass\nraise Odd('odd')", "Odd: odd"),
    "not UTF-8": ("# coding: no_such_coding\n", "no_such_coding"),
}


@pytest.mark.parametrize("text, cause", IMPORTS.values(), ids=IMPORTS)
@pytest.mark.parametrize("door", ["entry point", "file"])
def test_a_plugin_that_cannot_be_imported_is_named_and_the_rest_works(
    door, text, cause, install, tmp_path
):
    folder = None
    if door == "entry point":
        install("strange-dist", text, name="kaputt")
        source = "strange-dist 2.5"
    else:
        folder = plugin(tmp_path / "folder", "kaputt.py", text)
        source = str(folder / "kaputt.py")
    found, warning = load_broken(folder)
    assert warning.startswith(f"plugin 'kaputt' from {source} was not loaded: ")
    assert cause in warning
    broken = found.broken[0]
    assert (broken.name, broken.source) == ("kaputt", source)
    assert cause in broken.cause
    assert found.get("solver", "rls").name == "rls"
    with pytest.raises(InputError) as error:
        found.get("solver", "kaputt_solver")
    assert f"not loaded, may have provided it: kaputt from {source}: " in str(error.value)
    assert cause in str(error.value)


@pytest.mark.parametrize(
    "value, cause",
    [
        ("no_such_module_of_ours", "No module named 'no_such_module_of_ours'"),
        ("{module}:nothing_here", "has no attribute 'nothing_here'"),
        ("{module}.part:plugin", "is not a package"),
        ("{module}:Leaky", "Leaky is a class where a module or an instance with hooks is meant"),
        ("{module}:ops", "it provides nothing; mark engine_solvers"),
        ("{module}:hookimpl.nope.nope", "has no attribute 'nope'"),
        ("!!", "was not loaded: "),
    ],
)
def test_an_entry_point_that_names_the_wrong_thing(value, cause, install):
    install("strange-dist", LEAKY, value=value)
    found, warning = load_broken()
    assert "'stranger' from strange-dist 2.5" in warning
    assert cause in warning
    assert "leaky" not in found.names("solver")


def test_a_distribution_without_metadata_is_still_named(install):
    site = install("nameless", "1 / 0", name="kaputt")
    (site / "nameless-2.5.dist-info" / "METADATA").unlink()
    found, warning = load_broken()
    assert "plugin 'kaputt' from " in warning and "ZeroDivisionError" in warning
    assert "rls" in found.names("solver")


@pytest.mark.parametrize(
    "points", [b"[engine.plugins]\ngarbage\n", b"\xff\xfe[engine"], ids=["a line", "bytes"]
)
def test_metadata_that_cannot_be_read_stops_nothing(points, install):
    site = install("garbled", None)
    (site / "garbled-2.5.dist-info" / "entry_points.txt").write_bytes(points)
    found, warning = load_broken()
    assert warning.startswith("plugin 'entry_points.txt' from garbled 2.5 was not loaded: ")
    assert "rls" in found.names("solver")


def test_entry_points_of_other_groups_are_left_alone(install):
    site = install("other-host", "1 / 0")
    points = site / "other-host-2.5.dist-info" / "entry_points.txt"
    points.write_text(points.read_text().replace("engine.plugins", "engine.plugins.more"))
    assert registry.load().broken == []


def test_a_folder_that_hides_a_module_is_named(install, tmp_path, monkeypatch):
    install("hidden-dist", None, value="stranger_hidden")
    folder = tmp_path / "here" / "stranger_hidden"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder.parent)
    _, warning = load_broken()
    assert f"the folder {folder} hides it; run elsewhere, or rename that" in warning


def test_a_failed_import_leaves_no_half_made_module(tmp_path):
    folder = plugin(tmp_path / "folder", "half.py", "x = 1\n1 / 0\n")
    load_broken(folder)
    assert "engine_plugin_half" not in sys.modules


def test_interrupting_an_import_interrupts(tmp_path):
    folder = plugin(tmp_path / "folder", "slow.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.load(folder)


def test_a_strict_mode_raises(tmp_path):
    folder = plugin(tmp_path / "folder", "kaputt.py", "1 / 0")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PluginWarning)
        with pytest.raises(PluginWarning, match="'kaputt' from .* ZeroDivisionError"):
            registry.load(folder)


# ------------------------------------------------------------------------ one that is ill made


WRITE = "def write(self, s: State, k: Array, v: Array, *, keep: Decay = 1.0) -> State:"
READ = "def read(self, s: State, q: Array) -> Array:"
INIT = "def init(self, space: Space) -> State:"


MISSPELT = swap("def engine_solvers", "def engine_solver")
FAULTS = {
    "misspelt hook": (MISSPELT, ["unknown hook 'engine_solver'", "engine_solvers, engine_gen"]),
    "hook with an argument": (
        swap("def engine_solvers()", "def engine_solvers(registry)"),
        ["engine_solvers", "registry", "without arguments"],
    ),
    "no hookimpl": (swap("@hookimpl\ndef", "def"), ["it provides nothing", "@hookimpl"]),
    "another host's hookimpl": (
        swap("@hookimpl\ndef", "import pluggy\n@pluggy.HookimplMarker('datasette')\ndef"),
        ["it provides nothing"],
    ),
    "hook returns a list": (
        swap('{"leaky": Leaky}', "[Leaky]"),
        ["engine_solvers returned list", 'return {"name": Class}'],
    ),
    "hook returns nothing": (swap('return {"leaky": Leaky}', "pass"), ["returned NoneType"]),
    "hook raises": (swap('{"leaky": Leaky}', '{"leaky": Laeky}'), ["'Laeky' is not defined"]),
    "an empty hook": (swap('{"leaky": Leaky}', "{}"), ["it provides nothing"]),
    "instance for a class": (
        swap('{"leaky": Leaky}', '{"leaky": Leaky()}'),
        ["'leaky' is a Leaky instance; return its class"],
    ),
    "function for a class": (
        swap('{"leaky": Leaky}', '{"leaky": print}'),
        ["'leaky' is a builtin_function_or_method instance; return its class"],
    ),
    "no dataclass": (
        swap("@dataclass(frozen=True)\nclass Leaky", "class Leaky"),
        ["decorate Leaky with @dataclass(frozen=True)"],
    ),
    "no init": (swap(INIT, "def innit(self, space):"), ["Leaky has no method init(self, space"]),
    "no write": (swap(WRITE, "def wriet(self, s, k, v):"), ["no method write(self, s, k, v, *"]),
    "no read": (swap(READ, "def raed(self, s, q):"), ["Leaky has no method read(self, s, q, *"]),
    "write lacks v": (
        swap(WRITE, "def write(self, s, k):"),
        ["Leaky.write must take write(self, s, k, v, *, ...)", "too many positional"],
    ),
    "read wants more": (
        swap(READ, "def read(self, s, q, tail):"),
        ["Leaky.read must take read(self, s, q, *, ...)", "missing a required argument: 'tail'"],
    ),
    "no self": (swap(INIT, "def init(space):"), ["Leaky.init must take init(self, space"]),
    "static read": (swap(READ, "@staticmethod\n    " + READ), ["no method read(self, s, q"]),
    "coefficient by position": (
        swap(WRITE, "def write(self, s, k, v, keep: Decay = 1.0):"),
        ["Leaky.write must take", "'keep' is never given by position; put it behind a *"],
    ),
    "coefficient of text": (
        swap("keep: Decay = 1.0", 'keep: Decay = "all"'),
        ["Leaky.write: the default of 'keep' must be a number, not 'all'"],
    ),
    "coefficient in two ways": (
        swap(READ, "def read(self, s, q, *, keep: Gain = 0.5):"),
        ["write and read declare 'keep' differently"],
    ),
    "coefficient and option": (
        swap("keep: Decay = 1.0", "scale: Decay = 1.0"),
        ["the name 'scale' is taken"],
    ),
    "coefficient of the host's": (
        swap("keep: Decay = 1.0", "prediction: Decay = 1.0"),
        ["the name 'prediction' is taken"],
    ),
    "annotation unreadable": (
        swap("*, keep: Decay", "*, keep: 'Dceay'"),
        ["Leaky.write: cannot read its annotations", "Dceay"],
    ),
    "field type unreadable": (
        swap("scale: float", "scale: 'flaot'"),
        ["Leaky: cannot read its fields' types", "flaot"],
    ),
    "option of the host's": (
        swap("    scale: float = 1.0\n", "    view: float = 1.0\n    scale: float = 1.0\n"),
        ["Leaky: the name 'view' is the host's; rename that option"],
    ),
    "no token": (
        swap("def token", "def tokne", RULE),
        ["Own has no method token(self, k, v, *, ...)"],
    ),
    "wrong token": (
        swap("def token(self, k, v, *,", "def token(self, k, *,", RULE),
        ["Own.token must take token(self, k, v, *, ...)"],
    ),
    "no draw": (
        swap("def draw", "def drwa", GENERATOR),
        ["Ones has no method draw(self, state, draws, steps)"],
    ),
    "wrong start": (
        swap("def start(self, draws, steps)", "def start(self)", GENERATOR),
        ["Ones.start must take start(self, draws, steps)"],
    ),
    "a generator of no kin": (
        swap("class Ones(Generator)", "class Ones", GENERATOR),
        ["Ones has no method extent(self)", "inherit it from engine.api.Generator"],
    ),
    "wrong facts": (
        GENERATOR.replace("    def start", "    def facts(self): return {}\n\n    def start"),
        ["Ones.facts must take facts(self, state)"],
    ),
    "generator option of the host's": (
        swap("size: int", "steps: int", GENERATOR),
        ["the name 'steps' is the host's"],
    ),
    "a view that is not called": (
        swap("def __call__", "def call", VIEW),
        ["Twice has no method __call__(self, x)"],
    ),
    "a view of no kin": (
        swap("class Twice(View)", "class Twice", VIEW),
        ["Twice has no method queries(self, x)", "inherit it from engine.api.View"],
    ),
}


@pytest.mark.parametrize("text, said", FAULTS.values(), ids=FAULTS)
def test_an_ill_made_plugin_is_refused_at_load(text, said, tmp_path):
    found, warning = load_broken(plugin(tmp_path / "folder", "stranger.py", text))
    for part in ["plugin 'stranger' from ", "stranger.py was not loaded: ", *said]:
        assert part in warning
    for kind, name in (("solver", "leaky"), ("solver", "own"), ("view", "twice")):
        assert name not in found.names(kind)


@pytest.mark.parametrize("text", [LEAKY, RULE, GENERATOR, VIEW])
def test_what_the_faults_were_changes_of_is_sound(text, tmp_path):
    assert registry.load(plugin(tmp_path / "folder", "stranger.py", text)).broken == []


@pytest.mark.parametrize(
    "name", ["a/b", "", "..", "k with space", "zarr.json", "κ", "Delta", "_x", "9x", "a-b", "a\n"]
)
@pytest.mark.parametrize("base", [LEAKY, GENERATOR, VIEW], ids=["solver", "generator", "view"])
def test_names_that_a_store_could_not_hold_are_refused(name, base, tmp_path):
    text = base.replace('return {"', f"return {{{name!r}: None, " + '"', 1)
    _, warning = load_broken(plugin(tmp_path / "folder", "stranger.py", text))
    assert f"{name!r} cannot be a name; use lower-case letters, digits and underscores" in warning


def test_a_name_must_be_text(tmp_path):
    text = swap('{"leaky": Leaky}', "{7: Leaky}")
    _, warning = load_broken(plugin(tmp_path / "folder", "stranger.py", text))
    assert "engine_solvers: 7 cannot be a name" in warning


def test_half_done_registration_is_rolled_back(tmp_path):
    half = HEAD + (
        "@hookimpl\ndef engine_solvers():\n    return {'leaky': Leaky, 'second': Leaky}\n\n"
        "@hookimpl\ndef engine_views():\n    return {'a/b': Leaky}\n"
    )
    folder = plugin(tmp_path / "folder", "a_half.py", half)
    plugin(folder, "b_whole.py", LEAKY)
    found, warning = load_broken(folder)
    assert "a_half" in warning
    assert found.get("solver", "leaky").source == str(folder / "b_whole.py")
    assert "second" not in found.names("solver")
    assert found.ambiguous() == []


def test_one_misspelt_hook_is_not_held_against_the_next_plugin(tmp_path):
    folder = plugin(tmp_path / "folder", "a.py", MISSPELT)
    plugin(folder, "b.py", swap("def engine_solvers()", "def engine_solvers(x)"))
    plugin(folder, "c.py", LEAKY)
    with pytest.warns(PluginWarning) as caught:
        found = registry.load(folder)
    assert [b.name for b in found.broken] == ["a", "b"]
    assert len(caught) == 2
    assert "leaky" in found.names("solver")


# ------------------------------------------------------------------ what only newer views have

OWN_VIEW = swap("class Twice(View):", "class Twice:", VIEW).replace(
    "        return x + x\n",
    """        return x + x

    def queries(self, x):
        return x

    def size(self, n):
        return n
""",
)


def test_a_view_that_does_not_map_values_leaves_them_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(plugin(tmp_path / "folder", "own.py", OWN_VIEW)))
    run = engine.run({
        "stream": {"generator": "random", "steps": 5},
        "solvers": {"delta": {"view": "twice"}},
        "probes": {"recall": {}},
    })  # fmt: skip
    assert run["solvers/delta/prediction"].shape == run["stream/values"].shape
    assert error_curve(run, "delta").shape == (5, 1)


@pytest.mark.parametrize(
    "method, cause",
    [
        ("values = 3", "Twice has no method values(self, v)"),
        ("def value_size(self): return 3", "Twice.value_size must take value_size(self, n)"),
    ],
)
def test_a_view_that_maps_values_in_another_way_is_refused(method, cause, tmp_path):
    text = swap("    def __call__(self, x):", f"    {method}\n\n    def __call__(self, x):", VIEW)
    found, warning = load_broken(plugin(tmp_path / "folder", "own.py", text))
    assert cause in warning and "twice" not in found.names("view")

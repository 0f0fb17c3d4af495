"""The plugin edge: two plugins of one name, and one plugin that is seen twice."""

from importlib.metadata import version

import pytest

from engine import registry
from engine.errors import InputError

from .registry_cases import HEAD, LEAKY, VIEW, plugin, swap

pytestmark = pytest.mark.usefixtures("no_folder")


def test_two_plugins_of_one_name_are_both_named_and_neither_is_used(install, tmp_path):
    install("first-dist", LEAKY, folder="one")
    install("second-dist", LEAKY, folder="two")
    folder = plugin(tmp_path / "folder", "third.py", LEAKY)
    two = registry.load()
    with pytest.raises(InputError) as error:
        two.get("solver", "leaky")
    assert "2 solvers are named 'leaky'" in str(error.value)
    assert "first-dist 2.5" in str(error.value) and "second-dist 2.5" in str(error.value)
    assert "leaky" not in two.names("solver")
    assert {i.source for i in two.ambiguous()} == {"first-dist 2.5", "second-dist 2.5"}
    assert two.get("solver", "rls").name == "rls"
    with pytest.raises(InputError, match="3 solvers are named 'leaky'") as error:
        registry.load(folder).get("solver", "leaky")
    assert str(folder / "third.py") in str(error.value)


def test_a_stranger_cannot_take_a_built_in_name(tmp_path):
    text = swap('"leaky"', '"delta"')
    folder = plugin(tmp_path / "folder", "mine.py", text)
    with pytest.raises(InputError) as error:
        registry.load(folder).get("solver", "delta")
    assert f"ttr-engine {version('ttr-engine')}" in str(error.value)
    assert str(folder / "mine.py") in str(error.value)


def test_names_of_different_kinds_do_not_meet(tmp_path):
    folder = plugin(tmp_path / "folder", "mine.py", VIEW.replace('"twice"', '"delta"'))
    found = registry.load(folder)
    assert found.get("view", "delta").source == str(folder / "mine.py")
    assert found.get("solver", "delta").source.startswith("ttr-engine ")


def test_a_distribution_that_is_seen_twice_is_one(install, tmp_path, monkeypatch):
    site = install("strange-dist", LEAKY)
    (tmp_path / "lib64").symlink_to(site, target_is_directory=True)
    monkeypatch.syspath_prepend(str(tmp_path / "lib64"))
    monkeypatch.syspath_prepend(str(site))
    found = registry.load()
    assert found.broken == [] and found.ambiguous() == []
    assert found.get("solver", "leaky").source == "strange-dist 2.5"


def test_of_two_copies_of_a_distribution_the_first_on_the_path_counts(install):
    install("strange-dist", swap("S <- keep S", "S <- older S"), folder="old")
    install("Strange_Dist", LEAKY, folder="new")
    found = registry.load()
    assert found.broken == [] and found.ambiguous() == []
    assert found.get("solver", "leaky").rule.startswith("S <- keep S")


def test_a_module_with_two_entry_points_is_one_plugin(install):
    site = install("strange-dist", LEAKY)
    points = site / "strange-dist-2.5.dist-info" / "entry_points.txt"
    line = points.read_text().splitlines()[1]
    points.write_text(f"[engine.plugins]\n{line}\n{line.replace('stranger =', 'again =')}\n")
    found = registry.load()
    assert found.broken == [] and found.ambiguous() == []
    assert "leaky" in found.names("solver")


@pytest.mark.parametrize("hashable", [True, False])
def test_an_instance_with_hooks_is_a_plugin_too(hashable, install):
    text = HEAD + (
        "class Hooks:\n"
        f"    __hash__ = {'object.__hash__' if hashable else None}\n"
        "    @hookimpl\n    def engine_solvers(self):\n        return {'leaky': Leaky}\n\n"
        "hooks = Hooks()\n"
    )
    install("strange-dist", text, value="{module}:hooks")
    found = registry.load()
    assert found.broken == []
    assert found.get("solver", "leaky").source == "strange-dist 2.5"

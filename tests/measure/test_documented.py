"""A measure that is not documented does not exist."""

import importlib
import inspect
import pkgutil

import pytest

import engine.measure

MODULES = [
    importlib.import_module(m.name)
    for m in pkgutil.walk_packages(engine.measure.__path__, "engine.measure.")
]
PUBLIC = {
    f"{module.__name__}.{name}": thing
    for module in MODULES
    for name, thing in vars(module).items()
    if inspect.isroutine(thing) and not name.startswith("_") and thing.__module__ == module.__name__
}


def test_there_is_something_to_document():
    assert {m.__name__.rpartition(".")[2] for m in MODULES} >= {"laws", "capacity", "tracking"}
    assert len(PUBLIC) > 20


@pytest.mark.parametrize("name", PUBLIC)
def test_a_measure_says_what_it_takes_and_returns(name):
    text = inspect.getdoc(PUBLIC[name]) or ""
    first = text.partition("\n")[0]
    assert first.startswith(("Return", "Apply")) and first.endswith((".", ":", ","))
    for section in ("Parameters", "Returns"):
        assert f"{section}\n{'-' * len(section)}" in text, f"{name} has no section {section}"
    for parameter in inspect.signature(PUBLIC[name]).parameters:
        assert parameter in text.partition("Parameters\n")[2], f"{name} does not say {parameter}"

"""Scenarios: what is right, in the form that is run and stored."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import sweep
from engine.errors import InputError
from engine.scenario import load, shipped

from .scenario_cases import GOOD

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_scenarios_are_sound_and_titled(name):
    swept = sweep.prepare(name, {})
    for made in [plan.scenario for plan in swept.plans] if swept else [load(name)]:
        assert made.name == name
        assert made.table.title
        assert made.text == shipped()[name].read_text(encoding="utf-8")


def test_the_resolved_form_is_complete_and_runs_the_same():
    Path("s.toml").write_text(GOOD)
    run = engine.run("s.toml")
    told = run.attrs["scenario"]
    assert (told["name"], told["text"]) == ("s", GOOD)
    resolved = told["resolved"]
    assert resolved["stream"] == {
        "generator": "random", "steps": 20, "key": 4, "value": 3, "keys": "unit", "values": "unit",
        "pairs": None, "priority": 0.5, "exact": False,
    }  # fmt: skip
    assert resolved["solvers"] == {"delta": {"solver": "delta", "view": None, "beta": 0.5}}
    plain = {"seed": 0, "trials": None, "dtype": "float64", "backend": "numpy", "record": "every"}
    assert plain.items() <= resolved.items()
    again = engine.run(resolved)
    assert run["solvers/delta"].to_dataset().identical(again["solvers/delta"].to_dataset())


def test_a_caller_s_table_is_left_alone_and_may_hold_numpy():
    table = {
        "seed": np.int64(3),
        "trials": np.int32(2),
        "stream": {"generator": "random", "steps": np.int64(5), "priority": np.float32(0.5)},
        "solvers": {
            "delta": {"beta": {"trials": np.array([0.25, 0.5])}},
            "rls": {"ridge": np.float64(0.5), "gamma": np.float32(0.75)},
        },
    }
    kept = json.dumps(table, default=repr)
    run = engine.run(table, **{"solvers.rls.gamma": np.float64(0.5), "seed": np.int8(4)})
    assert json.dumps(table, default=repr) == kept
    resolved = run.attrs["scenario"]["resolved"]
    assert resolved["seed"] == 4 and type(resolved["seed"]) is int
    assert resolved["solvers"]["delta"]["beta"] == {"trials": [0.25, 0.5]}
    assert resolved["solvers"]["rls"]["gamma"] == 0.5
    assert run.sizes["trial"] == 2
    json.dumps(run.attrs)


def test_overrides_reach_what_the_file_says_and_what_it_does_not():
    Path("s.toml").write_text(GOOD)
    made = load("s.toml", {"seed": 7, "stream.steps": 3, "solvers.rls.ridge": 0.5})
    assert made.table.seed == 7 and made.steps == 3
    assert made.entries["rls"].solver.ridge == 0.5
    assert made.text == GOOD


def test_paths_are_relative_to_the_scenario_before_the_caller():
    Path("good.toml").write_text(GOOD)
    engine.run("good.toml", "here.zarr")
    Path("below").mkdir()
    engine.run("good.toml", "below/beside.zarr", **{"stream.steps": 7})
    text = '[stream]\ngenerator = "stored"\npath = "{}.zarr"\n[solvers.delta]\n'
    Path("below/beside.toml").write_text(text.format("beside"))
    Path("below/here.toml").write_text(text.format("here"))
    assert engine.run("below/beside.toml").sizes["step"] == 7
    assert engine.run("below/here.toml").sizes["step"] == 20


def test_a_byte_order_mark_is_not_part_of_the_text():
    Path("bom.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load("bom.toml").table.title == "good"


def test_a_file_goes_before_a_shipped_name():
    Path("drift").write_text(GOOD)
    assert load("drift").table.title == "good"
    assert load(Path("drift")).where == "drift"


def test_a_view_may_be_a_name_or_a_table():
    plain = load({**tomllib.loads(GOOD), "solvers": {"delta": {"view": "unit"}}})
    table = load({**tomllib.loads(GOOD), "solvers": {"delta": {"view": {"view": "unit"}}}})
    assert plain.entries["delta"].view == table.entries["delta"].view
    assert plain.resolved["solvers"] == table.resolved["solvers"]


ANYTHING = """
from dataclasses import dataclass
from typing import Any, Literal

from engine.api import Generator, hookimpl
from engine.plugins.solvers.delta import Delta


@dataclass(frozen=True)
class Anything(Delta):
    \"\"\"The delta rule with an option of any kind.\"\"\"

    thing: Any = None
    numbers: tuple[float, ...] = ()
    listed: list[int] | None = None
    kind: Literal["a", "b"] | None = None

    def __post_init__(self):
        if self.thing == "odd":
            raise TypeError("thing is odd")


@hookimpl
def engine_solvers():
    return {"anything": Anything}
"""


@pytest.fixture
def anything(monkeypatch, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "anything.py").write_text(ANYTHING)
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(tmp_path / "folder"))

    def table(**options):
        return {
            "stream": {"generator": "random", "steps": 3},
            "solvers": {"anything": {k: v for k, v in options.items()}},
        }

    return table


@pytest.mark.parametrize(
    "given, stored",
    [
        (np.int32(9), 9),
        (np.float32("nan"), float("nan")),
        (float("inf"), float("inf")),
        (None, None),
        (True, True),
        (np.bool_(False), False),
        ({"g": np.zeros(2)}, {"g": [0.0, 0.0]}),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        ([1, [2.5, "x"]], [1, [2.5, "x"]]),
        ({1: np.int8(3)}, {"1": 3}),
        # What JSON has no form for is stored as its text.
        (Path("a/b"), "a/b"),
        (1j, "1j"),
        (np.complex128(1j), "1j"),
        (np.datetime64("2024-01-02"), "2024-01-02"),
        (np.datetime64("2024-01-02T00:00:00.000000001"), "2024-01-02T00:00:00.000000001"),
        (np.array([1j]), ["1j"]),
        (np.dtype("float32"), "float32"),
        (np.random.default_rng(0), "Generator(PCG64)"),
    ],
    ids=str,
)
def test_options_of_every_kind_are_stored_or_told_as_text(given, stored, anything):
    run = engine.run(anything(thing=given), "r.zarr")
    assert run.attrs["status"] == "complete"
    kept = run["solvers/anything"].attrs["hyperparameters"]["thing"]
    assert json.dumps(kept) == json.dumps(stored)
    told = engine.open("r.zarr").attrs["scenario"]["resolved"]["solvers"]["anything"]["thing"]
    assert json.dumps(told) == json.dumps(stored)


def test_lists_reach_fields_of_tuples_and_of_lists(anything):
    made = engine.solver("anything", numbers=[1, 2.5], listed=[1, 2])
    assert made.numbers == (1, 2.5)
    assert list(made.listed) == [1, 2]


def test_whatever_a_plugin_s_own_check_raises_is_bad_input(anything):
    with pytest.raises(InputError, match=r"solvers.anything: anything: TypeError: thing is odd"):
        engine.run(anything(thing="odd"))
    with pytest.raises(InputError, match=r"solvers.anything.kind = 'c': no such choice; Known: a"):
        engine.run(anything(kind="c"))

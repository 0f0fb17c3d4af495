"""What Python callers get wrong, with arrays, names and stores: the advice that each is given.

Scenarios: test_scenario_mistakes.py; the command line: test_usage.py; plugins:
test_registry_faults.py; files: test_ingest_mistakes.py; shapes: test_simulation_inputs.py.
"""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import engine
from engine import measure

pytestmark = pytest.mark.usefixtures("own_folder")

KEYS, VALUES = np.eye(5, 4), np.ones((5, 3))
TABLE = {
    "stream": {"generator": "random", "steps": 6, "key": 4, "value": 3},
    "solvers": {"delta": {"beta": 0.5}},
}


def frame():
    return next(engine.stream(TABLE))


def simulated(solver="delta", keys=KEYS, values=VALUES, **options):
    return engine.simulate(solver, keys, values, **options)


def memory(**options):
    return engine.memory("delta", key=4, value=3, **options)


def tuned(**candidates):
    return engine.tune({**TABLE, "tune": {"delta": candidates}})


MISTAKES = {
    # ------------------------------------------------------------------------------------- names
    "solver": (lambda: engine.solver("dleta"), "no solver is named 'dleta'; did you mean 'delta'?"),
    "generator": (lambda: engine.generator("randon"), "did you mean 'random'? Known: corr"),
    "view": (lambda: engine.view("unti"), "no view is named 'unti'; did you mean 'unit'? Known: "),
    "option": (
        lambda: engine.solver("rls", rige=1),
        "rls takes no 'rige'; did you mean 'ridge'? Known: limit, ridge\n  rls takes ridge: float ",
    ),
    "coefficient as an option": (
        lambda: engine.solver("kda", gama=1),
        "kda takes no 'gama'; there are none\n  kda takes per step: beta, at least 0 = 1.0; gamma "
        "per key, in [0, 1] = 1.0",
    ),
    "type": (
        lambda: engine.solver("rls", ridge="a"),
        "rls: ridge = 'a': must be a number\n  rls takes ridge: float = ",
    ),
    "bounds": (lambda: engine.solver("rls", ridge=-1), "rls: ridge = -1.0 must be above 0"),
    "choice": (
        lambda: engine.generator("random", keys="unti"),
        "random: keys = 'unti': no such choice; did you mean 'unit'? Known: gaussian, sign, unit\n"
        "  random takes key: int = 16; value: int = 16; keys: Literal['unit', 'gaussian', 'sign'] "
        "= 'unit'",
    ),
    "missing": (
        lambda: engine.generator("stored"),
        "stored needs 'path', which is not given\n  stored takes path: Path; first: ",
    ),
    "no options at all": (lambda: engine.view("unit", eps=1), "\n  unit takes nothing"),
    # ------------------------------------------------------------------------------------ arrays
    "record": (lambda: simulated(record="evry"), "record = 'evry'; did you mean 'every'? Known: e"),
    "dtype": (lambda: simulated(dtype="float16"), "'float16' must be 'float32' or 'float64'"),
    "backend": (lambda: simulated(backend="cpuy"), "is named 'cpuy'; did you mean 'cupy'? Known"),
    "kernel": (lambda: simulated(kernel="lop"), "no such kernel; did you mean 'loop'? Known: auto"),
    "lengths": (lambda: simulated(values=VALUES[:4]), "values has 4 steps, keys have 5"),
    "text": (lambda: simulated(keys=KEYS.astype(str)), "expected floats, integers or bools"),
    "one vector": (lambda: simulated(keys=KEYS[0]), "expected (step, key) or (step, trial, key),"),
    "negative": (lambda: simulated(beta=-1), "beta = -1 must be at least 0"),
    "a class": (lambda: simulated(type(engine.solver("rls"))), "or made by engine.solver"),
    # ------------------------------------------------------------------------------------ memory
    "no key": (lambda: memory().write(KEYS[0, :2], VALUES[0]), "expected (key,) = (4,)"),
    "memory's option": (lambda: memory(bta=1), "delta takes no 'bta'; did you mean 'beta'? Known"),
    "a write's": (
        lambda: memory().write(KEYS[0], VALUES[0], bta=1),
        "Delta takes no coefficient 'bta'; did you mean 'beta'? Known: beta",
    ),
    "a state": (lambda: memory().restore({"T": 1}), "state: unknown 'T'; it must give S"),
    # -------------------------------------------------------------------------------- a scenario
    "no scenario": (lambda: engine.run(3), "a file, a shipped name or a table, not int"),
    "a list": (lambda: engine.stream([TABLE]), "a file, a shipped name or a table, not list"),
    "an override": (lambda: engine.run(TABLE, sed=3), "sed = 3: no such key; did you mean 'seed'?"),
    "frame's label": (
        lambda: frame()["dleta"],
        "no solver has the label 'dleta'; did you mean 'delta'? Known: delta",
    ),
    "state's label": (lambda: frame().state("dleta"), "'dleta'; did you mean 'delta'? Known:"),
    "set's label": (lambda: frame().set("dleta", beta=1), "'dleta'; did you mean 'delta'? Known"),
    "set's coefficient": (lambda: frame().set("delta", bta=1), "did you mean 'beta'? Known: beta"),
    "tuned label": (lambda: engine.tune(TABLE), "tune: missing; write [tune.<label>] with candid"),
    "tuned setting": (lambda: tuned(bta=[1]), "tune.delta.bta = [1]: no such setting; did you mea"),
    "objective": (lambda: tuned(beta=[1], objective="eror"), "no such objective; did you mean 'er"),
    # ----------------------------------------------------------------------------------- a store
    "no store": (lambda: engine.open("nope.zarr"), "nope.zarr does not exist"),
    "no path": (lambda: engine.open(3), "a run is the path of its store, not int"),
    "a file": (lambda: engine.open("file"), "file is not a run's store: it has no attribute"),
    "a folder": (lambda: engine.open("folder"), "give the folder that was written, as runs/NAME."),
    "another's": (lambda: engine.open("foreign.zarr"), "foreign.zarr is not a run's store: it"),
    "a group": (lambda: engine.open("r.zarr/stream"), "r.zarr/stream is not a run's store: it"),
    "taken": (lambda: engine.run(TABLE, "r.zarr"), "r.zarr exists; choose another place, or repla"),
    "replayed": (
        lambda: engine.replay("r.zarr", ["dlta"]),
        "no solver of the run and none registered is named 'dlta'; did you mean 'delta'? Known: "
        "abc, affine_projection, comba, delta, delta_product,",
    ),
    "replay of none": (lambda: engine.replay("nope.zarr"), "nope.zarr does not exist"),
    "its label": (
        lambda: measure.error_curve(engine.open("r.zarr"), "dleta"),
        "the run has no solver 'dleta'; did you mean 'delta'? Known: delta",
    ),
    "its group": (
        lambda: xr.open_dataset("r.zarr", engine="engine", group="solvers/dleta"),
        "no group 'solvers/dleta'; did you mean '/solvers/delta'? Known: ",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a run, and with what is none."""
    folder = tmp_path_factory.mktemp("made")
    engine.run(TABLE, folder / "r.zarr")
    xr.Dataset({"x": ("t", np.arange(3.0))}).to_zarr(
        folder / "foreign.zarr", zarr_format=3, consolidated=False
    )
    (folder / "file").write_text("text")
    (folder / "folder" / "below").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("call, said", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_an_input_error_with_its_advice(call, said, made, monkeypatch):
    monkeypatch.chdir(made)
    before = sorted(Path().rglob("*"))
    with pytest.raises(engine.InputError) as error:
        call()
    assert said in str(error.value)
    assert sorted(Path().rglob("*")) == before


def test_a_misspelt_function_is_told_the_nearest():
    """Python does it, for an AttributeError that says whose attribute it is."""
    with pytest.raises(AttributeError, match="'engine' has no attribute 'simulat'") as error:
        engine.simulat  # noqa: B018
    assert (error.value.name, error.value.obj) == ("simulat", engine)

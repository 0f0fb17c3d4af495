"""`engine replay --verify`: a run that holds, and the first number of one that does not."""

import json
import re

import numpy as np
import pytest
import zarr

import engine
from engine import agreement
from engine.verify import verify

from .store_cases import SCENARIO

EASY = {n: x for n, x in SCENARIO["solvers"].items() if n != "wild"}
RUN = {**SCENARIO, "solvers": {**EASY, "titans": {"eta": 0.9, "theta": 0.1}}}
RECORDS = ("every", "final", {"keyframes": 16})


def poke(path, variable, index, change):
    """Change one stored number, its checksum with it."""
    array = zarr.open_group(str(path), mode="r+", use_consolidated=False)[variable]
    array[index] = change(array[index])


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_a_run_agrees_with_itself_bit_for_bit(record, tmp_path, small_shards):
    run = engine.run(RUN, tmp_path / "run.zarr", record=record)
    found = verify(tmp_path / "run.zarr")
    assert not found.differences and not found.notes
    assert set(found.tolerance.values()) == {0.0}
    # Every number was looked at: of the stream twice, drawn and read.
    root = zarr.open_group(str(tmp_path / "run.zarr"), mode="r")
    sizes = {n: x.size for n, x in root.members(max_depth=None) if hasattr(x, "shape")}
    stream = sum(x.size for n, x in run["stream"].data_vars.items() if "step" in x.dims)
    assert found.compared == sum(sizes.values()) + stream


@pytest.mark.parametrize("record", ["every", {"keyframes": 16}], ids=str)
def test_another_kernel_agrees_to_the_stated_tolerance(record, tmp_path):
    engine.run(RUN, tmp_path / "run.zarr", record=record)
    found = verify(tmp_path / "run.zarr", {"kernel": "loop"})
    assert not found.differences
    for label in ("delta", "longhorn", "linear", "rls", "titans"):
        assert found.stored_by[label]["kernel"] == "numba"
        assert found.recomputed_by[label]["kernel"] == "loop"
        assert found.worst[label] <= found.tolerance[label] < 1e-12
        line = next(x for x in found.lines() if x.startswith(f"{label}:"))
        assert "stored by kernel numba, recomputed by kernel loop; largest difference" in line
    assert max(found.worst.values()) > 0  # the kernels round differently
    assert found.tolerance["ls"] == 0.0  # it is stepped either way


def test_the_tolerance_is_one_that_a_wrong_number_breaks(tmp_path):
    engine.run(RUN, tmp_path / "run.zarr")
    poke(tmp_path / "run.zarr", "solvers/delta/S", (70, 1, 2, 1), lambda x: x + 1e-11)
    found = verify(tmp_path / "run.zarr", {"kernel": "loop"})
    assert [d.variable for d in found.differences] == ["solvers/delta/S"]
    assert found.first.index == (70, 1, 2, 1)


@pytest.mark.parametrize(
    ("record", "variable", "index", "step"),
    [
        ("every", "solvers/rls/P", (101, 1, 3, 2), 101),
        ("every", "solvers/softmax/output", (149, 0, 2), 149),
        ("every", "solvers/delta/beta", (33, 1), 33),
        ("every", "solvers/softmax/keys", (20, 1, 2), None),
        ("final", "solvers/titans/U", (1, 3, 2), None),
        ({"keyframes": 16}, "keyframes/titans/U", (4, 1, 3, 2), 79),
        ("every", "probes/recall/rls/read", (5, 1, 2), None),
    ],
)
def test_the_first_difference_is_named(record, variable, index, step, tmp_path, small_shards):
    path = tmp_path / "run.zarr"
    engine.run(RUN, path, record=record)
    poke(path, variable, index, lambda x: np.nextafter(x, 9))
    found = verify(path)
    (d,) = found.differences
    assert (d.variable, d.index, d.step) == (variable, index, step)
    assert d.stored == np.nextafter(d.recomputed, 9)


def test_a_changed_stream_is_said_before_what_follows_from_it(tmp_path, small_shards):
    path = tmp_path / "run.zarr"
    engine.run(RUN, path)
    poke(path, "stream/values", (40, 1, 2), lambda x: x + 1)
    found = verify(path)
    assert found.first.variable == "stream/values" and found.first.index == (40, 1, 2)
    assert {"stream/sha256", "solvers/delta/S"} <= {d.variable for d in found.differences}


def test_a_cut_run_is_verified_to_its_mark(tmp_path, monkeypatch, small_shards):
    commit = engine.store.ZarrSink.commit

    def dying(self, steps):
        commit(self, steps)
        if steps >= 60:
            raise OSError("no space left on device")

    for record in ("every", {"keyframes": 16}):
        path = tmp_path / f"{record}.zarr"
        with monkeypatch.context() as m:
            m.setattr(engine.store.ZarrSink, "commit", dying)
            with pytest.raises(engine.RunError):
                engine.run({**RUN, "probes": {}}, path, record=record)
        found = verify(path)
        assert not found.differences, found.first


def test_the_command_exits_by_what_it_found(call, own_folder):
    engine.run(RUN, "run.zarr")
    code, out, err = call("replay", "run.zarr", "--verify")
    assert code == 0 and not err and re.search(r"run.zarr: all [\d,]+ numbers agree", out)
    assert out.count("bit for bit") == len(RUN["solvers"])
    poke("run.zarr", "solvers/delta/S", (101, 1, 2, 1), lambda x: x + 1)
    code, out, err = call("replay", "run.zarr", "--verify")
    assert code == 1 and "first solvers/delta/S at step 101, trial 1, key 2, value 1:" in out
    code, out, err = call("replay", "run.zarr", "--verify", "--json")
    told = json.loads(out)
    assert code == 1 and not told["agrees"] and told["differ"] == ["solvers/delta/S"]
    assert told["first"]["step"] == 101 and told["stored_by"]["delta"]["kernel"] == "numba"
    for args in (["--set", "dtype=float32"], ["--solver", "delta"], ["-o", "x.zarr"], ["--force"]):
        code, out, err = call("replay", "run.zarr", "--verify", *args)
        assert code == 2 and "Traceback" not in err and err.startswith("error: ")


def test_bits_and_tolerances():
    one = np.array([0.0, 1.0, np.nan, np.inf])
    assert agreement.bits_differ(one, np.array([-0.0, 1.0, -np.nan, -np.inf])).tolist() == [
        True, False, False, True,
    ]  # fmt: skip
    exact, loose = agreement.Comparison(), agreement.Comparison(1e-3)
    rows = np.array([[1.0, 50.0], [2.0, 3.0]])
    assert exact.first(rows, rows) is None
    assert exact.first(rows, rows + [[0, 0], [0, 1e-15]]) == (1, 1)
    assert loose.first(rows, rows + [[0, 0.049], [0.049, 0]]) is None  # the scale is 50 by then
    assert loose.worst == pytest.approx(0.049 / 50)
    assert loose.first(rows, rows + [[0, 0], [0.051, 0]]) == (1, 0)
    assert loose.first(rows, np.array([[1.0, np.nan], [2.0, 3.0]])) == (0, 1)
    assert agreement.tolerance("int64", 100, 4) == 0.0

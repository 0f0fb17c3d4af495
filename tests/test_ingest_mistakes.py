"""What `engine ingest` refuses, and the advice it gives; nothing is written then."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr

import engine
from engine.cli import main

TABLE = {
    "a": [1.0, 2.0, 3.0], "b": [0.5, np.inf, 1.0], "name": ["x", "y", "z"],
    "late": ["2026-01-02", "2026-01-01", "2026-01-03"], "when": ["2026-01-01", "", "2026-01-03"],
    "who": ["u", None, "u"], "big": [2**53 + 2, 1, 2], "some": [True, None, 3.0],
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    pd.DataFrame(TABLE).to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


MISTAKES = [
    ({}, "which columns are the keys? It has the columns a, b, name, late"),
    ({"keys": "a"}, "which columns are the values?"),
    ({"keys": "a", "values": "nam"}, "values: no column 'nam'; did you mean 'name'?"),
    ({"keys": "q*", "values": "a"}, "keys: no column 'q*'"),
    ({"keys": "a,q*", "values": "a"}, "keys: no column 'q*'"),
    ({"keys": "0:9", "values": "a"}, "keys: '0:9' are positions, and there are 8 columns"),
    ({"keys": "8:", "values": "a"}, "'8:' are positions, and there are 8 columns: expected some"),
    ({"keys": "a,a", "values": "a"}, "keys names the column 'a' twice"),
    ({"keys": "a", "values": "name"}, "column 'name', row 0: 'x' is text, not a number"),
    ({"keys": "b", "values": "a"}, "column 'b', row 1: the number is infinite"),
    ({"keys": "big", "values": "a"}, "big holds whole numbers beyond 2^53"),
    ({"keys": "a", "values": "a", "time": "late"}, "row 1: the time (2026-01-01T00:00"),
    ({"keys": "a", "values": "a", "time": "when"}, "row 1: the time is missing"),
    ({"keys": "a", "values": "a", "time": "a"}, "holds numbers, not time stamps"),
    (
        {"keys": "a", "values": "a", "time": "name"},
        "time: column 'name', row 0: 'x' is no time stamp; expected ISO 8601",
    ),
    ({"keys": "a", "values": "a", "sequence": "who"}, "row 1: no sequence is named"),
    ({"keys": "a", "values": "a", "channels": "keys=b"}, "'keys' cannot name a side channel"),
    ({"keys": "a", "values": "a", "channels": "p q=b"}, "'p q' cannot name a side channel"),
    ({"keys": "a", "values": "a", "queries": "a,big"}, "queries have 2 channels and keys 1"),
]


@pytest.mark.parametrize(("roles", "told"), MISTAKES, ids=lambda x: x if isinstance(x, str) else "")
def test_a_mistake_is_named_and_nothing_is_written(roles, told, table, tmp_path):
    if "queries" in roles:
        pd.DataFrame({"a": [1.0], "big": [2.0]}).to_csv(table, index=False)
    with pytest.raises(engine.InputError) as caught:
        engine.ingest(table, tmp_path / "s.zarr", **roles)
    assert told in str(caught.value)
    assert str(table) in str(caught.value)
    assert not (tmp_path / "s.zarr").exists()


def test_a_column_of_bools_numbers_and_gaps_is_numbers(table, tmp_path):
    pd.DataFrame({"a": [1.0, 2.0], "some": [True, None]}).to_csv(table, index=False)
    tree = engine.ingest(table, tmp_path / "s.zarr", keys="a", values="some")
    assert tree["stream/mask"].values[:, 0].tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("t.xlsx", b"?", "no reader for '.xlsx'; known: .npz, .npy, .csv"),
        ("t.npz", b"not a zip", "t.npz: cannot be read"),
        ("t.npy", b"not an array", "t.npy: cannot be read"),
        ("t.parquet", b"not a table", "t.parquet: cannot be read"),
        ("t.safetensors", b"\xff" * 32, "t.safetensors: cannot be read"),
        ("t.csv", b"", "t.csv: cannot be read"),
        ("t.csv", b"keys,values\n", "there are no rows"),
        ("t.csv", b"keys,values\n1,2\n\xff,3\n", "t.csv: cannot be read: 'utf-8' codec"),
        ("t.csv", b"keys,keys,values\n1,2,3\n", "two columns are named 'keys'"),
        ("t.csv", b"keys,values\n1,2,3\n4,5,6\n", "row 0, or one soon after, has more cells"),
        ("t.csv", b"keys,values\n1,2\n3,4,5\n", "Expected 2 fields in line 3, saw 3"),
        ("t.csv", b"keys,values\n" + b"1,2\n" * 20_000 + b"no,3\n", "row 20000: 'no' is text"),
        ("t.csv.zst", b"?", "no reader for '.csv.zst'"),
    ],
)
def test_a_file_that_is_not_what_it_says(name, content, told, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(engine.InputError) as caught:
        engine.ingest(tmp_path / name, tmp_path / "s.zarr")
    assert told in str(caught.value)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"keys": np.eye(3), "values": np.ones(2)}, "keys has 3 rows, values has 2 rows"),
        ({"keys": np.eye(3), "values": np.array(1.0)}, "values is a single number"),
        ({"keys": np.eye(3), "values": np.ones(3) * 1j}, "is complex, not a number"),
        ({"keys": [np.eye(2)], "values": [np.ones(3)]}, "values has sequences of [3] rows"),
        ({"keys": np.ones((3, 2, 2)), "values": np.ones((3, 4, 1))}, "trial axes differ"),
        (
            {"keys": np.eye(3), "values": xr.DataArray(np.eye(3), dims=("step", "trial"))},
            "values has the dims step, trial and no channels",
        ),
        (7, "data is a int; expected a path"),
        ("nowhere.csv", "nowhere.csv: there is no such file"),
    ],
)
def test_arrays_that_do_not_fit(data, told, tmp_path):
    with pytest.raises(engine.InputError) as caught:
        engine.ingest(data, tmp_path / "s.zarr")
    assert told in str(caught.value)
    assert not (tmp_path / "s.zarr").exists()


def test_lists_of_different_lengths(tmp_path):
    ragged = pa.array([[1.0, 2.0], [3.0]])
    pq.write_table(pa.table({"keys": ragged, "values": [1.0, 2.0]}), tmp_path / "t.parquet")
    with pytest.raises(engine.InputError, match="lists in rows 0 to 1 have different lengths"):
        engine.ingest(tmp_path / "t.parquet", tmp_path / "s.zarr")


def test_a_store_that_is_there_needs_force(table, tmp_path):
    roles = {"keys": "a", "values": "a"}
    engine.ingest(table, tmp_path / "s.zarr", **roles)
    with pytest.raises(engine.InputError, match="exists; choose another place"):
        engine.ingest(table, tmp_path / "s.zarr", **roles)
    assert engine.ingest(table, tmp_path / "s.zarr", force=True, **roles).sizes["step"] == 3


def test_a_stream_does_not_replace_what_it_is_read_from(table, tmp_path):
    roles, path = {"keys": "a", "values": "a"}, tmp_path / "s.zarr"
    engine.ingest(table, path, **roles)
    for data, out in ((path, path), (path, f"{path}/"), (path, path / "stream/s.zarr")):
        with pytest.raises(engine.InputError, match="holds what is to be read"):
            engine.ingest(data, out, force=True)
    assert engine.ingest(path, tmp_path / "again.zarr")["stream/keys"].shape == (3, 1, 1)


def test_what_is_damaged_in_a_stored_stream_is_no_missing_value(table, tmp_path):
    engine.ingest(table, tmp_path / "s.zarr", keys="a", values="a")
    (tmp_path / "s.zarr/stream/values/c/0/0/0").unlink()
    with pytest.raises(engine.DamageError, match="stream/values, step 0 to 2: missing"):
        engine.ingest(tmp_path / "s.zarr", tmp_path / "again.zarr")
    assert not (tmp_path / "again.zarr").exists()


def test_a_time_that_nanoseconds_cannot_hold(tmp_path):
    (tmp_path / "t.csv").write_text("t,x\n1500-01-01,1\n2026-01-01,2\n")
    with pytest.raises(engine.InputError, match="row 0: '1500-01-01' is no time stamp; .* 1678"):
        engine.ingest(tmp_path / "t.csv", tmp_path / "s.zarr", keys="x", values="x", time="t")


def test_the_command(table, tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "s.zarr")
    argv = ["engine", "ingest", str(table), "-o", out, "--keys", "a", "--values", "name"]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "column 'name', row 0" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [*argv[:-1], "a", "--channel", "twice=a"])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert "step 3, trial 1, key 1, value 1; keys, twice, values" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["engine", "show", out])
    with pytest.raises(SystemExit) as left:
        main()
    assert "3 of 3 steps valid" in capsys.readouterr().out

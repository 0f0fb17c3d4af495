"""Files and arrays made into stored streams: what goes in comes out, and nothing else."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from safetensors.numpy import save_file

import engine

RNG = np.random.default_rng(5)
KEYS, VALUES = RNG.standard_normal((37, 3)), RNG.standard_normal((37, 2))
COLUMNS = {f"x{i}": KEYS[:, i] for i in range(3)} | {f"y{i}": VALUES[:, i] for i in range(2)}


def stream(data, out, **roles):
    """Ingest, and return the stream as plain arrays."""
    tree = engine.ingest(data, out, **roles)
    return {str(n): x.values for n, x in tree["stream"].to_dataset().data_vars.items()}


def write(kind, path):
    """Write keys and values in a format and return the file and the roles of its columns."""
    file = path / f"my data.{kind}"
    table = {"keys": "x*", "values": "y0,y1"}
    if kind in ("csv", "csv.gz", "tsv"):
        sep = "\t" if kind == "tsv" else ","
        pd.DataFrame(COLUMNS).to_csv(file, index=False, sep=sep, float_format="%.17g")
        return file, table
    if kind == "parquet":
        pq.write_table(pa.table(COLUMNS), file, row_group_size=10)
        return file, table
    if kind == "npy":
        np.save(file, np.concatenate([KEYS, VALUES], axis=1))
        return file, {"keys": "0:3", "values": "3:"}
    named = {"keys": KEYS, "values": VALUES}
    if kind == "npz":
        np.savez_compressed(file, keys=np.asfortranarray(KEYS), values=VALUES)
    elif kind == "safetensors":
        save_file(named, file)
    else:
        ds = xr.Dataset({"keys": (("key", "step"), KEYS.T), "values": (("step", "value"), VALUES)})
        ds.to_zarr(file, zarr_format=2 if kind == "zarr2" else 3, consolidated=False)
    return file, {}


@pytest.mark.parametrize(
    "kind",
    ["csv", "csv.gz", "tsv", "parquet", "npy", "npz", "safetensors", "zarr", "zarr2"],
)
def test_every_format_gives_the_same_stream(kind, tmp_path):
    file, roles = write(kind, tmp_path)
    made = stream(file, tmp_path / "ein Strom λ.zarr", **roles)
    assert sorted(made) == ["keys", "values"]
    np.testing.assert_array_equal(made["keys"], KEYS[:, None])
    np.testing.assert_array_equal(made["values"], VALUES[:, None])


def test_a_table_without_a_header_loses_no_row(tmp_path):
    np.savetxt(tmp_path / "plain.csv", np.eye(3), delimiter=",")
    made = stream(tmp_path / "plain.csv", tmp_path / "s.zarr", keys="0:2", values="2")
    np.testing.assert_array_equal(made["keys"][:, 0], np.eye(3)[:, :2])


def test_lists_in_parquet_are_channels(tmp_path):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(KEYS.ravel()), 3)
    pq.write_table(pa.table({"embedding": lists, "y": VALUES[:, 0]}), tmp_path / "e.parquet")
    made = stream(tmp_path / "e.parquet", tmp_path / "s.zarr", keys="embedding", values="y")
    np.testing.assert_array_equal(made["keys"][:, 0], KEYS)


def test_arrays_in_any_order_of_dims_lazy_ones_too(tmp_path):
    wide = RNG.standard_normal((4, 37, 3))
    ds = xr.Dataset({
        "keys": (("trial", "step", "key"), wide),
        "values": (("step", "value"), VALUES),
        "age": (("step",), np.arange(37)),
    }).chunk(step=10)  # fmt: skip
    made = stream(ds, tmp_path / "s.zarr", channels="steps_ago=age")
    np.testing.assert_array_equal(made["keys"], wide.swapaxes(0, 1))
    assert made["values"].shape == (37, 4, 2)
    assert (made["values"] == VALUES[:, None]).all()
    assert made["steps_ago"].dtype == np.int64
    assert (made["steps_ago"] == np.arange(37)[:, None]).all()


@pytest.mark.parametrize("dtype", ["int16", "uint8", "bool", "float16", "float32", ">f8"])
def test_numbers_of_any_kind_keep_their_value(dtype, tmp_path):
    keys = np.array([[91, 119], [18, 4], [1, 0]]).astype(dtype)
    made = stream({"keys": keys, "values": np.ones(3)}, tmp_path / "s.zarr")
    wide = {"float16": "float32", "float32": "float32"}.get(dtype, "float64")
    assert made["keys"].dtype == wide
    np.testing.assert_array_equal(made["keys"][:, 0], keys.astype(wide))


def test_a_zarr_group_whose_axes_have_no_names(tmp_path):
    keys, values = np.random.default_rng(0).standard_normal((2, 9, 3))
    group = zarr.create_group(str(tmp_path / "own.zarr"))
    for name, x in {"keys": keys, "values": values, "one": np.array(1.0)}.items():
        group.create_array(name, data=x)
    made = stream(tmp_path / "own.zarr", tmp_path / "s.zarr")
    np.testing.assert_array_equal(made["keys"][:, 0], keys)
    np.testing.assert_array_equal(made["values"][:, 0], values)


def test_a_trailing_comma_is_no_column(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n1,2,\n3,4,\n")
    made = stream(tmp_path / "t.csv", tmp_path / "s.zarr", keys="x", values="y")
    assert made["keys"].ravel().tolist() == [1, 3]


def test_zeros_are_numbers_in_zarr_2_with_fill_value_0(tmp_path):  # CASES A13
    group = zarr.create_group(str(tmp_path / "old.zarr"), zarr_format=2)
    for name, x in (("keys", np.eye(3)), ("values", np.arange(3.0)[:, None])):
        group.create_array(name, data=x, fill_value=0).attrs["_ARRAY_DIMENSIONS"] = [
            "step", {"keys": "key", "values": "value"}[name],
        ]  # fmt: skip
    made = stream(tmp_path / "old.zarr", tmp_path / "s.zarr")
    np.testing.assert_array_equal(made["keys"][:, 0], np.eye(3))
    assert "mask" not in made


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrays"])
def test_a_missing_value_becomes_a_masked_step(kind, tmp_path):
    y = VALUES[:, 0].copy()
    y[[6, 7, 20]] = np.nan
    table = {"x0": KEYS[:, 0], "y": y}
    data = tmp_path / f"gaps.{kind}"
    if kind == "csv":
        pd.DataFrame(table).to_csv(data, index=False, float_format="%.17g")
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pandas(pd.DataFrame(table)), data)
    else:
        data = table
    made = stream(data, tmp_path / "s.zarr", keys="x0", values="y")
    assert np.flatnonzero(~made["mask"][:, 0]).tolist() == [6, 7, 20]
    np.testing.assert_array_equal(made["keys"][:, 0, 0], KEYS[:, 0])
    run = engine.run({
        "stream": {"generator": "stored", "path": str(tmp_path / "s.zarr")},
        "solvers": {"rls": {"gamma": 0.9}, "softmax": {"solver": "softmax_attention"}},
    })  # fmt: skip
    S = run["solvers/rls/S"].values
    np.testing.assert_array_equal(S[6], S[5])  # bit for bit: nothing was written, nothing decayed
    np.testing.assert_array_equal(S[7], S[5])
    assert np.isfinite(S).all()
    assert (run["solvers/rls/diverged_at"] == -1).all()
    assert run["solvers/softmax/rows"].values[-1] == 34


def test_sequences_of_unequal_length_are_trials_of_one_batch(tmp_path):
    parts = [RNG.standard_normal((n, 2)) for n in (5, 9, 1)]
    lists = {"keys": parts, "values": [p[:, :1] for p in parts]}
    made = stream(lists, tmp_path / "lists.zarr")
    assert made["mask"].sum(0).tolist() == [5, 9, 1]
    for i, part in enumerate(parts):
        np.testing.assert_array_equal(made["keys"][: len(part), i], part)
        assert np.isnan(made["keys"][len(part) :, i]).all()
    # The same as a table, its rows mixed: each sequence keeps the order of its rows.
    order = RNG.permutation(np.repeat([0, 1, 2], [5, 9, 1]))
    taken = [iter(p) for p in parts]
    rows = np.array([next(taken[i]) for i in order])
    frame = {"who": np.array(["a", "b", "c"])[order], "x": rows[:, 0], "z": rows[:, 1]}
    pd.DataFrame(frame).to_csv(tmp_path / "t.csv", index=False, float_format="%.17g")
    tree = engine.ingest(
        tmp_path / "t.csv", tmp_path / "t.zarr", keys="x,z", values="x", sequence="who"
    )
    names = tree["stream"].attrs["sequences"]
    assert sorted(names) == ["a", "b", "c"]
    at = ["abc".index(name) for name in names]
    np.testing.assert_array_equal(tree["stream/keys"].values, made["keys"][:, at])
    # A sequence alone, and in the batch, gives the same numbers (CASES A08).
    alone = engine.simulate("gated_delta", parts[0], parts[0][:, :1], beta=0.5, gamma=0.9)
    spec = {"beta": 0.5, "gamma": 0.9}
    stored = {"generator": "stored", "path": str(tmp_path / "lists.zarr")}
    run = engine.run({"stream": stored, "solvers": {"gated_delta": spec}})
    np.testing.assert_array_equal(run["solvers/gated_delta/S"].values[8, 0], alone.S.values[-1])


def test_times_are_stored_as_utc(tmp_path):  # CASES A15
    stamps = ["2026-01-01T00:00:00", "2026-01-01T00:00:00.500", "2026-10-25T02:30:00+02:00"]
    stamps += ["2026-10-25T02:30:00+01:00"]  # an hour later: the clock was put back
    pd.DataFrame({"t": stamps, "x": np.arange(4.0)}).to_csv(tmp_path / "t.csv", index=False)
    tree = engine.ingest(tmp_path / "t.csv", tmp_path / "s.zarr", keys="x", values="x", time="t")
    utc = ["2026-01-01T00:00", "2026-01-01T00:00:00.5", "2026-10-25T00:30", "2026-10-25T01:30"]
    assert tree["stream/time"].dtype == "datetime64[ns]"
    np.testing.assert_array_equal(
        tree["stream/time"].values[:, 0], np.array(utc, dtype="datetime64[ns]")
    )
    with xr.open_datatree(tmp_path / "s.zarr", engine="zarr") as plain:
        assert plain["stream/time"].dtype == "datetime64[ns]"


def test_memory_does_not_grow_with_the_file(tmp_path):
    """512 MiB of keys by a process that may take 100 MiB; pages of the file itself can go again."""
    array = np.lib.format.open_memmap(tmp_path / "big.npy", "w+", "f8", (2**19, 128))
    array[::1000] = 1.0
    del array
    code = f"""
import re, threading, time, numpy, engine
def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
peak = 0
def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(.005)
engine.ingest({{"keys": numpy.eye(4), "values": numpy.eye(4)}}, r"{tmp_path}/a.zarr")
before = anonymous()
threading.Thread(target=watch, daemon=True).start()
tree = engine.ingest(r"{tmp_path}/big.npy", r"{tmp_path}/b.zarr", keys="0:127", values="127")
assert tree["stream/keys"].shape == (2**19, 1, 127)
print(peak - before)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 100

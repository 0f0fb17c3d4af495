"""The stored generator: a stream comes back as it was written."""

import shutil

import numpy as np
import pytest
import xarray as xr

import engine
from engine import ops
from engine.api import Draws
from engine.plugins.generators.rebinding import Rebinding
from engine.plugins.generators.stored import Stored


def stream(steps=20, trials=3, key=4, value=2):
    rng = np.random.default_rng(5)
    lead = ("step", "trial")
    return xr.Dataset(
        {
            "keys": ((*lead, "key"), rng.normal(size=(steps, trials, key))),
            "values": ((*lead, "value"), rng.normal(size=(steps, trials, value))),
            "queries": ((*lead, "key"), rng.normal(size=(steps, trials, key)).astype("f4")),
            "mask": (lead, rng.random((steps, trials)) < 0.5),
            "target_map": ((*lead, "key", "value"), rng.normal(size=(steps, trials, key, value))),
            "key_id": (lead, rng.integers(9, size=(steps, trials)).astype("i4")),
            "gate": ((*lead, "head"), rng.random((steps, trials, 5)).astype("f4")),
            "schedule": (("step",), np.linspace(0, 1, steps)),
            "key_book": (("trial", "entry", "key"), rng.normal(size=(trials, 6, key))),
            "note": ((), 1.0),
        },
        coords={"step": np.arange(steps)},
        attrs={"source": "a test"},
    )


def write(dataset, path, group=None, **chunks):
    encoding = {name: {"chunks": shape} for name, shape in chunks.items()}
    dataset.to_zarr(path, group=group, zarr_format=3, consolidated=False, encoding=encoding)
    return path


@pytest.mark.parametrize("group", [None, "stream"])
@pytest.mark.parametrize("block", [1, 7, 64])
def test_a_stored_stream_is_replayed_bit_for_bit(drive, tmp_path, group, block):
    dataset = stream()
    generator = Stored(path=write(dataset, tmp_path / "a.zarr", group))
    assert generator.extent()[:2] == (20, 3)
    arrays, facts = drive(generator, 20, block=block)
    step_names = ["keys", "values", "queries", "mask", "target_map", "key_id", "gate"]
    assert sorted(arrays) == sorted([*step_names, "schedule"]) and list(facts) == ["key_book"]
    for name in step_names:
        np.testing.assert_array_equal(arrays[name], dataset[name].values)
    np.testing.assert_array_equal(facts["key_book"], dataset["key_book"].values)
    np.testing.assert_array_equal(arrays["schedule"], dataset["schedule"].values[:, None] + [0] * 3)
    kinds = {name: array.dtype for name, array in arrays.items()}
    assert kinds.pop("mask") == np.dtype(bool) and kinds.pop("key_id") == np.int32
    assert set(kinds.values()) == {np.dtype(np.float64)}
    assert generator.dims["gate"] == "head" and generator.dims["key_book"] == "entry key"
    assert generator.dims["schedule"] == "" and generator.dims["target_map"] == "key value"


def test_a_stored_stream_from_a_step_on_with_fewer_trials(drive, tmp_path):
    dataset = stream()
    generator = Stored(path=write(dataset, tmp_path / "a.zarr"), first=6)
    assert generator.extent()[:2] == (14, 3)
    assert "20 steps, read from step 6" in generator.extent().why
    arrays, facts = drive(generator, 14, block=5, trials=2)
    for name in ("keys", "mask", "gate"):
        np.testing.assert_array_equal(arrays[name], dataset[name].values[6:, :2])
    np.testing.assert_array_equal(facts["key_book"], dataset["key_book"].values[:2])


def test_an_empty_stored_block_has_the_right_shapes(tmp_path):
    generator = Stored(path=write(stream(), tmp_path / "a.zarr"))
    draws = Draws(0, 3)
    _, out = generator.draw(generator.start(draws, 20), draws, range(4, 4))
    assert out["keys"].shape == (0, 3, 4) and out["target_map"].shape == (0, 3, 4, 2)
    assert out["mask"].shape == (0, 3) and out["mask"].dtype == bool
    assert out["schedule"].shape == (0, 3)


def test_a_stored_stream_survives_another_generators_draws(drive, assert_same, tmp_path):
    """What a generator made is the same after a trip through a store."""
    arrays, facts = drive(Rebinding(probability=0.4), 30)
    dims = {"keys": "key", "values": "value", **Rebinding().dims}
    dataset = xr.Dataset(
        {n: (("step", "trial", *dims.get(n, "").split()), a) for n, a in arrays.items()}
        | {n: (("trial", *dims[n].split()), a) for n, a in facts.items()}
    )
    got, got_facts = drive(Stored(path=write(dataset, tmp_path / "a.zarr")), 30, block=4, seed=0)
    assert_same(got, arrays)
    assert_same(got_facts, facts)


def test_dims_are_taken_by_name(drive, assert_same, tmp_path):
    dataset = stream()
    turned = dataset.transpose("head", "value", "key", "trial", "step", ...)
    generator = Stored(path=write(turned, tmp_path / "a.zarr"))
    want = drive(Stored(path=write(dataset, tmp_path / "b.zarr")), 20)[0]
    assert_same(drive(generator, 20)[0], want)


def test_only_the_steps_asked_for_are_read(tmp_path):
    path = write(stream(), tmp_path / "a.zarr", keys=(5, 3, 4))
    for chunk in (path / "keys" / "c").iterdir():
        if chunk.name != "1":
            shutil.rmtree(chunk)
            chunk.mkdir()
            (chunk / "0").mkdir()
            (chunk / "0" / "0").write_bytes(b"not a chunk")
    generator = Stored(path=path)
    draws = Draws(0, 3)
    _, out = generator.draw(3, draws, range(5, 10))
    np.testing.assert_array_equal(out["keys"], stream()["keys"].values[5:10])
    with pytest.raises(RuntimeError):
        generator.draw(3, draws, range(9, 11))


def test_of_an_unfinished_run_only_committed_steps_are_there(tmp_path):
    path = write(xr.Dataset(attrs={"committed": 8}), tmp_path / "run.zarr")
    stream().to_zarr(path, group="stream", mode="a", zarr_format=3, consolidated=False)
    generator = Stored(path=path)
    assert generator.extent().steps == 8
    with pytest.raises(ValueError, match="first = 9 must be between 0 and the 8 steps"):
        Stored(path=path, first=9)


def test_integer_keys_are_widened_before_any_arithmetic(drive, tmp_path):
    """k.k = 58635 for an int16 key whose own arithmetic wraps round to -6901 (numpy issue 6128)."""
    keys = np.array([-91, -119, -137, -132], dtype=np.int16)[None, None]
    dataset = xr.Dataset(
        {
            "keys": (("step", "trial", "key"), keys),
            "values": (("step", "trial", "value"), [[[1.5]]]),
        }
    )
    got = drive(Stored(path=write(dataset, tmp_path / "a.zarr")), 1, trials=1)[0]["keys"]
    assert got.dtype == np.float64 and ops.dot(got, got).item() == 58635


def test_bad_stores_are_named_with_what_is_there(tmp_path):
    with pytest.raises(ValueError, match=r"none\.zarr cannot be read .* nothing is there"):
        Stored(path=tmp_path / "none.zarr")
    (tmp_path / "keys.npy").write_bytes(b"1")
    with pytest.raises(ValueError, match=r"it is a file"):
        Stored(path=tmp_path / "keys.npy")
    with pytest.raises(ValueError, match=r"it is a folder with keys\.npy"):
        Stored(path=tmp_path)
    path = write(stream()[["keys", "mask"]], tmp_path / "a.zarr")
    with pytest.raises(
        ValueError,
        match=r"a\.zarr has no variable 'values': it holds keys \(step, trial, key\), mask \(step",
    ):
        Stored(path=path)
    with pytest.raises(ValueError, match="cannot be read as a zarr v3 group"):
        Stored(path=path / "keys")


@pytest.mark.parametrize(("change", "match"), [
    ({"keys": "token"}, r"keys must have the dims step, trial, key: it holds .*keys \(token"),
    ({"values": "token"}, r"values must have the dims step, trial, value"),
])  # fmt: skip
def test_wrong_dims_are_refused(tmp_path, change, match):
    dataset = stream()[["keys", "values"]]
    ((name, dim),) = change.items()
    dataset = dataset.drop_vars("step").assign(
        {name: dataset[name].rename(step=dim).drop_vars(dim)}
    )
    with pytest.raises(ValueError, match=match):
        Stored(path=write(dataset, tmp_path / "a.zarr"))


def test_keys_without_a_trial_dim_are_refused(tmp_path):
    dataset = stream()[["keys", "values"]].isel(trial=0)
    with pytest.raises(ValueError, match="must have the dims step, trial, key"):
        Stored(path=write(dataset, tmp_path / "a.zarr"))


@pytest.mark.parametrize("first", [-1, 21])
def test_a_first_step_outside_the_file_is_refused(tmp_path, first):
    path = write(stream(), tmp_path / "a.zarr")
    with pytest.raises(ValueError, match=f"first = {first} must be between 0 and the 20 steps"):
        Stored(path=path, first=first)


RUN = {
    "trials": 2,
    "stream": {"generator": "random", "steps": 50, "key": 3, "value": 2, "priority": 0.5},
    "solvers": {"delta": {}},
}


@pytest.mark.parametrize("record", ["every", {"keyframes": 8}], ids=str)
def test_the_store_of_a_run_is_a_stream(record, tmp_path):
    first = engine.run(RUN, tmp_path / "run.zarr", record=record)
    stream = {"generator": "stored", "path": str(tmp_path / "run.zarr")}
    again = engine.run({**RUN, "stream": stream})
    for name in ("stream/keys", "stream/priority", "solvers/delta/S", "solvers/delta/output"):
        np.testing.assert_array_equal(again[name], first[name])
    later = engine.run({**RUN, "stream": {**stream, "first": 30}})
    np.testing.assert_array_equal(later["stream/values"], first["stream/values"][30:])


@pytest.mark.parametrize("damage", ["missing", "flipped"])
@pytest.mark.parametrize("record", ["every", {"keyframes": 8}], ids=str)
def test_a_damaged_run_is_no_stream(record, damage, tmp_path):
    path = tmp_path / "run.zarr"
    engine.run(RUN, path, record=record)
    chunk = path / "stream/values/c/0/0/0"
    raw = bytearray(chunk.read_bytes())
    raw[-20] ^= 4
    chunk.write_bytes(raw) if damage == "flipped" else chunk.unlink()
    with pytest.raises(engine.RunError, match="stream/values, step 0 to 49: "):
        engine.run({**RUN, "stream": {"generator": "stored", "path": str(path)}})


def test_a_run_with_damaged_metadata_or_of_a_newer_release_is_no_stream(tmp_path):
    path = tmp_path / "run.zarr"
    engine.run(RUN, path)
    root = path / "zarr.json"
    text = root.read_text()
    root.write_text(text.replace('"committed": 50', '"committed": 40'))
    with pytest.raises(engine.DamageError, match="its metadata are not those"):
        Stored(path=path)
    root.write_text(text.replace('"format": 2', '"format": 3'))
    with pytest.raises(engine.InputError, match="format 3, this release reads up to 2; upgrade"):
        Stored(path=path)

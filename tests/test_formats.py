"""Stores of this release and those before are read, number by number; newer ones are refused."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import engine
from engine.integrity import check
from engine.sources import Fingerprint, Tokens
from engine.store import FORMAT
from engine.verify import verify

from .store_cases import flat
from .stores.make import RECORDS, SCENARIO

KEPT = sorted(Path(__file__).with_name("stores").glob("format*.zip"))
ALL = [(kept, record) for kept in KEPT for record in RECORDS]


@pytest.fixture(params=ALL, ids=[f"{kept.stem}-{record}" for kept, record in ALL])
def stored(request, tmp_path):
    """Return a store that some release wrote."""
    kept, record = request.param
    with zipfile.ZipFile(kept) as archive:
        archive.extractall(tmp_path)
    return tmp_path / f"{record}.zarr"


def test_a_store_is_kept_of_every_format():
    assert [kept.name for kept in KEPT] == [f"format{n}.zip" for n in range(1, FORMAT + 1)]


@pytest.mark.filterwarnings("ignore::engine.ReplayWarning")  # versions and machine are others
def test_what_a_release_wrote_is_read(stored):
    """The stream's hash was written then; the rest is what the rules make of that stream."""
    run, fingerprint = engine.open(stored), Fingerprint()
    assert f"format{run.attrs['format']}" in [kept.stem for kept in KEPT]
    stream = run["stream"].to_dataset(inherit=False)
    per_step = {n: x.values for n, x in stream.variables.items() if x.dims[:1] == ("step",)}
    fingerprint.update(Tokens(0, per_step))
    assert fingerprint.hexdigest() == run["stream"].attrs["sha256"]
    found, now = flat(run), flat(engine.replay(stored, record="every"))
    assert now.keys() <= found.keys()
    for name, (dims, x) in now.items():
        assert found[name][0] == dims
        np.testing.assert_allclose(found[name][1], x, rtol=0, atol=1e-12, err_msg=name)
    assert check(stored) == []
    assert verify(stored).differences == []


def test_what_a_release_wrote_is_opened_by_plain_xarray(stored):
    with xr.open_datatree(stored, engine="zarr") as tree:
        np.testing.assert_array_equal(tree["stream/keys"], engine.open(stored)["stream/keys"])


def test_damage_of_an_older_store_is_found_too(tmp_path):
    with zipfile.ZipFile(KEPT[0]) as archive:
        archive.extractall(tmp_path)
    path = tmp_path / "every.zarr"
    for name in ("solvers/delta/S", "stream/values"):
        file = next(p for p in sorted((path / name).rglob("c/*/**/0")) if p.is_file())
        raw = bytearray(file.read_bytes())
        raw[-9] ^= 2
        file.write_bytes(raw)
    assert [d.variable for d in check(path)] == ["solvers/delta/S", "stream/values"]
    with pytest.raises(engine.DamageError, match="solvers/delta/S, step 0 to"):
        engine.open(path)["solvers/delta/S"].load()


@pytest.mark.parametrize("told", [FORMAT + 1, 99, "2", None])
def test_a_newer_format_is_refused_before_anything_is_read(told, tmp_path, call):
    path = tmp_path / "run.zarr"
    engine.run(SCENARIO, path)
    root = json.loads((path / "zarr.json").read_text())
    root["attributes"]["format"] = told
    (path / "zarr.json").write_text(json.dumps(root, indent=2))
    with pytest.raises(engine.InputError, match=f"has format {told}, this release reads up to"):
        engine.open(path)
    for command in (["show", path], ["replay", path, "-o", tmp_path / "o.zarr"]):
        code, _, err = call(*command)
        assert code == 2 and "upgrade ttr-engine" in err
    assert not (tmp_path / "o.zarr").exists()
    code, out, _ = call("show", path, "--check")  # it cannot know whether a bit was flipped
    assert code == 1 and "upgrade ttr-engine" in out

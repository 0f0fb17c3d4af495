"""Damaged stores: all of it is found, and no read returns a wrong number."""

import json

import numpy as np
import pytest

import engine
from engine.integrity import check

from .store_cases import SCENARIO, flat, in_memory


@pytest.mark.parametrize("record", ["every", {"keyframes": 16}], ids=str)
def test_flips_deletions_and_truncations_are_all_found(record, tmp_path, small_shards):
    path, rng = tmp_path / "run.zarr", np.random.default_rng(0)
    engine.run(SCENARIO, path, record=record)
    assert check(path) == []
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != "zarr.json")
    files = [p for p in files if p.relative_to(path).parts[0] not in ("step", "trial")]
    for how in ["flip"] * 30 + ["delete"] * 10 + ["truncate"] * 10:
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        name = file.relative_to(path).as_posix().partition("/c/")[0].removesuffix("/c")
        if how == "flip":
            raw = bytearray(whole)
            raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
            file.write_bytes(raw)
        elif how == "truncate":
            file.write_bytes(whole[: rng.integers(len(whole))])
        else:
            file.unlink()
        found = check(path)
        assert found and {d.variable for d in found} == {name}, (how, name, found)
        with pytest.raises((engine.DamageError, ValueError, RuntimeError)):  # by codec
            engine.open(path)[name].load()
        file.write_bytes(whole)
    assert check(path) == []
    got = flat(engine.open(path))
    for name, (_, x) in in_memory().items():
        assert got[name][1].tobytes() == x.tobytes()


def test_a_foreign_file_and_a_stale_mark_are_named(call, own_folder):
    engine.run(SCENARIO, "run.zarr")
    assert call("show", "run.zarr", "--check") == (0, "run.zarr: nothing is damaged\n", "")
    (engine.store.Path("run.zarr") / "notes.txt").write_text("mine")
    code, out, err = call("show", "run.zarr", "--check", "--json")
    (damage,) = json.loads(out)["damage"]
    assert code == 1 and (damage["what"], damage["variable"]) == ("foreign", "notes.txt")
    root = engine.store.Path("run.zarr/zarr.json")
    root.write_text(root.read_text().replace('"committed": 150', '"committed": 151'))
    code, out, err = call("show", "run.zarr", "--check")
    assert code == 1 and "mark: zarr.json: committed = 151, but the run has 150 steps" in out

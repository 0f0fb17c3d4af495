"""Damaged stores: all of it is found, and no read returns a wrong number."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import zarr

import engine
from engine.guard import Guard
from engine.integrity import check

from .store_cases import SCENARIO, flat, in_memory

STEPS = 150
FEW = {**SCENARIO, "solvers": {n: SCENARIO["solvers"][n] for n in ("softmax", "delta", "rls")}}


def files_of(path):
    return sorted(p for p in path.rglob("*") if p.is_file())


def flip(raw, rng):
    raw = bytearray(raw)
    raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
    return bytes(raw)


def read_all(path, want):
    """Return whether every number could be read; one that is wrong fails, what is refused names."""
    try:
        tree = engine.open(path)
    except (engine.DamageError, engine.InputError) as error:
        assert str(path) in str(error)
        return False
    whole = True
    for name, x in want.items():
        try:
            got = tree[name].values
        except engine.DamageError as error:
            whole = False
            assert re.search(r"(stream|solvers|keyframes|probes)/|step|trial", str(error))
        else:
            assert got.tobytes() == x.tobytes(), name
    return whole


@pytest.mark.parametrize("record", ["every", {"keyframes": 16}], ids=str)
def test_flips_deletions_and_truncations_are_all_found(record, tmp_path, small_shards):
    path, rng = tmp_path / "run.zarr", np.random.default_rng(0)
    engine.run(FEW, path, record=record)
    assert check(path) == []
    want = {name: x for name, (_, x) in flat(engine.open(path)).items()}
    for name, (_, x) in flat(engine.run(FEW)).items():
        assert want[name].tobytes() == x.tobytes(), name
    files = files_of(path)
    chunks = [p for p in files if p.name != "zarr.json"]
    # In either mode of recording: 60 flips, 20 deletions and 20 truncations in all.
    for how in ["flip"] * 30 + ["delete"] * 10 + ["truncate"] * 10:
        among = files if how == "flip" else chunks
        file = among[rng.integers(len(among))]
        raw = file.read_bytes()
        if how == "flip":
            file.write_bytes(flip(raw, rng))
        elif how == "truncate":
            file.write_bytes(raw[: rng.integers(len(raw))])
        else:
            file.unlink()
        found = check(path)
        name = file.relative_to(path).as_posix()
        if file.name == "zarr.json":
            assert found and {d.what for d in found} == {"metadata"}, (how, name, found)
            read_all(path, want)  # what the root has copies of is not needed
        else:
            variable = name.partition("/c/")[0].removesuffix("/c")
            assert found and {d.variable for d in found} == {variable}, (how, name, found)
            assert all((d.steps is None) == (d.dim == "") for d in found)
            assert not read_all(path, {variable: want[variable]})
        file.write_bytes(raw)
    assert check(path) == [] and read_all(path, want)


def test_the_steps_that_are_named_are_those_that_are_damaged(call, own_folder, small_shards):
    engine.run(SCENARIO, "run.zarr")
    array = zarr.open_group("run.zarr", mode="r")["solvers/delta/S"]
    chunk, row = array.chunks[0], 8 * 2 * 4 * 3
    file, step = Path("run.zarr/solvers/delta/S/c/0/0/0/0"), 100
    raw, first, last = bytearray(file.read_bytes()), step - step % chunk, step - step % chunk + 15
    assert chunk == 16 and (first, last) == (96, 111)
    index = 16 * (array.shards[0] // chunk) + 4
    raw[index + (first // chunk) * (chunk * row + 4) + (step - first) * row + 5] ^= 1
    file.write_bytes(raw)
    code, out, _ = call("show", "run.zarr", "--check")
    where = f"solvers/delta/S, step {first} to {last}: its checksum is wrong"
    assert (code, out) == (1, f"damaged: {where}\n")
    run = engine.open("run.zarr")
    with pytest.raises(engine.DamageError, match=re.escape(where)):
        run["solvers/delta/S"].isel(step=first).load()
    sound = run["solvers/delta/S"].isel(step=slice(first)).values
    np.testing.assert_array_equal(sound, in_memory()["solvers/delta/S"][1][:first])


@pytest.mark.parametrize("path", ["zarr.json", "solvers/delta/S/zarr.json"])
def test_every_bit_of_metadata_is_looked_at(path, tmp_path):
    small = {"stream": {"generator": "random", "steps": 3, "key": 1}, "solvers": {"delta": {}}}
    engine.run(small, tmp_path / "run.zarr")
    want = {name: x for name, (_, x) in flat(engine.open(tmp_path / "run.zarr")).items()}
    file, rng = tmp_path / "run.zarr" / path, np.random.default_rng(1)
    whole = file.read_bytes()
    for at in rng.permutation(len(whole))[:200]:
        raw = bytearray(whole)
        raw[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(raw)
        try:
            assert check(tmp_path / "run.zarr"), raw[max(at - 20, 0) : at + 20]
        except engine.InputError as error:
            raise AssertionError(raw[max(at - 20, 0) : at + 20]) from error
        read_all(tmp_path / "run.zarr", want)


def test_a_number_that_is_written_otherwise_is_found(tmp_path):
    path = tmp_path / "run.zarr"
    engine.run(SCENARIO, path, **{"solvers.rls.ridge": 1e-7})
    root = path / "zarr.json"
    assert '"ridge": 1e-07' in root.read_text()
    root.write_text(root.read_text().replace('"ridge": 1e-07', '"ridge": 1E-07'))
    assert [d.what for d in check(path)] == ["metadata"]


def test_a_foreign_file_and_a_stale_mark_are_named(call, own_folder):
    engine.run(SCENARIO, "run.zarr")
    assert call("show", "run.zarr", "--check") == (0, "run.zarr: nothing is damaged\n", "")
    Path("run.zarr/notes.txt").write_text("mine")
    code, out, err = call("show", "run.zarr", "--check", "--json")
    (damage,) = json.loads(out)["damage"]
    assert code == 1 and (damage["what"], damage["variable"]) == ("foreign", "notes.txt")
    root = Path("run.zarr/zarr.json")
    root.write_text(root.read_text().replace('"committed": 150', '"committed": 151'))
    code, out, err = call("show", "run.zarr", "--check")
    assert code == 1 and "mark: zarr.json: committed = 151, but the run has 150 steps" in out


@pytest.mark.parametrize("record", ["every", {"keyframes": 16, "stream": False}], ids=str)
def test_bytes_that_are_added_and_files_of_other_variables_are_found(
    record, tmp_path, small_shards
):
    path = tmp_path / "run.zarr"
    engine.run(FEW, path, record=record)
    want = {name: x for name, (_, x) in flat(engine.open(path)).items()}
    chunks = [p for p in files_of(path) if p.name != "zarr.json"]
    mark = (path / "solvers/rls/diverged_at/c/0").read_bytes()
    for file in np.random.default_rng(0).permutation(chunks)[:8]:
        raw, variable = file.read_bytes(), file.relative_to(path).as_posix().partition("/c")[0]
        others = {x for p in chunks if len(x := p.read_bytes()) != len(raw)}
        plain = Guard(path).kept(variable).size  # else zarr raises a ValueError of its own
        for other in (raw + b"x", *((mark, min(others)) if plain else ())):
            if other != raw:
                file.write_bytes(other)
                assert {d.variable for d in check(path)} == {variable}
                if other != raw + b"x":
                    assert not read_all(path, {variable: want[variable]})
        file.write_bytes(raw)
    assert check(path) == [] and read_all(path, want)


def test_the_parts_of_a_sweep_are_looked_through(tmp_path):
    path = tmp_path / "run.zarr"
    engine.run({**FEW, "sweep": {"stream.key": [2, 3]}}, path)
    assert check(path) == []
    file = path / "parts/1/solvers/delta/output/c/0/0/0"
    file.write_bytes(flip(file.read_bytes(), np.random.default_rng(0)))
    (path / "parts/0/notes.txt").write_text("mine")
    (path / "parts/0/solvers/rls/zarr.json").unlink()
    found = {(d.what, d.variable) for d in check(path)}
    assert found == {
        ("foreign", "parts/0/notes.txt"),
        ("metadata", "parts/0/solvers/rls/zarr.json"),
        ("metadata", "parts/0/solvers/rls/zarr.json"),
        ("damaged", "parts/1/solvers/delta/output"),
    }
    with pytest.raises(engine.DamageError, match="parts/1: solvers/delta/output, step 0 to"):
        engine.open(path)["parts/1/solvers/delta/output"].load()


@pytest.mark.parametrize("change", [-3, 2])
def test_a_stale_mark_of_a_run_that_was_killed_is_found_by_what_is_there(
    change, tmp_path, small_shards, call
):
    path = tmp_path / "run.zarr"
    killed(path)
    root = zarr.open_group(path, mode="r+")
    shard, committed = root.attrs["shard"], root.attrs["committed"]
    assert check(path) == [] and committed + 2 * shard < STEPS
    code, out, _ = call("show", path, "--check")
    assert code == 0 and "its run has not ended, so its attributes have no checksum yet" in out
    root.attrs["committed"] = committed + change * shard
    found = check(path)
    if change < 0:
        assert [(d.what, d.variable) for d in found] == [("mark", "zarr.json")]
        assert f"{committed} steps are there" in found[0].why
    else:
        first, last = committed, committed + change * shard - 1
        assert {d.what for d in found} == {"missing"}
        assert {(first, last)} == {(min(d.steps[0] for d in found), max(d.steps[1] for d in found))}
        with pytest.raises(engine.DamageError, match=f"step {first} to "):
            engine.open(path)["solvers/delta/S"].load()


def killed(path):
    """Leave a store as a run leaves it that is killed half way."""
    from engine import experiment

    plan = experiment.prepare(SCENARIO, {})
    sink = experiment.store_sink(plan, path)
    commit = sink.commit

    def committing(steps):
        commit(steps)
        if steps >= STEPS // 2:
            sink.commit = sink.write = dead

    def dead(*_):
        raise Killed

    sink.commit, sink.close = committing, lambda status: sink.release()
    with pytest.raises(Killed):
        experiment.execute(plan, sink)


class Killed(Exception):
    """Stands for SIGKILL."""

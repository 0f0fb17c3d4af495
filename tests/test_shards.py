"""Shard files written chunk by chunk: what zarr itself would write, whole chunks at any moment."""

import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec

from engine.shards import MOST_CHUNKS, Shards, chunks_per_shard

CHUNK, COUNT, ROW = 4, 3, (2, 5)


def made(path, steps, dtype="float32"):
    """Return an array of zarr's and the shards of ours in its folder."""
    fill = float("nan") if np.dtype(dtype).kind == "f" else 0
    array = zarr.create_array(
        str(path), shape=(steps, *ROW), dtype=dtype, chunks=(CHUNK, *ROW),
        shards={"shape": (CHUNK * COUNT, *ROW), "index_location": "start"},
        compressors=[Crc32cCodec()], fill_value=fill, config={"write_empty_chunks": True},
    )  # fmt: skip
    return array, Shards(path, CHUNK, COUNT, ROW, np.dtype(dtype), fill)


def numbers(steps, dtype="float32"):
    rng = np.random.default_rng(0)
    return (100 * rng.standard_normal((steps, *ROW))).astype(dtype)


def files(path):
    return {p.relative_to(path): p.read_bytes() for p in (path / "c").rglob("*") if p.is_file()}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int16", "bool"])
def test_whole_shards_are_the_files_that_zarr_writes(dtype, tmp_path):
    steps, rows = 2 * CHUNK * COUNT, numbers(2 * CHUNK * COUNT, dtype)
    theirs, _ = made(tmp_path / "theirs", steps, dtype)
    theirs[...] = rows
    _, ours = made(tmp_path / "ours", steps, dtype)
    for start in range(0, steps, 2 * CHUNK):
        ours.write(start, rows[start : start + 2 * CHUNK])
    assert files(tmp_path / "ours") == files(tmp_path / "theirs")


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 12, 13, 31])
def test_zarr_reads_every_step_as_soon_as_its_chunk_is_written(steps, tmp_path):
    rows = numbers(steps)
    array, ours = made(tmp_path / "a", steps)
    for start in range(0, steps, CHUNK):
        stop = min(start + CHUNK, steps)
        ours.write(start, rows[start:stop])
        assert array[:stop].tobytes() == rows[:stop].tobytes()
        assert np.isnan(array[stop:]).all()


def test_rows_may_be_strided_or_in_another_byte_order(tmp_path):
    rows = numbers(2 * CHUNK)
    array, ours = made(tmp_path / "a", 2 * CHUNK)
    ours.write(0, rows.astype(">f4")[:CHUNK])
    ours.write(CHUNK, np.asfortranarray(rows[CHUNK:]))
    assert array[...].tobytes() == rows.tobytes()


def test_a_chunk_that_was_not_entered_in_the_index_is_not_there(tmp_path, monkeypatch):
    """A write cut short, by a full disk or a kill, leaves what was read before it, and no more."""
    rows = numbers(3 * CHUNK)
    array, ours = made(tmp_path / "a", 3 * CHUNK)
    ours.write(0, rows[:CHUNK])

    def full(data):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("engine.shards.checksum", full)
        with pytest.raises(OSError, match="no space"):
            ours.write(CHUNK, rows[CHUNK : 2 * CHUNK])
    assert array[:CHUNK].tobytes() == rows[:CHUNK].tobytes() and np.isnan(array[CHUNK:]).all()
    # Written again, past the mark, whatever stands there.
    ours.write(CHUNK, rows[CHUNK:])
    assert array[...].tobytes() == rows.tobytes()


def test_every_flipped_bit_of_a_shard_is_found(tmp_path):
    rows = numbers(CHUNK * COUNT)
    array, ours = made(tmp_path / "a", CHUNK * COUNT)
    ours.write(0, rows)
    (path,) = [p for p in (tmp_path / "a" / "c").rglob("*") if p.is_file()]
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="checksum"):
            array[...]


def test_a_start_within_a_chunk_is_refused(tmp_path):
    _, ours = made(tmp_path / "a", 8)
    with pytest.raises(ValueError, match="step 2 is not the first of a chunk of 4"):
        ours.write(2, numbers(2))


def test_shards_are_64_mib_or_so():
    assert chunks_per_shard(4 * 2**20, 1000) == 16
    assert chunks_per_shard(4 * 2**20, 5) == 5
    assert chunks_per_shard(2**30, 1000) == 1
    assert chunks_per_shard(100, 10**6) == MOST_CHUNKS

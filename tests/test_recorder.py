"""The recorder: frames of any length, cut into shards without a gap."""

import threading

import numpy as np
import pytest

from engine.loop import loop
from engine.recorder import MemorySink, Recorder
from engine.sources import ArraySource

from .loop_cases import SOLVERS, arrays, assert_same, make_track


@pytest.mark.parametrize("shard", [None, 1, 2, 8, 64, 1024])
@pytest.mark.parametrize("block", [1, 7, 1000])
def test_the_recorder_cuts_frames_into_shards_without_changing_them(shard, block):
    source = ArraySource(arrays(50))

    def record(size, length):
        tracks = [make_track(source, s) for s in (SOLVERS["rls"], SOLVERS["softmax"])]
        sink, commits = MemorySink(), []
        sink.commit = commits.append
        recorder = Recorder(sink, source, tracks, "every", size)
        for frame in loop(source, tracks, length):
            recorder.write(frame)
        recorder.close()
        return sink.arrays, commits

    (got, commits), (want, _) = record(shard, block), record(None, 1000)
    assert got.keys() == want.keys()
    for group in want:
        assert_same(
            {n: x for n, (_, x) in got[group].items()}, {n: x for n, (_, x) in want[group].items()}
        )
    assert commits[-1] == 50 and commits == sorted(commits)
    if shard:
        assert all(n % shard == 0 for n in commits if n < 50)


def test_the_recorder_refuses_a_gap():
    source = ArraySource(arrays(20))
    track = make_track(source, SOLVERS["delta"])
    recorder = Recorder(MemorySink(), source, [track], "every")
    first, second, third, *_ = loop(source, [track], 5)
    recorder.write(first)
    with pytest.raises(ValueError, match="step 10, expected 5"):
        recorder.write(third)
    with pytest.raises(ValueError, match="step 0, expected 5"):
        recorder.write(first)
    recorder.write(second)


def test_a_generator_may_use_its_arrays_again_while_they_wait_to_be_written():
    """Recorded arrays are no references to what the next block is drawn into."""
    given = {name: x.copy() for name, x in arrays(8).items()}
    source = ArraySource(given)
    keys, reused = given["keys"].copy(), threading.Event()

    class Slow(MemorySink):
        def write(self, variable, start, rows):
            if variable.path == "stream/keys":
                assert reused.wait(10)
            super().write(variable, start, rows)

    sink, track = Slow(), make_track(source, SOLVERS["delta"])
    recorder = Recorder(sink, source, [track], "every", 8)
    (frame,) = loop(source, [track], 8)
    recorder.write(frame)
    frame.tokens.arrays["keys"][...] = 7.0
    reused.set()
    recorder.close()
    assert np.array_equal(sink.arrays["stream"]["keys"][1], keys)


@pytest.mark.parametrize("steps", [0, 1, 5, 63, 64, 65, 1334])
def test_streams_of_any_length_are_recorded_whole(steps):
    """titans-pytorch 59, flash-linear-attention 98: as many steps stored as given."""
    given = arrays(steps, 2, 8, 8)
    given["keys"] /= np.maximum(np.linalg.norm(given["keys"], axis=-1, keepdims=True), 1e-300)
    whole = None
    for block in (1, 2, 64, 83, 2000):
        source = ArraySource(given)
        tracks = [make_track(source, s) for s in SOLVERS.values() if s[0] != "softmax_attention"]
        sink = MemorySink()
        recorder = Recorder(sink, source, tracks, "every", 64)
        for frame in loop(source, tracks, block):
            recorder.write(frame)
        recorder.close()
        shapes = {g: {n: x.shape for n, (_, x) in v.items()} for g, v in sink.arrays.items()}
        assert shapes["stream"]["keys"] == (steps, 2, 8) and shapes[""]["step"] == (steps,)
        assert shapes["solvers/rls"]["P"] == (steps, 2, 8, 8)
        flat = {f"{g}/{n}": x for g, v in sink.arrays.items() for n, (_, x) in v.items()}
        whole = whole or flat
        assert_same(flat, whole)

"""Any history of recording, killing, resuming, replaying and reopening, against runs in memory."""

import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import engine
from engine import cut, experiment, recorder, store, verify

from .store_cases import assert_same, flat

STEPS = 44
SHARD = 16
SCENARIO = {
    "seed": 5,
    "trials": 2,
    "stream": {"generator": "random", "steps": STEPS, "key": 3, "value": 2},
    "solvers": {"softmax": {"solver": "softmax_attention"}, "rls": {}},
    "probes": {"recall": {"steps": [5, 20, STEPS]}},
}
RECORDS = ["every", "final", {"keyframes": 4}]
WRITES = ("create", "write", "describe", "commit", "begin_at", "fit", "close")


class Killed(BaseException):
    """What a process that is killed does from then on: nothing."""


@functools.cache
def model(kind):
    """Return what a run that nobody disturbs holds, in memory."""
    record = "every" if kind == 2 else RECORDS[kind]
    whole = flat(engine.run({**SCENARIO, "record": record}))
    whole |= {"keyframes": None} if kind == 2 else {}
    return whole


class Histories(RuleBasedStateMachine):
    """One store; the model says what it may hold, and how far it is."""

    @initialize(kind=st.sampled_from(range(3)))
    def begin(self, kind):
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "run.zarr"
        self.kind, self.complete = kind, False
        self.scenario = {**SCENARIO, "record": RECORDS[kind]}

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def write(self, resume, kill=None, tired=None):
        """Run, or resume; be killed at a write, or interrupted after a frame."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recorder, "SHARD_STEPS", SHARD)
            patch.setattr(recorder, "BLOCK_STEPS", SHARD // 2)
            count, locks = [0], []

            def mortal(name, whole):
                def act(sink, *args, **options):
                    locks.append(sink._lock)
                    count[0] += 1
                    if kill is not None and count[0] > kill:
                        raise Killed
                    return whole(sink, *args, **options)

                return act

            for name in WRITES:
                patch.setattr(store.ZarrSink, name, mortal(name, getattr(store.ZarrSink, name)))
            frames = [0]

            def watch(loop):
                def looped(*args):
                    for frame in loop(*args):
                        yield frame
                        frames[0] += 1
                        if frames[0] == tired:
                            raise KeyboardInterrupt

                return looped

            patch.setattr(experiment, "loop", watch(experiment.loop))
            try:
                engine.run(self.scenario, self.path, resume=resume)
                self.complete = True
            except (Killed, KeyboardInterrupt):
                pass
            finally:
                for lock in locks:
                    lock.release()

    @rule(kill=st.integers(1, 250))
    def record_and_be_killed(self, kill):
        shutil.rmtree(self.path, ignore_errors=True)
        self.complete = False
        self.write(False, kill=kill)

    @rule(frame=st.integers(1, 10))
    def record_and_be_interrupted(self, frame):
        shutil.rmtree(self.path, ignore_errors=True)
        self.complete = False
        self.write(False, tired=frame)
        assert self.complete or engine.open(self.path).attrs["status"] == "interrupted"

    @precondition(lambda self: self.path.exists())
    @rule(kill=st.integers(1, 250))
    def resume_and_be_killed(self, kill):
        self.write(True, kill=kill)

    @precondition(lambda self: self.path.exists())
    @rule()
    def resume(self):
        self.write(True)
        assert self.complete

    @precondition(lambda self: self.path.exists())
    @rule()
    def resume_something_else(self):
        before = {p: p.read_bytes() for p in self.path.rglob("*") if p.is_file()}
        if cut.only_begun(self.path):
            return
        with pytest.raises(engine.InputError, match="seed: 5 in the store, 6 now"):
            engine.run(self.scenario, self.path, resume=True, seed=6)
        assert before == {p: p.read_bytes() for p in self.path.rglob("*") if p.is_file()}

    @precondition(lambda self: self.path.exists() and not cut.only_begun(self.path))
    @rule()
    def replay(self):
        """The steps that are there, in memory, are the first steps of the model."""
        done = engine.open(self.path).attrs["committed"]
        again, whole = flat(engine.replay(self.path, probes={}, record="every")), model(0)
        for name, (dims, x) in again.items():
            if dims[:1] == ("step",) and name.startswith("solvers/"):
                assert len(x) == done and x.tobytes() == whole[name][1][:done].tobytes(), name

    @precondition(lambda self: self.path.exists() and not cut.only_begun(self.path))
    @rule()
    def verify(self):
        assert not verify.verify(self.path).differences

    @invariant()
    def opens_as_a_prefix_of_the_model(self):
        if not hasattr(self, "path") or not self.path.exists():
            return
        run, whole = engine.open(self.path), model(self.kind)
        done, status = run.attrs["committed"], run.attrs["status"]
        assert (status == "complete") == self.complete and done <= STEPS
        found = flat(run)
        if self.complete:
            stored = {n: x for n, x in found.items() if not n.startswith("keyframes/")}
            assert_same(stored, {n: x for n, x in whole.items() if x})
            return
        for name, (dims, x) in found.items():
            if dims[:1] == ("keyframe",):
                continue  # each is a state, and those are compared
            want = whole[name][1]
            if dims[:1] in (("step",), ("probe_step",)):
                want = want[: len(x)]
                assert dims[0] == "probe_step" or len(x) in (done, STEPS), name
            if dims[:1] == ("row",):
                want = want[: len(x)]
            if name.endswith("diverged_at"):
                assert (x == -1).all() and np.all(want == -1)
            assert x.tobytes() == want.tobytes(), name


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=16, stateful_step_count=5, derandomize=True, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip

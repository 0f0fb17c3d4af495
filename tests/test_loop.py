"""The loop: a number depends on nothing but its own trial's past, and every failure is named."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pytest

import engine
from engine.api import Array, Gain, Generator, Rows, View
from engine.backend import backend
from engine.coefficients import Binding
from engine.linear import LinearRule, LinearState, Token
from engine.loop import loop
from engine.recorder import MemorySink, Recorder
from engine.signatures import coefficients
from engine.sources import ArraySource, Fingerprint, GeneratorSource
from engine.track import Track

SOLVERS = {
    "softmax": ("softmax_attention", {"scale": 0.5}),
    "linear": ("linear_attention", {"normalise": True}),
    "delta": ("delta", {}),
    "longhorn": ("longhorn", {}),
    "rls": ("rls", {}),
    "least squares": ("least_squares", {"ridge": 1e-3}),
}
RANGES = {"beta": (0.0, 1.0), "gamma": (0.9, 1.0)}
VIEWS = [None, "unit", "elu1", "exp"]
SCENARIO = {
    "seed": 3,
    "trials": 3,
    "stream": {"generator": "random", "steps": 150, "key": 6, "value": 4, "priority": 0.5,
               "keys": "gaussian"},
    "solvers": {
        "softmax": {"solver": "softmax_attention", "scale": 3.0, "view": "unit"},
        "linear": {"solver": "linear_attention", "normalise": True, "view": "elu1"},
        "exp": {"solver": "linear_attention", "view": "exp"},
        "delta": {"beta": {"gate": "priority", "low": 0.1, "high": 0.9}},
        "longhorn": {"beta": {"schedule": "cosine", "start": 2.0, "stop": 0.1, "over": 90}},
        "rls": {"gamma": {"trials": [0.9, 0.95, 1.0]}},
        "ls": {"solver": "least_squares", "ridge": 1e-3, "gamma": 0.9},
    },
}  # fmt: skip


def arrays(steps=40, trials=3, key=4, value=2, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    shapes = {"keys": key, "values": value, "queries": key}
    return {n: rng.normal(size=(steps, trials, d)).astype(dtype) for n, d in shapes.items()}


def make_track(source, solver, view=None, dtype="float64", **given):
    """Return a track with constant coefficients, or those given as (step, trial, 1)."""
    solver = engine.solver(*solver[:1], **solver[1]) if isinstance(solver, tuple) else solver
    bindings = {
        n: Binding(n, d.spec, given.get(n, d.default), ("step", "trial") if n in given else ())
        for n, d in coefficients(type(solver)).items()
    }
    view = engine.view(view) if isinstance(view, str) else view
    return Track(type(solver).__name__.lower(), solver, source, bindings, view,
                 backend("numpy"), dtype)  # fmt: skip


def everything(source, track, block):
    """Return every variable of a whole run, and the last state."""
    parts = [frame.traces[track.label].variables for frame in loop(source, [track], block)]
    joined = {}
    for name in parts[0]:
        whole = "step" not in track.dims[name]
        joined[name] = parts[0][name] if whole else np.concatenate([p[name] for p in parts])
    last = {f"last {n}": x for n, x in track.arrays().items()}
    return joined | last | {"diverged_at": track.diverged_at}


def of_trial(name, x, b, length):
    """Return one trial of a variable of `everything`, contiguous, its first `length` entries."""
    rows = name in ("last keys", "last values")  # of which each trial holds its own number
    leads = not rows and (name.startswith("last ") or name == "diverged_at")
    return np.ascontiguousarray(x[b : b + 1] if leads else x[:length, b : b + 1])


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name in want:
        assert (got[name].dtype, got[name].shape) == (want[name].dtype, want[name].shape), name
        assert got[name].tobytes() == want[name].tobytes(), name


# What a number depends on


@pytest.mark.parametrize("view", [None, "elu1"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
@pytest.mark.parametrize(("key", "value"), [(1, 1), (4, 1), (1, 3), (7, 5), (33, 17)])
def test_a_trial_alone_is_that_trial_in_a_batch(solver, view, dtype, key, value):
    """Bit for bit, masks and coefficients included, in the middle of the batch and at its ends."""
    given = arrays(24, 4, key, value, dtype=dtype)
    rng = np.random.default_rng(1)
    given["mask"] = rng.random((24, 4)) < 0.9
    own = {n: rng.uniform(*limits, size=(24, 4, 1)) for n, limits in RANGES.items()}
    batch = everything(s := ArraySource(given), make_track(s, solver, view, dtype, **own), 24)
    for b in (0, 2, 3):
        source = ArraySource({n: x[:, b : b + 1] for n, x in given.items()})
        mine = {n: x[:, b : b + 1] for n, x in own.items()}
        alone = everything(source, make_track(source, solver, view, dtype, **mine), 24)
        for name, x in alone.items():
            assert x.tobytes() == of_trial(name, batch[name], b, len(x)).tobytes(), (name, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
def test_blocks_change_no_bit(solver, view, dtype):
    given = arrays(150, dtype=dtype)
    rng = np.random.default_rng(1)
    given["mask"] = rng.random((150, 3)) < 0.9
    own = {n: rng.uniform(*limits, size=(150, 3, 1)) for n, limits in RANGES.items()}
    source = ArraySource(given)
    want = everything(source, make_track(source, solver, view, dtype, **own), 1000)
    for block in (1, 7, 64, 150):
        got = everything(source, make_track(source, solver, view, dtype, **own), block)
        assert_same(got, want)


def frames(scenario, every, **overrides):
    """Return the stream's and every solver's variables over all frames, by path."""
    parts, joined = {}, {}
    for frame in engine.stream(scenario, every=every, **overrides):
        for name, x in frame.tokens.arrays.items():
            parts.setdefault(f"stream/{name}", []).append(x)
        for label, trace in frame.traces.items():
            for name, x in trace.variables.items():
                along = "step" in trace.dims[name]
                path = f"solvers/{label}/{name}"
                parts.setdefault(path, []).append(x) if along else joined.update({path: x})
    return joined | {path: np.concatenate(x) for path, x in parts.items()}


def test_live_frames_are_the_recorded_run_whatever_their_length():
    run = engine.run(SCENARIO)
    for every in (1, 7, 64, 1000):
        for path, x in frames(SCENARIO, every).items():
            recorded = run[path].values
            assert (x.dtype, x.shape) == (recorded.dtype, recorded.shape), path
            assert x.tobytes() == recorded.tobytes(), (path, every)


def test_a_longer_stream_begins_as_a_shorter_one():
    """And with it, every state."""
    long = frames(SCENARIO, 64)
    short = frames(SCENARIO, 64, **{"stream.steps": 20})
    for path, x in short.items():
        if x.shape[:1] == (20,):
            assert x.tobytes() == long[path][:20].tobytes(), path


def test_more_trials_leave_the_first_ones_as_they_are():
    overrides = {"solvers.rls.gamma": 0.95}
    three = frames(SCENARIO, 64, **overrides)
    five = frames(SCENARIO, 64, trials=5, **overrides)
    one = frames(SCENARIO, 64, trials=1, **overrides)
    for path, x in three.items():
        if x.shape[:2] == (150, 3):
            assert five[path][:, :3].tobytes() == x.tobytes(), path
            assert one[path][:, :1].tobytes() == np.ascontiguousarray(x[:, :1]).tobytes(), path


def test_solvers_do_not_see_each_other():
    whole = frames(SCENARIO, 64)
    for label in SCENARIO["solvers"]:
        alone = frames({**SCENARIO, "solvers": {label: SCENARIO["solvers"][label]}}, 64)
        for path, x in alone.items():
            assert x.tobytes() == whole[path].tobytes(), path


def test_the_fingerprint_of_a_stream_does_not_depend_on_its_blocks():
    plain = {"generator": "random", "key": 4, "value": 2, "priority": 0.5}
    name = plain.pop("generator")
    source = GeneratorSource(engine.generator(name, **plain), seed=1, trials=2, steps=100)
    digests = set()
    for block in (1, 7, 64, 1000):
        fingerprint = Fingerprint()
        for tokens in source.blocks(block):
            fingerprint.update(tokens)
        digests.add(fingerprint.hexdigest())
    other = Fingerprint()
    for tokens in GeneratorSource(engine.generator(name, **plain), 2, 2, 100).blocks(64):
        other.update(tokens)
    assert len(digests) == 1 and other.hexdigest() not in digests


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


def test_an_endless_stream_goes_on_until_the_caller_stops():
    endless = {**SCENARIO, "stream": {"generator": "random", "key": 6, "value": 4, "priority": 0.5}}
    stops = []
    for frame in engine.stream(endless, every=10):
        stops.append(frame.stop)
        if len(stops) == 5:
            break
    assert stops == [10, 20, 30, 40, 50]
    with pytest.raises(engine.InputError, match="every = 0"):
        engine.stream(endless, every=0)


def test_a_frame_is_a_dataset_over_its_own_steps():
    _, frame, *_ = engine.stream(SCENARIO, every=40)
    ds = frame["rls"]
    assert ds.step.values.tolist() == list(range(40, 80)) and frame.start == 40
    assert ds.P.dims == ("step", "trial", "key", "key_2") and ds.gamma.dims == ("trial",)
    assert np.shares_memory(ds.P.values, frame.traces["rls"].states["P"])
    assert frame["delta"].beta.dims == ("step", "trial")
    assert frame["longhorn"].beta.dims == ("step",)
    assert frame["softmax"].rows.dims == ("step", "trial")


def test_frames_stay_as_they_were():
    """a frame that is kept does not change as the run goes on."""
    kept = list(engine.stream(SCENARIO, every=10))
    again = list(engine.stream(SCENARIO, every=10))
    for a, b in zip(kept, again, strict=True):
        for label in a.traces:
            assert_same(a.traces[label].variables, b.traces[label].variables)


# Lengths


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


@pytest.mark.parametrize("junk", [0.0, 1e6, np.nan])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
def test_padding_changes_no_bit_of_the_stream_before_it(solver, junk):
    """flash-linear-attention 1272: lengths 5 and 9, decays of .1 at the padding."""
    given = arrays(9, 2)
    given["mask"] = np.ones((9, 2), bool)
    given["mask"][5:, 0] = False
    del given["queries"]
    short = ArraySource({n: x[:5, :1].copy() for n, x in given.items()})
    for name in ("keys", "values"):
        given[name][5:, 0] = junk
    gates = {"beta": np.full((9, 2, 1), 0.7), "gamma": np.full((9, 2, 1), 0.95)}
    gates["beta"][5:, 0] = gates["gamma"][5:, 0] = 0.1
    source = ArraySource(given)
    padded, alone = make_track(source, solver, **gates), make_track(short, solver,
        **{n: x[:5, :1] for n, x in gates.items()})  # fmt: skip
    got, want = everything(source, padded, 4), everything(short, alone, 5)
    for name, x in want.items():
        assert of_trial(name, got[name], 0, len(x)).tobytes() == x.tobytes(), name
    # Steps past the end are marked missing, not repeated.
    assert np.isnan(got["prediction"][5:, 0]).all() and np.isnan(got["output"][5:, 0]).all()
    assert np.isfinite(got["output"][5:, 1]).all()
    assert got["diverged_at"].tolist() == [-1, -1]


# Failures are named


class Empty(NamedTuple):
    S: Annotated[Array, "key value"]


@dataclass(frozen=True)
class Faulty(LinearRule):
    """Does what it should until step 5."""

    fault: str = "raise"

    def read(self, s, q):
        out = super().read(s, q)
        match self.fault if s.S.any() and abs(s.S).max() >= 5 else "":
            case "read shape":
                return out[..., :1]
            case "read dtype":
                return out.astype("float32")
            case "read scalar":
                return 0.0
        return out

    def write(self, s, k, v):
        S = s.S + 1.0
        match self.fault if S.max() > 5 else "":
            case "raise":
                raise ZeroDivisionError("no such thing")
            case "state shape":
                return LinearState(S[..., :1])
            case "state dtype":
                return LinearState(S.astype("float32"))
            case "state type":
                return (S,)
            case "nothing":
                return None
        return LinearState(S)


@pytest.mark.parametrize(
    ("fault", "step", "says"),
    [
        ("raise", 5, "ZeroDivisionError: no such thing"),
        ("read shape", 4, r"read gave float64 \(3, 1\), expected float64 \(3, 2\)"),
        ("read dtype", 4, "read gave float32 .* expected float64"),
        ("read scalar", 4, "read gave float, expected"),
        ("state shape", 5, r"read gave float64 \(3, 1\), expected float64 \(3, 2\)"),
        ("state dtype", 5, "S gave float32"),
        ("state type", 5, "write gave tuple, not LinearState"),
        ("nothing", 5, "write gave NoneType, not LinearState"),
    ],
)
@pytest.mark.parametrize("block", [1, 4, 100])
def test_a_faulty_solver_is_named_with_its_step(fault, step, says, block):
    source = ArraySource(arrays(12))
    track = make_track(source, Faulty(fault))
    with pytest.raises(engine.RunError, match=f"solver 'faulty' failed at step {step}: .*({says})"):
        for _ in loop(source, [track], block):
            pass


def state_of(dims, build):
    """Return a solver whose one state variable has these dims."""

    class State(NamedTuple):
        x: Annotated[Array, dims]

    class Odd(LinearRule):
        def init(self, space):
            return State(build(space))

    return Odd()


@pytest.mark.parametrize(
    ("dims", "build", "says"),
    [
        ("key value", lambda s: s.zeros("key"), r"x has shape \(3, 4\), but its dims 'key value'"),
        ("key", lambda s: s.zeros("value"), r"x has shape \(3, 2\)"),
        ("key", lambda s: s.xp.zeros(4), r"x has shape \(4,\)"),
        ("key key", lambda s: s.eye("key"), "dims 'key key' of x must differ.*key_2"),
        ("step key", lambda s: s.zeros("key"), "dims 'step key' of x must differ"),
        ("key trial", lambda s: s.zeros("key"), "dims 'key trial' of x must differ"),
    ],
)
def test_a_state_that_is_not_as_declared_is_refused_before_the_run(dims, build, says):
    with pytest.raises(engine.InputError, match=says):
        make_track(ArraySource(arrays()), state_of(dims, build))


@pytest.mark.parametrize(
    "name", ["prediction", "output", "diverged_at", "rows", "step", "trial", "key", "beta", "mask"]
)
def test_a_state_variable_cannot_take_a_name_that_means_something_else(name):
    """Two variables of one name would be one in the store."""
    state = NamedTuple("state", [(name, Annotated[Array, "key value"])])

    @dataclass(frozen=True)
    class Odd(LinearRule):
        def token(self, k, v, *, beta: Gain = 1.0) -> Token:
            return Token(write=beta * k, value=v)

        def init(self, space):
            return state(space.zeros("key value"))

    with pytest.raises(engine.InputError, match=f"state variable '{name}'.*rename"):
        make_track(ArraySource(arrays()), Odd())


@dataclass(frozen=True)
class OddView(View):
    fault: str = ""

    def __call__(self, x):
        match self.fault:
            case "raise":
                raise ZeroDivisionError("no such thing")
            case "in place":
                x *= 2
            case "dtype":
                return x.astype("float32")
            case "shape":
                return x[..., :1]
        return x

    def size(self, n):
        return n + 1 if self.fault == "size" else n


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raise", "ZeroDivisionError: no such thing"),
        ("in place", "read-only"),
        ("dtype", "keys became float32 .* expected float64"),
        ("shape", r"keys became float64 \(10, 3, 1\), expected float64 \(10, 3, 4\)"),
        ("size", r"keys became float64 \(10, 3, 4\), expected float64 \(10, 3, 5\)"),
    ],
)
def test_a_faulty_view_is_named_with_its_solver(fault, says):
    source = ArraySource(arrays(12))
    track = make_track(source, SOLVERS["delta"], OddView(fault))
    with pytest.raises(engine.RunError, match=f"view of solver 'delta' failed.*0 to 9.*{says}"):
        list(loop(source, [track], 10))


@dataclass(frozen=True)
class OddGenerator(Generator):
    """Is as it should be for no steps, and up to step 4."""

    fault: str = ""

    def start(self, draws, steps):
        return None

    def draw(self, state, draws, steps):
        n, trials = len(steps), draws.trials
        out = {
            "keys": np.ones((n, trials, 2)),
            "values": np.ones((n, trials, 1)),
            "count": np.zeros((n, trials), dtype=np.int64),
            "mask": np.ones((n, trials), dtype=bool),
        }
        match self.fault if steps.start >= 4 else "":
            case "raise":
                raise ZeroDivisionError("no such thing")
            case "dtype":
                out["count"] = out["count"] + 0.5
            case "width":
                out["keys"] = out["keys"][..., :1]
            case "length":
                out["values"] = out["values"][:-1]
            case "missing":
                del out["count"]
            case "more":
                out["new"] = out["count"]
            case "list":
                out["count"] = out["count"].tolist()
        if self.fault == "int mask":
            out["mask"] = out["mask"].astype(int)
        if self.fault == "objects":
            out["count"] = out["count"].astype(object)
        return state, out


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raise", "oddgenerator failed at steps 4 to 7: ZeroDivisionError: no such thing"),
        ("dtype", r"drew 'count' as float64 \(\), but as int64 \(\) for no steps"),
        ("width", r"drew 'keys' as float64 \(1,\), but as float64 \(2,\) for no steps"),
        ("length", r"drew 'values' of shape \(3, 2, 1\)"),
        ("missing", "drew 'count' as nothing, but as int64"),
        ("more", r"drew 'new' as int64 \(\), but as nothing"),
        ("list", "drew 'count' of shape list"),
        ("int mask", "drew 'mask' as int64, not bool"),
        ("objects", "drew 'count' as object, not floats, integers or bools"),
    ],
)
def test_a_faulty_generator_is_named_and_nothing_is_cast(fault, says):
    with pytest.raises(engine.RunError, match=f"generator .*{says}"):
        for _ in GeneratorSource(OddGenerator(fault), trials=2, steps=12).blocks(4):
            pass


def test_a_generator_may_mask_its_steps():
    source = GeneratorSource(OddGenerator(), trials=2, steps=12)
    track = make_track(source, SOLVERS["linear"])
    assert everything(source, track, 4)["S"][-1, :, 0, 0].tolist() == [12.0, 12.0]


def test_the_steps_before_a_failure_have_been_yielded():
    source = ArraySource(arrays(12))
    track = make_track(source, Faulty("raise"))
    seen = []
    with pytest.raises(engine.RunError):
        for frame in loop(source, [track], 2):
            seen.append(frame.stop)
    assert seen == [2, 4]


# Divergence


@pytest.mark.parametrize("block", [1, 3, 7, 1000])
def test_the_first_step_that_is_not_finite_is_found_in_any_block(block):
    given = arrays(30)
    for trial, step in ((0, 6), (2, 7)):
        given["values"][step, trial] = np.inf
    source = ArraySource(given)
    track = make_track(source, SOLVERS["delta"])
    assert everything(source, track, block)["diverged_at"].tolist() == [6, -1, 7]


def test_integers_and_rows_do_not_diverge():
    class Count(NamedTuple):
        n: Annotated[Array, ""]
        kept: Annotated[Rows, "row key"]

    @dataclass(frozen=True)
    class Counting:
        def init(self, space):
            return Count(space.xp.zeros(space.lead, dtype=space.xp.int64), space.rows("key"))

        def write(self, s, k, v):
            return Count(s.n + 1, s.kept.append(k))

        def read(self, s, q):
            return 0 * q[..., :2]

    given = arrays(10)
    source = ArraySource(given)
    track = make_track(source, Counting())
    got = everything(source, track, 4)
    assert got["diverged_at"].tolist() == [-1] * 3
    assert got["n"].dtype == np.int64 and got["n"][:, 0].tolist() == list(range(1, 11))
    assert got["rows"][:, 0].tolist() == list(range(1, 11))
    assert got["last kept"].tobytes() == given["keys"].tobytes()

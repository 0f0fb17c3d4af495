"""Streams, tracks and whole runs that the tests of the loop share."""

import numpy as np

import engine
from engine.backend import backend
from engine.coefficients import Binding
from engine.loop import loop
from engine.signatures import coefficients
from engine.track import Track

SOLVERS = {
    "softmax": ("softmax_attention", {"scale": 0.5}),
    "linear": ("linear_attention", {"normalise": True}),
    "delta": ("delta", {}),
    "longhorn": ("longhorn", {}),
    "rls": ("rls", {}),
    "least squares": ("least_squares", {"ridge": 1e-3}),
}


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

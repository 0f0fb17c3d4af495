"""A run with a bit of everything, and what is read back from its store."""

import functools

import xarray as xr

import engine
from engine.store import ZarrSink

SCENARIO = {
    "title": "a bit of everything",
    "seed": 5,
    "trials": 2,
    "stream": {"generator": "random", "steps": 150, "key": 4, "value": 3, "priority": 0.5},
    "solvers": {
        "softmax": {"solver": "softmax_attention", "scale": 3.0, "view": "unit"},
        "linear": {"solver": "linear_attention", "normalise": True, "view": "elu1"},
        "delta": {"beta": {"gate": "priority", "low": 0.1, "high": 0.9}},
        "longhorn": {"beta": {"schedule": "linear", "start": 2.0, "stop": 0.5, "over": 90}},
        "rls": {"gamma": {"trials": [0.9, 1.0]}, "ridge": 0.5},
        "ls": {"solver": "least_squares", "ridge": 1e-3},
        "wild": {"solver": "delta", "beta": 1e4},
    },
    "probes": {"recall": {}},
}


def flat(tree):
    """Return every variable of a tree as (dims, array), by path."""
    found = {}
    for node in tree.subtree:
        for name, x in node.to_dataset(inherit=False).variables.items():
            found[f"{node.path}/{name}".lstrip("/")] = (x.dims, x.values)
    return found


@functools.cache
def in_memory():
    """Return the variables of SCENARIO, run in memory."""
    return flat(engine.run(SCENARIO))


def assert_same(got, want):
    assert got.keys() == want.keys()
    for path, (dims, x) in want.items():
        assert (got[path][0], got[path][1].dtype, got[path][1].shape) == (dims, x.dtype, x.shape)
        assert got[path][1].tobytes() == x.tobytes(), path


def plain(path):
    """Return what plain xarray sees; warnings are errors here."""
    with xr.open_datatree(path, engine="zarr") as tree:
        return flat(tree), dict(tree.attrs)


def reseal(path):
    """Close a store again whose metadata a test has changed."""
    sink = ZarrSink.reopen(path)
    sink.close(sink.attrs["status"])

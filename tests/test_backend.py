"""Array libraries: what crosses to a device and back, and what may be mixed."""

import subprocess
import sys
import types
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import engine
from engine.api import Array, Gain
from engine.backend import Backend, backend, host
from engine.linear import LinearRule, LinearState, Token, step
from engine.testing import solver_checks

from . import gpu_check

ROOT = Path(__file__).parents[1]
T, B, D, M = 9, 2, 4, 3


def draw(dtype="float32"):
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((T, B, n)).astype(dtype) for n in (D, M, D))


def missing():
    """Why there is no GPU to test on, empty if there is one."""
    try:
        backend("cupy")
    except engine.InputError as error:
        return str(error)
    return ""


on_a_gpu = pytest.mark.skipif(bool(missing()), reason=missing())


# A stand-in for CuPy's array: it comes to the host when asked, and never by itself.


class Foreign:
    """What CuPy does: `get` copies to the host, an implicit conversion raises."""

    def __init__(self, array):
        self._array = np.asarray(array)

    dtype = property(lambda self: self._array.dtype)
    shape = property(lambda self: self._array.shape)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)

    def get(self, stream=None, order="C", out=None, blocking=True):
        if out is None:
            return self._array.copy()
        assert not blocking and out.shape == self.shape and out.dtype == self.dtype
        stream.queue.append(("copy", out, self._array))
        return out

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


Foreign.__module__ = "cupy"


@pytest.mark.parametrize("where", ["numpy", "array_api_strict"])
def test_inputs_of_any_library_may_be_mixed(where):
    """cupy issues 3576 and 7418: "implicit conversion", and an int64 that widens float32."""
    keys, values, queries = draw()
    mask = np.arange(T) != 4
    want = engine.simulate("delta", keys, values, queries, mask=mask, beta=1.0, backend=where)
    assert want.S.dtype == "float32"
    strict = backend("array_api_strict")
    for kind in (Foreign, partial(strict.xp.asarray, device=strict.device), np.asarray):
        for one in (kind(np.array(1)), np.int64(1), np.array(1), 1.0, kind(np.ones((T, B)))):
            ds = engine.simulate(
                "delta", kind(keys), values, xr.DataArray(queries, dims=("step", "trial", "key")),
                mask=kind(mask), beta=one, backend=where, state={"S": kind(np.zeros((B, D, M)))},
            )  # fmt: skip
            for name in ("prediction", "output", "S"):
                assert isinstance(ds[name].data, np.ndarray) and ds[name].dtype == "float32"
                assert np.array_equal(ds[name].values, want[name].values, equal_nan=True)


def test_a_dataset_of_one_backend_goes_on_in_another():
    keys, values, _ = draw("float64")
    whole = engine.simulate("kda", keys, values, beta=0.1, gamma=0.9)
    head = engine.simulate(
        "kda", keys[:4], values[:4], beta=0.1, gamma=0.9, backend="array_api_strict"
    )
    tail = engine.simulate("kda", keys[4:], values[4:], beta=0.1, gamma=0.9, state=head)
    assert np.allclose(tail.S, whole.S[4:], rtol=0, atol=1e-14)


# A host copy hidden in a plugin is found on a machine without a GPU.


@dataclass(frozen=True)
class Smuggler(LinearRule):
    """A delta rule that takes a look at its numbers on the host."""

    where: str

    def look(self, x: Array, where: str) -> Array:
        return np.asarray(x) * 1.0 if where == self.where else x

    def token(self, k, v, *, beta: Gain = 1.0) -> Token:
        return Token(write=self.look(k, "token"), value=v, address=k, strength=beta)


@dataclass(frozen=True)
class StateSmuggler(Smuggler):
    """The same, in a write of its own."""

    def write(self, s, k, v, *, beta: Gain = 1.0) -> LinearState:
        return LinearState(step(self.look(s.S, "write"), self.token(k, v, beta=beta)))


@pytest.mark.parametrize(
    ("rule", "kernel"),
    [
        (Smuggler("token"), "loop"),
        (Smuggler("token"), "chunk"),
        (StateSmuggler("write"), "loop"),
    ],
)
def test_a_hidden_host_copy_fails_on_the_second_device(rule, kernel):
    keys, values, _ = draw()
    engine.simulate(rule, keys, values)  # on the host nobody can tell
    with pytest.raises(engine.RunError, match="failed at step 0: .*(device|CPU)"):
        engine.simulate(rule, keys, values, backend="array_api_strict", kernel=kernel)
    found = next(check for check in solver_checks(rule) if check.name == "strict_arrays")
    with pytest.raises(AssertionError, match="strict_arrays: .*failed at step 0"):
        found()


# The way to a device and back.


class Stream:
    """A CUDA stream whose work is done only when it is waited for."""

    def __init__(self, non_blocking=False):
        self.queue, self.non_blocking = [], non_blocking

    def record(self):
        return f"all queued on {self.queue or 'the current stream'}"

    def wait_event(self, event):
        self.queue.append(("wait", event))

    def synchronize(self):
        assert self.queue[0][0] == "wait", "copies what may not be computed yet"
        for what, *rest in self.queue:
            if what == "copy":
                rest[0][...] = rest[1]
        self.queue.clear()


def test_a_block_comes_back_on_a_stream_of_its_own(monkeypatch):
    current, made = Stream(), []

    def new(non_blocking):
        made.append(Stream(non_blocking))
        return made[-1]

    cuda = types.SimpleNamespace(Stream=new, get_current_stream=lambda: current)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    pinned = types.SimpleNamespace(empty_pinned=lambda shape, dtype: np.full(shape, 7, dtype))
    monkeypatch.setitem(sys.modules, "cupyx", pinned)
    gpu, rows = Backend("cupy", np), np.arange(3)
    for n in (5, 0):
        S = np.random.default_rng(n).standard_normal((n, 2, 3)).astype("float32")
        came = gpu.fetch({"S": Foreign(S), "output": Foreign(S[..., 0]), "rows": rows})
        assert np.array_equal(came["S"], S) and came["S"].dtype == "float32"
        assert np.array_equal(came["output"], S[..., 0])
        assert came["rows"] is rows  # it was on the host already
    (copies,) = made
    assert copies.non_blocking and not copies.queue and not current.queue


@pytest.mark.parametrize("where", ["numpy", "array_api_strict"])
def test_a_block_is_copied_once_for_all_solvers(where, monkeypatch):
    table = {
        "trials": 2, "dtype": "float32", "backend": where,
        "stream": {"generator": "random", "steps": 12, "key": 4, "value": 3},
        "solvers": {name: {"solver": "linear_attention"} for name in "abc"},
    }  # fmt: skip
    crossed, put = [], Backend.put

    def counted(self, array, dtype):
        crossed.append(np.shape(array))
        return put(self, array, dtype)

    monkeypatch.setattr(Backend, "put", counted)
    run = engine.run(table)
    assert crossed == [(12, 2, 4), (12, 2, 3)]
    assert np.array_equal(run["solvers/a"].S, run["solvers/c"].S)


def test_nobody_keeps_the_numbers_of_another_block():
    where, array = backend(), np.zeros(3)
    first = where.lend(array, np.dtype("float32"), "one block")
    array += 1.0
    assert where.lend(array, np.dtype("float32"), "one block") is first
    assert where.lend(array, np.dtype("float32"), "the next").tolist() == [1.0, 1.0, 1.0]
    lent = where.lend(array, np.dtype("float64"), "the next")
    assert not lent.flags.writeable and array.flags.writeable


def test_streams_do_not_depend_on_where_solvers_run():
    table = {
        "trials": 3,
        "stream": {"generator": "rebinding", "steps": 20, "entries": 5, "key": 6, "value": 3},
        "solvers": {"delta": {}},
    }
    here = engine.run(table)
    there = engine.run(table, backend="array_api_strict", kernel="chunk")
    for name, x in here["stream"].data_vars.items():
        assert np.array_equal(x, there["stream"][name], equal_nan=True), name
    assert here["stream"].attrs["sha256"] == there["stream"].attrs["sha256"]


def test_host_brings_home_whatever_it_is():
    x = np.arange(4.0)
    strict = backend("array_api_strict")
    for there in (x, Foreign(x), strict.put(x, x.dtype), list(x), xr.DataArray(x)):
        assert isinstance(host(there), np.ndarray) and np.array_equal(host(there), x)


# A real one.


@pytest.mark.skipif(not missing(), reason="there is a GPU; tests/gpu_check.py has more to say")
def test_without_a_gpu_the_check_says_why():
    script = ROOT / "tests" / "gpu_check.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("no GPU check: backend 'cupy'")


def test_the_check_is_ready_for_a_gpu():
    """What times and compares there runs here on the stand-in."""
    rates = gpu_check.bandwidth("array_api_strict", quick=True)
    assert set(rates) == {"device", "host to device", "device to host"}
    rows = gpu_check.throughput("array_api_strict", True, rates["device"], np.inf)
    assert len(rows) == 12 and not [row for row in rows if "error" in row]
    (row,) = gpu_check.recording("array_api_strict", True, rates, np.inf)
    assert row["times the CPU"] > 0 and row["GB/s"] > 0
    assert gpu_check.recording("array_api_strict", True, rates, -np.inf)[0]["skipped"]


def test_the_check_compares_what_it_says():
    came = gpu_check.contract("array_api_strict") | gpu_check.agreement("array_api_strict", True)
    assert not {name: x for name, x in came.items() if not x["ok"]}


@pytest.mark.gpu
@on_a_gpu
def test_every_solver_runs_on_a_gpu():
    came = gpu_check.contract("cupy")
    assert not {name: x for name, x in came.items() if not x["ok"]}


@pytest.mark.gpu
@on_a_gpu
def test_the_linear_family_agrees_on_a_gpu():
    came = gpu_check.agreement("cupy", quick=True)
    assert not {name: x for name, x in came.items() if not x["ok"]}

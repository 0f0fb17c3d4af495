"""What a GPU must show, in one command: `python tests/gpu_check.py > gpu.json`, under 6 minutes.

Every solver on CuPy arrays against the CPU; the linear family in both precisions; its throughput,
and that of recording, against the CPU and against the memory bandwidth of the device. Progress goes
to stderr, the result to stdout as JSON. Exit code 0: all agree; 1: something does not; 2: no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from functools import partial
from importlib.metadata import distributions, version

import numpy as np

import engine
from engine import kernels, signatures
from engine.api import Space
from engine.backend import backend
from engine.steps import Block
from engine.testing.examples import example

# Rounding in another order; an exact solver on the example amplifies it by its condition number.
CONTRACT = 1e-8
# Sums of T steps of 64 + dk terms: see tests/test_chunkwise.py.
ROOM = {"float64": 1e-10, "float32": 1e-4}
FAMILY = {
    "linear_attention": {},
    "gated_delta": {"beta": 1.0, "gamma": 0.99},
    "kda": {"beta": 1.0, "gamma": 0.99},
    "longhorn": {"beta": 1.0},
    "rwkv7": {"gate": 1.0, "gamma": 0.99},
    "titans": {"theta": 0.2, "eta": 0.5, "alpha": 0.01},
}
SIZES = ((1, 8192, 64), (30, 1024, 16), (30, 1024, 64), (8, 2048, 128))
SECONDS = 300  # after that, what is left of the timings is skipped and said to be


def stream(trials, steps, d, dtype, seed=0):
    """Return unit keys and values."""
    rng = np.random.default_rng(seed)
    keys, values = rng.standard_normal((2, steps, trials, d))
    return (keys / np.linalg.norm(keys, axis=-1, keepdims=True)).astype(dtype), values.astype(dtype)


def coefficients(name, keys):
    """Return what a rule of the family is given."""
    return FAMILY[name] | ({"erase_key": keys} if name == "rwkv7" else {})


def difference(one, other):
    """Return the largest difference of two results, relative to the size of each variable."""
    worst = 0.0
    for name, x in one.data_vars.items():
        a, b = x.values, other[name].values
        assert a.dtype == b.dtype and a.shape == b.shape, f"{name} became {b.dtype} {b.shape}"
        if a.size:
            assert np.array_equal(np.isnan(a), np.isnan(b)), f"{name}: NaN in other places"
            scale = max(1.0, float(np.abs(np.nan_to_num(a)).max()))
            worst = max(worst, float(np.abs(np.nan_to_num(a - b)).max()) / scale)
    return worst


def compared(run, room):
    """Return what came of a comparison; whatever fails is a result."""
    try:
        worst = run()
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return {"ok": worst < room, "difference": worst, "room": room}


def contract(where):
    """Compare every solver with the CPU, with and without skipped steps, states included."""

    def both(name, masked):
        solver = engine.solver(name)
        given = example(solver)
        mask = np.random.default_rng(1).uniform(size=given.keys.shape[:2]) < 0.7
        more = {"mask": mask if masked else None, **given.coefficients}
        here, there = (
            engine.simulate(solver, given.keys, given.values, backend=b, **more)
            for b in ("numpy", where)
        )
        return difference(here, there)

    return {
        f"{name}{', masked' if masked else ''}": compared(partial(both, name, masked), CONTRACT)
        for name in engine.solvers()
        for masked in (False, True)
    }


def agreement(where, quick):
    """Compare the linear family, a thousand steps long, in both precisions."""
    trials, steps, d = (2, 100, 8) if quick else (8, 1024, 64)

    def both(name, dtype):
        keys, values = stream(trials, steps, d, dtype)
        here, there = (
            engine.simulate(name, keys, values, backend=b, **coefficients(name, keys))
            for b in ("numpy", where)
        )
        assert there.S.dtype == dtype
        return difference(here, there)

    return {
        f"{name}, {dtype}": compared(partial(both, name, dtype), ROOM[dtype])
        for name in FAMILY
        for dtype in ROOM
    }


def median(call, wait, repeats):
    """Return the median seconds of a call, after one that is not counted."""
    taken = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        wait(call())
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def bandwidth(where, quick):
    """Return GB/s: of device memory, read and written, and of the ways to it and back."""
    made = backend(where)
    host = np.ones((1 if quick else 256) * 2**17)
    there = made.put(host, host.dtype)
    rates = {
        "device": (lambda: there + 1.0, 2),
        "host to device": (lambda: made.put(host, host.dtype), 1),
        "device to host": (lambda: made.fetch({"x": there}), 1),
    }

    def wait(x):
        return x if isinstance(x, dict) else made.get(x[:1])

    return {
        name: passes * host.nbytes / median(call, wait, 3) / 1e9
        for name, (call, passes) in rates.items()
    }


def kernel(name, where, dtype, size):
    """Return the form that runs, and a call that runs it on a block that is there already."""
    trials, _, d = size
    made, rule = backend(where), engine.solver(name)
    declared = signatures.coefficients(type(rule))
    host_keys, host_values = stream(*size, dtype)

    def there(x, axis=""):
        x = np.asarray(x, dtype)
        return made.put(x if x.ndim else np.full((1, 1, d if axis else 1), x), np.dtype(dtype))

    keys, values = there(host_keys), there(host_values)
    writes = {n: there(x, declared[n].spec.axis) for n, x in coefficients(name, host_keys).items()}
    space = Space({"key": d, "value": d}, (trials,), made.xp, made.dtype(dtype), made.device)
    state = rule.init(space)
    block = Block(0, keys, values, keys, None, writes, {}, False)
    form = kernels.choose(rule, state, made)

    def call():
        return kernels.find(form)(rule, state, block, made).output

    return form, call, made


def throughput(where, quick, rate, until):
    """Time the linear family on both sides, tokens already there and reads left there."""
    rows = []
    for size in ((2, 64, 8),) if quick else SIZES:
        for name in FAMILY:
            for dtype in ROOM:
                row = {"solver": name, "dtype": dtype, "trials, steps, d": size}
                rows.append(row)
                if time.perf_counter() > until:
                    row["skipped"] = "out of time"
                    continue
                try:
                    for side in ("numpy", where):
                        form, call, made = kernel(name, side, dtype, size)
                        row[f"{side} kernel"] = form
                        seconds = median(call, lambda x, m=made: m.get(x[-1, ...]), 3)
                        row[f"{side} ms"] = 1e3 * seconds
                except Exception as error:
                    row["error"] = f"{type(error).__name__}: {error}"
                    continue
                row["times the CPU"] = row["numpy ms"] / row[f"{where} ms"]
                # Least that must move: k, v, q in, two reads out.
                moved = 5 * np.prod(size) * np.dtype(dtype).itemsize
                row["share of bandwidth"] = float(moved / seconds / 1e9 / rate)
                print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def recording(where, quick, rates, until):
    """Time runs that keep every state, from arrays to a Dataset."""
    rows = []
    for size in ((2, 64, 8),) if quick else ((30, 1024, 32), (8, 1024, 64)):
        row = {"solver": "gated_delta", "dtype": "float32", "trials, steps, d": size}
        rows.append(row)
        if time.perf_counter() > until:
            row["skipped"] = "out of time"
            continue
        keys, values = stream(*size, "float32")
        for side in ("numpy", where):
            call = partial(engine.simulate, "gated_delta", keys, values, backend=side)
            seconds = median(call, lambda ds: ds, 3)
            row[f"{side} ms"] = 1e3 * seconds
        moved = size[0] * size[1] * size[2] ** 2 * 4 / 1e9
        row["GB/s"] = moved / seconds
        row["share of the way to the host"] = moved / seconds / rates["device to host"]
        row["times the CPU"] = row["numpy ms"] / row[f"{where} ms"]
    return rows


def main(arguments=None):
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="cupy", help="another one rehearses the script")
    parser.add_argument("--quick", action="store_true", help="small sizes: does the script work?")
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    try:
        backend(given.backend)
    except engine.InputError as error:
        print(f"no GPU check: {error}", file=sys.stderr)
        return 2
    until = began + SECONDS
    result = {"backend": given.backend, "platform": platform.platform()}
    if given.backend == "cupy":
        import cupy

        device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        result["device"] = device["name"].decode()
        result["driver"] = cupy.cuda.runtime.driverGetVersion()
        names = {d.name for d in distributions() if d.name and d.name.startswith("cupy")}
        result["cupy"] = {name: version(name) for name in names}
    result["versions"] = {n: version(n) for n in ("ttr-engine", "numpy", "array-api-compat")}
    result["contract"] = contract(given.backend)
    print(f"contract: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    result["agreement"] = agreement(given.backend, given.quick)
    print(f"agreement: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    rates = result["GB/s"] = bandwidth(given.backend, given.quick)
    result["recording"] = recording(given.backend, given.quick, rates, until)
    result["throughput"] = throughput(given.backend, given.quick, rates["device"], until)
    checks = {**result["contract"], **result["agreement"]}
    result["failed"] = [name for name, came in checks.items() if not came["ok"]]
    result["failed"] += [r["solver"] for r in result["throughput"] if "error" in r]
    result["seconds"] = time.perf_counter() - began
    print(json.dumps(result, indent=1))
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

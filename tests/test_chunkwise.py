"""The chunkwise form gives the step loop's numbers, whatever the chunk, the decay and the keys."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import engine
from engine import chunkwise, kernels, linear, signatures, steps
from engine.api import Gain, Space
from engine.backend import Backend, backend
from engine.linear import LinearRule, Token
from engine.steps import Block
from engine.testing.examples import example

T, B = 67, 3  # no multiple of a chunk
RULES = [
    name
    for name in engine.solvers()
    if linear.is_plain(rule := engine.solver(name)) and not isinstance(rule, linear.MomentumRule)
]
# Sums of up to 64 + dk terms in another order, over T steps: T (64 + dk) eps = 5e-13 and 3e-4 if
# every rounding went the same way, and nothing that contracts amplifies it. Rounding does not.
ROOM = {"float64": 1e-10, "float32": 1e-4}


class Dear(Backend):
    """A library on which the triangular systems are solved by one call, as on a GPU."""

    launches_dear = True


def usual(keys, given, rng):
    return keys, given


def long_and_short_keys(keys, given, rng):
    """Norms from 0.1 to 10: a rule that diverges on them grows, 10^15-fold in 40 steps."""
    return keys[:40] * rng.uniform(0.1, 10, (40, B, 1)), {n: x[:40] for n, x in given.items()}


def full_resets(keys, given, rng):
    if "gamma" in given:
        given["gamma"][rng.uniform(size=given["gamma"].shape) < 0.2] = 0.0
    return keys, given


def tiny_decays(keys, given, rng):
    """exp(-25.76) at every step: the product of 30 of them is 0, and 0 / 0 is not a decay."""
    tiny = {"gamma": 6.5e-12, "dt": 25.76}
    return keys, {n: np.full_like(x, tiny[n]) if n in tiny else x for n, x in given.items()}


def nearly_reflecting(keys, given, rng):
    """beta just under 2 without decay: the error oscillates and hardly shrinks."""
    last = {"beta": 1.999, "mu": 1.999, "erase_gate": 1.999, "gamma": 1.0}
    return keys, {n: np.full_like(x, last[n]) if n in last else x for n, x in given.items()}


def nearly_parallel_keys(keys, given, rng):
    keys = keys[0, 0] + 0.05 * keys
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    return nearly_reflecting(keys, given, rng)


STREAMS = (
    usual, long_and_short_keys, full_resets, tiny_decays, nearly_reflecting, nearly_parallel_keys,
)  # fmt: skip


def case(name, stream=usual, dtype="float64", where=None, mask=None, record=True):
    """Return a rule, a state that is not empty, and a block of tokens."""
    where, rule, rng = where or backend(), engine.solver(name), np.random.default_rng(5)
    given = example(rule, steps=T, trials=B)
    writes = {n: x if x.ndim == 3 else x[..., None] for n, x in given.coefficients.items()}
    keys, writes = stream(given.keys, writes, rng)
    values, queries = given.values[: len(keys)], rng.standard_normal(keys.shape)
    if "a" in writes:  # a transition that contracts: diag(gamma) - 0.9 a a^T
        writes["b"] = -0.9 * writes["a"]
    if "erase_key" in writes:
        writes["erase_key"] = keys if stream is not tiny_decays else writes["erase_key"]
    sizes = {"key": keys.shape[-1], "value": values.shape[-1]}

    def put(x):
        return where.put(x, np.dtype(dtype))

    empty = rule.init(Space(sizes, (B,), where.xp, where.dtype(dtype), where.device))
    state = type(empty)(*(put(rng.standard_normal(x.shape)) for x in empty))
    declared = signatures.coefficients(type(rule))
    writes = {n: put(x) for n, x in writes.items() if declared[n].methods - {"read"}}
    block = Block(0, put(keys), put(values), put(queries), mask, writes, {}, record)
    return rule, state, block, where


def agree(got, want, where, room):
    """Compare, at every step, with the largest number that was reached until then."""
    names = {**got.states, "prediction": got.prediction, "output": got.output}
    wants = {**want.states, "prediction": want.prediction, "output": want.output}
    for name in names:
        one, other = where.get(names[name]), where.get(wants[name])
        assert one.shape == other.shape and one.dtype == other.dtype
        assert np.array_equal(np.isnan(one), np.isnan(other))  # the reads of a skipped step
        rest = tuple(range(2, one.ndim))
        reached = np.maximum.accumulate(np.abs(np.nan_to_num(other)).max(rest), axis=0)
        off = np.abs(np.nan_to_num(one - other)).max(rest) / np.maximum(reached, 1e-30)
        assert off.max() < room, f"{name} differs by {off.max():.2g}"
    for one, other in zip(got.state, want.state, strict=True):
        one, other = where.get(one), where.get(other)
        assert np.abs(one - other).max() < room * max(1.0, np.abs(other).max())


def by_chunks(monkeypatch, *args, chunk=None):
    """Run by chunks, and fail if it came to stepping."""
    with monkeypatch.context() as patch:
        patch.setattr(steps, "advance", None)
        return chunkwise.advance(*args, chunk=chunk)


@pytest.mark.parametrize("dtype", ROOM)
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("name", RULES)
def test_chunks_of_any_size_give_the_numbers_of_the_step_loop(name, stream, dtype, monkeypatch):
    args = case(name, stream, dtype)
    want = steps.advance(*args)
    for chunk in (1, 2, 16, 64):
        agree(by_chunks(monkeypatch, *args, chunk=chunk), want, args[-1], ROOM[dtype])


@pytest.mark.parametrize("stream", [long_and_short_keys, nearly_parallel_keys])
@pytest.mark.parametrize("name", RULES)
def test_one_call_solves_as_well_as_substitution(name, stream, monkeypatch):
    """LU with pivots keeps no digit of the first of these streams."""
    args = case(name, stream, where=Dear("numpy", np))
    want = steps.advance(*args)
    for chunk in (16, 64):
        agree(by_chunks(monkeypatch, *args, chunk=chunk), want, args[-1], ROOM["float64"])


def test_one_call_runs_on_a_device(monkeypatch):
    strict = backend("array_api_strict")
    args = case("rwkv7", where=Dear(strict.name, strict.xp, strict.device))
    agree(by_chunks(monkeypatch, *args), steps.advance(*args), strict, ROOM["float64"])


def test_no_chunk_is_too_large_for_memory(monkeypatch):
    """What a chunk needs is formed for as many chunks at a time as there is room for."""
    args = case("kda")
    want = steps.advance(*args)
    whole = by_chunks(monkeypatch, *args, chunk=16)
    sizes = []
    halves = chunkwise._halves
    monkeypatch.setattr(chunkwise, "WORK", 2 * B * 16 * 16)
    monkeypatch.setattr(chunkwise, "_halves", lambda *a: sizes.append(a[1].shape[0]) or halves(*a))
    parts = by_chunks(monkeypatch, *args, chunk=16)
    assert sizes == [2, 2, 1]
    agree(parts, want, args[-1], ROOM["float64"])
    agree(parts, whole, args[-1], ROOM["float64"])


@pytest.mark.parametrize("name", RULES)
def test_a_skipped_step_keeps_every_bit_of_the_state(name, monkeypatch):
    mask = np.random.default_rng(0).uniform(size=(T, B)) < 0.6
    mask[20:45, 0] = mask[-5:] = mask[:2, 1] = False
    rule, state, block, where = case(name, mask=mask)
    holes = {"keys": block.keys, "values": block.values, **block.writes}
    holes = {n: np.where(mask[..., None], x, np.nan) for n, x in holes.items()}
    block = replace(block, keys=holes.pop("keys"), values=holes.pop("values"), writes=holes)
    want = steps.advance(rule, state, block, where)
    for chunk in (1, 16, 64):
        got = by_chunks(monkeypatch, rule, state, block, where, chunk=chunk)
        agree(got, want, where, ROOM["float64"])
        for n, x in got.states.items():
            before = np.concatenate([getattr(state, n)[None], x[:-1]])
            assert np.array_equal(x[~mask], before[~mask])
            assert np.array_equal(getattr(got.state, n), x[-1])
    block = replace(block, mask=np.zeros_like(mask), record=False)
    got = by_chunks(monkeypatch, rule, state, block, where)
    assert all(np.array_equal(a, b) for a, b in zip(got.state, state, strict=True))


@pytest.mark.parametrize("name", ["linear_attention", "kda", "rwkv7"])
def test_without_recording_there_are_no_states_and_the_same_reads(name, monkeypatch):
    rule, state, block, where = case(name)
    every = by_chunks(monkeypatch, rule, state, block, where)
    last = by_chunks(monkeypatch, rule, state, replace(block, record=False), where)
    assert every.states and not last.states
    assert np.array_equal(every.prediction, last.prediction)
    assert np.array_equal(every.output, last.output)
    for a, b in zip(every.state, last.state, strict=True):
        assert np.allclose(a, b, rtol=0, atol=1e-13)


def test_a_divergence_is_found_at_its_step_and_in_its_trial():
    """A matrix product would spread an inf over its chunk."""
    given = example(engine.solver("delta"), steps=400)
    beta = np.tile([1.0, 60.0, 1.5], (400, 1))
    run = {
        kernel: engine.simulate("delta", given.keys, given.values, beta=beta, kernel=kernel)
        for kernel in ("loop", "chunk")
    }
    at = run["loop"].diverged_at.values
    assert at[0] == at[2] == -1 and at[1] > 100
    assert np.array_equal(run["chunk"].diverged_at.values, at)
    for name in ("prediction", "S"):
        a, b = run["chunk"][name].values, run["loop"][name].values
        assert np.allclose(a[:, [0, 2]], b[:, [0, 2]], rtol=0, atol=1e-11)
        assert np.isfinite(a[: at[1], 1]).all()


@dataclass(frozen=True)
class Careless(LinearRule):
    """Does what a rule must not."""

    how: str

    def token(self, k, v, *, beta: Gain = 1.0) -> Token:
        if self.how == "raises":
            raise ZeroDivisionError("no")
        return Token(write=k, value=v.astype("float64"), address=k, strength=beta)


@pytest.mark.parametrize(
    ("how", "says"), [("raises", "ZeroDivisionError: no"), ("widens", "float64")]
)
def test_what_the_step_loop_refuses_is_refused(how, says):
    keys, values = np.ones((5, 2, 3), "float32"), np.ones((5, 2, 4), "float32")
    with pytest.raises(engine.RunError, match=f"failed at step 0: .*{says}"):
        engine.simulate(Careless(how), keys, values, kernel="chunk")


def test_no_steps_are_no_trouble():
    ds = engine.simulate("delta", np.ones((0, 3)), np.ones((0, 2)), kernel="chunk")
    assert ds.sizes["step"] == 0 and ds.S.shape == (0, 3, 2)


def test_which_form_runs():
    strict, gpu = backend("array_api_strict"), Dear("cupy", np)

    def chosen(name, where, wanted="auto"):
        return kernels.choose(engine.solver(name), None, where, wanted)

    assert chosen("delta", gpu) == chosen("kda", strict, "chunk") == "chunk"
    assert chosen("delta", strict) == chosen("titans", gpu) == chosen("rls", gpu) == "loop"
    for name in ("titans", "rls", "softmax_attention"):
        with pytest.raises(engine.InputError, match="'chunk': it runs the linear family without"):
            chosen(name, gpu, "chunk")
    with pytest.raises(engine.InputError, match="did you mean 'chunk'"):
        chosen("delta", gpu, "chunks")


def test_a_store_says_which_form_wrote_it(tmp_path):
    """On a device, a block at a time; the numbers are those of the loop."""
    overrides = {"kernel": "chunk", "backend": "array_api_strict", "trials": 2}
    table = {
        "stream": {"generator": "random", "steps": 40, "key": 4, "value": 3},
        "solvers": {"delta": {}, "kda": {"gamma": 0.9}},
    }
    run = engine.run(table, out=tmp_path / "run.zarr", **overrides)
    want = engine.run(table, kernel="loop", trials=2)
    for label in table["solvers"]:
        assert run[f"solvers/{label}"].attrs["kernel"] == "chunk"
        assert want[f"solvers/{label}"].attrs["kernel"] == "loop"
        for name, x in want[f"solvers/{label}"].data_vars.items():
            assert np.allclose(run[f"solvers/{label}"][name], x, rtol=0, atol=1e-12), name

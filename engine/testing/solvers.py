"""The checks of a solver."""

from __future__ import annotations

import pickle
import warnings
from functools import partial
from typing import Any

import numpy as np

from engine import signatures
from engine.api import Rows, Solver
from engine.cards import evaluate
from engine.errors import StabilityWarning
from engine.linear import LinearRule, MomentumRule, is_plain
from engine.loop import loop
from engine.simulation import simulate
from engine.sources import ArraySource, Tokens
from engine.testing.compare import Case, Contract, masking, same
from engine.testing.examples import Example, example_of, tracked


def _run(solver: Solver, given: Example, **options: Any) -> dict[str, np.ndarray]:
    ds = simulate(solver, given.keys, given.values, **given.coefficients, **options)
    return {str(name): x.values for name, x in ds.data_vars.items()}


def _dims_match(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    track = tracked(solver, given)
    before = {name: x.shape for name, x in track.recorded().items()}
    for tokens in ArraySource({"keys": given.keys, "values": given.values}).blocks(case.steps):
        track.advance(tokens)
    after = {name: x.shape for name, x in track.recorded().items()}
    assert before == after, f"shapes of the state change from {before} to {after}"


def _inputs_untouched(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    for x in (given.keys, given.values, *given.coefficients.values()):
        x.flags.writeable = False
    track = tracked(solver, given)
    state = track.state
    row = {name: x[0] if x.ndim == 3 else x[0][..., None] for name, x in given.coefficients.items()}
    declared = signatures.coefficients(type(solver))
    writes = {name: x for name, x in row.items() if declared[name].methods - {"read"}}
    reads = {name: x for name, x in row.items() if "read" in declared[name].methods}
    for _ in range(2):
        held = [x for x in state if isinstance(x, np.ndarray)]
        kept = [x.copy() for x in held]
        for x in held:
            x.flags.writeable = False
        try:
            new = solver.write(state, given.keys[0], given.values[0], **writes)
            solver.read(state, given.keys[0], **reads)
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            raise AssertionError(f"writes into its inputs or its old state: {error}") from error
        for x, copy in zip(held, kept, strict=True):
            assert np.array_equal(x, copy), "the old state changed"
        state = new


def _dtype_kept(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    for dtype, wanted in (("float32", "float32"), ("float64", "float64"), ("float16", "float32")):
        keys, values = given.keys.astype(dtype), given.values.astype(dtype)
        ds = simulate(solver, keys, values, **given.coefficients)
        found = {str(n): str(x.dtype) for n, x in ds.data_vars.items() if x.dtype.kind == "f"}
        states = {n: d for n, d in found.items() if n not in given.coefficients and d != wanted}
        assert not states, f"{dtype} input must give {wanted}, but gives {states}"


def _trial_alone(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    many = _run(solver, given)
    for b in range(case.trials):
        one = _run(solver, given.part(trials=slice(b, b + 1)))
        for name, x in one.items():
            axis = 0 if name == "diverged_at" else 1
            whole = np.take(many[name], [b], axis=axis)
            same({name: x}, {name: whole}, f"trial {b} alone against in a batch")


def _split_anywhere(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    whole = simulate(solver, given.keys, given.values, **given.coefficients)
    for at in sorted({1, case.steps // 3, case.steps - 1} & set(range(1, case.steps))):
        first, second = given.part(slice(None, at)), given.part(slice(at, None))
        head = simulate(solver, first.keys, first.values, **first.coefficients)
        tail = simulate(solver, second.keys, second.values, state=head, **second.coefficients)
        for name in whole.data_vars:
            if "step" in whole[name].dims:
                joined = np.concatenate([head[name].values, tail[name].values])
                same({str(name): joined}, {str(name): whole[name].values}, f"split at step {at}")


def _mask_keeps_state(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    mask = case.mask
    keys, values = given.keys.copy(), given.values.copy()
    keys[~mask], values[~mask] = np.nan, np.nan
    coefficients: dict[str, Any] = {name: x.copy() for name, x in given.coefficients.items()}
    for x in coefficients.values():
        x[~mask] = np.nan
    padded = simulate(solver, keys, values, mask=mask, **coefficients)
    for b in np.flatnonzero(mask.any(axis=0)):
        part = given.part(trials=slice(b, b + 1)).part(steps=mask[:, b])  # type: ignore[arg-type]
        alone = simulate(solver, part.keys, part.values, **part.coefficients)
        for name in alone.data_vars:
            if "step" in alone[name].dims and name not in coefficients:
                ours = padded[name].isel(trial=[b]).values[mask[:, b]]
                same({str(name): ours}, {str(name): alone[name].values}, f"trial {b}, masked")
        for name in padded.data_vars:
            if name in ("prediction", "output", *coefficients) or "step" not in padded[name].dims:
                continue
            x = padded[name].isel(trial=b).values
            still = np.flatnonzero(~mask[1:, b]) + 1
            same({str(name): x[still]}, {str(name): x[still - 1]}, "state at a masked step")


def _empty_reads_zeros(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    first = simulate(solver, given.keys[:1], given.values[:1], **given.part(slice(1)).coefficients)
    assert not first.prediction.values.any(), f"reads {first.prediction.values[0, 0]}"


def _reads_at_once(solver: Solver, case: Case) -> None:
    """A probe reads many queries at a time: one more leading axis, the bits of one by one."""
    given = example_of(solver, case)
    track = tracked(solver, given)
    track.advance(Tokens(0, {"keys": given.keys, "values": given.values}))
    one = [track.ask(given.keys[i : i + 1]) for i in range(len(given.keys))]
    assert track.ask(given.keys).tobytes() == np.concatenate(one).tobytes(), (
        "many queries at a time read other numbers than one by one"
    )


def _state_pickles(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    source = ArraySource({"keys": given.keys, "values": given.values})
    whole, cut = tracked(solver, given), tracked(solver, given)
    frames = list(loop(source, [whole], case.steps // 2))
    blocks = list(source.blocks(case.steps // 2))
    cut.advance(blocks[0])
    cut.state = pickle.loads(pickle.dumps(cut.state))
    trace = cut.advance(blocks[1])
    same(trace.variables, frames[1].traces["checked"].variables, "after pickling the state")


def _strict_arrays(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    ours, strict = _run(solver, given), _run(solver, given, backend="array_api_strict")
    for name, x in ours.items():
        scale = max(1.0, float(np.max(np.abs(x), initial=0.0)))
        error = float(np.max(np.abs(x - strict[name]), initial=0.0)) / scale
        # The same float64 operations by another library: rounding, amplified by T steps.
        assert error < 1e-9, f"{name!r} differs by {error:.3g} between NumPy and array-api-strict"


def _cost_as_declared(solver: Solver, case: Case) -> None:
    card = getattr(solver, "card", None)
    if card is None:
        return  # nothing is declared
    given = example_of(solver, case)
    track = tracked(solver, given)
    for tokens in ArraySource({"keys": given.keys, "values": given.values}).blocks(case.steps):
        track.advance(tokens)
    held = 0
    for x in track.state:
        array = x.array if isinstance(x, Rows) else x
        held += int(np.prod(array.shape[1:]))
    dv = given.values.shape[-1]
    declared = retained(solver, case.key, dv, case.steps)
    assert held == declared, f"card.retained = {card.retained!r} is {declared}, but it holds {held}"
    for formula in (card.write, card.query):
        assert _cost(solver, formula, case.key, dv, case.steps) >= 0


def _cost(solver: Solver, formula: str, dk: int, dv: int, t: int) -> float:
    numbers = {
        name: getattr(solver, name)
        for name in signatures.options(type(solver))
        if isinstance(getattr(solver, name), (int, float))
    }
    return evaluate(formula, **{**numbers, "dk": dk, "dv": dv, "t": t})


def retained(solver: Solver, dk: int, dv: int, t: int) -> float:
    """Return how many numbers a solver's card says it keeps per trial after t pairs."""
    return _cost(solver, solver.card.retained, dk, dv, t)  # type: ignore[attr-defined]


def _token_is_pure(solver: Solver, case: Case) -> None:
    if not isinstance(solver, LinearRule):
        return  # only the linear family has a fast form, which takes tokens a block at a time
    given = example_of(solver, case)
    coefficients = {n: x if x.ndim == 3 else x[..., None] for n, x in given.coefficients.items()}
    taken = signatures.coefficients(type(solver))
    writes = {n: x for n, x in coefficients.items() if "token" in taken[n].methods}
    block = solver.token(given.keys, given.values, **writes)
    for i in range(case.steps):
        row = {n: x[i] for n, x in writes.items()}
        one = solver.token(given.keys[i], given.values[i], **row)
        for name, whole, part in zip(block._fields, block, one, strict=True):
            if hasattr(part, "shape"):
                same({name: np.asarray(whole[i])}, {name: np.asarray(part)}, "a block of tokens")


def _fast_equals_loop(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    for masked in (None, case.mask):
        fast = simulate(solver, given.keys, given.values, mask=masked, **given.coefficients)
        if fast.attrs["kernel"] == "loop":
            return  # it has no fast form here
        coefficients = given.coefficients
        loop = simulate(
            solver, given.keys, given.values, mask=masked, kernel="loop", **coefficients
        )
        _close(fast, loop)


def _close(fast: Any, loop: Any) -> None:
    """Raise AssertionError unless a result equals the step loop's up to rounding."""
    for name in loop.data_vars:
        want, got = loop[name].values, fast[name].values
        if loop[name].dims[0] == "row":  # those past a trial's own are void
            held = np.arange(len(want))[:, None] < loop["rows"].values[-1]
            want, got = want[held], got[held]
        scale = max(1.0, float(np.nanmax(np.abs(want), initial=0.0)))
        error = np.abs(want - got)
        worst = float(np.nanmax(error, initial=0.0)) / scale
        # Another order of the same operations: rounding, amplified by T steps.
        assert worst < 1e-11, f"{name!r} differs by {worst:.3g} from the step loop"


def _chunks_equal_loop(solver: Solver, case: Case) -> None:
    if not is_plain(solver) or isinstance(solver, MomentumRule):
        return  # it has no chunkwise form
    given = example_of(solver, case)
    for masked in (None, case.mask):
        stream: dict[str, Any] = {"mask": masked, **given.coefficients}
        run = partial(simulate, solver, given.keys, given.values, **stream)
        # On a device of its own, where an array that slips to the host is an error.
        _close(run(kernel="chunk", backend="array_api_strict"), run(kernel="loop"))


def _finite_where_stable(solver: Solver, case: Case) -> None:
    given = example_of(solver, case)
    ds = simulate(solver, given.keys, given.values, **given.coefficients)
    assert (ds.diverged_at.values == -1).all(), f"diverges at steps {ds.diverged_at.values}"


def _diverges_where_said(solver: Solver, case: Case) -> None:
    card = getattr(solver, "card", None)
    if card is None or not card.diverges:
        return
    steps = case.steps
    keys = np.tile(np.eye(case.key, dtype=np.float32)[0], (steps, 1))
    given = example_of(solver, case)
    coefficients: dict[str, Any] = {n: x[:, 0] for n, x in given.coefficients.items()}
    coefficients |= card.diverges
    ones = np.ones((steps, given.values.shape[-1]), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StabilityWarning)  # that is what is being shown
        ds = simulate(solver, keys, ones, **coefficients)
    assert int(ds.diverged_at) >= 0, (
        f"card says that it diverges at {dict(card.diverges)}; it does not"
    )


CHECKS: dict[str, Contract] = {
    "dims_match": Contract(_dims_match),
    "inputs_untouched": Contract(_inputs_untouched),
    "dtype_kept": Contract(_dtype_kept),
    "trial_alone": Contract(_trial_alone),
    "split_anywhere": Contract(_split_anywhere),
    "mask_keeps_state": Contract(_mask_keeps_state, masking(Case(), 1, 0.6)),
    "empty_reads_zeros": Contract(_empty_reads_zeros),
    "reads_at_once": Contract(_reads_at_once),
    "state_pickles": Contract(_state_pickles),
    "strict_arrays": Contract(_strict_arrays),
    "cost_as_declared": Contract(_cost_as_declared),
    "token_is_pure": Contract(_token_is_pure),
    "fast_equals_loop": Contract(_fast_equals_loop, masking(Case(), 2, 0.8)),
    # More than one chunk, and not a whole number of them.
    "chunks_equal_loop": Contract(_chunks_equal_loop, masking(Case(steps=70), 3, 0.8)),
    "finite_where_stable": Contract(_finite_where_stable, Case(steps=200)),
    "diverges_where_said": Contract(_diverges_where_said, Case(steps=600), shrinks=()),
}

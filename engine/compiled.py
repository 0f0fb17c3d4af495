"""Blocks of a linear rule, and of recursive least squares, made ready for the compiled kernels.

Nothing is copied that need not be: kernels read tokens as the stream has them, step first, and keep
keys, strengths and decays apart. What a kernel sees in passing (whether all was finite, how much of
its error a write took back) it reports, so that nobody reads the block again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine import steps as step_loop
from engine.api import Array
from engine.backend import Backend
from engine.lanes import VECTOR, team
from engine.linear import LinearRule, Token, WeightedRule
from engine.recurrences import covariance, linear, tiles
from engine.steps import Advanced, Block


def advance(rule: Any, state: Any, block: Block, backend: Backend) -> Advanced:
    """Run a block of a plain linear rule, or of a covariance rule, on NumPy arrays."""
    if isinstance(rule, LinearRule):
        k, v = _shown(block.keys), _shown(block.values)
        writes = {name: _shown(x) for name, x in block.writes.items()}
        try:
            token = rule.token(k, v, **writes)
        except Exception:  # the step loop finds the step at which the rule fails, and names it
            return step_loop.advance(rule, state, block, backend)
        with team(k.size * v.shape[-1]) as workers:
            return _linear(rule, state, block, token, token.address is k, workers)
    if not np.array_equal(state.P, state.P.swapaxes(-1, -2)):
        return step_loop.advance(rule, state, block, backend)  # P k is not k^T P then
    keys, values = block.keys, block.values
    with team(keys.size * (keys.shape[-1] + values.shape[-1])) as workers:
        return _covariance(rule, state, block, workers)


def _linear(
    rule: LinearRule, state: Any, block: Block, token: Token, reads_key: bool, workers: int
) -> Advanced:
    (steps, trials, dk), dtype = block.keys.shape, block.keys.dtype
    dv, weighted, moves = (
        block.values.shape[-1],
        isinstance(rule, WeightedRule),
        hasattr(state, "U"),
    )
    by_channel = token.decay is not None and token.decay.shape[-1] > 1
    # One read of the undecayed S with the key serves as prediction and as what is erased.
    apart = token.address is not None and not (
        reads_key and not (token.forgets_first and by_channel)
    )
    erases = token.address is not None and token.erase is not None
    corrects = token.address is not None and token.erase is None
    workers = workers if steps else 0
    lanes = VECTOR // dtype.itemsize
    count, wide = tiles(trials, dv, dtype, workers)
    width = wide * lanes

    def each(x: Array | None, size: int) -> np.ndarray:
        """Return a field of the token, flat, a row per step and trial; None is 1."""
        x = np.ones(1, dtype) if x is None else np.asarray(x, dtype)
        return _flat(np.broadcast_to(x, (steps, trials, size)))

    S, U = _tiled(state.S, count, width), _tiled(state.U, count, width) if moves else None
    z = np.array(state.z, order="C") if weighted else None
    prediction, output = (np.empty((steps, trials, dv), dtype) for _ in range(2))
    weights = np.empty((steps, trials, 2), dtype) if weighted else None
    kept = (steps if block.record else 0, trials, dk)
    states, velocities = (np.empty((*kept, dv if x is not None else 0), dtype) for x in (S, U))
    masses = np.empty(kept if weighted else 0, dtype)
    finite, share, when = np.ones(trials * count, bool), np.zeros(trials), np.zeros(trials, int)
    linear(
        _line(S), _line(U), _line(z), _flat(block.keys), each(token.value, dv),
        _flat(block.queries), each(token.write, dk), each(token.address, dk) if apart else None,
        each(token.erase, dk) if erases else None, each(None if by_channel else token.decay, 1),
        each(token.decay, dk) if by_channel else None, each(token.strength, 1),
        each(token.momentum, 1) if moves else None, each(token.gain, 1) if moves else None,
        _writes(block), _line(prediction), _line(output), _line(weights), _line(states),
        _line(velocities), _line(masses), finite, share, when,
        (steps, trials, dk, dv, count, width, lanes), (0,) * wide, corrects, token.forgets_first,
        block.mask is not None, block.record, corrects and not moves, min(workers, trials * count),
    )  # fmt: skip
    ended, every = {"S": _whole(S, dv)}, {"S": states}
    if U is not None:
        ended["U"], every["U"] = _whole(U, dv), velocities
    before, after = prediction, output
    if isinstance(rule, WeightedRule) and z is not None and weights is not None:
        ended["z"], every["z"] = z, masses
        before = rule.combine(prediction, weights[..., :1])
        after = rule.combine(output, weights[..., 1:])
    # A weighted mean of finite sums may overflow yet.
    known = before is prediction and after is output
    most = float(share.max())
    return Advanced(
        type(state)(**ended), before, after, every if block.record else {},
        known and _finite(finite, ended), (most, block.start + int(when[share == most].min())),
    )  # fmt: skip


def _covariance(rule: Any, state: Any, block: Block, workers: int) -> Advanced:
    (steps, trials, dk), dtype = block.keys.shape, block.keys.dtype
    dv, eps = block.values.shape[-1], np.finfo(dtype).eps
    bound = (float(eps) ** -0.25 if rule.limit is None else rule.limit) / rule.ridge
    gamma = _flat(np.broadcast_to(block.writes["gamma"], (steps, trials, 1)))
    lanes = VECTOR // dtype.itemsize
    S, P = (_tiled(x, -(-x.shape[-1] // lanes), lanes) for x in (state.S, state.P))
    prediction, output = (np.empty((steps, trials, dv), dtype) for _ in range(2))
    kept = (steps if block.record else 0, trials, dk)
    states, covariances = np.empty((*kept, dv), dtype), np.empty((*kept, dk), dtype)
    finite = np.ones(trials, bool)
    covariance(
        _line(S), _line(P), _flat(block.keys), _flat(block.values), _flat(block.queries), gamma,
        _writes(block), _line(prediction), _line(output), _line(states), _line(covariances),
        finite, (steps, trials, dk, dv, lanes), block.mask is not None, block.record, eps,
        dtype.type(bound), dtype.type(1.0 / rule.ridge),
        min(workers, trials) if steps else 0,
    )  # fmt: skip
    ended = {"S": _whole(S, dv), "P": _whole(P, dk)}
    every = {"S": states, "P": covariances} if block.record else {}
    known = _finite(finite, ended)
    return Advanced(type(state)(**ended), prediction, output, every, known)


def _finite(reads: np.ndarray, ended: Mapping[str, np.ndarray]) -> bool:
    """Return whether a block was finite throughout.

    What is not finite in a state stays so from step to step, so the last state speaks for all.
    """
    return bool(reads.all()) and all(bool(np.isfinite(x).all()) for x in ended.values())


def _tiled(x: np.ndarray, count: int, width: int) -> np.ndarray:
    """Return matrices (trial, row, column) as (trial, tile, row, column), padded with zeros."""
    trials, rows, columns = x.shape
    size = trials * count * rows * width
    room = np.zeros(size + VECTOR // x.itemsize, x.dtype)
    start = -room.ctypes.data % VECTOR // x.itemsize  # a vector across two cache lines costs twice
    tiled = room[start : start + size].reshape(trials, count, rows, width)
    for i in range(count):
        part = x[..., i * width : (i + 1) * width]
        tiled[:, i, :, : part.shape[-1]] = part
    return tiled


def _whole(tiled: np.ndarray, columns: int) -> np.ndarray:
    """Return tiles as the matrices that they were cut from."""
    trials, count, rows, width = tiled.shape
    return tiled.swapaxes(1, 2).reshape(trials, rows, count * width)[..., :columns].copy()


def _shown(x: np.ndarray) -> np.ndarray:
    """Return a view that a rule cannot write through."""
    view = x.view()
    view.flags.writeable = False
    return view


def _flat(x: np.ndarray) -> np.ndarray:
    """Return a flat, contiguous, read-only array: numba compiles anew for every other kind."""
    return _shown(np.require(x, requirements=("C", "A")).reshape(-1))


def _line(x: np.ndarray | None) -> Any:
    """Return a flat view of an array that the kernel writes into."""
    return None if x is None else x.reshape(-1)


def _writes(block: Block) -> np.ndarray:
    """Return which steps write, flat; something flat if all do."""
    return _flat(np.ones(1, bool) if block.mask is None else block.mask)

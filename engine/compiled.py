"""The linear family's recurrence, and recursive least squares, compiled. Only this imports numba.

Given its tokens, a column of a linear rule's S evolves independently of every other column and of
every other trial. The work is cut into units of one trial and a tile of columns, which run on any
thread in any order; inside a unit the order of operations is fixed (no fastmath). Results therefore
depend on neither threads, nor batch, nor block size.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

# OpenMP threads that wait would otherwise spin, and take the core that another process needs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
from numba import njit, prange  # noqa: E402

from engine import steps as step_loop  # noqa: E402
from engine.api import Array  # noqa: E402
from engine.backend import Backend  # noqa: E402
from engine.linear import LinearRule, Token, WeightedRule  # noqa: E402
from engine.steps import Advanced, Block  # noqa: E402

NONE, SCALAR, CHANNEL = 0, 1, 2


class Flags(NamedTuple):
    """What a rule's tokens have: the kernel's branches, none of them inside a loop over columns."""

    decay: int
    forgets_first: bool
    reads_key: bool
    address: bool
    erase: bool
    momentum: bool
    mask: bool
    record: bool


def advance(rule: Any, state: Any, block: Block, backend: Backend) -> Advanced:
    """Run a block of a plain linear rule, or of a covariance rule, on NumPy arrays."""
    if isinstance(rule, LinearRule):
        k, v = _by_trial(block.keys), _by_trial(block.values)
        shown = _read_only(k), _read_only(v)
        try:
            token = rule.token(*shown, **{n: _by_trial(x) for n, x in block.writes.items()})
        except Exception:  # the step loop finds the step at which the rule fails, and names it
            return step_loop.advance(rule, state, block, backend)
        # What the rule hands back as it was shown is the array itself: nothing to copy.
        same = {id(shown[0]): k, id(shown[1]): v}
        token = token._replace(
            write=same.get(id(token.write), token.write),
            value=same.get(id(token.value), token.value),
            address=same.get(id(token.address), token.address),
        )
        return _advance_linear(rule, state, block, k, token)
    return _advance_covariance(rule, state, block)


def _advance_linear(
    rule: LinearRule, state: Any, block: Block, k: np.ndarray, token: Token
) -> Advanced:
    q = _by_trial(block.queries)
    weighted = isinstance(rule, WeightedRule)
    if weighted:  # z is one more column of S, of values that are all 1
        token = token._replace(value=_with_column(token.value, 1.0))
    trials, steps, dv = token.value.shape
    dtype, width = k.dtype, 0 if token.decay is None else token.decay.shape[-1]
    flags = Flags(
        decay=NONE if width == 0 else SCALAR if width == 1 else CHANNEL,
        forgets_first=token.forgets_first,
        reads_key=token.address is k and not (token.forgets_first and width > 1),
        address=token.address is not None,
        erase=token.erase is not None,
        momentum=token.momentum is not None,
        mask=block.mask is not None,
        record=block.record,
    )
    S = _with_column(state.S, state.z[..., None]) if weighted else np.array(state.S, order="C")
    U = np.array(state.U, order="C") if flags.momentum else np.zeros((1, 1, 1), dtype)
    prediction, output = (np.empty((trials, steps, dv), dtype) for _ in range(2))
    states = np.empty((steps, *S.shape) if flags.record else (1, 1, 1, 1), dtype)
    velocities = np.empty(states.shape if flags.momentum else (1, 1, 1, 1), dtype)
    absent, one = np.zeros((1, 1, 1), dtype), np.ones((1, 1, 1), dtype)

    def full(x: Array | None, instead: np.ndarray) -> np.ndarray:
        x = instead if x is None else np.asarray(x, dtype)
        return _own(np.broadcast_to(x, (trials, steps, x.shape[-1])))

    _linear(
        S, U, k, full(token.value, absent), q, full(token.write, k), full(token.address, absent),
        full(token.erase, absent), full(token.decay, absent), full(token.strength, one),
        full(token.momentum, absent), full(token.gain, one),
        np.ones((1, 1), bool) if block.mask is None else _own(block.mask.T),
        flags, prediction, output, states, velocities,
    )  # fmt: skip
    ended, every = {"S": S}, {"S": states}
    if flags.momentum:
        ended["U"], every["U"] = U, velocities
    before, after = prediction.swapaxes(0, 1), output.swapaxes(0, 1)
    if isinstance(rule, WeightedRule):
        before, after = (rule.combine(x[..., :-1], x[..., -1:]) for x in (before, after))
        ended = {"S": S[..., :-1].copy(), "z": S[..., -1].copy()}
        every = {"S": states[..., :-1], "z": states[..., -1]}
    return Advanced(type(state)(**ended), before, after, every if block.record else {})


def _with_column(x: np.ndarray, column: Any) -> np.ndarray:
    """Return x with one more column on the last axis."""
    wide = np.empty((*x.shape[:-1], x.shape[-1] + 1), x.dtype)
    wide[..., :-1], wide[..., -1:] = x, column
    return wide


def _by_trial(x: np.ndarray) -> np.ndarray:
    """Return (trial, step, ...): a trial's tokens next to each other in memory."""
    return _own(x.swapaxes(0, 1))


def _read_only(x: np.ndarray) -> np.ndarray:
    """Return a view that a rule cannot write through."""
    view = x.view()
    view.flags.writeable = False
    return view


def _own(x: np.ndarray) -> np.ndarray:
    """Return a contiguous, writable array: numba compiles anew for every other kind."""
    return np.require(x, requirements=("C", "W"))


@njit(parallel=True, cache=True, nogil=True, fastmath=False)
def _linear(
    S, U, keys, values, queries, write, address, erase, decay, strength, momentum, gain, mask,
    flags, prediction, output, states, velocities,
):  # fmt: skip
    trials, steps, dk = keys.shape
    dv = values.shape[2]
    # One tile per trial reads every token once, while a tile of S stays in cache; a lone trial is
    # cut so that two threads have work.
    tiles = (dv + 159) // 160
    if trials == 1 and dv >= 32:
        tiles = max(tiles, 2)
    tile = (dv + tiles - 1) // tiles
    for unit in prange(trials * tiles):
        b, low = unit // tiles, (unit % tiles) * tile
        width = min(low + tile, dv) - low
        s = S[b, :, low : low + width].copy()
        u = U[b % U.shape[0], :, :].copy()  # numba wants one type, momentum or not
        if flags.momentum:
            u = U[b, :, low : low + width].copy()
        read, old, new = (
            np.empty(width, S.dtype),
            np.empty(width, S.dtype),
            np.empty(width, S.dtype),
        )
        for t in range(steps):
            a = decay[b, t, 0] if flags.decay == SCALAR else S.dtype.type(1.0)
            for j in range(width):
                read[j] = 0.0
                old[j] = 0.0
            if flags.address and not flags.reads_key:
                for i in range(dk):
                    k, r = keys[b, t, i], address[b, t, i]
                    if flags.forgets_first and flags.decay == CHANNEL:
                        r = r * decay[b, t, i]
                    for j in range(width):
                        read[j] += k * s[i, j]
                        old[j] += r * s[i, j]
            else:
                for i in range(dk):
                    k = keys[b, t, i]
                    for j in range(width):
                        read[j] += k * s[i, j]
                if flags.reads_key:
                    for j in range(width):
                        old[j] = read[j]
            for j in range(width):
                prediction[b, t, low + j] = read[j]
                read[j] = 0.0
            if flags.mask and not mask[b, t]:
                for i in range(dk):
                    q = queries[b, t, i]
                    for j in range(width):
                        read[j] += q * s[i, j]
            else:
                g, m, c = strength[b, t, 0], momentum[b, t, 0], gain[b, t, 0]
                if flags.forgets_first and flags.decay == SCALAR:
                    for j in range(width):
                        old[j] = a * old[j]
                for j in range(width):
                    new[j] = values[b, t, low + j]
                    if flags.address and not flags.erase:
                        new[j] = new[j] - old[j]
                    new[j] = g * new[j]
                for i in range(dk):
                    w, q = write[b, t, i], queries[b, t, i]
                    d = decay[b, t, i] if flags.decay == CHANNEL else a
                    if flags.momentum:
                        for j in range(width):
                            x = w * new[j]
                            if flags.erase:
                                x = x - erase[b, t, i] * old[j]
                            u[i, j] = m * u[i, j] + x
                            s[i, j] = d * s[i, j] + c * u[i, j]
                            read[j] += q * s[i, j]
                    elif flags.erase:
                        e = erase[b, t, i]
                        for j in range(width):
                            y = d * s[i, j] + (w * new[j] - e * old[j])
                            s[i, j] = y
                            read[j] += q * y
                    else:
                        for j in range(width):
                            y = d * s[i, j] + w * new[j]
                            s[i, j] = y
                            read[j] += q * y
            for j in range(width):
                output[b, t, low + j] = read[j]
            if flags.record:
                for i in range(dk):
                    for j in range(width):
                        states[t, b, i, low + j] = s[i, j]
                if flags.momentum:
                    for i in range(dk):
                        for j in range(width):
                            velocities[t, b, i, low + j] = u[i, j]
        S[b, :, low : low + width] = s
        if flags.momentum:
            U[b, :, low : low + width] = u


def _advance_covariance(rule: Any, state: Any, block: Block) -> Advanced:
    k, v, q = (_by_trial(x) for x in (block.keys, block.values, block.queries))
    trials, steps, dv = v.shape
    dtype, eps = k.dtype, np.finfo(k.dtype).eps
    bound = (float(eps) ** -0.25 if rule.limit is None else rule.limit) / rule.ridge
    gamma = np.broadcast_to(_by_trial(block.writes["gamma"]), (trials, steps, 1))
    S, P = np.array(state.S, order="C"), np.array(state.P, order="C")
    prediction, output = (np.empty((trials, steps, dv), dtype) for _ in range(2))
    room = (steps,) if block.record else (0,)
    states, covariances = np.empty((*room, *S.shape), dtype), np.empty((*room, *P.shape), dtype)
    masked = block.mask is not None
    mask = np.ones((1, 1), bool) if block.mask is None else _own(block.mask.T)
    _covariance(
        S, P, k, v, q, _own(gamma), mask, masked, block.record, eps,
        dtype.type(bound), dtype.type(1.0 / rule.ridge), prediction, output, states, covariances,
    )  # fmt: skip
    every = {"S": states, "P": covariances} if block.record else {}
    before, after = prediction.swapaxes(0, 1), output.swapaxes(0, 1)
    return Advanced(type(state)(S=S, P=P), before, after, every)


@njit(parallel=True, cache=True, nogil=True, fastmath=False)
def _covariance(
    S, P, keys, values, queries, gamma, mask, masked, record, eps, bound, prior,
    prediction, output, states, covariances,
):  # fmt: skip
    """Recursive least squares as plugins/solvers/rls.py states it, one trial per unit."""
    trials, steps, dk = keys.shape
    dv = values.shape[2]
    for b in prange(trials):
        s, p, Pk = S[b], P[b], np.empty(dk, S.dtype)
        for t in range(steps):
            k, q = keys[b, t], queries[b, t]
            before, after = prediction[b, t], output[b, t]
            before[:] = 0.0
            after[:] = 0.0
            for i in range(dk):
                for j in range(dv):
                    before[j] += k[i] * s[i, j]
            if not masked or mask[b, t]:
                g, kPk, kk, top = gamma[b, t, 0], S.dtype.type(0), S.dtype.type(0), p[0, 0]
                for i in range(dk):
                    Pk[i] = 0.0
                    for j in range(dk):
                        Pk[i] += p[i, j] * k[j]
                        if p[i, j] > top:
                            top = p[i, j]
                for i in range(dk):
                    kPk += k[i] * Pk[i]
                    kk += k[i] * k[i]
                den = g + kPk
                noise = 2 * eps * top
                lift = noise if g * kPk < 4 * noise * den * kk else S.dtype.type(0)
                down, up, high = 1 / den, 1 / g, False
                for i in range(dk):
                    for j in range(dk):
                        x = p[i, j] - down * (Pk[i] * Pk[j])
                        if i == j:
                            x += lift
                        p[i, j] = up * x
                        if p[i, j] > bound:
                            high = True
                if high:
                    for i in range(dk):
                        diagonal = p[i, i]
                        if diagonal > bound:
                            column = p[:, i] / np.sqrt(prior + diagonal)
                            for m in range(dk):
                                for j in range(dk):
                                    p[m, j] -= column[m] * column[j]
                for i in range(dk):
                    w = Pk[i] / den
                    for j in range(dv):
                        s[i, j] += w * (values[b, t, j] - before[j])
            for i in range(dk):
                for j in range(dv):
                    after[j] += q[i] * s[i, j]
            if record:
                states[t, b] = s
                covariances[t, b] = p

"""The linear family by chunks: a few matrix products per chunk instead of a loop over steps.

Within a chunk that starts at S_0, with P(t, s) the product of the decays of steps s + 1 to t,

    S_t = P(t, 0) S_0 + sum_{s <= t} P(t, s) w_s x_s^T,   x_s = v_s - S_{s-1}^T r_s.

The x obey a unit-triangular system, (I + B) X = V - R S_0, with B_ts = r_t . P(t-1, s) w_s for
s < t and R_t = P(t-1, 0) r_t (the WY form: Bischof and Van Loan 1987; Yang et al. 2024,
arXiv:2406.06484). Solved for V and for R it gives X = Y - Z S_0, and the chunk becomes one affine
map of S_0: all of this is formed for all chunks at once, and only the maps are applied in turn. A
rule that erases along e != w has two sources per step, w v^T and -e u^T with u = S^T r.

Array-API calls only: the form for devices, where a launch is dear and matrix products are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from engine import ops, steps
from engine.api import Array
from engine.backend import Backend
from engine.linear import LinearRule, LinearState, Token, WeightedRule, WeightedState
from engine.steps import Advanced, Block

CHUNK = 64
# Numbers in one array of chunks; a few such arrays live at a time.
WORK = 2**20


class Rows(NamedTuple):
    """Tokens by chunk, each (chunk, trial, row, ...); skipped rows change nothing.

    `sources` holds w, and e where a rule has one; `address` is r on the state before any decay.
    """

    keys: Array
    queries: Array
    values: Array
    sources: tuple[Array, ...]
    address: Array | None
    decay: Array | None


class Known(NamedTuple):
    """What follows from the tokens alone, for all chunks.

    The reads are ``first S_0 + later X``, X = fixed - moved S_0, and the state at the end of a
    chunk is ``scale S_0 - (added moved) S_0 + added fixed``; `moved` is None if nothing is erased.
    """

    first: tuple[Array, Array]
    later: tuple[Array, Array]
    fixed: Array
    moved: Array | None
    scale: Array | None
    added: Array


def advance(
    rule: LinearRule, state: Any, block: Block, backend: Backend, chunk: int | None = None
) -> Advanced:
    """Run a block of a plain linear rule without momentum by chunks.

    The numbers are the step loop's up to rounding. A block that the step loop would refuse, or in
    which something overflows, is handed to it: a matrix product spreads inf and NaN to earlier
    steps, so that only stepping tells where they began.

    Parameters
    ----------
    rule, state, block, backend
        As for the step loop.
    chunk : int, optional
        Steps per chunk, a power of two; default `CHUNK`.
    """
    try:
        token = rule.token(block.keys, block.values, **block.writes)
    except (Exception, SystemExit):  # the step loop names the step
        return steps.advance(rule, state, block, backend)
    given = [x for x in token if x is not None and not isinstance(x, bool)]
    if not block.keys.shape[0] or any(getattr(x, "dtype", 0) != block.keys.dtype for x in given):
        return steps.advance(rule, state, block, backend)
    xp, S = backend.xp, state.S
    if isinstance(rule, WeightedRule):  # z is one more column of S, of values that are all 1
        one = xp.ones_like(token.value[..., :1])
        token = token._replace(value=xp.concat([token.value, one], axis=-1))
        S = xp.concat([S, state.z[..., None]], axis=-1)
    done = _blocked(S, token, block, chunk, backend)
    if _broke(S, block, done):
        return steps.advance(rule, state, block, backend)
    if not isinstance(rule, WeightedRule):
        return done
    prediction, output = (
        rule.combine(x[..., :-1], x[..., -1:]) for x in (done.prediction, done.output)
    )
    every = [(x[..., :-1], x[..., -1]) for x in (done.state.S, *done.states.values())]
    states = dict(zip(("S", "z"), every[1], strict=True)) if block.record else {}
    return Advanced(WeightedState(*every[0]), prediction, output, states)


def _blocked(S: Array, token: Token, block: Block, chunk: int | None, backend: Backend) -> Advanced:
    """Run a block, as many chunks at a time as there is room for."""
    n, trials, key = block.keys.shape
    size = min(chunk or CHUNK, 1 << (n - 1).bit_length())  # a chunk is halved down to one row
    span = size * max(1, WORK // (trials * size * max(size, key)))
    parts = []
    for start in range(0, n, span):
        parts.append(_span(S, token, block, slice(start, min(start + span, n)), size, backend))
        S = parts[-1].state.S
    return _joined(backend.xp, parts)


def _joined(xp: Any, parts: Sequence[Advanced]) -> Advanced:
    """Return consecutive parts of a block as one."""
    if len(parts) == 1:
        return parts[0]
    prediction, output = (xp.concat([part[i] for part in parts], axis=0) for i in (1, 2))
    states = {n: xp.concat([part.states[n] for part in parts], axis=0) for n in parts[0].states}
    return Advanced(parts[-1].state, prediction, output, states)


def _broke(S: Array, block: Block, done: Advanced) -> bool:
    """Return whether a column of S that was finite before the block is not, or is not read so."""
    xp = array_namespace(S)
    bad = ~(xp.isfinite(done.prediction) & xp.isfinite(done.output))
    if block.mask is not None:  # what stands at a skipped step reaches nothing but its own reads
        bad = bad & xp.asarray(block.mask[..., None], device=device(S))
    bad = xp.any(bad, axis=0) | xp.any(~xp.isfinite(done.state.S), axis=-2)
    for x in done.states.values():
        bad = bad | xp.any(~xp.isfinite(x), axis=(0, 2))
    return bool(xp.any(bad & xp.all(xp.isfinite(S), axis=-2)))


def _span(
    S: Array, token: Token, block: Block, cut: slice, size: int, backend: Backend
) -> Advanced:
    """Run some steps of a block: whole chunks, all at once."""
    xp, trials, n = backend.xp, S.shape[0], cut.stop - cut.start
    live = np.zeros((-(-n // size) * size, trials), dtype=bool)
    live[:n] = True if block.mask is None else block.mask[cut]
    rows = _rows(token, block, cut, size, live, backend)
    known = _known(rows, backend)
    starts, end = _starts(xp, S, known, _chosen(live, size, backend))
    X = known.fixed if known.moved is None else known.fixed - known.moved @ starts
    prediction, output = (
        _by_step(xp, first @ starts + later @ X)[:n, ...]
        for first, later in zip(known.first, known.later, strict=True)
    )
    if not block.record:
        return Advanced(LinearState(end), prediction, output, {})
    states = _held(xp, S, _states(xp, rows, starts, X)[:n, ...], live[:n], backend)
    return Advanced(LinearState(states[-1, ...]), prediction, output, {"S": states})


def _rows(
    token: Token, block: Block, cut: slice, size: int, live: np.ndarray, backend: Backend
) -> Rows:
    """Return a cut of a block's tokens by chunk; rows that `live` denies are made neutral."""
    xp, n, trials = backend.xp, cut.stop - cut.start, live.shape[1]
    pad, where = live.shape[0] - n, backend.device
    on = None if live[:n].all() else xp.asarray(live[:n, :, None], device=where)

    def chunked(x: Array, neutral: float | None = 0.0) -> Array:
        """Return (chunk, trial, row, ...); a `neutral` of None keeps what skipped rows hold."""
        x = xp.broadcast_to(x[cut, ...] if x.shape[0] > 1 else x, (n, trials, x.shape[-1]))
        instead = xp.full((1, 1, 1), neutral or 0.0, dtype=x.dtype, device=where)
        if on is not None and neutral is not None:
            x = xp.where(on, x, instead)
        if pad:
            x = xp.concat([x, xp.broadcast_to(instead, (pad, trials, x.shape[-1]))], axis=0)
        return xp.permute_dims(xp.reshape(x, (-1, size, trials, x.shape[-1])), (0, 2, 1, 3))

    write = token.write if token.strength is None else token.strength * token.write
    address = token.address
    if address is not None and token.forgets_first and token.decay is not None:
        address = token.decay * address
    return Rows(
        chunked(block.keys, None),
        chunked(block.queries, None),
        chunked(token.value),
        tuple(chunked(x) for x in (write, token.erase) if x is not None),
        None if address is None else chunked(address),
        None if token.decay is None else chunked(token.decay, 1.0),
    )


def _by_step(xp: Any, x: Array) -> Array:
    """Return (step, trial, ...) of (chunk, trial, row, ...)."""
    x = xp.permute_dims(x, (0, 2, 1, 3))
    return xp.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _chosen(live: np.ndarray, size: int, backend: Backend) -> Array | None:
    """Return which chunks write to which trials, (chunk, trial, 1, 1); None: all to all."""
    writes: np.ndarray = np.any(live.reshape(-1, size, live.shape[1]), axis=1)
    if writes.all():
        return None
    return backend.xp.asarray(writes[:, :, None, None], device=backend.device)


def _products(xp: Any, decay: Array | None, like: Array) -> Array:
    """Return P(t, s) of one decay per step, (chunk, trial, t, s), 0 above the diagonal.

    They are running products down the rows, never quotients of P(t, 0): that may be 0.
    """
    size = like.shape[2]
    place = xp.arange(size, device=device(like))
    t, s = place[:, None], place[None, :]
    one, zero = (xp.full((1,), x, dtype=like.dtype, device=device(like)) for x in (1.0, 0.0))
    if decay is None:
        return xp.where(t >= s, one, zero)[None, None, ...]
    factors = xp.where(t > s, decay, one)
    return xp.where(t >= s, xp.cumulative_prod(factors, axis=2), zero)


def _halves(xp: Any, decay: Array) -> tuple[list[tuple[Array, Array]], Array, Array]:
    """Return the products of a decay per channel, (chunk, trial, row, key), by halves of a chunk.

    At every level, from single rows on: P(b, s) for the rows s of each first half and P(t, b) for
    the rows t of each second half, b the last row of the first. Then P(t, 0) and P(last, s).
    """
    since, until = decay[..., None, :], xp.ones_like(decay)[..., None, :]
    levels = []
    while since.shape[2] > 1:
        count, trials, blocks, half, key = since.shape
        split = (count, trials, blocks // 2, 2, half, key)
        (a, b), (c, d) = (
            (y[:, :, :, 0, ...], y[:, :, :, 1, ...])
            for y in (xp.reshape(x, split) for x in (since, until))
        )
        levels.append((c, b))
        since = xp.concat([a, b * a[..., -1:, :]], axis=-2)
        until = xp.concat([c * b[..., -1:, :], d], axis=-2)
    return levels, since[:, :, 0, ...], until[:, :, 0, ...]


def _down(xp: Any, x: Array, by: int, first: float = 0.0) -> Array:
    """Return rows moved down by one (by = 1) or up (by = -1); `first` fills the gap."""
    gap = xp.full_like(x[:, :, :1, :], first)
    return xp.concat([gap, x[:, :, :-1, :]] if by > 0 else [x[:, :, 1:, :], gap], axis=2)


def _known(rows: Rows, backend: Backend) -> Known:
    """Form everything that does not depend on the state, for all chunks."""
    xp = backend.xp
    decay = rows.decay
    if rows.decay is None or rows.decay.shape[-1] == 1:
        decays = _products(xp, rows.decay, rows.keys)
        last = decays[..., -1, :, None]
        decay = None if decay is None else xp.cumulative_prod(decay, axis=2)

        def meet(readers: list[Array], source: Array) -> list[Array]:
            across = xp.matrix_transpose(source)
            return [(x @ across) * decays for x in readers]

    else:
        levels, decay, last = _halves(xp, rows.decay)

        def meet(readers: list[Array], source: Array) -> list[Array]:
            return _meet(xp, readers, source, levels)

    # What reads S_{t-1} meets the decays up to t - 1: those of the row above its own.
    before = [x for x in (rows.keys, rows.address) if x is not None]
    readers = [_down(xp, x, -1) for x in before] + [rows.queries]
    met = [xp.concat(list(m), axis=-1) for m in zip(
        *(meet(readers, source) for source in rows.sources), strict=True
    )]  # fmt: skip
    met = [_down(xp, m, 1) for m in met[:-1]] + met[-1:]
    reach = [x if decay is None else x * _down(xp, decay, 1, 1.0) for x in before]
    asks = rows.queries if decay is None else rows.queries * decay
    fixed, moved = rows.values, None
    if rows.address is not None:
        own, dv = met[1], rows.values.shape[-1]
        size = own.shape[2]
        if len(rows.sources) == 1:
            solved = _solve(own, xp.concat([rows.values, reach[1]], axis=-1), backend)
            fixed, moved = solved[..., :dv], solved[..., dv:]
        else:
            right = xp.concat([own[..., :size] @ rows.values, reach[1]], axis=-1)
            solved = -_solve(own[..., size:], right, backend)
            fixed = xp.concat([rows.values, solved[..., :dv]], axis=2)
            moved = xp.concat([xp.zeros_like(reach[1]), -solved[..., dv:]], axis=2)
    added = xp.concat([x * last for x in rows.sources], axis=2)
    return Known(
        (reach[0], asks), (met[0], met[-1]), fixed, moved,
        None if decay is None else decay[:, :, -1, :, None], xp.matrix_transpose(added),
    )  # fmt: skip


def _meet(
    xp: Any, readers: list[Array], source: Array, levels: list[tuple[Array, Array]]
) -> list[Array]:
    """Return, for every reader r, r_t . P(t, s) w_s as (chunk, trial, t, s), a decay per channel.

    By halves: where b lies between s and t, P(t, s) = P(t, b) P(b, s), and all pairs on its two
    sides are one matrix product. Factors are products of decays, never quotients: none exceeds 1.
    """
    r = xp.stack(readers, axis=0)
    met = r[..., None, :] @ source[None, ..., None]  # t = s: blocks of one row
    for until, since in levels:
        count, trials, pairs, half, key = until.shape
        split = (count, trials, pairs, 2, half, key)
        w = xp.reshape(source, split)[:, :, :, 0, ...] * until
        late = xp.reshape(r, (-1, *split))[:, :, :, :, 1, ...] * since
        across = late @ xp.matrix_transpose(w)[None, ...]
        within = xp.reshape(met, (*across.shape[:-2], 2, half, half))
        one, other = (within[:, :, :, :, i, ...] for i in (0, 1))
        above = xp.concat([one, xp.zeros_like(one)], axis=-1)
        met = xp.concat([above, xp.concat([across, other], axis=-1)], axis=-2)
    return [met[i, :, :, 0, ...] for i in range(len(readers))]


def _solve(below: Array, right: Array, backend: Backend) -> Array:
    """Return the solution of (I + below) x = right; `below` is strictly lower triangular."""
    xp, size = backend.xp, below.shape[2]
    if backend.launches_dear:
        # Turned around the matrix is upper triangular, so LU has nothing to eliminate and no pivot
        # to choose: this is substitution still. Pivots would lose all digits on long keys.
        eye = xp.eye(size, dtype=below.dtype, device=backend.device)
        turned, against = xp.flip(eye + below, axis=(2, 3)), xp.flip(right, axis=2)
        return xp.flip(xp.linalg.solve(turned, against), axis=2)
    x = xp.asarray(right, copy=True)
    for i in range(1, size):
        x[..., i : i + 1, :] -= below[..., i : i + 1, :i] @ x[..., :i, :]
    return x


def _starts(xp: Any, S: Array, known: Known, chosen: Array | None) -> tuple[Array, Array]:
    """Return the states at the chunks' starts, (chunk, trial, key, value), and at the end."""
    offset, turn = known.added @ known.fixed, known.scale
    if known.moved is not None:
        eye = xp.eye(S.shape[-2], dtype=S.dtype, device=device(S))
        turn = (eye if turn is None else turn * eye) - known.added @ known.moved
    starts = []
    for c in range(offset.shape[0]):
        starts.append(S)
        kept = S if turn is None else turn[c, ...] * S if known.moved is None else turn[c, ...] @ S
        new = kept + offset[c, ...]
        # Chunks of skipped steps leave the state bit for bit, whatever it holds.
        S = new if chosen is None else xp.where(chosen[c, ...], new, S)
    return xp.stack(starts, axis=0), S


def _states(xp: Any, rows: Rows, starts: Array, X: Array) -> Array:
    """Return the state after every row, (step, trial, key, value).

    By rows, all chunks at once: one pass over what is to be written, where a matrix product per
    row would take as many as a chunk has rows.
    """
    count, trials, size, _ = rows.keys.shape
    states = xp.empty((count, size, *starts.shape[1:]), dtype=starts.dtype, device=device(starts))
    now = starts
    for i in range(size):
        if rows.decay is not None:
            now = ops.scale_rows(rows.decay[:, :, i, :], now)
        for j, source in enumerate(rows.sources):
            now = now + ops.outer(source[:, :, i, :], X[:, :, j * size + i, :])
        states[:, i, ...] = now
    return xp.reshape(states, (count * size, *starts.shape[1:]))


def _held(xp: Any, S: Array, states: Array, live: np.ndarray, backend: Backend) -> Array:
    """Return states in which a skipped step holds the bits of the one before it."""
    if live.all():
        return states
    n, trials = live.shape
    wrote = np.maximum.accumulate(np.where(live, np.arange(1, n + 1)[:, None], 0), axis=0)
    index = xp.asarray((wrote * trials + np.arange(trials)).reshape(-1), device=backend.device)
    every = xp.reshape(xp.concat([S[None, ...], states], axis=0), (-1, *S.shape[1:]))
    return xp.reshape(xp.take(every, index, axis=0), states.shape)

"""Softmax attention and its kin by tiles: queries against the cache, a running maximum and sum.

The online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
arXiv:2205.14135): with m the largest score so far, a further tile of scores s and values V turns

    m' = max(m, max s),   l' = e^(m - m') l + sum e^(s - m'),   a' = e^(m - m') a + e^(s - m') V,

and the read is a / l. Scores exist for one tile at a time: memory is linear in the cache. Rows that
fade add their biases to the scores; a second query r adds, with c = r.k, the sums of e^s c and
e^s c V, of which a covariance is made.

Tiles lie where the steps and the rows lie, not where a block begins, and are always whole, filled
up with zeros: every product has one shape, and a read has the same bits however the stream is cut.
Array-API calls only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import device

from engine import ops, steps
from engine.api import Array, Rows
from engine.backend import Backend
from engine.steps import Advanced, Block

QUERIES, ROWS = 16, 256  # a tile of scores
WORK = 2**19  # numbers in one array of scores


def advance(rule: Any, state: Any, block: Block, backend: Backend) -> Advanced:
    """Run a block: `rule.scale`, a state of `keys` and `values`, and of `bias` where rows fade.

    The numbers are the step loop's up to rounding, the state's its bits.
    """
    n, trials, _ = block.keys.shape
    if not n:
        return steps.advance(rule, state, block, backend)
    wrote = np.ones((n, trials), dtype=np.int64) if block.mask is None else block.mask.astype(int)
    after = state.keys.length + np.cumsum(wrote, axis=0)
    new = state._replace(
        keys=state.keys.extend(block.keys, block.mask),
        values=state.values.extend(block.values, block.mask),
    )
    fading = None
    if "bias" in state._fields:
        fading = _fading(state.bias, after - wrote, wrote > 0, block, backend)
        bias = state.bias.extend(backend.xp.zeros_like(block.keys[..., 0]), block.mask)
        new = new._replace(bias=bias.map(fading.shifted(1).last))
    probe = block.reads.get("second_query")
    prediction, output = (
        _reads(new, rule.scale * x, probe, seen, fading and fading.shifted(late), block, backend)
        for x, seen, late in ((block.keys, after - wrote, 0), (block.queries, after, 1))
    )
    return Advanced(new, prediction, output, {"rows": after})


def _reads(
    state: Any, q: Array, r: Array | None, seen: np.ndarray, fading: Fading | None, block: Block,
    backend: Backend,
) -> Array:  # fmt: skip
    """Return the reads at q (step, trial, key) of the first `seen` (step, trial) rows."""
    xp, tiles = backend.xp, _tiles(seen.shape[0], block.start)
    probe = None if r is None else xp.broadcast_to(r, q.shape)
    if (seen == seen[:, :1]).all():
        cache = state.keys.array, state.values.array
        return _attend(*cache, q, probe, seen[:, 0], fading, tiles, backend)
    # Trials that hold different numbers of rows: one by one, as each would be alone.
    each = []
    for b in range(seen.shape[1]):
        own = slice(b, b + 1)
        k, v = (x.array[own, : int(seen[-1, b]), ...] for x in (state.keys, state.values))
        ask = None if probe is None else probe[:, own, :]
        fade = fading and fading.of(b)
        each.append(_attend(k, v, q[:, own, :], ask, seen[:, b], fade, tiles, backend))
    return xp.concat(each, axis=1)


def _tiles(n: int, start: int) -> tuple[int, int]:
    """Return how many empty queries stand before and behind n steps, so that tiles are whole."""
    ahead = start % QUERIES
    return ahead, -(ahead + n) % QUERIES


def _attend(
    keys: Array, values: Array, q: Array, probe: Array | None, seen: np.ndarray,
    fading: Fading | None, tiles: tuple[int, int], backend: Backend,
) -> Array:  # fmt: skip
    """Return the reads of trials that hold equally many rows (trial, row, ...) at every step."""
    xp, (n, trials, _) = backend.xp, q.shape

    def tiled(x: Array) -> Array:
        x = _filled(xp, xp.permute_dims(x, (1, 0, 2)), *tiles)
        return xp.reshape(x, (trials, -1, QUERIES, x.shape[-1]))

    q, probe = tiled(q), None if probe is None else tiled(probe)
    counts = np.pad(seen, tiles).reshape(-1, QUERIES)
    sound = xp.isfinite(values)
    bad = [] if bool(xp.all(sound)) else np.flatnonzero(
        ~backend.get(xp.all(sound, axis=(0, 2)))
    ).tolist()  # fmt: skip
    # A weight of 0 does not hide what is not finite: it is added apart, where it is seen.
    clean = xp.where(sound, values, xp.zeros_like(values)) if bad else values
    wide = ROWS if fading is None else max(ROWS, keys.shape[1])  # biases are of every row
    group, parts = max(1, WORK // (trials * QUERIES * wide)), []
    for first in range(0, counts.shape[0], group):
        own = slice(first, min(first + group, counts.shape[0]))
        ask = None if probe is None else probe[:, own, ...]
        at = range(QUERIES * own.start - tiles[0], QUERIES * own.stop - tiles[0])
        bias = fading and fading.at(at)
        parts.append(
            _group(keys, values, clean, bad, q[:, own, ...], ask, bias, counts[own], backend)
        )
    out = xp.reshape(xp.concat(parts, axis=1), (trials, -1, values.shape[-1]))
    return xp.permute_dims(out[:, tiles[0] : tiles[0] + n, :], (1, 0, 2))


def _group(
    keys: Array, values: Array, clean: Array, bad: list[int], q: Array, probe: Array | None,
    bias: Array | None, counts: np.ndarray, backend: Backend,
) -> Array:  # fmt: skip
    """Return the reads of a few tiles of queries (trial, tile, query, key)."""
    xp, where = backend.xp, device(q)
    shape, sums = q.shape[:-1], 1 if probe is None else 2
    none = xp.full((1,), -xp.inf, dtype=q.dtype, device=where)
    zero = xp.zeros((1,), dtype=q.dtype, device=where)
    top = xp.full((*shape, 1), -xp.inf, dtype=q.dtype, device=where)
    # With weights e^s, and with e^s c where there is a second query.
    total = [xp.zeros((*shape, 1), dtype=q.dtype, device=where) for _ in range(sums)]
    read = [xp.zeros((*shape, values.shape[-1]), dtype=q.dtype, device=where) for _ in range(sums)]
    for row in range(0, int(counts.max()), ROWS):
        # Tiles that see none of these rows would gain nothing: they stand before those that do.
        late = slice(int(np.argmax(counts.max(axis=1) > row)), None)
        end = min(row + ROWS, keys.shape[1])
        k, v = (_filled(xp, x[:, row:end, :], 0, row + ROWS - end) for x in (keys, clean))
        across = xp.matrix_transpose(k[:, None, ...])
        place = np.arange(row, row + ROWS)
        visible = counts[late][..., None] > place
        scores = q[:, late, ...] @ across
        if bias is not None:
            scores = scores + bias[:, late, :, row : row + ROWS]
        hidden = None if visible.all() else xp.asarray(~visible, device=where)
        if hidden is not None:
            scores = xp.where(hidden, none, scores)
        before = top[:, late, ...]
        now = xp.maximum(before, xp.max(scores, axis=-1, keepdims=True))
        shift = xp.where(now == -xp.inf, zero, now)
        weight, fade = xp.exp(scores - shift), xp.exp(before - shift)
        top[:, late, ...] = now
        weights = [weight]
        if probe is not None:
            c = probe[:, late, ...] @ across
            weights.append(weight * (c if hidden is None else xp.where(hidden, zero, c)))
        for i, w in enumerate(weights):
            total[i][:, late, ...] = fade * total[i][:, late, ...] + xp.sum(
                w, axis=-1, keepdims=True
            )
            read[i][:, late, ...] = fade * read[i][:, late, ...] + w @ v[:, None, ...]
            for j in (j for j in bad if row <= j < row + ROWS):
                one = values[:, None, j : j + 1, :]
                hit = xp.asarray(visible[..., j - row, None], device=where) & ~xp.isfinite(one)
                more = xp.where(hit, w[..., j - row, None] * one, zero)
                read[i][:, late, ...] = read[i][:, late, ...] + more
    mean = ops.divide(read[0], total[0])
    if probe is None:
        return mean
    # sum_j p_j (1 + c - c_j) v_j, c = sum_j p_j c_j
    return mean + ops.divide(total[1], total[0]) * mean - ops.divide(read[1], total[0])


def _fading(
    bias: Rows, held: np.ndarray, wrote: np.ndarray, block: Block, backend: Backend
) -> Fading:
    """Return the walk of a block from these rows, with room for whole tiles of rows."""
    xp, (n, trials) = backend.xp, held.shape
    old = bias.array
    rows = int(held[-1].max()) + 1
    more = rows + -rows % ROWS - old.shape[1]
    room = xp.zeros((trials, more), dtype=old.dtype, device=device(old))
    log = None
    if "gamma" in block.writes:
        log = xp.broadcast_to(xp.squeeze(ops.log(block.writes["gamma"]), axis=-1), (n, trials))
    return Fading(xp.concat([old, room], axis=1), held, wrote, log, xp)


class Fading:
    """Biases of rows from step to step: log gamma is added at every write, a new row has 0.

    Parameters
    ----------
    bias : array (trial, row)
        Before the first step, with room for every row that comes.
    held, wrote : NumPy array (step, trial)
        How many rows there are before a step, and whether it appends one.
    log : array (step, trial), optional
        log gamma; None fades nothing.
    xp : module
        Array namespace.
    ahead : int
        0 gives the biases before a step's write, 1 behind it.
    """

    def __init__(
        self, bias: Array, held: np.ndarray, wrote: np.ndarray, log: Array | None, xp: Any,
        ahead: int = 0,
    ) -> None:  # fmt: skip
        self._given, self._held, self._wrote, self._log = bias, held, wrote, log
        self._xp, self._ahead, self._place = xp, ahead, np.arange(bias.shape[1])
        self._bias, self._done = bias, 0

    def shifted(self, ahead: int) -> Fading:
        """Return a walk of its own, before the writes or behind them."""
        return Fading(self._given, self._held, self._wrote, self._log, self._xp, ahead)

    def of(self, trial: int) -> Fading:
        """Return the walk of one trial."""
        own = slice(trial, trial + 1)
        log = None if self._log is None else self._log[:, own, ...]
        held, wrote = self._held[:, own], self._wrote[:, own]
        return Fading(self._given[own, ...], held, wrote, log, self._xp, self._ahead)

    def last(self, like: Array) -> Array:
        """Return the biases after the block, in the shape of `like` (trial, room)."""
        bias, xp = self.after(len(self._held)), self._xp
        void = self._place >= (self._held[-1] + self._wrote[-1])[:, None]
        bias = xp.where(xp.asarray(void, device=device(bias)), xp.zeros_like(bias), bias)
        bias = bias[:, : like.shape[1]]
        more = (like.shape[0], like.shape[1] - bias.shape[1])
        room = xp.zeros(more, dtype=bias.dtype, device=device(bias))
        return xp.concat([bias, room], axis=1)

    def at(self, where: range) -> Array:
        """Return the biases at these steps, in order (trial, tile, query, row); walks are one-way.

        Steps outside of the block have those nearest to them.
        """
        each = [self.after(min(i + self._ahead, len(self._held))) for i in where]
        stacked = self._xp.stack(each, axis=1)
        return self._xp.reshape(stacked, (stacked.shape[0], -1, QUERIES, stacked.shape[-1]))

    def after(self, steps: int) -> Array:
        """Return the biases (trial, row) after so many steps of the block."""
        for i in range(self._done, steps):
            self._bias, self._done = self._next(i), i + 1
        return self._bias

    def _next(self, i: int) -> Array:
        xp, wrote = self._xp, self._wrote[i]
        bias = self._bias
        if self._log is not None:
            log = self._log[i, ...]
            if not wrote.all():
                log = xp.where(xp.asarray(wrote, device=device(log)), log, xp.zeros_like(log))
            bias = bias + log[:, None]
        fresh = wrote[:, None] & (self._place == self._held[i][:, None])
        return xp.where(xp.asarray(fresh, device=device(bias)), xp.zeros_like(bias), bias)


def _filled(xp: Any, x: Array, ahead: int, behind: int) -> Array:
    """Return x (trial, row, ...) with rows of zeros before and behind."""
    if not ahead and not behind:
        return x
    first, last = (
        xp.zeros((x.shape[0], m, x.shape[2]), dtype=x.dtype, device=device(x))
        for m in (ahead, behind)
    )
    return xp.concat([first, x, last], axis=1)

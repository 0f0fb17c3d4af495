"""Softmax attention by tiles: queries against the cache, a running maximum and sum per query.

The online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
arXiv:2205.14135): with m the largest score so far, a further tile of scores s and values V turns

    m' = max(m, max s),   l' = e^(m - m') l + sum e^(s - m'),   a' = e^(m - m') a + e^(s - m') V,

and the read is a / l. Scores exist for one tile at a time: memory is linear in the cache.

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
    """Run a block of softmax attention: `rule.scale`, a state of `keys` and `values`.

    The numbers are the step loop's up to rounding.
    """
    n, trials, _ = block.keys.shape
    if not n:
        return steps.advance(rule, state, block, backend)
    wrote = np.ones((n, trials), dtype=np.int64) if block.mask is None else block.mask.astype(int)
    after = state.keys.length + np.cumsum(wrote, axis=0)
    keys = state.keys.extend(block.keys, block.mask)
    values = state.values.extend(block.values, block.mask)
    prediction, output = (
        _reads(keys, values, rule.scale * x, seen, block.start, backend)
        for x, seen in ((block.keys, after - wrote), (block.queries, after))
    )
    new = state._replace(keys=keys, values=values)
    return Advanced(new, prediction, output, {"rows": after})


def _reads(
    keys: Rows, values: Rows, q: Array, seen: np.ndarray, start: int, backend: Backend
) -> Array:
    """Return the reads at q (step, trial, key) of the first `seen` (step, trial) rows."""
    xp, tiles = backend.xp, _tiles(seen.shape[0], start)
    if (seen == seen[:, :1]).all():
        return _attend(keys.array, values.array, q, seen[:, 0], tiles, backend)
    # Trials that hold different numbers of rows: one by one, as each would be alone.
    each = []
    for b in range(seen.shape[1]):
        own = slice(b, b + 1)
        k, v = (x.array[own, : int(seen[-1, b]), ...] for x in (keys, values))
        each.append(_attend(k, v, q[:, own, :], seen[:, b], tiles, backend))
    return xp.concat(each, axis=1)


def _tiles(n: int, start: int) -> tuple[int, int]:
    """Return how many empty queries stand before and behind n steps, so that tiles are whole."""
    ahead = start % QUERIES
    return ahead, -(ahead + n) % QUERIES


def _attend(
    keys: Array, values: Array, q: Array, seen: np.ndarray, tiles: tuple[int, int],
    backend: Backend,
) -> Array:  # fmt: skip
    """Return the reads of trials that hold equally many rows (trial, row, ...) at every step."""
    xp, (n, trials, _) = backend.xp, q.shape
    q = _filled(xp, xp.permute_dims(q, (1, 0, 2)), *tiles)
    q = xp.reshape(q, (trials, -1, QUERIES, q.shape[-1]))
    counts = np.pad(seen, tiles).reshape(-1, QUERIES)
    sound = xp.isfinite(values)
    bad = [] if bool(xp.all(sound)) else np.flatnonzero(
        ~backend.get(xp.all(sound, axis=(0, 2)))
    ).tolist()  # fmt: skip
    # A weight of 0 does not hide what is not finite: it is added apart, where it is seen.
    clean = xp.where(sound, values, xp.zeros_like(values)) if bad else values
    group, parts = max(1, WORK // (trials * QUERIES * ROWS)), []
    for first in range(0, counts.shape[0], group):
        own = slice(first, min(first + group, counts.shape[0]))
        parts.append(_group(keys, values, clean, bad, q[:, own, ...], counts[own], backend))
    out = xp.reshape(xp.concat(parts, axis=1), (trials, -1, values.shape[-1]))
    return xp.permute_dims(out[:, tiles[0] : tiles[0] + n, :], (1, 0, 2))


def _group(
    keys: Array, values: Array, clean: Array, bad: list[int], q: Array, counts: np.ndarray,
    backend: Backend,
) -> Array:  # fmt: skip
    """Return the reads of a few tiles of queries (trial, tile, query, key)."""
    xp, where = backend.xp, device(q)
    shape = q.shape[:-1]
    none = xp.full((1,), -xp.inf, dtype=q.dtype, device=where)
    zero = xp.zeros((1,), dtype=q.dtype, device=where)
    top = xp.full((*shape, 1), -xp.inf, dtype=q.dtype, device=where)
    total = xp.zeros((*shape, 1), dtype=q.dtype, device=where)
    read = xp.zeros((*shape, values.shape[-1]), dtype=q.dtype, device=where)
    for row in range(0, int(counts.max()), ROWS):
        # Tiles that see none of these rows would gain nothing: they stand before those that do.
        late = slice(int(np.argmax(counts.max(axis=1) > row)), None)
        end = min(row + ROWS, keys.shape[1])
        k, v = (_filled(xp, x[:, row:end, :], 0, row + ROWS - end) for x in (keys, clean))
        place = np.arange(row, row + ROWS)
        visible = counts[late][..., None] > place
        scores = q[:, late, ...] @ xp.matrix_transpose(k[:, None, ...])
        if not visible.all():
            scores = xp.where(xp.asarray(visible, device=where), scores, none)
        before = top[:, late, ...]
        now = xp.maximum(before, xp.max(scores, axis=-1, keepdims=True))
        shift = xp.where(now == -xp.inf, zero, now)
        weight, fade = xp.exp(scores - shift), xp.exp(before - shift)
        top[:, late, ...] = now
        total[:, late, ...] = fade * total[:, late, ...] + xp.sum(weight, axis=-1, keepdims=True)
        read[:, late, ...] = fade * read[:, late, ...] + weight @ v[:, None, ...]
        for j in (j for j in bad if row <= j < row + ROWS):
            one = values[:, None, j : j + 1, :]
            hit = xp.asarray(visible[..., j - row, None], device=where) & ~xp.isfinite(one)
            more = xp.where(hit, weight[..., j - row, None] * one, zero)
            read[:, late, ...] = read[:, late, ...] + more
    return ops.divide(read, total)


def _filled(xp: Any, x: Array, ahead: int, behind: int) -> Array:
    """Return x (trial, row, ...) with rows of zeros before and behind."""
    if not ahead and not behind:
        return x
    first, last = (
        xp.zeros((x.shape[0], m, x.shape[2]), dtype=x.dtype, device=device(x))
        for m in (ahead, behind)
    )
    return xp.concat([first, x, last], axis=1)

"""The linear family's recurrence, and recursive least squares, compiled.

Given its tokens, a column of a linear rule's S evolves independently of every other column and of
every other trial. The work is cut into tiles, up to four vectors of columns of one trial, which run
on any thread in any order; inside a tile the order of operations is fixed. Results therefore depend
on neither threads, nor batch, nor block size, nor the width of the machine's vectors.

Arrays are flat. Those of tokens are step first, as the stream has them; a tile of S has its rows
next to each other, padded to whole vectors.
"""

from __future__ import annotations

import numpy as np

from engine.lanes import (
    VECTOR,
    fetch,
    fill,
    larger,
    largest,
    load,
    load_some,
    njit,
    prange,
    repeat,
    spread,
    store,
    store_some,
    total,
)

STEPS = 16  # that a tile takes before the next one's turn: tokens of neighbours stay in cache


def tiles(trials: int, columns: int, dtype: np.dtype, workers: int) -> tuple[int, int]:
    """Return the number of tiles that hold so many columns, and how many vectors wide each is."""
    needed = -(-columns * dtype.itemsize // VECTOR)
    # Vectors side by side share what is read of a token, about as dear as half a vector.
    cost = {wide: -(-needed // wide) * (2 * wide + 1) for wide in (4, 2, 1)}
    enough = [wide for wide in cost if trials * -(-needed // wide) >= workers] or [1]
    wide = min(enough, key=cost.__getitem__)
    return -(-needed // wide), wide


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def linear(
    S, U, z, keys, values, queries, write, address, erase, decay, channel, strength, momentum,
    gain, mask, prediction, output, weights, states, velocities, masses, finite, share, when,
    sizes, wide, corrects, forgets_first, masked, record, measure, workers,
):  # fmt: skip
    """Run every tile through a block; S, U and z are changed in place.

    None stands for what a rule does not have: U, z, address, erase, channel. `wide` is a tuple as
    long as a tile is wide, in vectors: it is compiled for each length.
    """
    steps, trials, count = sizes[0], sizes[1], sizes[4]
    zero = S.dtype.type(0)
    for worker in prange(workers):
        first, last = worker * trials * count // workers, (worker + 1) * trials * count // workers
        for begin in range(0, steps, STEPS):
            end = min(begin + STEPS, steps)
            for unit in range(first, last):
                _tile(
                    spread(zero, wide), unit, begin, end, S, U, keys, values, queries, write,
                    address, erase, decay, channel, strength, momentum, gain, mask, prediction,
                    output, states, velocities, finite, sizes, corrects, forgets_first, masked,
                    record,
                )  # fmt: skip
                if unit % count == 0 and z is not None:
                    _weigh(
                        spread(zero, (0,)), unit // count, begin, end, z, keys, queries, write,
                        decay, channel, strength, mask, weights, masses, sizes, masked, record,
                    )  # fmt: skip
                if unit % count == 0 and measure:
                    _measure(
                        spread(zero, (0,)), unit // count, begin, end, keys, write, address,
                        strength, mask, share, when, sizes, masked,
                    )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def _tile(
    none, unit, begin, end, S, U, keys, values, queries, write, address, erase, decay, channel,
    strength, momentum, gain, mask, prediction, output, states, velocities, finite, sizes,
    corrects, forgets_first, masked, record,
):  # fmt: skip
    """Take one tile from step `begin` to `end`."""
    trials, dk, dv, count, width = sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]
    b, low, at = unit // count, unit % count * width, unit * dk * width
    n = dv - low
    before, old, probe = none, none, none
    for i in range(dk):
        s, j = load(S, at + i * width, none), (begin * trials + b) * dk + i
        before = before + repeat(keys, j, none) * s
        if address is not None:
            old = old + _address(address, channel, forgets_first, j, none) * s
    for t in range(begin, end):
        row, next_row = t * trials + b, min(t + 1, end - 1) * trials + b
        token, following, column = row * dk, next_row * dk, row * dv + low
        if low == 0:
            # The next trial's rows lie behind these, and are wanted STEPS from now.
            for i in range(0, dk, 64 // keys.itemsize):
                fetch(keys, token + dk + i, 0)
                fetch(queries, token + dk + i, 0)
                if channel is not None:
                    fetch(channel, token + dk + i, 0)
            for i in range(0, dv, 64 // keys.itemsize):
                fetch(values, column + dv + i, 0)
                fetch(prediction, column + dv + i, 1)
                fetch(output, column + dv + i, 1)
        store_some(prediction, column, n, before)
        after, coming, read = none, none, none
        if masked and not mask[row]:
            for i in range(dk):
                s = load(S, at + i * width, none)
                after = after + repeat(queries, token + i, none) * s
                coming = coming + repeat(keys, following + i, none) * s
                if address is not None:
                    r = _address(address, channel, forgets_first, following + i, none)
                    read = read + r * s
        else:
            probe = probe + (before - before)
            new, a = load_some(values, column, n, none), repeat(decay, row, none)
            if address is None:
                old = before
            if forgets_first and channel is None:
                old = a * old
            if corrects:
                new = new - old
            new = repeat(strength, row, none) * new
            if U is not None:
                m, c = repeat(momentum, row, none), repeat(gain, row, none)
            for i in range(dk):
                place = at + i * width
                x = repeat(write, token + i, none) * new
                if erase is not None:
                    x = x - repeat(erase, token + i, none) * old
                if U is not None:
                    u = m * load(U, place, none) + x
                    store(U, place, u)
                    x = c * u
                if channel is not None:
                    a = repeat(channel, token + i, none)
                s = a * load(S, place, none) + x
                store(S, place, s)
                after = after + repeat(queries, token + i, none) * s
                # The next key's read, while the row is at hand: every row is touched once a step.
                coming = coming + repeat(keys, following + i, none) * s
                if address is not None:
                    r = _address(address, channel, forgets_first, following + i, none)
                    read = read + r * s
        store_some(output, column, n, after)
        probe = probe + (after - after)
        before, old = coming, read
        if record:
            for i in range(dk):
                place, to = at + i * width, (row * dk + i) * dv + low
                store_some(states, to, n, load(S, place, none))
                if U is not None:
                    store_some(velocities, to, n, load(U, place, none))
    if total(probe) != 0:  # x - x is NaN where x is not finite
        finite[unit] = False


@njit(nogil=True, error_model="numpy")
def _address(address, channel, forgets_first, i, none):
    """Return an entry of what reads the content to be erased, so that it reads the undecayed S."""
    if channel is None:
        return repeat(address, i, none)
    r = repeat(address, i, none)
    return r * repeat(channel, i, none) if forgets_first else r


@njit(nogil=True, error_model="numpy")
def _weigh(
    none, b, begin, end, z, keys, queries, write, decay, channel, strength, mask, weights, masses,
    sizes, masked, record,
):  # fmt: skip
    """Take the sum of weights beside S from step `begin` to `end`."""
    trials, dk, lanes = sizes[1], sizes[2], sizes[6]
    for t in range(begin, end):
        row = t * trials + b
        before, after, a = none, none, repeat(decay, row, none)
        for i in range(0, dk, lanes):
            j, n = row * dk + i, dk - i
            mass = load_some(z, b * dk + i, n, none)
            before = before + load_some(keys, j, n, none) * mass
            if not masked or mask[row]:
                if channel is not None:
                    a = load_some(channel, j, n, none)
                w = repeat(strength, row, none) * load_some(write, j, n, none)
                mass = a * mass + w
                store_some(z, b * dk + i, n, mass)
            after = after + load_some(queries, j, n, none) * mass
            if record:
                store_some(masses, j, n, mass)
        weights[2 * row], weights[2 * row + 1] = total(before), total(after)


@njit(nogil=True, error_model="numpy")
def _measure(
    none, b, begin, end, keys, write, address, strength, mask, share, when, sizes, masked
):  # fmt: skip
    """Note the largest share of its error that a write takes back, and its step."""
    trials, dk, lanes = sizes[1], sizes[2], sizes[6]
    for t in range(begin, end):
        row, product = t * trials + b, none
        for i in range(0, dk, lanes):
            j, n = row * dk + i, dk - i
            if address is None:
                r = load_some(keys, j, n, none)
            else:
                r = load_some(address, j, n, none)
            product = product + load_some(write, j, n, none) * r
        x = strength[row] * total(product)
        if x > share[b] and (not masked or mask[row]):
            share[b], when[b] = x, t


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def covariance(
    S, P, keys, values, queries, gamma, mask, prediction, output, states, covariances, finite,
    sizes, masked, record, eps, bound, prior, workers,
):  # fmt: skip
    """Recursive least squares as plugins/solvers/rls.py states it; S and P are changed in place.

    P is symmetric to the last bit, so P k is summed row by row like every other read.
    """
    steps, trials, dk, dv, lanes = sizes
    across, along = -(-dv // lanes), -(-dk // lanes)  # tiles of S and of P
    for worker in prange(workers):
        none = spread(S.dtype.type(0), (0,))
        before = np.empty(across * lanes, S.dtype)  # what the present key reads from S
        Pk, coming, room, gain = np.zeros((4, along * lanes), S.dtype)
        for b in range(worker * trials // workers, (worker + 1) * trials // workers):
            s, p, probe = b * across * dk * lanes, b * along * dk * lanes, none
            top = _look(none, P, p, along, dk, lanes, keys, b * dk, Pk)
            _look(none, S, s, across, dk, lanes, keys, b * dk, before)
            for t in range(steps):
                row, following = t * trials + b, (min(t + 1, steps - 1) * trials + b) * dk
                writes = not masked or mask[row]
                if writes:
                    top = _learn(
                        none, P, p, along, dk, lanes, keys, row * dk, following, gamma[row], top,
                        eps, bound, prior, Pk, coming, room, gain,
                    )  # fmt: skip
                else:
                    _look(none, P, p, along, dk, lanes, keys, following, Pk)
                for tile in range(across):
                    low, column = tile * lanes, row * dv + tile * lanes
                    asked, after, read = load(before, low, none), none, none
                    store_some(prediction, column, dv - low, asked)
                    error = load_some(values, column, dv - low, none) - asked
                    if writes:
                        probe = probe + (asked - asked)
                    for i in range(dk):
                        place = s + (tile * dk + i) * lanes
                        x = load(S, place, none)
                        if writes:
                            x = x + repeat(gain, i, none) * error
                            store(S, place, x)
                        after = after + repeat(queries, row * dk + i, none) * x
                        read = read + repeat(keys, following + i, none) * x
                        if record:
                            store_some(states, (row * dk + i) * dv + low, dv - low, x)
                    store_some(output, column, dv - low, after)
                    store(before, low, read)
                    probe = probe + (after - after)
                if record:
                    for tile in range(along):
                        for i in range(dk):
                            to, n = (row * dk + i) * dk + tile * lanes, dk - tile * lanes
                            x = load(P, p + (tile * dk + i) * lanes, none)
                            store_some(covariances, to, n, x)
            if total(probe) != 0:
                finite[b] = False


@njit(nogil=True, error_model="numpy")
def _look(none, X, at, count, dk, lanes, keys, k, into):
    """Read the tiles of a matrix with the key at `k`; return the largest entry above 0."""
    top = none
    for tile in range(count):
        read = none
        for i in range(dk):
            x = load(X, at + (tile * dk + i) * lanes, none)
            read = read + repeat(keys, k + i, none) * x
            top = larger(top, x)
        store(into, tile * lanes, read)
    return largest(top)


@njit(nogil=True, error_model="numpy")
def _learn(
    none, P, p, count, dk, lanes, keys, k, following, g, top, eps, bound, prior, Pk, coming, room,
    gain,
):  # fmt: skip
    """Fold a key into P; Pk becomes what the next key reads, `gain` is P k / den."""
    zero, one, two = Pk.dtype.type(0), Pk.dtype.type(1), Pk.dtype.type(2)
    products, squares = none, none
    for i in range(0, dk, lanes):
        x = load_some(keys, k + i, dk - i, none)
        products, squares = products + x * load(Pk, i, none), squares + x * x
    kPk, kk = total(products), total(squares)
    den, noise = g + kPk, two * eps * top
    lift = noise if g * kPk < two * two * noise * den * kk else zero
    down, up, high = fill(one / den, none), fill(one / g, none), none
    for i in range(0, dk, lanes):
        store(gain, i, load(Pk, i, none) / fill(den, none))
    if lift > 0:
        for i in range(dk):
            entry = P[p + (i // lanes * dk + i) * lanes + i % lanes]
            room[i] = one / g * (entry - one / den * (Pk[i] * Pk[i]) + lift)
    for tile in range(count):
        mine, read = load(Pk, tile * lanes, none), none
        for i in range(dk):
            place = p + (tile * dk + i) * lanes
            x = up * (load(P, place, none) - down * (repeat(Pk, i, none) * mine))
            store(P, place, x)
            read = read + repeat(keys, following + i, none) * x
            high = larger(high, x)
        store(coming, tile * lanes, read)
    for i in range(0, dk, lanes):
        store(Pk, i, load(coming, i, none))
    top = largest(high)
    if lift > 0:
        for i in range(dk):
            P[p + (i // lanes * dk + i) * lanes + i % lanes] = room[i]
        top = _look(none, P, p, count, dk, lanes, keys, following, Pk)
    if top > bound:
        for i in range(dk):
            diagonal = P[p + (i // lanes * dk + i) * lanes + i % lanes]
            if diagonal > bound:
                for j in range(dk):
                    column = P[p + (j // lanes * dk + i) * lanes + j % lanes]
                    room[j] = column / np.sqrt(prior + diagonal)
                for tile in range(count):
                    mine = load(room, tile * lanes, none)
                    for m in range(dk):
                        place = p + (tile * dk + m) * lanes
                        store(P, place, load(P, place, none) - repeat(room, m, none) * mine)
        top = _look(none, P, p, count, dk, lanes, keys, following, Pk)
    return top

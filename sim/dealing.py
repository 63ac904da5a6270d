"""Attention of decodes comes in pieces of key blocks, dealt out to multiprocessors, and some idle before the last has read its own.

FlashAttention 3 cuts a sequence's keys into blocks of BLOCK_KEYS. `per` of them are a tenth more than an even share of all blocks of all KV
heads; a longer sequence is split into as few even pieces as keep each to `per`, and every KV head's pieces go, in order, to the
multiprocessor that is free first. Unequal pieces end at different times, and towards the end few multiprocessors read: a share SATURATES of
them is enough for all of the memory's bandwidth, fewer are not (docs/adr/0016).

`idle_when_dealt` deals one batch out. A simulation keeps sums of its contexts, so `idle_keys` tells what to expect of so many of that mean
and standard deviation: log-normal ones, averaged in a table that `python -m calibrate.dealing` writes by dealing them out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise
from math import ceil, frexp, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.turns import MARGIN, MULTIPROCESSORS

BLOCK_KEYS = 128
MOST_PARTS = 32  # of one sequence, in a captured graph
# Multiprocessors that read as fast as the memory can, as a share of all: 0.44 in profiles of the kernel on the H100. What one reads by
# itself does not grow with the bandwidth, so that is 0.6 on the H200; where fewer are enough, less of the idle shows.
SATURATES = 0.6

# Axes of the table: KV heads, sequences, mean context as a power of two, standard deviation as a share of the mean.
KV_HEADS = (1, 2, 4, 8, 16, 32)
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 384, 512)
OCTAVES = tuple(range(5, 15))
SHARES = (0.0, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)  # doubling, so that an octave on they are one step down
PACKAGED = "data/dealing.npy"


def idle_share(blocks: Sequence[int], kv_heads: int) -> float:
    """What multiprocessors could have read besides, while sequences of so many key blocks each were read: as a share of these.

    The readable definition, and what the table is computed by (numba compiles it).
    """
    total = 0
    for own in blocks:
        total += own
    per = ceil(MARGIN * total * kv_heads / MULTIPROCESSORS)
    free = [0.0] * MULTIPROCESSORS  # when each multiprocessor is, a heap
    for own in blocks:
        parts = max(min(ceil(own / per), MOST_PARTS), 1)
        longest = ceil(own / parts)
        for _ in range(kv_heads):
            left = own
            while left > 0:
                piece = min(longest, left)
                heapq.heapreplace(free, free[0] + piece)
                left -= piece
    free.sort()
    time = before = 0.0
    for done in range(MULTIPROCESSORS):  # so many are when the next one is
        time += (free[done] - before) * max(SATURATES, 1.0 - done / MULTIPROCESSORS)
        before = free[done]
    return max(time * MULTIPROCESSORS / (kv_heads * total) - 1.0, 0.0)


def idle_when_dealt(contexts: Sequence[float], kv_heads: int) -> float:
    """Keys that multiprocessors could have read besides, while decodes of these contexts (at least one) were dealt out as they are."""
    return sum(contexts) * idle_share([ceil((context + 1) / BLOCK_KEYS) for context in contexts], kv_heads)


def idle_keys(kv_heads: int, batch: float, context: float, spread: float) -> float:
    """What to expect of `idle_when_dealt` of `batch` decodes of summed `context`, as far apart as `spread` says (their number squared
    times their variance). 0 for a model without full-context attention (no `kv_heads`).

    Linear in the context within an octave of its mean, where the spread stays: as `sim.engine.steptime` needs it.
    """
    if not kv_heads or batch < 1:
        return 0.0
    octave = max(int(context // batch), 1).bit_length() - 1
    low, high = node(kv_heads, int(batch), octave), node(kv_heads, int(batch), octave + 1)
    place, within = share_place(sqrt(spread) / batch / (1 << octave)) if spread > 0 else (0, 0.0)
    after, further = one_octave_on(place, within)
    first, last = between(low, place, within), between(high, after, further)
    return batch * (first + (last - first) * (context / batch / (1 << octave) - 1.0))


def idle_keys_of(kv_heads: int, batch: Any, context: Any, spread: Any) -> Any:
    """`idle_keys` of numbers or of arrays that broadcast."""
    if isinstance(batch, (float, int)) and isinstance(context, (float, int)):
        return idle_keys(kv_heads, batch, context, spread)
    return _of_arrays(kv_heads, batch, context, spread)


_of_arrays = np.vectorize(idle_keys, otypes=[float])


def share_place(share: float) -> tuple[int, float]:
    """Which interval of SHARES a standard deviation of this share of the mean is in, and how far into it (0 to 1)."""
    mantissa, exponent = frexp(share / SHARES[1])  # share = SHARES[1] * mantissa * 2**exponent, mantissa from 0.5 on
    if exponent < 1:
        return 0, share / SHARES[1]
    return (exponent, 2.0 * mantissa - 1.0) if exponent < len(SHARES) - 1 else (len(SHARES) - 2, 1.0)


def one_octave_on(place: int, within: float) -> tuple[int, float]:
    """`share_place` of the same standard deviation at twice the mean."""
    return (place - 1, within) if place > 1 else (0, 0.5 * (within + place))


def between(values: Sequence[float], place: int, within: float) -> float:
    """Of values at SHARES, the one at a place between them."""
    return values[place] + within * (values[place + 1] - values[place])


@lru_cache(maxsize=65536)
def node(kv_heads: int, batch: int, octave: int) -> tuple[float, ...]:
    """Idle keys of a sequence at SHARES, its batch of a mean context of 2**octave."""
    at = min(max(octave, OCTAVES[0]), OCTAVES[-1])
    h, more_heads = _place(KV_HEADS, kv_heads)
    b, more = _place(BATCHES, batch)
    corners = table()[h : h + 2, b : b + 2, OCTAVES.index(at)]  # [2, 2, share]
    share = (1 - more_heads) * ((1 - more) * corners[0, 0] + more * corners[0, 1])
    share = share + more_heads * ((1 - more) * corners[1, 0] + more * corners[1, 1])
    return tuple((share * 2.0**octave).tolist())


@cache
def table() -> NDArray[np.float64]:
    """`idle_share`, the mean of many batches [KV heads, sequences, octave, share]. Beyond its ends it stays."""
    with files("sim").joinpath(PACKAGED).open("rb") as handle:
        stored: NDArray[np.float64] = np.load(handle).astype(float)
    return stored


def _place(axis: Sequence[int], value: int) -> tuple[int, float]:
    """Interval of the axis, and how far into it in logarithms; a value beyond counts as the last."""
    for i, (low, high) in enumerate(pairwise(axis)):
        if value <= high:
            return i, log2(max(value, low) / low) / log2(high / low)
    return len(axis) - 2, 1.0

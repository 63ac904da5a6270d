"""Shares of an iteration's time: its step time shared out over the requests that computed in it, and over the terms of the formula.

    attention of prefill chunks      by their query-key pairs
    attention of decodes, and what
    only decodes do                  the decodes'
    all else                         by tokens

Nobody can say what an iteration would have taken without one of its requests by looking at a log; this is a convention, and it adds up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cost.step_time import NAMES
from sim.results.record import RunRecord

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OWN, OTHERS, DECODE_KV, DECODES = "own", "others", "decode_kv", "decodes"
WHOSE = (OWN, OTHERS, DECODE_KV, DECODES)
KV = NAMES.kv
OF_DECODES = (NAMES.summaries, NAMES.c1, NAMES.link)  # block selection, and KV that is fetched from host RAM to be read


class Shares(NamedTuple):
    """Weights of iterations, seconds: by whose tokens (columns WHOSE) and, of all prefill by others, by chunk: (chunk's row, iteration's
    number among those asked for, weight). `cached` is the part of all prefill that reads KV of the prefix cache, by iteration.
    """

    whose: Floats
    chunk: Ints
    iteration: Ints
    weight: Floats
    cached: Floats


def shares(record: RunRecord, places: Ints, row: int) -> Shares:
    """The iterations at these places (ascending), as the request in this row sees them."""
    log, chunks = record.iterations, record.chunks
    at = np.searchsorted(places, chunks["chunk_iteration"])
    here = np.flatnonzero(places[np.minimum(at, len(places) - 1)] == chunks["chunk_iteration"]) if len(places) else np.empty(0, np.int64)
    at, tokens, end = at[here], chunks["chunk_tokens"][here], chunks["chunk_end"][here]
    pairs = tokens * end - tokens * (tokens - 1) / 2

    def total(values: Floats) -> Floats:
        return np.bincount(at, weights=values, minlength=len(places)).astype(np.float64)

    all_tokens = log["tokens"][places]
    prefill = np.clip(np.maximum(log["prefill_tokens"][places], total(tokens)), 0.0, all_tokens)
    seconds = record.terms[places]
    pairs_here = total(pairs)
    decodes = prefill < all_tokens
    reads, attention = _attention(record, places, seconds, decodes)
    verified = (pairs_here == 0) & decodes  # chunks that are no prefill
    reads, attention = reads + np.where(verified, attention, 0.0), np.where(pairs_here > 0, attention, 0.0)
    rest = np.maximum(seconds.sum(axis=1) - reads - attention, 0.0)
    rest = np.where(rest + reads + attention > 0, rest, 1.0)
    each = rest[at] * tokens / all_tokens[at] + np.divide(attention[at] * pairs, pairs_here[at])
    mine = chunks["chunk_request"][here] == row
    own = total(np.where(mine, each, 0.0))
    others = total(np.where(mine, 0.0, each)) + rest * (prefill - total(tokens)) / all_tokens
    cached = np.minimum(np.asarray(record.requests["cached_tokens"])[chunks["chunk_request"][here].astype(np.int64)], end - tokens)
    whose = np.stack([own, others, reads, rest * (all_tokens - prefill) / all_tokens], axis=1)
    read = total(np.divide(attention[at] * tokens * cached, pairs_here[at]))
    return Shares(whose, here[~mine], at[~mine], each[~mine], read)


def _attention(record: RunRecord, places: Ints, seconds: Floats, decodes: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """(seconds that only decodes cause, attention of prefill) of iterations; `decodes` says which have any."""
    columns = {name: seconds[:, i] for i, name in enumerate(record.term_names)}
    none = np.zeros(len(places))
    kv = columns.get(KV, none)
    of_decodes = np.clip(record.iterations["decode_kv_s"][places], 0.0, kv)
    reads = of_decodes + sum((columns.get(name, none) for name in OF_DECODES), none)
    return np.where(decodes, reads, 0.0), kv - np.where(decodes, of_decodes, 0.0)


def apportioned(ticks: Ints, weights: Floats) -> Ints:
    """Whole ticks [rows, columns] in proportion to the weights, each row adding up to its ticks; without any weight the last has all."""
    upto = np.cumsum(weights, axis=1)
    total = upto[:, -1:]
    edges = np.minimum(np.floor(upto / np.where(total > 0, total, 1.0) * ticks[:, None]), ticks[:, None]).astype(np.int64)
    edges[:, -1] = ticks
    return np.diff(np.minimum(edges, ticks[:, None]), axis=1, prepend=0)

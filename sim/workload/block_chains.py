"""KV blocks with which several requests begin, as columns: of the chained names of every request's blocks, or of a trace's own hashes.

What no other request begins with is counted, not named: of most traces that is most.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.workload.content import BlockHashes, Content

Ints = NDArray[np.int64]


class Chains(NamedTuple):
    """Blocks that several requests begin with, as whole numbers from 0 on; where those of each request begin among them, how many they are,
    and how many blocks it has in all; how many different ones there are, and how many with those of one request alone, at most; which of
    them caches have before the first request, the last one evicted first.
    """

    names: Ints
    begins: Ints
    depths: Ints
    lengths: Ints
    distinct: int
    blocks: int
    warm: Ints | None = None


def asked_by_several(chains: Chains, sessions: Sequence[str | None]) -> Ints:
    """Names that requests of several sessions begin with, a request without one (None) being its own: the ones most asked for first, and a
    chain's beginning before what goes on from it. `sessions` has shape [calls].
    """
    numbers: dict[Hashable, int] = {}
    session = np.array([numbers.setdefault((row, None) if each is None else each, len(numbers)) for row, each in enumerate(sessions)])
    call = np.repeat(np.arange(len(session)), chains.depths)
    place = np.arange(len(call)) - (np.cumsum(chains.depths) - chains.depths)[call]
    name = chains.names[chains.begins[call] + place]
    asked = np.bincount(np.unique(name * len(session) + session[call]) // max(len(session), 1), minlength=chains.distinct)
    depth = np.zeros(chains.distinct, dtype=np.int64)
    depth[name] = place
    order = np.lexsort((depth, -asked))
    return order[asked[order] > 1]


def chained(chains: Sequence[Sequence[int]]) -> Chains:
    """Of chains of names (sim.workload.content). Equal names stand behind equal ones, so a chain that another goes on from lies within it,
    and what several chains have is their beginning. Names rise along a chain.
    """
    columns = [np.asarray(chain, dtype=np.int64) for chain in chains]
    lengths = np.array([len(chain) for chain in chains], dtype=np.int64)
    names, begins = _nested(columns, lengths)
    size, blocks = len(names), int(names.max(initial=-1)) + 1
    changes = np.bincount(begins, minlength=size + 1) - np.bincount(begins + lengths, minlength=size + 1)
    chains_with = np.bincount(names, weights=np.cumsum(changes)[:size], minlength=1)
    depths, beyond = np.zeros_like(lengths), lengths  # bisection: blocks before one that is shared are shared
    while (searched := depths < beyond).any():
        mid = (depths + beyond) // 2
        shared = searched & (chains_with[names[np.minimum(begins + mid, size - 1)]] > 1)
        depths, beyond = np.where(shared, mid + 1, depths), np.where(searched & ~shared, mid, beyond)
    names, begins = _nested([chain[:depth] for chain, depth in zip(columns, depths.tolist(), strict=True)], depths)
    met = np.zeros(blocks, dtype=bool)
    met[names] = True
    return Chains(np.cumsum(met)[names] - 1, begins, depths, lengths, int(met.sum()), blocks)


def _nested(columns: Sequence[Ints], lengths: Ints) -> tuple[Ints, Ints]:
    """The chains that no other one goes on from, one behind the other, and where each chain begins among them."""
    last = np.array([chain[-1] if len(chain) else 0 for chain in columns], dtype=np.int64)  # it stands for all before it
    highest = int(last.max(initial=-1)) + 1 if lengths.any() else 0
    kept, size = [np.zeros(0, dtype=np.int64)], 0
    ends, begin_of = np.zeros(highest, dtype=bool), np.full(highest, -1, dtype=np.int64)
    ends[last[lengths > 0]] = True
    least = min(filter(None, lengths.tolist()), default=0)
    for row in np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)].tolist():
        if begin_of[last[row]] < 0:
            chain = columns[row]
            begin_of[chain[ends[chain]] if len(chain) > least else last[row]] = size
            kept.append(chain)
            size += len(chain)
    return np.concatenate(kept), np.where(lengths > 0, begin_of[last] if highest else 0, 0)


def hashed(contents: Sequence[Content | None], prompt_tokens: Ints, block_size: int) -> Chains:
    """Of prompts that are all told by hashes of blocks, or share nothing (None): the same as of the names that BlockNamer gives them, but
    for which number stands for which block. `prompt_tokens` has shape [calls].

    All is computed of the trace's own blocks; engine blocks are counted out of them at the end. Engine block k of a call ends in trace
    block i = ((k + 1) * block_size - 1) // trace_block. Of a trace block that several calls have, those engine blocks are shared that the
    second longest of their prompts has.
    """
    told = np.array([len(each.hashes) if isinstance(each, BlockHashes) else 0 for each in contents], dtype=np.int64)
    sizes = np.array([each.block_size if isinstance(each, BlockHashes) else 1 for each in contents], dtype=np.int64)
    lengths = np.minimum(told * sizes, prompt_tokens) // block_size
    first = np.cumsum(told) - told  # of each call, among the hashes of all
    call = np.repeat(np.arange(len(told)), told)
    if not len(call):
        return Chains(call, np.zeros_like(told), np.zeros_like(told), lengths, 0, 0)
    place = np.arange(len(call)) - first[call]
    node = _prefixes(_numbers(contents), place, sizes[call])
    met = np.bincount(node)
    by_length = np.lexsort((-lengths[call], node))  # of each prefix, the call with the longest prompt first
    second = lengths[call[by_length[np.minimum(np.cumsum(met) - met + 1, len(call) - 1)]]]
    several = met[node] > 1
    last = first + np.bincount(call[several], minlength=len(told)) - 1  # the longest prefix that another call has, too
    shares = last >= first
    before, through = place * sizes[call] // block_size, (place + 1) * sizes[call] // block_size  # engine blocks that end before, and there
    depths = np.where(shares, np.minimum(lengths, np.minimum(second[node[last]], through[last])), 0)
    # the chains to keep: of every shared prefix that no other goes on from, one with most of its blocks
    goes_on = np.zeros(len(met), dtype=bool)
    goes_on[node[np.flatnonzero(several & (place > 0)) - 1]] = True
    tips = np.flatnonzero(shares & ~goes_on[node[last]])
    kept_at = np.full(len(met), -1, dtype=np.int64)
    tips = tips[np.argsort(depths[tips], kind="stable")]
    kept_at[node[last[tips]]] = tips  # of several, the last
    kept = kept_at[kept_at >= 0]
    begins, begin_at = np.zeros_like(told), np.zeros_like(met)
    begins[kept] = np.cumsum(depths[kept]) - depths[kept]
    on_kept = np.zeros(len(told), dtype=bool)
    on_kept[kept] = True
    within = on_kept[call] & several
    begin_at[node[within]] = begins[call[within]]
    begins = np.where(shares, begin_at[node[last]], 0)
    # names: every shared prefix has so many from `base` on
    spans = np.zeros_like(met)
    spans[node[several]] = (np.minimum(through, second[node]) - before)[several]
    base = np.cumsum(spans) - spans
    row = np.repeat(kept, depths[kept])
    block = np.arange(len(row)) - begins[row]
    at = first[row] + ((block + 1) * block_size - 1) // sizes[row]
    distinct = int(spans.sum())
    return Chains(base[node[at]] + block - before[at], begins, depths, lengths, distinct, distinct + int((lengths - depths).sum()))


def _numbers(contents: Sequence[Content | None]) -> Ints:
    """The hashes of all calls as whole numbers of 64 bits, equal ones for equal ones."""
    hashes = [each.hashes for each in contents if isinstance(each, BlockHashes)]
    whole = [np.asarray(each, dtype=np.int64) for each in hashes if isinstance(each, array)]
    if len(whole) == len(hashes):
        return np.concatenate(whole)
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for each in hashes for value in each], dtype=np.int64)


def _prefixes(values: Ints, place: Ints, size: Ints) -> Ints:
    """[hash] a number from 0 on for the hash with all before it in its call: equal prefixes of blocks of one `size`, equal numbers.

    A prefix is known by the sum of its hashes, each scattered over 64 bits by its place. The numbers are right where all of one
    number have the same hash behind the same prefix: that is looked at, and with other scattered bits all is done again where it is not.
    """
    starts = np.flatnonzero(place == 0)
    for salt in count(1):
        sums = np.cumsum(_scattered(values.view(np.uint64), place.view(np.uint64) + np.uint64(salt)), dtype=np.uint64)
        ahead = np.zeros(len(starts), dtype=np.uint64)
        ahead[1:] = sums[starts[1:] - 1]
        run = np.cumsum(place == 0) - 1
        _, example, number = np.unique(sums - ahead[run] + size.view(np.uint64), return_index=True, return_inverse=True)
        parent = np.where(place > 0, np.roll(number, 1), -size)
        if (values == values[example[number]]).all() and (parent == parent[example[number]]).all():
            return number
    raise AssertionError("count() has no end")


def _scattered(values: NDArray[np.uint64], place: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sixty-four bits that all hang on both (the finaliser of SplitMix64)."""
    bits = values * np.uint64(0x9E3779B97F4A7C15) + place * np.uint64(0xD1B54A32D192ED03)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits

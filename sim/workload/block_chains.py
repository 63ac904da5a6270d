"""KV blocks with which several requests begin, from the chained names of each one's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Chains(NamedTuple):
    """Blocks as whole numbers from 0 on, where those of each request begin among them, how many of its leading ones others also begin with,
    how many it has, and how many different ones there are.
    """

    names: Ints
    begins: Ints
    depths: Ints
    lengths: Ints
    distinct: int


def chained(chains: Sequence[Sequence[int]]) -> Chains:
    """Chains of names (sim.workload.content) in one column. Equal names stand behind equal ones, so a chain that another goes on from lies
    within it, and what several chains have is their beginning. Names rise along a chain.
    """
    columns = [np.asarray(chain, dtype=np.int64) for chain in chains]
    lengths = np.array([len(chain) for chain in chains], dtype=np.int64)
    last = np.array([chain[-1] if chain else 0 for chain in chains], dtype=np.int64)  # it stands for all before it
    distinct = int(last.max(initial=-1)) + 1 if lengths.any() else 0
    kept, count = [np.zeros(0, dtype=np.int64)], 0
    ends, begin_of = np.zeros(distinct, dtype=bool), np.full(distinct, -1, dtype=np.int64)
    ends[last[lengths > 0]] = True
    least = min(filter(None, lengths.tolist()), default=0)
    for row in np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)].tolist():
        if begin_of[last[row]] < 0:
            chain = columns[row]
            begin_of[chain[ends[chain]] if len(chain) > least else last[row]] = count
            kept.append(chain)
            count += len(chain)
    names = np.concatenate(kept)
    begins = np.where(lengths > 0, begin_of[last] if distinct else 0, 0)
    changes = np.bincount(begins, minlength=count + 1) - np.bincount(begins + lengths, minlength=count + 1)
    chains_with = np.bincount(names, weights=np.cumsum(changes)[:count], minlength=1)
    depths, beyond = np.zeros_like(lengths), lengths  # bisection: blocks before one that is shared are shared
    while (searched := depths < beyond).any():
        mid = (depths + beyond) // 2
        shared = searched & (chains_with[names[np.minimum(begins + mid, count - 1)]] > 1)
        depths, beyond = np.where(shared, mid + 1, depths), np.where(searched & ~shared, mid, beyond)
    return Chains(names, begins, depths, lengths, distinct)

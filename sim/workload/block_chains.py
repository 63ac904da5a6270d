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
    """Chains of hashes in one column. They are chained: equal hashes stand behind equal ones, so a chain that another goes on from lies
    within it, and what several chains have is their beginning.
    """
    kept, count = [np.zeros(0, dtype=np.int64)], 0
    begin_of = {chain[-1]: -1 for chain in chains if chain}  # by the last hash, which stands for all before it
    for chain in sorted(chains, key=len, reverse=True):
        if chain and begin_of[chain[-1]] < 0:
            begin_of |= dict.fromkeys(begin_of.keys() & chain, count)
            kept.append(np.array(chain, dtype=np.int64))
            count += len(chain)
    lengths = np.array([len(chain) for chain in chains], dtype=np.int64)
    begins = np.array([begin_of[chain[-1]] if chain else 0 for chain in chains], dtype=np.int64)
    different, names = np.unique(np.concatenate(kept), return_inverse=True)
    changes = np.bincount(begins, minlength=count + 1) - np.bincount(begins + lengths, minlength=count + 1)
    chains_with = np.bincount(names, weights=np.cumsum(changes)[:count], minlength=1)
    shared_before = np.concatenate([[0], np.cumsum(chains_with[names] > 1)])
    depths = shared_before[begins + lengths] - shared_before[begins]
    return Chains(names.astype(np.int64), begins, depths.astype(np.int64), lengths, len(different))

"""KV blocks that a router remembers to have sent, replica by replica."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence


class SentBlocks:
    """KV blocks that each replica was sent, by name; of each replica the least recently sent are dropped beyond `capacity`."""

    def __init__(self, replicas: int, capacity: int) -> None:
        self._capacity = capacity
        self._sent: list[OrderedDict[Hashable, None]] = [OrderedDict() for _ in range(replicas)]
        self._holders: dict[Hashable, int] = {}  # a bit for each replica that has the block

    def known(self, names: Sequence[Hashable]) -> list[int]:
        """Of each replica, how many of the first of these blocks it was sent."""
        counts = [0] * len(self._sent)
        if not names:
            return counts
        holding = (1 << len(counts)) - 1
        for depth, name in enumerate(names):
            still = holding & self._holders.get(name, 0)
            if still != holding:
                for index in _bits(holding ^ still):
                    counts[index] = depth
                holding = still
                if not still:
                    break
        for index in _bits(holding):
            counts[index] = len(names)
        return counts

    def send(self, names: Sequence[Hashable], replica: int) -> None:
        """These blocks are sent to a replica."""
        sent, holders, bit = self._sent[replica], self._holders, 1 << replica
        for name in names:
            if name in sent:
                sent.move_to_end(name)
            else:
                sent[name] = None
                holders[name] = holders.get(name, 0) | bit
        while len(sent) > self._capacity:
            name, _ = sent.popitem(last=False)
            holders[name] ^= bit
            if not holders[name]:
                del holders[name]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low

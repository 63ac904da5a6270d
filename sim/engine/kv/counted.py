"""The KV manager of the fast path: the same occupancy and the same hits as KvCacheManager, without naming every block.

Blocks that only their own request can ask for are counted; blocks whose contents another request also asks for (see sim.workload.sources)
have an identity. The eviction order is kept as a list of runs, so a request costs its shared blocks plus one entry however long it is. Of a
preempted request's own blocks the last are evicted first, so what it finds again is how many are left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from sim.engine.kv.cache import forget_content


class CountedKv:
    """`blocks` blocks to give. Queries: `free`, `hits`, `needed`; the rest mutate."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.free = blocks
        self.block_size = block_size
        self._unhashed = blocks  # free blocks without contents: at the front of the eviction order, all alike
        self._evictable: OrderedDict[int, int] = OrderedDict()  # shared block -> 1, or -(number of a run) -> its length
        self._content: dict[int, Hashable] = {}
        self._references: dict[int, int] = {}
        self._block_of: dict[Hashable, int] = {}
        self._copies_of: dict[Hashable, list[int]] = {}
        self._held: dict[Hashable, list[int]] = {}  # request -> its shared blocks that are in the prefix cache, in order
        self._own: dict[Hashable, int] = {}  # preempted request -> key of its run in the eviction order
        self._serial = 0

    def hits(self, hashes: Sequence[Hashable], most: int) -> list[int]:
        """The blocks of the longest cached prefix among the first `most` hashes."""
        found: list[int] = []
        for content in hashes[:most]:
            block = self._block_of.get(content)
            if block is None:
                break
            found.append(block)
        return found

    def needed(self, tokens: int, hits: Sequence[int]) -> int:
        """How much `free` would shrink if a request took `hits` and then room up to `tokens` tokens."""
        references = self._references
        fresh = -(-tokens // self.block_size) - len(hits)
        return fresh + sum(1 for block in hits if not references[block]) if hits else fresh

    def shared_held(self, request: Hashable) -> int:
        """How many of the request's leading blocks are findable shared ones."""
        return len(self._held.get(request, ()))

    def take(self, count: int) -> None:
        """Hand out `count` blocks, evicting the least recently used contents."""
        self.free -= count
        if count <= self._unhashed:
            self._unhashed -= count
            return
        count -= self._unhashed
        self._unhashed = 0
        evictable = self._evictable
        while count:
            key = next(iter(evictable))
            length = evictable[key]
            if length > count:
                evictable[key] = length - count
                return
            del evictable[key]
            count -= length
            if key > 0:
                self._forget(key)

    def adopt(self, request: Hashable, hits: Sequence[int]) -> None:
        """Give the request its hits."""
        references = self._references
        for block in hits:
            if not references[block]:
                del self._evictable[block]
                self.free -= 1
            references[block] += 1
        self._held[request] = list(hits)

    def remember(self, request: Hashable, hashes: Sequence[Hashable], full: int) -> None:
        """Make the first `full` of the request's shared blocks findable by their contents."""
        held = self._held[request]
        for content in hashes[len(held) : full]:
            self._serial += 1
            block = self._serial
            held.append(block)
            self._content[block] = content
            self._references[block] = 1
            if self._block_of.setdefault(content, block) != block:
                self._copies_of.setdefault(content, []).append(block)

    def own(self, request: Hashable) -> int:
        """How many of its own blocks a preempted request would find again."""
        return self._evictable.get(self._own.get(request, 0), 0)

    def take_back(self, request: Hashable) -> None:
        """Give a preempted request what it finds again of its own blocks."""
        self.free -= self._evictable.pop(self._own.pop(request))

    def release(self, request: Hashable, tokens: int, full: int, *, comes_back: bool = False) -> None:
        """Take the blocks of a request that computed `tokens` tokens, the first `full` of them findable by their contents, and remember
        which they are if it `comes_back`.
        """
        held = self._held.pop(request, ())
        total = -(-tokens // self.block_size)
        self._unhashed += total - full
        freed = total - len(held)
        if full > len(held):
            self._serial += 1
            self._evictable[-self._serial] = full - len(held)
            if comes_back:
                self._own[request] = -self._serial
        references = self._references
        for block in reversed(held):
            references[block] -= 1
            if not references[block]:
                self._evictable[block] = 1
                freed += 1
        self.free += freed

    def _forget(self, block: int) -> None:
        content = self._content.pop(block)
        del self._references[block]
        forget_content(content, block, self._block_of, self._copies_of)

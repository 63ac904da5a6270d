"""Paged KV memory: who holds which block, which contents can be found again, and what is evicted next.

The manager knows no policy and no time. Queries (`find_hits`, `blocks_needed`, `free_blocks`) change nothing; mutators (`allocate`,
`remember`, `free`) assume the query said yes. Block ids, their reuse order and the eviction order are those of vLLM 0.32's pool for one
full-attention group, block 0 (its null block) included, so the two can be compared id by id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import cached_property

from sim.engine.interface import Request


def forget_content(content: Hashable, block: int, block_of: dict[Hashable, int], copies_of: dict[Hashable, list[int]]) -> None:
    """A block loses its contents: where it was the one found by them, its oldest copy takes its place."""
    copies = copies_of.get(content)
    if block_of[content] != block:
        assert copies is not None
        copies.remove(block)
    elif copies:
        block_of[content] = copies.pop(0)
    else:
        del block_of[content]
    if copies is not None and not copies:
        del copies_of[content]


class KvCacheManager:
    """`num_blocks` blocks of `block_size` tokens, block 0 never handed out.

    The free list doubles as the eviction order: unhashed blocks go back to its front (reused at once, last in first out), hashed ones to
    its back, tail of the sequence first, so that the front is always the least recently used content.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._references = [0] * num_blocks
        self.shared_blocks = 0  # holders of blocks, less one for each block that is held
        self.common_blocks = 0  # that have several
        self._content: list[Hashable] = [None] * num_blocks
        self._block_of: dict[Hashable, int] = {}
        # further blocks with contents already in _block_of, oldest first
        self._copies_of: dict[Hashable, list[int]] = {}

    @cached_property
    def _free(self) -> OrderedDict[int, None]:
        """Blocks that can be handed out, the next one first; made when the first is: half a million of them take their time."""
        return OrderedDict.fromkeys(range(1, self.num_blocks))

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out now, evictable contents included."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks held by requests."""
        return self.num_blocks - 1 - len(self._free)

    def block_hash(self, request: Request, index: int) -> Hashable:
        """Content hash of the request's `index`-th block; past the given hashes, one that only this request can match."""
        hashes = request.prompt_hashes
        return hashes[index] if index < len(hashes) else (request.request_id, index)

    def find_hits(self, request: Request) -> list[int]:
        """Blocks whose contents are the request's longest cached prefix, short of its last known token.

        At least one token has to be computed for there to be logits to sample from; since hits are whole blocks, a prompt that is cached
        entirely recomputes its last block.
        """
        hits: list[int] = []
        if not self.prefix_caching:
            return hits
        block_of = self._block_of
        for index in range((request.known_tokens - 1) // self.block_size):
            block = block_of.get(self.block_hash(request, index))
            if block is None:
                break
            hits.append(block)
        return hits

    def blocks_needed(self, request: Request, tokens: int, hits: Sequence[int] = ()) -> int:
        """Blocks by which the free list would shrink if the request held `tokens` tokens, `hits` among them."""
        needed = -(-tokens // self.block_size) - len(request.blocks) - len(hits)
        references = self._references
        return max(needed, 0) + sum(1 for block in hits if not references[block])

    def lower_hits(self, request: Request, start: int) -> int:
        """Number of the request's blocks from the `start`-th on that can be brought back from below HBM (sim.engine.kv.tiers)."""
        return 0

    def reload(self, request: Request, start: int, count: int) -> None:
        """Bring `count` blocks back from below HBM: there are none here."""

    def take_reloads(self) -> tuple[int, ...]:
        """Blocks brought back since the last call, by tier."""
        return ()

    def evictable(self, block: int) -> bool:
        """Whether no request holds the block."""
        return not self._references[block]

    def allocate(self, request: Request, tokens: int, hits: Sequence[int] = ()) -> None:
        """Give the request the `hits` and then fresh blocks until it can hold `tokens` tokens."""
        references, free = self._references, self._free
        for block in hits:
            if not references[block]:
                del free[block]
            else:
                self.shared_blocks += 1
                self.common_blocks += references[block] == 1
            references[block] += 1
        if hits:
            request.blocks.extend(hits)
            request.hashed_blocks = len(hits)
        for _ in range(-(-tokens // self.block_size) - len(request.blocks)):
            block, _ = free.popitem(last=False)
            references[block] = 1
            if self._content[block] is not None:
                self._forget(block)
            request.blocks.append(block)

    def remember(self, request: Request, tokens: int) -> None:
        """Make the full blocks among the request's first `tokens` tokens findable by their contents."""
        full = tokens // self.block_size
        if not self.prefix_caching or full <= request.hashed_blocks:
            return
        for index in range(request.hashed_blocks, full):
            content, block = self.block_hash(request, index), request.blocks[index]
            self._content[block] = content
            if self._block_of.setdefault(content, block) != block:
                self._copies_of.setdefault(content, []).append(block)
        request.hashed_blocks = full

    def free(self, request: Request) -> None:
        """Take all blocks from the request. Contents stay findable until their block is handed out again."""
        references, free, content = self._references, self._free, self._content
        reusable_now: list[int] = []
        for block in reversed(request.blocks):
            references[block] -= 1
            if references[block]:
                self.shared_blocks -= 1
                self.common_blocks -= references[block] == 1
                continue
            if content[block] is None:
                reusable_now.append(block)
            else:
                free[block] = None
        for block in reversed(reusable_now):
            free[block] = None
            free.move_to_end(block, last=False)
        request.blocks = []
        request.hashed_blocks = 0

    def _forget(self, block: int) -> None:
        content = self._content[block]
        self._content[block] = None
        forget_content(content, block, self._block_of, self._copies_of)

"""SGLang's radix cache: KV pages in a tree of shared prefixes, least recently used leaves evicted first.

Matching, inserting, splitting, locking and the order of eviction are those of SGLang 0.5.23's UnifiedRadixCache, its default, which
tests/engine/test_radix_cache_equals_sglang.py steps beside this one. A whole leaf goes at a time, so an eviction may free more than it was
asked for. Pages, not tokens, are counted, and contents are compared page by page.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from sim.engine.interface import Request

STEP = 1e-5  # how much older than its child a matched node is


@dataclass(slots=True, eq=False)
class Node:
    """A run of pages that are shared as one. `used` is when it was last matched or inserted; `locks` how many hold it."""

    pages: list[Hashable]
    parent: Node | None
    used: float
    locks: int = 0
    children: dict[Hashable, Node] = field(default_factory=dict)

    def __lt__(self, other: Node) -> bool:
        return self.used < other.used


class RadixTree:
    """Query: `match` (which also refreshes what it finds). The rest mutate. Sizes are in pages."""

    def __init__(self) -> None:
        self._time = 0
        self._root = Node([], None, 0, locks=1)
        self.evictable = 0
        self.protected = 0
        self.shared = 0  # holders of pages, less one for each page that is held
        self.common = 0  # pages that have several

    def match(self, contents: Sequence[Hashable]) -> tuple[int, Node]:
        """(pages of the longest cached prefix, the node that ends there); a node is split where the prefix ends inside it, and what is left
        of it counts as used, too.
        """
        node, done = self._root, 0
        while done < len(contents) and (child := node.children.get(contents[done])) is not None:
            common = _common(child.pages, contents, done)
            done += common
            if common < len(child.pages):
                node = self._split(child, common)
                break
            node = child
        if contents:
            used: float = self._tick()
            on_path: Node | None = node
            while on_path is not None:
                on_path.used = used
                used -= STEP
                on_path = on_path.parent
        return done, node

    def insert(self, contents: Sequence[Hashable]) -> tuple[int, Node]:
        """Add what is not there yet: (pages that were, the node that ends `contents`)."""
        node, done = self._root, 0
        while done < len(contents) and (child := node.children.get(contents[done])) is not None:
            child.used = self._tick()
            common = _common(child.pages, contents, done)
            done += common
            node = child if common == len(child.pages) else self._split(child, common)
        if done < len(contents):
            leaf = Node(list(contents[done:]), node, self._tick())
            node.children[contents[done]] = leaf
            self.evictable += len(leaf.pages)
            node = leaf
        return done, node

    def lock(self, node: Node) -> None:
        """Keep the path to `node` from being evicted."""
        while node.parent is not None:
            if not node.locks:
                self.evictable -= len(node.pages)
                self.protected += len(node.pages)
            else:
                self.shared += len(node.pages)
                self.common += len(node.pages) * (node.locks == 1)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock`."""
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self.evictable += len(node.pages)
                self.protected -= len(node.pages)
            else:
                self.shared -= len(node.pages)
                self.common -= len(node.pages) * (node.locks == 1)
            node = node.parent

    def evict(self, pages: int) -> int:
        """Drop least recently used leaves until `pages` are free or nothing unlocked is left; returns how many were freed."""
        leaves = [node for node in self._nodes() if not node.children and not node.locks]
        heapq.heapify(leaves)
        freed = 0
        while leaves and freed < pages:
            leaf = heapq.heappop(leaves)
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.pages[0]]
            freed += len(leaf.pages)
            if not parent.children and not parent.locks:
                heapq.heappush(leaves, parent)
        self.evictable -= freed
        return freed

    def _split(self, child: Node, at: int) -> Node:
        """Cut `child` after `at` pages; the front part is a new node above it."""
        parent = child.parent
        assert parent is not None
        front = Node(child.pages[:at], parent, self._tick(), child.locks, {child.pages[at]: child})
        parent.children[child.pages[0]] = front
        child.parent, child.pages = front, child.pages[at:]
        child.used = self._tick()
        return front

    def _nodes(self) -> list[Node]:
        found, stack = [], list(self._root.children.values())
        while stack:
            node = stack.pop()
            found.append(node)
            stack.extend(node.children.values())
        return found

    def _tick(self) -> int:
        self._time += 1
        return self._time


class RadixKv:
    """KV pages of requests, private ones and those in the tree. `pages` can be held. A request's `blocks` only count: pages have no names
    here.
    """

    def __init__(self, pages: int, page_tokens: int, *, prefix_caching: bool) -> None:
        self.pages = pages
        self.page_tokens = page_tokens
        self.prefix_caching = prefix_caching
        self.tree = RadixTree()
        self.unused = pages
        self._ends: dict[Request, Node] = {}  # where in the tree each request's cached pages end

    @property
    def free_blocks(self) -> int:
        """Pages that can be handed out now, evictable contents included."""
        return self.unused + self.tree.evictable

    @property
    def used_blocks(self) -> int:
        """Pages held by requests."""
        return self.pages - self.free_blocks

    def match(self, request: Request, short_of: int = 0) -> tuple[int, Node]:
        """(pages of the longest cached prefix of what the request knows, less its last `short_of` tokens; the node that ends it)."""
        full = (request.known_tokens - short_of) // self.page_tokens if self.prefix_caching else 0
        return self.tree.match(self.contents(request, full))

    def unlocked(self, node: Node) -> int:
        """Pages on the path to `node` that no request holds."""
        count = 0
        while node.parent is not None:
            count += 0 if node.locks else len(node.pages)
            node = node.parent
        return count

    def blocks_needed(self, request: Request, tokens: int) -> int:
        """Pages that the request lacks to hold `tokens` tokens."""
        return max(-(-tokens // self.page_tokens) - len(request.blocks), 0)

    def hold(self, request: Request, count: int, node: Node) -> None:
        """Give the request the `count` cached pages that end at `node`."""
        self._lock(request, node)
        request.hashed_blocks = count
        request.blocks = [0] * count

    def make_room(self, tokens: int) -> bool:
        """Evict until `tokens` tokens' worth of pages are unused or nothing can go; returns whether they are."""
        pages = -(-tokens // self.page_tokens)
        if pages > self.unused:
            self.unused += self.tree.evict(pages - self.unused)
        return pages <= self.unused

    def allocate(self, request: Request, tokens: int) -> None:
        """Give the request fresh pages until it can hold `tokens` tokens."""
        fresh = self.blocks_needed(request, tokens)
        if fresh > self.unused:
            self.make_room(fresh * self.page_tokens)
        self.unused -= fresh
        request.blocks.extend([0] * fresh)

    def remember(self, request: Request, tokens: int) -> None:
        """Put the full pages among the request's first `tokens` tokens into the tree, cut where its prompt ends; copies of what is there
        already are given back.
        """
        full = tokens // self.page_tokens
        if not self.prefix_caching:
            return
        contents = self.contents(request, full)
        there, node = self.tree.insert(contents)
        prompt = request.prompt_tokens // self.page_tokens
        if 0 < prompt < full:
            self.tree.insert(contents[:prompt])
        self.unused += max(there - request.hashed_blocks, 0)
        self._lock(request, node)
        request.hashed_blocks = full

    def free(self, request: Request) -> None:
        """Take all pages from the request; those in the tree stay findable until they are evicted."""
        self.unused += len(request.blocks) - request.hashed_blocks
        node = self._ends.pop(request, None)
        if node is not None:
            self.tree.unlock(node)
        request.blocks = []
        request.hashed_blocks = 0

    def contents(self, request: Request, count: int) -> list[Hashable]:
        """Content of the request's first `count` pages."""
        hashes = request.prompt_hashes
        return [hashes[i] if i < len(hashes) else (request.request_id, i) for i in range(count)]

    def _lock(self, request: Request, node: Node) -> None:
        before = self._ends.get(request)
        if before is not None:
            self.tree.unlock(before)
        self.tree.lock(node)
        self._ends[request] = node


def _common(pages: Sequence[Hashable], contents: Sequence[Hashable], start: int) -> int:
    most = min(len(pages), len(contents) - start)
    return next((i for i in range(most) if pages[i] != contents[start + i]), most)

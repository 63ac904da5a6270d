"""SGLang's radix cache in rows: KV pages in a tree of shared prefixes, least recently used leaves evicted first.

Matching, inserting, splitting, locking and the order of eviction are those of SGLang's UnifiedRadixCache. A node is a
run of pages of one request's sequence: `count` of them from `start` on. Children are found by their first page in a hash table. One list
orders all nodes by their last use; of what is used together, parents come before children. Pages are counted, not named.
"""

from __future__ import annotations

from sim.engine.rows.kv import home_of
from sim.engine.rows.layout import NOBODY, Core, EngineRow

OWN = 2**20  # blocks of a request, at most


def name_of(e: Core, r: int, index: int) -> int:
    """Name of a request's page: below 0 where only it can ask for that."""
    row = e.requests[r]
    if index < row.depth:
        return e.names[row.names + index] + 1
    return -(r * OWN + index + 1)


def full_pages(e: Core, s: EngineRow, r: int, short_of: int) -> int:
    """Full pages of what a request knows, less its last `short_of` tokens; none without prefix caching."""
    row = e.requests[r]
    return (row.prompt + row.generated - short_of) // s.block if s.caching else 0


def match(e: Core, s: EngineRow, r: int, pages: int) -> int:
    """Pages of the longest cached prefix of a request's first `pages`; `s.found` is the node that ends it. A node is split where the prefix
    ends inside it, and what is left of it counts as used, too.
    """
    node, done = s.root, 0
    while done < pages:
        child = child_of(e, s, node, name_of(e, r, done))
        if child == NOBODY:
            break
        common = common_pages(e, s, child, r, done, pages)
        done += common
        if common < e.nodes[child].count:
            node = split(e, s, child, common)
            break
        node = child
    if pages:
        use_path(e, s, node)
    s.found = node
    return done


def insert(e: Core, s: EngineRow, r: int, pages: int) -> int:
    """Add what is not there yet of a request's first `pages`: how many were; `s.found` is the node that ends them."""
    node, done = s.root, 0
    while done < pages:
        child = child_of(e, s, node, name_of(e, r, done))
        if child == NOBODY:
            break
        use(e, s, child)
        common = common_pages(e, s, child, r, done, pages)
        done += common
        node = child if common == e.nodes[child].count else split(e, s, child, common)
    if done < pages:
        leaf = new_node(e, s, node, r, done, pages - done)
        put_child(e, s, leaf)
        e.nodes[node].children += 1
        s.evictable += pages - done
        node = leaf
    s.found = node
    return done


def lock(e: Core, s: EngineRow, node: int) -> None:
    """Keep the path to a node from being evicted."""
    while node != s.root:
        row = e.nodes[node]
        if not row.locks:
            s.evictable -= row.count
        else:
            s.shared += row.count
            if row.locks == 1:
                s.common += row.count
        row.locks += 1
        node = row.parent


def unlock(e: Core, s: EngineRow, node: int) -> None:
    """Undo one `lock`."""
    while node != s.root:
        row = e.nodes[node]
        row.locks -= 1
        if not row.locks:
            s.evictable += row.count
        else:
            s.shared -= row.count
            if row.locks == 1:
                s.common -= row.count
        node = row.parent


def unlocked(e: Core, s: EngineRow, node: int) -> int:
    """Pages on the path to a node that no request holds."""
    count = 0
    while node != s.root:
        row = e.nodes[node]
        if not row.locks:
            count += row.count
        node = row.parent
    return count


def evict(e: Core, s: EngineRow, pages: int) -> int:
    """Drop least recently used leaves until `pages` are free or nothing unlocked is left; returns how many were freed."""
    freed, node = 0, s.oldest
    while node != NOBODY and freed < pages:
        row = e.nodes[node]
        if row.children or row.locks:
            node = row.behind
            continue
        parent, behind = row.parent, row.behind
        take_child(e, s, node)
        forget_use(e, s, node)
        row.behind = s.spare_node
        s.spare_node = node
        freed += row.count
        above = e.nodes[parent]
        above.children -= 1
        goes = parent != s.root and not above.children and not above.locks  # nothing else before this node can go
        node = parent if goes and above.used < row.used else behind
    s.evictable -= freed
    return freed


def new_node(e: Core, s: EngineRow, parent: int, r: int, start: int, count: int) -> int:
    """A node that was used last."""
    node = s.spare_node
    if node != NOBODY:
        s.spare_node = e.nodes[node].behind
    else:
        node = s.next_node
        s.next_node += 1
    row = e.nodes[node]
    row.parent, row.request, row.start, row.count, row.locks, row.children = parent, r, start, count, 0, 0
    link_use(e, s, node)
    return node


def split(e: Core, s: EngineRow, child: int, at: int) -> int:
    """Cut a node after `at` pages; the front part is a new node above it."""
    below = e.nodes[child]
    take_child(e, s, child)
    front = new_node(e, s, below.parent, below.request, below.start, at)
    row = e.nodes[front]
    row.locks, row.children = below.locks, 1
    put_child(e, s, front)
    below.parent, below.start, below.count = front, below.start + at, below.count - at
    put_child(e, s, child)
    use(e, s, child)
    return front


def common_pages(e: Core, s: EngineRow, node: int, r: int, done: int, pages: int) -> int:
    """Leading pages of a node that a request has from its page `done` on, of which the first is the same."""
    row = e.nodes[node]
    most = min(row.count, pages - done)
    if row.request == r and row.start == done:
        return most
    common = 1
    while common < most and name_of(e, row.request, row.start + common) == name_of(e, r, done + common):
        common += 1
    return common


# order of use


def use_path(e: Core, s: EngineRow, node: int) -> None:
    """The nodes down to this one are used, the last one last."""
    depth, above = 0, node
    while above != s.root:
        depth += 1
        above = e.nodes[above].parent
    for level in range(depth - 1, -1, -1):
        above = node
        for _ in range(level):
            above = e.nodes[above].parent
        use(e, s, above)


def use(e: Core, s: EngineRow, node: int) -> None:
    """A node was used last."""
    forget_use(e, s, node)
    link_use(e, s, node)


def link_use(e: Core, s: EngineRow, node: int) -> None:
    """Put a node at the end of the order of use."""
    row = e.nodes[node]
    s.uses += 1
    row.before, row.behind, row.used = s.newest, NOBODY, s.uses
    if s.newest == NOBODY:
        s.oldest = node
    else:
        e.nodes[s.newest].behind = node
    s.newest = node


def forget_use(e: Core, s: EngineRow, node: int) -> None:
    """Take a node out of the order of use."""
    row = e.nodes[node]
    if row.before == NOBODY:
        s.oldest = row.behind
    else:
        e.nodes[row.before].behind = row.behind
    if row.behind == NOBODY:
        s.newest = row.before
    else:
        e.nodes[row.behind].before = row.before


# children, by parent and first page


def child_home(parent: int, name: int, mask: int) -> int:
    """First place of a child in the hash table."""
    return home_of(name + parent * 0x3C6EF35F, mask)


def child_slot(e: Core, s: EngineRow, parent: int, name: int) -> int:
    """Slot of the table that has a child, or the empty one that it would get."""
    slot = child_home(parent, name, s.mask)
    found = e.table[s.first_slot + slot]
    while found:
        row = e.nodes[found - 1]
        if row.parent == parent and name_of(e, row.request, row.start) == name:
            break
        slot = (slot + 1) & s.mask
        found = e.table[s.first_slot + slot]
    return slot


def child_of(e: Core, s: EngineRow, parent: int, name: int) -> int:
    """The child that begins with a page; NOBODY where there is none."""
    return e.table[s.first_slot + child_slot(e, s, parent, name)] - 1


def put_child(e: Core, s: EngineRow, node: int) -> None:
    """A node can be found from its parent."""
    row = e.nodes[node]
    e.table[s.first_slot + child_slot(e, s, row.parent, name_of(e, row.request, row.start))] = node + 1


def take_child(e: Core, s: EngineRow, node: int) -> None:
    """A node is found no more; those that were displaced past it move up."""
    row = e.nodes[node]
    slot = child_slot(e, s, row.parent, name_of(e, row.request, row.start))
    e.table[s.first_slot + slot] = 0
    behind = (slot + 1) & s.mask
    while e.table[s.first_slot + behind]:
        moved = e.nodes[e.table[s.first_slot + behind] - 1]
        home = child_home(moved.parent, name_of(e, moved.request, moved.start), s.mask)
        if (behind - home) & s.mask >= (behind - slot) & s.mask:
            e.table[s.first_slot + slot] = e.table[s.first_slot + behind]
            e.table[s.first_slot + behind] = 0
            slot = behind
        behind = (behind + 1) & s.mask


# pages of requests


def free_pages(s: EngineRow) -> int:
    """Pages that can be handed out now, evictable contents included."""
    return s.unused + s.evictable


def pages_needed(e: Core, s: EngineRow, r: int, tokens: int) -> int:
    """Pages that a request lacks to hold `tokens` tokens."""
    return max(-(-tokens // s.block) - e.requests[r].held, 0)


def make_room(e: Core, s: EngineRow, tokens: int) -> bool:
    """Evict until `tokens` tokens' worth of pages are unused or nothing can go; returns whether they are."""
    pages = -(-tokens // s.block)
    if pages > s.unused:
        s.unused += evict(e, s, pages - s.unused)
    return pages <= s.unused


def allocate_pages(e: Core, s: EngineRow, r: int, tokens: int) -> None:
    """Give a request fresh pages until it can hold `tokens` tokens."""
    fresh = pages_needed(e, s, r, tokens)
    if fresh > s.unused:
        make_room(e, s, fresh * s.block)
    s.unused -= fresh
    e.requests[r].held += fresh


def hold(e: Core, s: EngineRow, r: int, count: int, node: int) -> None:
    """Give a request the cached pages that end at a node."""
    hold_end(e, s, r, node)
    row = e.requests[r]
    row.held = row.hashed = count


def hold_end(e: Core, s: EngineRow, r: int, node: int) -> None:
    """A request's cached pages end at a node."""
    row = e.requests[r]
    if row.node != NOBODY:
        unlock(e, s, row.node)
    lock(e, s, node)
    row.node = node


def keep_pages(e: Core, s: EngineRow, r: int, tokens: int) -> None:
    """Put the full pages among a request's first `tokens` tokens into the tree, cut where its prompt ends; copies of what is there already
    are given back.
    """
    if not s.caching:
        return
    row = e.requests[r]
    full = tokens // s.block
    there = insert(e, s, r, full)
    node, prompt = s.found, row.prompt // s.block
    if 0 < prompt < full:
        insert(e, s, r, prompt)
    s.unused += max(there - row.hashed, 0)
    hold_end(e, s, r, node)
    row.hashed = full


def free_all(e: Core, s: EngineRow, r: int) -> None:
    """Take all pages from a request; those in the tree stay findable until they are evicted."""
    row = e.requests[r]
    s.unused += row.held - row.hashed
    if row.node != NOBODY:
        unlock(e, s, row.node)
    row.node, row.held, row.hashed = NOBODY, 0, 0


def cached_pages(e: Core, s: EngineRow, r: int) -> int:
    """Leading pages of a request's prompt that the cache holds; nothing counts as used."""
    node, done, pages = s.root, 0, (e.requests[r].prompt - 1) // s.block if s.caching else 0
    while done < pages:
        child = child_of(e, s, node, name_of(e, r, done))
        if child == NOBODY:
            break
        common = common_pages(e, s, child, r, done, pages)
        done += common
        if common < e.nodes[child].count:
            break
        node = child
    return done

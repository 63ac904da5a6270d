"""KV blocks of the engine in rows: who holds which, which contents can be found again, and what is evicted next.

Block ids, their reuse order and the eviction order are those of vLLM's pool for one full-attention group: blocks without contents go back
to the front of the free list (reused at once, last in first out), others to its back, the tail of the sequence first. The front is a
stack, what was never used follows it, and behind come the contents by when they were given back, linked both ways.

Names of contents: a block that several requests begin with has a name above 0 and is in the table; one that only its own request can ask
for has a name below 0, and is in the table once that request was preempted.
"""

from __future__ import annotations

from sim.engine.rows.layout import NOBODY, Core, EngineRow

OWN = 2**20  # blocks of a request, at most


def hand_out(e: Core, s: EngineRow) -> int:
    """The next free block; it loses its contents."""
    s.free -= 1
    block = s.stack
    if block != NOBODY:
        s.stack = e.blocks[block].behind
    elif s.fresh < s.end_block:
        block = s.fresh
        s.fresh += 1
    else:
        block = s.oldest
        unlink(e, s, block)
        forget(e, s, block)
    e.blocks[block].refs = 1
    return block


def link_last(e: Core, s: EngineRow, block: int) -> None:
    """The contents of a block nobody holds are evicted after all others."""
    row = e.blocks[block]
    row.before, row.behind = s.newest, NOBODY
    if s.newest == NOBODY:
        s.oldest = block
    else:
        e.blocks[s.newest].behind = block
    s.newest = block


def unlink(e: Core, s: EngineRow, block: int) -> None:
    """Take a block out of the order of eviction."""
    row = e.blocks[block]
    if row.before == NOBODY:
        s.oldest = row.behind
    else:
        e.blocks[row.before].behind = row.behind
    if row.behind == NOBODY:
        s.newest = row.before
    else:
        e.blocks[row.behind].before = row.before


def next_seat(e: Core, s: EngineRow) -> int:
    """The seat that the next request gets."""
    return e.running[s.first_running + s.seqs + s.seats - 1]


def held_by(e: Core, s: EngineRow, r: int) -> int:
    """Where the blocks of a request that has a seat begin."""
    return s.first_held + e.requests[r].seat * s.most_blocks


def name_of(e: Core, r: int, index: int) -> int:
    """Name of the contents of a request's block."""
    row = e.requests[r]
    if index < row.depth:
        return e.names[row.names + index] + 1
    return -(r * OWN + index + 1)


def find_hits(e: Core, s: EngineRow, r: int) -> int:
    """Blocks of the longest cached prefix, short of the last known token, listed at the next seat. `idle_hits` of them nobody holds.

    At least one token has to be computed for there to be logits to sample from.
    """
    s.idle_hits = 0
    row = e.requests[r]
    if not s.caching or (not row.depth and not row.preemptions):
        return 0
    most = (row.prompt + row.generated - 1) // s.block
    if not row.preemptions and row.depth < most:
        most = row.depth
    begin = s.first_held + next_seat(e, s) * s.most_blocks
    hits = 0
    while hits < most:
        block = e.table[s.first_slot + slot_of(e, s, name_of(e, r, hits))] - 1
        if block < 0:
            break
        e.held[begin + hits] = block
        hits += 1
        if not e.blocks[block].refs:
            s.idle_hits += 1
    if s.drops_last_hit and hits:
        hits -= 1
        if not e.blocks[e.held[begin + hits]].refs:
            s.idle_hits -= 1
    return hits


def cached_prefix(e: Core, s: EngineRow, r: int) -> int:
    """Leading blocks of a request's prompt that the cache holds, for those who ask from outside."""
    row = e.requests[r]
    most, hits = min(row.depth, (row.prompt - 1) // s.block) if s.caching else 0, 0
    while hits < most and e.table[s.first_slot + slot_of(e, s, e.names[row.names + hits] + 1)]:
        hits += 1
    return hits


def blocks_of(s: EngineRow, tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // s.block)


def sit(e: Core, s: EngineRow, r: int, hits: int) -> None:
    """A request gets its seat, and the hits that `find_hits` has just listed there."""
    row = e.requests[r]
    row.seat = next_seat(e, s)
    s.seats -= 1
    begin = held_by(e, s, r)
    for place in range(begin, begin + hits):
        block = e.held[place]
        refs = e.blocks[block].refs
        if refs:
            s.shared += 1
            if refs == 1:
                s.common += 1
        else:
            unlink(e, s, block)
            s.free -= 1
        e.blocks[block].refs = refs + 1
    row.held = row.hashed = hits


def allocate(e: Core, s: EngineRow, r: int, count: int) -> None:
    """Give a request so many fresh blocks."""
    row = e.requests[r]
    begin = held_by(e, s, r) + row.held
    for place in range(begin, begin + count):
        e.held[place] = hand_out(e, s)
    row.held += max(count, 0)


def remember(e: Core, s: EngineRow, r: int, tokens: int) -> None:
    """Make the full blocks among a request's first `tokens` tokens findable."""
    row = e.requests[r]
    full = tokens // s.block
    if not s.caching or full <= row.hashed:
        return
    begin = held_by(e, s, r)
    for index in range(row.hashed, full):
        block = e.held[begin + index]
        e.blocks[block].name = name_of(e, r, index)
        if index < row.depth:
            put_in_table(e, s, block)
    row.hashed = full


def give_back(e: Core, s: EngineRow, r: int) -> None:
    """Take seat and blocks from a request. Contents stay findable until their block is handed out again."""
    row = e.requests[r]
    begin = held_by(e, s, r)
    for place in range(begin + row.held - 1, begin - 1, -1):
        block = e.held[place]
        e.blocks[block].refs -= 1
        refs = e.blocks[block].refs
        if refs:
            s.shared -= 1
            if refs == 1:
                s.common -= 1
        elif e.blocks[block].name:
            link_last(e, s, block)
            s.free += 1
    for place in range(begin, begin + row.held):
        block = e.held[place]
        if not e.blocks[block].refs and not e.blocks[block].name:
            e.blocks[block].behind = s.stack
            s.stack = block
            s.free += 1
    e.running[s.first_running + s.seqs + s.seats] = row.seat
    s.seats += 1
    row.seat, row.held, row.hashed = NOBODY, 0, 0


def list_own(e: Core, s: EngineRow, r: int) -> None:
    """A request that is about to be preempted will ask for its own blocks again."""
    row = e.requests[r]
    begin = held_by(e, s, r)
    for index in range(row.depth, row.hashed):
        block = e.held[begin + index]
        if not e.blocks[block].listed:
            put_in_table(e, s, block)


# the table: blocks by name


def put_in_table(e: Core, s: EngineRow, block: int) -> None:
    """A block can be found by its name, or after those that have the same."""
    e.blocks[block].listed, e.blocks[block].copy = 1, NOBODY
    slot = s.first_slot + slot_of(e, s, e.blocks[block].name)
    if not e.table[slot]:
        e.table[slot] = block + 1
        return
    last = e.table[slot] - 1
    while e.blocks[last].copy != NOBODY:
        last = e.blocks[last].copy
    e.blocks[last].copy = block


def forget(e: Core, s: EngineRow, block: int) -> None:
    """A block loses its contents: where it was the one found by them, its oldest copy takes its place."""
    row = e.blocks[block]
    if row.listed:
        slot = slot_of(e, s, row.name)
        first = e.table[s.first_slot + slot] - 1
        if first != block:
            while e.blocks[first].copy != block:
                first = e.blocks[first].copy
            e.blocks[first].copy = row.copy
        elif row.copy != NOBODY:
            e.table[s.first_slot + slot] = row.copy + 1
        else:
            clear(e, s, slot)
    row.name = row.listed = 0
    row.copy = NOBODY


def slot_of(e: Core, s: EngineRow, name: int) -> int:
    """Slot of the table that has a name, or the empty one that it would get."""
    slot = home_of(name, s.mask)
    found = e.table[s.first_slot + slot]
    while found and e.blocks[found - 1].name != name:
        slot = (slot + 1) & s.mask
        found = e.table[s.first_slot + slot]
    return slot


def home_of(name: int, mask: int) -> int:
    """First place of a name in the hash table."""
    return (((name ^ (name >> 31)) & 0x7FFFFFFF) * 0x9E3779B1 >> 7) & mask


def clear(e: Core, s: EngineRow, slot: int) -> None:
    """Empty a slot, moving up those that were displaced past it."""
    e.table[s.first_slot + slot] = 0
    behind = (slot + 1) & s.mask
    while e.table[s.first_slot + behind]:
        home = home_of(e.blocks[e.table[s.first_slot + behind] - 1].name, s.mask)
        if (behind - home) & s.mask >= (behind - slot) & s.mask:
            e.table[s.first_slot + slot] = e.table[s.first_slot + behind]
            e.table[s.first_slot + behind] = 0
            slot = behind
        behind = (behind + 1) & s.mask

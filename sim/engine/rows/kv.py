"""KV blocks of the engine in rows: how many a request holds, which contents can be found again, and what is evicted next.

Hits and evictions are those of vLLM's pool for one full-attention group: blocks without contents are handed out first, then contents by
when they were given back, the tail of a sequence before its head. Only contents that can be asked for again have a row: a block that
several requests begin with has one of its own, and can be found in the table by its name. What only its own request can ask for, after it
was preempted, is counted while it is held; given back, it is one run.
"""

from __future__ import annotations

from typing import Any

from sim.engine.rows.layout import NOBODY, Core, EngineRow


def hand_out(e: Core, s: EngineRow, count: int) -> None:
    """So many free blocks are held; what was in them is lost."""
    s.free -= count
    blank = min(count, s.blank)
    s.blank -= blank
    count -= blank
    while count:
        place = s.oldest
        row = e.blocks[place]
        taken = min(count, row.count)
        row.count -= taken
        count -= taken
        if row.count:
            return
        unlink(e, s, place)
        if row.name:
            forget(e, s, place)
        else:
            forget_run(e, s, place)


def new_row(e: Core, s: EngineRow, count: int) -> int:
    """A row for so many blocks."""
    place = s.stack
    if place == NOBODY:
        place = s.fresh
        s.fresh += 1
    else:
        s.stack = e.blocks[place].behind
    row = e.blocks[place]
    row.count, row.refs, row.name, row.copy = count, 0, 0, NOBODY
    return place


def free_row(e: Core, s: EngineRow, place: int) -> None:
    """A row stands for nothing any more."""
    e.blocks[place].behind = s.stack
    s.stack = place


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
    hits, common = 0, min(most, row.depth)
    while hits < common:
        block = e.table[s.first_slot + slot_of(e, s, e.names[row.names + hits] + 1)] - 1
        if block < 0:
            break
        e.held[begin + hits] = block
        hits += 1
        if not e.blocks[block].refs:
            s.idle_hits += 1
    if hits == row.depth:
        run = run_with(e, row.own, hits)
        while hits < most and run != NOBODY:
            end = min(e.blocks[run].first + e.blocks[run].count, most)
            s.idle_hits += end - hits
            hits = end
            run = run_with(e, row.own, hits)
    if s.drops_last_hit and hits:
        hits -= 1
        if hits >= row.depth or not e.blocks[e.held[begin + hits]].refs:
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
    for place in range(begin, begin + min(hits, row.depth)):
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
    for index in range(row.depth, hits):
        take_from_run(e, s, r, index)
    row.held = row.hashed = row.hits = hits


def allocate(e: Core, s: EngineRow, r: int, count: int) -> None:
    """Give a request so many fresh blocks."""
    if count > 0:
        hand_out(e, s, count)
        e.requests[r].held += count


def remember(e: Core, s: EngineRow, r: int, tokens: int) -> None:
    """Make the full blocks among a request's first `tokens` tokens findable."""
    row = e.requests[r]
    full = tokens // s.block
    if not s.caching or full <= row.hashed:
        return
    for index in range(row.hashed, min(full, row.depth)):
        block = new_row(e, s, 1)
        e.blocks[block].refs, e.blocks[block].name = 1, e.names[row.names + index] + 1
        e.held[held_by(e, s, r) + index] = block
        put_in_table(e, s, block)
    row.hashed = full


def give_back(e: Core, s: EngineRow, r: int) -> None:
    """Take seat and blocks from a request. Contents stay findable until their block is handed out again."""
    row = e.requests[r]
    begin, found = held_by(e, s, r), max(row.hits, row.depth)
    if row.hashed > found:
        keep_run(e, s, r, found, row.hashed)
    if found > row.depth:
        keep_run(e, s, r, row.depth, found)
    for place in range(begin + min(row.hashed, row.depth) - 1, begin - 1, -1):
        block = e.held[place]
        e.blocks[block].refs -= 1
        refs = e.blocks[block].refs
        if refs:
            s.shared -= 1
            if refs == 1:
                s.common -= 1
        else:
            link_last(e, s, block)
            s.free += 1
    s.blank += row.held - row.hashed
    s.free += row.held - row.hashed
    e.running[s.first_running + s.seqs + s.seats] = row.seat
    s.seats += 1
    row.seat, row.held, row.hashed = NOBODY, 0, 0


# runs: contents that only their own request can ask for


def keep_run(e: Core, s: EngineRow, r: int, first: int, end: int) -> None:
    """A request gives back blocks with contents. Where it was preempted it may ask for them: for the oldest copy of each, which is the one
    that it found when it was admitted.
    """
    place = new_row(e, s, end - first)
    row, request = e.blocks[place], e.requests[r]
    row.request, row.first = r if request.preemptions else NOBODY, first
    link_last(e, s, place)
    s.free += end - first
    if not request.preemptions:
        return
    if request.own == NOBODY or end <= request.hits:
        row.copy, request.own = request.own, place
        return
    last = request.own
    while e.blocks[last].copy != NOBODY:
        last = e.blocks[last].copy
    e.blocks[last].copy = place


def run_with(e: Core, run: int, index: int) -> int:
    """The first of a request's runs, from one on, that has a block of it."""
    while run != NOBODY and not e.blocks[run].first <= index < e.blocks[run].first + e.blocks[run].count:
        run = e.blocks[run].copy
    return run


def take_from_run(e: Core, s: EngineRow, r: int, index: int) -> None:
    """A request holds a block of its own again: its run goes on before and after that, the tail evicted sooner."""
    place = run_with(e, e.requests[r].own, index)
    row = e.blocks[place]
    behind = row.first + row.count - index - 1
    row.count = index - row.first
    s.free -= 1
    if behind:
        tail = new_row(e, s, behind)
        other = e.blocks[tail]
        other.request, other.first, other.copy, row.copy = r, index + 1, row.copy, tail
        other.before, other.behind, row.before = row.before, place, tail
        if other.before == NOBODY:
            s.oldest = tail
        else:
            e.blocks[other.before].behind = tail
    if not row.count:
        unlink(e, s, place)
        forget_run(e, s, place)


def forget_run(e: Core, s: EngineRow, place: int) -> None:
    """Nothing is left of a run."""
    r = e.blocks[place].request
    run = e.requests[r].own if r != NOBODY else NOBODY
    if run == place:
        e.requests[r].own = e.blocks[place].copy
    else:
        while run != NOBODY and e.blocks[run].copy != place:
            run = e.blocks[run].copy
        if run != NOBODY:
            e.blocks[run].copy = e.blocks[place].copy
    free_row(e, s, place)


# the table: blocks by name


def put_in_table(e: Core, s: EngineRow, block: int) -> None:
    """A block can be found by its name, or after those that have the same."""
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
    free_row(e, s, block)


def slot_of(e: Core, s: EngineRow, name: int) -> int:
    """Slot of the table that has a name, or the empty one that it would get."""
    return slot_in(e.table, s.first_slot, s.mask, e.blocks, name)


def clear(e: Core, s: EngineRow, slot: int) -> None:
    """Empty a slot, moving up those that were displaced past it."""
    clear_in(e.table, s.first_slot, s.mask, e.blocks, slot)


def home_of(name: int, mask: int) -> int:
    """First place of a name in the hash table."""
    return (((name ^ (name >> 31)) & 0x7FFFFFFF) * 0x9E3779B1 >> 7) & mask


def slot_in(table: Any, first: int, mask: int, rows: Any, name: int) -> int:
    """Slot of a name in the `mask` + 1 slots from `first` on, each with a place in `rows` + 1, or the empty one that it would get."""
    slot = home_of(name, mask)
    found = table[first + slot]
    while found and rows[found - 1].name != name:
        slot = (slot + 1) & mask
        found = table[first + slot]
    return slot


def clear_in(table: Any, first: int, mask: int, rows: Any, slot: int) -> None:
    """Empty a slot of such a table, moving up those that were displaced past it."""
    table[first + slot] = 0
    behind = (slot + 1) & mask
    while table[first + behind]:
        home = home_of(rows[table[first + behind] - 1].name, mask)
        if (behind - home) & mask >= (behind - slot) & mask:
            table[first + slot] = table[first + behind]
            table[first + behind] = 0
            slot = behind
        behind = (behind + 1) & mask

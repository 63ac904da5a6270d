"""Host RAM below the KV cache, as vLLM's OffloadingConnector keeps it: an inclusive copy of all full chunks of prompts.

A chunk is a KV block or several, written, found and evicted as one. Chunks are written as they are computed, or as they have been offered
often enough, whether or not HBM ever evicts them: what the host adds is what it holds beyond HBM. A request whose chunks lie there beyond
the blocks in HBM waits outside the batch while they are loaded, holding its blocks, and nobody else waits for it.
Decisions are those of vLLM 0.33's CPUOffloadingManager with its least-recently-used policy: recency is one rank per request, first when it
is first looked at and anew when it finishes, tails evicted before heads; chunks that are being written or read stay; chunks that do not
all fit are refused together, and offered again with the next iteration. Transfers of one direction run one after the other.

Not modelled: that a step waits for the write of a finished or preempted request whose blocks are needed again.
"""

from __future__ import annotations

from sim.engine.rows.kv import allocate, blocks_of, clear_in, sit, slot_in
from sim.engine.rows.layout import NEVER, NOBODY, Core, EngineRow
from sim.engine.rows.radix import name_of
from sim.engine.rows.waiting import hold_place

LATER = 2**20  # chunks of a prompt, at most: the place of a chunk within its request's rank
WRITING = -1  # `pins` of a chunk whose write is not over


def chunks_to_offer(e: Core, s: EngineRow, r: int) -> int:
    """Full chunks of a request's prompt that are computed, by iterations under way, too."""
    return min(e.requests[r].computed, e.requests[r].prompt) // s.chunk_tokens


def load(e: Core, s: EngineRow, r: int, hits: int, count: int) -> bool:
    """Take a request's blocks and begin to load `count` of them, behind its `hits` in HBM. Returns False where they do not fit."""
    row = e.requests[r]
    known, held, room = row.prompt + row.generated, hits + count, s.free - (s.watermark if s.running else 0)
    if (-(-known // s.block) if s.reserve else held) - hits + s.idle_hits > room:
        return False
    if not s.seats or held - hits + s.idle_hits > room - blocks_to_come(e, s) - blocks_of(s, verified_slots(s)):
        return False
    sit(e, s, r, hits)
    allocate(e, s, r, count)
    pin_hits(e, s, r, hits, count)
    row.from_host, row.loading, row.load_over, row.offered, row.fills = count, 2, NEVER, held // s.chunk, 1
    row.computed = min(held * s.block, known - 1)  # there is a token to sample from
    if not row.preemptions:
        row.cached, row.host_cached = held * s.block, count * s.block
    hold_place(e, s, r)
    return True


def blocks_to_come(e: Core, s: EngineRow) -> int:
    """Blocks that requests still need for what they know and for the drafts verified next: those that load, or are in a prefill that this
    decision does not begin and complete.
    """
    count, r, more = 0, s.head, verified_slots(s)
    while r != NOBODY and e.requests[r].loading:
        count += max(blocks_of(s, e.requests[r].prompt + e.requests[r].generated + more) - e.requests[r].held, 0)
        r = e.requests[r].behind
    for place in range(s.running):
        row = e.requests[e.running[s.first_running + place]]
        if row.fills == 1 or row.fills == -s.decisions:
            count += max(blocks_of(s, row.prompt + row.generated + more) - row.held, 0)
    return count


def verified_slots(s: EngineRow) -> int:
    """KV slots of an iteration that verifies a request's drafts, with those into which its drafter writes."""
    return 1 + s.drafting + s.lookahead if s.drafting else 0


def host_hits(e: Core, s: EngineRow, r: int, start: int) -> int:
    """Blocks of what a request knows from the `start`-th on that host RAM has, a chunk or more without a gap; -1 where one of them is being
    written or read, for which the request waits.
    """
    row = e.requests[r]
    most, index, written, read = (row.prompt + row.generated) // s.chunk_tokens, start // s.chunk, False, False
    if (most - 1) * s.chunk < start:
        return 0
    while index < most:
        chunk = chunk_of(e, s, chunk_name(e, s, r, index))
        if chunk == NOBODY:
            break
        written = written or e.chunks[chunk].pins == WRITING
        read = read or e.chunks[chunk].pins > 0
        index += 1
    if not written and (index - 1) * s.chunk < start:
        return 0
    return -1 if written or read else index * s.chunk - start


def pin_hits(e: Core, s: EngineRow, r: int, start: int, count: int) -> None:
    """Blocks of a request are about to be loaded: their chunks are used, and stay."""
    for index in range(start // s.chunk, (start + count) // s.chunk):
        chunk = chunk_of(e, s, chunk_name(e, s, r, index))
        take_from_heap(e, s, chunk)
        e.chunks[chunk].pins += 1
        look_at(e, s, r, index, chunk)


def unpin_hits(e: Core, s: EngineRow, r: int, start: int, count: int) -> None:
    """They have been loaded."""
    for index in range(start // s.chunk, (start + count) // s.chunk):
        chunk = chunk_of(e, s, chunk_name(e, s, r, index))
        e.chunks[chunk].pins -= 1
        if not e.chunks[chunk].pins:
            put_in_heap(e, s, chunk)


def offer(e: Core, s: EngineRow, r: int, end: int) -> None:
    """Write a request's first `end` chunks, as far as they have not been offered since its admission, are not there, and have been offered
    often enough.
    """
    row = e.requests[r]
    start, wanted, kept = row.offered, 0, 0
    if start >= end:
        return
    if s.most_counted:
        count_offers(e, s, r, start, end)
    for index in range(start, end):
        name = chunk_name(e, s, r, index)
        chunk = chunk_of(e, s, name)
        if chunk == NOBODY:
            if wants(e, s, name):
                wanted += 1
                look_at(e, s, r, index, chunk)
        elif e.chunks[chunk].pins >= 0:
            look_at(e, s, r, index, chunk)
            kept += int(e.chunks[chunk].pins == 0)
    evicted = wanted - s.host_blank
    if evicted > s.evictable_chunks - kept:
        return
    if evicted > 0:
        make_host_room(e, s, r, start, end, evicted)
    for index in range(start, end):
        name = chunk_name(e, s, r, index)
        if chunk_of(e, s, name) == NOBODY and wants(e, s, name):
            write(e, s, r, index, name)
    row.offered = end


# offers, counted of the chunks that were offered last


def count_offers(e: Core, s: EngineRow, r: int, start: int, end: int) -> None:
    """A request offers chunks, once more. Those whose latest offer is longest past are forgotten, but none of these."""
    others = s.counted
    for index in range(start, end):
        place = count_of(e, s, chunk_name(e, s, r, index))
        if place != NOBODY:
            unlink_count(e, s, place)
            link_count(e, s, place)
            e.counts[place].offers += 1
            others -= 1
    for index in range(start, end):
        name = chunk_name(e, s, r, index)
        if count_of(e, s, name) != NOBODY or (s.counted == s.most_counted and not others):
            continue
        place = s.first_count + s.counted
        if s.counted == s.most_counted:
            place = s.longest_counted
            others -= 1
            unlink_count(e, s, place)
            clear_in(e.table, s.first_count_slot, s.count_mask, e.counts, count_slot(e, s, e.counts[place].name))
        else:
            s.counted += 1
        e.counts[place].name, e.counts[place].offers = name, 1
        link_count(e, s, place)
        e.table[s.first_count_slot + count_slot(e, s, name)] = place + 1


def wants(e: Core, s: EngineRow, name: int) -> bool:
    """Whether a chunk of that name has been offered often enough to be written."""
    if not s.most_counted:
        return True
    place = count_of(e, s, name)
    return place != NOBODY and e.counts[place].offers >= s.least_offers


def count_of(e: Core, s: EngineRow, name: int) -> int:
    """Where the offers of a name are counted; NOBODY where they are not."""
    return e.table[s.first_count_slot + count_slot(e, s, name)] - 1


def count_slot(e: Core, s: EngineRow, name: int) -> int:
    """Slot of the table of counts that has a name, or the empty one that it would get."""
    return slot_in(e.table, s.first_count_slot, s.count_mask, e.counts, name)


def link_count(e: Core, s: EngineRow, place: int) -> None:
    """A chunk has been offered later than all others."""
    e.counts[place].before, e.counts[place].behind = s.latest_counted, NOBODY
    if s.latest_counted == NOBODY:
        s.longest_counted = place
    else:
        e.counts[s.latest_counted].behind = place
    s.latest_counted = place


def unlink_count(e: Core, s: EngineRow, place: int) -> None:
    """A chunk leaves the order of offers."""
    before, behind = e.counts[place].before, e.counts[place].behind
    if before == NOBODY:
        s.longest_counted = behind
    else:
        e.counts[before].behind = behind
    if behind == NOBODY:
        s.latest_counted = before
    else:
        e.counts[behind].before = before


def make_host_room(e: Core, s: EngineRow, r: int, start: int, end: int, count: int) -> None:
    """Evict so many chunks, none of those that a request offers."""
    for index in range(start, end):
        chunk = chunk_of(e, s, chunk_name(e, s, r, index))
        if chunk != NOBODY and e.chunks[chunk].pins == 0:
            take_from_heap(e, s, chunk)
    for _ in range(count):
        chunk = e.chunks[s.first_chunk].heap
        take_from_heap(e, s, chunk)
        forget_chunk(e, s, chunk)
    for index in range(start, end):
        chunk = chunk_of(e, s, chunk_name(e, s, r, index))
        if chunk != NOBODY and e.chunks[chunk].pins == 0:
            put_in_heap(e, s, chunk)


def write(e: Core, s: EngineRow, r: int, index: int, name: int) -> None:
    """A chunk is written with the iteration after this."""
    chunk = s.spare_chunk
    if chunk == NOBODY:
        chunk = s.next_chunk
        s.next_chunk += 1
    else:
        s.spare_chunk = e.chunks[chunk].behind
    s.host_blank -= 1
    row = e.chunks[chunk]
    row.name, row.pins, row.request, row.over, row.behind, row.place = name, WRITING, r, NEVER, NOBODY, NOBODY
    row.since = s.decisions
    row.rank = rank_of(e, s, r, index)
    e.table[s.first_host_slot + host_slot(e, s, name)] = chunk + 1
    if s.writes == NOBODY:
        s.writes = chunk
    else:
        e.chunks[s.last_write].behind = chunk
    s.last_write = chunk
    if s.unsent_write == NOBODY:
        s.unsent_write = chunk
    e.requests[r].writing += 1


def finish_offers(e: Core, s: EngineRow) -> None:
    """Requests that have finished since the decision before are offered whole, and what they used counts as used now."""
    while s.gone != NOBODY:
        r = s.gone
        s.gone = e.requests[r].behind
        e.requests[r].behind = NOBODY
        offer(e, s, r, chunks_to_offer(e, s, r))
        finish_use(e, s, r)


def finish_use(e: Core, s: EngineRow, r: int) -> None:
    """A request is through: what it looked at is used last, its head the latest of it."""
    row = e.requests[r]
    for index in range(row.looked - 1, -1, -1):
        if index >= row.depth // s.chunk or e.seen[row.seen + index]:
            chunk = chunk_of(e, s, chunk_name(e, s, r, index))
            if chunk != NOBODY:
                s.host_rank += 1
                put_rank(e, s, chunk, s.host_rank * LATER + LATER - 1)


def look_at(e: Core, s: EngineRow, r: int, index: int, chunk: int) -> None:
    """A request uses a chunk, or will write it: the chunk is at least as recent as that request."""
    row = e.requests[r]
    if index < row.depth // s.chunk:
        if e.seen[row.seen + index]:
            return
        e.seen[row.seen + index] = 1
    elif index < row.looked:
        return
    row.looked = max(row.looked, index + 1)
    rank = rank_of(e, s, r, index)
    if chunk != NOBODY and e.chunks[chunk].rank < rank:
        put_rank(e, s, chunk, rank)


def rank_of(e: Core, s: EngineRow, r: int, index: int) -> int:
    """Recency of a chunk by a request that is under way."""
    row = e.requests[r]
    if not row.host_rank:
        s.host_rank += 1
        row.host_rank = s.host_rank
    return row.host_rank * LATER + LATER - 2 - index


# transfers


def note_transfers(e: Core, s: EngineRow) -> None:
    """Writes and loads that are over. Loaded requests can be scheduled.

    The worker looks for them when it launches an iteration, and says so with its tokens; without iterations it looks again and again.
    """
    now = min(s.polled, s.now) if s.running else s.now
    while s.writes != NOBODY and e.chunks[s.writes].over <= now:
        chunk = s.writes
        row = e.chunks[chunk]
        s.writes = row.behind
        row.behind, row.pins = NOBODY, 0
        e.requests[row.request].writing -= 1
        put_in_heap(e, s, chunk)
    r = s.head
    while r != NOBODY and e.requests[r].loading:
        one = e.requests[r]
        if one.loading > 1 and one.load_over <= now:
            unpin_hits(e, s, r, one.hashed, one.from_host)
            one.loading = 1
        r = one.behind


def send_transfers(e: Core, s: EngineRow, now: int, computed: int, before: int) -> None:
    """An iteration begins now: writes of decisions `before` that one begin when the iteration before is `computed`, and loads at once."""
    while s.unsent_write != NOBODY and e.chunks[s.unsent_write].since < before:
        row = e.chunks[s.unsent_write]
        s.writes_end = max(s.writes_end, computed) + s.write_ticks
        row.over = s.writes_end
        s.unsent_write = row.behind
    r = s.head
    while r != NOBODY and e.requests[r].loading:
        one = e.requests[r]
        if one.load_over == NEVER:
            s.loads_end = max(s.loads_end, now) + s.load_latency + one.from_host * s.load_ticks
            one.load_over = s.loads_end
        r = one.behind


def next_transfer(e: Core, s: EngineRow) -> int:
    """When the next transfer is over that somebody may wait for."""
    found, r = NEVER, s.head
    if s.writes != NOBODY:
        found = e.chunks[s.writes].over
    while r != NOBODY and e.requests[r].loading:
        if e.requests[r].loading > 1:
            found = min(found, e.requests[r].load_over)
        r = e.requests[r].behind
    return found


# the heap of chunks that can be evicted: `heap` of the n-th row is the n-th of the heap


def put_rank(e: Core, s: EngineRow, chunk: int, rank: int) -> None:
    """A chunk becomes as recent as a rank says, which is later than its own."""
    e.chunks[chunk].rank = rank
    if e.chunks[chunk].place != NOBODY:
        sink(e, s, e.chunks[chunk].place)


def put_in_heap(e: Core, s: EngineRow, chunk: int) -> None:
    """A chunk can be evicted."""
    s.evictable_chunks += 1
    settle(e, s, s.evictable_chunks - 1, chunk)
    rise(e, s, s.evictable_chunks - 1)


def take_from_heap(e: Core, s: EngineRow, chunk: int) -> None:
    """A chunk cannot be evicted any more."""
    place = e.chunks[chunk].place
    if place == NOBODY:
        return
    s.evictable_chunks -= 1
    e.chunks[chunk].place = NOBODY
    last = e.chunks[s.first_chunk + s.evictable_chunks].heap
    if last != chunk:
        settle(e, s, place, last)
        rise(e, s, place)
        sink(e, s, e.chunks[last].place)


def settle(e: Core, s: EngineRow, place: int, chunk: int) -> None:
    """A place of the heap has a chunk."""
    e.chunks[s.first_chunk + place].heap = chunk
    e.chunks[chunk].place = place


def heap_rank(e: Core, s: EngineRow, place: int) -> int:
    """Rank of the chunk at a place of the heap."""
    return e.chunks[e.chunks[s.first_chunk + place].heap].rank


def rise(e: Core, s: EngineRow, place: int) -> None:
    """Move a chunk up the heap until the one above it is less recent."""
    chunk = e.chunks[s.first_chunk + place].heap
    while place and e.chunks[chunk].rank < heap_rank(e, s, (place - 1) // 2):
        settle(e, s, place, e.chunks[s.first_chunk + (place - 1) // 2].heap)
        place = (place - 1) // 2
    settle(e, s, place, chunk)


def sink(e: Core, s: EngineRow, place: int) -> None:
    """Move a chunk down the heap until those below it are more recent."""
    chunk, below = e.chunks[s.first_chunk + place].heap, 2 * place + 1
    while below < s.evictable_chunks:
        if below + 1 < s.evictable_chunks and heap_rank(e, s, below + 1) < heap_rank(e, s, below):
            below += 1
        if e.chunks[chunk].rank <= heap_rank(e, s, below):
            break
        settle(e, s, place, e.chunks[s.first_chunk + below].heap)
        place, below = below, 2 * below + 1
    settle(e, s, place, chunk)


# the table: chunks by name


def chunk_name(e: Core, s: EngineRow, r: int, index: int) -> int:
    """Name of a request's chunk, that of its last block, which stands for all before it."""
    return name_of(e, r, (index + 1) * s.chunk - 1)


def chunk_of(e: Core, s: EngineRow, name: int) -> int:
    """The chunk of that name; NOBODY where host RAM has none."""
    return e.table[s.first_host_slot + host_slot(e, s, name)] - 1


def host_slot(e: Core, s: EngineRow, name: int) -> int:
    """Slot of the table that has a name, or the empty one that it would get."""
    return slot_in(e.table, s.first_host_slot, s.host_mask, e.chunks, name)


def forget_chunk(e: Core, s: EngineRow, chunk: int) -> None:
    """A chunk is evicted; those that were displaced past it move up."""
    clear_in(e.table, s.first_host_slot, s.host_mask, e.chunks, host_slot(e, s, e.chunks[chunk].name))
    e.chunks[chunk].behind = s.spare_chunk
    s.spare_chunk = chunk
    s.host_blank += 1

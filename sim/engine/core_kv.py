"""KV blocks of the array engine: the same occupancy and the same hits as sim.engine.kv.cache, without naming every block.

Blocks that only their own request can ask for are counted; a block whose contents others also ask for (see sim.workload.sources) is a node.
Free blocks without contents are all alike and go first. Then come, in the order of eviction, the runs of requests that have left and the
nodes that nobody holds, linked both ways: a link is where a request's numbers begin, or -2 less where a node's do; -1 ends the list. Of a
preempted request's own blocks the last are evicted first, so what it finds again is how many are left of its run.
"""

from __future__ import annotations

import sim.engine.core_state as at
from sim.engine.core_state import Core


def take(e: Core, count: int) -> None:
    """Hand out `count` blocks, evicting the least recently used contents."""
    s, q = e.s, e.q
    s[at.FREE] -= count
    if count <= s[at.UNHASHED]:
        s[at.UNHASHED] -= count
        return
    count -= s[at.UNHASHED]
    s[at.UNHASHED] = 0
    while count:
        oldest = s[at.OLDEST]
        if oldest < 0:
            count -= 1
            unlink(e, oldest)
            forget(e, -2 - oldest)
            continue
        if q[oldest + at.RUN] > count:
            q[oldest + at.RUN] -= count
            return
        count -= q[oldest + at.RUN]
        unlink(e, oldest)
        q[oldest + at.RUN] = 0


def link(e: Core, before: int, behind: int) -> None:
    """Let one follow another in the order of eviction."""
    if before == -1:
        e.s[at.OLDEST] = behind
    elif before >= 0:
        e.q[before + at.RUN_AFTER] = behind
    else:
        e.nodes[-2 - before + at.AFTER] = behind
    if behind == -1:
        e.s[at.NEWEST] = before
    elif behind >= 0:
        e.q[behind + at.RUN_BEFORE] = before
    else:
        e.nodes[-2 - behind + at.BEFORE] = before


def append(e: Core, last: int) -> None:
    """Put a run or a node at the end of the order of eviction."""
    link(e, e.s[at.NEWEST], last)
    link(e, last, -1)


def unlink(e: Core, each: int) -> None:
    """Take a run or a node out of the order of eviction."""
    if each >= 0:
        link(e, e.q[each + at.RUN_BEFORE], e.q[each + at.RUN_AFTER])
    else:
        link(e, e.nodes[-2 - each + at.BEFORE], e.nodes[-2 - each + at.AFTER])


def give_blocks(e: Core, request: int, tokens: int, findable: int) -> None:
    """Take the blocks of a request that computed `tokens` tokens; those of the `findable` first ones keep their contents."""
    s, q, block = e.s, e.q, e.s[at.BLOCK]
    total, full = -(-tokens // block), findable // block if s[at.CACHING] else 0
    if q[request + at.DEPTH]:
        remember(e, request, min(full, q[request + at.DEPTH]))
    held = q[request + at.HELD]
    s[at.UNHASHED] += total - full
    s[at.FREE] += total - held
    if full > held:
        q[request + at.RUN] = full - held
        append(e, request)
    if q[request + at.DEPTH]:
        begin = q[request + at.OF_SEAT] * s[at.DEPTHS]
        for place in range(begin + held - 1, begin - 1, -1):
            node = e.held[place]
            e.nodes[node + at.HOLDERS] -= 1
            if e.nodes[node + at.HOLDERS]:
                s[at.SHARED] -= 1
                s[at.COMMON] -= int(e.nodes[node + at.HOLDERS] == 1)
            else:
                append(e, -2 - node)
                s[at.FREE] += 1
        q[request + at.HELD] = 0
        e.w[s[at.SEATS] * at.SEAT + at.SEAT_AT] = q[request + at.OF_SEAT]
        s[at.SEATS] += 1


def take_back(e: Core, request: int) -> None:
    """Give a preempted request what it finds again of its own blocks."""
    e.s[at.FREE] -= e.q[request + at.RUN]
    unlink(e, request)
    e.q[request + at.RUN] = 0


# blocks that several ask for


def find_hits(e: Core, request: int) -> int:
    """Number of blocks of the longest cached prefix that others also ask for, short of the last known token; they are listed at the seat
    that the request would get. Returns how many of them nobody holds.
    """
    s, q = e.s, e.q
    s[at.HITS], idle = 0, 0
    depth = q[request + at.DEPTH]
    if not depth:
        return 0
    most = min(depth, (q[request + at.PROMPT] + q[request + at.GENERATED] - 1) // s[at.BLOCK])
    name, begin = q[request + at.NAMES], e.w[(s[at.SEATS] - 1) * at.SEAT + at.SEAT_AT] * s[at.DEPTHS]
    for i in range(most):
        found = e.table[slot_of(e, e.names[name + i])] - 1
        if found < 0:
            break
        e.held[begin + i] = found
        s[at.HITS] = i + 1
        if not e.nodes[found + at.HOLDERS]:
            idle += 1
    return idle


def adopt(e: Core, request: int) -> None:
    """Give a request its seat, and the hits that `find_hits` has just listed there."""
    s, q = e.s, e.q
    s[at.SEATS] -= 1
    q[request + at.OF_SEAT] = e.w[s[at.SEATS] * at.SEAT + at.SEAT_AT]
    q[request + at.HELD] = s[at.HITS]
    begin = q[request + at.OF_SEAT] * s[at.DEPTHS]
    for place in range(begin, begin + s[at.HITS]):
        node = e.held[place]
        if e.nodes[node + at.HOLDERS]:
            s[at.SHARED] += 1
            s[at.COMMON] += int(e.nodes[node + at.HOLDERS] == 1)
        else:
            unlink(e, -2 - node)
            s[at.FREE] -= 1
        e.nodes[node + at.HOLDERS] += 1


def remember(e: Core, request: int, full: int) -> None:
    """Make the first `full` of the request's blocks findable, all of them ones that others also ask for."""
    s, q, nodes = e.s, e.q, e.nodes
    begin = q[request + at.OF_SEAT] * s[at.DEPTHS]
    for i in range(q[request + at.HELD], full):
        node = s[at.NODE_FREE]
        if node >= 0:
            s[at.NODE_FREE] = nodes[node + at.AFTER]
        else:
            node = s[at.NODES]
            s[at.NODES] += at.NODE
        name = e.names[q[request + at.NAMES] + i]
        nodes[node + at.NAME], nodes[node + at.HOLDERS], nodes[node + at.COPY] = name, 1, -1
        e.held[begin + i] = node
        slot = slot_of(e, name)
        if e.table[slot]:
            last = e.table[slot] - 1
            while nodes[last + at.COPY] >= 0:
                last = nodes[last + at.COPY]
            nodes[last + at.COPY] = node
        else:
            e.table[slot] = node + 1
    q[request + at.HELD] = max(q[request + at.HELD], full)


def forget(e: Core, node: int) -> None:
    """A node loses its contents: where it was the one found by them, its oldest copy takes its place."""
    s, nodes = e.s, e.nodes
    slot = slot_of(e, nodes[node + at.NAME])
    first = e.table[slot] - 1
    if first != node:
        while nodes[first + at.COPY] != node:
            first = nodes[first + at.COPY]
        nodes[first + at.COPY] = nodes[node + at.COPY]
    elif nodes[node + at.COPY] >= 0:
        e.table[slot] = nodes[node + at.COPY] + 1
    else:
        clear(e, slot)
    nodes[node + at.AFTER] = s[at.NODE_FREE]
    s[at.NODE_FREE] = node


def slot_of(e: Core, name: int) -> int:
    """Slot of the table that has a name, or the empty one that it would get."""
    mask = len(e.table) - 1
    slot = home_of(name, mask)
    while e.table[slot] and e.nodes[e.table[slot] - 1 + at.NAME] != name:
        slot = (slot + 1) & mask
    return slot


def home_of(name: int, mask: int) -> int:
    """First place of a name in the hash table."""
    return (name * 0x9E3779B1 >> 7) & mask


def clear(e: Core, slot: int) -> None:
    """Empty a slot, moving up those that were displaced past it."""
    mask = len(e.table) - 1
    e.table[slot] = 0
    behind = (slot + 1) & mask
    while e.table[behind]:
        home = home_of(e.nodes[e.table[behind] - 1 + at.NAME], mask)
        if (behind - home) & mask >= (behind - slot) & mask:
            e.table[slot] = e.table[behind]
            e.table[behind] = 0
            slot = behind
        behind = (behind + 1) & mask

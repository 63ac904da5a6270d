"""The waiting queue of the engine in rows: first come first served, or by rank, linked both ways.

A request whose tokens are still on the way (preempted while an iteration computed them) keeps its place and is passed over. Those whose KV
is loaded from host RAM wait before all others (sim.engine.rows.offload).
"""

from __future__ import annotations

from sim.engine.rows.layout import NOBODY, OUTSIDE, QUEUED, Core, EngineRow


def add(e: Core, s: EngineRow, r: int) -> None:
    """Queue a request: last, or by its rank."""
    after = s.tail
    if s.ranked:
        while after != NOBODY and not e.requests[after].loading and sooner(e, r, after):
            after = e.requests[after].before
    insert_behind(e, s, r, after)


def put_back(e: Core, s: EngineRow, r: int) -> None:
    """Queue a preempted request before all others, or by its rank."""
    if s.ranked:
        add(e, s, r)
    else:
        insert_behind(e, s, r, last_holder(e, s))


def last_holder(e: Core, s: EngineRow) -> int:
    """The last of those at the head of the queue that wait for their KV to be loaded, or have it."""
    found, r = NOBODY, s.head
    while r != NOBODY and e.requests[r].loading:
        found, r = r, e.requests[r].behind
    return found


def hold_place(e: Core, s: EngineRow, r: int) -> None:
    """A request whose KV is being loaded waits before all that hold none."""
    e.requests[r].loading = 0
    after = last_holder(e, s)
    while s.ranked and after != NOBODY and sooner(e, r, after):
        after = e.requests[after].before
    take_out(e, s, r)
    insert_behind(e, s, r, after)
    e.requests[r].loading = 2


def pass_over(e: Core, s: EngineRow, r: int) -> None:
    """A waiting request is left out of this decision."""
    e.requests[r].passed = s.decisions
    s.deferred += 1 - e.requests[r].deferred
    e.requests[r].deferred = 1


def insert_behind(e: Core, s: EngineRow, r: int, after: int) -> None:
    """Queue a request behind another, or before all."""
    row = e.requests[r]
    row.state = QUEUED
    row.before = after
    row.behind = s.head if after == NOBODY else e.requests[after].behind
    if after == NOBODY:
        s.head = r
    else:
        e.requests[after].behind = r
    if row.behind == NOBODY:
        s.tail = r
    else:
        e.requests[row.behind].before = r
    s.queued += 1


def take_out(e: Core, s: EngineRow, r: int) -> None:
    """A request leaves the queue."""
    row = e.requests[r]
    if row.before == NOBODY:
        s.head = row.behind
    else:
        e.requests[row.before].behind = row.behind
    if row.behind == NOBODY:
        s.tail = row.before
    else:
        e.requests[row.behind].before = row.before
    row.before = row.behind = NOBODY
    s.deferred -= row.deferred
    row.deferred = 0
    row.state = OUTSIDE
    s.queued -= 1


def sooner(e: Core, one: int, other: int) -> bool:
    """Whether a request is to be served before another, by (priority, arrival, name)."""
    a, b = e.requests[one], e.requests[other]
    if a.priority != b.priority:
        return a.priority < b.priority
    if a.arrival_s != b.arrival_s:
        return a.arrival_s < b.arrival_s
    return a.name_rank < b.name_rank


def next_waiting(e: Core, s: EngineRow) -> int:
    """The request to start next, left in the queue; NOBODY where there is none."""
    r = s.head
    while r != NOBODY and (e.requests[r].stale or e.requests[r].loading > 1 or e.requests[r].passed == s.decisions):
        s.deferred += 1 - e.requests[r].deferred
        e.requests[r].deferred = 1
        r = e.requests[r].behind
    return r

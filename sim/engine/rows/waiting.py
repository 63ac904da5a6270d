"""The waiting queue of the engine in rows: first come first served, or by rank, linked both ways.

A request whose tokens are still on the way (preempted while an iteration computed them) keeps its place and is passed over.
"""

from __future__ import annotations

from sim.engine.rows.layout import NOBODY, OUTSIDE, QUEUED, Core, EngineRow


def add(e: Core, s: EngineRow, r: int) -> None:
    """Queue a request: last, or by its rank."""
    after = s.tail
    if s.ranked:
        while after != NOBODY and sooner(e, r, after):
            after = e.requests[after].before
    insert_behind(e, s, r, after)


def put_back(e: Core, s: EngineRow, r: int) -> None:
    """Queue a preempted request before all others, or by its rank."""
    if s.ranked:
        add(e, s, r)
    else:
        insert_behind(e, s, r, NOBODY)


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
    while r != NOBODY and e.requests[r].stale:
        s.deferred += 1 - e.requests[r].deferred
        e.requests[r].deferred = 1
        r = e.requests[r].behind
    return r

"""What happens next in the compiled fleet: a heap of events by (tick, serial), and trees over replicas of who is the first."""

from __future__ import annotations

from typing import Any

import sim.cluster.fleet_state as on
from sim.cluster.fleet_state import FleetCore
from sim.engine.rows.layout import EngineRow


def note_wake(f: FleetCore, i: int, s: EngineRow) -> None:
    """Keep when the engine of a pool's replica goes on, and which of all replicas' is the first to."""
    i += f.c[on.FIRST]
    if f.wakes[i] == s.wake and f.ranks[i] == s.after_arrivals:
        return
    f.wakes[i], f.ranks[i] = s.wake, s.after_arrivals
    replicas = f.c[on.ALL]
    place = (replicas + i) // 2
    while place:
        one, other = first_of(f.first_awake, replicas, 2 * place), first_of(f.first_awake, replicas, 2 * place + 1)
        f.first_awake[place] = one if goes_before(f, one, other) else other
        place //= 2


def goes_before(f: FleetCore, one: int, other: int) -> bool:
    """Whether a replica's engine goes on before another's."""
    if f.wakes[one] != f.wakes[other]:
        return f.wakes[one] < f.wakes[other]
    if f.ranks[one] != f.ranks[other]:
        return f.ranks[one] < f.ranks[other]
    return one < other


def note_departure(f: FleetCore, i: int, ticks: int) -> None:
    """Keep when the next call leaves the API server of a pool's replica, and which of all servers has the first to."""
    i += f.c[on.FIRST]
    if f.departs[i] == ticks:
        return
    f.departs[i] = ticks
    replicas = f.c[on.ALL]
    place = (replicas + i) // 2
    while place:
        one, other = first_of(f.first_left, replicas, 2 * place), first_of(f.first_left, replicas, 2 * place + 1)
        sooner = f.departs[one] < f.departs[other] or (f.departs[one] == f.departs[other] and one < other)
        f.first_left[place] = one if sooner else other
        place //= 2


def first_of(firsts: Any, replicas: int, place: int) -> int:
    """The replica that comes first below a place of a tree: the root is 1, those below it are 2 and 3, the last ones are the replicas."""
    return place - replicas if place >= replicas else firsts[place]


def push(f: FleetCore, tick: int, kind: int, call: int) -> None:
    """Let something happen to a call in a pool at a tick, behind what has been due then for longer."""
    clock, events = f.clock, f.events
    clock[on.SERIAL] += 1
    place = clock[on.EVENTS]
    clock[on.EVENTS] += 1
    while place and events[(place - 1) // 2 * on.EVENT + on.TICK] > tick:
        move(f, (place - 1) // 2, place)
        place = (place - 1) // 2
    put(f, place, tick, clock[on.SERIAL], kind + on.KINDS * (f.c[on.ROLE] == on.DECODES), call)


def put(f: FleetCore, place: int, tick: int, serial: int, kind: int, call: int) -> None:
    """Fill a place of the heap."""
    begin = place * on.EVENT
    f.events[begin], f.events[begin + on.ORDER], f.events[begin + on.KIND], f.events[begin + on.WHOSE] = tick, serial, kind, call


def move(f: FleetCore, source: int, place: int) -> None:
    """Copy an event to another place of the heap."""
    for i in range(on.EVENT):
        f.events[place * on.EVENT + i] = f.events[source * on.EVENT + i]


def before(f: FleetCore, a: int, tick: int, serial: int) -> bool:
    """Whether the event at a place comes before (tick, serial)."""
    own = f.events[a * on.EVENT + on.TICK]
    return own < tick or (own == tick and f.events[a * on.EVENT + on.ORDER] < serial)


def pop(f: FleetCore) -> tuple[int, int]:
    """The next event leaves the heap: (kind, whose)."""
    events = f.events
    kind, call = events[on.KIND], events[on.WHOSE]
    f.clock[on.EVENTS] -= 1
    size, last = f.clock[on.EVENTS], f.clock[on.EVENTS] * on.EVENT
    tick, serial = events[last], events[last + on.ORDER]
    moved, whose = events[last + on.KIND], events[last + on.WHOSE]
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and before(f, child + 1, events[child * on.EVENT], events[child * on.EVENT + on.ORDER]):
            child += 1
        if not before(f, child, tick, serial):
            break
        move(f, child, place)
        place = child
    put(f, place, tick, serial, moved, whose)
    return kind, call

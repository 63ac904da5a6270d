"""What happens next in the compiled fleet: a heap of events by (tick, serial), and when engines go on."""

from __future__ import annotations

import sim.cluster.fleet_state as on
from sim.cluster.fleet_state import FleetCore
from sim.engine.rows.layout import EngineRow


def note_wake(f: FleetCore, i: int, s: EngineRow) -> None:
    """Keep when a replica goes on."""
    f.wakes[i], f.ranks[i] = s.wake, s.after_arrivals


def push(f: FleetCore, tick: int, kind: int, call: int) -> None:
    """Let something happen to a call at a tick, behind what has been due then for longer."""
    c, events = f.c, f.events
    c[on.SERIAL] += 1
    place = c[on.EVENTS]
    c[on.EVENTS] += 1
    while place and events[(place - 1) // 2 * on.EVENT + on.TICK] > tick:
        move(f, (place - 1) // 2, place)
        place = (place - 1) // 2
    put(f, place, tick, c[on.SERIAL], kind, call)


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
    c, events = f.c, f.events
    kind, call = events[on.KIND], events[on.WHOSE]
    c[on.EVENTS] -= 1
    size, last = c[on.EVENTS], c[on.EVENTS] * on.EVENT
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

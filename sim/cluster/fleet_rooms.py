"""Prefill to decode over columns: sim.cluster.prefill_to_decode, and the KV room of replicas, sim.cluster.pools.KvRoom."""

from __future__ import annotations

import sim.cluster.fleet_state as on
from sim.cluster.fleet_events import note_wake
from sim.cluster.fleet_moves import start_transfer
from sim.cluster.fleet_state import FleetCore, Pools
from sim.engine.rows.loop import arrive
from sim.ticks import TICK_S


def submit(f: FleetCore, call: int) -> None:
    """The engine gets a call."""
    i = f.calls[call * on.CALL + on.REPLICA]
    s, request = f.core.engines[i], f.core.requests[call]
    request.arrives, request.arrival_s = f.clock[on.NOW], f.arrival_s[call]
    arrive(f.core, s, call, f.clock[on.NOW])
    note_wake(f, i, s)


def enter_room(w: Pools, f: FleetCore, call: int) -> None:
    """A call is at its engine, which gets it as soon as there is room for its KV, those that have waited longer first."""
    i = f.calls[call * on.CALL + on.REPLICA]
    load = i * on.LOAD
    if f.loads[load + on.ROOMLESS]:
        f.calls[f.loads[load + on.ROOM_TAIL] * on.CALL + on.BEHIND] = call
    else:
        f.loads[load + on.ROOM_HEAD] = call
    f.loads[load + on.ROOM_TAIL] = call
    f.loads[load + on.ROOMLESS] += 1
    let_in(w, f, i)


def leave_room(w: Pools, f: FleetCore, call: int) -> None:
    """A call needs its room no more."""
    i = f.calls[call * on.CALL + on.REPLICA]
    f.loads[i * on.LOAD + on.HOLDING] -= 1
    f.loads[i * on.LOAD + on.TAKEN] -= room_of(f, call)
    let_in(w, f, i)


def room_of(f: FleetCore, call: int) -> int:
    """Tokens that a call takes room for."""
    return f.core.requests[call].prompt + f.c[on.RESERVE]


def let_in(w: Pools, f: FleetCore, i: int) -> None:
    """Those go on at a replica for which there is room; one alone always does."""
    loads, load = f.loads, i * on.LOAD
    while loads[load + on.ROOMLESS]:
        call = loads[load + on.ROOM_HEAD]
        if loads[load + on.HOLDING] and loads[load + on.TAKEN] + room_of(f, call) > f.c[on.ROOM]:
            return
        loads[load + on.ROOM_HEAD] = f.calls[call * on.CALL + on.BEHIND]
        loads[load + on.ROOMLESS] -= 1
        loads[load + on.HOLDING] += 1
        loads[load + on.TAKEN] += room_of(f, call)
        if f.c[on.ROLE] == on.DECODES:
            fetch(w, call)
        else:
            submit(f, call)


def fetch(w: Pools, call: int) -> None:
    """There is room for a prompt's KV: get it from where it was computed. All layers but the last may have gone, as far as links could."""
    entry, size = w.entry, w.decode.transfers[call * on.TRANSFER + on.LEFT]
    if entry.x[on.LAYERS]:
        prefill_s = entry.clock[on.NOW] * TICK_S - entry.core.requests[call].scheduled * TICK_S
        size = max(size / entry.x[on.LAYERS], size - entry.x[on.WAY_OUT] * prefill_s)
    w.decode.calls[call * on.CALL + on.SOURCE] = entry.c[on.FIRST] + entry.calls[call * on.CALL + on.REPLICA]
    start_transfer(w.decode, call, size)


def fetched(w: Pools, call: int) -> None:
    """A prompt's KV is at its decode replica."""
    w.decode.core.requests[call].preemptions = w.entry.core.requests[call].preemptions
    leave_room(w, w.entry, call)
    submit(w.decode, call)

"""A run of clients, routers, API servers and equal replicas as one loop over arrays: sim.cluster.clients, fleet and replica for one pool
that serves, or for one that prefills and one that decodes, without admission, retries, changes or a KV store.

Events happen in the order of sim.cluster.clock: at one instant API servers, then replicas' completions by index, then clients, then
replicas' decisions. As plain Python or compiled, the requests equal those of the event loop to the tick; a property test compares them.
"""

from __future__ import annotations

import math

import sim.cluster.fleet_state as on
from sim.cluster.fleet_events import first_of, note_departure, note_wake, pop, push
from sim.cluster.fleet_moves import bring, look, set_out
from sim.cluster.fleet_rooms import enter_room, fetched, leave_room, submit
from sim.cluster.fleet_routes import count_due, first_token, pick, uncount
from sim.cluster.fleet_state import FleetCore, Pools
from sim.engine.rows.layout import DONE, NEVER, TOO_LATE, EngineRow
from sim.engine.rows.loop import advance, arrive, cached_blocks
from sim.engine.rows.price import Given
from sim.engine.rows.vllm import cancel
from sim.ticks import MOST_TICKS, TICK_S, to_ticks


def serve_fleet(w: Pools, given: Given, others: Given) -> int:
    """Serve all calls, or stop for what the engine of the replica AT needs. `others` prices the decode pool."""
    e, clock = w.entry, w.entry.clock
    c = e.c
    if c[on.ALONE]:
        return act(e, given)
    if not c[on.NEXT]:
        send_due(w)
    while True:
        if c[on.AT] < 0:
            replica, server = first_of(e.first_awake, c[on.ALL], 1), first_of(e.first_left, c[on.ALL], 1)
            wakes, leaves = e.wakes[replica], e.departs[server]
            happens = e.events[on.TICK] if clock[on.EVENTS] else NEVER
            first = min(wakes, leaves, happens)
            if first >= MOST_TICKS:
                return DONE if first == NEVER else TOO_LATE
            clock[on.NOW] = max(first, clock[on.NOW])
            if leaves == first:
                f = w.entry if server < w.decode.c[on.FIRST] else w.decode
                leave_server(w, f, server - f.c[on.FIRST])
                continue
            if happens == first and (wakes > first or e.ranks[replica]):
                kind, call = pop(e)
                happen(w, w.decode if kind >= on.KINDS else e, kind % on.KINDS, call)
                continue
            c[on.AT] = replica
        decodes = c[on.AT] >= w.decode.c[on.FIRST]
        f = w.decode if decodes else w.entry
        i = c[on.AT] - f.c[on.FIRST]
        s = f.core.engines[i]
        reason = advance(f.core, s, others if decodes else given)
        if reason:
            return reason
        c[on.AT] = -1
        note_wake(f, i, s)
        if s.sent:
            tell(w, f, s)


def act(f: FleetCore, given: Given) -> int:
    """Let the only engine go on, or do something to a request of it. Returns what is needed, or 0."""
    c, s, reason = f.c, f.core.engines[0], 0
    if c[on.ACTION] == on.ARRIVE:
        arrive(f.core, s, c[on.ACTED], f.clock[on.NOW])
    elif c[on.ACTION] == on.CANCEL:
        cancel(f.core, s, c[on.ACTED])
    elif c[on.ACTION] == on.CACHED:
        c[on.ACTED] = cached_blocks(f.core, s, c[on.ACTED])
    else:
        s.now = max(f.clock[on.NOW], s.now)
        reason = advance(f.core, s, given)
        c[on.TOLD] = s.sent
    c[on.WAKE], c[on.RANK] = s.wake, s.after_arrivals
    return reason


def happen(w: Pools, f: FleetCore, kind: int, call: int) -> None:
    """Something happens to a call in a pool now."""
    if kind == on.ARRIVES:
        due(w, call)
        send_due(w)
    elif kind == on.COMES:
        due(w, call)
    elif kind == on.REACHES:
        reach(w, f, call, f.clock[on.NOW] * TICK_S)
    elif kind == on.AT_ENGINE:
        at_engine(w, f, call)
    elif kind == on.SETS_OUT:
        if set_out(f, call):
            brought(w, f, call)
    elif kind == on.LOOKS:
        for i in range(look(f, call)):
            brought(w, f, f.moving[f.c[on.CALLS] + i])
    elif kind == on.GOES_ON:
        send_on(w, f, call, f.clock[on.NOW] * TICK_S)
    else:
        came_through(w, f, call)


# clients


def send_due(w: Pools) -> None:
    """Send what is due of the calls that wait for nobody, and go on when the next one is."""
    f = w.entry
    c = f.c
    while c[on.NEXT] < c[on.CALLS]:
        call = c[on.NEXT]
        c[on.NEXT] += 1
        if f.calls[call * on.CALL + on.WAITS]:
            continue
        ticks = to_ticks(f.arrival_s[call])
        if ticks > f.clock[on.NOW]:
            push(f, ticks, on.ARRIVES, call)
            return
        due(w, call)


def due(w: Pools, call: int) -> None:
    """A client would send a call now."""
    f = w.entry
    c = f.c
    if c[on.FREE] > 0 and not c[on.HELD]:
        send(w, call)
        return
    if c[on.HELD]:
        f.calls[c[on.HELD_TAIL] * on.CALL + on.BEHIND] = call
    else:
        c[on.HELD_HEAD] = call
    c[on.HELD_TAIL] = call
    c[on.HELD] += 1


def send(w: Pools, call: int) -> None:
    """A client sends a call."""
    w.entry.c[on.FREE] -= 1
    send_on(w, w.entry, call, w.entry.arrival_s[call])


def send_on(w: Pools, f: FleetCore, call: int, now_s: float) -> None:
    """A pool's router picks the replica of a call."""
    c, now = f.c, f.clock[on.NOW]
    count_due(f)
    f.order[c[on.SENT]] = call
    c[on.SENT] += 1
    f.calls[call * on.CALL + on.REPLICA] = pick(f, call)
    f.loads[f.calls[call * on.CALL + on.REPLICA] * on.LOAD + on.INSIDE] += 1
    f.calls[call * on.CALL + on.REACHED] = now + c[on.DISPATCH]
    count_due(f)
    if c[on.DISPATCH]:
        push(f, now + c[on.DISPATCH], on.REACHES, call)
    else:
        reach(w, f, call, now_s)


def came_through(w: Pools, f: FleetCore, call: int) -> None:
    """The last token has reached the client: its place is free, and its session may go on."""
    uncount(f, call)
    f = w.entry
    c, now = f.c, f.clock[on.NOW]
    c[on.FREE] += 1
    c[on.ENDED] = now
    follower = f.calls[call * on.CALL + on.FOLLOWER]
    if follower >= 0:
        f.arrival_s[follower] = now * TICK_S + f.think_s[follower]
        ticks = to_ticks(f.arrival_s[follower])
        if ticks > now:
            push(f, ticks, on.COMES, follower)
        else:
            due(w, follower)
    while c[on.HELD] and c[on.FREE] > 0:
        held = c[on.HELD_HEAD]
        c[on.HELD_HEAD] = f.calls[held * on.CALL + on.BEHIND]
        c[on.HELD] -= 1
        f.arrival_s[held] = now * TICK_S
        send(w, held)


# API servers


def reach(w: Pools, f: FleetCore, call: int, now_s: float) -> None:
    """A call is at the API server of its replica, a processor that its calls share (sim.cost.api_server)."""
    work = server_work(f, call)
    if not work:
        hand_over(w, f, call, now_s)
        return
    i = f.calls[call * on.CALL + on.REPLICA]
    load = i * on.LOAD
    share_server(f, i)
    f.leaves[call] = f.given[i] + 1.0
    if f.loads[load + on.SERVING]:
        f.calls[f.loads[load + on.SERVER_TAIL] * on.CALL + on.BEHIND] = call
    else:
        f.loads[load + on.SERVER_HEAD] = call
    f.loads[load + on.SERVER_TAIL] = call
    f.loads[load + on.SERVING] += work
    serve_next(f, i)


def server_work(f: FleetCore, call: int) -> int:
    """Ticks of the API server's own time for a call."""
    return to_ticks(f.x[on.SERIAL_S] + f.core.requests[call].prompt * f.x[on.PROMPT_TOKEN_S])


def share_server(f: FleetCore, i: int) -> None:
    """Serve the calls at an API server up to now."""
    load = i * on.LOAD
    if f.loads[load + on.SERVING]:
        f.given[i] += (f.clock[on.NOW] - f.loads[load + on.SINCE]) / f.loads[load + on.SERVING]
    else:
        f.given[i] = 0.0
    f.loads[load + on.SINCE] = f.clock[on.NOW]


def serve_next(f: FleetCore, i: int) -> None:
    """Keep when the next call leaves an API server."""
    load, leaves = i * on.LOAD, NEVER
    if f.loads[load + on.SERVING]:
        left = max(f.leaves[f.loads[load + on.SERVER_HEAD]] - f.given[i], 0.0)
        leaves = f.loads[load + on.SINCE] + math.ceil(left * f.loads[load + on.SERVING])
    note_departure(f, i, leaves)


def leave_server(w: Pools, f: FleetCore, i: int) -> None:
    """The next call leaves an API server."""
    load = i * on.LOAD
    share_server(f, i)
    call = f.loads[load + on.SERVER_HEAD]
    f.loads[load + on.SERVER_HEAD] = f.calls[call * on.CALL + on.BEHIND]
    f.loads[load + on.SERVING] -= server_work(f, call)
    serve_next(f, i)
    hand_over(w, f, call, f.clock[on.NOW] * TICK_S)


def hand_over(w: Pools, f: FleetCore, call: int, now_s: float) -> None:
    """A call is on its way from the API server to the engine."""
    ready = to_ticks(now_s + f.x[on.REQUEST_S])
    if ready > f.clock[on.NOW]:
        push(f, ready, on.AT_ENGINE, call)
    else:
        at_engine(w, f, call)


# engines


def at_engine(w: Pools, f: FleetCore, call: int) -> None:
    """A call is at its engine, perhaps before room for its KV, or KV that another replica has."""
    f.calls[call * on.CALL + on.AT_DOOR] = f.clock[on.NOW]
    if f.c[on.ROLE] != on.SERVES:
        enter_room(w, f, call)
    elif not f.c[on.FETCH] or not bring(f, call):
        submit(f, call)


def brought(w: Pools, f: FleetCore, call: int) -> None:
    """The KV of a call has come from another replica."""
    if f.c[on.ROLE] == on.DECODES:
        fetched(w, call)
        return
    tokens = f.calls[call * on.CALL + on.BROUGHT] * f.c[on.BLOCK]
    request = f.core.requests[call]
    request.comes_with = request.cached = tokens
    submit(f, call)


def tell(w: Pools, f: FleetCore, s: EngineRow) -> None:
    """First tokens, then last ones, that a replica sends now."""
    count = s.sent
    s.sent = 0
    for last in range(2):
        for seat in range(s.first_send, s.first_send + count):
            token = f.core.sends[seat]
            if token.last == last:
                if last:
                    finished(w, f, token.request, token.place)
                else:
                    first_token(f, token.request)


def after_s(f: FleetCore, place: float, fresh: int) -> float:
    """HostRates.after_s of the API servers."""
    return f.x[on.RESPONSE_S] + place * f.x[on.TOKEN_S] + fresh * f.x[on.PROMPT_TOKEN_S]


def finished(w: Pools, f: FleetCore, call: int, place: float) -> None:
    """The last token, with so many before it at the API server, is on its way to the client; or the prompt is computed, and what was
    sampled on its way to the decode pool's router.
    """
    f.loads[f.calls[call * on.CALL + on.REPLICA] * on.LOAD + on.INSIDE] -= 1
    request, now = f.core.requests[call], f.clock[on.NOW]
    first_s = after_s(f, request.first_place, request.fresh)
    if f.c[on.ROLE] == on.PREFILLS:
        uncount(f, call)
        ticks = to_ticks(now * TICK_S + first_s)
        if ticks > now:
            push(w.decode, ticks, on.GOES_ON, call)
        else:
            send_on(w, w.decode, call, now * TICK_S)
        return
    if f.c[on.ROLE] == on.DECODES:
        leave_room(w, f, call)
    ticks = to_ticks(max(now * TICK_S + after_s(f, place, 0), request.first_sent * TICK_S + first_s))
    if ticks > now:
        push(f, ticks, on.THROUGH, call)
    else:
        came_through(w, f, call)

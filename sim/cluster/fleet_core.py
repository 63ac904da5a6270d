"""A run of clients, a router, API servers and equal replicas as one loop over arrays: sim.cluster.clients, fleet and replica for one pool
that serves, without admission, retries, changes or a KV store.

Events happen in the order of sim.cluster.clock: at one instant API servers, then replicas' completions by index, then clients, then
replicas' decisions. As plain Python or compiled, the requests equal those of the event loop to the tick; a property test compares them.
"""

from __future__ import annotations

import math

import sim.cluster.fleet_state as on
from sim.cluster.fleet_events import first_of, note_departure, note_wake, pop, push
from sim.cluster.fleet_moves import bring, look, set_out
from sim.cluster.fleet_routes import count_due, first_token, pick, uncount
from sim.cluster.fleet_state import FleetCore
from sim.engine.rows.layout import DONE, NEVER, TOO_LATE, EngineRow
from sim.engine.rows.loop import advance, arrive, cached_blocks
from sim.engine.rows.price import Given
from sim.engine.rows.vllm import cancel
from sim.ticks import MOST_TICKS, TICK_S, to_ticks


def serve_fleet(f: FleetCore, given: Given) -> int:
    """Serve all calls, or stop for what the engine of the replica AT needs."""
    c = f.c
    if c[on.ALONE]:
        return act(f, given)
    if not c[on.NEXT]:
        send_due(f)
    while True:
        if c[on.AT] < 0:
            replica, server = first_of(f.first_awake, c[on.REPLICAS], 1), first_of(f.first_left, c[on.REPLICAS], 1)
            wakes, leaves = f.wakes[replica], f.departs[server]
            happens = f.events[on.TICK] if c[on.EVENTS] else NEVER
            first = min(wakes, leaves, happens)
            if first >= MOST_TICKS:
                return DONE if first == NEVER else TOO_LATE
            c[on.NOW] = max(first, c[on.NOW])
            if leaves == first:
                leave_server(f, server)
                continue
            if happens == first and (wakes > first or f.ranks[replica]):
                happen(f)
                continue
            c[on.AT] = replica
        s = f.core.engines[c[on.AT]]
        reason = advance(f.core, s, given)
        if reason:
            return reason
        replica = c[on.AT]
        c[on.AT] = -1
        note_wake(f, replica, s)
        if s.sent:
            tell(f, replica, s)


def act(f: FleetCore, given: Given) -> int:
    """Let the only engine go on, or do something to a request of it. Returns what is needed, or 0."""
    c, s, reason = f.c, f.core.engines[0], 0
    if c[on.ACTION] == on.ARRIVE:
        arrive(f.core, s, c[on.ACTED], c[on.NOW])
    elif c[on.ACTION] == on.CANCEL:
        cancel(f.core, s, c[on.ACTED])
    elif c[on.ACTION] == on.CACHED:
        c[on.ACTED] = cached_blocks(f.core, s, c[on.ACTED])
    else:
        s.now = max(c[on.NOW], s.now)
        reason = advance(f.core, s, given)
        c[on.TOLD] = s.sent
    c[on.WAKE], c[on.RANK] = s.wake, s.after_arrivals
    return reason


def happen(f: FleetCore) -> None:
    """The next event of the heap."""
    kind, call = pop(f)
    if kind == on.ARRIVES:
        due(f, call)
        send_due(f)
    elif kind == on.COMES:
        due(f, call)
    elif kind == on.REACHES:
        reach(f, call, f.c[on.NOW] * TICK_S)
    elif kind == on.AT_ENGINE:
        at_engine(f, call)
    elif kind == on.SETS_OUT:
        if set_out(f, call):
            brought(f, call)
    elif kind == on.LOOKS:
        for i in range(look(f, call)):
            brought(f, f.moving[f.c[on.CALLS] + i])
    else:
        came_through(f, call)


# clients


def send_due(f: FleetCore) -> None:
    """Send what is due of the calls that wait for nobody, and go on when the next one is."""
    c = f.c
    while c[on.NEXT] < c[on.CALLS]:
        call = c[on.NEXT]
        c[on.NEXT] += 1
        if f.calls[call * on.CALL + on.WAITS]:
            continue
        ticks = to_ticks(f.arrival_s[call])
        if ticks > c[on.NOW]:
            push(f, ticks, on.ARRIVES, call)
            return
        due(f, call)


def due(f: FleetCore, call: int) -> None:
    """A client would send a call now."""
    c = f.c
    if c[on.FREE] > 0 and not c[on.HELD]:
        send(f, call)
        return
    if c[on.HELD]:
        f.calls[c[on.HELD_TAIL] * on.CALL + on.BEHIND] = call
    else:
        c[on.HELD_HEAD] = call
    c[on.HELD_TAIL] = call
    c[on.HELD] += 1


def send(f: FleetCore, call: int) -> None:
    """A client sends a call, and a router picks its replica."""
    c = f.c
    c[on.FREE] -= 1
    count_due(f)
    f.order[c[on.SENT]] = call
    c[on.SENT] += 1
    f.calls[call * on.CALL + on.REPLICA] = pick(f, call)
    f.loads[f.calls[call * on.CALL + on.REPLICA] * on.LOAD + on.INSIDE] += 1
    f.calls[call * on.CALL + on.REACHED] = c[on.NOW] + c[on.DISPATCH]
    count_due(f)
    if c[on.DISPATCH]:
        push(f, c[on.NOW] + c[on.DISPATCH], on.REACHES, call)
    else:
        reach(f, call, f.arrival_s[call])


def came_through(f: FleetCore, call: int) -> None:
    """The last token has reached the client: its place is free, and its session may go on."""
    c = f.c
    uncount(f, call)
    c[on.FREE] += 1
    c[on.ENDED] = c[on.NOW]
    follower = f.calls[call * on.CALL + on.FOLLOWER]
    if follower >= 0:
        f.arrival_s[follower] = c[on.NOW] * TICK_S + f.think_s[follower]
        ticks = to_ticks(f.arrival_s[follower])
        if ticks > c[on.NOW]:
            push(f, ticks, on.COMES, follower)
        else:
            due(f, follower)
    while c[on.HELD] and c[on.FREE] > 0:
        held = c[on.HELD_HEAD]
        c[on.HELD_HEAD] = f.calls[held * on.CALL + on.BEHIND]
        c[on.HELD] -= 1
        f.arrival_s[held] = c[on.NOW] * TICK_S
        send(f, held)


# API servers


def reach(f: FleetCore, call: int, now_s: float) -> None:
    """A call is at the API server of its replica, a processor that its calls share (sim.cost.api_server)."""
    work = server_work(f, call)
    if not work:
        hand_over(f, call, now_s)
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
        f.given[i] += (f.c[on.NOW] - f.loads[load + on.SINCE]) / f.loads[load + on.SERVING]
    else:
        f.given[i] = 0.0
    f.loads[load + on.SINCE] = f.c[on.NOW]


def serve_next(f: FleetCore, i: int) -> None:
    """Keep when the next call leaves an API server."""
    load, leaves = i * on.LOAD, NEVER
    if f.loads[load + on.SERVING]:
        left = max(f.leaves[f.loads[load + on.SERVER_HEAD]] - f.given[i], 0.0)
        leaves = f.loads[load + on.SINCE] + math.ceil(left * f.loads[load + on.SERVING])
    note_departure(f, i, leaves)


def leave_server(f: FleetCore, i: int) -> None:
    """The next call leaves an API server."""
    load = i * on.LOAD
    share_server(f, i)
    call = f.loads[load + on.SERVER_HEAD]
    f.loads[load + on.SERVER_HEAD] = f.calls[call * on.CALL + on.BEHIND]
    f.loads[load + on.SERVING] -= server_work(f, call)
    serve_next(f, i)
    hand_over(f, call, f.c[on.NOW] * TICK_S)


def hand_over(f: FleetCore, call: int, now_s: float) -> None:
    """A call is on its way from the API server to the engine."""
    ready = to_ticks(now_s + f.x[on.REQUEST_S])
    if ready > f.c[on.NOW]:
        push(f, ready, on.AT_ENGINE, call)
    else:
        at_engine(f, call)


# engines


def at_engine(f: FleetCore, call: int) -> None:
    """A call is at its engine, perhaps before KV that another replica has."""
    if not f.c[on.FETCH] or not bring(f, call):
        submit(f, call)


def brought(f: FleetCore, call: int) -> None:
    """The KV of a call has come from another replica."""
    tokens = f.calls[call * on.CALL + on.BROUGHT] * f.c[on.BLOCK]
    request = f.core.requests[call]
    request.comes_with = request.cached = tokens
    submit(f, call)


def submit(f: FleetCore, call: int) -> None:
    """The engine gets a call."""
    i = f.calls[call * on.CALL + on.REPLICA]
    s, request = f.core.engines[i], f.core.requests[call]
    request.arrives, request.arrival_s = f.c[on.NOW], f.arrival_s[call]
    arrive(f.core, s, call, f.c[on.NOW])
    note_wake(f, i, s)


def tell(f: FleetCore, i: int, s: EngineRow) -> None:
    """First tokens, then last ones, that a replica sends now."""
    count = s.sent
    s.sent = 0
    for last in range(2):
        for seat in range(s.first_send, s.first_send + count):
            token = f.core.sends[seat]
            if token.last == last:
                if last:
                    finished(f, token.request, token.place)
                else:
                    first_token(f, token.request)


def after_s(f: FleetCore, place: float, fresh: int) -> float:
    """HostRates.after_s of the API servers."""
    return f.x[on.RESPONSE_S] + place * f.x[on.TOKEN_S] + fresh * f.x[on.PROMPT_TOKEN_S]


def finished(f: FleetCore, call: int, place: float) -> None:
    """The last token, with so many before it at the API server, is on its way to the client."""
    f.loads[f.calls[call * on.CALL + on.REPLICA] * on.LOAD + on.INSIDE] -= 1
    request = f.core.requests[call]
    first_s = after_s(f, request.first_place, request.fresh)
    ticks = to_ticks(max(f.c[on.NOW] * TICK_S + after_s(f, place, 0), request.first_sent * TICK_S + first_s))
    if ticks > f.c[on.NOW]:
        push(f, ticks, on.THROUGH, call)
    else:
        came_through(f, call)

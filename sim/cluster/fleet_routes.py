"""Routers of sim.cluster.router over columns: what one knows of each replica, and which it picks."""

from __future__ import annotations

import sim.cluster.fleet_state as on
from sim.cluster.fleet_state import FleetCore
from sim.cluster.policies import DRAW_BITS


def pick(f: FleetCore, call: int) -> int:
    """The replica of a call, which will count in its load."""
    c, number = f.c, call * on.CALL
    prompt, knows = f.core.requests[call].prompt, c[on.POLICY] >= on.PENDING_TOKENS
    if knows:
        find_known(f, number)
    chosen = choose(f, number, prompt)
    f.calls[number + on.NEW] = 0
    if knows:
        f.calls[number + on.NEW] = new_tokens(f, chosen * on.LOAD, prompt)
        if c[on.REMEMBERS]:
            remember_sent(f, call, chosen)
        else:
            name = f.calls[number + on.FIRST_NAME]
            for place in range(name, name + f.calls[number + on.DEPTH]):
                f.holders[f.core.names[place]] |= 1 << chosen
    return chosen


def count_due(f: FleetCore) -> None:
    """Count the calls in their replicas' loads whose windows are over."""
    c = f.c
    while c[on.COUNTED] < c[on.SENT]:
        call = f.order[c[on.COUNTED]]
        number = call * on.CALL
        if f.calls[number + on.REACHED] - c[on.DISPATCH] + c[on.WINDOW] > c[on.NOW]:
            return
        c[on.COUNTED] += 1
        if f.calls[number + on.LOADS] == on.NOT_YET:
            load = f.calls[number + on.REPLICA] * on.LOAD
            f.calls[number + on.LOADS] = on.ITS_OWN
            f.loads[load + on.REQUESTS] += 1
            f.loads[load + on.PENDING] += f.calls[number + on.NEW]
            f.loads[load + on.ONGOING] += f.core.requests[call].prompt


def first_token(f: FleetCore, call: int) -> None:
    """A call's prefill is over: the router counts it no more."""
    count_due(f)
    number = call * on.CALL
    if f.calls[number + on.LOADS] == on.ITS_OWN:
        f.loads[f.calls[number + on.REPLICA] * on.LOAD + on.PENDING] -= f.calls[number + on.NEW]
    f.calls[number + on.NEW] = 0


def uncount(f: FleetCore, call: int) -> None:
    """A call is in no load any more."""
    first_token(f, call)
    number = call * on.CALL
    if f.calls[number + on.LOADS] == on.ITS_OWN:
        load = f.calls[number + on.REPLICA] * on.LOAD
        f.loads[load + on.REQUESTS] -= 1
        f.loads[load + on.ONGOING] -= f.core.requests[call].prompt
    f.calls[number + on.LOADS] = on.NEVER_MORE


def remember_sent(f: FleetCore, call: int, chosen: int) -> None:
    """A replica is sent the blocks of a call; beyond REMEMBERS those go that were sent longest ago. The calls sent to it, in order, name
    its blocks by when they were sent, but for those that were sent again. Blocks that no other call asks for come behind the others of
    their call, and are counted.
    """
    c, calls, loads, number, load, own = f.c, f.calls, f.loads, call * on.CALL, chosen * on.LOAD, chosen * f.c[on.NAMES]
    calls[number + on.STAMP] = c[on.STAMPS]
    for place in range(calls[number + on.FIRST_NAME], calls[number + on.FIRST_NAME] + calls[number + on.DEPTH]):
        name = f.core.names[place]
        c[on.STAMPS] += 1
        if not f.stamps[own + name]:
            f.holders[name] |= 1 << chosen
            loads[load + on.REMEMBERED] += 1
        f.stamps[own + name] = c[on.STAMPS]
    loads[load + on.REMEMBERED] += calls[number + on.OWN]
    if loads[load + on.OLDEST] < 0:
        loads[load + on.OLDEST] = call
    else:
        calls[loads[load + on.LATEST] * on.CALL + on.LATER] = call
    loads[load + on.LATEST] = call
    while loads[load + on.REMEMBERED] > c[on.REMEMBERS]:
        oldest, place = loads[load + on.OLDEST] * on.CALL, loads[load + on.OLDEST_PLACE]
        if place == calls[oldest + on.DEPTH]:
            forgotten = min(calls[oldest + on.OWN], loads[load + on.REMEMBERED] - c[on.REMEMBERS])
            calls[oldest + on.OWN] -= forgotten
            loads[load + on.REMEMBERED] -= forgotten
            if not forgotten:
                loads[load + on.OLDEST], loads[load + on.OLDEST_PLACE] = calls[oldest + on.LATER], 0
            continue
        name = f.core.names[calls[oldest + on.FIRST_NAME] + place]
        loads[load + on.OLDEST_PLACE] += 1
        if f.stamps[own + name] == calls[oldest + on.STAMP] + place + 1:
            f.stamps[own + name] = 0
            f.holders[name] ^= 1 << chosen
            loads[load + on.REMEMBERED] -= 1


def find_known(f: FleetCore, number: int) -> None:
    """Number of the first blocks of a call that each replica was sent, as its KNOWN."""
    name, depth = f.calls[number + on.FIRST_NAME], f.calls[number + on.DEPTH]
    holding, known = -1, 0
    while known < depth and holding:
        still = holding & f.holders[f.core.names[name + known]]
        if still != holding:
            note_known(f, holding ^ still, known)
        holding = still
        known += 1
    note_known(f, holding, known)


def note_known(f: FleetCore, replicas: int, known: int) -> None:
    """So many blocks are known to those replicas whose bits are set."""
    for i in range(f.c[on.REPLICAS]):
        if replicas >> i & 1:
            f.loads[i * on.LOAD + on.KNOWN] = known


def new_tokens(f: FleetCore, load: int, prompt: int) -> int:
    """Prompt tokens that a replica was not sent before: at least one has to be computed."""
    return max(1, prompt - f.loads[load + on.KNOWN] * f.c[on.BLOCK])


def choose(f: FleetCore, number: int, prompt: int) -> int:
    """The policy's choice. Draws go by how many calls were sent before."""
    c, loads, policy = f.c, f.loads, f.c[on.POLICY]
    drawn = (c[on.SENT] - 1) * on.CALL
    f.calls[number + on.DECISION] = 0
    if policy == on.DRAWN:
        return f.calls[drawn + on.DRAW]
    if policy == on.POWER_OF_TWO:
        one, other = f.calls[drawn + on.DRAW], f.calls[drawn + on.NEXT_DRAW]
        return other if loads[other * on.LOAD + on.REQUESTS] < loads[one * on.LOAD + on.REQUESTS] else one
    end = c[on.REPLICAS] * on.LOAD
    if policy == on.PREFIX_AFFINITY or policy == on.UNIFIED:
        most, tied, total = 0, 0, 0
        for load in range(0, end, on.LOAD):
            total += loads[load + on.REQUESTS]
            if loads[load + on.KNOWN] > loads[most + on.KNOWN]:
                most, tied = load, 0
            tied += loads[load + on.KNOWN] == loads[most + on.KNOWN]
        limit = f.x[on.OVERLOAD] * (total / c[on.REPLICAS])
        if policy == on.PREFIX_AFFINITY:
            limit = max(limit, 1.0)
        known, before = loads[most + on.KNOWN], f.calls[drawn + on.DRAW] * tied >> DRAW_BITS
        while before:
            most += on.LOAD
            before -= loads[most + on.KNOWN] == known
        if known and loads[most + on.REQUESTS] <= limit:
            return most // on.LOAD
        f.calls[number + on.DECISION] = 1
    best, least, few, tied = 0, score_of(f, 0, prompt), loads[on.REQUESTS], 1
    for load in range(on.LOAD, end, on.LOAD):
        score, requests = score_of(f, load, prompt), loads[load + on.REQUESTS]
        if score < least or (policy == on.PENDING_TOKENS and score == least and requests < few):
            best, least, few, tied = load, score, requests, 0
        tied += score == least and (policy != on.PENDING_TOKENS or requests == few)
    before = f.calls[drawn + on.NEXT_DRAW] * tied >> DRAW_BITS
    while before:
        best += on.LOAD
        before -= score_of(f, best, prompt) == least and (policy != on.PENDING_TOKENS or loads[best + on.REQUESTS] == few)
    return best // on.LOAD


def score_of(f: FleetCore, load: int, prompt: int) -> float:
    """Score that the policy minimises."""
    loads, policy = f.loads, f.c[on.POLICY]
    if policy == on.LMETRIC or policy == on.UNIFIED:
        work = loads[load + on.PENDING] + new_tokens(f, load, prompt) + f.x[on.DECODE_WEIGHT] * loads[load + on.ONGOING]
        return work * (loads[load + on.REQUESTS] if loads[load + on.REQUESTS] else f.x[on.IDLE_SCORE])
    return float(loads[load + on.PENDING] if policy == on.PENDING_TOKENS else loads[load + on.REQUESTS])

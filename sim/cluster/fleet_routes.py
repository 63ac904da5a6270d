"""Routers of sim.cluster.router over columns: what one knows of each replica, and which it picks."""

from __future__ import annotations

import sim.cluster.fleet_state as on
from sim.cluster.fleet_state import FleetCore
from sim.cluster.policies import DRAW_BITS
from sim.engine.rows.loop import cached_blocks, used_blocks


def pick(f: FleetCore, call: int) -> int:
    """The replica of a call, which will count in its load."""
    c, number, policy = f.c, call * on.CALL, f.c[on.POLICY]
    prompt = f.core.requests[call].prompt
    if c[on.SEES]:
        for i in range(c[on.REPLICAS]):
            f.loads[i * on.LOAD + on.KNOWN] = cached_blocks(f.core, f.core.engines[i], call)
    elif policy >= on.PENDING_TOKENS:
        find_known(f, number)
    if policy == on.WEIGHTED or policy == on.PICKER:
        read_engines(f)
    chosen = choose(f, number, prompt)
    f.calls[number + on.NEW] = 0
    if policy == on.BLOCK_COST:
        f.calls[number + on.NEW] = max(prompt - f.loads[chosen * on.LOAD + on.KNOWN] * c[on.BLOCK], 0)
        f.calls[number + on.REPLICA] = chosen
        note_active(f, number, prompt, 1)
    elif policy >= on.PENDING_TOKENS:
        f.calls[number + on.NEW] = new_tokens(f, chosen * on.LOAD, prompt)
        if c[on.REMEMBERS]:
            remember_sent(f, call, chosen)
        elif not c[on.SEES]:
            for place in range(f.calls[number + on.DEPTH]):
                name = name_of(f, number, place)
                if policy == on.FIRST_SENT and not f.holders[name]:
                    f.stamps[name] = chosen
                f.holders[name] |= 1 << chosen
    return chosen


def name_of(f: FleetCore, number: int, place: int) -> int:
    """Name of a block of a call, as the router counts blocks."""
    return f.core.names[f.calls[number + on.FIRST_NAME] + (place + 1) * f.c[on.STRIDE] - 1]


def read_engines(f: FleetCore) -> None:
    """What scores need of each replica: read off the engines at the first pick of a period, or the router's own loads."""
    c, loads, most, least = f.c, f.loads, 0, -1
    reads = c[on.PERIOD] > 0 and f.clock[on.NOW] // c[on.PERIOD] > c[on.PERIODS]
    if reads:
        c[on.PERIODS] = f.clock[on.NOW] // c[on.PERIOD]
    for i in range(c[on.REPLICAS]):
        load = i * on.LOAD
        if reads:
            s = f.core.engines[i]
            loads[load + on.WAITING], loads[load + on.USED] = s.queued, used_blocks(s)
        elif not c[on.PERIOD]:
            loads[load + on.WAITING], loads[load + on.USED] = loads[load + on.REQUESTS], loads[load + on.ONGOING]
        most = max(most, loads[load + on.WAITING])
        least = loads[load + on.WAITING] if least < 0 else min(least, loads[load + on.WAITING])
    c[on.MOST_WAITING], c[on.LEAST_WAITING] = most, least


def note_active(f: FleetCore, number: int, prompt: int, more: int) -> None:
    """A call's replica has its blocks (`more` is 1), or has them no more (-1)."""
    chosen, depth, own = f.calls[number + on.REPLICA], f.calls[number + on.DEPTH], f.calls[number + on.OWN]
    for place in range(depth):
        at = chosen * f.c[on.NAMES] + name_of(f, number, place)
        before = f.stamps[at]
        f.stamps[at] = before + more
        f.loads[chosen * on.LOAD + on.ACTIVE] += (f.stamps[at] > 0) - (before > 0)
    f.loads[chosen * on.LOAD + on.ACTIVE] += more * own
    f.loads[chosen * on.LOAD + on.UNNAMED] += more * (blocks_asked(f, number, prompt) - depth - own)


def blocks_asked(f: FleetCore, number: int, prompt: int) -> int:
    """Blocks of a call's prompt, and of what is named behind it."""
    return max((prompt + f.c[on.BLOCK] - 1) // f.c[on.BLOCK], f.calls[number + on.DEPTH] + f.calls[number + on.OWN])


def count_due(f: FleetCore) -> None:
    """Count the calls in their replicas' loads whose windows are over."""
    c = f.c
    while c[on.COUNTED] < c[on.SENT]:
        call = f.order[c[on.COUNTED]]
        number = call * on.CALL
        if f.calls[number + on.REACHED] - c[on.DISPATCH] + c[on.WINDOW] > f.clock[on.NOW]:
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
        if f.c[on.POLICY] == on.BLOCK_COST:
            note_active(f, number, f.core.requests[call].prompt, -1)
    f.calls[number + on.LOADS] = on.NEVER_MORE


def remember_sent(f: FleetCore, call: int, chosen: int) -> None:
    """A replica is sent the blocks of a call; beyond REMEMBERS those go that were sent longest ago. The calls sent to it, in order, name
    its blocks by when they were sent, but for those that were sent again. Blocks that no other call asks for come behind the others of
    their call, and are counted.
    """
    c, calls, loads, number, load, own = f.c, f.calls, f.loads, call * on.CALL, chosen * on.LOAD, chosen * f.c[on.NAMES]
    calls[number + on.STAMP] = c[on.STAMPS]
    for place in range(calls[number + on.DEPTH]):
        name = name_of(f, number, place)
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
        name = name_of(f, oldest, place)
        loads[load + on.OLDEST_PLACE] += 1
        if f.stamps[own + name] == calls[oldest + on.STAMP] + place + 1:
            f.stamps[own + name] = 0
            f.holders[name] ^= 1 << chosen
            loads[load + on.REMEMBERED] -= 1


def find_known(f: FleetCore, number: int) -> None:
    """Number of the first blocks of a call that each replica was sent, as its KNOWN."""
    holding, known = -1, 0
    while known < f.calls[number + on.DEPTH] and holding:
        still = holding & f.holders[name_of(f, number, known)]
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
    if policy == on.LONGEST_SENT or policy == on.FIRST_SENT:
        return longest_sent(f, number, prompt)
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
    best, least, few, tied = 0, score_of(f, number, 0, prompt), loads[on.REQUESTS], 1
    for load in range(on.LOAD, end, on.LOAD):
        score, requests = score_of(f, number, load, prompt), loads[load + on.REQUESTS]
        if score < least or (policy == on.PENDING_TOKENS and score == least and requests < few):
            best, least, few, tied = load, score, requests, 0
        tied += score == least and (policy != on.PENDING_TOKENS or requests == few)
    before = f.calls[drawn + on.NEXT_DRAW] * tied >> DRAW_BITS
    while before:
        best += on.LOAD
        before -= score_of(f, number, best, prompt) == least and (policy != on.PENDING_TOKENS or loads[best + on.REQUESTS] == few)
    return best // on.LOAD


def longest_sent(f: FleetCore, number: int, prompt: int) -> int:
    """cache_aware's choice (sim.cluster.deployed_routers.CacheAware)."""
    c, loads, most, few, deepest = f.c, f.loads, 0, 0, 0
    for load in range(0, c[on.REPLICAS] * on.LOAD, on.LOAD):
        most = max(most, loads[load + on.REQUESTS])
        few = load if loads[load + on.REQUESTS] < loads[few + on.REQUESTS] else few
        deepest = max(deepest, loads[load + on.KNOWN])
    f.calls[number + on.DECISION] = 1
    fewest = loads[few + on.REQUESTS]
    unbalanced = most - fewest > f.x[on.ABSOLUTE] and most > f.x[on.RELATIVE] * fewest
    if unbalanced or not deepest or deepest * c[on.BLOCK] / prompt <= f.x[on.THRESHOLD]:
        return few // on.LOAD
    f.calls[number + on.DECISION] = 0
    if c[on.POLICY] == on.FIRST_SENT:
        return f.stamps[name_of(f, number, deepest - 1)]
    best = -1
    for load in range(0, c[on.REPLICAS] * on.LOAD, on.LOAD):
        if loads[load + on.KNOWN] == deepest and (best < 0 or loads[load + on.REQUESTS] < loads[best + on.REQUESTS]):
            best = load
    return best // on.LOAD


def score_of(f: FleetCore, number: int, load: int, prompt: int) -> float:
    """Score that the policy minimises."""
    loads, policy, x = f.loads, f.c[on.POLICY], f.x
    if policy == on.LMETRIC or policy == on.UNIFIED:
        work = loads[load + on.PENDING] + new_tokens(f, load, prompt) + x[on.DECODE_WEIGHT] * loads[load + on.ONGOING]
        return work * (loads[load + on.REQUESTS] if loads[load + on.REQUESTS] else x[on.IDLE_SCORE])
    if policy == on.WEIGHTED or policy == on.PICKER:
        most, least = f.c[on.MOST_WAITING], f.c[on.LEAST_WAITING]
        waits = (most - loads[load + on.WAITING]) / (most - least) if most > least else 1.0
        there = loads[load + on.KNOWN] / max(prompt // f.c[on.SPAN], 1)
        unused = max(1.0 - loads[load + on.USED] / x[on.CAPACITY], 0.0)
        return -(x[on.QUEUE] * waits + x[on.KV] * unused + x[on.PREFIX] * min(there, 1.0))
    if policy == on.BLOCK_COST:
        blocks, active = blocks_asked(f, number, prompt), 0
        for place in range(f.calls[number + on.DEPTH]):
            active += f.stamps[load // on.LOAD * f.c[on.NAMES] + name_of(f, number, place)] > 0
        prefill = max(loads[load + on.PENDING] / f.c[on.BLOCK] + blocks - x[on.CREDIT] * loads[load + on.KNOWN], 0.0)
        cost = x[on.SCALE] * prefill + loads[load + on.ACTIVE] + loads[load + on.UNNAMED] + (blocks - active)
        return cost + x[on.EACH] * loads[load + on.REQUESTS]
    return float(loads[load + on.PENDING] if policy == on.PENDING_TOKENS else loads[load + on.REQUESTS])

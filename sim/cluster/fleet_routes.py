"""Policies of sim.cluster.policies over columns: which replica, from what a router knows of each."""

from __future__ import annotations

import sim.cluster.fleet_state as on
import sim.engine.core_state as at
from sim.cluster.fleet_state import FleetCore


def pick(f: FleetCore, call: int) -> int:
    """The replica of a call, whose load it then is."""
    c, loads, number = f.c, f.loads, call * on.CALL
    prompt, knows = f.q[call * at.REQUEST + at.PROMPT], c[on.POLICY] >= on.PENDING_TOKENS
    if knows:
        find_known(f, number)
    chosen = choose(f, number, prompt)
    load = chosen * on.LOAD
    f.calls[number + on.NEW] = 0
    if knows:
        f.calls[number + on.NEW] = new_tokens(f, load, prompt)
        loads[load + on.PENDING] += f.calls[number + on.NEW]
        name = f.calls[number + on.FIRST_NAME]
        for place in range(name, name + f.calls[number + on.DEPTH]):
            f.holders[f.names[place]] |= 1 << chosen
    loads[load + on.REQUESTS] += 1
    loads[load + on.ONGOING] += prompt
    return chosen


def find_known(f: FleetCore, number: int) -> None:
    """Number of the first blocks of a call that each replica was sent, as its KNOWN."""
    name, depth = f.calls[number + on.FIRST_NAME], f.calls[number + on.DEPTH]
    holding, known = -1, 0
    while known < depth and holding:
        still = holding & f.holders[f.names[name + known]]
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
        most, total = 0, 0
        for load in range(0, end, on.LOAD):
            total += loads[load + on.REQUESTS]
            if loads[load + on.KNOWN] > loads[most + on.KNOWN]:
                most = load
        limit = f.x[on.OVERLOAD] * (total / c[on.REPLICAS])
        if policy == on.PREFIX_AFFINITY:
            limit = max(limit, 1.0)
        if loads[most + on.KNOWN] and loads[most + on.REQUESTS] <= limit:
            return most // on.LOAD
        f.calls[number + on.DECISION] = 1
    best, least, few = 0, score_of(f, 0, prompt), loads[on.REQUESTS]
    for load in range(on.LOAD, end, on.LOAD):
        score = score_of(f, load, prompt)
        if score < least or (policy == on.PENDING_TOKENS and score == least and loads[load + on.REQUESTS] < few):
            best, least, few = load, score, loads[load + on.REQUESTS]
    return best // on.LOAD


def score_of(f: FleetCore, load: int, prompt: int) -> float:
    """Score that the policy minimises."""
    loads, policy = f.loads, f.c[on.POLICY]
    if policy == on.LMETRIC or policy == on.UNIFIED:
        work = loads[load + on.PENDING] + new_tokens(f, load, prompt) + f.x[on.DECODE_WEIGHT] * loads[load + on.ONGOING]
        return work * (loads[load + on.REQUESTS] if loads[load + on.REQUESTS] else f.x[on.IDLE_SCORE])
    return float(loads[load + on.PENDING] if policy == on.PENDING_TOKENS else loads[load + on.REQUESTS])

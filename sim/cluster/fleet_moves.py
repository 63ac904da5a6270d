"""KV that comes from another replica, over columns: sim.cluster.kv_moves without a store, and sim.cluster.network."""

from __future__ import annotations

import math

import sim.cluster.fleet_state as on
from sim.cluster.fleet_events import push
from sim.cluster.fleet_state import FleetCore
from sim.cluster.network import SPENT
from sim.engine.rows.loop import cached_blocks
from sim.ticks import TICK_S


def bring(f: FleetCore, call: int) -> bool:
    """Whether KV of a call's prompt comes from the replica that has most, or from the busiest: where that is more than its own has."""
    c, loads, own = f.c, f.loads, f.calls[call * on.CALL + on.REPLICA]
    most, source, busiest = 0, -1, -1
    for i in range(c[on.REPLICAS]):
        if i != own and (busiest < 0 or loads[i * on.LOAD + on.INSIDE] > loads[busiest * on.LOAD + on.INSIDE]):
            busiest = i
    for i in range(c[on.REPLICAS]):
        if i == busiest or (i != own and c[on.FETCH] == on.FROM_MOST):
            there = cached_at(f, i, call)
            if there > most:
                most, source = there, i
    if not most:
        return False
    blocks = cached_at(f, own, call)
    if most <= blocks:
        return False
    f.calls[call * on.CALL + on.SOURCE], f.calls[call * on.CALL + on.BROUGHT] = c[on.FIRST] + source, most
    start_transfer(f, call, f.kv_bytes[most] - f.kv_bytes[blocks])
    return True


def start_transfer(f: FleetCore, call: int, size: float) -> None:
    """So many bytes are to come to a call's replica."""
    f.transfers[call * on.TRANSFER + on.LEFT] = size
    f.transfers[call * on.TRANSFER + on.LEAST] = SPENT * size
    push(f, f.clock[on.NOW] + f.c[on.LATENCY], on.SETS_OUT, call)


def cached_at(f: FleetCore, i: int, call: int) -> int:
    """Leading blocks of a call's prompt that a replica's cache holds now."""
    return cached_blocks(f.core, f.core.engines[i], call)


def set_out(f: FleetCore, call: int) -> bool:
    """A transfer begins. Returns whether it is over at once."""
    unlimited = True
    for hop in range(on.HOPS):
        unlimited = unlimited and f.links[link_of(f, call, hop) + on.BANDWIDTH] == math.inf
    if f.transfers[call * on.TRANSFER + on.LEFT] <= 0.0 or unlimited:
        return True
    advance_transfers(f)
    f.moving[f.clock[on.MOVING]] = call
    f.clock[on.MOVING] += 1
    share_links(f)
    return False


def look(f: FleetCore, number: int) -> int:
    """End the transfers that are over, if this is the latest look: so many, listed behind all calls of `moving`."""
    left, over = 0, 0
    if number != f.clock[on.LOOK]:
        return 0
    advance_transfers(f)
    for i in range(f.clock[on.MOVING]):
        call = f.moving[i]
        if f.transfers[call * on.TRANSFER + on.LEFT] <= f.transfers[call * on.TRANSFER + on.LEAST]:
            f.moving[f.c[on.CALLS] + over] = call
            over += 1
        else:
            f.moving[left] = call
            left += 1
    f.clock[on.MOVING] = left
    share_links(f)
    return over


def link_of(f: FleetCore, call: int, hop: int) -> int:
    """Where a link of a transfer's path begins in `links`: out of its source, the one that all share, into its replica."""
    if hop == 1:
        return 2 * f.c[on.ALL] * on.LINK
    number = call * on.CALL
    return (2 * f.calls[number + on.SOURCE] if hop == 0 else 2 * (f.c[on.FIRST] + f.calls[number + on.REPLICA]) + 1) * on.LINK


def advance_transfers(f: FleetCore) -> None:
    """Bytes that have moved since the rates last changed."""
    clock = f.clock
    passed_s = (clock[on.NOW] - clock[on.MOVED]) * TICK_S
    clock[on.MOVED] = clock[on.NOW]
    for i in range(clock[on.MOVING]):
        transfer = f.moving[i] * on.TRANSFER
        f.transfers[transfer + on.LEFT] -= f.transfers[transfer + on.RATE] * passed_s


def share_links(f: FleetCore) -> None:
    """New rates, and a look when the first transfer is over."""
    clock = f.clock
    set_fair_rates(f)
    clock[on.LOOK] += 1
    first_s = math.inf
    for i in range(clock[on.MOVING]):
        transfer = f.moving[i] * on.TRANSFER
        first_s = min(first_s, max(f.transfers[transfer + on.LEFT], 0.0) / f.transfers[transfer + on.RATE])
    if clock[on.MOVING]:
        push(f, clock[on.NOW] + math.ceil(first_s / TICK_S), on.LOOKS, clock[on.LOOK])


def set_fair_rates(f: FleetCore) -> None:
    """sim.cluster.network.set_fair_rates: of links as full the first of the first transfer fills first."""
    moving, links, transfers = f.clock[on.MOVING], f.links, f.transfers
    for link in range(0, (2 * f.c[on.ALL] + 1) * on.LINK, on.LINK):
        links[link + on.SPARE], links[link + on.GROWING] = links[link + on.BANDWIDTH], 0.0
    for i in range(moving):
        transfers[f.moving[i] * on.TRANSFER + on.GROWS] = 1.0
        for hop in range(on.HOPS):
            link = link_of(f, f.moving[i], hop)
            links[link + on.GROWING] += 1.0 if links[link + on.BANDWIDTH] < math.inf else 0.0
    while True:
        fullest, rate = -1, math.inf
        for i in range(moving):
            for hop in range(on.HOPS):
                link = link_of(f, f.moving[i], hop)
                if links[link + on.GROWING] and (fullest < 0 or links[link + on.SPARE] / links[link + on.GROWING] < rate):
                    fullest, rate = link, links[link + on.SPARE] / links[link + on.GROWING]
        if fullest < 0:
            return
        for i in range(moving):
            call = f.moving[i]
            if transfers[call * on.TRANSFER + on.GROWS] and fills(f, call, fullest):
                transfers[call * on.TRANSFER + on.RATE], transfers[call * on.TRANSFER + on.GROWS] = rate, 0.0
                for hop in range(on.HOPS):
                    link = link_of(f, call, hop)
                    if link != fullest and links[link + on.GROWING]:
                        links[link + on.SPARE] -= rate
                        links[link + on.GROWING] -= 1.0
        links[fullest + on.GROWING] = 0.0


def fills(f: FleetCore, call: int, link: int) -> bool:
    """Whether a transfer takes a link."""
    return link == link_of(f, call, 0) or link == link_of(f, call, 1) or link == link_of(f, call, 2)

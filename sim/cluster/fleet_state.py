"""State of the compiled fleet (sim.cluster.fleet_core): clients, a router, API servers and equal replicas as columns."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from itertools import count
from typing import Any, NamedTuple

from sim.engine.rows.layout import Core

Ints = MutableSequence[int]  # or an int64 array

# `c`: limits, and what changes in a run
_places = count()
CALLS, REPLICAS, POLICY, BLOCK, DISPATCH = (next(_places) for _ in range(5))  # a call is one request of the trace
FREE, HELD, HELD_HEAD, HELD_TAIL, EVENTS, SERIAL, NOW, NEXT, SENT, ENDED, AT = (next(_places) for _ in range(11))
ALONE = next(_places)  # another fleet drives the only engine: each call does one ACTION to the request ACTED
ACTION, ACTED, WAKE, RANK, TOLD = (next(_places) for _ in range(5))  # when it goes on then, behind what arrives, and tokens it sends
WINDOW, COUNTED = (next(_places) for _ in range(2))  # ticks from a pick until it counts in a load; how many of `order` do
REMEMBERS, NAMES, STAMPS = (next(_places) for _ in range(3))  # blocks of a replica that the router remembers, 0: all; names; blocks sent
FETCH, LATENCY, MOVING, MOVED, LOOK = (next(_places) for _ in range(5))  # transfers, when they last advanced, the latest look at them
COUNTS = next(_places)
FROM_MOST, FROM_BUSIEST = 1, 2  # values of FETCH
GO_ON, ARRIVE, CANCEL, CACHED = range(4)  # values of ACTION
# `x`: seconds of the host, and options of policies
REQUEST_S, SERIAL_S, PROMPT_TOKEN_S, RESPONSE_S, TOKEN_S, OVERLOAD, DECODE_WEIGHT, IDLE_SCORE = range(8)
# `calls`: CALL numbers each
_places = count()
FOLLOWER, WAITS, FIRST_NAME, DEPTH, DRAW, NEXT_DRAW = (next(_places) for _ in range(6))  # replicas drawn, or draws for ties
REPLICA, REACHED, DECISION, NEW, BEHIND = (next(_places) for _ in range(5))  # NEW: its prompt tokens that count as pending
LOADS = next(_places)  # whether its replica's load has it: NOT_YET, ITS_OWN or NEVER_MORE
STAMP, LATER = (next(_places) for _ in range(2))  # blocks sent before its own; the next call sent to its replica
OWN = next(_places)  # blocks that only this call asks for; of those, later, what the router remembers
SOURCE, BROUGHT = (next(_places) for _ in range(2))  # replica from which KV comes, and blocks of the prompt that it has there
CALL = next(_places)
NOT_YET, ITS_OWN, NEVER_MORE = range(3)
# `loads`: LOAD numbers of each replica
_places = count()
REQUESTS, PENDING, ONGOING, KNOWN = (next(_places) for _ in range(4))  # as sim.cluster.policies.Load; blocks of the call that is routed
INSIDE = next(_places)  # calls sent to it and not finished
SERVER_HEAD, SERVER_TAIL, SINCE = (next(_places) for _ in range(3))
SERVING = next(_places)  # ticks of work of all calls at its API server
REMEMBERED, OLDEST, OLDEST_PLACE, LATEST = (next(_places) for _ in range(4))  # blocks; first call with such, and block of it; last call
LOAD = next(_places)
# `events`: a heap by (tick, serial), EVENT numbers each
TICK, ORDER, KIND, WHOSE = range(4)
EVENT = 4
ARRIVES, COMES, REACHES, AT_ENGINE, THROUGH, SETS_OUT, LOOKS = range(7)  # kinds
# `transfers`: TRANSFER numbers of each call, in bytes and bytes/s; `links`: LINK numbers of each replica's way out and in, and of one that
# all share; a transfer takes HOPS of them
LEFT, LEAST, RATE, GROWS = range(4)
TRANSFER = 4
BANDWIDTH, ROOM, GROWING = range(3)
LINK = 3
HOPS = 3

DRAWN, LEAST_REQUESTS, POWER_OF_TWO, PENDING_TOKENS, PREFIX_AFFINITY, LMETRIC, UNIFIED = range(7)  # policies
ROUTES = {
    "round-robin": DRAWN,
    "random": DRAWN,
    "least-requests": LEAST_REQUESTS,
    "power-of-two": POWER_OF_TWO,
    "join-shortest-pending-tokens": PENDING_TOKENS,
    "prefix-affinity": PREFIX_AFFINITY,
    "lmetric": LMETRIC,
    "unified": UNIFIED,
}
MOST_REPLICAS = 64  # bits of `holders`
MOST_STAMPS = 2**27


class FleetCore(NamedTuple):
    """A fleet's state; `core` are its engines, whose requests are the calls."""

    c: Ints
    x: Sequence[float]
    calls: Ints
    arrival_s: Any  # [calls] of clients that wait for others, when they send
    think_s: Any
    leaves: Any  # [calls] what `given` will be when a call leaves its API server
    given: Any  # [replicas] share of its work that every call at the API server has had since it was empty
    wakes: Ints  # [replicas] ticks when each goes on
    ranks: Ints  # [replicas] whether it does so behind what arrives at that instant
    departs: Ints  # [replicas] ticks when the next call leaves its API server
    first_awake: Ints  # [replicas] trees (sim.cluster.fleet_events.first_of) by when engines go on, and by when calls leave API servers
    first_left: Ints
    order: Ints  # [calls] in which they were sent
    loads: Ints
    holders: Ints  # [names] a bit for each replica that was sent the block
    stamps: Ints  # [replicas * names] blocks sent by the time that the replica was last sent this one; 0: not remembered
    events: Ints
    transfers: Any
    moving: Ints  # [2 * calls] those with KV under way, and behind all calls those of which it has come
    links: Any
    kv_bytes: Any  # [blocks] of the first so many blocks of a prompt
    core: Core

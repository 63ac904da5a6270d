"""State of the compiled fleet (sim.cluster.fleet_core) as columns: clients, and pools of a router, API servers and equal replicas."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from itertools import count
from typing import Any, NamedTuple

from sim.engine.rows.layout import Core

Ints = MutableSequence[int]  # or an int64 array

# `c`: limits, and what changes in a run
_places = count()
CALLS, REPLICAS, POLICY, BLOCK, DISPATCH = (next(_places) for _ in range(5))  # a call is one request of the trace
FREE, HELD, HELD_HEAD, HELD_TAIL, NEXT, SENT, ENDED, AT = (next(_places) for _ in range(8))
ROLE, FIRST, ALL = (next(_places) for _ in range(3))  # its first replica among those of all pools, and their number
ROOM, RESERVE = (next(_places) for _ in range(2))  # tokens that a replica's KV cache holds, and those kept for the output of each request
ALONE = next(_places)  # another fleet drives the only engine: each call does one ACTION to the request ACTED
ACTION, ACTED, WAKE, RANK, TOLD = (next(_places) for _ in range(5))  # when it goes on then, behind what arrives, and tokens it sends
WINDOW, COUNTED = (next(_places) for _ in range(2))  # ticks from a pick until it counts in a load; how many of `order` do
REMEMBERS, NAMES, STAMPS = (next(_places) for _ in range(3))  # blocks of a replica that the router remembers, 0: all; names; blocks sent
FETCH, LATENCY = (next(_places) for _ in range(2))
SEES = next(_places)  # the router knows what caches hold, and not what it sent
STRIDE, SPAN = (next(_places) for _ in range(2))  # blocks of the engine in one of the router's, and tokens
PERIOD, PERIODS = (next(_places) for _ in range(2))  # ticks between its looks at engines (0: it does not), and how many have begun
MOST_WAITING, LEAST_WAITING = (next(_places) for _ in range(2))
COUNTS = next(_places)
SERVES, PREFILLS, DECODES = range(3)  # values of ROLE
FROM_MOST, FROM_BUSIEST = 1, 2  # values of FETCH
GO_ON, ARRIVE, CANCEL, CACHED = range(4)  # values of ACTION
# `clock`: what happens next, transfers under way, when they last advanced, and the latest look at them
NOW, EVENTS, SERIAL, MOVING, MOVED, LOOK, CLOCK = range(7)
# `x`: seconds of the host, options of policies, and of a prompt's KV that goes to the decode pool while it is computed: parts of which the
# last one goes when all is computed (0: all of it goes then), and bytes/s out
REQUEST_S, SERIAL_S, PROMPT_TOKEN_S, RESPONSE_S, TOKEN_S, OVERLOAD, DECODE_WEIGHT, IDLE_SCORE, LAYERS, WAY_OUT = range(10)
QUEUE, KV, PREFIX, CAPACITY = range(10, 14)  # weights of scores, and the KV that a replica has, in the units of what is used
THRESHOLD, ABSOLUTE, RELATIVE = range(14, 17)  # cache_aware's
CREDIT, SCALE, EACH, FIGURES = range(17, 21)  # Dynamo's
# `calls`: CALL numbers each
_places = count()
FOLLOWER, WAITS, FIRST_NAME, DEPTH, DRAW, NEXT_DRAW = (next(_places) for _ in range(6))  # replicas drawn, or draws for ties
REPLICA, REACHED, DECISION, NEW, BEHIND = (next(_places) for _ in range(5))  # NEW: its prompt tokens that count as pending
LOADS = next(_places)  # whether its replica's load has it: NOT_YET, ITS_OWN or NEVER_MORE
STAMP, LATER = (next(_places) for _ in range(2))  # blocks sent before its own; the next call sent to its replica
OWN = next(_places)  # blocks that only this call asks for; of those, later, what the router remembers
SOURCE, BROUGHT = (next(_places) for _ in range(2))  # replica (of all) from which KV comes, and blocks of the prompt that it has there
AT_DOOR = next(_places)  # ticks when it is at its engine, which may have no room for its KV yet
CALL = next(_places)
NOT_YET, ITS_OWN, NEVER_MORE = range(3)
# `loads`: LOAD numbers of each replica
_places = count()
REQUESTS, PENDING, ONGOING, KNOWN = (next(_places) for _ in range(4))  # as sim.cluster.policies.Load; blocks of the call that is routed
INSIDE = next(_places)  # calls sent to it and not finished
SERVER_HEAD, SERVER_TAIL, SINCE = (next(_places) for _ in range(3))
SERVING = next(_places)  # ticks of work of all calls at its API server
REMEMBERED, OLDEST, OLDEST_PLACE, LATEST = (next(_places) for _ in range(4))  # blocks; first call with such, and block of it; last call
WAITING, USED = (next(_places) for _ in range(2))  # as the router last read them: requests that wait for its engine, KV in use
ACTIVE, UNNAMED = (next(_places) for _ in range(2))  # blocks of calls that it has: with a name, each once, and without
HOLDING, TAKEN = (next(_places) for _ in range(2))  # calls with room for their KV, and tokens of that
ROOM_HEAD, ROOM_TAIL, ROOMLESS = (next(_places) for _ in range(3))  # calls that wait for room
LOAD = next(_places)
# `events`: a heap by (tick, serial), EVENT numbers each
TICK, ORDER, KIND, WHOSE = range(4)
EVENT = 4
ARRIVES, COMES, REACHES, AT_ENGINE, THROUGH, SETS_OUT, LOOKS, GOES_ON, KINDS = range(9)  # kinds; those of the decode pool are KINDS more
# `transfers`: TRANSFER numbers of each call, in bytes and bytes/s; `links`: LINK numbers of each replica's way out and in, and of one that
# all share; a transfer takes HOPS of them
LEFT, LEAST, RATE, GROWS = range(4)
TRANSFER = 4
BANDWIDTH, SPARE, GROWING = range(3)
LINK = 3
HOPS = 3

# policies; those from PENDING_TOKENS on know what the router sent, and so on
DRAWN, LEAST_REQUESTS, POWER_OF_TWO, PENDING_TOKENS, PREFIX_AFFINITY, LMETRIC, UNIFIED, WEIGHTED, PICKER = range(9)
LONGEST_SENT, FIRST_SENT, BLOCK_COST = range(9, 12)
ROUTES = {
    "round-robin": DRAWN,
    "random": DRAWN,
    "kubernetes-service": DRAWN,
    "least-requests": LEAST_REQUESTS,
    "power-of-two": POWER_OF_TWO,
    "join-shortest-pending-tokens": PENDING_TOKENS,
    "prefix-affinity": PREFIX_AFFINITY,
    "lmetric": LMETRIC,
    "unified": UNIFIED,
    "weighted": WEIGHTED,
    "llm-d": PICKER,
    "vllm-router": LONGEST_SENT,
    "sglang-router": FIRST_SENT,
    "dynamo": BLOCK_COST,
}
MOST_REPLICAS = 64  # bits of `holders`
MOST_STAMPS = 2**27


class FleetCore(NamedTuple):
    """State of a pool; `arrival_s` to `links` are those of all pools. `core` are its engines, whose requests are the calls."""

    c: Ints
    x: Sequence[float]
    calls: Ints
    leaves: Any  # [calls] what `given` will be when a call leaves its API server
    given: Any  # [replicas] share of its work that every call at the API server has had since it was empty
    order: Ints  # [calls] in which they were sent
    loads: Ints
    holders: Ints  # [names] a bit for each replica that was sent the block
    stamps: Ints  # [replicas * names] blocks sent by the time that the replica was last sent this one; 0: not remembered
    # of FIRST_SENT [names] the replica, + 1, that was sent it first; of BLOCK_COST [replicas * names] calls of the replica that have it
    kv_bytes: Any  # [blocks] of the first so many blocks of a prompt
    arrival_s: Any  # [calls] of clients that wait for others, when they send
    think_s: Any
    clock: Ints
    events: Ints
    wakes: Ints  # [all replicas] ticks when each goes on
    ranks: Ints  # [all replicas] whether it does so behind what arrives at that instant
    departs: Ints  # [all replicas] ticks when the next call leaves its API server
    first_awake: Ints  # [all replicas] trees (sim.cluster.fleet_events.first_of) by when engines go on, and by when calls leave API servers
    first_left: Ints
    transfers: Any
    moving: Ints  # [2 * calls] those with KV under way, and behind all calls those of which it has come
    links: Any
    core: Core


class Pools(NamedTuple):
    """The pool that calls come to, and the one that decodes what it has prefilled: the same where it serves."""

    entry: FleetCore
    decode: FleetCore

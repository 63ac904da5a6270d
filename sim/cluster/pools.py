"""Pools: equal replicas behind a router of their own, and what a pool does with its requests.

    serve      computes prompts and outputs
    prefill    computes prompts only; the KV then goes to a replica of the decode pool
    decode     takes requests whose prompts a prefill pool has computed

A new request goes to the first serving or prefilling pool whose `max_prompt_tokens` it does not exceed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sim.cluster.fair_queue import FairQueue
from sim.cluster.replica import Engine, Replica
from sim.cluster.router import Router
from sim.engine.interface import Request
from sim.errors import UsageError
from sim.rates.serving import NO_HOST, HostRates
from sim.ticks import TICK_S

FETCHES = MOST, BUSIEST = "most", "busiest"
ROLES = SERVE, PREFILL, DECODE = "serve", "prefill", "decode"


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of replicas. `later` of its engines, the last ones, are not up at first.

    `kv_tokens` is what one replica's KV cache holds; a decode replica keeps `reserve_tokens` of it for the output of each request. `spare`
    makes the engine of a replica that starts again. With `fetch`, a replica gets what its cache lacks of a prompt from the replica that
    has most of it, or from the busiest one, whatever that has. Beyond `max_in_flight` requests per replica that is up, requests wait at
    the router, and are taken in fair shares by their tenants' `weights` (sim.cluster.fair_queue). `nic_bytes_per_s` is a replica's
    bandwidth out, and likewise in. `kv_bytes` gives the bytes of a prompt's KV.
    """

    engines: Sequence[Engine]
    router: Router
    host: HostRates = NO_HOST
    name: str = "pool"
    role: str = SERVE
    max_prompt_tokens: float = math.inf
    kv_tokens: float = math.inf
    reserve_tokens: int = 0
    kv_bytes: Callable[[int], float] = float
    nic_bytes_per_s: float = math.inf
    layers: int = 1
    overlaps: bool = False
    block_size: int = 16
    fetch: str | None = None
    max_in_flight: float = math.inf
    weights: Mapping[str, float] = field(default_factory=dict)
    later: int = 0
    spare: Callable[[], Engine] | None = None
    model: str = ""  # that requests may name
    adapters: int = 0  # that a replica holds, the latest ones asked for
    adapter_load_s: float = 0.0

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UsageError(f"pool {self.name}: a pool's role is {', '.join(ROLES)}, not {self.role!r}")
        if self.fetch not in (None, *FETCHES):
            raise UsageError(f"pool {self.name}: KV is fetched from {' or '.join(FETCHES)}, not {self.fetch!r}")
        if not self.engines:
            raise UsageError(f"pool {self.name} needs at least one replica")


class KvRoom:
    """KV room of a replica, in tokens. Who finds none waits, in order; one alone is always let in."""

    def __init__(self, tokens: float) -> None:
        self._tokens = tokens
        self._held: dict[Request, int] = {}
        self._waiting: deque[tuple[Request, int, Callable[[], None]]] = deque()
        self._used = 0

    def enter(self, request: Request, tokens: int, go: Callable[[], None]) -> None:
        """Hold `tokens` for the request, and go on as soon as there is room for them."""
        self._waiting.append((request, tokens, go))
        self._let_in()

    def leave(self, request: Request) -> None:
        """The request needs its room no more, or has stopped waiting for it."""
        held = self._held.pop(request, None)
        if held is not None:
            self._used -= held
        elif any(each[0] is request for each in self._waiting):
            self._waiting = deque(each for each in self._waiting if each[0] is not request)
        self._let_in()

    def empty(self) -> list[Request]:
        """Nobody has room any more; returns those who waited for it."""
        waiting = [request for request, _, _ in self._waiting]
        self._held.clear()
        self._waiting.clear()
        self._used = 0
        return waiting

    def _let_in(self) -> None:
        while self._waiting and (not self._held or self._used + self._waiting[0][1] <= self._tokens):
            request, tokens, go = self._waiting.popleft()
            self._held[request] = tokens
            self._used += tokens
            go()


@dataclass(slots=True)
class RunningPool:
    """A pool in a run: its replicas, those of them that are up (places in the pool, ascending), and who waits for one."""

    pool: Pool
    first: int  # index of its first replica among all
    replicas: list[Replica]
    rooms: list[KvRoom]
    up: list[int] = field(default_factory=list)
    parked: FairQueue = field(default_factory=FairQueue)
    ttfts: deque[tuple[int, float]] | None = None  # ticks and seconds of recent first tokens, where somebody watches them

    def has_room(self) -> bool:
        """Whether a replica is up that may have one more request."""
        limit = self.pool.max_in_flight
        if not self.up or limit == math.inf:
            return bool(self.up)
        return sum(self.replicas[place].sent for place in self.up) < limit * len(self.up)

    def note_ttft(self, request: Request, now: int) -> None:
        """A replica of the pool sampled the first token of `request`."""
        if self.ttfts is not None:
            self.ttfts.append((now, now * TICK_S - request.arrival_s))

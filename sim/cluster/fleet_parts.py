"""Parts of a running fleet: its pools and replicas, the clock, the log, the network, and who may give up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Protocol

from sim.cluster.clock import CLIENTS, Clock
from sim.cluster.fair_queue import FairQueue
from sim.cluster.kv_moves import STORE_IN, STORE_OUT, KvMoves, StoreSpec
from sim.cluster.network import NETWORK, Network, NetworkSpec
from sim.cluster.pools import DECODE, SERVE, KvRoom, Pool, RunningPool
from sim.cluster.replica import Replica
from sim.engine.interface import Request
from sim.results.record import RunLog
from sim.ticks import ARRIVAL


class Callers(Protocol):
    """Receivers of what the fleet does with requests."""

    def came_through(self, request: Request) -> None:
        """The last token has reached the client."""

    def first_token(self, request: Request) -> None:
        """The first token was sampled."""

    def lost(self, request: Request) -> None:
        """A replica failed with the request inside, and the client is notified."""

    def busy(self) -> bool:
        """Whether a request is still to come, or under way."""


class Handover(Protocol):
    """Transfer of prompts from prefill to decode, as the way in sees it."""

    def begin(self, request: Request) -> None:
        """A prefill replica gets the request."""

    def fetch(self, request: Request, replica: Replica, submit: Callable[[], None]) -> None:
        """A decode replica has room for the prompt's KV."""


class FleetParts:
    """Shared by the way in, the transfer from prefill to decode and the way out."""

    def __init__(
        self, clock: Clock, log: RunLog, pools: Sequence[Pool], callers: Callers, network: NetworkSpec, store: StoreSpec | None
    ) -> None:
        self.clock, self.log, self.callers = clock, log, callers
        self.network = Network(clock, links_of(pools, network, store), network.latency_s)
        self.kv = KvMoves(self.network, store)
        self.moves_kv = store is not None or any(pool.fetch is not None or pool.role != SERVE for pool in pools)
        self.replicas: list[Replica] = []
        self.pools: list[RunningPool] = []
        self._pool_of: list[RunningPool] = []
        for pool in pools:
            first = len(self.replicas)
            own = [Replica(clock, first + place, engine, pool.spare) for place, engine in enumerate(pool.engines)]
            self.replicas += own
            self.pools.append(RunningPool(pool, first, own, [KvRoom(pool.kv_tokens) for _ in own], parked=FairQueue(pool.weights)))
            self._pool_of += [self.pools[-1]] * len(own)
        for each in self.pools:
            if getattr(each.pool.router, "sees_caches", False):
                each.pool.router.cached = partial(_cached, each)  # type: ignore[attr-defined]
            if hasattr(each.pool.router, "gauges"):
                each.pool.router.gauges = partial(_gauges, each)
            if hasattr(each.pool.router, "adapters"):
                each.pool.router.adapters = [replica.adapters for replica in each.replicas]
        self.entries = [each for each in self.pools if each.pool.role != DECODE]
        self.impatient: dict[Request, Replica | None] = {}  # in flight and given up in time: the replica that it has reached

    def pool_of(self, replica: Replica) -> RunningPool:
        """The pool of a replica."""
        return self._pool_of[replica.index]

    def room(self, replica: Replica) -> KvRoom:
        """KV room of a replica."""
        running = self.pool_of(replica)
        return running.rooms[replica.index - running.first]

    def tell_router(self, request: Request, replica: Replica) -> None:
        """The router hears that the replica has the request no more."""
        running = self.pool_of(replica)
        running.pool.router.finished(request, replica.index - running.first, self.clock.now)

    def after(self, ticks: int, action: Callable[..., None], *given: object) -> None:
        """Act at `ticks`: at once when that is now."""
        if ticks > self.clock.now:
            self.clock.call(ticks, ARRIVAL, CLIENTS, action, *given)
        else:
            action(*given)


def _cached(running: RunningPool, place: int, request: Request) -> int:
    return running.replicas[place].engine.cached_blocks(request)


def _gauges(running: RunningPool, place: int) -> tuple[int, int, int]:
    return running.replicas[place].engine.gauges()


def links_of(pools: Sequence[Pool], network: NetworkSpec = NETWORK, store: StoreSpec | None = None) -> dict[Hashable, float]:
    """Bandwidth, in bytes per second, of every replica's way out and in, of the link that all share, and of a store's ways out and in."""
    links: dict[Hashable, float] = {"shared": network.shared_bytes_per_s}
    if store is not None:
        links |= {STORE_OUT: store.bytes_per_s, STORE_IN: store.bytes_per_s}
    bandwidths = [pool.nic_bytes_per_s for pool in pools for _ in pool.engines]
    for index, bandwidth in enumerate(bandwidths):
        links |= {("out", index): bandwidth, ("in", index): bandwidth}
    return links

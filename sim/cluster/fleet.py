"""The fleet of a run: routers pick replicas, API servers hand requests over, KV moves between replicas, and replicas come and go.

What a failed replica had goes on at another one of its pool, which computes the tokens again, as after a preemption; or clients are told
that it is lost. A decode replica computes a prompt anew whose KV was lost on the way. Clients (sim.cluster.clients) send, and hear when a
request has come through.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Protocol

from sim.cluster.clock import CLIENTS, Clock
from sim.cluster.fair_queue import FairQueue
from sim.cluster.kv_moves import STORE_IN, STORE_OUT, KvMoves, StoreSpec
from sim.cluster.network import NETWORK, Network, NetworkSpec
from sim.cluster.pools import DECODE, PREFILL, SERVE, KvRoom, Pool, RunningPool
from sim.cluster.replica import Change, Replica, State
from sim.cost.api_server import SharedServer
from sim.engine.interface import Request
from sim.errors import SimctlError, UsageError
from sim.results.record import RunLog
from sim.ticks import ARRIVAL, COMPLETION, TICK_S, to_ticks


class Callers(Protocol):
    """Who hears what the fleet does with requests."""

    def came_through(self, request: Request) -> None:
        """The last token has reached the client."""

    def first_token(self, request: Request) -> None:
        """The first token was sampled."""

    def lost(self, request: Request) -> None:
        """A replica failed with the request inside, and the client is told so."""

    def busy(self) -> bool:
        """Whether a request is still to come, or under way."""


class Fleet:
    """Pools of replicas. Raises UsageError where they do not go together."""

    def __init__(
        self,
        clock: Clock,
        log: RunLog,
        pools: Sequence[Pool],
        callers: Callers,
        network: NetworkSpec = NETWORK,
        loses: bool = False,
        store: StoreSpec | None = None,
    ) -> None:
        self._clock = clock
        self._log = log
        self._callers = callers
        self._network = Network(clock, links_of(pools, network, store), network.latency_s)
        self._kv = KvMoves(self._network, store)
        self._loses = loses
        self._moves_kv = store is not None or any(pool.fetch is not None or pool.role != SERVE for pool in pools)
        self._ordered: dict[Replica, int] = {}  # since when those are paid for that are up, or on their way up
        self._paid: defaultdict[Replica, int] = defaultdict(int)  # ticks, of times that are over
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
        self._entries = [each for each in self.pools if each.pool.role != DECODE]
        self._decode = _decode_pool(self.pools)
        self._servers = [SharedServer(to_ticks(each.pool.host.serial_s)) for each in self._pool_of]
        self._at_server: defaultdict[int, deque[Request]] = defaultdict(deque)
        self._impatient: dict[Request, Replica | None] = {}  # in flight and given up in time: the replica that it has reached
        self._asked: dict[Request, int] = {}  # output tokens of requests that prefill replicas have
        self._prefilled: dict[Request, Replica] = {}  # whose KV waits at the replica that computed it, or is on its way
        log.on_first_token = self._first_token

    def begin(self, changes: Sequence[Change]) -> None:
        """Start the replicas that are up at first: all but those of `later` and those that `changes` start."""
        starting: set[int] = set()
        acted: set[int] = set()
        for change in sorted(changes, key=lambda change: change.at_s):
            if not 0 <= change.replica < len(self.replicas):
                raise UsageError(f"there is no replica {change.replica}: there are {len(self.replicas)}")
            if change.action == "start" and change.replica not in acted:
                starting.add(change.replica)
            acted.add(change.replica)
        for running in self.pools:
            for replica in running.replicas[: len(running.replicas) - running.pool.later]:
                if replica.index not in starting:
                    self.start(replica)
        for change in changes:
            self._clock.call(to_ticks(change.at_s), ARRIVAL, CLIENTS, self._change, change)

    def send(self, request: Request, now_s: float) -> None:
        """A client sends a request, which is let in."""
        if request.cancel_s < math.inf:
            self._impatient[request] = None
        for running in self._entries:
            if request.prompt_tokens <= running.pool.max_prompt_tokens:
                break
        else:
            raise UsageError(f"request {request.request_id!r}: no pool takes a prompt of {request.prompt_tokens} tokens")
        self._route(request, running, now_s)

    def give_up(self, request: Request) -> bool:
        """The client of `request` waits no longer: whatever has the request drops it. False where it has left."""
        if request not in self._impatient:
            return False
        request.cancelled = True
        self._log.cancelled(request)
        replica = self._impatient.pop(request)
        if replica is not None:
            running = self._pool_of[replica.index]
            running.rooms[replica.index - running.first].leave(request)
            replica.cancel(request)
            running.pool.router.finished(request, replica.index - running.first, self._clock.now)
        else:
            for running in self.pools:
                if request in running.parked:
                    running.parked.remove(request)
        self._forget_kv(request)
        if replica is not None:
            self._release(self._pool_of[replica.index])
        return True

    def busy(self) -> bool:
        """Whether anything is still to be served, or to come."""
        return self._callers.busy()

    def in_flight(self, pool: int, tokens: bool = False) -> int:
        """Requests that a pool has, or their prompt tokens."""
        running = self.pools[pool]
        inside = [request for replica in running.replicas for request in replica.inside] + list(running.parked)
        if tokens:
            return sum(request.prompt_tokens for request in inside)
        return sum(replica.sent for replica in running.replicas) + len(running.parked)

    def paid_s(self, until: int) -> list[float]:
        """Seconds up to `until` (ticks) for which each replica was up or on its way up."""
        self._settle(until)
        return [self._paid[replica] * TICK_S for replica in self.replicas]

    def _settle(self, until: int) -> None:
        for replica, since in list(self._ordered.items()):
            down = replica.state is State.DOWN and replica.stopped >= since
            self._paid[replica] += max((replica.stopped if down else until) - since, 0)
            del self._ordered[replica]

    def order(self, replica: Replica) -> None:
        """The replica is paid for from now on."""
        if replica in self._ordered:
            since = self._ordered[replica]
            if replica.state is not State.DOWN or replica.stopped < since:
                return
            self._paid[replica] += replica.stopped - since
        self._ordered[replica] = self._clock.now

    def start(self, replica: Replica) -> None:
        """The replica takes requests from now on."""
        self.order(replica)
        replica.start(self._log, partial(self._engine_finished, replica))
        self._changed(self._pool_of[replica.index])

    def drain(self, replica: Replica) -> None:
        """The replica takes no more requests."""
        replica.drain()
        self._changed(self._pool_of[replica.index])

    def fail(self, replica: Replica) -> None:
        """The replica stops at once."""
        lost = replica.fail()
        running = self._pool_of[replica.index]
        waiting = running.rooms[replica.index - running.first].empty()
        for request in [each for each, source in self._prefilled.items() if source is replica]:
            self._forget_kv(request)
        self._changed(running)
        for request in lost:
            self._log.lost(request, replica.index, self._clock.now)
            if self._loses:
                self._lose(request, replica)
            else:
                self._move(request, replica)
        for request in waiting:
            self._move(request, replica)

    def _lose(self, request: Request, replica: Replica) -> None:
        """Its client is told that the request is lost."""
        running = self._pool_of[replica.index]
        replica.left(request)
        self._ask_again(request)
        running.pool.router.finished(request, replica.index - running.first, self._clock.now)
        self._forget_kv(request)
        self._impatient.pop(request, None)
        self._log.failed(request)
        self._callers.lost(request)
        self._release(running)

    def _change(self, change: Change) -> None:
        {"start": self.start, "drain": self.drain, "fail": self.fail}[change.action](self.replicas[change.replica])

    def _changed(self, running: RunningPool) -> None:
        running.up = [place for place, replica in enumerate(running.replicas) if replica.state is State.UP]
        self._release(running)

    def _release(self, running: RunningPool) -> None:
        """Send on those who wait at the router, as far as there is room."""
        while running.parked and running.has_room():
            self._send_on(running.parked.popleft(), running, self._clock.now * TICK_S)

    def _move(self, request: Request, replica: Replica) -> None:
        """Send a request on that its replica has lost."""
        running = self._pool_of[replica.index]
        running.rooms[replica.index - running.first].leave(request)
        replica.left(request)
        self._ask_again(request)
        request.computed_tokens = 0
        running.pool.router.finished(request, replica.index - running.first, self._clock.now)
        self._forget_kv(request)
        if request in self._impatient:
            self._impatient[request] = None
        self._route(request, running, self._clock.now * TICK_S)
        self._release(running)

    def _first_token(self, request: Request, index: int) -> None:
        running = self._pool_of[index]
        running.pool.router.first_token(request, index - running.first, self._clock.now)
        running.note_ttft(request, self._clock.now)
        self._callers.first_token(request)

    # on the way in

    def _route(self, request: Request, running: RunningPool, now_s: float) -> None:
        if running.parked or not running.has_room():
            self._log.arrived(request, -1, self._clock.now)
            running.parked.append(request)
        else:
            self._send_on(request, running, now_s)

    def _send_on(self, request: Request, running: RunningPool, now_s: float) -> None:
        router, now = running.pool.router, self._clock.now
        place = router.pick(request, running.up, now)
        replica = running.replicas[place] if 0 <= place < len(running.replicas) else None
        if replica is None or replica.state is not State.UP:
            raise SimctlError(f"pool {running.pool.name}: the router picked replica {place}, and those up are {running.up}")
        replica.sent += 1
        reached = now + to_ticks(router.dispatch_s) if router.dispatch_s else now
        self._log.arrived(request, replica.index, reached, router.decision)
        if reached > now:
            self._clock.call(reached, ARRIVAL, CLIENTS, self._reach, request, replica, reached * TICK_S)
        else:
            self._reach(request, replica, now_s)

    def _reach(self, request: Request, replica: Replica, now_s: float) -> None:
        """The request is at its replica's API server."""
        running = self._pool_of[replica.index]
        if request.cancelled:
            replica.left(request)
            running.pool.router.finished(request, replica.index - running.first, self._clock.now)
            self._release(running)
            return
        if request in self._impatient:
            self._impatient[request] = replica
        if not running.pool.host.serial_s:
            self._hand_over(request, replica, now_s)
            return
        self._servers[replica.index].arrive(self._clock.now)
        self._at_server[replica.index].append(request)
        self._watch(replica)

    def _watch(self, replica: Replica) -> None:
        """Look at the API server again when its next request leaves; arrivals put that off, which then shows."""
        leaves = self._servers[replica.index].next_departure()
        if leaves is not None:
            self._clock.call(leaves, COMPLETION, CLIENTS, self._leave, replica)

    def _leave(self, replica: Replica) -> None:
        now, server = self._clock.now, self._servers[replica.index]
        if server.next_departure() != now:
            return
        server.depart(now)
        self._hand_over(self._at_server[replica.index].popleft(), replica, now * TICK_S)
        self._watch(replica)

    def _hand_over(self, request: Request, replica: Replica, now_s: float) -> None:
        ready = to_ticks(now_s + self._pool_of[replica.index].pool.host.before_s(request.prompt_tokens))
        self.after(ready, self._at_engine, request, replica)

    def _at_engine(self, request: Request, replica: Replica) -> None:
        if request.cancelled:
            return
        if replica.state is State.DOWN:
            self._move(request, replica)
            return
        running = self._pool_of[replica.index]
        if self._moves_kv:
            self._log.at_engine(request, replica.index, self._clock.now)
        if running.pool.role == PREFILL:
            self._asked[request] = request.output_tokens
            request.output_tokens, request.hands_over = 1, True
            room, go = request.prompt_tokens, partial(self._kv.bring, request, replica, running, partial(self._submit, request, replica))
        elif running.pool.role == DECODE:
            room, go = request.prompt_tokens + running.pool.reserve_tokens, partial(self._fetch, request, replica)
        else:
            self._kv.bring(request, replica, running, partial(self._submit, request, replica))
            return
        running.rooms[replica.index - running.first].enter(request, room, go)

    def _submit(self, request: Request, replica: Replica) -> None:
        """Hand the request to the engine, unless its client or the replica has gone meanwhile."""
        if request.cancelled:
            return
        if replica.state is State.DOWN:
            self._move(request, replica)
        else:
            self._log.submitted(request, replica.index, self._clock.now)
            replica.submit(request)

    # from prefill to decode

    def _fetch(self, request: Request, replica: Replica) -> None:
        """There is room for the prompt's KV: get it from where it was computed."""
        source = self._prefilled.get(request)
        if source is None:
            self._fetched(request, replica)
            return
        pool = self._pool_of[source.index].pool
        size = pool.kv_bytes(request.prompt_tokens)
        if pool.overlaps:  # all layers but the last went while later ones were computed, as far as the link could take them
            prefill_s = self._clock.now * TICK_S - self._log.scheduled_s(request)
            size = max(size / pool.layers, size - pool.nic_bytes_per_s * prefill_s)
        self._network.send(size, [("out", source.index), "shared", ("in", replica.index)], partial(self._fetched, request, replica))

    def _fetched(self, request: Request, replica: Replica) -> None:
        if request in self._prefilled:
            request.computed_tokens = request.prompt_tokens
        self._forget_kv(request)
        self._submit(request, replica)

    def _forget_kv(self, request: Request) -> None:
        """The replica that computed the prompt may free its KV."""
        source = self._prefilled.pop(request, None)
        if source is not None:
            running = self._pool_of[source.index]
            running.rooms[source.index - running.first].leave(request)
            source.left(request)
            self._release(running)

    def _ask_again(self, request: Request) -> None:
        """The request is with no prefill replica any more: it asks for all its output again."""
        request.output_tokens = self._asked.pop(request, request.output_tokens)
        request.hands_over = False

    # on the way out

    def _engine_finished(self, replica: Replica, request: Request, place: int) -> None:
        """Its client hears of it when the last token, at this place of its iteration, has come through."""
        if request.hands_over:
            self._go_on_elsewhere(request, replica, place)
            return
        running = self._pool_of[replica.index]
        self._kv.keep(request, replica, running)
        replica.left(request)
        running.rooms[replica.index - running.first].leave(request)
        after_s = running.pool.host.after_s(place)
        if request.given_up_by(self._clock.now * TICK_S + after_s):
            running.pool.router.finished(request, replica.index - running.first, self._clock.now)
            self._impatient[request] = None
        else:
            self._impatient.pop(request, None)
            self.after(self._clock.now + to_ticks(after_s), self._came_through, request, replica)
        self._release(running)

    def _go_on_elsewhere(self, request: Request, replica: Replica, place: int) -> None:
        """The prompt is computed, and its KV stays until the decode replica has it. The token sampled here is not used."""
        running = self._pool_of[replica.index]
        running.pool.router.finished(request, replica.index - running.first, self._clock.now)
        self._ask_again(request)
        running.note_ttft(request, self._clock.now)
        self._kv.keep(request, replica, running)
        replica.served(request)
        self._prefilled[request] = replica
        request.generated_tokens = request.computed_tokens = 0
        request.blocks, request.hashed_blocks = [], 0
        if request in self._impatient:
            self._impatient[request] = None
        self.after(self._clock.now + to_ticks(running.pool.host.after_s(place)), self._to_decode, request)

    def _to_decode(self, request: Request) -> None:
        if not request.cancelled:
            assert self._decode is not None
            self._route(request, self._decode, self._clock.now * TICK_S)

    def _came_through(self, request: Request, replica: Replica) -> None:
        running = self._pool_of[replica.index]
        running.pool.router.finished(request, replica.index - running.first, self._clock.now)
        self._callers.came_through(request)

    def after(self, ticks: int, action: Callable[..., None], *given: object) -> None:
        """Act at `ticks`: at once when that is now."""
        if ticks > self._clock.now:
            self._clock.call(ticks, ARRIVAL, CLIENTS, action, *given)
        else:
            action(*given)


def _cached(running: RunningPool, place: int, request: Request) -> int:
    return running.replicas[place].engine.cached_blocks(request)


def links_of(pools: Sequence[Pool], network: NetworkSpec = NETWORK, store: StoreSpec | None = None) -> dict[Hashable, float]:
    """Bandwidth, in bytes per second, of every replica's way out and in, of the link that all share, and of a store's ways out and in."""
    links: dict[Hashable, float] = {"shared": network.shared_bytes_per_s}
    if store is not None:
        links |= {STORE_OUT: store.bytes_per_s, STORE_IN: store.bytes_per_s}
    bandwidths = [pool.nic_bytes_per_s for pool in pools for _ in pool.engines]
    for index, bandwidth in enumerate(bandwidths):
        links |= {("out", index): bandwidth, ("in", index): bandwidth}
    return links


def _decode_pool(pools: Sequence[RunningPool]) -> RunningPool | None:
    """The decode pool, of which there is one exactly where there is a prefill pool."""
    decoding, prefilling = ([each for each in pools if each.pool.role == role] for role in (DECODE, PREFILL))
    if len(decoding) > 1:
        raise UsageError(f"one decode pool at most: {' and '.join(each.pool.name for each in decoding)}")
    if bool(decoding) != bool(prefilling):
        raise UsageError("a prefill pool needs a decode pool, and a decode pool a prefill pool")
    return decoding[0] if decoding else None

"""Way in: from the client by router and API server to the engine of a replica. Where no replica has room a request waits at the router."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

from sim.cluster.clock import CLIENTS
from sim.cluster.fleet_parts import FleetParts, Handover
from sim.cluster.pools import DECODE, PREFILL, RunningPool
from sim.cluster.replica import Replica, State
from sim.cost.api_server import SharedServer
from sim.engine.interface import Request
from sim.errors import SimctlError
from sim.ticks import ARRIVAL, COMPLETION, TICK_S, to_ticks


class WayIn:
    """Routes requests. `moved` takes those that reach a replica which is down."""

    handover: Handover

    def __init__(self, fleet: FleetParts, moved: Callable[[Request, Replica], None]) -> None:
        self._fleet, self._moved = fleet, moved
        self._servers = [SharedServer() for _ in fleet.replicas]
        self._at_server: defaultdict[int, deque[Request]] = defaultdict(deque)

    def route(self, request: Request, running: RunningPool, now_s: float) -> None:
        """Send a request on to a replica of a pool, or let it wait for one."""
        if running.parked or not running.has_room():
            self._fleet.log.arrived(request, -1, self._fleet.clock.now)
            running.parked.append(request)
        else:
            self._send_on(request, running, now_s)

    def release(self, running: RunningPool) -> None:
        """Send on those who wait at the router, as far as there is room."""
        while running.parked and running.has_room():
            self._send_on(running.parked.popleft(), running, self._fleet.clock.now * TICK_S)

    def _send_on(self, request: Request, running: RunningPool, now_s: float) -> None:
        router, now = running.pool.router, self._fleet.clock.now
        place = router.pick(request, running.up, now)
        replica = running.replicas[place] if 0 <= place < len(running.replicas) else None
        if replica is None or replica.state is not State.UP:
            raise SimctlError(f"pool {running.pool.name}: the router picked replica {place}, and those up are {running.up}")
        replica.sent += 1
        reached = now + to_ticks(router.dispatch_s) if router.dispatch_s else now
        self._fleet.log.arrived(request, replica.index, reached, router.decision)
        if reached > now:
            self._fleet.clock.call(reached, ARRIVAL, CLIENTS, self._reach, request, replica, reached * TICK_S)
        else:
            self._reach(request, replica, now_s)

    def _reach(self, request: Request, replica: Replica, now_s: float) -> None:
        """The request is at its replica's API server."""
        running = self._fleet.pool_of(replica)
        if request.cancelled:
            replica.left(request)
            self._fleet.tell_router(request, replica)
            self.release(running)
            return
        if request in self._fleet.impatient:
            self._fleet.impatient[request] = replica
        work = to_ticks(running.pool.host.server_s(request.prompt_tokens))
        if not work:
            self._hand_over(request, replica, now_s)
            return
        self._servers[replica.index].arrive(self._fleet.clock.now, work)
        self._at_server[replica.index].append(request)
        self._watch(replica)

    def _watch(self, replica: Replica) -> None:
        """Look at the API server again when its next request leaves; arrivals put that off, which then shows."""
        leaves = self._servers[replica.index].next_departure()
        if leaves is not None:
            self._fleet.clock.call(leaves, COMPLETION, CLIENTS, self._leave, replica)

    def _leave(self, replica: Replica) -> None:
        now, server = self._fleet.clock.now, self._servers[replica.index]
        if server.next_departure() != now:
            return
        server.depart(now)
        self._hand_over(self._at_server[replica.index].popleft(), replica, now * TICK_S)
        self._watch(replica)

    def _hand_over(self, request: Request, replica: Replica, now_s: float) -> None:
        ready = to_ticks(now_s + self._fleet.pool_of(replica).pool.host.request_s)
        self._fleet.after(max(ready, self._loaded(request, replica)), self._at_engine, request, replica)

    def _loaded(self, request: Request, replica: Replica) -> int:
        """When the replica has the request's adapter: others are dropped for it, the one that was asked for longest ago first.

        Left out: that an engine waits for the load.
        """
        held, pool = replica.adapters, self._fleet.pool_of(replica).pool
        if not request.adapter or not pool.adapters:
            return 0
        loaded = held.pop(request.adapter, None)
        if loaded is None:
            loaded = self._fleet.clock.now + to_ticks(pool.adapter_load_s)
            while len(held) >= pool.adapters:
                del held[next(iter(held))]
        held[request.adapter] = loaded
        return loaded

    def _at_engine(self, request: Request, replica: Replica) -> None:
        if request.cancelled:
            return
        if replica.state is State.DOWN:
            self._moved(request, replica)
            return
        running, kv = self._fleet.pool_of(replica), self._fleet.kv
        if self._fleet.moves_kv:
            self._fleet.log.at_engine(request, replica.index, self._fleet.clock.now)
        submit = partial(self.submit, request, replica)
        if running.pool.role == PREFILL:
            self.handover.begin(request)
            room, go = request.prompt_tokens, partial(kv.bring, request, replica, running, submit)
        elif running.pool.role == DECODE:
            room, go = request.prompt_tokens + running.pool.reserve_tokens, partial(self.handover.fetch, request, replica, submit)
        else:
            kv.bring(request, replica, running, submit)
            return
        self._fleet.room(replica).enter(request, room, go)

    def submit(self, request: Request, replica: Replica) -> None:
        """Hand the request to the engine, unless its client or the replica has gone meanwhile."""
        if request.cancelled:
            return
        if replica.state is State.DOWN:
            self._moved(request, replica)
        else:
            self._fleet.log.submitted(request, replica.index, self._fleet.clock.now)
            replica.submit(request)

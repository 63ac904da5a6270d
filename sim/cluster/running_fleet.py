"""The fleet of a run: replicas that come and go, requests that are sent to them, given up or lost with them.

What a failed replica had goes on at another one of its pool, which computes the tokens again, as after a preemption; or it is lost, and
its clients are notified. Clients (sim.cluster.clients) send, and hear when a request has come through.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from sim.cluster.clock import CLIENTS, Clock
from sim.cluster.encoders import Encoders, EncoderSpec
from sim.cluster.fleet_parts import Callers, FleetParts
from sim.cluster.kv_moves import StoreSpec
from sim.cluster.network import NETWORK, NetworkSpec
from sim.cluster.pools import Pool, RunningPool
from sim.cluster.prefill_to_decode import PrefillToDecode
from sim.cluster.replica import Change, Replica, State
from sim.cluster.way_in import WayIn
from sim.cluster.way_out import WayOut
from sim.engine.interface import Request
from sim.errors import UsageError
from sim.results.record import RunLog
from sim.ticks import ARRIVAL, TICK_S, to_ticks


def no_pool(request_id: str, prompt_tokens: int, model: str) -> str:
    """That a request finds no pool, in words."""
    return f"request {request_id!r}: no pool {f'of {model} ' if model else ''}takes a prompt of {prompt_tokens} tokens"


class RunningFleet:
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
        encoders: EncoderSpec | None = None,
    ) -> None:
        self._clock, self._log, self._callers, self._loses = clock, log, callers, loses
        self._parts = parts = FleetParts(clock, log, pools, callers, network, store)
        self.replicas, self.pools, self.after = parts.replicas, parts.pools, parts.after
        self._way_in = WayIn(parts, self._move)
        self._handover = PrefillToDecode(parts, self._way_in)
        self._way_in.handover = self._handover
        self._way_out = WayOut(parts, self._way_in, self._handover)
        self._encoders = None if encoders is None else Encoders(encoders)
        self._ordered: dict[Replica, int] = {}  # since when those are paid for that are up, or on their way up
        self._paid: defaultdict[Replica, int] = defaultdict(int)  # ticks, of times that are over
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
            self._parts.impatient[request] = None
        for running in self._parts.entries:
            if request.prompt_tokens <= running.pool.max_prompt_tokens and request.model in ("", running.pool.model):
                break
        else:
            raise UsageError(no_pool(request.request_id, request.prompt_tokens, request.model))
        if request.images and self._encoders is not None:
            self._log.arrived(request, -1, self._clock.now)
            self.after(self._encoders.done(request.images, self._clock.now), self._encoded, request, running)
        else:
            self._way_in.route(request, running, now_s)

    def _encoded(self, request: Request, running: RunningPool) -> None:
        """Its images are encoded, if its client still waits."""
        if not request.cancelled:
            self._way_in.route(request, running, self._clock.now * TICK_S)

    def give_up(self, request: Request) -> bool:
        """The client of `request` waits no longer: whatever has the request drops it. False where it has left."""
        if request not in self._parts.impatient:
            return False
        request.cancelled = True
        self._log.cancelled(request)
        replica = self._parts.impatient.pop(request)
        if replica is not None:
            self._parts.room(replica).leave(request)
            replica.cancel(request)
            self._parts.tell_router(request, replica)
        else:
            for running in self.pools:
                if request in running.parked:
                    running.parked.remove(request)
        self._handover.forget_kv(request)
        if replica is not None:
            self._way_in.release(self._parts.pool_of(replica))
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
        replica.start(self._log, partial(self._way_out.engine_finished, replica))
        self._changed(self._parts.pool_of(replica))

    def drain(self, replica: Replica) -> None:
        """The replica takes no more requests."""
        replica.drain()
        self._changed(self._parts.pool_of(replica))

    def fail(self, replica: Replica) -> None:
        """The replica stops at once."""
        lost = replica.fail()
        waiting = self._parts.room(replica).empty()
        self._handover.forget_kv_of(replica)
        self._changed(self._parts.pool_of(replica))
        for request in lost:
            self._log.lost(request, replica.index, self._clock.now)
            if self._loses:
                self._lose(request, replica)
            else:
                self._move(request, replica)
        for request in waiting:
            self._move(request, replica)

    def _lose(self, request: Request, replica: Replica) -> None:
        """Its client is notified that the request is lost."""
        replica.left(request)
        self._handover.end(request)
        self._parts.tell_router(request, replica)
        self._handover.forget_kv(request)
        self._parts.impatient.pop(request, None)
        self._log.failed(request)
        self._callers.lost(request)
        self._way_in.release(self._parts.pool_of(replica))

    def _change(self, change: Change) -> None:
        {"start": self.start, "drain": self.drain, "fail": self.fail}[change.action](self.replicas[change.replica])

    def _changed(self, running: RunningPool) -> None:
        running.up = [place for place, replica in enumerate(running.replicas) if replica.state is State.UP]
        self._way_in.release(running)

    def _move(self, request: Request, replica: Replica) -> None:
        """Send a request on that its replica has lost."""
        running = self._parts.pool_of(replica)
        self._parts.room(replica).leave(request)
        replica.left(request)
        self._handover.end(request)
        request.computed_tokens = 0
        self._parts.tell_router(request, replica)
        self._handover.forget_kv(request)
        if request in self._parts.impatient:
            self._parts.impatient[request] = None
        self._way_in.route(request, running, self._clock.now * TICK_S)
        self._way_in.release(running)

    def _first_token(self, request: Request, index: int) -> None:
        running = self._parts.pool_of(self.replicas[index])
        running.pool.router.first_token(request, index - running.first, self._clock.now)
        running.note_ttft(request, self._clock.now)
        self._callers.first_token(request)

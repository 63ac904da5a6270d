"""A run: clients send what a source gives them, a router picks a replica, replicas take turns with time, the log keeps it all."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import simpy

from sim.clock import ARRIVAL, Clock
from sim.engine.steptime import TICK_S, to_ticks
from sim.engine.types import Request, Scheduler
from sim.errors import SimctlError, UsageError
from sim.replica import Replica, StepCost
from sim.runlog import RunLog, RunRecord
from sim.workload.sources import Source

PROGRESS_EVERY = 64  # finished requests between two reports


class Router(Protocol):
    """Picks the replica of a request at the moment it arrives."""

    def pick(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Index of the chosen replica."""


class OneReplica:
    """The router of a single replica."""

    def pick(self, request: Request, replicas: Sequence[Replica]) -> int:
        return 0


class Clients:
    """Sends requests when they are due, at most `max_concurrency` at a time, later turns after earlier ones."""

    def __init__(self, clock: Clock, source: Source, log: RunLog, router: Router, max_concurrency: int | None = None) -> None:
        self.replicas: list[Replica] = []
        self._clock = clock
        self._source = source
        self._log = log
        self._router = router
        self._free = math.inf if max_concurrency is None else max_concurrency
        self._held: deque[Request] = deque()
        self.on_progress: Callable[[int, int], None] | None = None

    def run(self) -> Generator[simpy.Event, None, None]:
        """The process of the requests that wait for nobody."""
        for request in self._source.arrivals():
            arrival = to_ticks(request.arrival_s)
            if arrival > self._clock.ticks:
                yield self._clock.at(arrival, ARRIVAL)
            self._due(request)

    def finished(self, request: Request, now: int) -> None:
        """A replica finished `request`: its place is free, and its session may go on."""
        self._free += 1
        follower = self._source.after(request, now * TICK_S)
        if follower is not None:
            arrival = to_ticks(follower.arrival_s)
            if arrival > now:
                event = self._clock.at(arrival, ARRIVAL)
                event.callbacks.append(lambda _: self._due(follower))
            else:
                self._due(follower)
        while self._held and self._free > 0:
            held = self._held.popleft()
            held.arrival_s = now * TICK_S  # a client at its limit sends late, and its clock starts when it sends
            self._send(held)
        done = self._log.finished
        if self.on_progress is not None and done % PROGRESS_EVERY == 0:
            self.on_progress(done, self._source.total)

    def _due(self, request: Request) -> None:
        if self._free > 0 and not self._held:
            self._send(request)
        else:
            self._held.append(request)

    def _send(self, request: Request) -> None:
        self._free -= 1
        index = self._router.pick(request, self.replicas)
        self._log.arrived(request, index)
        self.replicas[index].submit(request)


def simulate(
    source: Source,
    schedulers: Sequence[Scheduler],
    cost: StepCost,
    *,
    router: Router | None = None,
    max_concurrency: int | None = None,
    horizon_s: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> RunRecord:
    """Run until every request has finished, or until `horizon_s` of simulated time.

    Raises UsageError for a request that can never fit or a limit below 1, SimctlError when a scheduler gets stuck.
    """
    if max_concurrency is not None and max_concurrency < 1:
        raise UsageError(f"max concurrency must be at least 1, got {max_concurrency}")
    clock, log = Clock(), RunLog(cost.terms, len(schedulers))
    clients = Clients(clock, source, log, router or OneReplica(), max_concurrency)
    clients.on_progress = on_progress
    for index, scheduler in enumerate(schedulers):
        clients.replicas.append(Replica(clock, index, scheduler, cost, log, clients.finished))
    clock.process(clients.run())
    if horizon_s is None:
        clock.run()
        left = sum(scheduler.unfinished() for scheduler in schedulers)
        if left:
            raise SimctlError(f"the run ended with {left} requests unfinished")
    else:
        while clock.peek() <= to_ticks(horizon_s):
            clock.step()
    if on_progress is not None:
        on_progress(log.finished, source.total)
    return log.record()

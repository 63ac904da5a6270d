"""A run: clients send what a source gives them, a router picks a replica, replicas take turns with time, the log keeps it all."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence

import simpy

from sim.admission import Admission
from sim.clock import ARRIVAL, COMPLETION, Clock
from sim.engine.ticks import TICK_S, to_ticks
from sim.engine.types import Request, Scheduler
from sim.errors import SimctlError, UsageError
from sim.host import NO_HOST, HostRates, SharedServer
from sim.replica import Replica, StepCost
from sim.router import RoundRobin, Router
from sim.runlog import RunLog, RunRecord
from sim.workload.sources import Source

PROGRESS_EVERY = 64  # finished requests between two reports


class Clients:
    """Sends requests when they are due, at most `max_concurrency` at a time, later turns after earlier ones."""

    def __init__(
        self,
        clock: Clock,
        source: Source,
        log: RunLog,
        router: Router,
        host: HostRates,
        max_concurrency: int | None,
        admission: Admission | None,
    ) -> None:
        self.replicas: list[Replica] = []
        self.on_progress: Callable[[int, int], None] | None = None
        self._clock = clock
        self._source = source
        self._log = log
        self._router = router
        self._admission = admission
        self._host = host
        self._serial = to_ticks(host.serial_s)
        self._servers: defaultdict[int, SharedServer] = defaultdict(lambda: SharedServer(self._serial))
        self._at_server: defaultdict[int, deque[Request]] = defaultdict(deque)
        self._free = math.inf if max_concurrency is None else max_concurrency
        self._held: deque[Request] = deque()

    def run(self) -> Generator[simpy.Event, None, None]:
        """The process of the requests that wait for nobody."""
        for request in self._source.arrivals():
            arrival = to_ticks(request.arrival_s)
            if arrival > self._clock.ticks:
                yield self._clock.at(arrival, ARRIVAL)
            self._due(request)

    def engine_finished(self, request: Request, replica: int, place: int) -> None:
        """A replica finished `request`: its client hears of it when the last token, at this place of its iteration, has come through."""
        self._after(self._clock.ticks + to_ticks(self._host.after_s(place)), lambda: self._finished(request, replica))

    def _finished(self, request: Request, replica: int) -> None:
        """The client's place is free, and its session may go on."""
        self._free += 1
        self._router.finished(request, replica)
        now = self._clock.ticks
        follower = self._source.after(request, now * TICK_S)
        if follower is not None:
            self._after(to_ticks(follower.arrival_s), lambda: self._due(follower))
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

    def first_token(self, request: Request, replica: int) -> None:
        """A replica sampled the first token of `request`: router and admission keep books of that."""
        self._router.first_token(request, replica)
        if self._admission is not None:
            self._admission.first_token(request)

    def _send(self, request: Request) -> None:
        if self._admission is not None and (limit := self._admission.turns_away(request, request.arrival_s)):
            self._log.rejected(request, limit)  # its session, if any, goes no further
            return
        self._free -= 1
        index = self._router.pick(request)
        self._log.arrived(request, index)
        if not self._serial:
            self._hand_over(request, index, request.arrival_s)
            return
        self._servers[index].arrive(self._clock.ticks)
        self._at_server[index].append(request)
        self._watch(index)

    def _watch(self, index: int) -> None:
        """Look at the API server again when its next request leaves; arrivals put that off, which then shows."""
        leaves = self._servers[index].next_departure()
        if leaves is not None:
            self._clock.at(leaves, COMPLETION).callbacks.append(lambda _: self._leave(index, leaves))

    def _leave(self, index: int, now: int) -> None:
        if self._servers[index].next_departure() != now:
            return
        self._servers[index].depart(now)
        self._hand_over(self._at_server[index].popleft(), index, now * TICK_S)
        self._watch(index)

    def _hand_over(self, request: Request, index: int, now_s: float) -> None:
        ready = to_ticks(now_s + self._host.before_s(request.prompt_tokens))
        self._after(ready, lambda: self.replicas[index].submit(request))

    def _after(self, ticks: int, action: Callable[[], None]) -> None:
        """Act at `ticks`: at once when that is now."""
        if ticks > self._clock.ticks:
            self._clock.at(ticks, ARRIVAL).callbacks.append(lambda _: action())
        else:
            action()


def simulate(
    source: Source,
    schedulers: Sequence[Scheduler],
    cost: StepCost,
    *,
    router: Router | None = None,
    host: HostRates = NO_HOST,
    max_concurrency: int | None = None,
    admission: Admission | None = None,
    keep_iterations: bool = True,
    horizon_s: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> RunRecord:
    """Run until every request that was let in has finished, or until `horizon_s` of simulated time.

    Raises UsageError for a request that can never fit or a limit below 1, SimctlError when a scheduler gets stuck.
    """
    if max_concurrency is not None and max_concurrency < 1:
        raise UsageError(f"max concurrency must be at least 1, got {max_concurrency}")
    router = router or RoundRobin(len(schedulers))
    clock = Clock()
    log = RunLog(cost.terms, len(schedulers), keep_iterations=keep_iterations, after_s=host.after_s)
    clients = Clients(clock, source, log, router, host, max_concurrency, admission)
    log.on_first_token = clients.first_token
    clients.on_progress = on_progress
    for index, scheduler in enumerate(schedulers):
        clients.replicas.append(Replica(clock, index, scheduler, cost, log, clients.engine_finished))
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

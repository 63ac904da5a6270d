"""Clients: what is sent when, through admission, router and API server, and what follows on an answer.

A later turn of a session is sent after the one before it has come through: a turn whose client gives up ends its session. A client at its
limit of requests in flight waits for another to leave.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

from sim.cluster.admission import Admission
from sim.cluster.clock import CLIENTS, Clock
from sim.cluster.replica import Change, Engine, Replica, State
from sim.cluster.router import Router
from sim.cost.api_server import SharedServer
from sim.cost.serving import HostRates
from sim.engine.interface import Request
from sim.results.record import RunLog
from sim.ticks import ARRIVAL, COMPLETION, TICK_S, to_ticks
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
        self._arrivals = source.arrivals()
        self._log = log
        self._router = router
        self._dispatch = to_ticks(router.dispatch_s)
        self._admission = admission
        self._host = host
        self._up: list[int] = []
        self._serial = to_ticks(host.serial_s)
        self._servers: defaultdict[int, SharedServer] = defaultdict(lambda: SharedServer(self._serial))
        self._at_server: defaultdict[int, deque[Request]] = defaultdict(deque)
        self._free = math.inf if max_concurrency is None else max_concurrency
        self._held: deque[Request] = deque()  # by the limit of requests in flight, or because no replica is up
        self._moving: deque[Request] = deque()  # in flight, without a replica
        self._impatient: dict[Request, int | None] = {}  # in flight and given up in time: the replica that it has reached

    def begin(self, engines: list[Engine], changes: list[Change]) -> None:
        """Start the replicas, those that `changes` start left out, and the requests that wait for nobody."""
        self.replicas += [Replica(self._clock, index, engine) for index, engine in enumerate(engines)]
        later = {change.replica for change in changes if change.action == "start"}
        for replica in self.replicas:
            if replica.index not in later:
                self._start(replica)
        for change in changes:
            self._clock.call(to_ticks(change.at_s), ARRIVAL, CLIENTS, self._change, change)
        self._clock.call(0, COMPLETION, CLIENTS, self._send_due)

    def unfinished(self) -> int:
        """Requests that are due and have not come through."""
        return self._log.unfinished() + len(self._held)

    def first_token(self, request: Request, replica: int) -> None:
        """A replica sampled the first token of `request`: router and admission keep count of that."""
        self._router.first_token(request, replica, self._clock.now)
        if self._admission is not None:
            self._admission.first_token(request)

    def _start(self, replica: Replica) -> None:
        replica.start(self._log, partial(self._engine_finished, replica))
        self._replicas_changed()

    def _change(self, change: Change) -> None:
        replica = self.replicas[change.replica]
        if change.action == "start":
            self._start(replica)
        elif change.action == "drain":
            replica.drain()
            self._replicas_changed()
        else:
            lost = replica.fail()
            self._replicas_changed()
            for request in lost:
                self._log.lost(request, replica.index)
                self._move(request, replica)

    def _replicas_changed(self) -> None:
        self._up = [replica.index for replica in self.replicas if replica.state is State.UP]
        while self._up and self._moving:
            self._route(self._moving.popleft(), self._clock.now * TICK_S)
        self._send_held()

    def _move(self, request: Request, replica: Replica) -> None:
        """Send a request on that its replica has lost: its tokens are computed again elsewhere, as after a preemption."""
        replica.left(request)
        request.computed_tokens = 0
        self._router.finished(request, replica.index, self._clock.now)
        if self._up:
            self._route(request, self._clock.now * TICK_S)
        else:
            self._moving.append(request)
            if request in self._impatient:
                self._impatient[request] = None

    def _send_due(self) -> None:
        """Send what is due of the requests that wait for nobody, and go on when the next one is."""
        for request in self._arrivals:
            ticks = to_ticks(request.arrival_s)
            if ticks > self._clock.now:
                self._clock.call(ticks, ARRIVAL, CLIENTS, self._arrive, request)
                return
            self._due(request)

    def _arrive(self, request: Request) -> None:
        self._due(request)
        self._send_due()

    def _engine_finished(self, replica: Replica, request: Request, place: int) -> None:
        """Its client hears of it when the last token, at this place of its iteration, has come through."""
        replica.left(request)
        after_s = self._host.after_s(place)
        if request.given_up_by(self._clock.now * TICK_S + after_s):
            self._router.finished(request, replica.index, self._clock.now)
            self._impatient[request] = None
            return
        self._impatient.pop(request, None)
        self._after(self._clock.now + to_ticks(after_s), self._came_through, request, replica.index)

    def _give_up(self, request: Request) -> None:
        """Its client waits no longer: whatever has the request drops it."""
        if request not in self._impatient:
            return
        request.cancelled = True
        self._log.cancelled(request)
        if self._admission is not None and not request.generated_tokens:
            self._admission.first_token(request)  # there will be none to wait for
        index = self._impatient.pop(request)
        if index is not None:
            self.replicas[index].cancel(request)
            self._router.finished(request, index, self._clock.now)
        elif request in self._moving:
            self._moving.remove(request)
        self._free += 1
        self._send_held()

    def _came_through(self, request: Request, replica: int) -> None:
        """The client's place is free, and its session may go on."""
        self._free += 1
        self._router.finished(request, replica, self._clock.now)
        follower = self._source.after(request, self._clock.now * TICK_S)
        if follower is not None:
            self._after(to_ticks(follower.arrival_s), self._due, follower)
        if self._held:
            self._send_held()
        if self.on_progress is not None and self._log.finished % PROGRESS_EVERY == 0:
            self.on_progress(self._log.finished, self._source.total)

    def _send_held(self) -> None:
        while self._held and self._free > 0 and self._up:
            held = self._held.popleft()
            if self._free < math.inf:  # a client at its limit sends late, and its clock starts when it sends
                held.arrival_s = self._clock.now * TICK_S
            self._send(held)

    def _due(self, request: Request) -> None:
        if self._free > 0 and self._up and not self._held:
            self._send(request)
        else:
            self._held.append(request)

    def _send(self, request: Request) -> None:
        if self._admission is not None and (limit := self._admission.turns_away(request, request.arrival_s)):
            self._log.rejected(request, limit)  # its session, if any, goes no further
            return
        self._free -= 1
        self._route(request, request.arrival_s)
        if request.cancel_s < math.inf:
            self._clock.call(to_ticks(request.arrival_s + request.cancel_s), ARRIVAL, CLIENTS, self._give_up, request)

    def _route(self, request: Request, now_s: float) -> None:
        index = self._router.pick(request, self._up, self._clock.now)
        self.replicas[index].sent += 1
        self._log.arrived(request, index)
        if request.cancel_s < math.inf:
            self._impatient[request] = None
        if self._dispatch:
            reached = self._clock.now + self._dispatch
            self._clock.call(reached, ARRIVAL, CLIENTS, self._reach, request, index, reached * TICK_S)
        else:
            self._reach(request, index, now_s)

    def _reach(self, request: Request, index: int, now_s: float) -> None:
        """The request is at its replica's API server."""
        self._router.arrived(request, index, self._clock.now)
        if request.cancelled:
            self.replicas[index].left(request)
            self._router.finished(request, index, self._clock.now)
            return
        if request in self._impatient:
            self._impatient[request] = index
        if not self._serial:
            self._hand_over(request, index, now_s)
            return
        self._servers[index].arrive(self._clock.now)
        self._at_server[index].append(request)
        self._watch(index)

    def _watch(self, index: int) -> None:
        """Look at the API server again when its next request leaves; arrivals put that off, which then shows."""
        leaves = self._servers[index].next_departure()
        if leaves is not None:
            self._clock.call(leaves, COMPLETION, CLIENTS, self._leave, index)

    def _leave(self, index: int) -> None:
        now = self._clock.now
        if self._servers[index].next_departure() != now:
            return
        self._servers[index].depart(now)
        self._hand_over(self._at_server[index].popleft(), index, now * TICK_S)
        self._watch(index)

    def _hand_over(self, request: Request, index: int, now_s: float) -> None:
        ready = to_ticks(now_s + self._host.before_s(request.prompt_tokens))
        self._after(ready, self._submit, request, self.replicas[index])

    def _submit(self, request: Request, replica: Replica) -> None:
        if request.cancelled:
            return
        if replica.state is State.DOWN:
            self._move(request, replica)
        else:
            replica.submit(request)

    def _after(self, ticks: int, action: Callable[..., None], *given: object) -> None:
        """Act at `ticks`: at once when that is now."""
        if ticks > self._clock.now:
            self._clock.call(ticks, ARRIVAL, CLIENTS, action, *given)
        else:
            action(*given)

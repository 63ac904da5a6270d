"""Clients: what is sent when, through admission, and what follows on an answer.

A later turn of a session is sent after the one before it has come through: a turn whose client gives up for good ends its session. A client
at its limit of requests in flight waits for another to leave.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sim.cluster.admission import Admission
from sim.cluster.clock import CLIENTS, Clock
from sim.cluster.running_fleet import RunningFleet
from sim.engine.interface import Request
from sim.errors import UsageError
from sim.results.record import RunLog
from sim.ticks import ARRIVAL, COMPLETION, TICK_S, to_ticks
from sim.workload.sources import Source

PROGRESS_EVERY = 64  # finished requests between two reports


@dataclass(frozen=True, slots=True)
class Retries:
    """A client that gave up, or whose request was lost, asks again `after_s` later, `most` times at most. Each try is a request of its own,
    named ID.1, ID.2 and so on.
    """

    most: int = 0
    after_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.most >= 0 and 0.0 <= self.after_s < math.inf):
            raise UsageError(f"retries need a count and seconds of at least 0, got {self.most} and {self.after_s:g}")


NO_RETRIES = Retries()


class Clients:
    """Sends requests when they are due, at most `max_concurrency` at a time, later turns after earlier ones."""

    def __init__(
        self,
        clock: Clock,
        source: Source,
        log: RunLog,
        max_concurrency: int | None = None,
        admission: Admission | None = None,
        retries: Retries = NO_RETRIES,
    ) -> None:
        self.fleet: RunningFleet
        self.on_progress: Callable[[int, int], None] | None = None
        self._clock = clock
        self._source = source
        self._arrivals = source.arrivals()
        self._log = log
        self._admission = admission
        self._retries = retries
        self._tries: dict[Request, int] = {}  # of requests that are not a first try
        self._free = math.inf if max_concurrency is None else max_concurrency
        self._held: deque[Request] = deque()  # by the limit of requests in flight
        self._coming = 1  # arrivals that are not over, and requests that are sent later because of others
        self._in_flight = 0
        self.ended = 0  # when the last answer came

    def begin(self) -> None:
        """Send the requests that wait for nobody, each when it is due."""
        self._clock.call(0, COMPLETION, CLIENTS, self._send_due)

    def unfinished(self) -> int:
        """Requests that are due and have not come through."""
        return self._log.unfinished() + len(self._held)

    def busy(self) -> bool:
        """Whether a request is still to come, or under way."""
        return bool(self._coming or self._in_flight or self._held)

    def first_token(self, request: Request) -> None:
        """Its first token was sampled: admission keeps count of that."""
        if self._admission is not None:
            self._admission.first_token(request)

    def came_through(self, request: Request) -> None:
        """The client's place is free, and what waited for it may go on."""
        self._ends()
        self._tries.pop(request, None)
        for follower in self._source.after(request, self._clock.now * TICK_S):
            self._later(follower)
        if self._held:
            self._send_held()
        if self.on_progress is not None and self._log.finished % PROGRESS_EVERY == 0:
            self.on_progress(self._log.finished, self._source.total)

    def lost(self, request: Request) -> None:
        """The fleet answered with an error."""
        if self._admission is not None and not request.generated_tokens:
            self._admission.first_token(request)  # there will be none to wait for
        self._ends()
        self._ask_again(request)
        self._send_held()

    def _ends(self) -> None:
        self._free += 1
        self._in_flight -= 1
        self.ended = self._clock.now

    def _later(self, request: Request) -> None:
        self._coming += 1
        self.fleet.after(to_ticks(request.arrival_s), self._came, request)

    def _came(self, request: Request) -> None:
        self._coming -= 1
        self._due(request)

    def _give_up(self, request: Request) -> None:
        if self.fleet.give_up(request):
            self.lost(request)

    def _ask_again(self, request: Request) -> None:
        tries = self._tries.pop(request, 0) + 1
        if tries > self._retries.most:
            return
        due_s = self._clock.now * TICK_S + self._retries.after_s
        again = self._source.again(request, tries, due_s)
        self._tries[again] = tries
        self._later(again)

    def _send_due(self) -> None:
        """Send what is due of the requests that wait for nobody, and go on when the next one is."""
        for request in self._arrivals:
            ticks = to_ticks(request.arrival_s)
            if ticks > self._clock.now:
                self._clock.call(ticks, ARRIVAL, CLIENTS, self._arrive, request)
                return
            self._due(request)
        self._coming -= 1

    def _arrive(self, request: Request) -> None:
        self._due(request)
        self._send_due()

    def _send_held(self) -> None:
        while self._held and self._free > 0:
            held = self._held.popleft()
            held.arrival_s = self._clock.now * TICK_S  # a client at its limit sends late, and its clock starts when it sends
            self._send(held)

    def _due(self, request: Request) -> None:
        if self._free > 0 and not self._held:
            self._send(request)
        else:
            self._held.append(request)

    def _send(self, request: Request) -> None:
        if self._admission is not None and (limit := self._admission.turns_away(request, request.arrival_s)):
            self._log.rejected(request, limit)  # its session, if any, goes no further
            return
        self._free -= 1
        self._in_flight += 1
        self.fleet.send(request, request.arrival_s)
        if request.cancel_s < math.inf:
            self._clock.call(to_ticks(request.arrival_s + request.cancel_s), ARRIVAL, CLIENTS, self._give_up, request)

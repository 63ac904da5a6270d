"""The clients of sim.simulation without SimPy: what they send when, for one replica on the fast path.

A later turn of a session is sent after the one before it has come through, and a client at its limit of requests in flight waits for
another to finish; so what arrives depends on what the engine does. Events and their order within one instant (a server's departures,
then arrivals, as they were set) are those of sim.simulation.Clients, which a property test compares.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from sim.clock import ARRIVAL, COMPLETION
from sim.engine.ticks import TICK_S, to_ticks
from sim.host import HostRates, SharedServer
from sim.workload.sources import followers
from sim.workload.trace import Trace

Submit = Callable[[int, int], None]
"""Called with a row of the trace and the tick at which the engine has it."""


class ClientFeed:
    """Feeds one engine. `sent` lists (row, seconds) of every request in the order in which clients sent them."""

    def __init__(self, trace: Trace, host: HostRates, max_concurrency: int | None) -> None:
        self.sent: list[tuple[int, float]] = []
        self.submit: Submit = _nowhere
        self._prompt: list[int] = trace.prompt_tokens.tolist()
        self._arrival_s: list[float] = trace.arrival_s.tolist()
        self._think_s: list[float] = trace.think_s.tolist()
        self._followers = followers(trace)
        self._open = deque(np.flatnonzero(~np.isnan(trace.arrival_s)).tolist())  # rows that wait for nobody
        self._host = host
        self._server = SharedServer(to_ticks(host.serial_s)) if to_ticks(host.serial_s) else None
        self._at_server: deque[int] = deque()
        self._free = math.inf if max_concurrency is None else max_concurrency
        self._held: deque[int] = deque()
        self._now = 0
        self._serial = 0
        self._events: list[tuple[int, int, int, Callable[[], None]]] = []
        self._at(0, COMPLETION, self._arrivals)

    def next_event(self) -> int | None:
        """Ticks of what happens next unless the engine finishes something before; None when nothing will."""
        return self._events[0][0] if self._events else None

    def advance(self, now: int) -> None:
        """Let happen what does by `now`, `now` included."""
        events = self._events
        while events and events[0][0] <= now:
            self.step()

    def step(self) -> bool:
        """Let the next event happen; False when there is none."""
        if not self._events:
            return False
        self._now, _, _, action = heappop(self._events)
        action()
        return True

    def finished(self, row: int, now: int, place: int) -> None:
        """The engine sent the last token of a request at `now`, at this place of its iteration."""
        events = self._events
        while events and events[0][:2] < (now, ARRIVAL):
            self.step()
        self._now = now
        self._after(now + to_ticks(self._host.after_s(place)), lambda: self._came_through(row))

    def _arrivals(self) -> None:
        """Send what is due of the requests that wait for nobody, and look again when the next one is."""
        while self._open:
            row = self._open[0]
            arrival = to_ticks(self._arrival_s[row])
            self._open.popleft()
            if arrival > self._now:
                self._at(arrival, ARRIVAL, lambda row=row: self._arrive(row))  # type: ignore[misc]
                return
            self._due(row, self._arrival_s[row])

    def _arrive(self, row: int) -> None:
        self._due(row, self._arrival_s[row])
        self._arrivals()

    def _due(self, row: int, arrival_s: float) -> None:
        if self._free > 0 and not self._held:
            self._send(row, arrival_s)
        else:
            self._held.append(row)

    def _send(self, row: int, arrival_s: float) -> None:
        self._free -= 1
        self.sent.append((row, arrival_s))
        if self._server is None:
            self._hand_over(row, arrival_s)
            return
        self._server.arrive(self._now)
        self._at_server.append(row)
        self._watch(self._server)

    def _watch(self, server: SharedServer) -> None:
        leaves = server.next_departure()
        if leaves is not None:
            self._at(leaves, COMPLETION, lambda: self._leave(server, leaves))

    def _leave(self, server: SharedServer, now: int) -> None:
        if server.next_departure() != now:
            return  # arrivals have put it off
        server.depart(now)
        self._hand_over(self._at_server.popleft(), now * TICK_S)
        self._watch(server)

    def _hand_over(self, row: int, now_s: float) -> None:
        ready = to_ticks(now_s + self._host.before_s(self._prompt[row]))
        self._after(ready, lambda: self.submit(row, self._now))

    def _came_through(self, row: int) -> None:
        """A request's last token is with its client: the client's place is free, and its session may go on."""
        self._free += 1
        now = self._now
        follower = self._followers.get(row)
        if follower is not None:
            due_s = now * TICK_S + self._think_s[follower]
            self._after(to_ticks(due_s), lambda: self._due(follower, due_s))
        while self._held and self._free > 0:
            self._send(self._held.popleft(), now * TICK_S)

    def _after(self, ticks: int, action: Callable[[], None]) -> None:
        if ticks > self._now:
            self._at(ticks, ARRIVAL, action)
        else:
            action()

    def _at(self, ticks: int, rank: int, action: Callable[[], None]) -> None:
        self._serial += 1
        heappush(self._events, (max(ticks, self._now), rank, self._serial, action))


def _nowhere(row: int, ticks: int) -> None:
    raise AssertionError(f"row {row} is ready at {ticks}, and no engine is there")

"""Simulated time: events in ticks, with one order for the events of an instant.

Time is in ticks of 2**-43 s (sim.ticks): sums do not depend on their order. At one instant
iterations complete, then requests arrive, then schedulers decide: a request that arrives just as an iteration ends is seen by the very next
decision, and sees the blocks that the iteration has freed. Within a rank clients come first, then replicas by index, then older events.

The event-driven simulation keeps time with SimPy, the fast path with a bare heap; tests hold both to the same results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

CLIENTS = 0
"""Turn of the clients within an instant; a replica's is its index + 1."""
MOST_TURNS = 2**32
LAST = 2.0**1000  # ticks: SimPy's empty queue peeks at infinity


class Clock:
    """`now` and what happens next, on a heap."""

    __slots__ = ("_events", "_serial", "now")

    def __init__(self) -> None:
        self.now = 0
        self._events: list[tuple[int, int, int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._serial = 0

    def call(self, ticks: int, rank: int, turn: int, action: Callable[..., object], *given: Any) -> None:
        """Call `action(*given)` at `ticks`, or now if that is past."""
        self._serial += 1
        heappush(self._events, (ticks if ticks > self.now else self.now, rank, turn, self._serial, action, given))

    def quiet(self) -> bool:
        """Whether nothing else happens at this instant."""
        events = self._events
        return not events or events[0][0] > self.now

    def pending(self) -> int:
        """Number of events still to happen."""
        return len(self._events)

    def called(self) -> int:
        """Number of events so far, those still to happen included."""
        return self._serial

    def run(self, until: float = float("inf")) -> None:
        """Let everything happen up to `until` ticks, that instant included."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, _, _, action, given = heappop(events)
            action(*given)


class SimpyClock(Clock):
    """The same on a SimPy environment. SimPy orders the events of an instant by priority, then by age: rank and turn are one priority."""

    __slots__ = ("_env",)

    def __init__(self) -> None:
        import simpy  # the fast path does without

        super().__init__()
        self._env = simpy.Environment(initial_time=0)

    def call(self, ticks: int, rank: int, turn: int, action: Callable[..., object], *given: Any) -> None:
        env = self._env
        self._serial += 1

        def happens(_: object) -> None:
            self.now = int(env.now)
            action(*given)

        event = env.event()
        event.callbacks.append(happens)
        event._ok, event._value = True, None  # triggered: SimPy has no public way to do so later than now and at a priority
        env.schedule(event, rank * MOST_TURNS + turn, max(ticks - self.now, 0))  # type: ignore[arg-type]

    def quiet(self) -> bool:
        return self._env.peek() > self.now

    def pending(self) -> int:
        return len(self._env._queue)

    def run(self, until: float = math.inf) -> None:
        env = self._env
        while env.peek() <= min(until, LAST):
            env.step()

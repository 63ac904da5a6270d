"""Simulated time: a SimPy environment that counts integer ticks and orders the events of one instant.

Time is in ticks of 2**-50 s (sim.engine.ticks): sums do not depend on their order, and an arrival is exactly when the trace says.

What happens at the same instant happens in this order: iterations complete, requests arrive, schedulers decide. So a request
that arrives just as an iteration ends is seen by the very next decision, and sees the blocks that the iteration has freed.
"""

from __future__ import annotations

from heapq import heappush
from typing import Any

import simpy

COMPLETION, ARRIVAL, DECISION = 0, 1, 2


class Clock(simpy.Environment):
    """SimPy's environment over integer ticks, with events set at absolute times and ranked within one."""

    def __init__(self) -> None:
        super().__init__(initial_time=0)

    @property
    def ticks(self) -> int:
        """Now."""
        return int(self._now)

    def at(self, ticks: int, rank: int) -> simpy.Event:
        """An event that happens at `ticks` (now, if that is past), after all events of a smaller rank at that instant."""
        return self.fire(simpy.Event(self), ticks, rank)

    def fire(self, event: simpy.Event, ticks: int, rank: int) -> simpy.Event:
        """Let an event that somebody may already wait for happen at `ticks`."""
        event._ok = True
        event._value = None
        entry: Any = (max(ticks, self._now), rank, next(self._eid), event)
        heappush(self._queue, entry)
        return event

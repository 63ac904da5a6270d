"""Simulated time: a SimPy environment whose events may be set at exact times and in a stated order within one instant.

What happens at the same instant happens in this order: iterations complete, requests arrive, schedulers decide. So a request
that arrives just as an iteration ends is seen by the very next decision, and sees the blocks that the iteration has freed.
"""

from __future__ import annotations

from heapq import heappush
from typing import Any

import simpy

COMPLETION, ARRIVAL, DECISION = 0, 1, 2


class Clock(simpy.Environment):
    """SimPy's environment, plus absolute times: `now + (t - now)` is not always t, and arrivals must be what the trace says."""

    def at(self, time_s: float, rank: int) -> simpy.Event:
        """An event that happens at `time_s` (not before now), after all events of a smaller rank at that instant."""
        return self.fire(simpy.Event(self), time_s, rank)

    def fire(self, event: simpy.Event, time_s: float, rank: int) -> simpy.Event:
        """Let an event that somebody may already wait for happen at `time_s`."""
        event._ok = True
        event._value = None
        entry: Any = (time_s if time_s > self._now else self._now, rank, next(self._eid), event)
        heappush(self._queue, entry)
        return event

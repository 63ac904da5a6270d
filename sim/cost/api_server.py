"""The API server as a processor that its requests share equally."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence


class SharedServer:
    """A processor that shares itself equally among its jobs, all of `work` ticks: with n of them each takes n times as long.

    Jobs leave in order of arrival. Times are ticks; the caller lets arrivals and departures happen in order of time, a departure first.
    """

    def __init__(self, work: int) -> None:
        self._work = work
        self._given = 0.0  # ticks of service that every job present has had since the server was last empty
        self._leaves: deque[float] = deque()  # what `given` will be when each job leaves
        self._since = 0

    def arrive(self, now: int) -> None:
        """A job comes."""
        self._advance(now)
        self._leaves.append(self._given + self._work)

    def next_departure(self) -> int | None:
        """Departure of the next job if none arrives before; None when there is none."""
        if not self._leaves:
            return None
        return self._since + math.ceil(max(self._leaves[0] - self._given, 0.0) * len(self._leaves))

    def depart(self, now: int) -> None:
        """The next job leaves, at the time that `next_departure` says."""
        self._advance(now)
        self._leaves.popleft()

    def _advance(self, now: int) -> None:
        if self._leaves:
            self._given += (now - self._since) / len(self._leaves)
        else:
            self._given = 0.0
        self._since = now


def departures(arrivals: Sequence[int], work: int) -> list[int]:
    """Departures from a SharedServer of the jobs that arrive at these ticks (in order)."""
    server, left = SharedServer(work), []
    for arrival in [*arrivals, None]:
        while (leaves := server.next_departure()) is not None and (arrival is None or leaves <= arrival):
            server.depart(leaves)
            left.append(leaves)
        if arrival is not None:
            server.arrive(arrival)
    return left

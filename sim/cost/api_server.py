"""The API server: a processor that its requests share, and a queue in front of every token's delivery."""

from __future__ import annotations

import math
from collections import deque


class SharedServer:
    """A processor that turns to all its jobs stage by stage: each has of it in proportion to its work, so that jobs that come together
    leave together.

    Jobs leave in order of arrival. Times and works are ticks, a work one or more; the caller lets arrivals and departures happen in order
    of time, a departure first.
    """

    def __init__(self) -> None:
        self._given = 0.0  # share of its work that every job present has had since the server was last empty
        self._jobs: deque[tuple[float, int]] = deque()  # what `given` will be when each job leaves, and its work
        self._busy = 0  # work of all jobs present
        self._since = 0

    def arrive(self, now: int, work: int) -> None:
        """A job comes."""
        self._advance(now)
        self._jobs.append((self._given + 1.0, work))
        self._busy += work

    def next_departure(self) -> int | None:
        """Departure of the next job if none arrives before; None when there is none."""
        if not self._jobs:
            return None
        return self._since + math.ceil(max(self._jobs[0][0] - self._given, 0.0) * self._busy)

    def depart(self, now: int) -> None:
        """The next job leaves, at the time that `next_departure` says."""
        self._advance(now)
        self._busy -= self._jobs.popleft()[1]

    def _advance(self, now: int) -> None:
        if self._jobs:
            self._given += (now - self._since) / self._busy
        else:
            self._given = 0.0
        self._since = now


class SendQueue:
    """Tokens that the API server passes on one after another, each in `token_ticks`; an engine goes on meanwhile."""

    def __init__(self, token_ticks: int) -> None:
        self._token_ticks = token_ticks
        self._through = 0  # when it has passed on all that it has

    def ahead(self, now: int, tokens: int) -> float:
        """Tokens, and parts of one, before those of an iteration that sends so many now (ticks, never earlier than before)."""
        waits = max(self._through - now, 0)
        self._through = now + waits + tokens * self._token_ticks
        return waits / self._token_ticks if waits else 0.0

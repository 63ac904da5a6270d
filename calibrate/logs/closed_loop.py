"""Clients of requests, where a benchmark kept a number of clients busy.

A benchmark with a limit on what is in flight sends the next request when an answer comes back. Replayed at the times it was really sent, a
simulated server that is a little slower or faster than the real one piles requests up or idles; replayed as clients it does not.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SLACK_S = 0.002  # an answer is noted, and the next request sent, within it
REACHED = 0.9  # of the limit, in the mean while requests were still to be sent: then the limit held requests back


def in_flight_at_sending(sent_s: NDArray[np.float64], finish_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Requests in flight just after each was sent [request]; in order of sending."""
    ends: list[float] = []
    found = np.empty(len(sent_s), dtype=np.int64)
    for i, (start, end) in enumerate(zip(sent_s.tolist(), finish_s.tolist(), strict=True)):
        while ends and ends[0] <= start + SLACK_S:
            heapq.heappop(ends)
        heapq.heappush(ends, end)
        found[i] = len(ends)
    return found


def binds(clients: int, in_flight: NDArray[np.int64]) -> bool:
    """Whether a limit of `clients` held requests back: it was reached, and from then on most were sent at it."""
    reached = np.flatnonzero(in_flight >= clients)
    return bool(reached.size) and len(in_flight) > clients and float(in_flight[reached[0] :].mean()) >= REACHED * clients


def clients_of(sent_s: NDArray[np.float64], finish_s: NDArray[np.float64], clients: int) -> NDArray[np.int64]:
    """A client for each request [request], in order of sending: the one whose answer came back last before it was sent.

    A request sent while all clients seem busy (their clocks differ by more than SLACK_S) goes to the one that is back first.
    """
    busy: list[tuple[float, int]] = []  # (when it is back, client)
    idle: list[tuple[float, int]] = []  # the latest first
    found = np.empty(len(sent_s), dtype=np.int64)
    made = 0
    for i, (start, end) in enumerate(zip(sent_s.tolist(), finish_s.tolist(), strict=True)):
        while busy and busy[0][0] <= start + SLACK_S:
            back, client = heapq.heappop(busy)
            heapq.heappush(idle, (-back, client))
        if idle:
            client = heapq.heappop(idle)[1]
        elif made < clients:
            client, made = made, made + 1
        else:
            client = heapq.heappop(busy)[1]
        found[i] = client
        heapq.heappush(busy, (end, client))
    return found


def numbered(names: Sequence[str]) -> NDArray[np.int64]:
    """Numbers of clients by name, in order of their first request; -1 for none."""
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(name, len(seen)) if name else -1 for name in names], dtype=np.int64)


def ends_of(sent_s: NDArray[np.float64], e2el_s: NDArray[np.float64], waited_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times at which each request left its client free [request]: answered, or given up."""
    took = np.where(np.isfinite(e2el_s), e2el_s, waited_s)
    return np.asarray(sent_s + np.where(np.isfinite(took), took, math.inf))

"""Requests that wait for a pool, in the order in which it takes them: by priority, then by fair shares of its tenants.

Shares are start-time fair queueing (Goyal, Vin and Cheng 1996) by tokens: a tenant that always has requests waiting gets tokens in
proportion to its weight, whatever the others send, and what one does not use goes to the others. Requests of one tenant keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from sim.engine.interface import Request


class FairQueue:
    """A queue of requests; `weights` of tenants are 1 where none is given. One tenant of one priority is first come, first served."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = weights or {}
        self._waiting: list[tuple[int, float, int, Request]] = []  # priority, start tag, number
        self._finish: dict[str, float] = {}  # tag at which each tenant's latest request is paid for
        self._virtual = 0.0  # start tag of the latest request that was taken
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, _, request in self._waiting)

    def append(self, request: Request) -> None:
        """The request waits."""
        start = max(self._virtual, self._finish.get(request.tenant, 0.0))
        tokens = request.prompt_tokens + request.output_tokens
        self._finish[request.tenant] = start + tokens / self._weights.get(request.tenant, 1.0)
        self._count += 1
        heappush(self._waiting, (request.priority, start, self._count, request))

    def popleft(self) -> Request:
        """The next request."""
        _, start, _, request = heappop(self._waiting)
        self._virtual = max(self._virtual, start)
        return request

    def remove(self, request: Request) -> None:
        """The request waits no longer; its tenant has paid for it."""
        self._waiting = [each for each in self._waiting if each[3] is not request]
        heapify(self._waiting)

"""Sources: where a run's requests come from, as the engine's own request objects, made only when they are due."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from sim.engine.types import Request
from sim.workload.content import BlockNamer
from sim.workload.trace import Trace


class Source(Protocol):
    """What feeds the clients of a run. `arrival_s` of a request is when its client wants to send it."""

    @property
    def total(self) -> int:
        """How many requests there will be."""

    def arrivals(self) -> Iterator[Request]:
        """The requests that wait for nobody, in order of arrival."""

    def after(self, request: Request, now_s: float) -> Request | None:
        """The request that `request`, finished now, lets its session send next (arrival_s >= now_s), or None."""


class TraceSource:
    """Replays a trace: calls with an arrival time arrive then, a turn without one follows its session's previous turn."""

    def __init__(self, trace: Trace, block_size: int) -> None:
        self._trace = trace
        self._namer = BlockNamer(block_size)
        self._turns: dict[str, deque[int]] = {}
        for i, session in enumerate(trace.session_ids):
            if session is not None:
                self._turns.setdefault(session, deque()).append(i)
        self._waits = np.isnan(trace.arrival_s)

    @property
    def total(self) -> int:
        return len(self._trace)

    def arrivals(self) -> Iterator[Request]:
        arrival_s = self._trace.arrival_s
        for i in np.flatnonzero(~self._waits):
            yield self._request(int(i), float(arrival_s[i]))

    def after(self, request: Request, now_s: float) -> Request | None:
        if request.session_id is None:
            return None
        rest = self._turns[request.session_id]
        if not rest or not self._waits[rest[0]]:
            return None
        i = rest[0]
        return self._request(i, now_s + float(self._trace.think_s[i]))

    def _request(self, i: int, arrival_s: float) -> Request:
        trace = self._trace
        session = trace.session_ids[i]
        prompt, output = int(trace.prompt_tokens[i]), int(trace.output_tokens[i])
        request = Request(
            request_id=trace.request_ids[i],
            arrival_s=arrival_s,
            prompt_tokens=prompt,
            output_tokens=output,
            prompt_hashes=self._namer.names(trace.contents[i], prompt, output, session),
            priority=trace.priorities[i] if trace.priorities else 0,
            session_id=session,
            turn=trace.turns[i],
        )
        if session is not None:
            rest = self._turns[session]
            rest.popleft()
            if not rest:
                self._namer.forget(session)
        return request

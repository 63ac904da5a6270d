"""Sources: where a run's requests come from, as the engine's own request objects, made only when they are due."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from sim.engine.interface import Request
from sim.errors import UsageError
from sim.workload.block_chains import Chains, chained, hashed
from sim.workload.content import BlockHashes, BlockNamer, Grown
from sim.workload.trace import Trace

FRESH: dict[str, Any] = {  # where a request stands before it is sent
    "computed_tokens": 0,
    "generated_tokens": 0,
    "cached_tokens": 0,
    "preemptions": 0,
    "cancelled": False,
    "hands_over": False,
    "host_cached_tokens": 0,
}


class Source(Protocol):
    """Source of the requests of a run. `arrival_s` of a request is when its client wants to send it."""

    @property
    def total(self) -> int:
        """Number of requests there will be."""

    def arrivals(self) -> Iterator[Request]:
        """The requests that wait for nobody, in order of arrival."""

    def after(self, request: Request, now_s: float) -> list[Request]:
        """The requests that `request`, finished now, was the last to hold back (arrival_s >= now_s)."""

    def again(self, request: Request, tries: int, arrival_s: float) -> Request:
        """`request` once more, after `tries` tries that came to nothing: what followed it follows this one."""


class TraceSource:
    """Replays a trace: calls with an arrival time arrive then, others once those that they wait for have finished."""

    def __init__(self, trace: Trace, block_size: int, max_model_len: float = math.inf) -> None:
        self._trace = trace
        self._too_long = trace.prompt_tokens + trace.output_tokens > max_model_len  # no engine takes them: their blocks need no names
        self._namer = BlockNamer(block_size)
        self._of_adapter: dict[tuple[str, int], int] = {}  # names of blocks, by LoRA adapter
        self._unnamed: dict[str, deque[int]] = {}  # calls of each session whose KV blocks have no names yet
        for i, session in enumerate(trace.session_ids if _in_sessions(trace) else ()):
            if session is not None and not self._too_long[i]:
                self._unnamed.setdefault(session, deque()).append(i)
        self._named: dict[int, Sequence[int]] = {}  # of calls not made yet
        quoted = {each.of for each in trace.contents if isinstance(each, Grown) and each.of}
        self._quoted = {name: row for row, name in enumerate(trace.request_ids) if name in quoted} if quoted else {}
        self._said: dict[str, array[int]] = {}  # names of the blocks of calls that other sessions repeat
        self._waits = np.isnan(trace.arrival_s)
        self._followers = children(trace)
        self._held_by = [0] * len(trace)  # calls that each still waits for
        for rows in self._followers.values():
            for row in rows:
                self._held_by[row] += 1
        self._rows: dict[Request, int] = {}  # requests that another follows

    @property
    def total(self) -> int:
        return len(self._trace)

    def arrivals(self) -> Iterator[Request]:
        arrival_s = self._trace.arrival_s
        for i in np.flatnonzero(~self._waits):
            yield self._request(int(i), float(arrival_s[i]))

    def after(self, request: Request, now_s: float) -> list[Request]:
        row = self._rows.pop(request, None)
        ready = []
        for i in self._followers[row] if row is not None else ():
            self._held_by[i] -= 1
            if not self._held_by[i]:
                ready.append(self._request(i, now_s + float(self._trace.think_s[i])))
        return ready

    def again(self, request: Request, tries: int, arrival_s: float) -> Request:
        name = request.request_id if tries == 1 else request.request_id.rpartition(".")[0]
        repeated = replace(request, request_id=f"{name}.{tries}", arrival_s=arrival_s, **FRESH)
        row = self._rows.pop(request, None)
        if row is not None:
            self._rows[repeated] = row
        return repeated

    def shared_blocks(self) -> dict[str, int]:
        """Of every call that shares some, how many of its leading KV blocks another call also begins with, by request id."""
        return {self._trace.request_ids[i]: depth for i, depth in enumerate(self.chains().depths.tolist()) if depth}

    def chains(self) -> Chains:
        """What calls begin with as others do."""
        trace, kinds = self._trace, set(map(type, self._trace.contents))
        if not self._unnamed and not trace.adapters and kinds <= {BlockHashes, type(None)}:
            taken = [None if too_long else each for each, too_long in zip(trace.contents, self._too_long.tolist(), strict=True)]
            return hashed(taken, trace.prompt_tokens, self._namer.block_size)
        names = [self._names(i) for i in range(len(trace))]
        self._named = dict(enumerate(names))
        return chained(names)

    def _request(self, i: int, arrival_s: float) -> Request:
        trace = self._trace
        content = trace.contents[i]
        request = Request(
            request_id=trace.request_ids[i],
            arrival_s=arrival_s,
            prompt_tokens=int(trace.prompt_tokens[i]),
            output_tokens=int(trace.output_tokens[i]),
            prompt_hashes=self._names(i),
            priority=trace.priorities[i] if trace.priorities else 0,
            session_id=trace.session_ids[i],
            turn=trace.turns[i],
            repeated_tokens=content.shared_tokens if isinstance(content, Grown) else -1,
            cancel_s=trace.cancel_s[i] if trace.cancel_s else math.inf,
            tenant=trace.tenants[i] if trace.tenants else "",
            model=trace.models[i] if trace.models else "",
            adapter=trace.adapters[i] if trace.adapters else "",
            images=trace.images[i] if trace.images else 0,
        )
        if i in self._followers:
            self._rows[request] = i
        return request

    def _names(self, i: int) -> Sequence[int]:
        """Names of a call's KV blocks. Those of a session are named in its order, whichever call is made first."""
        if i in self._named:
            return self._named.pop(i)
        if self._too_long[i]:
            return ()
        session = self._trace.session_ids[i]
        if session is None:
            return () if self._trace.contents[i] is None else self._name(i)
        unnamed = self._unnamed[session]
        while i not in self._named:
            row = unnamed.popleft()
            self._named[row] = self._name(row)
            if not unnamed:
                self._namer.forget(session)
        return self._named.pop(i)

    def _name(self, i: int) -> Sequence[int]:
        trace, content = self._trace, self._trace.contents[i]
        said = self._said_by(content.of) if isinstance(content, Grown) and content.of else None
        names = self._namer.names(content, int(trace.prompt_tokens[i]), int(trace.output_tokens[i]), trace.session_ids[i], said)
        if trace.request_ids[i] in self._quoted:
            self._said[trace.request_ids[i]] = array("q", names)
        if not trace.adapters:
            return names
        return [self._of_adapter.setdefault((trace.adapters[i], name), len(self._of_adapter)) for name in names]  # they differ in KV

    def _said_by(self, request_id: str) -> array[int]:
        """Names of the blocks of a call that another session repeats; none of one that no engine takes."""
        row = self._quoted[request_id]
        if request_id not in self._said and not self._too_long[row]:
            self._named[row] = self._names(row)
        return self._said.get(request_id, array("q"))


@lru_cache(maxsize=2)
def shared_blocks(trace: Trace, block_size: int, max_model_len: int) -> dict[str, int]:
    """TraceSource.shared_blocks, once for all runs of a trace."""
    return TraceSource(trace, block_size, max_model_len).shared_blocks()


def children(trace: Trace) -> dict[int, list[int]]:
    """For every call that others wait for, those: rows of the trace. UsageError for a call that waits for one that is not in it."""
    found: dict[int, list[int]] = {row: [after] for row, after in followers(trace).items()}
    if trace.after:
        row_of = {name: row for row, name in enumerate(trace.request_ids)}
        for row, names in enumerate(trace.after):
            for name in names:
                if name not in row_of:
                    raise UsageError(
                        f"call {trace.request_ids[row]!r} waits for {name!r}, which is not in the part of the trace that is taken"
                    )
                mine = found.setdefault(row_of[name], [])
                if row not in mine:
                    mine.append(row)
    return found


def _in_sessions(trace: Trace) -> bool:
    """Whether any call belongs to a session."""
    return trace.session_ids.count(None) < len(trace)


def followers(trace: Trace) -> dict[int, int]:
    """For every call that the next one of its session waits for, that one: rows of the trace."""
    latest: dict[str, int] = {}
    found: dict[int, int] = {}
    if not _in_sessions(trace):
        return found
    for i, (session, arrival_s) in enumerate(zip(trace.session_ids, trace.arrival_s.tolist(), strict=True)):
        if session is None:
            continue
        if math.isnan(arrival_s) and session in latest:
            found[latest[session]] = i
        latest[session] = i
    return found

"""Traces longer than the integer clock holds, served in epochs: each begins at an idle moment, with a clock of its own.

A replica that idles and has no prefix to find again is as it was before the first request. An epoch therefore ends where a call comes more
than IDLE_S after all earlier ones have finished, and the next one begins at the whole second before that call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sim.results.record import REQUEST_FLOATS, RunRecord
from sim.ticks import MOST_TICKS, TICKS_PER_S
from sim.workload.trace import Trace

LONGEST_S = MOST_TICKS / TICKS_PER_S
EPOCH_S = LONGEST_S / 2  # of arrivals: their queue may take as long again
IDLE_S = 1.0  # longer than an engine takes for an iteration that was launched before it knew that nobody would go on


def too_long(trace: Trace) -> bool:
    """Whether the arrivals alone last longer than the integer clock."""
    return float(np.nanmax(trace.arrival_s, initial=0.0)) >= LONGEST_S


def divisible(trace: Trace, router: str, replicas: int, max_concurrency: int | None, shares_prefixes: bool) -> bool:
    """Whether nothing but the turn of a round-robin router outlasts an idle moment, and no client waits for an answer."""
    waits = max_concurrency is not None or bool(np.isnan(trace.arrival_s).any())
    return not waits and not shares_prefixes and (replicas == 1 or router == "round-robin")


def in_epochs(trace: Trace, replicas: int, run: Callable[[Trace], RunRecord]) -> RunRecord:
    """The requests of a trace that is `divisible`, without iteration log. `run` runs the calls of an epoch, which count from its begin.
    Raises OverflowError where no idle moment comes in time.
    """
    parts: list[RunRecord] = []
    first, begin_s = 0, 0.0
    while first < len(trace):
        begin_s = float(np.floor(trace.arrival_s[first]))
        last = max(int(np.searchsorted(trace.arrival_s, begin_s + EPOCH_S)), first + 1)
        record = run(_part(trace, first, last, begin_s))
        count = _served_before_idle(record) if last < len(trace) else last - first
        parts.append(_moved(record, count, begin_s, first % replicas, replicas))
        first += count
    return _joined(parts, [seconds + begin_s for seconds in record.paid_s])


def _part(trace: Trace, first: int, last: int, begin_s: float) -> Trace:
    part = trace.taken(np.arange(first, last))
    return replace(part, arrival_s=part.arrival_s - begin_s)  # exact: a whole number of seconds, no larger than what it is taken from


def _served_before_idle(record: RunRecord) -> int:
    """How many calls have finished before the last idle moment."""
    busy_until = np.maximum.accumulate(record.requests["finish_s"].astype(np.float64))[:-1]
    idle = np.flatnonzero(record.requests["arrival_s"][1:].astype(np.float64) > busy_until + IDLE_S)
    if not len(idle):
        raise OverflowError("no idle moment: more simulated time than 64 bits of ticks hold")
    return int(idle[-1]) + 1


def _moved(record: RunRecord, count: int, begin_s: float, turn: int, replicas: int) -> RunRecord:
    """The first `count` requests, at their own times and replicas."""
    requests = {name: column[:count] for name, column in record.requests.items()}
    requests |= {name: requests[name].astype(np.float64) + begin_s for name in REQUEST_FLOATS}
    requests["replica"] = (requests["replica"].astype(np.int64) + turn) % replicas
    return replace(
        record,
        request_ids=record.request_ids[:count],
        session_ids=record.session_ids[:count],
        tenants=record.tenants[:count],
        requests=requests,
    )


def _joined(parts: Sequence[RunRecord], paid_s: Sequence[float]) -> RunRecord:
    def chained(name: str) -> list[str]:
        return [each for part in parts for each in getattr(part, name)]

    requests: dict[str, NDArray[np.generic]] = {name: np.concatenate([part.requests[name] for part in parts]) for name in parts[0].requests}
    return replace(
        parts[0],
        request_ids=chained("request_ids"),
        session_ids=chained("session_ids"),
        tenants=chained("tenants"),
        requests=requests,
        paid_s=paid_s,
    )

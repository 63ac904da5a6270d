"""Runs on the fast path: the same requests, the same times, no iteration log."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.client_feed import ClientFeed
from sim.engine.config import EngineConfig
from sim.engine.fast import FastReplica, covers
from sim.engine.fast_books import Arrivals
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S, to_ticks
from sim.errors import UsageError
from sim.host import HostRates, departures
from sim.price import Terms
from sim.runlog import REQUEST_INTS, RunRecord, empty_log
from sim.workload.sources import TraceSource
from sim.workload.trace import Trace


def run_fast(trace: Trace, config: EngineConfig, steps: StepTime, host: HostRates, replicas: int = 1) -> RunRecord | None:
    """The run with requests dealt to `replicas` in turn, or None where the fast path does not apply.

    It does not where a call waits for another (sessions), and where the scheduler or cost is not covered.
    """
    if np.isnan(trace.arrival_s).any() or not covers(config, steps):
        return None
    source = TraceSource(trace, config.block_size)
    named = any(content is not None for content in trace.contents) or any(session is not None for session in trace.session_ids)
    hashes = [request.prompt_hashes for request in source.arrivals()] if named else []
    # seen by the engine when the host is through with them: in that order, equal instants in order of arrival
    count = len(trace)
    # dealt in order of arrival, as the router sees them
    replica = np.arange(count) % replicas
    through = _through(trace.arrival_s, replica, replicas, to_ticks(host.serial_s))
    ready = np.array([a + host.before_s(p) for a, p in zip(through.tolist(), trace.prompt_tokens.tolist(), strict=True)])
    columns: dict[str, NDArray[Any]] = {name: np.full(count, np.nan) for name in ("scheduled_s", "first_token_s", "finish_s")}
    columns |= {name: np.zeros(count, dtype=np.int64) for name in REQUEST_INTS}
    order = np.array(sorted(range(count), key=lambda i: to_ticks(float(ready[i]))))
    for index in range(replicas):
        mine = order[replica[order] == index]
        if not len(mine):
            continue
        arrivals = Arrivals(ready[mine], trace.prompt_tokens[mine], trace.output_tokens[mine], [hashes[i] for i in mine] if named else ())
        record = FastReplica(arrivals, config, steps).run()
        columns["scheduled_s"][mine] = record.scheduled_s
        columns["first_token_s"][mine] = record.first_token_s + host.after_s(record.first_place)
        columns["finish_s"][mine] = record.finish_s + host.after_s(record.finish_place)
        columns["cached_tokens"][mine] = record.cached_tokens
        columns["preemptions"][mine] = record.preemptions
    columns |= {"arrival_s": trace.arrival_s, "prompt_tokens": trace.prompt_tokens, "output_tokens": trace.output_tokens}
    columns |= {"generated_tokens": trace.output_tokens, "replica": replica, "turn": np.asarray(trace.turns)}
    return empty_log(trace.request_ids, trace.session_ids, columns, Terms._fields)


def run_fast_clients(
    trace: Trace, config: EngineConfig, steps: StepTime, host: HostRates, max_concurrency: int | None = None
) -> RunRecord | None:
    """The run on one replica where what is sent depends on what has finished: sessions, and clients with a limit of requests in flight.

    None where the fast path does not apply: the scheduler or cost is not covered. Raises UsageError for a limit below 1.
    """
    if max_concurrency is not None and max_concurrency < 1:
        raise UsageError(f"max concurrency must be at least 1, got {max_concurrency}")
    if not covers(config, steps):
        return None
    named = any(content is not None for content in trace.contents) or any(session is not None for session in trace.session_ids)
    feed = ClientFeed(trace, host, max_concurrency)
    arrivals = Arrivals((), trace.prompt_tokens, trace.output_tokens, TraceSource(trace, config.block_size).named() if named else ())
    record = FastReplica(arrivals, config, steps, feed).run()
    # in the order in which they were sent, as a log has them
    rows = np.array([row for row, _ in feed.sent], dtype=np.int64)
    columns: dict[str, NDArray[Any]] = {
        "arrival_s": np.array([seconds for _, seconds in feed.sent]),
        "scheduled_s": record.scheduled_s[rows],
        "first_token_s": record.first_token_s[rows] + host.after_s(record.first_place[rows]),
        "finish_s": record.finish_s[rows] + host.after_s(record.finish_place[rows]),
        "cached_tokens": record.cached_tokens[rows],
        "preemptions": record.preemptions[rows],
        "prompt_tokens": trace.prompt_tokens[rows],
        "output_tokens": trace.output_tokens[rows],
        "generated_tokens": trace.output_tokens[rows],
        "turn": np.asarray(trace.turns)[rows],
    }
    columns |= {name: np.zeros(len(rows), dtype=np.int64) for name in REQUEST_INTS if name not in columns}
    order = rows.tolist()
    return empty_log([trace.request_ids[i] for i in order], [trace.session_ids[i] for i in order], columns, Terms._fields)


def _through(arrival_s: NDArray[np.float64], replica: NDArray[np.int64], replicas: int, work: int) -> NDArray[np.float64]:
    """Seconds at which each request's API server has given it its time."""
    if not work:
        return arrival_s
    through = np.empty(len(arrival_s))
    for index in range(replicas):
        mine = np.flatnonzero(replica == index)
        through[mine] = np.array(departures([to_ticks(a) for a in arrival_s[mine].tolist()], work), dtype=float) * TICK_S
    return through

"""A run: clients send what a source gives them, a router picks a replica, replicas take turns with time, the log keeps it all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sim.cluster.admission import Admission
from sim.cluster.clients import Clients
from sim.cluster.clock import Clock, SimpyClock
from sim.cluster.replica import Change, Engine
from sim.cluster.router import RoundRobin, Router
from sim.cost.serving import NO_HOST, HostRates
from sim.errors import SimctlError, UsageError
from sim.results.record import RunLog, RunRecord
from sim.ticks import to_ticks
from sim.workload.sources import Source


def simulate(
    source: Source,
    engines: Sequence[Engine],
    *,
    router: Router | None = None,
    host: HostRates = NO_HOST,
    max_concurrency: int | None = None,
    admission: Admission | None = None,
    changes: Sequence[Change] = (),
    keep_iterations: bool = True,
    horizon_s: float = math.inf,
    on_progress: Callable[[int, int], None] | None = None,
    clock: Clock | None = None,
) -> RunRecord:
    """Run until every request that was let in has finished, or until `horizon_s` of simulated time. One replica per engine; those that
    `changes` start are down before. Time is kept with SimPy, or with the `clock` given.

    Raises UsageError for a request that can never fit or a limit below 1, SimctlError when a scheduler gets stuck or no replica is left.
    """
    if max_concurrency is not None and max_concurrency < 1:
        raise UsageError(f"max concurrency must be at least 1, got {max_concurrency}")
    clock = clock or SimpyClock()
    log = RunLog(engines[0].terms, len(engines), keep_iterations=keep_iterations, after_s=host.after_s)
    clients = Clients(clock, source, log, router or RoundRobin(len(engines)), host, max_concurrency, admission)
    log.on_first_token = clients.first_token
    clients.on_progress = on_progress
    clients.begin(list(engines), list(changes))
    clock.run(to_ticks(horizon_s) if horizon_s < math.inf else math.inf)
    if horizon_s == math.inf and (left := clients.unfinished()):
        raise SimctlError(f"the run ended with {left} requests unfinished")
    if on_progress is not None:
        on_progress(log.finished, source.total)
    return log.record()

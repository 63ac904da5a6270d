"""A run: clients send what a source gives them, routers pick replicas, replicas take turns with time, the log keeps it all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sim.cluster.admission import Admission
from sim.cluster.autoscale import Autoscaler, Scaling
from sim.cluster.clients import NO_RETRIES, Clients, Retries
from sim.cluster.clock import Clock, SimpyClock
from sim.cluster.encoders import EncoderSpec
from sim.cluster.kv_moves import StoreSpec
from sim.cluster.network import NETWORK, NetworkSpec
from sim.cluster.pools import Pool
from sim.cluster.replica import Change, Engine
from sim.cluster.router import RoundRobin, Router
from sim.cluster.running_fleet import RunningFleet
from sim.errors import SimctlError, UsageError
from sim.rates.serving import NO_HOST, HostRates
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
    """A run on one pool, as `simulate_pools`: a replica per engine; those that `changes` start are down before."""
    return simulate_pools(
        source,
        [Pool(engines, router or RoundRobin(len(engines)), host)],
        max_concurrency=max_concurrency,
        admission=admission,
        changes=changes,
        keep_iterations=keep_iterations,
        horizon_s=horizon_s,
        on_progress=on_progress,
        clock=clock,
    )


def simulate_pools(
    source: Source,
    pools: Sequence[Pool],
    *,
    network: NetworkSpec = NETWORK,
    max_concurrency: int | None = None,
    admission: Admission | None = None,
    changes: Sequence[Change] = (),
    scaling: Sequence[Scaling] = (),
    retries: Retries = NO_RETRIES,
    loses: bool = False,
    store: StoreSpec | None = None,
    encoders: EncoderSpec | None = None,
    keep_iterations: bool = True,
    horizon_s: float = math.inf,
    on_progress: Callable[[int, int], None] | None = None,
    clock: Clock | None = None,
) -> RunRecord:
    """Run until every request that was let in has finished or come to nothing, or until `horizon_s` of simulated time.

    Replicas are numbered through the pools. `changes` start, drain and fail them; `loses`: what a failed replica had is lost, and not sent
    on. `store` is a KV store that all replicas share; images pass `encoders` first. Time is kept with SimPy, or with the `clock` given.
    Raises UsageError for a request that can never fit, a limit below 1 or pools that do not go together, SimctlError when a scheduler gets
    stuck or no replica is left.
    """
    if max_concurrency is not None and max_concurrency < 1:
        raise UsageError(f"max concurrency must be at least 1, got {max_concurrency}")
    clock = clock or SimpyClock()
    hosts = [pool.host for pool in pools for _ in pool.engines]
    log = RunLog(pools[0].engines[0].terms, len(hosts), keep_iterations=keep_iterations, hosts=hosts)
    clients = Clients(clock, source, log, max_concurrency, admission, retries)
    clients.fleet = fleet = RunningFleet(clock, log, pools, clients, network, loses, store, encoders)
    clients.on_progress = on_progress
    fleet.begin(changes)
    clients.begin()
    if scaling:
        Autoscaler(clock, fleet, scaling).begin()
    clock.run(to_ticks(horizon_s) if horizon_s < math.inf else math.inf)
    if horizon_s == math.inf and (left := clients.unfinished()):
        raise SimctlError(f"the run ended with {left} requests unfinished")
    if on_progress is not None:
        on_progress(log.finished, source.total)
    return log.record(fleet.paid_s(clients.ended))

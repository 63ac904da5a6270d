"""Runs on the fast path: the same clients, router and times as the event-driven simulation, no iteration log."""

from __future__ import annotations

from collections.abc import Callable

from sim.cluster.admission import Admission
from sim.cluster.clock import Clock
from sim.cluster.router import Router
from sim.cluster.simulation import simulate
from sim.cost.iteration import StepTime
from sim.cost.serving import HostRates
from sim.engine.config import EngineConfig
from sim.engine.fast import FastEngine, covers
from sim.results.record import RunRecord
from sim.workload.sources import TraceSource
from sim.workload.trace import Trace


def run_fast(
    trace: Trace,
    config: EngineConfig,
    steps: StepTime,
    host: HostRates,
    replicas: int = 1,
    *,
    router: Router | None = None,
    max_concurrency: int | None = None,
    admission: Admission | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> RunRecord | None:
    """The run on `replicas` equal replicas, or None where the fast path does not apply: the scheduler or cost is not covered, or
    clients give up.
    """
    if trace.cancel_s or not covers(config, steps):
        return None
    source = TraceSource(trace, config.block_size, config.max_model_len)
    shared = source.shared_blocks() if config.enable_prefix_caching else {}
    return simulate(
        source,
        [FastEngine(config, steps, shared) for _ in range(replicas)],
        router=router,
        host=host,
        max_concurrency=max_concurrency,
        admission=admission,
        keep_iterations=False,
        on_progress=on_progress,
        clock=Clock(),
    )

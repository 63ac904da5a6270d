"""A study made ready to run: the engines of its pools, and one run of it at given rates, on the fast path or event by event."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sim.cluster.admission import NO_LIMITS, Admission
from sim.cluster.clock import Clock
from sim.cluster.compiled import worth
from sim.cluster.pools import DECODE, PREFILL, SERVE, Pool
from sim.cluster.replica import Engine, SteppedEngine
from sim.cluster.rows_engine import RowsEngine
from sim.cluster.running_fleet import no_pool
from sim.cluster.simulation import simulate_pools
from sim.cost.batch import mixed_batch
from sim.engine.config import EngineConfig
from sim.engine.fits import check_admitted, check_fits
from sim.engine.interface import Request
from sim.engine.iteration_cost import IterationCost
from sim.engine.registry import make_scheduler
from sim.engine.rows.made import uncovered
from sim.engine.schedulers import VllmScheduler
from sim.engine.sglang_options import SglangOptions
from sim.errors import UsageError
from sim.results.record import RunRecord
from sim.study.deployment import mean_context, plan_engine, with_adapters
from sim.study.direct import WARM, event_by_event, serve_study
from sim.study.fleet_spec import PoolSpec
from sim.study.studied import PlannedPool, Progress, Study
from sim.ticks import TICK_S
from sim.workload.sources import TraceSource, shared_blocks
from sim.workload.trace import Trace


def planned(study: Study) -> list[PlannedPool]:
    """The pools of a study. Raises SimctlError when a model does not fit, UsageError for limits that contradict each other or
    the trace.
    """
    pools = zip(study.whole_fleet.pools, study.sources, strict=True)
    trace = study.workload.trace
    context = mean_context(trace)
    found = []
    study.whole_fleet.check_used(trace)
    for given, (rates, host) in pools:
        spec = replace(given, deployment=with_adapters(given.deployment, trace))
        held = (context, _longest(trace, spec)) if spec.role == SERVE else None
        found.append(PlannedPool(spec, plan_engine(spec.deployment, held)[0], rates, host))
    for pool in found:
        make_scheduler(pool.config)  # the engine in rows makes none, and takes no option that a scheduler refuses
    return found


def _takes(spec: PoolSpec, trace: Trace) -> NDArray[np.bool_]:
    """Which requests the pool would take, if they came to it."""
    found = trace.prompt_tokens <= (np.inf if spec.max_prompt_tokens is None else spec.max_prompt_tokens)
    if trace.models:
        found &= np.array([name in ("", spec.deployment.model.name) for name in trace.models])
    return found


def _longest(trace: Trace, spec: PoolSpec) -> int:
    """Tokens of the longest request among those that the pool would take."""
    return int((trace.prompt_tokens + trace.output_tokens)[_takes(spec, trace)].max(initial=0))


def check_all_fit(study: Study, trace: Trace, pools: Sequence[PlannedPool]) -> None:
    """Raises UsageError for the first call that is too long for the engine that would get it, and that the front door lets in."""
    total, left = trace.prompt_tokens + trace.output_tokens, np.ones(len(trace), dtype=bool)
    handed = np.zeros(len(trace), dtype=bool)
    longest = pools[0].config.max_model_len if study.deployment.admission.skip_too_long else np.inf
    left &= total <= longest
    for pool in pools:
        if pool.spec.role == DECODE:
            continue
        mine = left & _takes(pool.spec, trace)
        left &= ~mine
        if pool.spec.role == PREFILL:
            handed |= mine
        else:
            _check_fit(trace, mine, pool.config)
    for pool in pools:
        if pool.spec.role == DECODE:
            _check_fit(trace, handed, pool.config)
    if left.any():
        i = int(np.flatnonzero(left)[0])
        raise UsageError(no_pool(trace.request_ids[i], int(trace.prompt_tokens[i]), trace.models[i] if trace.models else ""))


def _check_fit(trace: Trace, mine: NDArray[np.bool_], config: EngineConfig) -> None:
    total = trace.prompt_tokens + trace.output_tokens
    spare = 2 * config.block_size + 1 if config.scheduler == "sglang" else 0  # tokens within which admission looks closer
    for i in np.flatnonzero(mine & (total > min(config.max_model_len, config.kv_capacity_tokens) - spare)).tolist():
        request = Request(trace.request_ids[i], 0.0, int(trace.prompt_tokens[i]), int(trace.output_tokens[i]))
        check_fits(request, config)
        if config.scheduler == "sglang":
            check_admitted(request, config, SglangOptions.of(config))


def run_pools(
    study: Study,
    pools: Sequence[PlannedPool],
    trace: Trace,
    draw: int | None = None,
    *,
    keep_iterations: bool = False,
    on_progress: Progress | None = None,
) -> RunRecord:
    """One run of the trace: one call of the engine in rows where that applies (sim.study.direct), else event by event, without a log by
    engines in rows where these do.
    """
    why = event_by_event(study, pools, trace, keep_iterations)
    if not why:
        with suppress(OverflowError):  # six days of simulated time: Python's whole numbers have no end
            record = serve_study(study, pools, trace, draw, keep=keep_iterations)
            if on_progress is not None:
                on_progress(len(trace), len(trace))
            return record
        why = "six days of simulated time"
    if any(pool.config.options.get(WARM) for pool in pools):
        raise UsageError(f"{WARM} is not simulated with {why}: leave one of them out")
    if keep_iterations or not _in_rows(study, pools):
        return _run(study, pools, trace, draw, _stepped, keep_iterations, on_progress)
    record = _run(study, pools, trace, draw, _engines_in_rows(pools, trace), False, on_progress, Clock())
    gc.collect(0)  # an engine and what calls it hold each other, megabytes a run, and commands look for circles rarely
    return record


def is_quick(study: Study, pools: Sequence[PlannedPool], trace: Trace) -> bool:
    """Whether a run without a log is one of the engine in rows."""
    return not event_by_event(study, pools, trace, False) or _in_rows(study, pools)


def _in_rows(study: Study, pools: Sequence[PlannedPool]) -> bool:
    """Whether engines in rows stand for those of a run without a log: none fails, and nobody asks what caches hold."""
    return study.whole_fleet.plain and not any(uncovered(pool.config) for pool in pools)


def _stepped(config: EngineConfig, cost: IterationCost) -> Engine:
    scheduler = make_scheduler(config)
    if isinstance(scheduler, VllmScheduler):
        scheduler.copies_take(*cost.steps.host_link)
    return SteppedEngine(scheduler, cost)


def _engines_in_rows(pools: Sequence[PlannedPool], trace: Trace) -> Callable[[EngineConfig, IterationCost], Engine]:
    """Makes engines of one run, which know the names of KV blocks that its requests share."""
    config, shared, numbers = pools[0].config, dict[str, int](), dict[Hashable, int]()
    if any(pool.config.enable_prefix_caching for pool in pools):
        shared = shared_blocks(trace, config.block_size, config.max_model_len)
    quick, most = worth(trace), int((trace.prompt_tokens + trace.output_tokens).max())
    return lambda config, cost: RowsEngine(config, cost.steps, shared, numbers, quick, most)


def _run(
    study: Study,
    pools: Sequence[PlannedPool],
    trace: Trace,
    draw: int | None,
    engine: Callable[[EngineConfig, IterationCost], Engine],
    keep_iterations: bool,
    on_progress: Progress | None,
    clock: Clock | None = None,
) -> RunRecord:
    fleet, config = study.whole_fleet, pools[0].config
    pools = [pool.at(draw) for pool in pools]
    costs = [pool.cost(draw) for pool in pools]
    return simulate_pools(
        TraceSource(trace, config.block_size, config.max_model_len),
        [_pool(pool, cost, engine) for pool, cost in zip(pools, costs, strict=True)],
        network=fleet.network,
        changes=fleet.changes,
        scaling=fleet.scaling,
        retries=fleet.retries,
        loses=fleet.loses,
        store=fleet.store,
        encoders=fleet.encoders,
        max_concurrency=study.workload.max_concurrency,
        admission=_admission(study, pools, costs),
        keep_iterations=keep_iterations,
        on_progress=on_progress,
        clock=clock,
    )


def _pool(pool: PlannedPool, cost: IterationCost, engine: Callable[[EngineConfig, IterationCost], Engine]) -> Pool:
    engines = [engine(pool.config, cost) for _ in range(pool.spec.most)]
    return pool.spec.pool(pool.config, pool.host, engines, lambda: engine(pool.config, cost))


def _admission(study: Study, pools: Sequence[PlannedPool], costs: Sequence[IterationCost]) -> Admission | None:
    limits = study.deployment.admission
    if limits == NO_LIMITS:
        return None
    rate = 0.0  # prompt tokens per second of full iterations
    for pool, cost in zip(pools, costs, strict=True):
        budget, d = pool.config.max_num_batched_tokens, pool.spec.deployment
        if pool.spec.role != DECODE:
            rate += d.replicas * budget / (cost.steps.priced(mixed_batch(d.model, (), [(float(budget), float(budget), 1.0)])) * TICK_S)
    return Admission(limits, rate, pools[0].config.max_model_len)

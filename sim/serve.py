"""One serving study: a workload through an engine on a GPU, and everything that is reported of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.deployment import Limits, plan_engine
from sim.engine.config import EngineConfig
from sim.engine.vllm import VllmScheduler, check_fits
from sim.metrics import bill_shares, noise_intervals, summarise
from sim.precision import Precision
from sim.rates import RateDraws, Rates
from sim.runlog import RunRecord
from sim.simulation import simulate
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.stepcost import BillCost
from sim.workload.sources import TraceSource
from sim.workload.trace import Trace

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Study:
    """What to run: all of it, so that equal studies give equal results."""

    trace: Trace
    model: ModelSpec
    gpu: GpuSpec
    precision: Precision
    rates: RateDraws
    tp: int = 1
    limits: Limits = field(default_factory=Limits)
    max_concurrency: int | None = None
    goodput: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """A run at the rates' medians, its figures and their 90 % intervals by summary key."""

    record: RunRecord
    config: EngineConfig
    summary: dict[str, float | int]
    noise: dict[str, Interval]
    rate_intervals: dict[str, Interval]
    bill: dict[str, float]


def run_study(study: Study, *, draws: int = 0, on_progress: Callable[[int, int], None] | None = None) -> Result:
    """Simulate once at the median rates, and once more at each of the first `draws` draws (same arrivals: common random numbers).

    Raises UsageError for a request that cannot fit, SimctlError when the model does not.
    """
    config, _ = plan_engine(study.model, study.gpu, study.precision, study.tp, study.limits)
    check_all_fit(study.trace, config)
    record = _run(study, config, study.rates.point, _scaled(on_progress, 0, draws + 1))
    summary = summarise(record, study.goodput)
    others = []
    for draw in range(draws):
        report = _scaled(on_progress, draw + 1, draws + 1)
        others.append(summarise(_run(study, config, study.rates.draws.at(draw), report), study.goodput))
    spread = {}
    for key in summary if others else ():
        low, high = np.nanpercentile([other[key] for other in others], (5.0, 95.0))
        spread[key] = (float(low), float(high))
    return Result(record, config, summary, noise_intervals(record), spread, bill_shares(record))


def check_all_fit(trace: Trace, config: EngineConfig) -> None:
    """Raises UsageError for the first call that is too long for the engine."""
    from sim.engine.types import Request

    total = trace.prompt_tokens + trace.output_tokens
    for i in np.flatnonzero(total > min(config.max_model_len, config.kv_capacity_tokens)).tolist():
        check_fits(Request(trace.request_ids[i], 0.0, int(trace.prompt_tokens[i]), int(trace.output_tokens[i])), config)


def provenance(study: Study, config: EngineConfig) -> dict[str, Any]:
    """What produced the run, in plain attributes: deployment, limits, rates and where these came from."""
    limits = {name: getattr(config, name) for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")}
    limits |= {"num_gpu_blocks": config.num_gpu_blocks, "enable_prefix_caching": int(config.enable_prefix_caching)}
    return {
        "model": study.model.name,
        "gpu": study.gpu.name,
        "tensor_parallel_size": study.tp,
        "dtype": study.precision.weights,
        "kv_dtype": study.precision.kv,
        "engine": config.scheduler,
        "gpu_memory_utilization": study.limits.gpu_memory_utilization,
        **limits,
        "max_concurrency": study.max_concurrency or 0,
        "rates_basis": study.rates.summary,
        **{f"rate_{name}": float(getattr(study.rates.point, name)) for name in study.rates.point.names()},
    }


def _run(study: Study, config: EngineConfig, rates: Rates, on_progress: Callable[[int, int], None] | None) -> RunRecord:
    cost = BillCost(study.model, study.precision, rates, tp=study.tp)
    source = TraceSource(study.trace, config.block_size)
    schedulers = [VllmScheduler(config)]
    return simulate(source, schedulers, cost, max_concurrency=study.max_concurrency, on_progress=on_progress)


def _scaled(report: Callable[[int, int], None] | None, run: int, runs: int) -> Callable[[int, int], None] | None:
    """Progress of one of several runs, in requests over all of them."""
    if report is None:
        return None
    return lambda done, total: report(run * total + done, runs * total)

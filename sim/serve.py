"""One serving study: a workload through engines on GPUs, and everything that is reported of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sim.admission import NO_LIMITS, Admission, AdmissionLimits
from sim.bill import mixed_shape
from sim.deployment import Limits, plan_engine
from sim.engine.config import EngineConfig
from sim.engine.presets import make_scheduler, step_settings
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S
from sim.engine.tiers import tier_hit_rates
from sim.engine.types import Request, Scheduler
from sim.engine.vllm import check_fits
from sim.host import HostRates
from sim.intervals import block_intervals, rate_intervals, repeat_intervals
from sim.metrics import bill_shares, summarise
from sim.precision import Precision
from sim.products import known_to
from sim.rates import RateDraws, Rates
from sim.router import make_router
from sim.runlog import RunRecord
from sim.serve_fast import run_fast, run_fast_clients
from sim.simulation import simulate
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.stepcost import BillCost
from sim.workload.sources import TraceSource
from sim.workload.trace import Trace

Interval = tuple[float, float]
DEFAULT_DRAWS = 20
REPEATS = 20
REPEATS_UP_TO = 5_000  # requests
LOGGED_UP_TO = 5_000  # iterations of the run; beyond, draws asked for keep no iteration log: it would cost minutes
DEFAULT_DRAWS_UP_TO = 20_000  # requests; beyond, repeats take minutes and are left to be asked for
Progress = Callable[[int, int], None]


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
    host: HostRates = field(default_factory=HostRates)
    replicas: int = 1
    router: str = "round-robin"
    max_concurrency: int | None = None
    admission: AdmissionLimits = NO_LIMITS
    goodput: Mapping[str, float] = field(default_factory=dict)
    redraw: Callable[[int], Trace] | None = None  # another draw of the same workload, by number; None for a trace


@dataclass(frozen=True, slots=True)
class Result:
    """A run at the rates' medians, its figures and their 90 % intervals by summary key."""

    record: RunRecord
    config: EngineConfig
    summary: dict[str, float | int]
    noise: dict[str, Interval]
    rate_intervals: dict[str, Interval]
    draws: dict[str, list[float]]  # figure -> its value at each draw of the rates
    repeats: dict[str, list[float]]  # figure -> its value in each repeat with another seed; empty for a trace
    bill: dict[str, float]


def run_study(study: Study, *, draws: int | None = None, keep_iterations: bool = True, on_progress: Progress | None = None) -> Result:
    """Simulate once at the median rates, and once more at each of the first `draws` draws (same workload: common random numbers).

    `draws` None means DEFAULT_DRAWS where they are cheap (the fast path applies, DEFAULT_DRAWS_UP_TO requests at most), else none.
    Without `keep_iterations` the iteration log is left out, and with it ITL and the engine's figures. Such runs take the fast path where it
    applies; per-request figures are the same, bit by bit. Draws and repeats keep the log, and with it intervals of those figures, where
    draws are asked for and the run itself takes LOGGED_UP_TO iterations at most.
    Raises UsageError for a request that cannot fit, SimctlError when the model does not.
    """
    config, _ = plan_engine(study.model, study.gpu, study.precision, study.tp, study.limits)
    check_all_fit(study.trace, config)
    schedulers = [make_scheduler(config) for _ in range(study.replicas)]
    record = _run(study, config, study.rates.point, keep_iterations, _scaled(on_progress, 0, (draws or 0) + 1), schedulers)
    summary = summarise(record, study.goodput) | tier_hit_rates(schedulers)
    logged = keep_iterations and bool(draws) and len(record.iterations["start_s"]) <= LOGGED_UP_TO
    if draws is None:
        others = _fast_draws(study, config)
    else:
        others = [
            summarise(_run(study, config, study.rates.draws.at(i), logged, _scaled(on_progress, i + 1, draws + 1)), study.goodput)
            for i in range(draws)
        ]
    figures = _columns(others)
    spread = rate_intervals(figures)
    repeats = _repeats(study, config, logged)
    noise = repeat_intervals(repeats) if repeats else block_intervals(record)
    return Result(record, config, summary, noise, spread, figures, repeats, bill_shares(record))


def check_all_fit(trace: Trace, config: EngineConfig) -> None:
    """Raises UsageError for the first call that is too long for the engine."""
    total = trace.prompt_tokens + trace.output_tokens
    for i in np.flatnonzero(total > min(config.max_model_len, config.kv_capacity_tokens)).tolist():
        check_fits(Request(trace.request_ids[i], 0.0, int(trace.prompt_tokens[i]), int(trace.output_tokens[i])), config)


def provenance(study: Study, config: EngineConfig) -> dict[str, Any]:
    """What produced the run, in plain attributes: deployment, limits, rates and where these came from."""
    limits = {
        name: getattr(config, name)
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "long_prefill_token_threshold")
    }
    limits |= {f"engine_{name}": value if isinstance(value, str) else float(value) for name, value in config.options.items()}
    limits |= {"num_gpu_blocks": config.num_gpu_blocks, "enable_prefix_caching": int(config.enable_prefix_caching)}
    return {
        "model": study.model.name,
        "gpu": study.gpu.name,
        "tensor_parallel_size": study.tp,
        "replicas": study.replicas,
        "router": study.router if study.replicas > 1 else "",
        "dtype": study.precision.weights,
        "kv_dtype": study.precision.kv,
        "engine": config.scheduler,
        "gpu_memory_utilization": study.limits.gpu_memory_utilization,
        "scheduling_policy": config.policy,
        "attention": study.limits.attention.label,
        "draft_model": study.limits.draft.name if study.limits.draft else "",
        **limits,
        "max_concurrency": study.max_concurrency or 0,
        "max_queue": study.admission.max_queue or 0,
        "token_bucket": list(study.admission.bucket or (0.0, 0.0)),
        "admit_ttft_s": study.admission.ttft_s or 0.0,
        "rates_basis": study.rates.summary,
        **{f"rate_{name}": float(getattr(study.rates.point, name)) for name in study.rates.point.names()},
        "host_basis": study.host.basis,
        **{f"host_{name}": getattr(study.host, name) for name in ("request_s", "prompt_token_s", "response_s", "serial_s", "token_s")},
    }


def _run(
    study: Study,
    config: EngineConfig,
    rates: Rates,
    keep_iterations: bool,
    on_progress: Progress | None,
    schedulers: Sequence[Scheduler] = (),
) -> RunRecord:
    cost = _cost(study, config, rates)
    if not keep_iterations:
        record = _fast(study, study.trace, config, cost.steps)
        if record is not None:
            if on_progress is not None:
                on_progress(len(study.trace), len(study.trace))
            return record
    return simulate(
        TraceSource(study.trace, config.block_size),
        schedulers or [make_scheduler(config) for _ in range(study.replicas)],
        cost,
        router=make_router(study.router, study.replicas, config.block_size, config.num_gpu_blocks),
        host=study.host,
        max_concurrency=study.max_concurrency,
        admission=_admission(study, config, cost),
        keep_iterations=keep_iterations,
        on_progress=on_progress,
    )


def _repeats(study: Study, config: EngineConfig, logged: bool) -> dict[str, list[float]]:
    """Figures of REPEATS runs of other draws of the workload, at the median rates, where the fast path takes them all; else nothing.

    With `logged` they keep their iteration logs, whatever path that takes.
    """
    if study.redraw is None or not _may_be_fast(study) or len(study.trace) > REPEATS_UP_TO:
        return {}
    figures: list[dict[str, float | int]] = []
    steps = _cost(study, config, study.rates.point).steps
    for repeat in range(REPEATS):
        trace = study.redraw(repeat)
        check_all_fit(trace, config)
        if logged:
            figures.append(summarise(_run(replace(study, trace=trace), config, study.rates.point, True, None), study.goodput))
            continue
        record = _fast(study, trace, config, steps)
        if record is None:
            return {}
        figures.append(summarise(record, study.goodput))
    return _columns(figures)


def _columns(figures: list[dict[str, float | int]]) -> dict[str, list[float]]:
    return {key: [float(each[key]) for each in figures] for key in (figures[0] if figures else ())}


def _fast_draws(study: Study, config: EngineConfig) -> list[dict[str, float | int]]:
    """Figures at DEFAULT_DRAWS draws when the fast path takes them all, else none: a part of them would be a biased part."""
    figures: list[dict[str, float | int]] = []
    for draw in range(DEFAULT_DRAWS if _may_be_fast(study) and len(study.trace) <= DEFAULT_DRAWS_UP_TO else 0):
        record = _fast(study, study.trace, config, _cost(study, config, study.rates.draws.at(draw)).steps)
        if record is None:
            return []
        figures.append(summarise(record, study.goodput))
    return figures


def _cost(study: Study, config: EngineConfig, rates: Rates) -> BillCost:
    limits, gpu = study.limits, known_to(study.gpu)
    draft = StepTime(limits.draft, study.precision, rates, tp=study.tp, gpu=gpu) if limits.draft else None
    settings = step_settings(config, study.host.work, study.host.boost)
    return BillCost(study.model, study.precision, rates, tp=study.tp, policy=limits.attention, draft=draft, gpu=gpu, **settings)


def _admission(study: Study, config: EngineConfig, cost: BillCost) -> Admission | None:
    if not study.admission.any:
        return None
    budget = config.max_num_batched_tokens
    full_s = cost.steps.priced(mixed_shape(study.model, (), [(float(budget), float(budget), True)], tp=study.tp)) * TICK_S
    return Admission(study.admission, study.replicas * budget / full_s)


def _may_be_fast(study: Study) -> bool:
    """Whether the fast path may apply: one replica, or several that no request chooses between by what others do."""
    dealt = study.router == "round-robin" and study.max_concurrency is None
    return not study.admission.any and (study.replicas == 1 or dealt)


def _fast(study: Study, trace: Trace, config: EngineConfig, steps: StepTime) -> RunRecord | None:
    """The run on the fast path; None where that does not apply."""
    if not _may_be_fast(study):
        return None
    if study.max_concurrency is None and not np.isnan(trace.arrival_s).any():
        return run_fast(trace, config, steps, study.host, study.replicas)
    return run_fast_clients(trace, config, steps, study.host, study.max_concurrency) if study.replicas == 1 else None


def _scaled(report: Progress | None, run: int, runs: int) -> Progress | None:
    """Progress of one of several runs, in requests over all of them."""
    if report is None:
        return None
    return lambda done, total: report(run * total + done, runs * total)

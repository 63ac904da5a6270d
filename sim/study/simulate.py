"""Serving simulations: a workload on a deployment, at the median rates, at draws of them, and with other seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.cluster.compiled import worth
from sim.cluster.pools import PREFILL
from sim.cost.rates import RateDraws
from sim.engine.config import EngineConfig
from sim.errors import UsageError
from sim.rates.load import scope_notes
from sim.rates.serving import HostRates
from sim.results.chance import ENOUGH, STAGES, Chance, chance_of, chance_of_figures
from sim.results.fleet_tables import fleet_tables
from sim.results.intervals import Z_90, around, between_replicates, block_intervals, rate_intervals, repeat_intervals
from sim.results.metrics import LATENCY, cost_shares, latency_figures, latency_quantiles, summarise, tenant_figures
from sim.results.power import Power, power_of
from sim.results.record import RunRecord
from sim.results.run_files import to_dataset
from sim.results.token_cost import TokenCost, token_cost
from sim.shown import Figures, Shown
from sim.study.deployment import Deployment
from sim.study.direct import event_by_event
from sim.study.fleet_spec import Fleet
from sim.study.lasting import Lasting, Lasts, can_last, outgrows
from sim.study.run import check_all_fit, is_quick, planned, run_pools
from sim.study.strata import of_hosts, predictors
from sim.study.studied import PlannedPool, Progress, Study
from sim.workers import in_threads
from sim.workload.trace import Trace
from sim.workload.workload import Workload

if TYPE_CHECKING:
    import xarray as xr

Interval = tuple[float, float]
Drawn = tuple[dict[str, float | int], NDArray[np.float64]]  # figures of a run at a draw of the rates, and quantiles of its latencies
Each = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]  # a function of every item, in order
DEFAULT_DRAWS = 20
REQUESTS_OF_DRAWS = 200_000  # over all draws that nobody asked for: the first requests of a longer load say how wide it is
LEAST_OF_DRAW = 3_000  # requests: of fewer, widths of percentile 99 were off by more than a quarter on a trace of conversations
STEPS_OF_REQUEST, TOKENS_OF_BLOCK = 160, 16  # a request counts once up to so many output tokens and blocks of its prompt
SLOW_REQUESTS_OF_DRAWS = 3_000  # the same where runs are event by event
KEEPS_UP = 0.05  # share of the requests that wait at the last arrival of a load that is not kept up with
REPEATS = 20
HOST_FIGURES = ("mean_e2el_ms", "mean_ttft_ms")
WIDE = 1.15  # high over low of an interval that is worth a word
LEARNT_HOST = 0.4  # log sd of launches and work that a low load of a server leaves, over that of a host never seen
REPEATS_UP_TO = 5_000  # requests
LOGGED_UP_TO = 5_000  # iterations of the run; beyond, draws asked for keep no iteration log: it would cost minutes
# the same where the engine in rows keeps the log: reading the figures off it then takes longer than the run
LOGGED_DIRECTLY_UP_TO = 100_000
AT_ONCE_UP_TO = 20_000  # requests of a second run
SHOWN = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms", "request_throughput", "output_throughput")


@dataclass(frozen=True, slots=True, repr=False)
class Run(Shown):
    """A simulated run at the rates' medians: its record, its figures and their 90 % intervals, by the names of `vllm bench serve`."""

    study: Study
    record: RunRecord
    pools: Sequence[PlannedPool]
    summary: dict[str, float | int]
    noise: dict[str, Interval]  # what another run like it would show
    rate_intervals: dict[str, Interval]  # what is not known of the rates
    draws: dict[str, list[float]]  # figure -> its value at each draw of the rates
    repeats: dict[str, list[float]]  # figure -> its value in each repeat with another seed; empty for a trace
    cost_shares: dict[str, float]  # share of busy time by term of the step time
    draw_quantiles: Sequence[NDArray[np.float64]] = ()  # of the latencies at each draw (metrics.latency_quantiles)
    reached: Goal | None = None  # the goal of the question

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        found = [(name, self.summary[name]) for name in SHOWN if name in self.summary]
        figures = [(name, f"{value:,.4g}" + _between(self.rate_intervals.get(name))) for name, value in found]
        return self.study.shown()[0], figures

    @property
    def config(self) -> EngineConfig:
        """The configuration of the first pool's engines."""
        return self.pools[0].config

    def to_xarray(self, **attrs: Any) -> xr.Dataset:
        """Dims request, iteration, term, stall, draw, repeat; `attrs` are added to its provenance."""
        given = provenance(self.study, self.config) | attrs
        dataset: xr.Dataset = to_dataset(self.record, given, self.draws, self.repeats, self.draw_quantiles)
        return dataset

    def to_dict(self, **attrs: Any) -> dict[str, Any]:
        """The figures with intervals, cost shares and provenance, as in summary.json."""
        return {
            **self.summary,
            "run_noise_90": self.noise,
            "run_noise_basis": f"{len(next(iter(self.repeats.values())))} repeats with other seeds"
            if self.repeats
            else "blocks of this run",
            "rates_90": self.rate_intervals,
            "cost_shares": self.cost_shares,
            **({"event_by_event": why} if (why := self.event_by_event) else {}),
            **({"power": asdict(power)} if (power := self.power) else {}),
            **({"usd_per_mtok": cost.to_dict()} if (cost := self.token_cost) else {}),
            **({"tenants": tenant_figures(self.record)} if self.record.tenants else {}),
            **self.fleet_tables,
            "provenance": provenance(self.study, self.config) | attrs,
            **({"goal": self.reached.to_dict()} if self.reached else {}),
        }

    @property
    def event_by_event(self) -> str:
        """Part of the question that made the run take the slow way (sim.study.direct); nothing where it did not."""
        return event_by_event(self.study, self.pools, self.study.workload.trace)

    @property
    def fleet_tables(self) -> dict[str, Any]:
        """The tables of sim.results.fleet_tables."""
        pools = [pool for pool in self.study.whole_fleet.pools for _ in range(pool.most)]
        names = [pool.name for pool in pools] if len(self.pools) > 1 else []
        return fleet_tables(self.record, [replica for replica, pool in enumerate(pools) if pool.role == PREFILL], names)

    def draw_records(self, count: int = DEFAULT_DRAWS) -> Iterator[RunRecord]:
        """The requests of a run at each of `count` draws of the rates, those behind `rate_intervals`; same workload, no iteration log."""
        for draw in range(count):
            yield run_pools(self.study, self.pools, self.study.workload.trace, draw)

    @property
    def power(self) -> Power | None:
        """Power that the GPUs draw; None without an iteration log, or of a card whose power limit is not known."""
        return power_of(self.record, self.study.servers)

    @property
    def token_cost(self) -> TokenCost | None:
        """Cost of tokens by kind at the catalogue's prices; None without an iteration log, or of a card whose price is not known."""
        return token_cost(self.record, [s.gpu.price_per_hour and s.gpus * s.gpu.price_per_hour for s in self.study.servers])

    @property
    def served_at_once_per_s(self) -> float | None:
        """Requests per second if all of them came at once; None where requests wait for each other, no fast path applies, or there are
        more than AT_ONCE_UP_TO: that is a second run.
        """
        trace = self.study.workload.trace
        if trace.offered_rate_per_s is None or len(trace) > AT_ONCE_UP_TO:
            return None
        at_once = trace.retimed(np.zeros(len(trace)))
        if not is_quick(self.study, self.pools, at_once):
            return None
        return float(summarise(run_pools(self.study, self.pools, at_once))["request_throughput"])

    @property
    def host_matters(self) -> tuple[str, float] | None:
        """The first of HOST_FIGURES whose interval is wide because the host was not given, and how many times narrower it would be with
        one learnt from a low load; None where none is.
        """
        for name in HOST_FIGURES:
            low, high = self.rate_intervals.get(name, (1.0, 1.0))
            if low > 0.0 and high > WIDE * low and min(self.draws[name]) > 0.0 and (share := of_hosts(self.study, self.draws[name])) > 0.5:
                return name, 1.0 / math.sqrt(1.0 - share * (1.0 - LEARNT_HOST**2))
        return None

    @property
    def outgrown(self) -> bool:
        """Whether the queue grows without end if the load goes on (sim.study.lasting), which a short run need not show; False where that is
        not looked at: of more than REPEATS_UP_TO requests, and where no fast path applies.
        """
        trace = self.study.workload.trace
        return len(trace) <= REPEATS_UP_TO and not self.event_by_event and outgrows(self.study)

    def goal(self, metric: str, limit: float, on_progress: Progress | None = None) -> Goal:
        """Whether a figure is at most `limit`, and with what chance: for a load that lasts (sim.study.lasting) where one can and the figure
        is a latency, else in a run like this. UsageError for an unknown figure.
        """
        if metric not in self.summary:
            raise UsageError(f"no figure {metric!r}; there are {', '.join(sorted(self.summary))}")
        lasting = can_last(self.study.workload) and LATENCY.fullmatch(metric) is not None and limit > 0.0
        if lasting:
            chance = _lasting_chance(self, metric, limit, on_progress)
        else:
            figure = _trials(self, metric)

            def holds(trial: int) -> bool:
                if on_progress:
                    on_progress(trial, STAGES[-1])
                return figure(trial) <= limit

            chance = chance_of(holds)
        return Goal(metric, limit, float(self.summary[metric]), chance, lasting)


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that shall be at most `limit`: its value at the median rates, and the chance over rates and run noise. `lasting`: the chance
    is of a load that goes on.
    """

    metric: str
    limit: float
    value: float
    chance: Chance
    lasting: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; `certain` is null where the trials leave open whether the chance is 0.95."""
        chance = self.chance
        return {
            "metric": self.metric,
            "limit": self.limit,
            "value": self.value,
            "met": self.value <= self.limit,
            "chance": chance.value,
            "chance_low": chance.low,
            "chance_high": chance.high,
            "trials": chance.trials,
            "certain": chance.certain,
        }


def fleet_study(
    fleet: Fleet,
    workload: Workload,
    rates_of: Callable[[Deployment], tuple[RateDraws, HostRates]],
    goodput: Mapping[str, float] | None = None,
) -> Study:
    """The study of a workload on a fleet, `rates_of` giving rates and host of each pool's deployment."""
    (rates, host), *others = [rates_of(pool.deployment) for pool in fleet.pools]
    return Study(fleet.pools[0].deployment, workload, rates, host, goodput or {}, fleet, others)


def _hit_rates(pools: Sequence[PlannedPool], record: RunRecord) -> dict[str, float]:
    """Shares of prompt tokens found in HBM and in host RAM, where that keeps KV."""
    prompts = int(record.requests["prompt_tokens"].sum())
    if not prompts or not any(pool.config.options.get("host_blocks") for pool in pools):
        return {}
    cached, host = (int(record.requests[name].sum()) for name in ("cached_tokens", "host_cached_tokens"))
    return {"kv_hit_rate_hbm": (cached - host) / prompts, "kv_hit_rate_host": host / prompts}


def run_study(study: Study, *, draws: int | None = None, keep_iterations: bool = True, on_progress: Progress | None = None) -> Run:
    """Simulate once at the median rates, and once more at each of the first `draws` draws (same workload: common random numbers).

    `draws` None means DEFAULT_DRAWS, of the first REQUESTS_OF_DRAWS / DEFAULT_DRAWS requests of a load where it is longer.
    Without `keep_iterations` the iteration log is left out, and with it ITL and the engine's figures. Such runs take the fast path where it
    applies; per-request figures are the same, bit by bit. Draws and repeats keep the log, and with it intervals of those figures, where
    the run itself takes LOGGED_DIRECTLY_UP_TO iterations at most without cross-talk (sim.study.direct), else where draws are asked for
    and it takes LOGGED_UP_TO.
    Raises UsageError for a request that cannot fit, SimctlError when the model does not.
    """
    pools, trace = planned(study), study.workload.trace
    check_all_fit(study, trace, pools)
    first = _scaled(on_progress, 0, (draws or 0) + 1)
    record = run_pools(study, pools, trace, keep_iterations=keep_iterations, on_progress=first)
    summary = summarise(record, study.goodput) | _hit_rates(pools, record) | _gpu_hours(study, record)
    direct = not event_by_event(study, pools, trace)
    few = len(record.iterations["start_s"]) <= (LOGGED_DIRECTLY_UP_TO if direct else LOGGED_UP_TO)
    logged = keep_iterations and few and (direct or bool(draws))
    each = in_threads if direct and worth(trace) else _in_turn
    head = trace if draws is not None else _shortened(study, REQUESTS_OF_DRAWS if direct else SLOW_REQUESTS_OF_DRAWS)
    count = DEFAULT_DRAWS if draws is None else draws

    def at(draw: int | None) -> Drawn:
        report = None if draws is None or draw is None else _scaled(on_progress, draw + 1, count + 1)
        return _drawn(run_pools(study, pools, head, draw, keep_iterations=logged, on_progress=report), study)

    others = each(at, range(count))
    figures = _columns([figures for figures, _ in others])
    if head is not trace and others:
        figures = _of_whole(figures, at(None)[0], summary, len(head) / len(trace), trace.offered_rate_per_s is not None)
    repeats = _repeats(study, pools, logged, summary, each)
    noise = between_replicates(summary, around(summary, repeat_intervals(repeats) if repeats else block_intervals(record)))
    known = around(summary, rate_intervals(figures, predictors(study)))
    quantiles = [found for _, found in others]
    return Run(study, record, pools, summary, noise, known, figures, repeats, cost_shares(record), quantiles)


def _shortened(study: Study, requests: int) -> Trace:
    """The part of a study's load that is run at each of DEFAULT_DRAWS draws: at most so many requests over all of them, and fewer of long
    ones, but LEAST_OF_DRAW. Calls that wait for several, whose first are no load of their own, are run whole.
    """
    trace, most = study.workload.trace, requests // DEFAULT_DRAWS
    if trace.after:
        return trace
    counts = np.maximum((trace.output_tokens + trace.prompt_tokens / TOKENS_OF_BLOCK) / STEPS_OF_REQUEST, 1.0)
    fits = int(np.searchsorted(np.cumsum(counts), most, side="right"))
    kept = max(fits, min(LEAST_OF_DRAW, most))
    return trace if len(trace) <= kept else trace.head(kept)


def _of_whole(
    figures: Mapping[str, Sequence[float]], short: Mapping[str, float], whole: Mapping[str, float], share: float, offered: bool
) -> dict[str, list[float]]:
    """Figures at draws, of a load of which a `share` was run, as of the whole load: times the whole's over the part's at the median rates.
    Where requests that are `offered` at a rate are kept up with, how long the last of them take is the same in both.
    """
    keeps_up = offered and whole["waiting_at_last_arrival"] <= KEEPS_UP * whole["num_prompts"]
    out = {}
    for name, values in figures.items():
        of_part, of_whole = float(short.get(name, math.nan)), float(whole.get(name, math.nan))
        power = share if keeps_up and (name == "duration" or name.endswith("throughput")) else 1.0
        if of_part > 0.0 and of_whole > 0.0 and min(values) > 0.0:
            out[name] = [of_whole * (value / of_part) ** power for value in values]
        else:
            out[name] = [of_whole + (value - of_part) for value in values]
    return out


def _in_turn(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    return [function(item) for item in items]


def _drawn(record: RunRecord, study: Study) -> Drawn:
    """Summary of a run at a draw of the rates: its figures, and the quantiles of its latencies."""
    return summarise(record, study.goodput), latency_quantiles(record)


def _gpu_hours(study: Study, record: RunRecord) -> dict[str, float]:
    gpus = [pool.deployment.gpus for pool in study.whole_fleet.pools for _ in range(pool.most)]
    return {"gpu_hours": sum(seconds * each for seconds, each in zip(record.paid_s, gpus, strict=True)) / 3600.0}


def requests_of(study: Study, draws: Iterable[int | None]) -> Iterator[RunRecord]:
    """Runs at these draws of the rates (None: at their medians): requests, without figures and iteration log."""
    pools, trace = planned(study), study.workload.trace
    check_all_fit(study, trace, pools)
    return (run_pools(study, pools, trace, draw) for draw in draws)


def provenance(study: Study, config: EngineConfig) -> dict[str, Any]:
    """Provenance of the run, in plain attributes: workload, deployment, limits, rates and where these came from."""
    d, point = study.deployment, study.rates.point
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "long_prefill_token_threshold", "num_gpu_blocks")
    return {
        **study.workload.origin,
        "model": d.model.name,
        "gpu": d.gpu.name,
        "tensor_parallel_size": d.tp,
        "pipeline_parallel_size": d.parallel.pp,
        "data_parallel_size": d.parallel.dp,
        "enable_expert_parallel": int(d.parallel.expert),
        "pools": len(study.whole_fleet.pools),
        "replicas": d.replicas,
        "router": d.router if d.replicas > 1 else "",
        **{f"router_{name}": value if isinstance(value, str) else float(value) for name, value in d.router_options.items()},
        "dtype": d.precision.weights,
        "kv_dtype": d.precision.kv,
        "engine": config.scheduler,
        "gpu_memory_utilization": d.limits.memory_share,
        "scheduling_policy": config.policy,
        "attention": d.limits.attention.label,
        **{f"lora_{name}": getattr(d.limits.lora, name) if d.limits.lora else 0 for name in ("rank", "adapters", "share")},
        "enforce_eager": int(d.limits.enforce_eager),
        "draft_model": d.limits.draft.name if d.limits.draft else "",
        **{name: getattr(config, name) for name in names},
        **{f"engine_{name}": value if isinstance(value, str) else float(value) for name, value in config.options.items()},
        "enable_prefix_caching": int(config.enable_prefix_caching),
        "max_concurrency": study.workload.max_concurrency or 0,
        "max_queue": d.admission.max_queue or 0,
        "token_bucket": list(d.admission.bucket or (0.0, 0.0)),
        "admit_ttft_s": d.admission.ttft_s or 0.0,
        "rates_basis": study.rates.summary,
        "rates_scope": " ".join(scope_of(study)),
        **{f"rate_{name}": float(getattr(point, name)) for name in point.names()},
        "host_basis": study.host.source.text(),
        **{f"host_{name}": getattr(study.host, name) for name in ("request_s", "prompt_token_s", "response_s", "serial_s", "token_s")},
    }


def scope_of(study: Study) -> list[str]:
    """Notes on what was not measured of a study's pools, each once; empty where all of it was."""
    pools = zip(study.whole_fleet.pools, study.sources, strict=True)
    return list(dict.fromkeys(note for pool, (rates, _) in pools for note in scope_notes(pool.deployment, rates)))


def _repeats(
    study: Study, pools: Sequence[PlannedPool], logged: bool, summary: Mapping[str, float | int], each: Each
) -> dict[str, list[float]]:
    """Figures of REPEATS draws of the workload at the median rates, the run of `summary` first, where the fast path takes them all; else
    nothing.

    With `logged` they keep their iteration logs, whatever path that takes.
    """
    redraw = study.workload.redraw
    if redraw is None or len(study.workload.trace) > REPEATS_UP_TO:
        return {}

    def figures_of(repeat: int) -> dict[str, float | int] | None:
        trace = redraw(repeat)
        check_all_fit(study, trace, pools)
        if not logged and not is_quick(study, pools, trace):
            return None
        return summarise(run_pools(study, pools, trace, keep_iterations=logged), study.goodput)

    figures = _all_or_none(figures_of, range(REPEATS - 1), each)
    names = {name for found in figures for name in found}
    return _columns([{name: value for name, value in summary.items() if name in names}, *figures]) if figures else {}


def _lasting_chance(run: Run, metric: str, limit: float, on_progress: Progress | None) -> Chance:
    """The chance that a latency is at most `limit` for good."""
    load, found, chance = Lasts(run.study), list[Lasting](), Chance(0, 0)
    for stage in STAGES:
        if stage > ENOUGH or chance.certain is not None:
            break
        while len(found) < stage:
            if on_progress:
                on_progress(len(found), ENOUGH)
            found.append(load.trial(len(found), lambda latency: [latency_figures(latency, [metric])[metric] / limit]))
        used, error = (np.array([getattr(each, name) for each in found]) for name in ("used", "error"))
        chance = chance_of_figures(used, error, np.array([each.grows for each in found]))
    return chance


def _trials(run: Run, metric: str) -> Callable[[int], float]:
    """A figure by trial: a draw of the rates and a draw of the workload each, independent of all others.

    A trace happened once: its run noise comes from the run's own interval, log-normal.
    """
    study, pools = run.study, run.pools
    redraw = study.workload.redraw
    low, high = run.noise.get(metric, (1.0, 1.0)) if redraw is None else (1.0, 1.0)
    noise = math.log(high / low) / (2 * Z_90) if low > 0 else 0.0
    factors = np.exp(noise * np.random.default_rng(0).standard_normal(STAGES[-1]))

    def figure(trial: int) -> float:
        trace = redraw(trial) if redraw else study.workload.trace
        check_all_fit(study, trace, pools)
        summary = summarise(run_pools(study, pools, trace, trial), study.goodput)
        if metric not in summary:  # read off the iteration log
            summary = summarise(run_pools(study, pools, trace, trial, keep_iterations=True), study.goodput)
        return float(summary[metric]) * float(factors[trial])

    return figure


def _columns(figures: list[dict[str, float | int]]) -> dict[str, list[float]]:
    # only counts of what was turned away or given up are missing, from runs in which nothing was
    return {key: [float(each.get(key, 0)) for each in figures] for key in {key: None for each in figures for key in each}}


def _all_or_none(found_of: Callable[[int], Any], items: Sequence[int], each: Each) -> list[Any]:
    """Results of every item, or an empty list where the first, or any, finds None."""
    if not items or (first := found_of(items[0])) is None:
        return []
    found = [first, *each(found_of, items[1:])]
    return [] if any(one is None for one in found) else found


def _scaled(report: Progress | None, run: int, runs: int) -> Progress | None:
    """Progress of one of several runs, in requests over all of them."""
    if report is None:
        return None
    return lambda done, total: report(run * total + done, runs * total)


def _between(interval: Interval | None) -> str:
    """An interval behind a figure; nothing where there is none."""
    return "" if interval is None else f" [{interval[0]:,.3g}-{interval[1]:,.3g}]"

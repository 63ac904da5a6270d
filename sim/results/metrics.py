"""Metrics of a run, each figure derived from the per-request record and the iteration log. Names follow `vllm bench serve`.

TTFT is first token minus arrival. TPOT is (E2EL - TTFT) / (output tokens - 1), requests of one token left out. ITL is per gap between
consecutive tokens, pooled over requests. E2EL is finish minus arrival. Percentiles interpolate linearly, as numpy does by default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.interface import BUCKET, LOST, QUEUE, TOO_LONG, TTFT
from sim.errors import UsageError
from sim.quantiles import quantiles
from sim.results.record import RunRecord

Floats = NDArray[np.float64]
LATENCIES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}
PERCENTILES = (50, 90, 95, 99)
PARTS = 4096  # of the range of values, for percentiles of many
PER_REQUEST = ("ttft", "tpot", "e2el")  # latencies that a request has one of
LEVELS = tuple(
    np.round(np.concatenate([[0.01], np.arange(0.05, 0.96, 0.05), [0.99]]), 2).tolist()
)  # of the distributions kept of each draw
LATENCY = re.compile(r"(mean|median|std|p\d\d)_(ttft|tpot|e2el)_ms")  # figures of latencies that a request has one of
_GOAL = re.compile(r"(ttft|tpot|e2el):([0-9.]+)")


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """Service levels `ttft:200 tpot:50 e2el:5000`, milliseconds. Raises UsageError for any other spelling, or a repeated name."""
    goals: dict[str, float] = {}
    for text in (part for each in texts for part in re.split(r"[\s,]+", each.strip())):
        match = _GOAL.fullmatch(text)
        try:
            value = float(match[2]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not value > 0:
            raise UsageError(f"not a service level: {text!r} (examples: ttft:200 tpot:50 e2el:5000, in ms)")
        if match[1] in goals:
            raise UsageError(f"service level {match[1]} is given twice")
        goals[match[1]] = value
    return goals


def request_latencies_ms(record: RunRecord) -> dict[str, Floats]:
    """TTFT, TPOT and E2EL of every request, milliseconds, NaN where there is none (not finished; one token has no TPOT)."""
    needed = ("arrival_s", "first_token_s", "finish_s", "generated_tokens")
    columns = {name: np.asarray(record.requests[name], dtype=np.float64) for name in needed}
    e2el = columns["finish_s"] - columns["arrival_s"]
    ttft = np.where(np.isnan(e2el), math.nan, columns["first_token_s"] - columns["arrival_s"])
    gaps = columns["generated_tokens"] - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(gaps > 0, (e2el - ttft) / gaps, math.nan)
    return {"ttft": 1e3 * ttft, "tpot": 1e3 * tpot, "e2el": 1e3 * e2el}


def latency_figures(latency: Mapping[str, Floats], names: Sequence[str], goodput: Mapping[str, float] | None = None) -> dict[str, float]:
    """Figures `names` (as p99_ttft_ms, or `failed`) of requests whose latencies are given as by `request_latencies_ms`, with the counts
    that shares are made of; the duration is 1 s. Raises KeyError for a figure that is not of latencies.
    """
    done = ~np.isnan(latency["e2el"])
    out: dict[str, float] = {"num_prompts": len(done), "completed": int(done.sum()), "failed": int((~done).sum()), "duration": 1.0}
    if goodput:
        out["request_goodput"] = int((done & ~np.any([latency[name] > limit for name, limit in goodput.items()], axis=0)).sum())
    for name in names:
        if name in out or name == "good":
            continue
        if (match := LATENCY.fullmatch(name)) is None:
            raise KeyError(name)
        statistic, of = match.groups()
        there = latency[of][~np.isnan(latency[of])]
        if not len(there):
            out[name] = math.nan
        elif statistic in ("mean", "std"):
            out[name] = float(getattr(there, statistic)())
        else:
            out[name] = quantiles(there, (0.5 if statistic == "median" else int(statistic[1:]) / 100,))[0]
    return out


def latency_quantiles(record: RunRecord) -> Floats:
    """Quantiles at LEVELS of TTFT, TPOT and E2EL over requests, ms: shape [len(PER_REQUEST), len(LEVELS)]; NaN where no request has one."""
    latency = request_latencies_ms(record)
    present = [latency[name][~np.isnan(latency[name])] for name in PER_REQUEST]
    return np.stack([quantiles(each, LEVELS) if len(each) else np.full(len(LEVELS), np.nan) for each in present])


def pooled_itl_ms(record: RunRecord) -> tuple[Floats, NDArray[np.int64]]:
    """(gap lengths in ms, how many gaps of each): one entry per iteration that closed any, then the stalls, one each."""
    log = record.iterations
    ends, replica, counts = log["start_s"] + log["duration_s"], log["iteration_replica"], log["itl_gaps"]
    values, weights = [], []
    every = _different(replica)
    for index in every:
        mine: Any = replica == index if len(every) > 1 else slice(None)
        own_ends, own_counts = ends[mine], counts[mine]
        closed = own_counts[1:] > 0
        values.append(np.diff(own_ends)[closed])
        weights.append(own_counts[1:][closed].astype(np.int64))
    values.append(record.stall_s)
    weights.append(np.ones(len(record.stall_s), dtype=np.int64))
    return 1e3 * np.concatenate(values), np.concatenate(weights)


def _different(replicas: Floats) -> NDArray[np.int64]:
    """np.unique of a column of the log, without a sort and without numpy.ma, which takes longer to import than most runs to summarise."""
    return np.flatnonzero(np.bincount(replicas.astype(np.int64)))


def weighted_percentiles(values: Floats, weights: NDArray[np.int64] | None, percentiles: Sequence[float]) -> list[float]:
    """np.percentile(np.repeat(values, weights), percentiles) without the repetition; NaN when there is nothing."""
    if not len(values):
        return [math.nan] * len(percentiles)
    last = len(values) - 1 if weights is None else int(weights.sum()) - 1
    places = [q / 100.0 * last for q in percentiles]
    around = np.array([(math.floor(place), min(math.floor(place) + 1, last)) for place in places])
    if weights is None:
        found = np.partition(values, sorted(set(around.ravel().tolist())))[around]
    else:
        found = _at_places(values, weights, around)
    return [a + (b - a) * (place - math.floor(place)) for (a, b), place in zip(found.tolist(), places, strict=True)]


def _at_places(values: Floats, weights: NDArray[np.int64], places: NDArray[np.int64]) -> Floats:
    """np.sort(np.repeat(values, weights))[places]: sorted are only the values of those parts of the range in which the places lie."""
    low, high = float(values.min()), float(values.max())
    part = np.zeros(len(values), dtype=np.int64) if low == high else ((values - low) * (PARTS / (high - low))).astype(np.int64)
    upto = np.cumsum(np.bincount(part, weights=weights))
    wanted = np.searchsorted(upto, places, side="right")
    found = np.empty(places.shape)
    for each in set(wanted.ravel().tolist()):
        mine = np.flatnonzero(part == each)
        order = mine[np.argsort(values[mine])]
        before = upto[each - 1] if each else 0
        inside = np.searchsorted(np.cumsum(weights[order]), places[wanted == each] - before, side="right")
        found[wanted == each] = values[order[inside]]
    return found


def statistics(name: str, values: Floats, weights: NDArray[np.int64] | None = None) -> dict[str, float]:
    """Mean, median, standard deviation and percentiles of one latency, keyed as in `mean_ttft_ms`; NaN when there is nothing."""
    total = len(values) if weights is None else int(weights.sum())
    each: Any = 1.0 if weights is None else weights
    mean = float((values * each).sum() / total) if total else math.nan
    variance = float((each * (values - mean) ** 2).sum() / total) if total else math.nan
    found = weighted_percentiles(values, weights, PERCENTILES)
    out = {f"mean_{name}_ms": mean, f"median_{name}_ms": found[0], f"std_{name}_ms": math.sqrt(variance)}
    return out | {f"p{q}_{name}_ms": value for q, value in zip(PERCENTILES[1:], found[1:], strict=True)}


class View:
    """Columns that figures are made of: those of the requests, of those that finished, and of the iteration log."""

    def __init__(self, record: RunRecord) -> None:
        self.requests = {name: np.asarray(values) for name, values in record.requests.items()}
        self.latency = request_latencies_ms(record)
        self.done = ~np.isnan(self.latency["e2el"])
        self.completed = int(self.done.sum())
        self.arrival, self.finish = self.requests["arrival_s"], self.requests["finish_s"]
        self.cancelled = self.requests["cancelled_s"]
        left = np.fmax.reduce(np.fmax(self.finish, self.cancelled))
        self.duration = float(left - self.arrival.min()) if self.completed else math.nan
        self.inputs, self.outputs = (int(self.requests[name][self.done].sum()) for name in ("prompt_tokens", "generated_tokens"))
        self.wait = 1e3 * (self.requests["scheduled_s"] - self.arrival)[self.done]
        self.log = record.iterations
        self.busy = self.log["duration_s"]

    def busy_mean(self, name: str) -> float:
        """A column of the iteration log averaged over busy time."""
        return float((self.log[name] * self.busy).sum() / self.busy.sum())

    def in_flight(self) -> int:
        """Most requests between arrival and finish at one time."""
        times = np.concatenate([self.arrival[self.done], self.finish[self.done]])
        steps = np.repeat([1, -1], self.completed)
        # a finish frees its place before a send of the same instant takes it
        return int(np.cumsum(steps[np.lexsort((steps, times))]).max(initial=0))

    def late(self) -> int:
        """Requests still waiting when the last one arrived."""
        late = ~(np.fmin(self.requests["scheduled_s"], self.cancelled) <= self.arrival.max()) & (self.requests["rejected"] == 0)
        return int((late & (self.arrival < self.arrival.max())).sum())

    def per_second(self) -> float:
        """Most tokens sampled in any second."""
        ends = self.log["start_s"] + self.busy
        seconds = np.floor(ends - self.log["start_s"][0]).astype(np.int64)
        if seconds.max() > len(seconds):  # most of a run may be idle
            seconds = np.unique(seconds, return_inverse=True)[1]
        return float(np.bincount(seconds, weights=self.log["sampled"]).max())


class Figure(NamedTuple):
    """A figure of a run: its key, how it is made (`of`), and its line in the printed table (no label: none).

    `logged` figures need the iteration log; `scale` applies to the printed value, KV_BLOCKS meaning per cent of the KV blocks.
    """

    key: str
    of: Callable[[View], float | int] | None = None  # None: it comes from elsewhere than the record
    label: str = ""
    logged: bool = False
    scale: float = 1.0


KV_BLOCKS = math.inf
# Adding a figure is adding a line here. Counts and rates come first in the table, the engine's figures last.
FIGURES = (
    Figure("num_prompts", lambda v: len(v.done)),
    Figure("completed", lambda v: v.completed, "Successful requests:"),
    Figure("failed", lambda v: len(v.done) - v.completed, "Failed requests:"),
    Figure("rejected_too_long", None, "  turned away, too long:"),
    Figure("rejected_full_queue", None, "  turned away, full queue:"),
    Figure("rejected_ttft_goal", None, "  turned away, TTFT goal:"),
    Figure("rejected_token_bucket", None, "  turned away, token bucket:"),
    Figure("lost", None, "  lost with their replica:"),
    Figure("cancelled", None, "  given up by their clients:"),
    Figure("duration", lambda v: v.duration, "Benchmark duration (s):"),
    Figure("total_input_tokens", lambda v: v.inputs, "Total input tokens:"),
    Figure("total_output_tokens", lambda v: v.outputs, "Total generated tokens:"),
    Figure("request_throughput", lambda v: v.completed / v.duration, "Request throughput (req/s):"),
    Figure("request_goodput", None, "Request goodput (req/s):"),
    Figure("output_throughput", lambda v: v.outputs / v.duration, "Output token throughput (tok/s):"),
    Figure("max_output_tokens_per_s", View.per_second, "Peak output token throughput (tok/s):", logged=True),
    Figure("max_concurrent_requests", View.in_flight, "Peak concurrent requests:"),
    Figure("total_token_throughput", lambda v: (v.inputs + v.outputs) / v.duration, "Total token throughput (tok/s):"),
)
ENGINE_FIGURES = (
    Figure("mean_wait_ms", lambda v: float(v.wait.mean()) if v.completed else math.nan, "Mean wait to be scheduled (ms):"),
    Figure("p99_wait_ms", lambda v: quantiles(v.wait, (0.99,))[0] if v.completed else math.nan, "P99 wait to be scheduled (ms):"),
    Figure("mean_running", lambda v: v.busy_mean("running"), "Mean running requests:", logged=True),
    Figure("max_running", lambda v: int(v.log["running"].max()), logged=True),
    Figure("mean_waiting", lambda v: v.busy_mean("waiting"), logged=True),
    Figure("max_waiting", lambda v: int(v.log["waiting"].max()), "Peak waiting requests:", logged=True),
    Figure("waiting_at_last_arrival", View.late),
    Figure("mean_kv_blocks_used", lambda v: v.busy_mean("kv_blocks_used"), logged=True),
    Figure("max_kv_blocks_used", lambda v: int(v.log["kv_blocks_used"].max()), "Peak KV use (%):", logged=True, scale=KV_BLOCKS),
    Figure(
        "prefix_cache_hit_rate",
        lambda v: float(v.requests["cached_tokens"][v.done].sum() / v.inputs) if v.inputs else math.nan,
        "Prefix cache hit rate (%):",
        scale=100.0,
    ),
    Figure("kv_hit_rate_hbm", None, "Prompt tokens found in HBM (%):", scale=100.0),
    Figure("kv_hit_rate_host", None, "Prompt tokens found in host RAM (%):", scale=100.0),
    Figure("preemptions", lambda v: int(v.requests["preemptions"].sum()), "Preemptions:"),
    Figure("iterations", lambda v: len(v.busy), "Iterations:", logged=True),
    Figure(
        "busy_fraction",
        lambda v: float(v.busy.sum()) / v.duration / len(_different(v.log["iteration_replica"])),
        "Busy time (%):",
        logged=True,
        scale=100.0,
    ),
)
REFUSALS = {
    "rejected_too_long": TOO_LONG,
    "rejected_full_queue": QUEUE,
    "rejected_ttft_goal": TTFT,
    "rejected_token_bucket": BUCKET,
    "lost": LOST,
}


def summarise(record: RunRecord, goodput: Mapping[str, float] | None = None) -> dict[str, float | int]:
    """The figures of the run: counts, throughputs (per second of makespan), latencies, cache, queue and KV use."""
    view, logged = View(record), len(record.iterations["start_s"]) > 0
    out: dict[str, float | int] = {}
    for figure in (*FIGURES, *ENGINE_FIGURES):
        if figure.of is not None and (logged or not figure.logged):
            out[figure.key] = figure.of(view)
    if view.requests["rejected"].any():
        out |= {name: int((view.requests["rejected"] == limit).sum()) for name, limit in REFUSALS.items()}
    if given_up := int((~np.isnan(view.cancelled)).sum()):
        out["cancelled"] = given_up
    if goodput:
        # a request of one token has no TPOT and cannot miss it
        good = view.done & ~np.any([view.latency[name] > limit for name, limit in goodput.items()], axis=0)
        out["request_goodput"] = int(good.sum()) / view.duration
    for name in ("ttft", "tpot", "e2el"):
        out |= statistics(name, view.latency[name][~np.isnan(view.latency[name])])
    return out | (statistics("itl", *pooled_itl_ms(record)) if logged else {})


def tenant_figures(record: RunRecord) -> dict[str, dict[str, float | int]]:
    """By tenant: its requests, those that completed, its output tokens, and its TTFT, milliseconds. Empty where nobody has one."""
    view = View(record)
    found: dict[str, dict[str, float | int]] = {}
    for name in sorted(set(record.tenants)):
        mine = np.array([each == name for each in record.tenants])
        done = mine & view.done
        found[name] = {
            "num_prompts": int(mine.sum()),
            "completed": int(done.sum()),
            "total_output_tokens": int(view.requests["generated_tokens"][done].sum()),
            **statistics("ttft", view.latency["ttft"][done]),
        }
    return found


def cost_shares(record: RunRecord) -> dict[str, float]:
    """Share of the busy time that each term of the step time took, largest first; terms that took none are left out."""
    total = record.terms.sum(axis=0)
    spent = float(total.sum()) or 1.0
    ranked = sorted(zip(record.term_names, total, strict=True), key=lambda pair: -pair[1])
    return {name: float(value / spent) for name, value in ranked if value > 0.0}

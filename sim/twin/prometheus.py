"""Prometheus metrics of a serving engine: what a scrape says, and what happened between two scrapes.

Read are vLLM's names (`vllm:...`) and SGLang's (`sglang:...`), summed over labels: several engines behind one URL are one server.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sim.errors import SimctlError

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LE = re.compile(r'(?:^|,)\s*le="([^"]*)"')

# Our name -> the engine's, most recent first. Gauges are sums over engines, except shares, which are means.
GAUGES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "vllm": {"running": ("num_requests_running",), "waiting": ("num_requests_waiting",)},
    "sglang": {"running": ("num_running_reqs",), "waiting": ("num_queue_reqs",)},
}
SHARES = {"vllm": ("kv_cache_usage_perc", "gpu_cache_usage_perc"), "sglang": ("token_usage",)}
COUNTERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "vllm": {"prompt_tokens": ("prompt_tokens",), "output_tokens": ("generation_tokens",), "finished": ("request_success",)},
    "sglang": {"prompt_tokens": ("prompt_tokens",), "output_tokens": ("generation_tokens",), "finished": ("num_requests",)},
}
# Prompt tokens found in a prefix cache, and those looked for; servers without one lack them
CACHED = {"vllm": ("prefix_cache_hits", "prefix_cache_queries"), "sglang": ("cached_tokens", "prompt_tokens")}
TPOT = ("request_time_per_output_token_seconds", "time_per_output_token_seconds", "inter_token_latency_seconds")
HISTOGRAMS = {"ttft_s": ("time_to_first_token_seconds",), "tpot_s": TPOT, "e2el_s": ("e2e_request_latency_seconds",)}


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts by upper bound in seconds, ascending and ended by infinity; `total_s` is the sum of what was observed."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total_s: float

    @property
    def count(self) -> float:
        """Observations."""
        return self.counts[-1]

    @property
    def mean_s(self) -> float:
        """Mean in seconds, nan of nothing."""
        return self.total_s / self.count if self.count else math.nan

    def quantile_s(self, share: float) -> float:
        """Quantile in seconds, linear within its bucket; the last finite bound beyond it, nan of nothing."""
        wanted = share * self.count
        low = before = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= wanted and count > before:
                return low if math.isinf(bound) else low + (bound - low) * (wanted - before) / (count - before)
            low, before = (bound if math.isfinite(bound) else low), count
        return math.nan

    def bucket_s(self, share: float) -> tuple[float, float]:
        """The bounds between which the quantile lies."""
        low = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= share * self.count:
                return low, bound
            low = bound
        return low, math.inf

    def __add__(self, other: Histogram) -> Histogram:
        """Both, of the same bounds."""
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.total_s + other.total_s)

    def __sub__(self, earlier: Histogram) -> Histogram:
        """Observations after `earlier`, of the same bounds."""
        counts = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds, counts, self.total_s - earlier.total_s)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One scrape: seconds on the watcher's clock, gauges, counters since the server started, latency histograms."""

    at_s: float
    engine: str
    running: float
    waiting: float
    kv_share: float
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    cached: tuple[float, float] | None = None  # prompt tokens found and looked for in the prefix cache


@dataclass(frozen=True, slots=True)
class ScrapeWindow:
    """Counts between two scrapes of one server: requests that came and finished, their mean lengths, their latencies."""

    begin_s: float
    end_s: float
    arrivals: float
    finished: float
    prompt_tokens: float  # mean of a request, nan where none was seen
    output_tokens: float
    running: float  # means of both ends
    waiting: float
    queued: float  # least of both ends: who waits for the next iteration alone does not queue
    kv_share: float
    latency: Mapping[str, Histogram] = field(default_factory=dict)
    cached_share: float = 0.0  # of the prompt tokens, 0 where the metrics do not say

    @property
    def seconds(self) -> float:
        """Length."""
        return self.end_s - self.begin_s

    @property
    def decoding(self) -> float:
        """Mean number of requests between their first and their last token (Little's law, over those that finished)."""
        first, whole = self.latency["ttft_s"], self.latency["e2el_s"]
        return max(whole.total_s - first.mean_s * whole.count, 0.0) / self.seconds if first.count and whole.count else 0.0


def read_snapshot(text: str, at_s: float) -> Snapshot:
    """A scrape read. SimctlError where it is not of a known engine, or lacks a name that is needed, which it names."""
    series = _series(text)
    engine = next((e for e in GAUGES if any(name.startswith(f"{e}:") for name in series)), None)
    if engine is None:
        raise SimctlError(f"no metrics of an engine that is known ({', '.join(GAUGES)})")

    def found(names: tuple[str, ...], what: str, suffix: str = "") -> list[tuple[str, float]]:
        for name in names:
            for ending in dict.fromkeys((suffix, "")):
                if rows := series.get(f"{engine}:{name}{ending}"):
                    return rows
        raise SimctlError(f"metrics of {engine} lack {what} ({engine}:{names[0]}{suffix})")

    gauges = {ours: sum(v for _, v in found(theirs, ours)) for ours, theirs in GAUGES[engine].items()}
    shares = next((rows for name in SHARES[engine] if (rows := series.get(f"{engine}:{name}"))), [])
    looked = [series.get(f"{engine}:{name}_total", series.get(f"{engine}:{name}", [])) for name in CACHED[engine]]
    return Snapshot(
        at_s,
        engine,
        **gauges,
        kv_share=sum(v for _, v in shares) / len(shares) if shares else math.nan,
        counters={ours: sum(v for _, v in found(theirs, ours, "_total")) for ours, theirs in COUNTERS[engine].items()},
        histograms={
            ours: _histogram(found(theirs, ours, "_bucket"), _sum_of(series, engine, theirs)) for ours, theirs in HISTOGRAMS.items()
        },
        cached=(sum(v for _, v in looked[0]), sum(v for _, v in looked[1])) if all(looked) else None,
    )


def window_between(earlier: Snapshot, later: Snapshot) -> ScrapeWindow | None:
    """Window between two scrapes; None when the server restarted (a counter fell) or no time has passed."""
    counts = {name: later.counters[name] - earlier.counters[name] for name in later.counters}
    same = all(later.histograms[name].bounds == earlier.histograms[name].bounds for name in later.histograms)
    if later.at_s <= earlier.at_s or min(counts.values()) < 0 or not same:
        return None
    latency = {name: later.histograms[name] - earlier.histograms[name] for name in later.histograms}
    if any(min(each.counts) < 0 for each in latency.values()):
        return None
    in_flight = later.running + later.waiting - earlier.running - earlier.waiting
    started = latency["ttft_s"].count  # a prompt is counted when its prefill ends, an answer when it has been sent
    return ScrapeWindow(
        earlier.at_s,
        later.at_s,
        arrivals=max(counts["finished"] + in_flight, 0.0),
        finished=counts["finished"],
        prompt_tokens=counts["prompt_tokens"] / started if started else math.nan,
        output_tokens=counts["output_tokens"] / counts["finished"] if counts["finished"] else math.nan,
        running=(earlier.running + later.running) / 2,
        waiting=(earlier.waiting + later.waiting) / 2,
        queued=min(earlier.waiting, later.waiting),
        kv_share=later.kv_share,
        latency=latency,
        cached_share=_share_between(earlier.cached, later.cached),
    )


def _share_between(earlier: tuple[float, float] | None, later: tuple[float, float] | None) -> float:
    if earlier is None or later is None or later[1] <= earlier[1]:
        return 0.0
    return min(max((later[0] - earlier[0]) / (later[1] - earlier[1]), 0.0), 1.0)


def _series(text: str) -> dict[str, list[tuple[str, float]]]:
    """Name -> rows of (labels, value). Lines that are no samples are passed over, as Prometheus' own parsers of comments do."""
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line.strip())
        if match:
            try:
                value = float(match[3])
            except ValueError:
                continue
            if math.isfinite(value):
                found[match[1]].append((match[2] or "", value))
    return found


def _sum_of(series: Mapping[str, list[tuple[str, float]]], engine: str, names: tuple[str, ...]) -> float:
    for name in names:
        if f"{engine}:{name}_bucket" in series:
            return sum(v for _, v in series.get(f"{engine}:{name}_sum", []))
    return 0.0


def _histogram(rows: list[tuple[str, float]], total_s: float) -> Histogram:
    counts: dict[float, float] = defaultdict(float)
    for labels, value in rows:
        match = _LE.search(labels)
        try:
            bound = float(match[1]) if match else math.nan
        except ValueError:
            bound = math.nan
        if math.isnan(bound):
            raise SimctlError("a histogram's bucket has no bound le")
        counts[bound] += value
    if math.inf not in counts:
        raise SimctlError('a histogram lacks its bucket le="+Inf"')
    bounds = tuple(sorted(counts))
    return Histogram(bounds, tuple(counts[bound] for bound in bounds), total_s)

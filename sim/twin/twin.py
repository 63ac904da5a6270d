"""The twin: servers seen scrape by scrape, what was predicted for each window before it came, alerts and advice."""

from __future__ import annotations

import functools
import math
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sim.files import plain
from sim.slo import Condition
from sim.twin.curve import LatencyCurve
from sim.twin.forecast import Forecast, Trend, forecast, trend_of
from sim.twin.level import PRIOR_SD, Level, Scatter, noise_sd
from sim.twin.prometheus import Histogram, ScrapeWindow, Snapshot, window_between

SILENT_AFTER = 3  # scrapes without an answer
OUTSIDE_AFTER = 2  # windows in a row
LEARNT = 3  # windows before alerts about a server
KEPT_S = 3600.0
SEEN_S = 300.0  # of what is seen of the SLO
ALERT_LEVEL = 0.99
PRINTED_LEVEL = 0.9  # of the interval that is printed
EXACT = 1.01  # half the bucket that stands for a mean
LIKELY, WARNED_AFTER_S = 0.5, 60.0  # a chance of a break soon above this for so long is a warning: a line through few windows swings


@dataclass
class TwinServer:
    """One URL: its last scrape and what has been learnt of it. `first_token` is what first tokens take beyond `level` in the mean, which a
    few late ones raise; `first_median` is that of their median.
    """

    url: str
    level: Level = field(default_factory=lambda: Level.unknown(PRIOR_SD))
    first_token: Level = field(default_factory=lambda: Level.unknown(PRIOR_SD))
    first_median: Level = field(default_factory=lambda: Level.unknown(PRIOR_SD))
    scatter: dict[str, Scatter] = field(default_factory=lambda: {"tpot": Scatter(), "ttft": Scatter()})
    mean_scatter: dict[str, Scatter] = field(default_factory=lambda: {"tpot": Scatter(), "ttft": Scatter()})
    last: Snapshot | None = None
    missed: int = 0
    outside: int = 0

    @property
    def up(self) -> bool:
        """Whether it has answered lately."""
        return self.last is not None and self.missed < SILENT_AFTER


@dataclass(frozen=True, slots=True)
class SeenLatency:
    """A figure of a window: what the metrics say (a median within its bucket, and the mean: sum over count), and the intervals of both
    predicted before the window was learnt.
    """

    metric: str
    median_ms: float
    bucket_ms: tuple[float, float]
    predicted_ms: tuple[float, float]
    mean_ms: float
    predicted_mean_ms: tuple[float, float]

    @property
    def inside(self) -> bool:
        """Whether the bucket that holds the median meets the interval: a histogram says no more."""
        return self.bucket_ms[1] >= self.predicted_ms[0] and self.bucket_ms[0] <= self.predicted_ms[1]


@dataclass(frozen=True, slots=True)
class SeenSlo:
    """A condition as all servers' metrics of the last SEEN_S have it: a mean, or the bucket of a quantile.

    `holds` None where the limit lies inside the bucket.
    """

    condition: str
    between_ms: tuple[float, float]
    holds: bool | None


@dataclass(frozen=True, slots=True)
class TwinReport:
    """One turn: the load, what was seen of each server beside its prediction, forecast and alerts. `to_dict` is plain JSON."""

    at_s: float
    servers_up: int
    rate_per_s: float
    prompt_tokens: float
    output_tokens: float
    running: float
    waiting: float
    slowness: Mapping[str, tuple[float, float, float]]  # 5, 50, 95 %
    seen: Mapping[str, Sequence[SeenLatency]]
    forecast: Forecast | None
    alerts: Sequence[str]
    warned: bool = False  # the SLO has been likely to break for a while
    cached_share: float = 0.0  # of the prompt tokens, found in prefix caches
    slo: Sequence[SeenSlo] = ()

    @property
    def disagrees(self) -> bool:
        """Whether the forecast has the SLO broken now where all of it is seen to hold."""
        broken = self.forecast is not None and self.forecast.after_s == 0 and self.forecast.chance > LIKELY
        return broken and bool(self.slo) and all(each.holds for each in self.slo)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; nan becomes null."""
        body = asdict(self)
        for url, rows in self.seen.items():
            body["seen"][url] = [asdict(row) | {"inside": row.inside} for row in rows]
        found: dict[str, Any] = plain(body)
        return found


class Twin:
    """State of all servers. `curve_for(prompt, output, cached_share)` simulates a replica, again when these change by a quarter."""

    def __init__(
        self,
        urls: Sequence[str],
        curve_for: Callable[[float, float, float], LatencyCurve],
        conditions: Sequence[Condition] = (),
        horizon_s: float = 1200.0,
    ) -> None:
        self.servers = [TwinServer(url) for url in urls]
        self.curve: LatencyCurve | None = None
        self.trend: Trend | None = None
        self.windows: deque[tuple[float, float, float]] = deque()  # end, seconds, arrivals at all servers
        self._curve_for, self._conditions, self._horizon_s = curve_for, tuple(conditions), horizon_s
        self._prompt = self._output = math.nan
        self._cached = 0.0
        self._latencies: deque[tuple[float, Mapping[str, Histogram]]] = deque()
        self._likely_since_s = math.inf
        self._warned = False

    def watch(self, urls: Sequence[str]) -> None:
        """Follow these servers from now on; what was learnt of those that stay is kept."""
        known = {server.url: server for server in self.servers}
        self.servers = [known.get(url, TwinServer(url)) for url in urls]

    def observe(self, at_s: float, scrapes: Sequence[Snapshot | str]) -> TwinReport:
        """Take one scrape of every server, or why there is none, and say what is known then."""
        alerts: list[str] = []
        windows: dict[str, ScrapeWindow] = {}
        for server, scrape in zip(self.servers, scrapes, strict=True):
            window = _step(server, scrape, alerts)
            if window:
                windows[server.url] = window
        self._lengths(list(windows.values()))
        if windows:
            self.windows.append((at_s, max(w.seconds for w in windows.values()), sum(w.arrivals for w in windows.values())))
            while self.windows[0][0] < at_s - KEPT_S:
                self.windows.popleft()
            self.trend = trend_of(*zip(*self.windows, strict=True))
            self._latencies += [(at_s, window.latency) for window in windows.values()]
            while self._latencies[0][0] < at_s - SEEN_S:
                self._latencies.popleft()
        seen = {s.url: self._learn(s, windows[s.url], alerts) for s in self.servers if s.url in windows and self.curve}
        up = [server for server in self.servers if server.up]
        ahead = None
        if self.curve and self.trend and self._conditions and up and len(self.windows) >= LEARNT:
            levels = [s.level for s in up], [s.first_token for s in up]
            ahead = forecast(self.trend, self.curve, *levels, self._conditions, self._horizon_s)
            self._warn(at_s, ahead, alerts)
        return TwinReport(
            at_s,
            len(up),
            self.trend.rate_per_s if self.trend else math.nan,
            self._prompt,
            self._output,
            sum(w.running for w in windows.values()),
            sum(w.waiting for w in windows.values()),
            {s.url: (s.level.quantile(0.05), s.level.median, s.level.quantile(0.95)) for s in self.servers},
            seen,
            ahead,
            alerts,
            self._warned,
            self._cached,
            [each for condition in self._conditions if (each := self._seen_slo(condition)) is not None],
        )

    def _seen_slo(self, condition: Condition) -> SeenSlo | None:
        """None where nothing was seen of it, or servers count in different buckets."""
        statistic, metric, _ = condition.figure.split("_")
        found = [latency[f"{metric}_s"] for _, latency in self._latencies]
        if len({each.bounds for each in found}) != 1 or not sum(each.count for each in found):
            return None
        whole = functools.reduce(operator.add, found)
        share = {"median": 0.5}.get(statistic) or (float(statistic[1:]) / 100 if statistic != "mean" else None)
        low, high = (whole.mean_s, whole.mean_s) if share is None else whole.bucket_s(share)
        between = (low * 1e3, high * 1e3)
        holds = True if between[1] <= condition.limit else False if between[0] >= condition.limit else None
        return SeenSlo(condition.text, between, holds)

    def _warn(self, at_s: float, ahead: Forecast, alerts: list[str]) -> None:
        """Tell once that the SLO is likely to break soon, when that has been so for WARNED_AFTER_S."""
        self._likely_since_s = min(self._likely_since_s, at_s) if ahead.soon > LIKELY else math.inf
        before, self._warned = self._warned, at_s - self._likely_since_s >= WARNED_AFTER_S
        if self._warned and not before:
            alerts.append(f"{ahead.condition} will break: likely for {WARNED_AFTER_S:g} s")

    def _lengths(self, windows: Sequence[ScrapeWindow]) -> None:
        """Mean lengths over all servers, weighted by requests; a new curve when they have moved."""
        pairs = [(w.prompt_tokens, w.output_tokens, w.finished) for w in windows if w.finished and not math.isnan(w.prompt_tokens)]
        if not pairs:
            return
        total = sum(n for *_, n in pairs)
        self._prompt = sum(p * n for p, _, n in pairs) / total
        self._output = sum(o * n for _, o, n in pairs) / total
        self._cached = sum(w.cached_share * w.finished for w in windows) / sum(w.finished for w in windows)
        if self.curve is None or not self.curve.serves(self._prompt, self._output, 0.25, self._cached):
            self.curve = self._curve_for(self._prompt, self._output, self._cached)

    def _learn(self, server: TwinServer, window: ScrapeWindow, alerts: list[str]) -> list[SeenLatency]:
        """Predict the window, compare, then learn from it."""
        curve = self.curve
        assert curve is not None
        rate = window.arrivals / window.seconds
        for name in ("level", "first_token", "first_median"):
            setattr(server, name, getattr(server, name).later(window.seconds))
        slow = server.level.median
        rows: list[SeenLatency] = []
        outside, learnt = False, {}
        for metric, (level, median_ms, mean_ms) in _expected(server, window, curve).items():
            found, learnt[metric] = window.latency[f"{metric}_s"], level
            if found.count < 1:
                continue
            expected_sd = noise_sd(curve, metric, rate * slow, found.count)
            scatter, (low_s, high_s) = server.scatter[metric], found.bucket_s(0.5)
            bucket_ms = (low_s * 1e3, high_s * 1e3)
            sd = expected_sd * scatter.scale
            of_mean = server.first_token if metric == "ttft" else level
            printed_ms, alert_ms = level.intervals_ms(median_ms, expected_sd, (PRINTED_LEVEL, ALERT_LEVEL), scatter)
            (of_mean_ms,) = of_mean.intervals_ms(mean_ms, expected_sd, (PRINTED_LEVEL,), server.mean_scatter[metric])
            row = SeenLatency(metric, found.quantile_s(0.5) * 1e3, bucket_ms, printed_ms, found.mean_s * 1e3, of_mean_ms)
            rows.append(row)
            outside = outside or not replace(row, predicted_ms=alert_ms).inside
            if metric == "ttft":
                server.first_token = server.first_token.learn(found.mean_s * 1e3, mean_ms, sd)
                learnt[metric] = level.learn(row.median_ms, median_ms, sd)
            else:
                learnt[metric] = level.learn(found.mean_s * 1e3, mean_ms, sd)
            server.scatter[metric] = scatter.learn(level, median_ms, bucket_ms, expected_sd)
            near_ms = (row.mean_ms / EXACT, row.mean_ms * EXACT)
            server.mean_scatter[metric] = server.mean_scatter[metric].learn(of_mean, mean_ms, near_ms, expected_sd)
        server.outside = server.outside + 1 if outside and server.level.learnt >= LEARNT else 0
        if server.outside >= OUTSIDE_AFTER:
            alerts.append(f"{server.url}: outside its predicted interval for {server.outside} windows: not the server that it was")
        server.level, server.first_median = learnt["tpot"], learnt["ttft"]
        return rows


def _expected(server: TwinServer, window: ScrapeWindow, curve: LatencyCurve) -> dict[str, tuple[Level, float, float]]:
    """By metric: what is known of the server's level, and the median and mean (ms) that the window should show at its slowness."""
    rate, slow = window.arrivals / window.seconds, server.level.median
    # a first token that waits for a place in the batch waits for those before it to finish
    queue_ms = 1e3 * window.queued * window.seconds / window.finished if window.finished else 0.0
    median_ms, mean_ms = (max(float(curve.slowed(f"{statistic}_ttft_ms", rate, slow)), queue_ms) for statistic in ("median", "mean"))
    return {
        "tpot": (server.level, curve.tpot_ms(window.decoding, "median"), curve.tpot_ms(window.decoding)),
        "ttft": (server.first_median, median_ms, mean_ms),
    }


def _step(server: TwinServer, scrape: Snapshot | str, alerts: list[str]) -> ScrapeWindow | None:
    if isinstance(scrape, str):
        server.missed += 1
        if server.missed == SILENT_AFTER or (server.last is None and server.missed == 1):
            alerts.append(f"{server.url}: silent ({scrape})")
        return None
    back = server.missed >= SILENT_AFTER
    server.missed, last, server.last = 0, server.last, scrape
    if last is None:
        return None
    window = window_between(last, scrape)
    if window is None:
        alerts.append(f"{server.url}: restarted; its counters start from zero")
    elif back:
        alerts.append(f"{server.url}: answers again")
    return window

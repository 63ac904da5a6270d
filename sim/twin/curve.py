"""Latency against request rate of one replica, simulated once for the lengths that a server sees and looked up from then on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cost.rates import RateDraws
from sim.rates.serving import HostRates
from sim.results.metrics import summarise
from sim.study.deployment import Deployment
from sim.study.simulate import requests_of
from sim.study.studied import Study
from sim.workload.workload import Workload

Floats = NDArray[np.float64]
LOADS = (0.02, 0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95)  # of the most requests that the replica finishes
REQUESTS, NEAR_FULL, WAVES = 400, 0.75, 2  # requests of a point, four times as many near the capacity; of a closed loop, times its clients
MOST_LEFT = 0.01  # share of a prompt that is computed even where all is found
CLIENTS = 2  # step of closed loops, up to the batch cap
STATISTICS = ("mean", "std", "median", "p90", "p95", "p99")
METRICS = ("ttft", "tpot", "e2el")
FIGURES = tuple(f"{statistic}_{metric}_ms" for metric in METRICS for statistic in STATISTICS)


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """Figures of `vllm bench serve`, in ms, at ascending rates in requests/s; `capacity_per_s` is what a full replica finishes."""

    prompt_tokens: float
    output_tokens: float
    rates_per_s: Floats
    figures: Mapping[str, Floats]
    capacity_per_s: float
    decoding: Floats  # mean number of requests that decode, ascending, in closed loops
    tpot: Mapping[str, Floats]  # "mean" and "median" TPOT in ms there
    cached_share: float = 0.0  # of the prompt tokens, found in the prefix cache

    def at(self, figure: str, rate_per_s: float | Floats) -> Floats:
        """The figure in ms, log-linear between rates; at the capacity and beyond, that of a replica just below it."""
        return np.asarray(np.exp(np.interp(rate_per_s, self.rates_per_s, np.log(np.maximum(self.figures[figure], 1e-6)))))

    def tpot_ms(self, decoding: float, statistic: str = "mean") -> float:
        """Time per output token where so many requests decode. It needs no rate, so it holds for a queue that grows, too."""
        return float(np.interp(decoding, self.decoding, self.tpot[statistic]))

    def slowed(self, figure: str, rate_per_s: float | Floats, slowness: float | Floats) -> Floats:
        """The figure on a server that takes `slowness` times as long for everything.

        Such a server is the simulated one on a clock that runs slower: arrivals come `slowness` times as fast on that clock.
        """
        return np.asarray(slowness * self.at(figure, np.asarray(rate_per_s) * slowness))

    def full(self, rate_per_s: float | Floats, slowness: float | Floats) -> NDArray[np.bool_]:
        """Whether the queue of such a server grows without end."""
        return np.asarray(np.asarray(rate_per_s) * slowness > self.capacity_per_s)

    def serves(self, prompt_tokens: float, output_tokens: float, within: float = 0.1, cached_share: float = 0.0) -> bool:
        """Whether the lengths, and what prefill is left of the prompts, are those of the curve to this share."""
        left = (1.0 - cached_share, max(1.0 - self.cached_share, MOST_LEFT))
        pairs = (left, (prompt_tokens, self.prompt_tokens), (output_tokens, self.output_tokens))
        return all(math.isnan(seen) or abs(seen / mine - 1.0) <= within for seen, mine in pairs)


def latency_curve(
    deployment: Deployment,
    rates: RateDraws,
    host: HostRates,
    prompt_tokens: float,
    output_tokens: float,
    length_cv: float = 0.0,
    cached_share: float = 0.0,
) -> LatencyCurve:
    """Simulate one replica at LOADS of its capacity, at the median rates. UsageError where the lengths do not fit.

    `cached_share` of the mean prompt is a beginning that all share, found in the prefix cache but for the first time.
    """
    if deployment.limits.enable_prefix_caching is False:
        cached_share = 0.0
    shared = round(prompt_tokens * cached_share)
    lengths = {
        "prefix_len": shared,
        "input_len": max(1, round(prompt_tokens - shared)),
        "output_len": max(1, round(output_tokens)),
        "length_cv": length_cv,
    }

    def figures_of(count: int, rate_per_s: float = math.inf, clients: int | None = None) -> dict[str, float | int]:
        load = Workload.drawn(count, request_rate=rate_per_s, max_concurrency=clients, **lengths)  # type: ignore[arg-type]
        return summarise(next(requests_of(Study(deployment, load, rates, host, {}), [None])), {})

    cap = deployment.batch_limits()[0]
    clients = [CLIENTS**power for power in range(20) if CLIENTS**power < cap] + [cap]
    loops = [figures_of(WAVES * n, clients=n) for n in clients]
    decoding = [each["request_throughput"] * (each["mean_e2el_ms"] - each["mean_ttft_ms"]) / 1e3 for each in loops]
    capacity = float(max(each["request_throughput"] for each in loops))
    at = np.array([load * capacity for load in LOADS])
    found = [figures_of(REQUESTS * (4 if load > NEAR_FULL else 1), rate) for load, rate in zip(LOADS, at, strict=True)]
    return LatencyCurve(
        prompt_tokens,
        output_tokens,
        at,
        {name: np.array([float(each[name]) for each in found]) for name in FIGURES},
        capacity,
        np.maximum.accumulate(np.array(decoding, float)),
        {name: np.array([float(each[f"{name}_tpot_ms"]) for each in loops]) for name in ("mean", "median")},
        cached_share,
    )

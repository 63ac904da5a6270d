"""Servers whose requests a simulation decided beforehand: what their /metrics say at any second, and when they broke an SLO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cost.rates import RateDraws
from sim.rates.serving import HostRates
from sim.study.deployment import Deployment
from sim.study.run import Study
from sim.study.simulate import requests_of
from sim.workload.workload import Workload

Floats = NDArray[np.float64]
# vLLM's own buckets, seconds
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
E2EL = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)


@dataclass(frozen=True)
class ScriptedServer:
    """Requests of one server [request], seconds of the wall clock and tokens; all times of a server that is `slowness` times slower."""

    arrival_s: Floats
    scheduled_s: Floats
    first_s: Floats
    finish_s: Floats
    prompt: Floats
    output: Floats

    @classmethod
    def of(
        cls, deployment: Deployment, rates: RateDraws, host: HostRates, load: tuple[Floats, Floats, Floats], slowness: float
    ) -> ScriptedServer:
        """Simulated on a clock that is `slowness` times slower: everything takes that much longer. `load` is arrivals, prompts, outputs."""
        at, prompt, output = load
        workload = Workload.from_arrays((at / slowness).tolist(), prompt.astype(int).tolist(), output.astype(int).tolist())
        found = next(requests_of(Study(deployment, workload, rates, host, {}), [None])).requests
        times = [np.asarray(found[f"{name}_s"], float) * slowness for name in ("arrival", "scheduled", "first_token", "finish")]
        return cls(*times, *(np.asarray(found[f"{name}_tokens"], float) for name in ("prompt", "output")))

    @property
    def ttft_s(self) -> Floats:
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        return (self.finish_s - self.first_s) / np.maximum(self.output - 1, 1)

    def metrics(self, at_s: float) -> str:
        """What vLLM would say then."""
        begun, ended = self.first_s <= at_s, self.finish_s <= at_s
        share = np.clip((at_s - self.first_s) / np.maximum(self.finish_s - self.first_s, 1e-9), 0.0, 1.0)
        written = np.where(begun, 1 + np.floor((self.output - 1) * share), 0.0)
        placed = self.scheduled_s <= at_s
        rows = [
            f"vllm:num_requests_running {(placed & ~ended).sum()}",
            f"vllm:num_requests_waiting {((self.arrival_s <= at_s) & ~placed).sum()}",
            "vllm:kv_cache_usage_perc 0.1",
            f"vllm:prompt_tokens_total {self.prompt[begun].sum():.0f}",
            f"vllm:generation_tokens_total {written.sum():.0f}",
            f"vllm:request_success_total {ended.sum()}",
        ]
        rows += _histogram("time_to_first_token_seconds", TTFT, self.ttft_s[begun])
        rows += _histogram("request_time_per_output_token_seconds", TPOT, self.tpot_s[ended])
        rows += _histogram("e2e_request_latency_seconds", E2EL, (self.finish_s - self.arrival_s)[ended])
        return "\n".join(rows)


def broken_at(servers: list[ScriptedServer], ttft_s: float, tpot_s: float, minute_s: float = 60.0) -> float:
    """End of the first minute in which p95 over all servers' requests that arrived in it lies above a limit; inf for never."""
    arrival, ttft, tpot = (np.concatenate([getattr(s, name) for s in servers]) for name in ("arrival_s", "ttft_s", "tpot_s"))
    for minute in range(int(arrival.max() // minute_s)):
        here = (arrival >= minute * minute_s) & (arrival < (minute + 1) * minute_s)
        if here.sum() >= 20 and (np.quantile(ttft[here], 0.95) > ttft_s or np.quantile(tpot[here], 0.95) > tpot_s):
            return (minute + 1) * minute_s
    return float("inf")


def arrivals(rate_at: Callable[[Floats], Floats], most_per_s: float, seconds: float, rng: np.random.Generator) -> Floats:
    """A Poisson process of this rate (requests/s at seconds), by thinning."""
    at = np.cumsum(rng.exponential(1 / most_per_s, int(seconds * most_per_s * 1.2) + 100))
    at = at[at < seconds]
    return at[rng.random(len(at)) < rate_at(at) / most_per_s]


def _histogram(name: str, bounds: tuple[float, ...], values: Floats) -> list[str]:
    ordered = np.sort(values)
    counts = np.searchsorted(ordered, bounds, side="right")
    rows = [f'vllm:{name}_bucket{{le="{bound}"}} {count}' for bound, count in zip(bounds, counts, strict=True)]
    return [*rows, f'vllm:{name}_bucket{{le="+Inf"}} {len(values)}', f"vllm:{name}_sum {values.sum():.6f}"]

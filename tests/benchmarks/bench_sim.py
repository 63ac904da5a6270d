"""Speed and memory of the simulator: `make bench-sim`.

Llama-3.1-8B on H100s (declared priors), 512 tokens in and 128 out unless said otherwise. Each case runs in a fresh process; its peak
memory is that process's, its time the CPU time of building the run and simulating it, arrivals already drawn. Where a router looks at
load, a run is clients, router, API servers and engines; else bars are for engines that are given their arrivals, and the time of whole
runs is shown beside them. Bars are for a machine that takes REFERENCE_S for twenty million integer additions; each process times these
beside its case, and times are scaled by them. `pricing` is the share of the time that the cost of iterations takes (sim.cost), from a
profiled run.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import json
import math
import pstats
import resource
import subprocess
import sys
import time
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster.clock import Clock
from sim.cluster.pools import DECODE, PREFILL, Pool
from sim.cluster.replica import SteppedEngine
from sim.cluster.router import make_router
from sim.cluster.simulation import simulate, simulate_pools
from sim.cost.iteration import IterationCost, StepTime
from sim.engine.array_engine import ArrayEngine
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.registry import make_scheduler
from sim.rates.priors import prior_rates
from sim.rates.serving import HostRates
from sim.results.record import RunRecord
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.memory import block_bytes, device_memory
from sim.ticks import ARRIVAL, DECISION, to_ticks
from sim.workload.content import SystemPrompt
from sim.workload.sources import TraceSource
from sim.workload.synthetic import Synthetic, draw
from sim.workload.trace import Trace
from tests.simulate.runs import run_fast

DAY_S = 86_400.0
REFERENCE_S = 1.43
ADDITIONS = compile("total = 0\nfor i in range(5_000_000):\n    total += i", "additions", "exec")


@dataclass(frozen=True)
class Case:
    """A workload and the bar it has to clear (seconds, megabytes of peak memory)."""

    requests: int
    rate_per_s: float
    bar_s: float | None = None
    bar_mb: float | None = None
    replicas: int = 1
    router: str = "round-robin"
    prefix_tokens: int = 0
    day: bool = False
    prefill: int = 0  # so many of the replicas compute prompts only

    @property
    def long(self) -> bool:
        """Whether it is run once, and not profiled."""
        return self.bar_s is not None and self.bar_s > 30


EIGHT = {"replicas": 8, "prefix_tokens": 256}
CASES = {
    "1,000 at 2/s": Case(1_000, 2.0),
    "1,000 at 20/s": Case(1_000, 20.0),
    "10,000 at 2/s": Case(10_000, 2.0, 0.25),
    "10,000 at 20/s": Case(10_000, 20.0, 0.2),
    "100,000 at 80/s, 4 replicas, 256-token prefix": Case(100_000, 80.0, 3.0, 200, replicas=4, prefix_tokens=256),
    "100,000 at 160/s, 8 replicas, prefix-affinity": Case(100_000, 160.0, 8.0, 600, 8, "prefix-affinity", 256),
    "100,000 at 160/s, 8 replicas, lmetric": Case(100_000, 160.0, 8.0, 600, 8, "lmetric", 256),
    "100,000 at 100/s, 4 prefill and 4 decode": Case(100_000, 100.0, 15.0, None, 8, "least-requests", prefill=4),
    "125,000 at 1280/s, 64 replicas": Case(125_000, 1280.0, None, None, 64, "least-requests"),
    "250,000 at 1280/s, 64 replicas": Case(250_000, 1280.0, None, None, 64, "least-requests"),
    "125,000 at 640/s, 32 replicas": Case(125_000, 640.0, None, None, 32, "least-requests"),
    "125,000 at 160/s, 8 replicas": Case(125_000, 160.0, None, None, 8, "least-requests"),
    "1,000,000 at 1280/s, 64 replicas": Case(1_000_000, 1280.0, 120.0, 2000, 64, "least-requests"),
    "1,000,000 over a day": Case(1_000_000, 1e6 / DAY_S, 25.0, 600, day=True),
}
GROUPS = 16  # system prompts, where there are any behind a router that looks at them

# a workload, and clients with one request in flight each (None: as many as come)
CLIENT_CASES: dict[str, tuple[Synthetic, int | None]] = {
    "10,000 in a closed loop of 64 clients": (Synthetic(10_000, 512, 128, rate_per_s=math.inf), 64),
    "10,000 in sessions of 4 turns, 20/s, 2 s between": (Synthetic(10_000, 512, 128, turns=4, think_s=2.0, rate_per_s=20.0), None),
    "10,000 in a closed loop of 256, lengths vary": (Synthetic(10_000, 512, 128, length_cv=1.0, rate_per_s=math.inf), 256),
}


def deployment() -> tuple[EngineConfig, IterationCost]:
    """The engine's limits and its step times."""
    model, gpu, precision = get_model("llama-3.1-8b"), get_gpu("h100"), Precision()
    budget = 8192
    blocks = int(device_memory(model, gpu, precision, token_budget=budget).free // block_bytes(model, precision, 16)[0])
    config = EngineConfig(
        num_gpu_blocks=blocks, max_num_seqs=256, max_num_batched_tokens=budget, max_model_len=min(model.max_context, 131072)
    )
    return config, IterationCost(model, precision, prior_rates(gpu, precision, draws=2).point)


def workload(case: Case, rng: np.random.Generator) -> Trace:
    """Poisson arrivals; the day's rate swings by 60 % around its mean, its lengths are log-normal."""
    count = case.requests
    arrival_s = np.cumsum(rng.exponential(1.0 / case.rate_per_s, count))
    prompt, output = np.full(count, 512), np.full(count, 128)
    if case.day:
        # invert the cumulated rate 1 - 0.6*cos(2*pi*t/day)
        t = np.linspace(0.0, DAY_S, 100_001)
        done = t - 0.6 * DAY_S / (2 * np.pi) * np.sin(2 * np.pi * t / DAY_S)
        arrival_s = np.interp(arrival_s, done, t)
        prompt = np.clip(rng.lognormal(np.log(600), 1.0, count), 1, 16_000).astype(np.int64)
        output = np.clip(rng.lognormal(np.log(120), 0.9, count), 1, 2_000).astype(np.int64)
    groups = 1 if case.router == "round-robin" else GROUPS
    texts = [SystemPrompt(f"system {group}", case.prefix_tokens) if case.prefix_tokens else None for group in range(groups)]
    ids = [str(i) for i in range(count)]
    contents = [texts[group] for group in rng.integers(groups, size=count).tolist()]
    return Trace(arrival_s, prompt, output, np.zeros(count), ids, [None] * count, [0] * count, contents)


def additions_s() -> float:
    """CPU seconds of twenty million integer additions."""
    began = time.process_time()
    for _ in range(4):
        exec(ADDITIONS, {})
    return time.process_time() - began


class Alone:
    """An engine that is given its requests when they arrive, and the times of their first tokens, counted from then."""

    def __init__(self, engine: ArrayEngine) -> None:
        self.ttft_s = array("d")
        self._engine = engine
        self._go = engine.run(self, 0, lambda request, place: None, 0).send
        self._wait = self._go(None)  # type: ignore[arg-type]  # as a generator begins

    def arrive(self, request: Request) -> None:
        """Let everything happen that is decided before, then queue the request."""
        now, wait, go = to_ticks(request.arrival_s), self._wait, self._go
        while wait is not None and (wait[0] < now or (wait[0] == now and wait[1] < ARRIVAL)):
            wait = go(wait[0])
        sooner = self._engine.add(request, now)
        self._wait = (now, DECISION) if wait is None else sooner or wait

    def drain(self) -> None:
        """Let everything happen."""
        while self._wait is not None:
            self._wait = self._go(self._wait[0])

    def scheduled(self, request: Request, ticks: int) -> None:
        pass

    def first_token(self, request: Request, replica: int, end_s: float, place: int) -> None:
        self.ttft_s.append(end_s - request.arrival_s)

    def last_token(self, request: Request, end_s: float, place: int) -> None:
        pass


def engines_alone(
    requests: Iterable[Request], shared: Mapping[str, int], config: EngineConfig, steps: StepTime, replicas: int
) -> NDArray[np.float64]:
    """Times to first tokens of requests that engines are given in turn."""
    engines = [Alone(ArrayEngine(config, steps, shared, {})) for _ in range(replicas)]
    for engine, request in zip(itertools.cycle(engines), requests, strict=False):
        engine.arrive(request)
    for engine in engines:
        engine.drain()
    return np.concatenate([engine.ttft_s for engine in engines])


def whole_run(case: Case, trace: Trace, config: EngineConfig, steps: StepTime) -> NDArray[np.float64]:
    """Times to first tokens of clients."""
    if case.prefill:
        record: RunRecord | None = disaggregated(case, trace, config, steps)
    else:
        router = make_router(case.router, case.replicas, config.block_size, config.num_gpu_blocks)
        record = run_fast(trace, config, steps, HostRates(), case.replicas, router=router)
    assert record is not None
    return np.subtract(record.requests["first_token_s"], record.requests["arrival_s"])


def disaggregated(case: Case, trace: Trace, config: EngineConfig, steps: StepTime) -> RunRecord:
    """The run on prefill and decode replicas, KV over links of 50 GB/s."""
    source, token_bytes = TraceSource(trace, config.block_size), block_bytes(steps.model, Precision(), 1)[0]
    pools = [
        Pool(
            [ArrayEngine(config, steps, {}, {}) for _ in range(replicas)],
            make_router(case.router, replicas, config.block_size, config.num_gpu_blocks),
            HostRates(),
            role=role,
            kv_tokens=config.kv_capacity_tokens,
            kv_bytes=lambda tokens: tokens * token_bytes,
            nic_bytes_per_s=50e9,
        )
        for role, replicas in ((PREFILL, case.prefill), (DECODE, case.replicas - case.prefill))
    ]
    return simulate_pools(source, pools, keep_iterations=False, clock=Clock())


def measure(case: Case, profile: bool, whole: bool) -> dict[str, float]:
    """Run the case here: seconds as scaled and as taken, megabytes, and what it found; of a profiled run the share of pricing."""
    config, cost = deployment()
    trace = workload(case, np.random.default_rng(0))
    source = TraceSource(trace, config.block_size)
    shared, requests = source.shared_blocks(), source.arrivals() if case.day else list(source.arrivals())
    before_s = additions_s()
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    began = time.process_time()
    if whole or case.router != "round-robin":
        ttft_s = whole_run(case, trace, config, cost.steps)
    else:
        ttft_s = engines_alone(requests, shared, config, cost.steps, case.replicas)
    took_s = time.process_time() - began
    profiler.disable()
    return {
        "took_s": took_s,
        "scaled_s": took_s * 2 * REFERENCE_S / (before_s + additions_s()),
        "pricing": _pricing(profiler) if profile else math.nan,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ttft_p99_ms": float(1e3 * np.percentile(ttft_s, 99)),
    }


def _pricing(profiler: cProfile.Profile) -> float:
    """Share of the time in functions of sim.cost but the API server's."""
    rows = [(file, own) for (file, _, _), (_, _, own, _, _) in pstats.Stats(profiler).stats.items()]  # type: ignore[attr-defined]
    return sum(own for file, own in rows if "/sim/cost/" in file and "api_server" not in file) / sum(own for _, own in rows)


def measure_clients(name: str) -> dict[str, float]:
    """Run a case whose arrivals depend on finishes here, on the fast path and on the event loop; the same requests, or it fails."""
    spec, clients = CLIENT_CASES[name]
    config, cost = deployment()
    trace = draw(spec, np.random.default_rng(0))
    began = time.process_time()
    fast = run_fast(trace, config, cost.steps, HostRates(), max_concurrency=clients)
    took_s = time.process_time() - began
    began = time.process_time()
    slow = stepped(trace, config, cost, clients)
    loop_s = time.process_time() - began
    assert fast is not None
    np.testing.assert_array_equal(fast.requests["finish_s"], slow.requests["finish_s"])
    return {"took_s": took_s, "loop_s": loop_s, "requests": len(trace)}


def stepped(trace: Trace, config: EngineConfig, cost: IterationCost, clients: int | None) -> RunRecord:
    """The same run, iteration by iteration."""
    engine = SteppedEngine(make_scheduler(config), cost)
    return simulate(TraceSource(trace, config.block_size), [engine], host=HostRates(), max_concurrency=clients, keep_iterations=False)


def main() -> None:
    """Print a line per case; with --case, measure that one here and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=[*CASES, *CLIENT_CASES])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--repeats", type=int, default=3, help="runs per case; the fastest counts")
    parser.add_argument("--whole", action="store_true", help="clients and API server, too")
    options = parser.parse_args()
    if options.case:
        case = CASES.get(options.case)
        print(json.dumps(measure(case, options.profile, options.whole) if case else measure_clients(options.case)))
        return

    def run(name: str, *more: str) -> dict[str, float]:
        command = [sys.executable, "-m", "tests.benchmarks.bench_sim", "--case", name, *more]
        found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return found

    print(f"{'case':46} {'CPU s':>8} {'scaled s':>9} {'bar':>5} {'whole run':>10} {'pricing':>8} {'peak MB':>8} {'bar':>5}  verdict")
    for name, case in CASES.items():
        best = min((run(name) for _ in range(1 if case.long else options.repeats)), key=lambda found: found["scaled_s"])
        whole = best if case.router != "round-robin" else run(name, "--whole")
        pricing = math.nan if case.day or case.long else run(name, "--profile")["pricing"]
        missed = (case.bar_s and best["scaled_s"] > case.bar_s) or (case.bar_mb and best["peak_mb"] > case.bar_mb)
        verdict = "-" if case.bar_s is None else "MISSED" if missed else "met"
        print(
            f"{name:46} {best['took_s']:8.3f} {best['scaled_s']:9.3f} {case.bar_s or '-':>5} {whole['scaled_s']:10.3f} "
            f"{pricing:8.0%} {best['peak_mb']:8,.0f} {case.bar_mb or '-':>5}  {verdict}",
            flush=True,
        )
    print(f"\n{'arrivals that depend on finishes':46} {'CPU s':>8} {'requests/s':>11} {'event loop CPU s':>17} {'times':>6}")
    for name in CLIENT_CASES:
        found = run(name)
        rate, times = found["requests"] / found["took_s"], found["loop_s"] / found["took_s"]
        print(f"{name:46} {found['took_s']:8.3f} {rate:11,.0f} {found['loop_s']:17.2f} {times:6.0f}", flush=True)


if __name__ == "__main__":
    main()

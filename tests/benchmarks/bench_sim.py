"""How fast the simulator is, and how much memory it takes: `make bench-sim`.

Llama-3.1-8B on one H100 (declared priors), 512 tokens in and 128 out unless said otherwise. Each case runs in a fresh
process, its peak memory is that process's; the time is that of building the run and simulating it, arrivals already
drawn.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np

from sim.engine.config import EngineConfig
from sim.engine.fast import FastReplica
from sim.engine.fast_books import Arrivals
from sim.engine.presets import make_scheduler
from sim.engine.steptime import StepTime
from sim.host import HostRates
from sim.memory import device_memory, kv_block_count
from sim.precision import Precision
from sim.priors import prior_rates
from sim.serve_fast import run_fast_clients
from sim.simulation import simulate
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.stepcost import BillCost
from sim.workload.sources import TraceSource
from sim.workload.synthetic import Synthetic, draw

DAY_S = 86_400.0


@dataclass(frozen=True)
class Case:
    """A workload and the bar it has to clear (seconds, megabytes of peak memory)."""

    requests: int
    rate_per_s: float
    bar_s: float | None = None
    bar_mb: float | None = None
    replicas: int = 1
    prefix_tokens: int = 0
    day: bool = False


CASES = {
    "1,000 at 2/s": Case(1_000, 2.0),
    "1,000 at 20/s": Case(1_000, 20.0),
    "10,000 at 2/s": Case(10_000, 2.0, bar_s=0.5),
    "10,000 at 20/s": Case(10_000, 20.0, bar_s=0.3),
    "100,000 at 80/s, 4 replicas, 256-token prefix": Case(100_000, 80.0, bar_s=4.0, bar_mb=400, replicas=4, prefix_tokens=256),
    "1,000,000 over a day": Case(1_000_000, 1e6 / DAY_S, bar_s=40.0, bar_mb=1500, day=True),
}


# a workload, and clients with one request in flight each (None: as many as come)
CLIENT_CASES: dict[str, tuple[Synthetic, int | None]] = {
    "10,000 in a closed loop of 64 clients": (Synthetic(10_000, 512, 128, rate_per_s=math.inf), 64),
    "10,000 in sessions of 4 turns, 20/s, 2 s between": (Synthetic(10_000, 512, 128, turns=4, think_s=2.0, rate_per_s=20.0), None),
    "10,000 in a closed loop of 256, lengths vary": (Synthetic(10_000, 512, 128, length_cv=1.0, rate_per_s=math.inf), 256),
}


def deployment() -> tuple[EngineConfig, StepTime]:
    """The engine's limits and its step times."""
    model, gpu, precision = get_model("llama-3.1-8b"), get_gpu("h100"), Precision()
    budget = 8192
    blocks = kv_block_count(device_memory(model, gpu, precision, token_budget=budget), model, precision, 16)
    config = EngineConfig(
        num_gpu_blocks=blocks, max_num_seqs=256, max_num_batched_tokens=budget, max_model_len=min(model.max_context, 131072)
    )
    return config, StepTime(model, precision, prior_rates(gpu, precision, draws=2).point)


def workload(case: Case, rng: np.random.Generator) -> Arrivals:
    """Poisson arrivals; the day's rate swings by 60 % around its mean, its lengths are log-normal."""
    gaps = rng.exponential(1.0 / case.rate_per_s, case.requests)
    arrival_s = np.cumsum(gaps)
    prompt = np.full(case.requests, 512)
    output = np.full(case.requests, 128)
    if case.day:
        # invert the cumulated rate 1 - 0.6*cos(2*pi*t/day)
        t = np.linspace(0.0, DAY_S, 100_001)
        done = t - 0.6 * DAY_S / (2 * np.pi) * np.sin(2 * np.pi * t / DAY_S)
        arrival_s = np.interp(arrival_s, done, t)
        prompt = np.clip(rng.lognormal(np.log(600), 1.0, case.requests), 1, 16_000).astype(np.int64)
        output = np.clip(rng.lognormal(np.log(120), 0.9, case.requests), 1, 2_000).astype(np.int64)
    shared = tuple(range(case.prefix_tokens // 16))
    return Arrivals(arrival_s, prompt, output, [shared] * case.requests if shared else ())


def every(arrivals: Arrivals, replicas: int, index: int) -> Arrivals:
    """The share of one of `replicas` replicas behind a round-robin router."""
    return Arrivals(
        arrivals.arrival_s[index::replicas],
        arrivals.prompt_tokens[index::replicas],
        arrivals.output_tokens[index::replicas],
        arrivals.hashes[index::replicas],
    )


def measure(case: Case) -> dict[str, float]:
    """Run the case here; seconds, iterations, megabytes and what it found."""
    config, steps = deployment()
    arrivals = workload(case, np.random.default_rng(0))
    began, began_cpu = time.perf_counter(), time.process_time()
    iterations, ttft = 0, []
    for index in range(case.replicas):
        share = every(arrivals, case.replicas, index)
        record = FastReplica(share, config, steps).run()
        iterations += record.iterations
        ttft.append(record.first_token_s - np.asarray(share.arrival_s))
    return {
        "wall_s": time.perf_counter() - began,
        "took_s": time.process_time() - began_cpu,
        "iterations": iterations,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ttft_p99_ms": float(1e3 * np.percentile(np.concatenate(ttft), 99)),
    }


def measure_clients(name: str) -> dict[str, float]:
    """Run a case whose arrivals depend on finishes here, on the fast path and on the event loop; the same requests, or it fails."""
    spec, clients = CLIENT_CASES[name]
    config, steps = deployment()
    trace = draw(spec, np.random.default_rng(0))
    began = time.process_time()
    fast = run_fast_clients(trace, config, steps, HostRates(), clients)
    took_s = time.process_time() - began
    assert fast is not None
    model, gpu, precision = get_model("llama-3.1-8b"), get_gpu("h100"), Precision()
    cost = BillCost(model, precision, prior_rates(gpu, precision, draws=2).point)
    began = time.process_time()
    source, scheduler = TraceSource(trace, config.block_size), make_scheduler(config)
    slow = simulate(source, [scheduler], cost, host=HostRates(), max_concurrency=clients, keep_iterations=False)
    loop_s = time.process_time() - began
    np.testing.assert_array_equal(fast.requests["finish_s"], slow.requests["finish_s"])
    return {"took_s": took_s, "loop_s": loop_s, "requests": len(trace)}


def main() -> None:
    """Print a line per case; with --case, measure that one here and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=[*CASES, *CLIENT_CASES])
    parser.add_argument("--repeats", type=int, default=3, help="runs per case; the fastest counts")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(CASES[options.case]) if options.case in CASES else measure_clients(options.case)))
        return
    print(f"{'case':46} {'wall s':>8} {'CPU s':>8} {'bar':>5} {'iterations/s':>13} {'requests/s':>11} {'peak MB':>8} {'bar':>5}  verdict")
    for name, case in CASES.items():
        command = [sys.executable, "-m", "tests.benchmarks.bench_sim", "--case", name]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(1 if case.day else options.repeats)
        ]
        best = min(runs, key=lambda run: run["took_s"])
        missed = (case.bar_s and best["took_s"] > case.bar_s) or (case.bar_mb and best["peak_mb"] > case.bar_mb)
        verdict = "-" if case.bar_s is None else "MISSED" if missed else "met"
        print(
            f"{name:46} {best['wall_s']:8.3f} {best['took_s']:8.3f} {case.bar_s or '-':>5} {best['iterations'] / best['took_s']:13,.0f} "
            f"{case.requests / best['took_s']:11,.0f} {best['peak_mb']:8,.0f} {case.bar_mb or '-':>5}  {verdict}",
            flush=True,
        )
    print(f"\n{'arrivals that depend on finishes':46} {'CPU s':>8} {'requests/s':>11} {'event loop CPU s':>17} {'times':>6}")
    for name in CLIENT_CASES:
        command = [sys.executable, "-m", "tests.benchmarks.bench_sim", "--case", name]
        run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rate, times = run["requests"] / run["took_s"], run["loop_s"] / run["took_s"]
        print(f"{name:46} {run['took_s']:8.3f} {rate:11,.0f} {run['loop_s']:17.2f} {times:6.0f}", flush=True)


if __name__ == "__main__":
    main()

"""Where the engine is a textbook queue, the simulated mean is the textbook's: M/D/1, M/M/1-PS, and Little's law from
the event log.

Each figure is a mean over independent seeds with a Student interval at 99 %; the theory has to lie inside, and the
interval has to be narrow enough to mean something.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Request
from sim.engine.schedulers import VllmScheduler
from sim.ticks import TICKS_PER_S
from tests.examples import examples
from tests.runs import AffinePrice, run, serve, trace_of

T_99 = 3.2498  # Student's t, 9 degrees of freedom, two-sided 99 %
SEEDS = range(10)


def interval(means: list[float]) -> tuple[float, float]:
    """Mean and half-width of the 99 % interval over ten seeds."""
    assert len(means) == 10
    return float(np.mean(means)), float(T_99 * np.std(means, ddof=1) / np.sqrt(10))


def served(arrival_s: NDArray[np.float64], output: NDArray[np.int64], seqs: int, ticks_of: Callable[[Iteration], int]):
    """Columns of the requests."""
    config = EngineConfig(max_num_seqs=seqs, max_num_batched_tokens=8192, num_gpu_blocks=50_000, enable_prefix_caching=False)
    requests = [Request(str(i), float(t), 1, int(n)) for i, (t, n) in enumerate(zip(arrival_s, output, strict=True))]
    return serve(requests, VllmScheduler(config), ticks_of).requests


@pytest.mark.parametrize(("load", "count"), [(0.5, 1500), (0.8, 3000)])
def test_one_slot_and_equal_requests_wait_as_in_m_d_1(load: float, count: int) -> None:
    service_s = 0.25

    def one(seed: int) -> float:
        gaps = np.random.default_rng(seed).exponential(service_s / load, count)
        arrival_s = np.cumsum(gaps)
        record = served(arrival_s, np.ones(count, dtype=np.int64), 1, lambda _: TICKS_PER_S // 4)
        return float(np.mean((record["scheduled_s"] - arrival_s)[count // 10 :]))

    mean, half = interval([one(seed) for seed in SEEDS])
    theory = load * service_s / (2 * (1 - load))
    assert half < 0.2 * theory
    assert abs(mean - theory) < half


@pytest.mark.parametrize("sizes", ["exponential", "equal"])
def test_steps_as_long_as_their_batch_share_the_processor(sizes: str) -> None:
    # every resident request gets one token per iteration and an iteration takes one quantum per request: processor
    # sharing, whose mean time in the system depends on the sizes' mean alone
    load, mean_tokens, count = 0.6, 60, examples(700)
    quantum_ticks = TICKS_PER_S // 1000
    mean_s = mean_tokens / 1000

    def share(iteration: Iteration) -> int:
        return quantum_ticks * len(iteration.scheduled)

    def one(seed: int) -> float:
        rng = np.random.default_rng(100 + seed)
        arrival_s = np.cumsum(rng.exponential(mean_s / load, count))
        tokens = rng.geometric(1 / mean_tokens, count) if sizes == "exponential" else np.full(count, mean_tokens)
        record = served(arrival_s, tokens, 4096, share)
        return float(np.mean((record["finish_s"] - arrival_s)[count // 10 :]))

    mean, half = interval([one(seed) for seed in SEEDS])
    theory = mean_s / (1 - load)
    assert half < 0.2 * theory
    assert abs(mean - theory) < half


def test_littles_law_from_the_event_log() -> None:
    # The scheduler's own counts at every decision, integrated over time, against arrival rate x mean time from the
    # first decision that could see the request to its last token, which is booked per request: two books, one law.
    rng = np.random.default_rng(7)
    # arrivals on the clock's grid, so that an idle engine's next decision is at the arrival and not a rounding
    # before it
    arrivals = np.rint(np.cumsum(rng.exponential(0.02, 800)) * 2**30) / 2**30
    calls = [(float(t), int(rng.integers(1, 90)), int(rng.integers(1, 30))) for t in arrivals]
    config = EngineConfig(num_gpu_blocks=14, max_num_seqs=6, max_num_batched_tokens=64, max_model_len=4096)
    record, _ = run(trace_of(calls), config, AffinePrice(0.002, 0.0001))
    log, requests = record.iterations, record.requests
    in_system = log["running"] + log["waiting"]
    integral = float((in_system * log["duration_s"]).sum())
    starts = log["start_s"]
    arrival_s, finish_s = np.asarray(requests["arrival_s"]), np.asarray(requests["finish_s"])
    seen_s = starts[np.searchsorted(starts, arrival_s, side="left")]
    span_s = float(finish_s.max() - arrival_s.min())
    rate_per_s = len(arrival_s) / span_s
    assert np.asarray(requests["preemptions"]).sum() > 0
    assert integral / span_s == pytest.approx(rate_per_s * float((finish_s - seen_s).mean()), rel=1e-9)

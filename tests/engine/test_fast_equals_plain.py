"""The fast replica gives the plain one's results to the last tick: times, preemptions, cached tokens, iterations."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sim.engine.boost import NO_BOOST, Boost
from sim.engine.config import EngineConfig
from sim.engine.fast import FastReplica
from sim.engine.fast_books import Arrivals
from sim.engine.overlap import NO_WORK, HostWork
from sim.engine.plain import run_plain
from sim.engine.presets import make_scheduler
from sim.engine.records import ReplicaRecord
from sim.engine.steptime import StepTime
from sim.engine.types import Request
from sim.precision import Precision
from tests.price.shapes import HYBRID_MOE, QWEN_7B, plausible_rates

SYNC = {"async_scheduling": False}
# steps take about 10 ms: host work that hides behind the GPU, work that shows in some iterations, work that takes longer than the GPU
WORK = (NO_WORK, HostWork(1e-3, 2e-5, 1e-3, 9e-3), HostWork(5e-3, 5e-4, 4e-3), HostWork(0.02, 0.0, 0.0))
# a GPU that never rests, one whose rest lasts for a few iterations and comes back slowly, one that is rested again after every iteration
BOOSTS = (NO_BOOST, Boost(0.3, 0.02, 0.1), Boost(0.1, 0.01, 3.0))
STEPS = [
    StepTime(model, Precision(), plausible_rates(), host=host, boost=boost)
    for model in (QWEN_7B, HYBRID_MOE)
    for host, boost in zip(WORK, (*BOOSTS, BOOSTS[1]), strict=True)
]


def plain(config: EngineConfig, requests: list[Request], steps: StepTime) -> ReplicaRecord:
    return run_plain(requests, make_scheduler(config), steps.iteration, steps.host, steps.products_of, steps.boost)


def fast(config: EngineConfig, requests: list[Request], steps: StepTime) -> ReplicaRecord:
    arrivals = Arrivals(
        [r.arrival_s for r in requests],
        [r.prompt_tokens for r in requests],
        [r.output_tokens for r in requests],
        [r.prompt_hashes for r in requests],
    )
    return FastReplica(arrivals, config, steps).run()


def same(one: ReplicaRecord, other: ReplicaRecord) -> None:
    for column in fields(ReplicaRecord):
        np.testing.assert_array_equal(getattr(one, column.name), getattr(other, column.name), column.name)


@st.composite
def workloads(draw: st.DrawFn, caching: bool, overlap: bool = False) -> tuple[EngineConfig, list[Request]]:
    block_size = draw(st.sampled_from([1, 4, 16]))
    requests: list[Request] = []
    now = 0.0
    for index in range(draw(st.integers(1, 25))):
        # steps take about 10 ms: arrivals fall into the middle of stretches, on top of one another, and into idle time
        now += draw(st.sampled_from([0.0, 0.0, 1e-4, 0.013, 0.1, 0.7, 5.0]))
        text, shared = draw(st.integers(0, 2)), draw(st.integers(0, 6))
        prompt = draw(st.integers(1, 12 * block_size)) + shared * block_size
        output = draw(st.integers(1, 6 * block_size + 8))
        follows = draw(st.none() | st.integers(0, index - 1)) if index else None
        full = (prompt + output) // block_size
        hashes = [(text, i) if i < shared else (-1 - index, i) for i in range(full)]
        if follows is not None and draw(st.booleans()):
            before = requests[follows]
            hashes = [*before.prompt_hashes, *((index, -1 - i) for i in range(1 + full))]
            prompt = before.prompt_tokens + before.output_tokens + draw(st.integers(1, 3 * block_size))
            hashes = hashes[: (prompt + output) // block_size]
        requests.append(Request(str(index), now, prompt, output, hashes if caching else ()))
    longest = max(request.prompt_tokens + request.output_tokens for request in requests)
    chunked = draw(st.sampled_from([True, True, False]))
    max_num_seqs = draw(st.integers(1, 12))
    config = EngineConfig(
        num_gpu_blocks=-(-longest // block_size) + 1 + draw(st.sampled_from([0, 1, 3, 10, 30, 1000])),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, draw(st.integers(4, 300) | st.integers(600, 2000)) if chunked else longest),
        max_model_len=longest,
        enable_prefix_caching=caching,
        enable_chunked_prefill=chunked,
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        reserve_full_prompt=draw(st.booleans()),
        options={"async_scheduling": overlap},
    )
    return config, requests


@settings(max_examples=250, deadline=None, derandomize=True)
@given(workloads(caching=False), st.sampled_from(STEPS))
def test_without_prefix_caching_kv_starvation_included(case: tuple[EngineConfig, list[Request]], steps: StepTime) -> None:
    config, requests = case
    quick = fast(config, requests, steps)
    same(quick, plain(config, requests, steps))
    event("preempts" if quick.preemptions.any() else "no preemption")


@settings(max_examples=350, deadline=None, derandomize=True)
@given(workloads(caching=True), st.sampled_from(STEPS))
def test_with_prefix_caching_hits_and_evictions_included(case: tuple[EngineConfig, list[Request]], steps: StepTime) -> None:
    config, requests = case
    slow = plain(config, requests, steps)
    same(fast(config, requests, steps), slow)
    event("hits" if slow.cached_tokens.any() else "no hits")
    event("preempts" if slow.preemptions.any() else "no preemption")


@settings(max_examples=350, deadline=None, derandomize=True)
@given(st.booleans().flatmap(lambda caching: workloads(caching, overlap=True)), st.sampled_from(STEPS))
def test_with_iterations_decided_ahead(case: tuple[EngineConfig, list[Request]], steps: StepTime) -> None:
    config, requests = case
    slow = plain(config, requests, steps)
    same(fast(config, requests, steps), slow)
    event("hits" if slow.cached_tokens.any() else "no hits")
    event("preempts" if slow.preemptions.any() else "no preemption")


def test_a_block_that_a_decode_fills_lets_the_queue_in_at_once() -> None:
    # 11 blocks of 4. The first request ends with 10 full blocks; the second repeats them and needs 11. It arrives
    # while the tenth is being filled and has to wait, until the very iteration that fills it: the first request's
    # last, not the one after.
    steps = STEPS[0]
    config = EngineConfig(num_gpu_blocks=12, block_size=4, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, options=SYNC)
    hashes = [("text", i) for i in range(10)]

    def case(arrival_s: float) -> list[Request]:
        return [Request("writer", 0.0, 4, 37, hashes), Request("reader", arrival_s, 42, 1, hashes)]

    end_s = float(plain(config, case(0.0)[:1], steps).finish_s[0])
    requests = case(end_s * 33.2 / 37)
    slow = plain(config, requests, steps)
    assert slow.scheduled_s[1] < slow.finish_s[0] - 1e-6
    assert slow.scheduled_s[1] > end_s * 35 / 37
    assert slow.cached_tokens[1] == 40
    same(fast(config, case(end_s * 33.2 / 37), steps), slow)


def test_a_place_that_frees_behind_a_decision_is_seen_by_the_next_arrival() -> None:
    # two slots; the first request leaves while the next iteration is already decided, and the third arrives long after
    config = EngineConfig(max_num_seqs=2, max_model_len=256, options={"async_scheduling": True})

    def case() -> list[Request]:
        return [Request("a", 0.0, 40, 3), Request("b", 0.0, 50, 23), Request("c", 0.1, 82, 19)]

    same(fast(config, case(), STEPS[0]), plain(config, case(), STEPS[0]))


def test_a_decode_fills_a_block_before_a_prompt_of_the_same_iteration_does() -> None:
    # The last request repeats the text of the fifth, which is still writing it; both fill a block of it in one iteration.
    # Preempted later, the last one finds the fifth's copy, which is in use: its own stays behind, to be evicted.
    asks = [(0.0, 217, 65), (0.0, 37, 45), (0.0, 188, 8), (0.7, 182, 84), (1.4, 253, 54), (1.5, 12, 1), (2.2, 379, 23)]
    config = EngineConfig(
        num_gpu_blocks=30, max_num_seqs=12, max_num_batched_tokens=12, max_model_len=457, reserve_full_prompt=False, options={}
    )

    def case() -> list[Request]:
        texts = [0, 1, 2, 3, 4, 5, 4]
        return [
            Request(str(row), at, prompt, output, [(texts[row], i) for i in range((prompt + output) // 16)])
            for row, (at, prompt, output) in enumerate(asks)
        ]

    slow = plain(config, case(), STEPS[0])
    assert slow.preemptions[6] == 1
    same(fast(config, case(), STEPS[0]), slow)

"""Beside totals, the log keeps who computed which chunk of prefill, who was set back, and what kept waiting requests out."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings

from sim.cluster.network import NetworkSpec
from sim.cluster.pools import DECODE, PREFILL, Pool
from sim.cluster.replica import Change, SteppedEngine
from sim.cluster.router import make_router
from sim.cluster.simulation import simulate, simulate_pools
from sim.engine.config import EngineConfig
from sim.engine.interface import BLOCKS, BUDGET, SLOTS, Iteration, StepPrice
from sim.engine.registry import make_scheduler
from sim.rates.serving import HostRates
from sim.results.record import AT_ENGINE, HANDED_OVER, PREEMPTED, REPLICA_FAILED, SUBMITTED_AGAIN
from sim.workload.sources import TraceSource
from sim.workload.synthetic import Synthetic, draw
from tests.examples import examples
from tests.runs import AffinePrice, calls, configs, run, trace_of

HOST = HostRates(request_s=0.002, prompt_token_s=0.0, response_s=0.004, serial_s=0.001)


@dataclass
class Watching(AffinePrice):
    """The price, keeping what each iteration was about to compute beside one token of all that decode."""

    seen: list[tuple[str, int, int]] = field(default_factory=list)

    def __call__(self, iteration: Iteration, head_start: int = 0) -> StepPrice:
        for request, tokens in iteration.scheduled:
            start = request.computed_tokens
            if start < max(request.prompt_tokens, request.known_tokens - 1):
                self.seen.append((request.request_id, tokens, start + tokens))
        return super().__call__(iteration, head_start)


@given(calls, configs)
@settings(max_examples=examples(100))
def test_chunks_are_what_is_computed_beside_decodes(requests, config):
    price = Watching()
    config = replace(config, options={"async_scheduling": False})
    record, _ = run(trace_of(requests), config, price)
    chunks = {name: values.astype(int).tolist() for name, values in record.chunks.items()}
    ids = [record.request_ids[row] for row in chunks["chunk_request"]]
    rows = list(zip(ids, chunks["chunk_tokens"], chunks["chunk_end"], strict=True))
    prompts = dict(zip(record.request_ids, record.requests["prompt_tokens"].tolist(), strict=True))
    # the last token of a resumed request looks like a decode's, and is none
    resumed = [row for row in rows if row[1] == 1 and row[2] > prompts[row[0]]]
    assert [row for row in rows if row not in resumed] == price.seen
    assert {name for name, _, _ in resumed} <= {
        name for name, n in zip(record.request_ids, record.requests["preemptions"], strict=True) if n
    }
    assert (np.diff(chunks["chunk_iteration"]) >= 0).all()
    lost = [record.request_ids[int(row)] for row in record.events["event_request"][record.events["event_kind"] == PREEMPTED]]
    assert {name: lost.count(name) for name in set(lost)} == {
        name: count for name, count in zip(record.request_ids, record.requests["preemptions"].tolist(), strict=True) if count
    }


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_every_prompt_token_is_in_a_chunk_or_was_cached(engine):
    config = EngineConfig(engine, num_gpu_blocks=300, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=1000)
    trace = draw(Synthetic(60, 120, 20, length_cv=0.7, prefix_tokens=40, rate_per_s=20.0), np.random.default_rng(2))
    record = simulate(TraceSource(trace, 16), [SteppedEngine(make_scheduler(config), AffinePrice())])
    computed = np.bincount(record.chunks["chunk_request"].astype(int), record.chunks["chunk_tokens"])
    calm = record.requests["preemptions"] == 0
    assert calm.sum() > 20
    np.testing.assert_array_equal((computed + record.requests["cached_tokens"])[calm], record.requests["prompt_tokens"][calm])


def test_times_on_the_way_to_the_engine():
    # two requests at one instant share the server's millisecond each; then 2 ms, and 4 ms of their tokens' way back
    record, _ = run(trace_of([(1.0, 20, 3)] * 2), EngineConfig(num_gpu_blocks=64), host=HOST, router=make_router(
        "round-robin", 1, 16, 10, {"dispatch_s": 0.05}))  # fmt: skip
    requests = record.requests
    assert requests["reached_s"] == pytest.approx([1.05, 1.05], abs=1e-12)
    assert requests["submitted_s"] == pytest.approx([1.054, 1.054], abs=1e-12)
    for sampled, had in (("first_sampled_s", "first_token_s"), ("last_sampled_s", "finish_s")):
        assert requests[had] - requests[sampled] == pytest.approx([0.004] * 2, abs=1e-12)
        assert set(requests[sampled]) <= set(record.iterations["start_s"] + record.iterations["duration_s"])


@pytest.mark.parametrize(
    ("limits", "lacks"),
    [
        ({"max_num_batched_tokens": 32}, BUDGET),
        ({"max_num_seqs": 1}, SLOTS),
        ({"num_gpu_blocks": 6}, BLOCKS),
        ({"max_num_batched_tokens": 40, "enable_chunked_prefill": False}, BUDGET),
    ],
)
def test_what_a_waiting_request_lacks(limits, lacks):
    config = replace(EngineConfig(num_gpu_blocks=64, max_num_seqs=8, max_model_len=40, options={"async_scheduling": False}), **limits)
    record, _ = run(trace_of([(0.0, 32, 3)] * 3), config)
    log = record.iterations
    assert log["waiting"][0] > 0
    assert log["short_of"][0] == lacks
    np.testing.assert_array_equal(log["short_of"] > 0, log["waiting"] > 0)


def test_a_request_that_moves_to_another_replica_keeps_its_first_times():
    engines = [SteppedEngine(make_scheduler(EngineConfig(num_gpu_blocks=40)), AffinePrice()) for _ in range(2)]
    record = simulate(TraceSource(trace_of([(0.0, 20, 30)] * 2), 16), engines, changes=[Change(0.2, 1, "fail")], host=HOST)
    kinds, replicas, times = (record.events[f"event_{name}"] for name in ("kind", "replica", "s"))
    moved = np.isin(kinds, (REPLICA_FAILED, SUBMITTED_AGAIN))
    assert list(zip(kinds[moved], replicas[moved], strict=True)) == [(REPLICA_FAILED, 1), (SUBMITTED_AGAIN, 0)]
    assert times[moved] == pytest.approx([0.2, 0.2 + 0.003], abs=1e-12)
    assert record.requests["submitted_s"] == pytest.approx([0.003] * 2, abs=1e-12)


@pytest.mark.parametrize("name", ["prefix-affinity", "unified"])
def test_affinity_and_fallback_are_told_apart(name):
    engines = [SteppedEngine(make_scheduler(EngineConfig(num_gpu_blocks=2000)), AffinePrice()) for _ in range(3)]
    trace = draw(Synthetic(60, 64, 16, turns=4, think_s=0.5, rate_per_s=2.0), np.random.default_rng(1))
    record = simulate(TraceSource(trace, 16), engines, router=make_router(name, 3, 16, 2000))
    assert set(record.decision_names) == {"affinity", "fallback"}
    requests = record.requests
    decisions = [record.decision_names[place] for place in requests["decision"]]
    where = {(s, turn): at for s, turn, at in zip(record.session_ids, requests["turn"], requests["replica"], strict=True)}
    for session, turn, at, decision in zip(record.session_ids, requests["turn"], requests["replica"], decisions, strict=True):
        earlier = {where[session, before] for before in range(int(turn))}
        assert decision == "fallback" or at in earlier  # where it sticks, its session has been
    assert 0.5 < np.mean([decision == "affinity" for decision in decisions]) / 0.75 < 1.0  # of the turns that follow others


def test_a_prompt_is_handed_over_from_its_prefill_replica_to_its_decode_replica():
    def pool(role):
        engine = SteppedEngine(make_scheduler(EngineConfig(num_gpu_blocks=64)), AffinePrice())
        return Pool([engine], make_router("random", 1, 16, 64), role=role)

    pools, network = [pool(PREFILL), pool(DECODE)], NetworkSpec(latency_s=0.25)
    record = simulate_pools(TraceSource(trace_of([(0.0, 50, 5)]), 16), pools, network=network)
    kinds, replicas, times = (record.events[f"event_{name}"].tolist() for name in ("kind", "replica", "s"))
    assert list(zip(kinds, replicas, strict=True)) == [
        (AT_ENGINE, 0), (HANDED_OVER, 0), (AT_ENGINE, 1), (SUBMITTED_AGAIN, 1)
    ]  # fmt: skip
    assert times == pytest.approx([0.0, 0.06, 0.06, 0.06 + 0.25])
    # all of the prompt where it is computed, and its last token again where it is not
    assert record.chunks["chunk_tokens"].tolist() == [50, 1]
    assert record.requests["first_sampled_s"] == pytest.approx([0.31 + 0.011])


def test_without_an_iteration_log_there_are_no_rows():
    record, _ = run(trace_of([(0.0, 20, 3)]), EngineConfig(num_gpu_blocks=64), keep_iterations=False)
    assert not len(record.chunks["chunk_tokens"])
    assert np.isfinite(record.requests["submitted_s"]).all()

"""The parts of a request's TTFT and E2EL add up to them to the last tick, none is negative, and each iteration is in the right one."""

from collections import defaultdict
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sim.cluster.clients import Retries
from sim.cluster.network import NetworkSpec
from sim.cluster.pools import DECODE as DECODES
from sim.cluster.pools import PREFILL as PREFILLS
from sim.cluster.pools import Pool
from sim.cluster.replica import Change, SteppedEngine
from sim.cluster.router import ROUTERS, make_router
from sim.cluster.simulation import simulate, simulate_pools
from sim.engine.config import EngineConfig
from sim.engine.registry import make_scheduler
from sim.rates.serving import HostRates
from sim.results.explain import Explanation, explained
from sim.results.record import RunRecord
from sim.results.timeline import AGAIN, DECODE, LOST_WORK, PREFILL, timeline
from sim.ticks import to_ticks
from sim.workload.sources import TraceSource
from sim.workload.trace import TraceBuilder
from tests.engine.test_engine_in_rows_equals_event_loop import Case, Transferring, cases
from tests.examples import examples
from tests.runs import AffinePrice, calls, configs, run, trace_of

HOST = HostRates(request_s=0.001, response_s=0.004, serial_s=0.002, token_s=1e-4)
COMPUTES = {PREFILL, LOST_WORK, AGAIN, DECODE}


def check(record: RunRecord) -> list[Explanation]:
    """Every request of the run that was let in, explained."""
    columns, found = record.requests, []
    if not len(record.iterations["start_s"]):
        return found  # all gave up on their way
    for row in np.flatnonzero(np.isfinite(columns["finish_s"]) | np.isfinite(columns["cancelled_s"]) | (columns["rejected"] == 5)).tolist():
        one = explained(record, row)
        sent, had_first, finish = (columns[name][row] for name in ("arrival_s", "first_token_s", "finish_s"))
        if one.finished:
            assert one.ticks("ttft") == to_ticks(had_first) - to_ticks(sent)
            assert one.ticks("e2el") == to_ticks(finish) - to_ticks(sent)
        elif np.isfinite(columns["cancelled_s"][row]):
            assert one.ticks("e2el") == to_ticks(columns["cancelled_s"][row]) - to_ticks(sent)
        for part in (*one.ttft, *one.e2el):
            assert part.ticks >= 0
            for split in (part.why, part.whose, part.terms):
                assert min(split.values(), default=0) >= 0
                assert not split or sum(split.values()) == part.ticks
        others = sum(part.whose.get("others", 0) for part in one.e2el)
        assert to_ticks(sum(each.ttft_s + each.decode_s for each in one.beside)) <= others * (1 + 1e-9) + to_ticks(1e-9)
        found.append(one)
    return found


def note(found: list[Explanation]) -> None:
    for stage in sorted({part.stage for one in found for part in (*one.ttft, *one.e2el) if part.ticks}):
        event(stage)


def logged(case: Case) -> RunRecord:
    """A run of a case of the engine in rows's test, on the event loop and with its log."""
    config = case.config
    return simulate(
        Transferring(case.trace, config.block_size, case.transferred),
        [SteppedEngine(make_scheduler(config), cost) for cost in case.costs],
        router=make_router(case.router, len(case.costs), config.block_size, config.num_gpu_blocks, case.router_options),
        host=case.host,
        max_concurrency=case.clients,
        changes=case.changes,
    )


@settings(max_examples=examples(150))
@given(cases())
def test_of_sessions_prefixes_routers_servers_and_overlapped_engines(case):
    note(check(logged(case)))


@settings(max_examples=examples(80))
@given(
    calls,
    st.sampled_from(["vllm", "sglang", "llamacpp"]),
    st.sampled_from([{}, {"draft_tokens": 3, "async_scheduling": False}, {"draft_tokens": 2, "drafter": "draft_model"}]),
    st.integers(14, 60),
    st.integers(1, 5),
    st.booleans(),
)
def test_of_every_engine_and_of_drafts(requests, engine, drafts, blocks, seqs, hosted):
    if engine == "llamacpp":
        config = EngineConfig(engine, num_gpu_blocks=200, max_num_seqs=4, max_num_batched_tokens=48, max_model_len=200)
    else:
        options = drafts if engine == "vllm" else {}
        config = EngineConfig(
            engine, num_gpu_blocks=blocks, max_num_seqs=seqs, max_num_batched_tokens=48, max_model_len=400, options=options
        )
    engines = [SteppedEngine(make_scheduler(config), AffinePrice()) for _ in range(2)]
    note(check(simulate(TraceSource(trace_of(requests), 16), engines, host=HOST if hosted else HostRates())))


@settings(max_examples=examples(150))
@given(
    calls,
    st.lists(st.sampled_from([0.01, 0.1, 0.3, 1.0, 5.0, float("inf")]), min_size=25, max_size=25),
    st.booleans(),
    st.sampled_from([(), (Change(0.4, 1, "fail"), Change(0.6, 0, "fail"), Change(0.9, 2, "start"))]),
    st.booleans(),
    st.sampled_from(list(ROUTERS)),
)
def test_of_clients_that_give_up_and_replicas_that_fail(given_calls, patience, ahead, changes, loses, router):
    builder = TraceBuilder("test")
    for i, ((arrival_s, prompt, output), cancel_s) in enumerate(zip(sorted(given_calls), patience, strict=False)):
        builder.add(f"call {i}", arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output, cancel_s=cancel_s)
    config = EngineConfig(
        num_gpu_blocks=30, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=400, options={"async_scheduling": ahead}
    )
    pool = Pool([SteppedEngine(make_scheduler(config), AffinePrice()) for _ in range(3)], make_router(router, 3, 16, 60), HOST)
    record = simulate_pools(TraceSource(builder.build(), 16), [pool], changes=list(changes), loses=loses, retries=Retries(1, 0.1))
    note(check(record))


@settings(max_examples=examples(100))
@given(calls, st.floats(0.0, 2.0), st.integers(0, 3), st.sampled_from(["fail", "drain"]), st.booleans())
def test_of_prompts_that_are_handed_over(requests, at_s, replica, action, ahead):
    def pool(role):
        config = EngineConfig(num_gpu_blocks=40, max_num_seqs=4, max_num_batched_tokens=64, options={"async_scheduling": ahead})
        engines = [SteppedEngine(make_scheduler(config), AffinePrice()) for _ in range(2)]
        return Pool(
            engines, make_router("random", 2, 16, 64), HOST, role=role, kv_tokens=400, kv_bytes=lambda n: 1e6 * n, nic_bytes_per_s=1e9
        )

    pools, changes = [pool(PREFILLS), pool(DECODES)], [Change(at_s, replica, action)]
    note(check(simulate_pools(TraceSource(trace_of(requests), 16), pools, network=NetworkSpec(latency_s=0.01), changes=changes)))


def watched(scheduler):
    """The scheduler, and by request the numbers of its iterations in which it computed, and in which it sampled."""
    computed, sampled, complete = defaultdict(list), defaultdict(list), scheduler.complete

    def tell(iteration):
        outcome, number = complete(iteration), next(numbers)
        for request, _ in iteration.scheduled:
            computed[request.request_id].append(number)
        for request in outcome.sampled:
            sampled[request.request_id].append(number)
        return outcome

    numbers, scheduler.complete = count(), tell
    return scheduler, computed, sampled


ENGINES = {
    "vllm": {"options": {"async_scheduling": False}},
    "vllm, ahead": {"options": {"async_scheduling": True}},
    "vllm, drafting": {"options": {"async_scheduling": False, "draft_tokens": 3}, "num_gpu_blocks": 40},
    "sglang": {"scheduler": "sglang", "options": {"overlap_schedule": False}, "max_num_batched_tokens": 48, "num_gpu_blocks": 20},
    "llamacpp": {"scheduler": "llamacpp", "options": {}, "num_gpu_blocks": 200, "max_num_seqs": 4, "max_model_len": 200},
}


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=examples(100))
@given(requests=calls, config=configs, hosted=st.booleans())
def test_a_request_computes_in_the_iterations_that_say_so_and_in_no_other(engine, requests, config, hosted):
    scheduler, computed, sampled = watched(make_scheduler(replace(config, **ENGINES[engine])))
    record = simulate(TraceSource(trace_of(requests), 16), [SteppedEngine(scheduler, AffinePrice())], host=HOST if hosted else HostRates())
    for row, name in enumerate(record.request_ids):
        stages = {piece.iteration: piece.stage for piece in timeline(record, row).pieces if piece.iteration >= 0}
        assert [k for k, stage in stages.items() if stage in COMPUTES] == computed[name]
        assert {k for k, stage in stages.items() if stage == DECODE} <= set(sampled[name][1:])
        assert set(sampled[name][1:]) <= {k for k, stage in stages.items() if stage in (DECODE, AGAIN)}
        assert sampled[name][0] == max(k for k, stage in stages.items() if stage in (PREFILL, LOST_WORK))


def by_stage(record, row, latency="ttft"):
    return {part.stage: part for part in getattr(explained(record, row), latency)}


def ticks_of(**ms):
    """Every iteration rounds to a tick: half of one each, of twenty at most."""
    return pytest.approx({name: to_ticks(value / 1e3) for name, value in ms.items()}, abs=10)


def test_a_queue_by_hand():
    """A budget of 40 tokens, 10 ms an iteration and 1 ms per token; the third request comes 5 ms after the first two.

    from   ms   computed
    0      50   a 40 of 60
    50     50   a 20, b 20 of 70
    100    50   a 1, b 39
    150    32   a 1, b 11, c 10
    """
    config = EngineConfig(num_gpu_blocks=64, max_num_seqs=4, max_num_batched_tokens=40, options={"async_scheduling": False})
    record, _ = run(trace_of([(0.0, 60, 4), (0.0, 70, 4), (0.005, 10, 4)]), config)
    a, b, c = (by_stage(record, row) for row in range(3))
    assert {stage: part.ticks for stage, part in a.items()} == ticks_of(prefill=100, response=0)
    assert a["prefill"].whose == ticks_of(own=50 + 25, others=25)
    assert {stage: part.ticks for stage, part in b.items()} == ticks_of(queue=50, prefill=132, response=0)
    assert b["queue"].why == ticks_of(budget=50)
    assert {stage: part.ticks for stage, part in c.items()} == ticks_of(queue=145, prefill=32, response=0)
    assert c["queue"].why == ticks_of(under_way=45, budget=100)
    assert c["queue"].whose == ticks_of(others=45 + 50 + 50 * 39 / 40, decodes=50 / 40)
    assert c["queue"].terms == ticks_of(fixed=9 + 10 + 10, tokens=36 + 40 + 40)
    assert c["prefill"].whose == ticks_of(own=320 / 22, others=32 * 11 / 22, decodes=32 / 22)
    beside = {each.request_id: each for each in explained(record, 2).beside}
    assert (beside["0"].tokens, beside["1"].tokens) == (60, 70)
    assert 1e3 * beside["0"].ttft_s == pytest.approx(45 + 25)
    assert 1e3 * beside["1"].ttft_s == pytest.approx(25 + 50 * 39 / 40 + 16)


def test_a_preemption_by_hand():
    """Four blocks of 16 tokens, two requests of 30: both decode until each needs a third block, then the second waits for the first to end.

    ms        first            second
    70        30 of prompt     30 of prompt
    2 x 12    tokens 2, 3      tokens 2, 3
    17 x 11   tokens 4 to 20   preempted
    43                         its 33 tokens again, token 4
    16 x 11                    tokens 5 to 20
    """
    config = EngineConfig(
        num_gpu_blocks=5, max_num_seqs=2, max_num_batched_tokens=64, enable_prefix_caching=False, max_model_len=64,
        options={"async_scheduling": False},
    )  # fmt: skip
    record, _ = run(trace_of([(0.0, 30, 20), (0.0, 30, 20)]), config)
    parts = by_stage(record, 1, "e2el")
    expected = ticks_of(prefill=70, decode=2 * 12 + 16 * 11, preempted=17 * 11, recompute=43, response=0)
    assert {stage: part.ticks for stage, part in parts.items()} == expected
    assert parts["prefill"].whose == ticks_of(own=35, others=35)
    assert parts["preempted"].whose == ticks_of(decodes=17 * 11)
    assert parts["recompute"].whose == ticks_of(own=43)
    assert [parts[stage].iterations for stage in ("decode", "preempted", "recompute")] == [18, 17, 1]

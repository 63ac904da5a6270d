"""At one instant, iterations complete, then requests arrive, then schedulers decide."""

from sim.cluster.clock import CLIENTS, Clock
from sim.engine.config import EngineConfig
from sim.ticks import ARRIVAL, COMPLETION, DECISION
from tests.runs import AffinePrice, run, trace_of


def test_events_of_one_instant_run_by_rank_then_age():
    clock, seen = Clock(), []
    for name, rank in (("decide", DECISION), ("arrive 1", ARRIVAL), ("complete", COMPLETION), ("arrive 2", ARRIVAL)):
        clock.call(7, rank, CLIENTS, seen.append, name)
    clock.run()
    assert seen == ["complete", "arrive 1", "arrive 2", "decide"]
    assert clock.now == 7


def test_a_request_that_arrives_as_an_iteration_ends_joins_the_next_one():
    # an iteration of 1 token takes exactly 0.25 s
    price = AffinePrice(fixed_s=0.125, token_s=0.125)
    config = EngineConfig(num_gpu_blocks=64, max_num_seqs=2, max_num_batched_tokens=4)
    record, _ = run(trace_of([(0.0, 1, 3), (0.25, 1, 1)]), config, price)
    assert record.requests["scheduled_s"].tolist() == [0.0, 0.25]
    assert record.iterations["scheduled"].tolist() == [1, 2, 1]


def test_it_also_finds_the_place_that_the_completion_freed():
    price = AffinePrice(fixed_s=0.125, token_s=0.125)
    config = EngineConfig(num_gpu_blocks=64, max_num_seqs=1, max_num_batched_tokens=4)
    record, _ = run(trace_of([(0.0, 1, 1), (0.25, 1, 1)]), config, price)
    assert record.requests["scheduled_s"].tolist() == [0.0, 0.25]
    assert record.iterations["waiting"].tolist() == [0, 0]


def test_all_arrivals_of_an_instant_are_seen_by_its_decision():
    config = EngineConfig(num_gpu_blocks=64, max_num_seqs=8, max_num_batched_tokens=64)
    record, _ = run(trace_of([(0.1, 4, 2)] * 5), config)
    assert record.iterations["scheduled"].tolist() == [5, 5]

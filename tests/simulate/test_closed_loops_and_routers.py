"""Closed loops keep their concurrency; routers choose by their formulas; nothing is lost on the way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.replica import SteppedEngine
from sim.cluster.router import ROUTERS, Load, SentBlocks, least_requests, lmetric, make_router, prefix_affinity
from sim.cluster.simulation import simulate
from sim.engine.config import EngineConfig
from sim.engine.vllm import VllmScheduler
from sim.errors import UsageError
from sim.workload.sources import TraceSource
from sim.workload.synthetic import Synthetic, draw
from tests.simulate.runs import AffinePrice, calls, configs, run, trace_of


def in_flight(record):
    """Most requests in flight at any time, a finish counting before a send of the same instant."""
    times = [(t, 1) for t in record.requests["arrival_s"]] + [(t, -1) for t in record.requests["finish_s"]]
    return max(np.cumsum([step for _, step in sorted(times)]))


@given(calls, configs, st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_a_closed_loop_never_exceeds_its_clients(requests, config, clients):
    record, _ = run(trace_of(requests), config, max_concurrency=clients)
    assert in_flight(record) <= clients


def test_a_closed_loop_keeps_its_clients_busy():
    trace = trace_of([(0.0, 20, 5)] * 12)
    record, _ = run(trace, EngineConfig(num_gpu_blocks=64), max_concurrency=3)
    assert in_flight(record) == 3
    # sent when a place is free: each send after the first three is somebody's finish
    later = np.sort(record.requests["arrival_s"])[3:]
    assert set(later) <= set(record.requests["finish_s"])


def test_zero_clients_is_an_error():
    with pytest.raises(UsageError, match="max concurrency"):
        run(trace_of([(0.0, 1, 1)]), EngineConfig(), max_concurrency=0)


def loads(*states):
    return [Load(*state) for state in states]


def test_least_requests_counts_requests_and_breaks_ties_by_index():
    assert least_requests(loads((2,), (1,), (1,)), [0] * 3, [10] * 3) == 1


def test_lmetric_is_work_ahead_times_sharers():
    # (100 + 64 + .01 * 0) * 1 = 164; (0 + 64 + .01 * 2000) * 2 = 168; (0 + 64 + .01 * 3000) * 1 = 94
    assert lmetric(loads((1, 100, 0), (2, 0, 2000), (1, 0, 3000)), [0] * 3, [64] * 3) == 2
    # an idle replica counts as one request, so its score is not nought whatever it must compute
    assert lmetric(loads((0, 500, 0), (1, 0, 0)), [0] * 2, [64] * 2) == 1


def test_affinity_sticks_until_overloaded():
    assert prefix_affinity(loads((3,), (3,), (3,)), [0, 4, 0], [80, 16, 80]) == 1
    assert prefix_affinity(loads((3,), (9,), (3,)), [0, 4, 0], [80, 16, 80]) == 0
    assert prefix_affinity(loads((3,), (3,), (3,)), [0, 0, 0], [80] * 3) == 0


@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), max_size=6, unique=True)), max_size=30),
    st.lists(st.integers(0, 9), max_size=6),
)
def test_blocks_sent_are_those_of_a_list_for_each_replica(sends, asked):
    blocks, latest = SentBlocks(3, capacity=5), [[], [], []]
    for replica, names in sends:
        blocks.send(names, replica)
        latest[replica] = [*(each for each in latest[replica] if each not in names), *names][-5:]
    expected = [next((depth for depth, name in enumerate(asked) if name not in each), len(asked)) for each in latest]
    assert blocks.known(asked) == expected


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_serves_everything_and_settles_its_books(name):
    spec = Synthetic(60, 50, 12, length_cv=0.5, prefix_tokens=40, turns=3, think_s=0.05, rate_per_s=40.0)
    trace = draw(spec, np.random.default_rng(5))
    config = EngineConfig(num_gpu_blocks=200, max_num_seqs=4, max_num_batched_tokens=64)
    router = make_router(name, 3, 16, 200)
    schedulers = [VllmScheduler(config) for _ in range(3)]
    record = simulate(TraceSource(trace, 16), [SteppedEngine(each, AffinePrice()) for each in schedulers], router=router)
    assert np.isfinite(record.requests["finish_s"]).all()
    assert set(record.requests["replica"]) == {0, 1, 2}
    assert sum(scheduler.kv_blocks_used() for scheduler in schedulers) == 0
    for load in getattr(router, "_loads", ()):
        assert (load.requests, load.pending_prefill_tokens, load.ongoing_tokens) == (0, 0, 0)


def test_affinity_keeps_sessions_on_their_replica():
    spec = Synthetic(60, 64, 16, turns=4, think_s=0.5, rate_per_s=2.0)
    config = EngineConfig(num_gpu_blocks=2000, max_num_batched_tokens=512)
    reuse = {}
    for name in ("round-robin", "prefix-affinity"):
        trace = draw(spec, np.random.default_rng(1))
        engines = [SteppedEngine(VllmScheduler(config), AffinePrice()) for _ in range(3)]
        record = simulate(TraceSource(trace, 16), engines, router=make_router(name, 3, 16, 2000))
        reuse[name] = record.requests["cached_tokens"].sum()
    assert reuse["prefix-affinity"] > 1.5 * reuse["round-robin"]


def test_unknown_router():
    with pytest.raises(UsageError, match="known: round-robin"):
        make_router("best", 2, 16, 10)

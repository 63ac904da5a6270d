"""Closed loops keep their concurrency; routers choose by their formulas; nothing is lost on the way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.replica import SteppedEngine
from sim.cluster.router import ROUTERS, SentBlocks, make_router, router_options
from sim.cluster.simulation import simulate
from sim.engine.config import EngineConfig
from sim.engine.schedulers import VllmScheduler
from sim.errors import UsageError
from sim.workload.sources import TraceSource
from sim.workload.synthetic import Synthetic, draw
from tests.runs import AffinePrice, calls, configs, run, trace_of


def in_flight(record):
    """Most requests in flight at any time, a finish counting before a send of the same instant."""
    times = [(t, 1) for t in record.requests["arrival_s"]] + [(t, -1) for t in record.requests["finish_s"]]
    return max(np.cumsum([step for _, step in sorted(times)]))


@given(calls, configs, st.integers(1, 5))
@settings(max_examples=60)
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


FIRST_TAKES_TIES = ("vllm-router", "sglang-router")  # as their packages do: under a low load the last replica may get nothing
WINDOWS = ({}, {"dispatch_s": 0.03}, {"dispatch_s": 0.03, "snapshot_s": 0.25, "reserve_s": 0.03})


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_serves_everything_and_its_counts_return_to_nought(name, window):
    spec = Synthetic(60, 50, 12, length_cv=0.5, prefix_tokens=40, turns=3, think_s=0.05, rate_per_s=40.0)
    trace = draw(spec, np.random.default_rng(5))
    config = EngineConfig(num_gpu_blocks=200, max_num_seqs=4, max_num_batched_tokens=64)
    router = make_router(name, 3, 16, 200, {option: value for option, value in window.items() if option in router_options(name)})
    schedulers = [VllmScheduler(config) for _ in range(3)]
    record = simulate(TraceSource(trace, 16), [SteppedEngine(each, AffinePrice()) for each in schedulers], router=router)
    assert np.isfinite(record.requests["finish_s"]).all()
    used = set(record.requests["replica"])
    assert used == {0, 1, 2} or (name in FIRST_TAKES_TIES and used <= {0, 1, 2})
    assert sum(scheduler.kv_blocks_used() for scheduler in schedulers) == 0
    for load in getattr(router, "_loads", ()):
        left = (load,) if isinstance(load, int) else (load.requests, load.pending_prefill_tokens, load.ongoing_tokens)
        assert not any(left)


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


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("round-robin", "snapshot_s", 1.0, "round-robin has no option 'snapshot_s'; it has dispatch_s"),
        ("lmetric", "overload_factor", 1.0, "no option 'overload_factor'; it has decode_weight, idle_scores_zero"),
        ("lmetric", "idle_scores_zero", 1, "must be true or false, got 1"),
        ("lmetric", "decode_weight", "heavy", "must be a number from 0 to 1e.09, got 'heavy'"),
        ("unified", "overload_factor", True, "must be a number"),
        ("power-of-two", "seed", 0.5, "must be a whole number"),
        ("random", "dispatch_s", -1.0, "from 0 to"),
        ("least-requests", "snapshot_s", float("nan"), "from 0 to"),
        ("least-requests", "view", "later", "view must be sent or cache, got 'later'"),
    ],
)
def test_an_option_that_a_router_cannot_have(name, option, value, message):
    with pytest.raises(UsageError, match=message):
        make_router(name, 2, 16, 10, {option: value})

"""Replicas start, drain, stop and fail, each with its own engine and cost, and no request is lost on the way."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.cluster.replica import Change, SteppedEngine
from sim.cluster.router import ROUTERS, make_router, router_options
from sim.cluster.simulation import simulate
from sim.engine.config import EngineConfig
from sim.engine.registry import make_scheduler
from sim.errors import SimctlError, UsageError
from sim.workload.sources import TraceSource
from tests.runs import AffinePrice, calls, trace_of

CONFIG = EngineConfig(num_gpu_blocks=40, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=4096)


PRICES = (AffinePrice(),) * 3
READ_CACHES = ("dynamo",)  # asks each engine what its cache holds, which llama.cpp does not show


def fleet(trace, changes, prices=PRICES, router="round-robin", engine="vllm", router_options=None, **more):
    config = CONFIG if engine == "vllm" else EngineConfig(engine, num_gpu_blocks=200, max_num_seqs=4, max_model_len=400)
    engines = [SteppedEngine(make_scheduler(config), price) for price in prices]
    routes = make_router(router, len(engines), 16, 40, router_options)
    return simulate(TraceSource(trace, 16), engines, router=routes, changes=changes, **more), engines


def test_a_replica_that_starts_takes_requests_from_then_on():
    record, _ = fleet(trace_of([(0.1 * i, 20, 3) for i in range(40)]), [Change(2.0, 1, "start"), Change(3.0, 2, "start")])
    arrival_s, replica = record.requests["arrival_s"], record.requests["replica"]
    for index, since_s in ((0, 0.0), (1, 2.0), (2, 3.0)):
        assert since_s <= arrival_s[replica == index].min() < since_s + 0.4


def test_a_draining_replica_finishes_what_it_has_and_takes_no_more():
    record, engines = fleet(trace_of([(0.05 * i, 20, 30) for i in range(40)]), [Change(1.0, 0, "drain")])
    mine = record.requests["replica"] == 0
    assert record.requests["arrival_s"][mine].max() < 1.0 < record.requests["finish_s"][mine].max()
    assert (record.requests["preemptions"] == 0).all()
    assert engines[0].scheduler.unfinished() == 0


def test_what_a_failed_replica_had_goes_on_elsewhere_and_keeps_its_tokens():
    trace = trace_of([(0.0, 20, 30), (0.0, 20, 30)])
    calm, _ = fleet(trace, [], prices=[AffinePrice()] * 2)
    record, _ = fleet(trace, [Change(0.2, 1, "fail")], prices=[AffinePrice()] * 2)
    requests = record.requests
    assert requests["replica"].tolist() == [0, 0]
    assert requests["preemptions"].tolist() == [0, 1]
    assert requests["first_token_s"].tolist() == calm.requests["first_token_s"].tolist()  # sent before it failed
    assert (requests["finish_s"] > calm.requests["finish_s"]).all()
    # some tokens of the first life count, and are not sampled again: one iteration samples one of each
    assert record.iterations["sampled"].sum() == 60
    waits = np.diff(record.iterations["start_s"][record.iterations["iteration_replica"] == 1])
    assert record.stall_s.size == 1
    assert record.stall_s[0] > waits.max()


def test_all_that_a_failed_replica_had_computed_is_computed_again():
    calm, failed = (fleet(trace_of([(0.0, 20, 30), (0.0, 20, 30)]), changes, PRICES[:2])[0] for changes in ([], [Change(0.2, 1, "fail")]))
    computed = [int(record.chunks["chunk_tokens"][record.chunks["chunk_request"] == 1].sum()) for record in (calm, failed)]
    lost = int((failed.iterations["iteration_replica"] == 1).sum())  # one token each
    assert computed == [20, 20 + 20 + lost]


def test_replicas_have_costs_of_their_own():
    slow, quick = AffinePrice(fixed_s=0.1), AffinePrice()
    record, _ = fleet(trace_of([(0.0, 20, 5)] * 2), [], prices=[slow, quick])
    assert record.requests["finish_s"][0] > 3 * record.requests["finish_s"][1]


def test_without_a_replica_requests_wait_for_one():
    changes = [Change(0.5, 0, "fail"), Change(1.0, 1, "start")]
    record, _ = fleet(trace_of([(0.45, 20, 30), (0.6, 20, 3)]), changes, prices=[AffinePrice()] * 2)
    assert record.requests["replica"].tolist() == [1, 1]
    assert record.requests["scheduled_s"][1] == 1.0
    assert record.requests["arrival_s"][1] == 0.6
    with pytest.raises(SimctlError, match="2 requests unfinished"):
        fleet(trace_of([(0.45, 20, 30), (0.6, 20, 3)]), changes[:1], prices=[AffinePrice()])


def test_an_action_that_does_not_exist():
    with pytest.raises(UsageError, match="start, drain or fail"):
        Change(1.0, 0, "explode")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
@settings(max_examples=40)
@given(
    calls,
    st.sampled_from(list(ROUTERS)),
    st.none() | st.integers(1, 4),
    st.floats(0.0, 3.0),
    st.floats(0.0, 1.0),
    st.sampled_from([0, 0.3]),
)
def test_everything_finishes_whatever_fails(engine, requests, router, clients, at_s, later_s, dispatch_s):
    changes = [Change(at_s, 1, "fail"), Change(at_s + later_s, 2, "start"), Change(at_s + 2 * later_s, 0, "drain")]
    assume(engine != "llamacpp" or router not in READ_CACHES)
    options = {"dispatch_s": dispatch_s} | ({"reserve_s": dispatch_s} if "reserve_s" in router_options(router) else {})
    record, engines = fleet(trace_of(requests), changes, router=router, engine=engine, router_options=options, max_concurrency=clients)
    assert np.isfinite(record.requests["finish_s"]).all()
    assert (record.requests["generated_tokens"] == record.requests["output_tokens"]).all()
    assert (record.requests["first_token_s"] <= record.requests["finish_s"]).all()
    assert record.iterations["sampled"].sum() == record.requests["output_tokens"].sum()
    assert engines[0].scheduler.unfinished() == engines[2].scheduler.unfinished() == 0


@pytest.mark.parametrize("router", READ_CACHES)
def test_a_router_that_reads_caches_refuses_an_engine_that_shows_none(router):
    with pytest.raises(UsageError, match="does not show its prefix cache"):
        fleet(trace_of([(0.0, 1, 1)]), [], router=router, engine="llamacpp")

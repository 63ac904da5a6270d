"""Prefill replicas compute prompts, their KV crosses the network, decode replicas answer; whatever fails, nothing is lost."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.autoscale import Scaling
from sim.cluster.clients import Retries
from sim.cluster.clock import Clock, SimpyClock
from sim.cluster.network import NetworkSpec
from sim.cluster.pools import DECODE, PREFILL, KvRoom, Pool
from sim.cluster.replica import Change, SteppedEngine
from sim.cluster.router import make_router
from sim.cluster.simulation import simulate_pools
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.registry import make_scheduler
from sim.errors import SimctlError, UsageError
from sim.workload.sources import TraceSource
from tests.examples import examples
from tests.runs import AffinePrice, trace_of

CONFIG = EngineConfig(num_gpu_blocks=64, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512)


def engine():
    return SteppedEngine(make_scheduler(CONFIG), AffinePrice())


def pools(prefill=1, decode=1, router="round-robin", kv_tokens=math.inf, **more):
    given = {"kv_tokens": kv_tokens, "kv_bytes": lambda tokens: 1e6 * tokens, "spare": engine}
    return [
        Pool([engine() for _ in range(prefill)], make_router(router, prefill, 16, 64), name="p", role=PREFILL, **given, **more),
        Pool([engine() for _ in range(decode)], make_router(router, decode, 16, 64), name="d", role=DECODE, **given, **more),
    ]


def test_a_request_takes_prefill_transfer_and_decode_in_turn():
    record = simulate_pools(TraceSource(trace_of([(0.0, 50, 5)]), 16), pools(nic_bytes_per_s=100e6), network=NetworkSpec(latency_s=0.25))
    requests = record.requests
    prefill_s, transfer_s = 0.01 + 0.050, 0.25 + 50e6 / 100e6
    last_prompt_token_s = 0.01 + 0.001  # computed anew where the decode is
    assert requests["first_token_s"][0] == pytest.approx(prefill_s + transfer_s + last_prompt_token_s, abs=1e-9)
    assert requests["finish_s"][0] - requests["first_token_s"][0] == pytest.approx(4 * 0.011, abs=1e-9)
    assert requests["replica"][0] == 1
    assert requests["generated_tokens"][0] == 5
    assert record.iterations["iteration_replica"].tolist() == [0, 1, 1, 1, 1, 1]


def test_two_transfers_share_a_link():
    trace = trace_of([(0.0, 50, 2), (0.0, 50, 2)])
    apart = simulate_pools(TraceSource(trace, 16), pools(2, 2, nic_bytes_per_s=100e6))
    together = simulate_pools(TraceSource(trace, 16), pools(2, 1, nic_bytes_per_s=100e6))
    assert apart.requests["first_token_s"] == pytest.approx([0.06 + 0.5 + 0.011] * 2, abs=1e-9)
    assert together.requests["first_token_s"] == pytest.approx([0.06 + 1.0 + 0.012] * 2, abs=1e-9)


def test_layers_that_went_ahead_leave_the_last_to_send():
    trace = trace_of([(0.0, 50, 2)])
    whole = simulate_pools(TraceSource(trace, 16), pools(nic_bytes_per_s=1e9, layers=10))
    ahead = simulate_pools(TraceSource(trace, 16), pools(nic_bytes_per_s=1e9, layers=10, overlaps=True))
    assert whole.requests["first_token_s"][0] - ahead.requests["first_token_s"][0] == pytest.approx(0.045, abs=1e-9)


def test_full_decode_replicas_hold_prefill_back():
    trace = trace_of([(0.0, 60, 40)] * 12)
    free = simulate_pools(TraceSource(trace, 16), pools())
    tight = simulate_pools(TraceSource(trace, 16), pools(kv_tokens=128))
    assert tight.requests["generated_tokens"].tolist() == [40] * 12
    decodes = tight.iterations["iteration_replica"] == 1
    assert tight.iterations["running"][decodes].max() == 2 < free.iterations["running"].max()
    # the fifth prompt waits for room at the prefill replica, which is held until a decode replica has room
    assert tight.requests["scheduled_s"][4] >= tight.requests["finish_s"][0] > free.requests["scheduled_s"][4]


def test_room_is_given_in_order_and_never_beyond_its_size():
    room, came = KvRoom(100), []
    asks = [Request(str(i), 0.0, tokens, 1) for i, tokens in enumerate((60, 50, 30, 500))]
    for each in asks:
        room.enter(each, each.prompt_tokens, lambda each=each: came.append(each.request_id))
    assert came == ["0"]  # the third would fit, but is behind the second
    room.leave(asks[1])  # stops waiting
    assert came == ["0", "2"]
    room.leave(asks[0])
    assert came == ["0", "2"]
    room.leave(asks[2])
    assert came == ["0", "2", "3"]  # larger than all: alone
    room.leave(asks[3])
    for each in (Request("4", 0.0, 60, 1), Request("5", 0.0, 40, 1), Request("6", 0.0, 1, 1)):
        room.enter(each, each.prompt_tokens, lambda each=each: came.append(each.request_id))
    assert came[3:] == ["4", "5"]  # all that was held is free again


def test_a_pool_without_its_other_half():
    prefill, decode = pools()
    with pytest.raises(UsageError, match="a prefill pool needs a decode pool"):
        simulate_pools(TraceSource(trace_of([(0.0, 5, 5)]), 16), [prefill])
    with pytest.raises(UsageError, match="one decode pool at most: d and d"):
        simulate_pools(TraceSource(trace_of([(0.0, 5, 5)]), 16), [prefill, decode, decode])
    with pytest.raises(UsageError, match=r"link .* needs a bandwidth above 0"):
        simulate_pools(TraceSource(trace_of([(0.0, 5, 5)]), 16), pools(nic_bytes_per_s=0.0))


def test_prompts_go_to_the_first_pool_that_takes_their_length():
    short = Pool([engine()], make_router("round-robin", 1, 16, 64), max_prompt_tokens=20)
    long = Pool([engine()], make_router("round-robin", 1, 16, 64), max_prompt_tokens=100)
    record = simulate_pools(TraceSource(trace_of([(0.0, 20, 2), (0.1, 21, 2), (0.2, 5, 2)]), 16), [short, long])
    assert record.requests["replica"].tolist() == [0, 1, 0]
    with pytest.raises(UsageError, match="no pool takes a prompt of 101 tokens"):
        simulate_pools(TraceSource(trace_of([(0.0, 101, 2)]), 16), [short, long])


ACTIONS = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 3), st.sampled_from(["fail", "drain", "start"])), max_size=6).map(
    lambda acts: [*acts, (4.0, 0, "start"), (4.0, 2, "start")]
)
CALLS = st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(1, 90), st.integers(1, 20)), min_size=1, max_size=14).map(sorted)


@settings(max_examples=examples(2000))
@given(
    calls=CALLS,
    actions=ACTIONS,
    roles=st.booleans(),
    router=st.sampled_from(["round-robin", "prefix-affinity", "lmetric", "least-requests"]),
    kv_tokens=st.sampled_from([math.inf, 200]),
    loses=st.booleans(),
    tries=st.integers(0, 2),
    cancel_s=st.sampled_from([math.inf, 0.4]),
)
def test_whatever_starts_drains_and_fails_every_request_has_one_end(calls, actions, roles, router, kv_tokens, loses, tries, cancel_s):
    trace = trace_of(calls)
    if cancel_s < math.inf:
        trace = replace(trace, cancel_s=[cancel_s] * len(trace))
    changes = [Change(at_s, replica, action) for at_s, replica, action in actions if (at_s, action) != (0.0, "start")]
    shared = {"kv_tokens": kv_tokens, "kv_bytes": lambda tokens: 1e5 * tokens, "spare": engine, "nic_bytes_per_s": 1e7}
    made = [
        Pool(
            [engine(), engine()],
            make_router(router, 2, 16, 64, None if router == "round-robin" else {"dispatch_s": 0.01}),
            role=role,
            **shared,
        )
        for role in ((PREFILL, DECODE) if roles else ("serve", "serve"))
    ]
    record = simulate_pools(TraceSource(trace, 16), made, changes=changes, loses=loses, retries=Retries(tries, 0.1), clock=Clock())
    requests = record.requests
    done, given_up = ~np.isnan(requests["finish_s"]), ~np.isnan(requests["cancelled_s"])
    lost = requests["rejected"] == 5
    assert (done.astype(int) + given_up + lost == 1).all()
    assert (requests["generated_tokens"][done] == requests["output_tokens"][done]).all()
    assert loses or not lost.any()
    by_call: dict[str, list[int]] = {}
    for row, name in enumerate(record.request_ids):
        by_call.setdefault(name.partition(".")[0], []).append(row)
    assert len(by_call) == len(trace)
    for rows in by_call.values():  # tries follow each other until one comes through or none is left
        assert not done[rows[:-1]].any()
        assert done[rows[-1]] or len(rows) == tries + 1
    for each in made:
        for one in each.engines:
            assert one.scheduler.kv_blocks_used() >= 0
    assert (requests["first_token_s"][done] >= requests["arrival_s"][done]).all()
    assert (requests["finish_s"][done] >= requests["first_token_s"][done]).all()


def test_without_a_decode_replica_the_run_says_what_is_left():
    with pytest.raises(SimctlError, match="1 requests unfinished"):
        simulate_pools(TraceSource(trace_of([(0.0, 50, 5)]), 16), pools(), changes=[Change(0.01, 1, "fail")])


@pytest.mark.parametrize("clock", [Clock, SimpyClock])
@pytest.mark.parametrize("scaled", [[0], [0, 0]])
def test_an_autoscaler_of_another_pool_does_not_look_for_ever(clock, scaled):
    with pytest.raises(SimctlError, match="1 requests unfinished"):
        simulate_pools(
            TraceSource(trace_of([(0.0, 50, 5)]), 16),
            pools(2),
            changes=[Change(0.01, 2, "fail")],
            scaling=[Scaling(pool=pool, period_s=1.0, down_after_s=20.0) for pool in scaled],
            clock=clock(),
        )

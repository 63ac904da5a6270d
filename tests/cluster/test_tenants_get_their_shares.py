"""Where requests wait at the router, tenants get tokens by their weights, and priorities come first."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.fair_queue import FairQueue
from sim.cluster.pools import Pool
from sim.cluster.replica import SteppedEngine
from sim.cluster.router import make_router
from sim.cluster.simulation import simulate_pools
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.registry import make_scheduler
from sim.errors import UsageError
from sim.study.fleet_spec import PoolSpec
from sim.workload.sources import TraceSource
from sim.workload.trace import TraceBuilder
from tests.cli import run
from tests.examples import examples
from tests.runs import AffinePrice


def asks(tenant, tokens=10, priority=0, name="r"):
    return Request(name, 0.0, tokens - 1, 1, priority=priority, tenant=tenant)


def taken(queue):
    return [queue.popleft() for _ in range(len(queue))]


@settings(max_examples=examples(200))
@given(st.lists(st.integers(2, 500), min_size=1, max_size=40))
def test_one_tenant_is_first_come_first_served(tokens):
    queue, sent = FairQueue(), [asks("", each) for each in tokens]
    for each in sent:
        queue.append(each)
    assert taken(queue) == sent


@settings(max_examples=examples(200))
@given(
    st.lists(st.integers(2, 300), min_size=30, max_size=60), st.lists(st.integers(2, 300), min_size=30, max_size=60), st.floats(0.2, 5.0)
)
def test_two_that_always_wait_share_tokens_by_weight(one, other, weight):
    """Start-time fair queueing: what two tenants have had, over their weights, differs by at most their largest requests over theirs."""
    queue = FairQueue({"a": weight})
    for tokens in one:
        queue.append(asks("a", tokens))
    for tokens in other:
        queue.append(asks("b", tokens))
    left, had = {"a": len(one), "b": len(other)}, {"a": 0.0, "b": 0.0}
    bound = max(one) / weight + max(other)
    while min(left.values()):
        request = queue.popleft()
        left[request.tenant] -= 1
        had[request.tenant] += (request.prompt_tokens + 1) / (weight if request.tenant == "a" else 1.0)
        assert abs(had["a"] - had["b"]) <= bound * (1 + 1e-9)


def test_who_was_idle_gets_no_credit_and_priorities_come_first():
    queue = FairQueue()
    for i in range(10):
        queue.append(asks("busy", name=str(i)))
    for _ in range(5):
        queue.popleft()
    for _ in range(5):
        queue.append(asks("late"))
    order = [each.tenant for each in taken(queue)]
    assert order == ["busy", "late"] * 5 or order == ["late", "busy"] * 5
    urgent = asks("busy", priority=-1)
    queue.append(asks("late"))
    queue.append(urgent)
    queue.append(gone := asks("late"))
    queue.remove(gone)
    assert queue.popleft() is urgent
    assert len(queue) == 1


def engine():
    return SteppedEngine(make_scheduler(EngineConfig(num_gpu_blocks=200, max_num_seqs=8, max_model_len=512)), AffinePrice())


def crowded(weights, limit=2):
    """One tenant sends a hundred requests at once, another one every second."""
    calls = [(0.0, "flood")] * 100 + [(0.5 + i, "steady") for i in range(12)]
    builder = TraceBuilder("crowd")
    for arrival_s, tenant in sorted(calls):
        builder.add("", arrival_s=arrival_s, prompt_tokens=50, output_tokens=20, tenant=tenant)
    pool = Pool([engine(), engine()], make_router("least-requests", 2, 16, 200), max_in_flight=limit, weights=weights)
    record = simulate_pools(TraceSource(builder.build(), 16), [pool])
    ttft = record.requests["first_token_s"] - record.requests["arrival_s"]
    tenants = np.array(record.tenants)
    return {name: float(np.mean(ttft[tenants == name])) for name in ("flood", "steady")}, record


def test_a_flood_does_not_drown_a_steady_tenant():
    together, _ = crowded({}, limit=float("inf"))
    fair, record = crowded({})
    assert fair["steady"] < 0.5 < together["steady"]
    assert record.iterations["running"].max() <= 2
    assert not np.isnan(record.requests["finish_s"]).any()
    favoured, _ = crowded({"flood": 50.0})
    assert favoured["steady"] > fair["steady"]


def test_traces_name_tenants_and_answers_list_them(tmp_path):
    trace, fleet = tmp_path / "t.jsonl", tmp_path / "fleet.yaml"
    calls = [{"arrival_s": 0.01 * i, "prompt_tokens": 500, "output_tokens": 20, "tenant": "ab"[i % 2]} for i in range(40)]
    trace.write_text("".join(json.dumps(call) + "\n" for call in calls))
    fleet.write_text("pools: [{gpu: A10, model: Llama-3.1-8B, max-in-flight: 2, tenants: {a: 4}}]\n")
    asked = ("simulate", "--fleet", str(fleet), "--trace", str(trace), "--draws", "0")
    printed, answer = run(*asked), json.loads(run(*asked, "--json").stdout)
    assert set(answer["tenants"]) == {"a", "b"}
    assert answer["tenants"]["a"]["mean_ttft_ms"] < answer["tenants"]["b"]["mean_ttft_ms"]
    assert [line.split()[0] for line in printed.stdout.splitlines() if line.startswith(("tenant", "a ", "b "))] == ["tenant", "a", "b"]
    fleet.write_text("pools: [{gpu: A10, model: Llama-3.1-8B, tenants: {a: 4}}]\n")
    assert "give max_in_flight, too" in run(*asked).stderr
    fleet.write_text("pools: [{gpu: A10, model: Llama-3.1-8B, max-in-flight: 2, tenants: {a: 0}}]\n")
    assert "pools[0].tenants.a: needs a number from 1e-06" in run(*asked).stderr


def test_a_pool_that_cannot_share():
    from sim import Deployment

    with pytest.raises(UsageError, match="weights of tenants are above 0"):
        PoolSpec(Deployment.of("Llama-3.1-8B", "A10"), max_in_flight=0)

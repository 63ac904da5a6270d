"""A call that names a model goes to a pool of it; one that names a LoRA adapter waits for it where it is not held, which routers avoid."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sim import Deployment, Fleet, PoolSpec, Workload, simulate
from sim.engine.interface import Request
from sim.errors import UsageError
from sim.specs.lora import Lora
from sim.workload.content import BlockHashes, SystemPrompt
from sim.workload.jsonl import load_jsonl
from sim.workload.sources import TraceSource
from sim.workload.trace import TraceBuilder
from tests.cli import run

LARGE, SMALL = (Deployment.of(name, "H100") for name in ("Llama-3.1-8B", "Qwen2.5-7B"))
LOAD_S = 0.5


def trace(calls):
    """Calls of 100 tokens, one a second, with these models or adapters."""
    builder = TraceBuilder("test")
    for i, call in enumerate(calls):
        builder.add(f"{i}", arrival_s=float(i), prompt_tokens=100, output_tokens=10, **call)
    return builder.build()


def served(fleet, calls):
    return simulate(fleet, Workload(trace(calls)), draws=0)


def adapted(router="round-robin", most=2, **more):
    d = Deployment.of("Llama-3.1-8B", "H100", replicas=2, router=router)
    return PoolSpec(replace(d, limits=replace(d.limits, lora=Lora(adapters=most))), adapter_load_s=LOAD_S, **more)


def ttft(answer):
    return answer.record.requests["first_token_s"] - answer.record.requests["arrival_s"]


def test_a_call_goes_to_a_pool_of_its_model():
    fleet = Fleet((PoolSpec(LARGE, "large"), PoolSpec(SMALL, "small")))
    answer = served(fleet, [{"model": name} for name in ("Qwen2.5-7B", "Llama-3.1-8B", "", "Qwen2.5-7B")])
    assert answer.record.requests["replica"].tolist() == [1, 0, 0, 1]
    assert answer.event_by_event == "several pools"


def test_a_model_that_no_pool_has_is_named():
    with pytest.raises(UsageError, match="request '0': no pool of Mistral-7B takes a prompt of 100 tokens"):
        served(Fleet((PoolSpec(LARGE),)), [{"model": "Mistral-7B"}])


def test_a_pool_that_nobody_comes_to_is_refused():
    with pytest.raises(UsageError, match="pool b: no request comes to it: pool a before it takes all that it would"):
        served(Fleet((PoolSpec(LARGE, "a"), PoolSpec(SMALL, "b"))), [{}])
    with pytest.raises(UsageError, match="pool pool: no request is of tenant gold: a trace names tenants"):
        served(Fleet((PoolSpec(LARGE, max_in_flight=4, weights={"gold": 2.0}),)), [{}])


def test_an_adapter_is_loaded_where_it_is_not_held():
    one = Fleet((replace(adapted(), deployment=replace(adapted().deployment, replicas=1)),))
    waits = ttft(served(one, [{"adapter": name} for name in "aababcbcaa"])) > LOAD_S  # two are held, the latest asked for
    assert waits.tolist() == [True, False, True, False, False, True, False, False, True, False]


def test_affinity_loads_each_adapter_once():
    calls = [{"adapter": name} for name in "aabbaabb"]
    blind, aware = (served(Fleet((adapted(router),)), calls) for router in ("round-robin", "adapter-affinity"))
    assert (ttft(blind) > LOAD_S).sum() == 4
    assert np.flatnonzero(ttft(aware) > LOAD_S).tolist() == [0, 2]
    a, b = aware.record.requests["replica"][[0, 2]].tolist()
    assert aware.record.requests["replica"].tolist() == [a, a, b, b, a, a, b, b]
    assert a != b
    assert aware.event_by_event == blind.event_by_event == "adapters that requests name"


def test_a_fresh_replica_holds_none():
    from sim.cluster.replica import Change

    pool = replace(adapted(), deployment=replace(adapted().deployment, replicas=1))
    changes = (Change(1.5, 0, "drain"), Change(1.6, 0, "start"))
    waits = ttft(served(Fleet((pool,), changes=changes), [{"adapter": "a"}] * 4)) > LOAD_S
    assert waits.tolist() == [True, False, True, False]


def test_kv_is_shared_by_calls_of_one_adapter():
    content = SystemPrompt("s", 64)
    source = TraceSource(trace([{"content": content, "adapter": name} for name in ("a", "b", "a", "")]), 16)
    a, b, again, none = (request.prompt_hashes for request in source.arrivals())
    assert a == again
    assert not set(a) & set(b)
    assert not set(none) & {*a, *b}


@pytest.mark.parametrize(("content", "found"), [(SystemPrompt("s", 64), 64), (BlockHashes([1, 2, 3], 32), 96)])
def test_the_fast_path_and_the_event_loop_find_the_same(content, found):
    calls = trace([{"content": content, "adapter": name} for name in ("a", "b", "a", "", "b", "")])
    fast, logged = (simulate(Fleet((adapted(),)), Workload(calls), draws=0, keep_iterations=keep) for keep in (False, True))
    assert fast.record.requests["cached_tokens"].tolist() == [0, 0, found, 0, 0, found]  # two replicas in turn
    for name, column in logged.record.requests.items():
        np.testing.assert_array_equal(fast.record.requests[name], column)


def test_its_share_is_that_of_the_calls_that_name_one():
    answer = served(Fleet((adapted(),)), [{"adapter": "a"}, {}, {}, {}])
    assert answer.pools[0].spec.deployment.limits.lora.share == 0.25


def test_a_deployment_without_adapters_is_refused_in_one_line(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({"arrival_s": 0.0, "prompt_tokens": 9, "output_tokens": 2, "adapter": "a", "model": "Llama-3.1-8B"}))
    assert (load_jsonl(path).adapters, load_jsonl(path).models) == (["a"], ["Llama-3.1-8B"])
    result = run("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--trace", str(path))
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.endswith("requests name adapters, and Llama-3.1-8B is served without: --engine-option enable-lora\n")


def test_a_retry_asks_for_the_same():
    source = TraceSource(trace([{"adapter": "a", "model": "m", "tenant": "t"}]), 16)
    first = next(source.arrivals())
    first.generated_tokens, first.computed_tokens = 3, 16
    again = source.again(first, 1, 7.0)
    assert [getattr(again, name) for name in ("request_id", "adapter", "model", "tenant")] == ["0.1", "a", "m", "t"]
    fresh = Request("0.1", 7.0, 100, 10)
    standing = list(Request.__dataclass_fields__)[list(Request.__dataclass_fields__).index("computed_tokens") :]
    assert [getattr(again, name) for name in standing] == [getattr(fresh, name) for name in standing]

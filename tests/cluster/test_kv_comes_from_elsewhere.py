"""What a replica's cache lacks of a prompt comes over the network, from a shared store or another replica, and is not computed again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.clock import Clock
from sim.cluster.kv_moves import KvStore, StoreSpec
from sim.cluster.pools import Pool
from sim.cluster.replica import Change, SteppedEngine
from sim.cluster.router import make_router
from sim.cluster.simulation import simulate_pools
from sim.engine.config import EngineConfig
from sim.engine.registry import make_scheduler
from sim.errors import UsageError
from sim.workload.content import Grown
from sim.workload.sources import TraceSource
from sim.workload.trace import TraceBuilder
from tests.cli import run
from tests.examples import examples
from tests.runs import AffinePrice

CONFIG = EngineConfig(num_gpu_blocks=200, max_num_seqs=8, max_num_batched_tokens=256, max_model_len=2048)


def engine(name="vllm"):
    config = CONFIG if name == "vllm" else EngineConfig(name, num_gpu_blocks=200, max_model_len=2048)
    return SteppedEngine(make_scheduler(config), AffinePrice())


def turns(count=4, sessions=1, grown=40):
    """Sessions whose turns each repeat what came before, ten seconds apart."""
    builder = TraceBuilder("turns")
    for turn in range(count):
        for session in range(sessions):
            tokens = 100 + turn * (grown + 8)
            grows = Grown(tokens - grown) if turn else None
            builder.add("", arrival_s=10.0 * turn + session, prompt_tokens=tokens, output_tokens=8, session_id=str(session), content=grows)
    return builder.build()


def pool(replicas=2, router="round-robin", **more):
    given = {"nic_bytes_per_s": 1e9, "kv_bytes": lambda tokens: 1e6 * tokens, "spare": engine}
    return Pool([engine() for _ in range(replicas)], make_router(router, replicas, 16, 200), **(given | more))


def test_another_turn_elsewhere_fetches_what_the_first_replica_has():
    alone = simulate_pools(TraceSource(turns(), 16), [pool()])
    helped = simulate_pools(TraceSource(turns(), 16), [pool(fetch="most")])
    assert helped.requests["replica"].tolist() == [0, 1, 0, 1]
    had = (100 + 8 - 1) // 16 * 16  # whole blocks of what the first turn left
    assert alone.requests["cached_tokens"][1] == 0
    assert helped.requests["cached_tokens"][1] == had
    one, other = (each.requests["first_token_s"][1] - each.requests["arrival_s"][1] for each in (alone, helped))
    prompt = 100 + 48
    assert one == pytest.approx(0.01 + 0.001 * prompt, abs=1e-9)
    assert other == pytest.approx(had * 1e6 / 1e9 + 0.01 + 0.001 * (prompt - had), abs=1e-9)


def test_the_busiest_replica_may_have_nothing():
    trace = TraceBuilder("three")
    trace.add("", arrival_s=0.0, prompt_tokens=100, output_tokens=8, session_id="a")
    trace.add("", arrival_s=9.5, prompt_tokens=100, output_tokens=2000 - 100, session_id="b")
    trace.add("", arrival_s=10.0, prompt_tokens=148, output_tokens=8, session_id="a", content=Grown(108))
    trace = trace.build()
    found = {}
    for fetch in ("most", "busiest"):
        record = simulate_pools(TraceSource(trace, 16), [pool(3, fetch=fetch)])
        found[fetch] = dict(zip(record.request_ids, record.requests["cached_tokens"].tolist(), strict=True))["2"]
    assert found == {"most": 96, "busiest": 0}


def test_a_store_outlives_the_replica_that_filled_it():
    events = [Change(8.0, 0, "fail"), Change(9.0, 0, "start")]
    without = simulate_pools(TraceSource(turns(), 16), [pool(1)], changes=events)
    stored = simulate_pools(TraceSource(turns(), 16), [pool(1)], changes=events, store=StoreSpec(1e12, 1e9))
    assert without.requests["cached_tokens"].tolist()[:2] == [0, 0]
    assert stored.requests["cached_tokens"].tolist()[1] == 96
    assert (stored.requests["first_token_s"] <= without.requests["first_token_s"]).all()


def test_a_slow_store_is_waited_for():
    fast, slow = (
        simulate_pools(TraceSource(turns(2), 16), [pool()], store=StoreSpec(1e12, bandwidth)).requests["first_token_s"][1]
        for bandwidth in (1e9, 1e7)
    )
    assert slow - fast == pytest.approx(96e6 / 1e7 - 96e6 / 1e9, abs=1e-6)


NAMES = st.lists(st.integers(0, 30), max_size=12).map(lambda names: [f"block {name}" for name in names])


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.booleans(), NAMES), max_size=30), st.integers(1, 12))
def test_a_store_keeps_what_was_used_last(acts, size):
    store, model = KvStore(10.0 * size), []
    for put, names in acts:
        if put:
            store.put(names, 10.0)
            for name in names:
                model = [each for each in model if each != name] + [name]
            model = model[-size:]
        else:
            held = next((place for place, name in enumerate(names) if name not in model), len(names))
            assert store.holds(names) == held
            for name in names[:held]:
                model = [each for each in model if each != name] + [name]
        assert store.lacks([f"block {n}" for n in range(31)]) == [f"block {n}" for n in range(31) if f"block {n}" not in model]


@settings(max_examples=examples(150))
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([None, "most", "busiest"]),
    st.booleans(),
    st.lists(st.tuples(st.floats(0.1, 30.0), st.integers(0, 2), st.sampled_from(["fail", "drain", "start"])), max_size=4),
)
def test_every_request_comes_through_with_all_its_tokens(count, sessions, fetch, stores, actions):
    changes = [Change(*each) for each in actions] + [Change(45.0, 0, "start")]
    trace = turns(count, sessions)
    store = StoreSpec(3e8, 1e8) if stores else None
    record = simulate_pools(TraceSource(trace, 16), [pool(3, fetch=fetch)], changes=changes, store=store, clock=Clock())
    assert not np.isnan(record.requests["finish_s"]).any()
    assert (record.requests["generated_tokens"] == 8).all()
    assert (record.requests["cached_tokens"] < record.requests["prompt_tokens"]).all()


def test_what_cannot_be():
    with pytest.raises(UsageError, match="KV is fetched from most or busiest, not 'next'"):
        pool(fetch="next")
    with pytest.raises(UsageError, match="a size and a bandwidth above 0"):
        StoreSpec(0.0, 1.0)
    engines = [engine("sglang"), engine("sglang")]
    with pytest.raises(UsageError, match="takes no KV of a prompt from another replica"):
        simulate_pools(TraceSource(turns(), 16), [Pool(engines, make_router("random", 2, 16, 9), fetch="most")])


def test_fleet_files_name_them(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text("pools: [{gpu: H100, model: Llama-3.1-8B, replicas: 2, fetch: most}]\nkv-store: {gb: 100, gb-s: 10}\n")
    drawn = ("--num-prompts", "12", "--turns", "3", "--request-rate", "2", "--draws", "0")
    with_both = run("simulate", "--fleet", str(file), *drawn, "--json")
    assert with_both.code == 0, with_both.stderr
    file.write_text("pools: [{gpu: H100}]\nkv-store: {gb: 100}\n")
    assert "kv-store: needs gb-s" in run("simulate", "--fleet", str(file), *drawn).stderr

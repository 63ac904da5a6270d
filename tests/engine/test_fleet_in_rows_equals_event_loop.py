"""The fleet in rows gives what the event loop gives: every request, iteration, chunk and setback, bit by bit, plain and compiled.

Terms of the step time are powers, and numpy raises to them otherwise than Python does, in the last digit; the launches' term is a small
difference of two of them, each as large as the duration. So they are compared where they are exact: each logged iteration priced once more
in Python's numbers. The columns themselves lie within a few of these digits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from sim.cluster import compiled
from sim.cluster.fleet_runs import Handover, Moves, Servers
from sim.cluster.fleet_state import MOST_STAMPS, ROUTES
from sim.cluster.network import NETWORK, NetworkSpec
from sim.cluster.pools import DECODE, FETCHES, PREFILL, Pool
from sim.cluster.replica import SteppedEngine
from sim.cluster.router import make_router, router_options
from sim.cluster.simulation import simulate_pools
from sim.cost.batch import BatchShape
from sim.cost.step_time import step_terms
from sim.engine.config import EngineConfig
from sim.engine.iteration_cost import IterationCost
from sim.engine.registry import make_scheduler
from sim.engine.rows.made import uncovered
from sim.engine.rows.served import Expanded
from sim.rates.serving import HostRates
from sim.results.record import AT_ENGINE, RunRecord
from sim.study.direct import serve_apart, serve_trace
from sim.ticks import TICK_S
from sim.workload.content import Grown, SystemPrompt
from sim.workload.sources import TraceSource
from sim.workload.trace import Trace, TraceBuilder
from tests.engine.test_engine_in_rows_equals_event_loop import COSTS, HOSTS, calls, limits, traces
from tests.examples import examples


@dataclass(frozen=True)
class Case:
    """A run on equal replicas."""

    trace: Trace
    config: EngineConfig
    cost: IterationCost
    host: HostRates
    replicas: int
    router: str
    options: Mapping[str, Any]
    clients: int | None
    moves: Moves | None = None

    def event_by_event(self) -> RunRecord:
        size = self.config.block_size
        moved = (
            {
                "fetch": self.moves.source,
                "kv_bytes": lambda tokens: self.moves.kv_bytes[tokens // size],
                "nic_bytes_per_s": self.moves.nic_bytes_per_s,
                "block_size": size,
            }
            if self.moves
            else {}
        )
        pool = Pool(
            [SteppedEngine(make_scheduler(self.config), self.cost) for _ in range(self.replicas)],
            make_router(self.router, self.replicas, size, self.config.num_gpu_blocks, self.options),
            self.host,
            **moved,
        )
        network = NetworkSpec(self.moves.latency_s, self.moves.shared_bytes_per_s) if self.moves else NETWORK
        return simulate_pools(TraceSource(self.trace, size), [pool], network=network, max_concurrency=self.clients)

    def in_arrays(self, *, fast: bool = False, keep: bool = True) -> RunRecord:
        asked = self.trace, self.config, self.cost, self.host, self.replicas, self.router, self.options, self.clients, self.moves
        return serve_trace(*asked, keep=keep, fast=fast)


@dataclass(frozen=True)
class Apart(Case):
    """A run whose prompts the pool computes, and whose tokens those of another case do."""

    decode: Case | None = None
    handover: Handover | None = None

    @property
    def pools(self) -> tuple[Case, Case]:
        assert self.decode
        return self, self.decode

    def event_by_event(self) -> RunRecord:
        h, pools = self.handover, []
        assert h
        for case, role, bytes_per_s in zip(self.pools, (PREFILL, DECODE), h.bytes_per_s, strict=True):
            pools.append(
                Pool(
                    [SteppedEngine(make_scheduler(case.config), case.cost) for _ in range(case.replicas)],
                    make_router(case.router, case.replicas, case.config.block_size, case.config.num_gpu_blocks, case.options),
                    case.host,
                    role=role,
                    kv_tokens=case.config.kv_capacity_tokens,
                    reserve_tokens=h.reserve_tokens,
                    kv_bytes=lambda tokens: 100.0 * tokens,
                    nic_bytes_per_s=bytes_per_s,
                    layers=h.layers or 1,
                    overlaps=h.layers > 0,
                )
            )
        network = NetworkSpec(h.latency_s, h.shared_bytes_per_s)
        return simulate_pools(TraceSource(self.trace, self.config.block_size), pools, network=network, max_concurrency=self.clients)

    def in_arrays(self, *, fast: bool = False, keep: bool = True) -> RunRecord:
        servers = [Servers(each.config, each.cost.steps, each.host, each.replicas, each.router, each.options) for each in self.pools]
        assert self.handover
        return serve_apart(self.trace, servers, [each.cost for each in self.pools], self.handover, self.clients, keep=keep, fast=fast)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block = draw(st.sampled_from([1, 4, 16]))
    ranked = draw(st.sampled_from([False, False, True]))
    trace, longest = draw(traces(block, late=draw(st.booleans()), ranked=ranked))
    config = draw(limits(block, longest))
    if ranked:
        config = replace(config, policy="priority")
        assume(not uncovered(config))
    router = draw(st.sampled_from(list(ROUTES)))
    choices = {
        "dispatch_s": (0.0, 0.0, 0.004, 0.2),
        "reserve_s": (0.0, 0.0, 0.02, 1.0),
        "idle_scores_zero": (False, True),
        "decode_weight": (0.01, 3.0),
        "remembers": (0, 2, 9, 9999),
        "view": ("sent", "sent", "cache"),
        "queue": (2.0, 0.0),
        "prefix": (3.0, 0.7),
        "scrape_s": (0.0, 0.05, 0.6),
        "cache_threshold": (0.3, 0.0),
        "balance_abs_threshold": (64, 1),
        "overlap_credit": (1.0, 0.3),
        "active_request_weight": (0.0, 0.7),
        "mode": ("iptables", "ipvs"),
    }
    options = {name: draw(st.sampled_from(choices[name])) for name in router_options(router) if name in choices}
    return Case(
        trace,
        config,
        draw(st.sampled_from(COSTS)),
        draw(st.sampled_from(HOSTS)),
        draw(st.sampled_from([1, 1, 2, 3])),
        router,
        options,
        draw(st.none() | st.integers(1, 6)),
    )


@st.composite
def moving(draw: st.DrawFn) -> Case:
    """Turns of sessions that meet other replicas than those that have their KV."""
    case, block = draw(cases().filter(lambda case: case.config.policy == "fcfs")), draw(st.sampled_from([1, 4, 16]))
    builder, grown, now, longest = TraceBuilder("turns"), dict[str, int](), 0.0, 1
    for index in range(draw(st.integers(4, 30))):
        session = draw(st.sampled_from("abcdef"))
        before = grown.get(session, 0)
        content = Grown(before - draw(st.sampled_from([0, 0, block]))) if before else SystemPrompt("one", 4 * block)
        now += 0.0 if before else draw(st.sampled_from([0.0, 0.02, 0.4]))
        prompt, output = (before or 4 * block) + draw(st.integers(1, 5 * block)), draw(st.integers(1, 3 * block))
        think_s = draw(st.sampled_from([0.0, 0.02, 0.5])) if before else 0.0
        sizes = {"prompt_tokens": prompt, "output_tokens": output, "session_id": session, "content": content, "think_s": think_s}
        builder.add(f"call {index}", arrival_s=None if before else now, **sizes)
        grown[session] = prompt + output
        longest = max(longest, prompt + output)
    config = draw(limits(block, longest))
    rates = st.sampled_from([np.inf, 1e3, 7e4, 3e6])  # bytes/s: a block of 100 takes from a moment to longer than its computing would
    kv_bytes = 100.0 * np.arange(longest // block + 1)
    return replace(
        case,
        trace=builder.build(),
        config=replace(config, enable_prefix_caching=True),
        replicas=draw(st.integers(2, 4)),
        moves=Moves(draw(st.sampled_from(FETCHES)), draw(rates), draw(rates), draw(st.sampled_from([0.0, 0.003])), kv_bytes),
    )


@st.composite
def apart(draw: st.DrawFn) -> Apart:
    """Prompts that one pool computes, and tokens that another does, of other limits, prices, hosts and routers."""
    prefill, other = (draw(cases()) for _ in range(2))
    longest = int((prefill.trace.prompt_tokens + prefill.trace.output_tokens).max())
    config = replace(draw(limits(prefill.config.block_size, longest)), policy=prefill.config.policy)
    rates = st.sampled_from([np.inf, 1e3, 7e4, 3e6])
    handover = Handover(
        100.0 * prefill.trace.prompt_tokens,
        (draw(rates), draw(rates)),
        draw(rates),
        draw(st.sampled_from([0.0, 0.003])),
        draw(st.sampled_from([0, 1, 4])),
        draw(st.sampled_from([0, 8, 512])),
    )
    return Apart(**vars(prefill), decode=replace(other, config=config), handover=handover)


def in_floats(log: Expanded, which: Any) -> Any:
    """Terms of some logged iterations, by Python's arithmetic."""
    shape, shown = log.shape(which), log.rows["extra"][which]
    rates, terms = log._steps.given[1], np.zeros((len(shown), len(IterationCost.terms)))
    for i, ticks in enumerate(shown.tolist()):
        one = BatchShape(*(float(column[i]) if np.ndim(column) else column for column in shape))
        work = log._steps.work(one)
        terms[i] = step_terms(work, rates)
        terms[i, 0] += ticks * TICK_S
    return terms


def sorted_rows(columns: dict[str, Any]) -> Any:
    table = np.array(list(columns.values())).T
    return table[np.lexsort(table.T)] if len(table) else table


def same(case: Case, *, fast: bool = False) -> None:
    slow, quick = case.event_by_event(), case.in_arrays(fast=fast)
    lean = case.in_arrays(fast=fast, keep=False)
    assert list(quick.request_ids) == list(slow.request_ids)
    for name, values in slow.requests.items():
        np.testing.assert_array_equal(quick.requests[name], values, name)
        np.testing.assert_array_equal(lean.requests[name], values, name)
    for name, values in slow.iterations.items():
        if name != "decode_kv_s":
            np.testing.assert_array_equal(quick.iterations[name], values, name)
    for name, values in slow.chunks.items():
        np.testing.assert_array_equal(quick.chunks[name], values, name)
    # who pauses in one iteration has no order
    np.testing.assert_array_equal(sorted_rows(quick.events), sorted_rows(slow.events))
    np.testing.assert_array_equal(np.sort(quick.stall_s), np.sort(slow.stall_s))
    # a root of two powers, each within a digit in numpy and in Python, comes out within three; so do the sums that the launches' two are of
    digits = 16 * np.spacing(slow.iterations["duration_s"])
    np.testing.assert_array_less(np.abs(np.asarray(quick.terms) - slow.terms).max(axis=1, initial=0.0), digits)
    np.testing.assert_array_less(np.abs(quick.iterations["decode_kv_s"] - slow.iterations["decode_kv_s"]), digits)
    np.testing.assert_allclose(quick.terms.sum(axis=0), slow.terms.sum(axis=0), 0.0, 1e-9 * slow.terms.sum())
    with patch.object(Expanded, "terms", in_floats):
        np.testing.assert_array_equal(np.asarray(quick.terms), slow.terms)
        np.testing.assert_array_equal(case.in_arrays(fast=fast).iterations["decode_kv_s"], slow.iterations["decode_kv_s"])
    assert list(quick.paid_s) == list(slow.paid_s) == list(lean.paid_s)
    assert quick.decision_names == slow.decision_names
    event("preempts" if slow.requests["preemptions"].any() else "no preemption")
    event("by priority" if case.config.policy == "priority" else "first come, first served")
    event("KV moves" if case.moves and (slow.events["event_kind"] == AT_ENGINE).any() else "KV stays")
    event("hits" if slow.requests["cached_tokens"].any() else "no hits")
    event("waits" if slow.iterations["waiting"].any() else "nobody waits")


@settings(max_examples=examples(250), derandomize=True)
@given(cases() | moving())
def test_same_run_to_the_last_bit(case: Case) -> None:
    same(case)


@settings(max_examples=examples(90), derandomize=True)
@given(apart())
def test_same_run_of_prompts_that_are_handed_over(case: Apart) -> None:
    same(case)


def test_a_routers_memory_of_blocks_takes_a_gigabyte_at_most() -> None:
    assert np.dtype(np.int64).itemsize * MOST_STAMPS == 2**30


@given(st.sampled_from([4, 6, 9]))
def test_blocks_sent_longest_ago_are_forgotten_alike(remembers: int) -> None:
    builder = TraceBuilder("prompts in turn")
    for i, name in enumerate(3 * "abcaabbccbacd"):
        builder.add(name, arrival_s=0.05 * i, prompt_tokens=81, output_tokens=3, content=SystemPrompt(name, 64))
    config = EngineConfig(num_gpu_blocks=100)
    same(Case(builder.build(), config, COSTS[0], HOSTS[0], 2, "prefix-affinity", {"remembers": remembers}, None))


@given(st.sampled_from(FETCHES))
def test_transfers_that_end_together_all_end(source: str) -> None:
    builder = TraceBuilder("one prompt, three times")
    for i, arrival_s in enumerate((0.0, 9.0, 9.0)):
        builder.add(str(i), arrival_s=arrival_s, prompt_tokens=81, output_tokens=3, content=SystemPrompt("one", 64))
    moves = Moves(source, 1e3, np.inf, 0.003, 100.0 * np.arange(9))
    case = Case(builder.build(), EngineConfig(num_gpu_blocks=100), COSTS[0], HOSTS[0], 3, "round-robin", {}, None, moves)
    same(case)
    assert case.in_arrays().requests["cached_tokens"].tolist() == [0, 64, 64 if source == "most" else 0]


@pytest.mark.skipif(not compiled.warm(), reason="no machine code is cached")
def test_columns_of_a_trace_need_not_lie_side_by_side() -> None:
    trace = calls([(0.1 * i, 20 + i, 9) for i in range(8)])
    table = np.array([trace.arrival_s, trace.think_s, trace.prompt_tokens, trace.output_tokens])
    arrival_s, think_s, prompt, output = np.repeat(table, 2, axis=1)[:, ::2]
    strided = replace(trace, arrival_s=arrival_s, think_s=think_s, prompt_tokens=prompt.astype(int), output_tokens=output.astype(int))
    assert not strided.think_s.flags.c_contiguous
    case = Case(strided, EngineConfig(max_model_len=64), COSTS[0], HOSTS[0], 2, "lmetric", {}, None)
    slow, quick = case.event_by_event(), case.in_arrays(fast=True)
    np.testing.assert_array_equal(quick.requests["finish_s"], slow.requests["finish_s"])


@pytest.mark.slow
@settings(max_examples=10_000)
@given(cases() | moving() | apart())
def test_same_run_of_ten_thousand_workloads(case: Case) -> None:
    same(case)


@pytest.mark.slow
@pytest.mark.skipif(not compiled.available(), reason="llvmlite is not installed")
@settings(max_examples=2_000)
@given(cases() | moving() | apart())
def test_same_run_of_two_thousand_workloads_compiled(case: Case) -> None:
    same(case, fast=True)

"""The fast engine gives the requests of the event loop to the last bit: who is sent when and where, times, cached tokens, preemptions.

Replicas of different speed, routers that look at load, at once or late, sessions, closed loops, admission, replicas that start and drain,
transferred KV, KV starvation and an API server that costs nothing but its own time are all in the draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sim.cluster import compiled
from sim.cluster.admission import NO_LIMITS, Admission, AdmissionLimits
from sim.cluster.replica import Change, SteppedEngine
from sim.cluster.router import ROUTERS, make_router, router_options
from sim.cluster.rows_engine import RowsEngine
from sim.cluster.simulation import simulate
from sim.cost.graphs import sglang_sizes
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.iteration_cost import IterationCost
from sim.engine.overlap import NO_WORK, HostWork
from sim.engine.registry import make_scheduler
from sim.errors import UsageError
from sim.rates.serving import NO_HOST, HostRates
from sim.results.record import RunRecord
from sim.specs.attention_policy import blocks
from sim.specs.parallel import Parallel
from sim.specs.precision import Precision
from sim.workload.content import BlockHashes, Grown, SystemPrompt
from sim.workload.sources import TraceSource
from sim.workload.trace import Trace, TraceBuilder
from tests.examples import examples
from tests.price.shapes import HYBRID_MOE, QWEN_7B, plausible_rates

# steps take about 10 ms: host work that hides behind the GPU, work that shows in some iterations, work that takes longer than the GPU
WORK = (NO_WORK, HostWork(1e-3, 2e-5, 1e-3), HostWork(5e-3, 5e-4, 4e-3), HostWork(0.02, 0.0, 0.0))
COSTS = [IterationCost(model, Precision(), plausible_rates(), host=work) for model in (QWEN_7B, HYBRID_MOE) for work in WORK]
COSTS.append(IterationCost(QWEN_7B, Precision(), plausible_rates(), decode_sizes=sglang_sizes(512)))
COSTS.append(IterationCost(HYBRID_MOE, Precision(), plausible_rates(), host=WORK[1], parallel=Parallel(dp=2, expert=True)))
COSTS.append(IterationCost(QWEN_7B, Precision(), plausible_rates(), policy=blocks(1, "host")))
EAGER = [IterationCost(QWEN_7B, Precision(), plausible_rates(), host=work, eager=True) for work in WORK]
HOSTS = (
    NO_HOST,
    HostRates(),
    HostRates(2e-3, 1e-5, 0.0, 0.0),
    HostRates(0.0, 0.0, 0.0, 7e-3),
    HostRates(0.0, 0.0, 3e-3, 1e-4),
    HostRates(2e-3, 0.0, 1e-3, 1e-3, token_s=4e-4),
    HostRates(0.0, 1e-5, 1e-3, 0.0, token_s=0.013),  # its tokens wait for those of iterations before
)


ROUTER_OPTIONS = {
    "dispatch_s": (0.0, 0.0, 0.004, 0.2),
    "snapshot_s": (0.0, 0.0, 0.013, 0.7),
    "reserve_s": (0.0, 0.02),
    "idle_scores_zero": (False, True),
    "decode_weight": (0.01, 0.0, 3.0),
}


@dataclass(frozen=True)
class Case:
    """A run: everything but how its engines are stepped."""

    trace: Trace
    config: EngineConfig
    costs: list[IterationCost]  # one per replica
    host: HostRates = NO_HOST
    router: str = "round-robin"
    clients: int | None = None
    limits: AdmissionLimits = NO_LIMITS
    changes: tuple[Change, ...] = ()
    transferred: tuple[int, ...] = (0,)  # KV tokens that come with requests, in turn
    router_options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, fast: bool, machine: bool = False) -> RunRecord:
        source = Transferring(self.trace, self.config.block_size, self.transferred)
        shared, numbers = source.shared_blocks() if fast else {}, {}
        return simulate(
            source,
            [
                RowsEngine(self.config, cost.steps, shared, numbers, machine) if fast else SteppedEngine(make_scheduler(self.config), cost)
                for cost in self.costs
            ],
            router=make_router(self.router, len(self.costs), self.config.block_size, self.config.num_gpu_blocks, self.router_options),
            host=self.host,
            max_concurrency=self.clients,
            admission=Admission(self.limits, 1e4) if self.limits != NO_LIMITS else None,
            changes=self.changes,
            keep_iterations=False,
        )


class Transferring(TraceSource):
    """Requests of a trace whose KV has partly been computed elsewhere."""

    def __init__(self, trace: Trace, block_size: int, tokens: tuple[int, ...]) -> None:
        super().__init__(trace, block_size)
        self._tokens = tokens

    def _request(self, i: int, arrival_s: float) -> Request:
        request = super()._request(i, arrival_s)
        request.computed_tokens = min(self._tokens[i % len(self._tokens)], request.prompt_tokens)
        return request


@st.composite
def traces(draw: st.DrawFn, block: int, late: bool = True, ranked: bool = False) -> tuple[Trace, int]:
    """Calls, `late` ones of which wait for others and `ranked` ones differ in priority, and the tokens of the longest."""
    builder = TraceBuilder("test")
    last: dict[str, int] = {}  # tokens of the latest turn of each session
    now, longest = draw(st.sampled_from([0.0, 0.0, 9.3, 80_000.1 if late else 3_000.1])), 1  # beyond 8 s seconds are coarser than ticks
    alike = draw(st.sampled_from([False, False, True]))  # replicas then do the same at the same instant
    for index in range(draw(st.integers(1, 25))):
        session = draw(st.sampled_from([None, "a", "b", "c", "d"]))
        follows = session in last
        waits = late and follows and draw(st.sampled_from([True, True, False]))
        if not waits:
            # arrivals fall into the middle of stretches, on top of one another, and into idle time
            now += draw(st.sampled_from([0.0, 0.0, 1e-4, 0.013, 0.1, 0.7, 5.0]))
        grown = last[session] if follows and session is not None else 0
        prompt = 3 * block + grown if alike else draw(st.integers(1, 6 * block)) + (grown or draw(st.integers(0, 4)) * block)
        output = 2 * block + 1 if alike else draw(st.integers(1, 6 * block + 8))
        content = None
        if follows and draw(st.booleans()):
            content = Grown(grown)
        elif draw(st.booleans()):
            text = draw(st.integers(0, 2))
            if draw(st.booleans()):
                content = SystemPrompt(f"system {text}", min(prompt, 3 * block))
            else:
                content = BlockHashes([(text, i) for i in range(-(-prompt // block))], block)
        builder.add(
            f"call {index}",
            arrival_s=None if waits else now,
            prompt_tokens=prompt,
            output_tokens=output,
            session_id=session,
            think_s=draw(st.sampled_from([0.0, 0.0, 0.02, 0.5, 3.0])) if waits else 0.0,
            content=content,
            priority=draw(st.integers(-1, 1)) if ranked else 0,
        )
        longest = max(longest, prompt + output)
        if session is not None:
            last[session] = prompt + output
    return builder.build(), longest


@st.composite
def limits(draw: st.DrawFn, block: int, longest: int) -> EngineConfig:
    """An engine that holds `longest` tokens of a request, and few or many beside."""
    seqs, chunked = draw(st.integers(1, 12)), draw(st.sampled_from([True, True, True, False]))
    return EngineConfig(
        num_gpu_blocks=-(-longest // block) + 1 + draw(st.sampled_from([0, 1, 3, 10, 30, 1000])),
        block_size=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, draw(st.integers(4, 300) | st.integers(600, 2000)) if chunked else longest),
        max_model_len=longest,
        enable_prefix_caching=draw(st.booleans()),
        enable_chunked_prefill=chunked,
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        reserve_full_prompt=draw(st.booleans()),
        options={"async_scheduling": draw(st.booleans())},
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block = draw(st.sampled_from([1, 4, 16]))
    trace, longest = draw(traces(block))
    config = draw(limits(block, longest))
    replicas = draw(st.sampled_from([1, 1, 2, 3]))
    costs = (
        draw(st.lists(st.sampled_from([*COSTS, *EAGER]), min_size=replicas, max_size=replicas))
        if draw(st.booleans())
        else [draw(st.sampled_from([*COSTS, *EAGER]))] * replicas
    )
    changes: tuple[Change, ...] = ()
    if replicas > 1 and draw(st.sampled_from([False, False, True])):
        at_s = float(np.nanmax(trace.arrival_s)) * draw(st.floats(0.0, 1.0))
        changes = (Change(at_s, 1, "start"), Change(at_s + draw(st.sampled_from([0.0, 0.05, 1.0])), 0, "drain"))
    router = draw(st.sampled_from(list(ROUTERS)))
    options = {name: draw(st.sampled_from(ROUTER_OPTIONS[name])) for name in router_options(router) if name in ROUTER_OPTIONS}
    return Case(
        trace,
        config,
        costs,
        draw(st.sampled_from(HOSTS)),
        router,
        draw(st.none() | st.integers(1, 6)),
        draw(st.sampled_from([NO_LIMITS] * 3 + [AdmissionLimits(max_queue=3), AdmissionLimits(ttft_s=0.02, bucket=(900.0, 400.0))])),
        changes,
        draw(st.sampled_from([(0,), (0,), (0, 5, 40)])),
        options,
    )


def same(case: Case, machine: bool = False) -> RunRecord:
    """The event loop's record, held to be the fast path's, as plain Python or as `machine` code."""
    slow, quick = case.run(fast=False), case.run(True, machine)
    assert list(quick.request_ids) == list(slow.request_ids)
    assert list(quick.session_ids) == list(slow.session_ids)
    for name, values in slow.requests.items():
        np.testing.assert_array_equal(quick.requests[name], values, name)
    return slow


def note(case: Case, record: RunRecord) -> None:
    requests = record.requests
    event("preempts" if requests["preemptions"].any() else "no preemption")
    event("hits" if requests["cached_tokens"].any() else "no hits")
    event("turns wait" if np.isnan(case.trace.arrival_s).any() else "nobody waits for a turn")
    event("clients wait" if case.clients is not None and case.clients < len(case.trace) else "no limit")
    event("routed by load" if len(case.costs) > 1 and case.router not in ("round-robin", "random") else "not routed by load")
    event("the router sees late" if case.router_options.get("snapshot_s") or case.router_options["dispatch_s"] else "the router sees all")
    event("turned away" if requests["rejected"].any() else "all let in")


@settings(max_examples=examples(300), derandomize=True)
@given(cases())
def test_same_requests_to_the_last_bit(case: Case) -> None:
    note(case, same(case))


@pytest.mark.slow
@settings(max_examples=5000)
@given(cases())
def test_same_requests_of_five_thousand_workloads(case: Case) -> None:
    note(case, same(case))


@pytest.mark.slow
@pytest.mark.skipif(not compiled.available(), reason="llvmlite is not installed")
@settings(max_examples=1000)
@given(cases())
def test_same_requests_of_a_thousand_workloads_compiled(case: Case) -> None:
    note(case, same(case, machine=True))


def calls(asks: list[tuple[float, int, int]], texts: list[int] | None = None) -> Trace:
    """Calls of (arrival, prompt tokens, output tokens), each repeating one of the `texts`, its output included."""
    builder = TraceBuilder("test")
    for row, (at, prompt, output) in enumerate(asks):
        content = BlockHashes([(texts[row], i) for i in range(200)], 4) if texts else None
        builder.add(str(row), arrival_s=at, prompt_tokens=prompt, output_tokens=output, content=content)
    return builder.build()


def test_a_place_that_frees_behind_a_decision_is_seen_by_the_next_arrival() -> None:
    # two places; the first request leaves while the next iteration is already decided, and the third arrives long after
    config = EngineConfig(max_num_seqs=2, max_model_len=256, options={"async_scheduling": True})
    same(Case(calls([(0.0, 40, 3), (0.0, 50, 23), (0.1, 82, 19)]), config, COSTS[:1]))


@pytest.mark.parametrize("overlap", [True, False])
def test_an_arrival_cuts_a_stretch_of_every_replica_where_it_is_seen(overlap: bool) -> None:
    # long decodes on three replicas, and arrivals in the middle of them, two at one instant
    config = EngineConfig(max_num_seqs=4, max_model_len=4096, options={"async_scheduling": overlap})
    asks = [(0.0, 40, 900)] * 3 + [(2.0 + 0.37 * i, 30, 7) for i in range(12)] + [(7.0, 30, 7)] * 2
    for router in ROUTERS:
        slow = same(Case(calls(asks), config, [COSTS[0], COSTS[4], COSTS[0]], router=router))
        assert slow.requests["first_token_s"][3] - 2.0 < 0.1  # it did not wait for anybody's end


def test_transferred_kv_is_not_computed_again() -> None:
    config = EngineConfig(max_num_seqs=4, max_model_len=9000, num_gpu_blocks=2000)
    case = Case(calls([(0.0, 8000, 5), (5.0, 8000, 5)]), config, COSTS[:1], transferred=(0, 8000))
    ttft_s = np.subtract(*(same(case).requests[name] for name in ("first_token_s", "arrival_s")))
    alone = same(replace(case, trace=calls([(0.0, 1, 5)]))).requests["first_token_s"][0]
    assert ttft_s[0] > 10 * alone
    assert ttft_s[1] < 2 * alone


def test_no_clients_are_refused_on_either_path() -> None:
    case = Case(calls([(0.0, 4, 1)]), EngineConfig(), COSTS[:1], clients=0)
    for fast in (True, False):
        with pytest.raises(UsageError, match="at least 1"):
            case.run(fast)

"""Sessions and closed loops on the fast path give the event loop's requests to the last bit: who is sent when, times, cached tokens,
preemptions, KV starvation included.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sim.engine.boost import NO_BOOST, Boost
from sim.engine.config import EngineConfig
from sim.engine.overlap import NO_WORK, HostWork
from sim.engine.presets import make_scheduler
from sim.errors import UsageError
from sim.host import NO_HOST, HostRates
from sim.precision import Precision
from sim.runlog import RunRecord
from sim.serve_fast import run_fast_clients
from sim.simulation import simulate
from sim.stepcost import BillCost
from sim.workload.content import BlockHashes, Grown, SystemPrompt
from sim.workload.sources import TraceSource
from sim.workload.trace import Trace, TraceBuilder
from tests.price.shapes import HYBRID_MOE, QWEN_7B, plausible_rates

# steps take about 10 ms
WORK = (NO_WORK, HostWork(1e-3, 2e-5, 1e-3, 9e-3), HostWork(5e-3, 5e-4, 4e-3), HostWork(0.02, 0.0, 0.0))
BOOSTS = (NO_BOOST, Boost(0.3, 0.02, 0.1), Boost(0.1, 0.01, 3.0), Boost(0.3, 0.05, 1.0))
COSTS = [
    BillCost(model, Precision(), plausible_rates(), host=work, boost=boost)
    for model in (QWEN_7B, HYBRID_MOE)
    for work, boost in zip(WORK, BOOSTS, strict=True)
]
HOSTS = (
    NO_HOST,
    HostRates(),
    HostRates(2e-3, 1e-5, 0.0, 0.0),
    HostRates(0.0, 0.0, 3e-3, 7e-3),
    HostRates(2e-3, 0.0, 1e-3, 1e-3, token_s=4e-4),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Trace, EngineConfig, int | None]:
    block = draw(st.sampled_from([1, 4, 16]))
    builder = TraceBuilder("test")
    last: dict[str, int] = {}  # tokens of the latest turn of each session
    now, longest = 0.0, 1
    for index in range(draw(st.integers(1, 25))):
        session = draw(st.sampled_from([None, "a", "b", "c", "d"]))
        follows = session in last
        waits = follows and draw(st.sampled_from([True, True, False]))
        if not waits:
            now += draw(st.sampled_from([0.0, 0.0, 1e-4, 0.013, 0.1, 0.7, 5.0]))
        grown = last[session] if follows and session is not None else 0
        prompt = draw(st.integers(1, 6 * block)) + (grown if follows else draw(st.integers(0, 4)) * block)
        output = draw(st.integers(1, 4 * block + 8))
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
        )
        longest = max(longest, prompt + output)
        if session is not None:
            last[session] = prompt + output
    seqs = draw(st.integers(1, 12))
    config = EngineConfig(
        num_gpu_blocks=-(-longest // block) + 1 + draw(st.sampled_from([0, 1, 3, 10, 30, 1000])),
        block_size=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, draw(st.integers(4, 300) | st.integers(600, 2000))),
        max_model_len=longest,
        enable_prefix_caching=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        reserve_full_prompt=draw(st.booleans()),
        options={"async_scheduling": draw(st.booleans())},
    )
    return builder.build(), config, draw(st.none() | st.integers(1, 6))


def plain(trace: Trace, config: EngineConfig, cost: BillCost, host: HostRates, clients: int | None) -> RunRecord:
    source, scheduler = TraceSource(trace, config.block_size), make_scheduler(config)
    return simulate(source, [scheduler], cost, host=host, max_concurrency=clients, keep_iterations=False)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(cases(), st.sampled_from(COSTS), st.sampled_from(HOSTS))
def test_same_requests_to_the_last_bit(case: tuple[Trace, EngineConfig, int | None], cost: BillCost, host: HostRates) -> None:
    trace, config, clients = case
    slow, quick = plain(trace, config, cost, host, clients), run_fast_clients(trace, config, cost.steps, host, clients)
    assert quick is not None
    assert list(quick.request_ids) == list(slow.request_ids)
    assert list(quick.session_ids) == list(slow.session_ids)
    for name, values in slow.requests.items():
        np.testing.assert_array_equal(quick.requests[name], values, name)
    event("preempts" if slow.requests["preemptions"].any() else "no preemption")
    event("hits" if slow.requests["cached_tokens"].any() else "no hits")
    event("turns wait" if np.isnan(trace.arrival_s).any() else "nobody waits for a turn")
    event("clients wait" if clients is not None and clients < len(trace) else "no limit")


def test_no_clients_are_refused_on_either_path() -> None:
    builder = TraceBuilder("test")
    builder.add("call", arrival_s=0.0, prompt_tokens=4, output_tokens=1)
    for path in (
        lambda: plain(builder.build(), EngineConfig(), COSTS[0], NO_HOST, 0),
        lambda: run_fast_clients(builder.build(), EngineConfig(), COSTS[0].steps, NO_HOST, 0),
    ):
        with pytest.raises(UsageError, match="at least 1"):
            path()

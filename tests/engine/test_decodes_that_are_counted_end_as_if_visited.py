"""Steady decodes are counted, not visited: every token is sent when it would be, whatever KV runs short, is shared or is cancelled."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.config import EngineConfig
from sim.engine.host_tier import HostLink
from sim.engine.overlap import NO_WORK, HostWork
from sim.engine.rows import layout as at
from sim.engine.rows.loop import advance, arrive
from sim.engine.rows.made import given_of, make_core, requests_of
from sim.engine.rows.vllm import cancel
from sim.engine.step_clock import StepTime
from sim.specs.parallel import Parallel
from sim.specs.precision import Precision
from tests.examples import examples
from tests.price.shapes import QWEN_7B, plausible_rates

# of these a log needs `in_prefill`; names are given as far as somebody looks, runs of blocks are numbered as they come, and `fills` has the
# number of a decision, which a counted decode is none of
UNREAD = ("final", "entered", "hashed", "in_prefill", "own", "fills")


def a_server(rng: Random) -> tuple[EngineConfig, StepTime]:
    block, seqs = rng.choice([1, 4, 16]), rng.choice([2, 5, 16])
    config = EngineConfig(
        num_gpu_blocks=rng.choice([150, 160, 400, 2000]) // block + 4,
        block_size=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + rng.choice([1, 10, 100]),
        max_model_len=142,
        enable_prefix_caching=rng.random() < 0.7,
        reserve_full_prompt=rng.random() < 0.5,
        watermark=rng.choice([0.0, 0.1]),
        options={"async_scheduling": rng.random() < 0.6},
    )
    if config.enable_prefix_caching and rng.random() < 0.5:
        config = replace(config, options={**config.options, "host_blocks": rng.choice([60, 400])})
    link = HostLink(rng.choice([1e8, 3e9, 1e12]), rng.choice([0.0, 1e-3]))
    stages = rng.choice([1, 1, 2])
    host = rng.choice([NO_WORK, HostWork(1e-3, 2e-5, 1e-3)])
    settings: dict[str, Any] = {"part_tokens": config.max_num_batched_tokens, "host": host, "host_copies": link, "block_size": block}
    return config, StepTime(QWEN_7B, Precision(), plausible_rates(), parallel=Parallel(pp=stages), **settings)


def a_load(rng: Random, block: int) -> tuple[Any, Any]:
    count = rng.randint(2, 30)
    arrives = np.cumsum([rng.choice([0, 10**9, 10**11, 10**12]) for _ in range(count)])
    q = requests_of(arrives, *(np.array([rng.randint(1, most) for _ in range(count)]) for most in (70, 70)))
    names: list[int] = []
    for i in range(count):
        depth = rng.choice([0, 0, rng.randint(0, int(q["prompt"][i] + q["output"][i]) // block)])
        q["names"][i], q["depth"][i] = len(names), depth
        names += [100 * rng.randint(0, 1) + place for place in range(depth)]
    return q, np.array(names, dtype=np.int64)


def served(seed: int, settles: int) -> tuple[list[tuple[int, ...]], list[Any], int, bool]:
    """(tokens as they are sent, rows of requests in the end, free KV blocks, whether any decode was counted)."""
    rng = Random(seed)
    config, steps = a_server(rng)
    q, names = a_load(rng, config.block_size)
    e = make_core(config, steps, q, names, token_ticks=rng.choice([0, 10**7]))
    s, given, sent, counted, coming = e.engines[0], given_of(steps), [], False, 0
    assert s.settles
    s.settles = settles
    leaving = {rng.randint(1, 400): rng.randrange(len(q)) for _ in range(rng.choice([0, 0, 5]))}
    for turn in range(100_000):
        while coming < len(q) and e.requests[coming].arrives < s.wake + s.after_arrivals:
            arrive(e, s, coming, e.requests[coming].arrives)
            coming += 1
        if turn in leaving and leaving[turn] < coming:
            cancel(e, s, leaving[turn])
        if s.wake == at.NEVER and coming == len(q):
            break
        assert not advance(e, s, given)
        sent += [(s.now, e.sends[i].request, e.sends[i].place, e.sends[i].last) for i in range(s.sent)]
        s.sent = 0
        counted |= s.steady > 0
    assert s.wake == at.NEVER
    assert not s.steady
    assert not sum(e.phases)
    rows = [[getattr(e.requests[i], name) for name in at.RequestRow.__slots__ if name not in UNREAD] for i in range(len(q))]
    return sent, rows, s.free, counted


@settings(max_examples=examples(150), derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_same_tokens_at_the_same_time(seed: int) -> None:
    assert served(seed, 1)[:3] == served(seed, 0)[:3]


def test_most_loads_count_some() -> None:
    assert sum(served(seed, 1)[3] for seed in range(20)) > 10

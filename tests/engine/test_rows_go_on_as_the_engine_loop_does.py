"""The engine in rows keeps the clocks and prices of the engine loop, whose iterations are objects: drafts, priorities, thresholds, prefill
intervals, windows, eager mode of vLLM, and SGLang, on random workloads with starving KV caches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sim.cost.graphs import sglang_sizes
from sim.engine.config import EngineConfig
from sim.engine.host_tier import HostLink
from sim.engine.interface import KeepsTime, Request
from sim.engine.iteration_cost import IterationCost
from sim.engine.loop import Step, engine_loop
from sim.engine.overlap import NO_WORK, HostWork
from sim.engine.registry import make_scheduler
from sim.engine.rows import layout as at
from sim.engine.rows.loop import advance, arrive
from sim.engine.rows.made import fail, given_of, luck_of, make_core, requests_of
from sim.engine.schedulers import VllmScheduler
from sim.engine.step_clock import StepTime
from sim.specs.attention_policy import blocks, dense, pages, sink_window
from sim.specs.models import get_model
from sim.specs.parallel import Parallel
from sim.specs.precision import Precision
from sim.ticks import DECISION
from tests.examples import examples
from tests.price.shapes import HYBRID_MOE, QWEN_7B, plausible_rates

WORK = (NO_WORK, HostWork(1e-3, 2e-5, 1e-3), HostWork(5e-3, 5e-4, 4e-3), HostWork(0.02, 0.0, 0.0))
MODELS = (QWEN_7B, HYBRID_MOE, get_model("Gemma-3-27B"))
POLICIES = (dense("host"), pages(2), blocks(1), blocks(1, "host"), sink_window(window=16), sink_window("host", 16))
COLUMNS = ("started", "sent", "decided", "scheduled", "running", "waiting", "tokens", "used", "admitted", "preempted", "sampled", "lacks")


@dataclass(frozen=True)
class Outcome:
    """First and last token of each request, and every iteration, in ticks and counts."""

    first: dict[str, int]
    last: dict[str, int]
    iterations: list[tuple[int, ...]]


def by_scheduler(config: EngineConfig, cost: IterationCost, calls: list[tuple[int, Request]]) -> Outcome:
    scheduler, found = make_scheduler(config), Outcome({}, {}, [])
    if isinstance(scheduler, VllmScheduler):
        scheduler.copies_take(*cost.steps.host_link)

    def collect(step: Step, now: int) -> None:
        outcome, it = scheduler.complete(step.iteration), step.iteration
        for request in outcome.sampled:
            found.first.setdefault(request.request_id, now)
        found.last.update({request.request_id: now for request in outcome.finished})
        found.iterations.append(
            (step.started, now, step.decided, len(it.scheduled), step.running, step.waiting, it.total_tokens, step.kv_blocks_used,
             len(it.admitted), len(it.preempted), len(outcome.sampled) + outcome.drafts_kept, it.short_of)
        )  # fmt: skip

    loop, coming = engine_loop(scheduler, cost, collect), list(calls)
    wait = next(loop)
    now = 0
    while wait is not None or coming:
        ticks, rank = wait or (max(now, coming[0][0]), DECISION)
        while coming and (coming[0][0] < ticks or (coming[0][0] == ticks and rank == DECISION)):
            at_ticks, request = coming.pop(0)
            scheduler.add(request)
            if isinstance(scheduler, KeepsTime) and scheduler.idle:
                ticks, rank = at_ticks, DECISION
        now = max(now, ticks)
        wait = loop.send(now)
    return found


def in_rows(config: EngineConfig, cost: IterationCost, calls: list[tuple[int, Request]]) -> Outcome:
    e, s = served(config, cost, calls)
    named = {request.request_id: e.requests[i] for i, (_, request) in enumerate(calls)}
    iterations = [tuple(getattr(e.log[i], name) for name in COLUMNS) for i in range(s.rows) if not e.log[i].more]
    return Outcome({name: r.first_sent for name, r in named.items()}, {name: r.last_sent for name, r in named.items()}, iterations)


def served(config: EngineConfig, cost: IterationCost, calls: list[tuple[int, Request]]) -> tuple[Any, Any]:
    """The engine's state when all are through, with its log."""
    requests = [request for _, request in calls]
    q = requests_of(*(np.array(values) for values in zip(*((t, r.prompt_tokens, r.output_tokens) for t, r in calls), strict=True)))
    q["arrival_s"], q["priority"] = [r.arrival_s for r in requests], [r.priority for r in requests]
    q["name_rank"], q["luck"] = np.argsort(np.argsort([r.request_id for r in requests])), luck_of([r.request_id for r in requests])
    numbers: dict[Any, int] = {}
    names: list[int] = []
    several = Counter(name for r in requests for name in r.prompt_hashes)
    for i, request in enumerate(requests if config.enable_prefix_caching else ()):
        own = [name for name in request.prompt_hashes if several[name] > 1]
        q["names"][i], q["depth"][i] = len(names), len(own)
        names += [numbers.setdefault(name, len(numbers)) for name in own]
    e = make_core(config, cost.steps, q, np.array(names, dtype=np.int64), keep=True)
    s = at.row_of(e.engines, 0)
    s.row_room = s.entry_room = 10**9
    given, coming = given_of(cost.steps), 0
    while True:
        while coming < len(calls) and e.requests[coming].arrives < s.wake + s.after_arrivals:
            arrive(e, s, coming, e.requests[coming].arrives)
            coming += 1
        if s.wake >= at.NEVER:
            return e, s
        if reason := advance(e, s, given):
            fail(s, reason)


def a_load(rng: Random, block: int) -> tuple[list[tuple[int, Request]], int]:
    """Calls by arrival (ticks), and the tokens of the longest."""
    calls: list[tuple[int, Request]] = []
    ticks = 0
    for i in range(rng.randint(1, 25)):
        ticks += rng.choice([0, 0, 10**9, 10**11, 5 * 10**12, 10**13])
        prompt, output = rng.randint(1, 6 * block + 10), rng.randint(1, 4 * block + 8)
        text = rng.choice([None, 0, 1])
        names = () if text is None else tuple((text, place) for place in range(rng.randint(0, (prompt + output) // block)))
        name = f"r{rng.randint(0, 10**6)}-{i}"
        calls.append((ticks, Request(name, ticks / 2**43, prompt, output, prompt_hashes=names, priority=rng.choice([0, 0, 1, 2]))))
    return calls, max(r.prompt_tokens + r.output_tokens for _, r in calls)


def a_vllm(rng: Random) -> tuple[EngineConfig, IterationCost, list[tuple[int, Request]]]:
    block, drafts, version = rng.choice([1, 4, 16]), rng.choice([0, 0, 0, 1, 3]), rng.choice(["0.33", "0.32"])
    calls, longest = a_load(rng, block)
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {"eager": rng.random() < 0.3}
    if drafts:
        drafter = rng.choice(["ngram", "eagle", "draft_model"])
        options = {"draft_tokens": drafts, "acceptance": rng.choice([0.2, 0.7, 1.0]), "drafter": drafter, "seed": rng.randint(0, 5)}
        settings |= {"verify_s": 1e-4, "verify_seq_s": 3e-5, "graph_reuse": rng.random() < 0.7}
        if rng.random() < 0.5:
            settings |= {"draft": StepTime(QWEN_7B, Precision(), plausible_rates()), "draft_pieces": rng.random() < 0.5}
    elif rng.random() < 0.4:
        options = {"async_scheduling": rng.random() < 0.5}
    seqs = rng.choice([1, 2, 4, 16])
    budget = max(rng.choice([max(seqs, 8), 64, 512]), seqs * (2 + drafts) + 8 if drafts else 0)
    most, needed = longest + rng.choice([0, 5, 100]), -(-(longest + 3 * drafts + 2) // block) + 2
    if rng.random() < 0.3:
        parallel = rng.choice([Parallel(pp=2), Parallel(pp=3), Parallel(dp=2), Parallel(dp=3, expert=True), Parallel(pp=2, dp=2)])
        settings |= {"parallel": parallel, "part_tokens": -(-budget // parallel.parts)}
    if rng.random() < 0.2:
        settings["policy"] = rng.choice(POLICIES)
    caching = rng.random() < 0.7
    if caching and options.get("drafter") != "eagle" and rng.random() < 0.5:
        options = options | {"host_blocks": rng.choice([needed, 3 * needed, 1000])}
        settings |= {"host_copies": HostLink(rng.choice([1e8, 3e9, 1e12]), rng.choice([0.0, 1e-3])), "block_size": block}
    config = EngineConfig(
        num_gpu_blocks=rng.choice([needed + 1, needed + 4, 2 * needed, 500]),
        block_size=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=most,
        enable_prefix_caching=caching,
        long_prefill_token_threshold=rng.choice([0, 0, 7]) if most > 7 else 0,
        policy=rng.choice(["fcfs", "fcfs", "priority"]),
        watermark=rng.choice([0.0, 0.0, 0.1]),
        reserve_full_prompt=rng.random() < 0.7,
        options=options,
        prefill_schedule_interval=rng.choice([1, 1, 3]) if version == "0.33" else 1,
        engine_version=version,
    )
    return config, IterationCost(rng.choice(MODELS), Precision(), plausible_rates(), host=rng.choice(WORK), **settings), calls


def a_tier(rng: Random) -> tuple[EngineConfig, IterationCost, list[tuple[int, Request]]]:
    """A vLLM with host RAM, in chunks of several blocks, or after several offers."""
    config, cost, calls = a_vllm(rng)
    while "host_blocks" not in config.options:
        config, cost, calls = a_vllm(rng)
    rules = {"chunk_tokens": rng.choice([1, 2, 3]) * config.block_size, "store_threshold": rng.choice([0, 2, 3])}
    if rules["store_threshold"]:
        rules["max_tracker_size"] = rng.choice([2, 20, 64_000])
    return replace(config, options=config.options | rules), cost, calls


def an_sglang(rng: Random) -> tuple[EngineConfig, IterationCost, list[tuple[int, Request]]]:
    block, chunked, ignores = rng.choice([1, 4, 16]), rng.random() < 0.8, rng.random() < 0.1
    calls, longest = a_load(rng, block)
    drawn = {
        "clip_new_tokens": rng.choice([3, 20, 4096]),
        "max_prefill_tokens": rng.choice([20, 100, 16384]),
        "cuda_graph_max_bs": rng.choice([0, 0, 2, 8]),
        "overlap_schedule": rng.random() < 0.6,
        "schedule_policy": rng.choice(["fcfs", "lpm"]),
    }
    bets = (
        {"ignore_eos": True}
        if ignores
        else {"init_new_token_ratio": rng.choice([0.1, 0.4, 0.7]), "ratio_decay_steps": rng.choice([5, 600])}
    )
    seqs, most, needed = rng.choice([1, 2, 4, 16]), longest + rng.choice([0, 5, 100]), -(-longest // block) + 4
    budget = rng.choice([max(seqs, 16), 64, 512])
    config = EngineConfig(
        scheduler="sglang",
        num_gpu_blocks=rng.choice([needed + 1, needed + 4, 2 * needed, 500]),
        block_size=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget if chunked else max(budget, most),
        max_model_len=most,
        enable_prefix_caching=rng.random() < 0.7,
        enable_chunked_prefill=chunked,
        options=drawn | bets,
    )
    graphs = drawn["cuda_graph_max_bs"]
    settings: dict[str, Any] = {"decode_sizes": sglang_sizes(graphs), "decodes_alone": True} if graphs else {}
    if rng.random() < 0.3:
        settings |= {"parallel": rng.choice([Parallel(pp=2), Parallel(dp=2)]), "part_tokens": -(-budget // 2)}
    if rng.random() < 0.2:
        settings["policy"] = rng.choice(POLICIES)
    return config, IterationCost(rng.choice(MODELS), Precision(), plausible_rates(), **settings), calls


def a_llamacpp(rng: Random) -> tuple[EngineConfig, IterationCost, list[tuple[int, Request]]]:
    block, unified, seqs = rng.choice([1, 4, 16]), rng.random() < 0.5, rng.choice([1, 2, 4, 9])
    calls, longest = a_load(rng, block)
    most = longest + rng.choice([0, 5, 100])
    first = rng.random() < 0.4
    options = {
        "n_ubatch": rng.choice([1, 3, 16, 512]), "prompt_tail_tokens": rng.choice([0, 4]), "max_batch_tokens": rng.choice([0, 0, 20]),
        "prefill_cap": rng.choice([0, 0, 7]), "slot_similarity": rng.choice([0.0, 0.1, 0.5]), "kv_unified": unified,
    } | ({"prefill_first": True, "max_defer": rng.choice([0, 1, 3]), "min_waiting": rng.choice([0, 2])} if first else {})  # fmt: skip
    config = EngineConfig(
        scheduler="llamacpp",
        num_gpu_blocks=-(-most // block) * (1 if unified else seqs) + 1,
        block_size=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=rng.choice([16, 64, 2048]),
        max_model_len=most,
        enable_prefix_caching=rng.random() < 0.7,
        options=options,
    )
    settings: dict[str, Any] = {"micro_batch": options["n_ubatch"], "streams": not unified}
    if rng.random() < 0.2:
        settings["policy"] = rng.choice(POLICIES)
    return config, IterationCost(rng.choice(MODELS), Precision(), plausible_rates(), **settings), calls


def same(config: EngineConfig, cost: IterationCost, calls: list[tuple[int, Request]]) -> None:
    rows = in_rows(config, cost, calls)  # first: the scheduler writes into requests
    assert by_scheduler(config, cost, calls) == rows


KINDS = pytest.mark.parametrize("kind", [a_vllm, a_tier, an_sglang, a_llamacpp])


@KINDS
@settings(max_examples=examples(100), derandomize=True)
@given(seed=st.integers(0, 2**32))
@example(seed=22)  # a write to host RAM that begins as the iteration before ends
@example(seed=864)  # the same, sent when nothing more is decided
@example(seed=275750836)  # two are back from host RAM, and must find room for the drafts that are verified next
def test_same_iterations(kind: Any, seed: int) -> None:
    same(*kind(Random(seed)))


@KINDS
@settings(max_examples=examples(60), derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_chunks_of_a_prompt_are_what_was_not_cached_of_it(kind: Any, seed: int) -> None:
    config, cost, calls = kind(Random(seed))
    e, s = served(config, cost, calls)
    chunks = [each for each in (e.entries[i] for i in range(s.entries)) if each.kind == at.CHUNK]
    for i, (_, request) in enumerate(calls):
        row = e.requests[i]
        if not row.preemptions and not config.options.get("draft_tokens"):
            assert sum(each.first for each in chunks if each.request == i) == max(request.prompt_tokens - row.cached, 1)


@pytest.mark.slow
@KINDS
@settings(max_examples=5_000)
@given(seed=st.integers(0, 2**32))
def test_same_iterations_of_five_thousand_workloads(kind: Any, seed: int) -> None:
    same(*kind(Random(seed)))

"""The SGLang preset's rules, one by one: prefill before decode, chunks, the memory bet and retraction, the radix
cache.
"""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sim.engine.config import EngineConfig
from sim.engine.fits import check_admitted
from sim.engine.interface import Iteration, Request
from sim.engine.registry import make_scheduler
from sim.engine.schedulers import OverlapSglangScheduler, SglangScheduler
from sim.engine.sglang_options import SglangOptions
from sim.errors import UsageError
from sim.ticks import to_ticks
from tests.examples import examples
from tests.runs import serve


def config(**limits) -> EngineConfig:
    return EngineConfig(**{"scheduler": "sglang", "num_gpu_blocks": 1000, "max_num_seqs": 8, "max_num_batched_tokens": 128} | limits)


def step(scheduler: SglangScheduler) -> Iteration:
    iteration = scheduler.schedule()
    scheduler.complete(iteration)
    return iteration


def shares(iteration: Iteration) -> list[tuple[str, int]]:
    return [(request.request_id, tokens) for request, tokens in iteration.scheduled]


def test_decodes_stand_still_while_prompts_are_prefilled() -> None:
    scheduler = SglangScheduler(config())
    scheduler.add(Request("a", 0.0, 100, 5))
    assert shares(step(scheduler)) == [("a", 100)]
    assert shares(step(scheduler)) == [("a", 1)]
    scheduler.add(Request("b", 0.0, 200, 5))
    # 128 tokens a chunk, cut at a page; decodes wait for both chunks
    assert shares(step(scheduler)) == [("b", 128)]
    assert shares(step(scheduler)) == [("b", 72)]
    assert shares(step(scheduler)) == [("a", 1), ("b", 1)]


def test_the_rest_of_a_chunk_is_filled_from_the_queue() -> None:
    scheduler = SglangScheduler(config())
    for name, prompt in (("a", 200), ("b", 40), ("c", 40)):
        scheduler.add(Request(name, 0.0, prompt, 2))
    assert shares(step(scheduler)) == [("a", 128)]
    # 72 of a and 40 of b are charged as whole pages, 80 and 48: nothing is left for c
    assert shares(step(scheduler)) == [("a", 72), ("b", 40)]
    assert shares(step(scheduler)) == [("c", 40)]


def test_a_prompt_is_cut_at_a_page() -> None:
    scheduler = SglangScheduler(config(max_num_batched_tokens=140))
    for name, prompt in (("a", 80), ("b", 90)):
        scheduler.add(Request(name, 0.0, prompt, 2))
    # 60 are left, three pages and a bit
    assert shares(step(scheduler)) == [("a", 80), ("b", 48)]
    assert shares(step(scheduler)) == [("b", 42)]


def test_admission_bets_on_a_share_of_what_is_still_to_come() -> None:
    # 64 pages of 16; each request may generate 420 tokens, so a second one is let in only while the ratio makes
    # that small
    def admitted(ratio: float) -> int:
        options = {"init_new_token_ratio": ratio, "min_new_token_ratio": ratio}
        scheduler = SglangScheduler(config(num_gpu_blocks=65, max_model_len=4096, options=options))
        scheduler.add(Request("a", 0.0, 100, 420))
        step(scheduler)
        scheduler.add(Request("b", 0.0, 100, 420))
        step(scheduler)
        return len(step(scheduler).scheduled)

    assert admitted(1.0) == 1
    assert admitted(0.1) == 2


def test_a_lost_bet_retracts_the_request_with_the_fewest_tokens_and_raises_the_ratio() -> None:
    options = {"init_new_token_ratio": 0.0, "min_new_token_ratio": 0.0}
    scheduler = SglangScheduler(config(num_gpu_blocks=36, max_model_len=4096, options=options))
    old, new = Request("old", 0.0, 100, 300), Request("new", 0.0, 100, 300)
    scheduler.add(old)
    for _ in range(20):
        step(scheduler)
    scheduler.add(new)
    for _ in range(400):
        step(scheduler)
        if new.preemptions:
            break
    assert new.preemptions == 1
    assert (old.preemptions, scheduler.running) == (0, [old])
    assert scheduler.new_token_ratio > 0.5
    while scheduler.unfinished():
        step(scheduler)
    assert (old.generated_tokens, new.generated_tokens) == (300, 300)


def test_longest_prefix_goes_first_under_lpm() -> None:
    scheduler = SglangScheduler(config(options={"schedule_policy": "lpm"}))
    scheduler.add(Request("first", 0.0, 64, 1, prompt_hashes=[1, 2, 3, 4]))
    step(scheduler)
    scheduler.add(Request("other", 0.0, 64, 1, prompt_hashes=[7, 8, 9, 10]))
    scheduler.add(Request("again", 0.0, 80, 1, prompt_hashes=[1, 2, 3, 4, 5]))
    assert shares(step(scheduler)) == [("again", 16), ("other", 64)]


@settings(max_examples=examples(150), derandomize=True)
@given(
    asks=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 120), st.integers(0, 5)), min_size=1, max_size=20),
    pages=st.integers(18, 80),
    chunk=st.sampled_from([16, 48, 128]),
    ratio=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_everybody_is_served_and_every_page_comes_back(asks: list[tuple[int, int, int]], pages: int, chunk: int, ratio: float) -> None:
    options = {"init_new_token_ratio": ratio, "min_new_token_ratio": ratio}
    scheduler = SglangScheduler(config(num_gpu_blocks=pages + 1, max_num_batched_tokens=chunk, options=options))
    requests = [
        Request(str(i), 0.0, prompt, output, [(text, block) for block in range(prompt // 16)])
        for i, (prompt, output, text) in enumerate(asks)
    ]
    waiting = list(requests)
    for _ in range(20_000):
        if waiting:
            scheduler.add(waiting.pop(0))
        iteration = step(scheduler)
        prefills = {request for request, _ in iteration.scheduled if request.generated_tokens <= 1}
        decodes = [tokens for request, tokens in iteration.scheduled if request not in prefills]
        assert iteration.scheduled or not scheduler.unfinished()
        assert not prefills or iteration.total_tokens <= max(chunk, len(decodes))
        if not waiting and not scheduler.unfinished():
            break
    assert [request.generated_tokens for request in requests] == [output for _, output, _ in asks]
    assert scheduler.free_blocks == pages
    event("retracts" if any(request.preemptions for request in requests) else "no retraction")


@settings(max_examples=examples(150), derandomize=True)
@given(
    asks=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 120), st.integers(0, 5)), min_size=1, max_size=20),
    pages=st.integers(19, 80),
    chunk=st.sampled_from([16, 48, 128]),
    ratio=st.sampled_from([0.0, 0.3, 1.0]),
    ignore_eos=st.booleans(),
    caching=st.booleans(),
)
def test_so_is_everybody_whose_batches_are_decided_ahead(
    asks: list[tuple[int, int, int]], pages: int, chunk: int, ratio: float, ignore_eos: bool, caching: bool
) -> None:
    options = {"ignore_eos": True} if ignore_eos else {"init_new_token_ratio": ratio, "min_new_token_ratio": ratio}
    scheduler = make_scheduler(
        config(num_gpu_blocks=pages + 1, max_num_batched_tokens=chunk, enable_prefix_caching=caching, options=options)
    )
    assert isinstance(scheduler, OverlapSglangScheduler)
    requests = [
        Request(str(i), 1e-3 * i, prompt, output, [(text, block) for block in range(prompt // 16)])
        for i, (prompt, output, text) in enumerate(asks)
    ]
    record = serve(requests, scheduler, lambda _: to_ticks(1e-3))
    assert [request.generated_tokens for request in requests] == [output for _, output, _ in asks]
    assert scheduler.free_blocks == pages
    event("retracts" if record.requests["preemptions"].any() else "no retraction")


def test_prompts_that_are_not_cut_leave_a_token_of_the_budget() -> None:
    whole = config(enable_chunked_prefill=False, max_num_batched_tokens=4096, max_model_len=4096, options={"max_prefill_tokens": 64})
    for second, batches in ((16, [[("a", 32), ("b", 16)]]), (32, [[("a", 32)], [("b", 32)]])):
        scheduler = SglangScheduler(whole)
        scheduler.add(Request("a", 0.0, 32, 1))
        scheduler.add(Request("b", 0.0, second, 1))
        assert [shares(step(scheduler)) for _ in batches] == batches


def test_admission_without_a_cache_counts_the_whole_answer() -> None:
    options = SglangOptions(ignore_eos=True)
    check_admitted(Request("fits", 0.0, 100, 60), config(num_gpu_blocks=14, enable_prefix_caching=False), options)
    with pytest.raises(UsageError, match="needs 177 tokens, a spare page included"):  # 160 in pages, one more, and a page
        check_admitted(Request("does not", 0.0, 100, 60), config(num_gpu_blocks=12, enable_prefix_caching=False), options)


def test_a_finished_request_holds_no_page() -> None:
    scheduler = SglangScheduler(config())
    request = Request("a", 0.0, 100, 1)
    scheduler.add(request)
    step(scheduler)
    assert scheduler.kv_blocks_used() == 0

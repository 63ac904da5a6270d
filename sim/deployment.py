"""From a model on a GPU to an engine with limits: how many KV blocks fit, what its defaults are, what an iteration costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sim.admission import batch_cap
from sim.bill import DENSE, decode_shape, iteration_bill
from sim.engine.config import EngineConfig
from sim.errors import SimctlError, UsageError
from sim.memory import DEFAULT_UTILIZATION, Memory, block_bytes, device_memory, loaded_weight_bytes, sequence_bytes
from sim.policy import AttentionPolicy
from sim.precision import Precision
from sim.price import step_time_s
from sim.rates import Rates
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.units import format_bytes
from sim.workload.trace import Trace

LLAMACPP_SLOTS, LLAMACPP_BATCH = 4, 2048
BIG_GPU_BYTES = 70 * 2**30
MOST_SEQS = 4096
STATE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user sets of an engine, None where its default applies. Names are vLLM's; `options` are the engine's own settings.

    `attention` says what a decode reads and where KV lives, `host_kv_bytes` how much host RAM a replica has for it there. `draft` is the
    model that proposes drafts: its weights and its KV share the GPU.
    """

    engine: str = "vllm"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    block_size: int = 16
    max_model_len: int | None = None
    num_gpu_blocks: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    attention: AttentionPolicy = DENSE
    host_kv_bytes: float = 0.0
    draft: ModelSpec | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def default_batch_limits(gpu: GpuSpec, engine: str = "vllm") -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) that vLLM 0.32's server takes on this GPU: larger from 70 GiB up, A100 excepted. Those of
    llama.cpp's server are its slots and n_batch, the same everywhere.
    """
    if engine == "llamacpp":
        return LLAMACPP_SLOTS, LLAMACPP_BATCH
    if gpu.memory_bytes >= BIG_GPU_BYTES and "a100" not in gpu.name.casefold():
        return 1024, 8192
    return 256, 2048


def plan_engine(model: ModelSpec, gpu: GpuSpec, precision: Precision, tp: int, limits: Limits) -> tuple[EngineConfig, Memory]:
    """The engine's configuration, KV blocks predicted from memory unless given.

    Raises SimctlError when the weights leave no room for KV, UsageError for limits that contradict each other.
    """
    if not 0.0 < limits.gpu_memory_utilization <= 1.0:
        raise UsageError(f"gpu memory utilization must lie in (0, 1], got {limits.gpu_memory_utilization:g}")
    if limits.attention.placement == "host":
        if gpu.unified_memory:
            raise UsageError(f"{gpu.name} has one memory for CPU and GPU: KV cannot be kept in host RAM")
        if not model.kv_layers:
            raise UsageError(f"{model.name} has no KV that grows with the context: nothing to keep in host RAM")
    seqs, budget = default_batch_limits(gpu, limits.engine)
    seqs = limits.max_num_seqs or min(seqs, limits.max_num_batched_tokens or seqs)
    whole = 0 if limits.enable_chunked_prefill else limits.max_model_len or model.max_context
    budget = limits.max_num_batched_tokens or max(budget, seqs, whole)  # a prompt that is not cut must fit
    memory = _memory(model, gpu, precision, tp, limits, budget, seqs)
    blocks = limits.num_gpu_blocks
    if blocks is None:
        state = sequence_bytes(model, 0, precision, DENSE, tp)[0]
        if state:
            # each running request holds a slot of recurrent state; unasked, slots take no more than half of what is free
            if limits.max_num_seqs is None:
                seqs = max(1, min(seqs, int(STATE_SHARE * max(memory.free, 0.0) / state)))
            memory = _memory(model, gpu, precision, tp, limits, budget, seqs)
            memory = replace(memory, activations=memory.activations + seqs * state)
        blocks = _block_count(memory, model, precision, tp, limits)
        if blocks < 2 and limits.attention.placement == "host" and memory.free > 0:
            raise SimctlError(
                f"{model.name}: {format_bytes(limits.host_kv_bytes)} of host RAM hold no KV block of {limits.block_size} tokens"
            )
        if blocks < 2:
            needs = format_bytes(memory.weights + memory.activations)
            what = f"weights, activations and {seqs} slots of recurrent state" if state else "weights and activations"
            has = format_bytes(memory.allowed)
            raise SimctlError(
                f"{model.name} does not fit on {tp} x {gpu.name}: {what} need {needs} per GPU, "
                f"and {limits.gpu_memory_utilization:g} of its memory is {has}"
            )
    longest = model.max_context
    if limits.engine == "llamacpp":  # every slot owns its share of the context
        longest = max(1, min(longest, (blocks - 1) * limits.block_size // seqs))
    config = EngineConfig(
        scheduler=limits.engine,
        num_gpu_blocks=blocks,
        block_size=limits.block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=limits.max_model_len or longest,
        # a prefix's KV is of no use without the recurrent state at its end, which engines do not keep by default
        enable_prefix_caching=not model.state_layers if limits.enable_prefix_caching is None else limits.enable_prefix_caching,
        enable_chunked_prefill=limits.enable_chunked_prefill,
        long_prefill_token_threshold=limits.long_prefill_token_threshold,
        policy=limits.policy,
        options=dict(limits.options),
    )
    return config, memory


def _memory(
    model: ModelSpec, gpu: GpuSpec, precision: Precision, tp: int, limits: Limits, budget: int, seqs: int, share: float = 0.5
) -> Memory:
    """`device_memory` under these limits, the draft model's weights with it; `share` as there."""
    utilization = limits.gpu_memory_utilization
    alone = device_memory(model, gpu, precision, tp=tp, utilization=utilization, token_budget=budget, max_num_seqs=seqs, share=share)
    return replace(alone, weights=alone.weights + loaded_weight_bytes(limits.draft, precision, tp)) if limits.draft else alone


def _block_count(memory: Memory, model: ModelSpec, precision: Precision, tp: int, limits: Limits) -> int:
    """KV blocks for which there is room, in HBM and, where KV lives there, in host RAM."""
    in_hbm, in_host = block_bytes(model, precision, limits.block_size, limits.attention, tp)
    if limits.draft is not None:
        in_hbm += sum(block_bytes(limits.draft, precision, limits.block_size, DENSE, tp))
    room = [max(0.0, memory.free) // in_hbm] if in_hbm else []
    return int(min(room + ([limits.host_kv_bytes / tp // in_host] if in_host else []), default=0))


def kv_block_interval(model: ModelSpec, gpu: GpuSpec, precision: Precision, tp: int, limits: Limits) -> tuple[int, int] | None:
    """5-95 % of the KV blocks predicted from memory; None where the blocks are given, or where a recurrent state shares the memory."""
    if limits.num_gpu_blocks is not None or sequence_bytes(model, 0, precision, DENSE, tp)[0]:
        return None
    config, _ = plan_engine(model, gpu, precision, tp, limits)
    budget, seqs = config.max_num_batched_tokens, config.max_num_seqs
    low, high = (
        _block_count(_memory(model, gpu, precision, tp, limits, budget, seqs, share), model, precision, tp, limits)
        for share in (0.95, 0.05)
    )
    return low, high


def cap_at_knee(
    trace: Trace, model: ModelSpec, precision: Precision, rates: Rates, tp: int, tau: float, policy: AttentionPolicy = DENSE, gpu: str = ""
) -> int:
    """The batch cap that keeps per-request decode efficiency t(1)/t(B) at `tau` or above, at the workload's mean context.

    The mean is over decode steps: a request of p prompt and n output tokens takes n of them at p + n/2. At most MOST_SEQS. `gpu` is the
    name under which the model's products may have been measured (sim.products.known_to).
    """
    outputs = trace.output_tokens.astype(float)
    context = float((outputs * (trace.prompt_tokens + outputs / 2)).sum() / outputs.sum())

    def step_s(batch: int) -> float:
        shape = decode_shape(model, float(batch), context, policy)
        return float(step_time_s(iteration_bill(model, shape, precision, policy, tp, gpu), rates))

    return batch_cap(step_s, tau, MOST_SEQS)

"""From a model on a GPU to an engine with limits: how many KV blocks fit, what its defaults are, what an iteration costs."""

from __future__ import annotations

from dataclasses import dataclass

from sim.engine.config import EngineConfig
from sim.errors import SimctlError, UsageError
from sim.memory import DEFAULT_UTILIZATION, Memory, device_memory, kv_block_count
from sim.precision import Precision
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.units import format_bytes

BIG_GPU_BYTES = 70 * 2**30


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user sets of an engine, None where its default applies. Names are vLLM's."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    block_size: int = 16
    max_model_len: int | None = None
    num_gpu_blocks: int | None = None
    enable_prefix_caching: bool = True


def default_batch_limits(gpu: GpuSpec) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) that vLLM 0.32's server takes on this GPU: larger from 70 GiB up, A100 excepted."""
    if gpu.memory_bytes >= BIG_GPU_BYTES and "a100" not in gpu.name.casefold():
        return 1024, 8192
    return 256, 2048


def plan_engine(model: ModelSpec, gpu: GpuSpec, precision: Precision, tp: int, limits: Limits) -> tuple[EngineConfig, Memory]:
    """The engine's configuration, KV blocks predicted from memory unless given.

    Raises SimctlError when the weights leave no room for KV, UsageError for limits that contradict each other.
    """
    if not 0.0 < limits.gpu_memory_utilization <= 1.0:
        raise UsageError(f"gpu memory utilization must lie in (0, 1], got {limits.gpu_memory_utilization:g}")
    seqs, budget = default_batch_limits(gpu)
    seqs = limits.max_num_seqs or min(seqs, limits.max_num_batched_tokens or seqs)
    budget = limits.max_num_batched_tokens or max(budget, seqs)
    memory = device_memory(model, gpu, precision, tp=tp, utilization=limits.gpu_memory_utilization, token_budget=budget)
    blocks = limits.num_gpu_blocks
    if blocks is None:
        blocks = kv_block_count(memory, model, precision, limits.block_size, tp)
        if blocks < 2:
            needs = format_bytes(memory.weights + memory.activations)
            has = format_bytes(memory.allowed)
            raise SimctlError(
                f"{model.name} does not fit on {tp} x {gpu.name}: weights and activations need {needs} per GPU, "
                f"and {limits.gpu_memory_utilization:g} of its memory is {has}"
            )
    config = EngineConfig(
        num_gpu_blocks=blocks,
        block_size=limits.block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=limits.max_model_len or model.max_context,
        enable_prefix_caching=limits.enable_prefix_caching,
    )
    return config, memory

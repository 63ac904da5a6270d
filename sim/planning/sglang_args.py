"""`sglang.launch_server` arguments of a pool, every limit that the simulation took written out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.engine.sglang_options import SglangOptions
from sim.errors import UsageError

if TYPE_CHECKING:
    from sim.engine.config import EngineConfig
    from sim.study.fleet_spec import PoolSpec

SET = ("schedule_policy", "max_prefill_tokens", "cuda_graph_max_bs", "overlap_schedule")  # options that a flag sets
IMAGE = "lmsysorg/sglang:v0.5.23"


def check(pool: PoolSpec) -> None:
    """Raises UsageError for what no flag of SGLang sets."""
    d = pool.deployment
    if pool.role != "serve":
        raise UsageError("--emit writes SGLang without pools of prefill and decode")
    if d.parallel.dp > 1 or d.limits.lora is not None or d.limits.kv_offloading_size is not None or not d.limits.enable_chunked_prefill:
        raise UsageError("--emit knows SGLang with chunked prefill, and without data-parallel ranks, adapters and KV in host RAM")
    if d.limits.num_gpu_blocks is not None:
        raise UsageError("--emit: SGLang sizes KV by its share of memory, not by num_gpu_blocks")
    if stray := [name for name in d.limits.options if name not in SET]:
        raise UsageError(f"--emit: no flag of SGLang sets {stray[0]}")


def flags(pool: PoolSpec, config: EngineConfig) -> list[str]:
    """Flags behind those of model and dtype."""
    d, own = pool.deployment, SglangOptions.of(config)
    seqs, budget = d.batch_limits()
    found = ["--tensor-parallel-size", str(d.tp)]
    found += ["--pipeline-parallel-size", str(d.parallel.pp)] if d.parallel.pp > 1 else []
    found += ["--ep-size", str(d.tp)] if d.parallel.expert else []
    found += ["--max-running-requests", str(seqs), "--chunked-prefill-size", str(budget), "--context-length", str(config.max_model_len)]
    found += ["--mem-fraction-static", f"{d.limits.memory_share:g}", "--page-size", str(config.block_size)]
    found += ["--schedule-policy", own.schedule_policy, "--max-prefill-tokens", str(own.max_prefill_tokens)]
    found += ["--cuda-graph-max-bs-decode", str(own.cuda_graph_max_bs)] if own.cuda_graph_max_bs else []
    found += [] if config.enable_prefix_caching else ["--disable-radix-cache"]
    found += ["--disable-cuda-graph"] if d.limits.enforce_eager else []
    return found + ([] if own.overlap_schedule else ["--disable-overlap-schedule"])

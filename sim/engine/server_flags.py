"""Flags of `vllm serve`, SGLang's server and llama.cpp's, as parameters of this program's options."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sim.engine.versions import rules_of
from sim.errors import UsageError


def _text(value: str) -> str:
    return value


def _dtype(value: str) -> str | None:
    return {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "auto": None}.get(value, value)


def _kv(value: str) -> str | None:
    return "fp8" if value.startswith("fp8") else _dtype(value)


def _quantization(value: str) -> str | None:
    return "fp8" if value == "fp8" else None  # others are the checkpoint's own


def _version(value: str) -> str | None:
    """An older version; its newest is the default, and what is newer is not known."""
    try:
        rules_of(value)
    except UsageError:
        return None
    return value


def _several(value: str) -> bool:
    return int(value) > 1


def _cache_type(value: str) -> str | None:
    return {"f16": "fp16", "bf16": "bf16", "q8_0": "int8"}.get(value.lower())


def _all_layers(value: str) -> bool | None:
    """Whether all layers are on the GPU; None for a number that may be fewer."""
    return True if value in ("all", "auto", "-1") or int(value) >= 99 else None


def gguf_name(value: str) -> str:
    """A GGUF file or repository as MODEL:TYPE, by its name: `models/Qwen3-8B-Q4_K_M.gguf`, `org/Qwen3-8B-GGUF:Q8_0`."""
    name, _, kind = value.rsplit("/", 1)[-1].removesuffix(".gguf").partition(":")
    name = re.sub(r"-GGUF$", "", name, flags=re.IGNORECASE)
    found = re.fullmatch(r"(.+?)[-._]((?:i?q\d|mxfp4|b?f16)\w*)", name, re.IGNORECASE)
    name, kind = (found[1], found[2]) if found and not kind else (name, kind)
    return f"{name}:{kind.lower()}"


Reader = Callable[[str], Any]
SHARED: dict[str, tuple[str, Reader]] = {
    "tensor-parallel-size": ("tp", int),
    "tp": ("tp", int),
    "pipeline-parallel-size": ("pipeline_parallel_size", int),
    "pp": ("pipeline_parallel_size", int),
    "q": ("dtype", _quantization),
    "data-parallel-size": ("data_parallel_size", int),
    "dp": ("data_parallel_size", int),
    "dtype": ("dtype", _dtype),
    "quantization": ("dtype", _quantization),
    "kv-cache-dtype": ("kv_dtype", _kv),
}
FLAGS: dict[str, dict[str, tuple[str, Reader]]] = {
    "vllm": SHARED
    | {
        "model": ("model", _text),
        "model_id": ("model", _text),
        "max-num-seqs": ("max_num_seqs", _text),
        "max-num-batched-tokens": ("max_num_batched_tokens", int),
        "max-model-len": ("max_model_len", _text),
        "gpu-memory-utilization": ("gpu_memory_utilization", _text),
        "block-size": ("block_size", int),
        "long-prefill-token-threshold": ("long_prefill_token_threshold", int),
        "scheduling-policy": ("policy", _text),
        "num-gpu-blocks-override": ("num_gpu_blocks", int),
        "kv-offloading-size": ("kv_offloading_size", float),
        "prefill-schedule-interval": ("prefill_schedule_interval", int),
        "max-lora-rank": ("max_lora_rank", int),
        "max-loras": ("max_loras", int),
        "engine-version": ("engine_version", _version),
    },
    "sglang": SHARED
    | {
        "model-path": ("model", _text),
        "model": ("model", _text),
        "tp-size": ("tp", int),
        "dp-size": ("data_parallel_size", int),
        "max-running-requests": ("max_num_seqs", _text),
        "chunked-prefill-size": ("max_num_batched_tokens", int),
        "context-length": ("max_model_len", _text),
        "mem-fraction-static": ("gpu_memory_utilization", _text),
        "page-size": ("block_size", int),
        "ep-size": ("enable_expert_parallel", _several),
        "ep": ("enable_expert_parallel", _several),
    },
    "llamacpp": {
        "m": ("model", gguf_name),
        "model": ("model", gguf_name),
        "hf": ("model", gguf_name),
        "hf-repo": ("model", gguf_name),
        "c": ("max_model_len", int),
        "ctx-size": ("max_model_len", int),
        "np": ("max_num_seqs", int),
        "parallel": ("max_num_seqs", int),
        "b": ("max_num_batched_tokens", int),
        "batch-size": ("max_num_batched_tokens", int),
        "ub": ("n_ubatch", int),
        "ubatch-size": ("n_ubatch", int),
        "ctk": ("kv_dtype", _cache_type),
        "cache-type-k": ("kv_dtype", _cache_type),
        "ctv": ("kv_dtype", _cache_type),
        "cache-type-v": ("kv_dtype", _cache_type),
        "ngl": ("all_layers", _all_layers),
        "n-gpu-layers": ("all_layers", _all_layers),
    },
}
SWITCHES: dict[str, tuple[str, Any]] = {
    "ep": ("enable_expert_parallel", True),
    "enable-expert-parallel": ("enable_expert_parallel", True),
    "enable-prefix-caching": ("enable_prefix_caching", True),
    "no-enable-prefix-caching": ("enable_prefix_caching", False),
    "disable-radix-cache": ("enable_prefix_caching", False),
    "enable-chunked-prefill": ("enable_chunked_prefill", True),
    "no-enable-chunked-prefill": ("enable_chunked_prefill", False),
    "enforce-eager": ("enforce_eager", True),
    "disable-cuda-graph": ("enforce_eager", True),
    "enable-lora": ("enable_lora", True),
    "async-scheduling": ("engine_option", ["async_scheduling=true"]),
    "no-async-scheduling": ("engine_option", ["async_scheduling=false"]),
}
DRAFTERS = {"ngram": "ngram", "eagle": "eagle", "eagle3": "eagle", "mtp": "eagle", "draft_model": "draft_model"}

"""Flags of `vllm serve`, SGLang's server and llama.cpp's, as fields of Limits and of a deployment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sim.engine.versions import known_version
from sim.errors import UsageError


def _text(value: str) -> str:
    return value


def _count(value: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d*", value):
        raise ValueError(f"must be a whole number from 1 up, got {value[:40]!r}")
    return int(value)


def _dtype(value: str) -> str | None:
    return {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "auto": None}.get(value, value)


def _kv(value: str) -> str | None:
    return "fp8" if value.startswith("fp8") else _dtype(value)


def _quantization(value: str) -> str | None:
    return "fp8" if value == "fp8" else None  # others are the checkpoint's own


def _several(value: str) -> bool:
    return int(value) > 1


def _cache_type(value: str) -> str | None:
    return {"f16": "fp16", "bf16": "bf16", "q8_0": "int8"}.get(value.lower())


def _micro_batch(value: str) -> dict[str, int]:
    return {"n_ubatch": _count(value)}


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
    "tensor-parallel-size": ("tp", _count),
    "tp": ("tp", _count),
    "pipeline-parallel-size": ("pipeline_parallel_size", _count),
    "pp": ("pipeline_parallel_size", _count),
    "q": ("dtype", _quantization),
    "data-parallel-size": ("data_parallel_size", _count),
    "dp": ("data_parallel_size", _count),
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
        "max-num-batched-tokens": ("max_num_batched_tokens", _count),
        "max-model-len": ("max_model_len", _text),
        "gpu-memory-utilization": ("gpu_memory_utilization", _text),
        "block-size": ("block_size", _count),
        "long-prefill-token-threshold": ("long_prefill_token_threshold", int),
        "scheduling-policy": ("policy", _text),
        "num-gpu-blocks-override": ("num_gpu_blocks", _count),
        "kv-offloading-size": ("kv_offloading_size", float),
        "prefill-schedule-interval": ("prefill_schedule_interval", int),
        "max-lora-rank": ("max_lora_rank", _count),
        "max-loras": ("max_loras", _count),
        "engine-version": ("engine_version", known_version),
        "linear-backend": ("linear_backend", str.lower),
        "kv-cache-memory-bytes": ("kv_cache_memory_bytes", _text),
    },
    "sglang": SHARED
    | {
        "model-path": ("model", _text),
        "model": ("model", _text),
        "tp-size": ("tp", _count),
        "dp-size": ("data_parallel_size", _count),
        "max-running-requests": ("max_num_seqs", _text),
        "chunked-prefill-size": ("max_num_batched_tokens", _count),
        "context-length": ("max_model_len", _text),
        "mem-fraction-static": ("gpu_memory_utilization", _text),
        "page-size": ("block_size", _count),
        "max-total-tokens": ("max_total_tokens", _text),
        "ep-size": ("enable_expert_parallel", _several),
        "ep": ("enable_expert_parallel", _several),
    },
    "llamacpp": {
        "m": ("model", gguf_name),
        "model": ("model", gguf_name),
        "hf": ("model", gguf_name),
        "hf-repo": ("model", gguf_name),
        "c": ("max_model_len", _count),
        "ctx-size": ("max_model_len", _count),
        "np": ("max_num_seqs", _count),
        "parallel": ("max_num_seqs", _count),
        "b": ("max_num_batched_tokens", _count),
        "batch-size": ("max_num_batched_tokens", _count),
        "ub": ("options", _micro_batch),
        "ubatch-size": ("options", _micro_batch),
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
    "async-scheduling": ("options", {"async_scheduling": True}),
    "no-async-scheduling": ("options", {"async_scheduling": False}),
}
DRAFTERS = {"ngram": "ngram", "eagle": "eagle", "eagle3": "eagle3", "mtp": "eagle", "draft_model": "draft_model"}
# of names, ports, logs and keys: they change no time
NO_MATTER = re.compile(
    r"m|host|port|uds|served-model-name|model-name|api-key|trust-remote-code|download-dir|tokenizer.*|chat-template.*|.*log.*|revision|"
    r"(random-)?seed|root-path|allowed-.*|ssl-.*|enable-auto-tool-choice|tool-call-parser|reasoning-parser|uvicorn.*|response-role|"
    r"load-format|middleware|lora-modules|fa|flash-attn|cb|cont-batching|t|threads|jinja|alias|mlock|no-mmap|metrics|no-webui|"
    r"enable-metrics|model-id|model-dir|is-prefill-worker|is-decode-worker|enable-cache-report|enable-prompt-tokens-details|"
    r"grammar-backend|sampling-backend"
)


def split_flags(engine: str, words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(flag, value) of a server's words, value None of a switch; a word that belongs to no flag comes as ("", word)."""
    known, rest = FLAGS.get(engine, {}), list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            yield "", word
            continue
        flag, equals, value = word.lstrip("-").partition("=")
        flag = flag if flag == "model_id" else flag.replace("_", "-")
        if flag in SWITCHES and flag not in known and not (equals and value.lower() == "false"):
            yield flag, None
        else:
            yield flag, rest.pop(0) if not equals and rest and not rest[0].startswith("--") else value


def read_flag(name: str, engine: str, flag: str, value: str | None, options: dict[str, Any]) -> str:
    """Put what a flag says into `options`; what it says beyond them, or nothing. UsageError, of the file `name`, for no value."""
    known = FLAGS.get(engine, {})
    if value is None:
        option, setting = SWITCHES[flag]
        _put(options, option, setting)
    elif flag in ("speculative-config", "sc"):
        return _drafts(name, value, options)
    elif flag in known:
        option, read = known[flag]
        try:
            setting = read(value)
        except ValueError as error:
            raise UsageError(f"{name}: --{flag} {error if read in (_count, _micro_batch) else f'is no number: {value[:40]!r}'}") from None
        if setting is not None:
            _put(options, option, setting)
        elif option == "dtype" and flag != "dtype":
            return f"--quantization {value} (the checkpoint's own is taken)"
        elif flag != "dtype":
            return f"--{flag} {value[:40]}"
    elif not NO_MATTER.fullmatch(flag):
        return f"--{flag}"
    return ""


def _put(options: dict[str, Any], option: str, setting: Any) -> None:
    options[option] = options.get(option, {}) | setting if isinstance(setting, dict) else setting


def _drafts(name: str, text: str, options: dict[str, Any]) -> str:
    """Drafts, whose synthetic acceptance may be written beside them."""
    try:
        said = json.loads(text)
        drafts = {"draft_tokens": int(said["num_speculative_tokens"])}
        method = str(said.get("method") or ("draft_model" if said.get("model") else "ngram"))
        shares = ",".join(f"{float(share):g}" for share in said.get("synthetic_acceptance_rates") or ())
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{name}: --speculative-config needs num_speculative_tokens in a JSON object") from None
    if method not in DRAFTERS:
        return f"--speculative-config of method {method}"
    accepted = {"acceptance_per_position": shares} if shares else {}
    options["options"] = options.get("options", {}) | drafts | {"drafter": DRAFTERS[method]} | accepted
    if method == "draft_model" and said.get("model"):
        options["draft_model"] = str(said["model"])
    return ""

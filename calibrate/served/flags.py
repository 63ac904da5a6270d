"""Engine limits, drafts, adapters and parallelism among a server's command-line flags."""

from __future__ import annotations

import json
import re
from typing import Any

from sim.errors import UsageError
from sim.specs.lora import Lora
from sim.specs.model import ModelSpec
from sim.specs.models import get_model
from sim.specs.parallel import Parallel
from sim.study.deployment import Limits

VLLM = {n: n.replace("_", "-") for n in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")}
VLLM["num_gpu_blocks"] = "num-gpu-blocks-override"
SGLANG = {
    "max_num_seqs": "max-running-requests",
    "max_num_batched_tokens": "chunked-prefill-size",
    "max_model_len": "context-length",
    "block_size": "page-size",
    "num_gpu_blocks": "max-total-tokens",
}
# read here or by whoever reads the file; weights and KV are of the types that the file says itself
BOTH = {"tensor-parallel-size", "kv-cache-dtype", "dtype", "quantization", "model-path"}
READ = {
    "vllm": BOTH | {*VLLM.values(), "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel", "gpu-memory-utilization"}
    | {"kv-cache-memory-bytes", "enforce-eager", "enable-lora", "max-lora-rank", "max-loras", "speculative-config"}
    | {"async-scheduling", "no-async-scheduling", "enable-prefix-caching", "no-enable-prefix-caching", "scheduler-cls"},
    "sglang": BOTH | {*SGLANG.values(), "tp-size", "mem-fraction-static", "disable-radix-cache", "disable-cuda-graph"},
}  # fmt: skip
# of names, ports, logs and keys: they change no time
NO_MATTER = re.compile(
    r"m|host|port|uds|served-model-name|model-name|api-key|trust-remote-code|download-dir|tokenizer.*|chat-template.*|.*log.*|revision|"
    r"(random-)?seed|root-path|allowed-.*|ssl-.*|enable-auto-tool-choice|tool-call-parser|reasoning-parser|uvicorn.*|response-role|"
    r"load-format|middleware|lora-modules|fa|flash-attn|cb|cont-batching|t|threads|jinja|alias|mlock|no-mmap|metrics|no-webui|"
    r"enable-metrics|model-id|model-dir|is-prefill-worker|is-decode-worker|enable-cache-report|enable-prompt-tokens-details|"
    r"grammar-backend|sampling-backend"
)


def limits_of_flags(flags: str, lora_share: float = 1.0, engine: str = "vllm") -> Limits:
    """Engine limits from a server's command-line flags; the engine's defaults for the rest. Where adapters are served, `lora_share` of the
    requests ask for one. UsageError where one is not a number.
    """
    if engine == "sglang":  # a page is a token, and the suite's requests say that they ignore the end of a text
        limits: dict[str, Any] = {name: value for name, flag in SGLANG.items() if (value := whole_flag(flags, flag)) is not None}
        limits |= {"enforce_eager": "--disable-cuda-graph" in flags, "enable_prefix_caching": "--disable-radix-cache" not in flags}
        share = _number(flags, "mem-fraction-static")
        return Limits(engine, gpu_memory_utilization=share, options={"ignore_eos": True}, **{"block_size": 1, **limits})
    chosen: dict[str, Any] = {name: value for name, flag in VLLM.items() if (value := whole_flag(flags, flag)) is not None}
    chosen["gpu_memory_utilization"] = _number(flags, "gpu-memory-utilization")
    chosen["enforce_eager"] = "--enforce-eager" in flags
    if "--enable-lora" in flags:
        chosen["lora"] = Lora(whole_flag(flags, "max-lora-rank") or 16, whole_flag(flags, "max-loras") or 1, lora_share)
    chosen["draft"], drafts = _drafts(flags)
    options = drafts | ({"async_scheduling": False} if "--no-async-scheduling" in flags else {})
    return Limits(**chosen, enable_prefix_caching="--no-enable-prefix-caching" not in flags, options=options)


def unread(flags: str, engine: str = "vllm") -> tuple[str, ...]:
    """A note of each flag that may change times and that no simulation of this server takes."""
    names = dict.fromkeys(re.findall(r"(?<!\S)--([a-z][\w-]*)", flags))
    known = READ.get(engine, set())
    return tuple(f"its server's --{name} is not simulated" for name in names if name not in known and not NO_MATTER.fullmatch(name))


def parallel_of_flags(flags: str) -> Parallel:
    """Stages, ranks and whether experts stay whole. UsageError where one is not a number."""
    pp, dp = (whole_flag(flags, f"{name}-parallel-size") or 1 for name in ("pipeline", "data"))
    return Parallel(pp, dp, "--enable-expert-parallel" in flags)


def _drafts(flags: str) -> tuple[ModelSpec | None, dict[str, Any]]:
    """The draft model, known by the last part of its name, and engine options of drafts, whose synthetic acceptance is written beside them.
    UsageError where the setting is not JSON, or its model is not known.
    """
    if not (found := re.search(r"--speculative-config[ =]'?(\{[^}]*\})", flags)):
        return None, {}
    try:
        said = json.loads(found[1])
        options = {"draft_tokens": int(said["num_speculative_tokens"]), "drafter": str(said["method"])}
        shares = said.get("synthetic_acceptance_rates")
        options |= {"acceptance_per_position": ",".join(f"{float(share):g}" for share in shares)} if shares else {}
        name = str(said["model"]).rstrip("/").rpartition("/")[2] if options["drafter"] == "draft_model" else ""
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"server flag --speculative-config: not a method and a number of drafts: {found[1]!r}") from None
    return get_model(name) if name else None, options


def whole_flag(flags: str, name: str) -> int | None:
    """A flag that counts; None where it is not among them. UsageError unless it is a whole number from 1 up."""
    value = _number(flags, name)
    if value is not None and (value < 1 or value != value // 1):
        raise UsageError(f"server flag --{name}: must be a whole number from 1 up, got {value:g}")
    return None if value is None else int(value)


def _number(flags: str, name: str) -> float | None:
    found = re.findall(rf"--{name}[ =](\S+)", flags)
    if not found:
        return None
    try:
        return float(found[-1])  # given twice, the last counts
    except ValueError:
        raise UsageError(f"server flag --{name}: not a number: {found[-1]!r}") from None

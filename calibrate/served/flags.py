"""What a measured server's command line says: its limits and parallelism."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from sim.engine.server_flags import NotSimulated, read_flag, split_flags
from sim.errors import UsageError
from sim.specs.lora import Lora
from sim.specs.models import get_model
from sim.specs.parallel import Parallel
from sim.study.deployment import Limits
from sim.units import parse_tokens

# read by whoever reads the file; weights and KV are of the types that the file says itself
ELSEWHERE = {"scheduler-cls", "dtype", "quantization", "kv-cache-dtype", "model", "model-path"}
LIMITS = {field.name for field in fields(Limits)}
NUMBERS: dict[str, Callable[[str], float]] = {
    "max_num_seqs": int,
    "max_model_len": parse_tokens,
    "gpu_memory_utilization": float,
    "max_total_tokens": int,
}


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """What a server's command line says: engine limits, GPUs over which tensors are split, stages and ranks, bytes of its KV pool where it
    gives them, and a note of each flag that may change times and that no simulation of this server takes.
    """

    limits: Limits
    tp: int
    parallel: Parallel
    pool_bytes: int | None
    unread: tuple[str, ...]


def read_flags(flags: str, lora_share: float = 1.0, engine: str = "vllm") -> ServerFlags:
    """A server's command-line flags; the engine's defaults for the rest. Where adapters are served, `lora_share` of the requests ask for
    one. UsageError where one is not a number, or a draft model is not known.
    """
    said: dict[str, Any] = {}
    words = [word.replace("'", "") for word in re.findall(r"(?:[^\s{]|\{[^}]*\})+", flags)]
    unread = [_unread(engine, *pair, said) for pair in split_flags(engine, words) if pair[0] not in ("", *ELSEWHERE)]
    if engine == "sglang" and said.pop("data_parallel_size", 1) > 1:
        unread.append("--dp-size")
    for name, kind in NUMBERS.items():
        if said.get(name, "auto") != "auto":
            said[name] = _number(name, said[name], kind)
    pool_bytes = said.get("options", {}).pop("kv_cache_memory_bytes", None)
    limits: dict[str, Any] = {"enable_prefix_caching": True} | {name: value for name, value in said.items() if name in LIMITS}
    if said.get("enable_lora"):
        limits["lora"] = Lora(said.get("max_lora_rank", 16), said.get("max_loras", 1), lora_share)
    if "draft_model" in said:  # known by the last part of its name
        limits["draft"] = get_model(said["draft_model"].rstrip("/").rpartition("/")[2])
    if engine == "sglang":  # a page is a token, and the suite's requests say that they ignore the end of a text
        limits = {"block_size": 1, **limits, "options": {"ignore_eos": True, **limits.get("options", {})}}
        if "max_total_tokens" in said:
            limits["num_gpu_blocks"] = said["max_total_tokens"] // limits["block_size"]
    parallel = Parallel(said.get("pipeline_parallel_size", 1), said.get("data_parallel_size", 1), said.get("enable_expert_parallel", False))
    notes = tuple(f"its server's {flag} is not simulated" for flag in unread if flag)
    return ServerFlags(Limits(engine, **limits), said.get("tp", 1), parallel, pool_bytes, notes)


def _unread(engine: str, flag: str, value: str | None, said: dict[str, Any]) -> str:
    """Put what a flag says into `said`; the flag itself where it may change times and nothing here stands for it."""
    try:
        return read_flag("server flags", engine, flag, value, said).partition(" (")[0]
    except NotSimulated:
        return f"--{flag}"


def _number(name: str, value: Any, kind: Callable[[Any], float]) -> Any:
    try:
        number = kind(value)
    except ValueError:
        number = 0
    if number <= 0:
        raise UsageError(
            f"server flags: --{name.replace('_', '-')} must be a {'number' if kind is float else 'whole number from 1 up'}, got {value!r}"
        )
    return number

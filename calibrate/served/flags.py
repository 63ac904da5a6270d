"""Engine limits and parallelism of a measured server, from its command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from sim.engine.server_flags import read_flag, split_flags
from sim.errors import UsageError
from sim.specs.lora import Lora
from sim.specs.models import get_model
from sim.specs.parallel import Parallel
from sim.study.deployment import Limits
from sim.units import parse_tokens

# read by whoever reads the file; weights and KV are of the types that the file says itself
ELSEWHERE = {"kv-cache-memory-bytes", "scheduler-cls", "max-total-tokens", "dtype", "quantization", "kv-cache-dtype", "model", "model-path"}
LIMITS = {field.name for field in fields(Limits)}


def limits_of_flags(flags: str, lora_share: float = 1.0, engine: str = "vllm") -> Limits:
    """Engine limits from a server's command-line flags; the engine's defaults for the rest. Where adapters are served, `lora_share` of the
    requests ask for one. UsageError where one is not a number, or a draft model is not known.
    """
    said = _said(flags, engine)[0]
    limits: dict[str, Any] = {"enable_prefix_caching": True} | {name: value for name, value in said.items() if name in LIMITS}
    for name, kind in (("max_num_seqs", int), ("max_model_len", parse_tokens), ("gpu_memory_utilization", float)):
        if limits.get(name, "auto") != "auto":
            limits[name] = _number(name, limits[name], kind)
    if said.get("enable_lora"):
        limits["lora"] = Lora(said.get("max_lora_rank", 16), said.get("max_loras", 1), lora_share)
    if "draft_model" in said:  # known by the last part of its name
        limits["draft"] = get_model(said["draft_model"].rstrip("/").rpartition("/")[2])
    if engine == "sglang":  # a page is a token, and the suite's requests say that they ignore the end of a text
        limits = {"block_size": 1, **limits, "options": {"ignore_eos": True, **limits.get("options", {})}}
        if (tokens := whole_flag(flags, "max-total-tokens")) is not None:
            limits["num_gpu_blocks"] = tokens // limits["block_size"]
    return Limits(engine, **limits)


def unread(flags: str, engine: str = "vllm") -> tuple[str, ...]:
    """A note of each flag that may change times and that no simulation of this server takes."""
    return tuple(f"its server's {flag} is not simulated" for flag in _said(flags, engine)[1])


def parallel_of_flags(flags: str, engine: str = "vllm") -> Parallel:
    """Stages, ranks and whether experts stay whole. UsageError where one is not a number."""
    said = _said(flags, engine)[0]
    return Parallel(said.get("pipeline_parallel_size", 1), said.get("data_parallel_size", 1), said.get("enable_expert_parallel", False))


def tp_of_flags(flags: str, engine: str = "vllm") -> int:
    """GPUs over which tensors are split. UsageError where that is not a number."""
    return int(_said(flags, engine)[0].get("tp", 1))


def whole_flag(flags: str, name: str) -> int | None:
    """A flag that counts; None where it is not among them. UsageError unless it is a whole number from 1 up."""
    found = re.findall(rf"--{name}[ =](\S+)", flags)
    return _number(name, found[-1], int) if found else None  # given twice, the last counts


def _said(flags: str, engine: str) -> tuple[dict[str, Any], list[str]]:
    """What flags say by the names of options, and those that no option stands for."""
    options: dict[str, Any] = {}
    words = [word.replace("'", "") for word in re.findall(r"(?:[^\s{]|\{[^}]*\})+", flags)]
    unused = [read_flag("server flags", engine, *pair, options) for pair in split_flags(engine, words) if pair[0] not in ("", *ELSEWHERE)]
    if engine == "sglang" and options.pop("data_parallel_size", 1) > 1:
        unused.append("--dp-size")
    return options, [flag for flag in unused if flag]


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

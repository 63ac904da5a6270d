"""Kernel efficiencies from latency tables: the share of the datasheet's peak that a good kernel reaches.

Each estimate is the line latency = launch + work / rate over calls large enough to be bound by that work, with its spread over shapes.
Tables are CSV files, one per operation, with the columns named below; they are read, never shipped.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sim.errors import UsageError
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu

Row = dict[str, str]
SYSTEMS = {"a100_sxm": "A100-80G", "h100_sxm": "H100", "b200_sxm": "B200"}
LEAST_CALLS = 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """One GPU's log rate and its standard error: a share of the datasheet's peak where that bounds the rate, else its value."""

    gpu: str
    rate: str
    log_value: float
    error: float
    calls: int


@dataclass(frozen=True, slots=True)
class _Operation:
    """How a table shows a rate: its file, the work of a call (bytes or flops; 0 leaves the call out), and the datasheet's peak."""

    rate: str
    file: str
    work: Callable[[Row, GpuSpec], float]
    peak: Callable[[GpuSpec], float]


def _weight_bytes(row: Row, gpu: GpuSpec) -> float:
    m, n, k = (float(row[c]) for c in ("m", "n", "k"))
    # few rows: bound by the weights; small matrices sit in the cache, so they say nothing of the memory
    return 2 * n * k if m <= 16 and 2 * n * k > 0.5 * (gpu.l2_bytes or 5e7) else 0.0


def _gemm_flops(row: Row, gpu: GpuSpec) -> float:
    m, n, k = (float(row[c]) for c in ("m", "n", "k"))
    return 2 * m * n * k if m >= 1024 and m % 128 == 0 else 0.0


def _kv_bytes(row: Row, gpu: GpuSpec) -> float:
    kv = 4.0 * float(row["batch_size"]) * float(row["context_len"]) * float(row["num_key_value_heads"]) * float(row["head_dim"])
    return kv if kv > 2e8 else 0.0


def _attention_flops(row: Row, gpu: GpuSpec) -> float:
    batch, length, heads, size = (float(row[c]) for c in ("batch_size", "isl", "num_heads", "head_dim"))
    return 2 * batch * heads * size * length**2 if length >= 4096 else 0.0


def _all_reduce_bytes(row: Row, gpu: GpuSpec) -> float:
    count = float(row["num_gpus"])
    moved = 2 * (count - 1) / count * float(row["bytes"])
    return moved if row["backend"] == "vllm_graph" and moved > 1e6 else 0.0


OPERATIONS = (
    _Operation("beta", "gemm_bf16_subset", _weight_bytes, lambda g: g.memory_bandwidth),
    _Operation("linear_flops_per_s", "gemm_bf16_subset", _gemm_flops, lambda g: g.flops["bf16"]),
    _Operation("beta_kv", "decode_attention_bf16_gqa", _kv_bytes, lambda g: g.memory_bandwidth),
    _Operation("attention_flops_per_s", "prefill_attention_bf16_gqa", _attention_flops, lambda g: g.flops["bf16"]),
    _Operation("comm_bytes_per_s", "allreduce_bf16", _all_reduce_bytes, lambda g: g.gpu_link_bandwidth or np.nan),
)


def estimates(folder: Path) -> list[Estimate]:
    """Estimates of every (GPU, rate) that the tables in `folder` show. UsageError when a table is missing or has too few calls."""
    found = []
    for operation in OPERATIONS:
        path = folder / f"{operation.file}.csv"
        if not path.exists():
            raise UsageError(f"no table {path}")
        with path.open(encoding="utf-8", newline="") as handle:
            rows = list(csv.DictReader(handle))
        for system, name in SYSTEMS.items():
            found.append(_estimate(operation, get_gpu(name), [r for r in rows if r["system"] == system]))
    return found


def _estimate(operation: _Operation, gpu: GpuSpec, rows: Iterable[Row]) -> Estimate:
    points = [(operation.work(row, gpu), float(row["latency_ms"]) / 1e3) for row in rows]
    work, seconds = np.array([p for p in points if p[0] > 0]).reshape(-1, 2).T
    if work.size < LEAST_CALLS:
        raise UsageError(f"{operation.file}: {work.size} calls show {operation.rate} of {gpu.name}, at least {LEAST_CALLS} are needed")
    # relative errors: weigh each call by 1/t, so that a large one does not decide alone; the launch cost cannot be negative
    design = np.stack([1 / seconds, work / seconds], axis=1)
    launch, per_unit = np.linalg.lstsq(design, np.ones(work.size), rcond=None)[0]
    if launch < 0:
        launch, per_unit = 0.0, float(np.median(seconds / work))
    shares = np.log(work / np.maximum(seconds - launch, 0.2 * seconds) / operation.peak(gpu))
    centre = float(-np.log(per_unit * operation.peak(gpu)))
    spread = float(1.4826 * np.median(np.abs(shares - np.median(shares))))
    return Estimate(gpu.name, operation.rate, centre, max(spread, 0.01), int(work.size))

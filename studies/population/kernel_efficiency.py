"""Kernel efficiencies from latency tables: the share of the datasheet's peak that a good kernel reaches.

Each estimate is the line latency = launch + work / rate over calls large enough to be bound by that work, with its spread over shapes.
Bandwidth and flops of GEMMs are those of the fastest GEMM, which GEMM surfaces are measured by (`studies.kernel_tables.gemm_fit`).
Tables (`studies.kernel_tables.latency_tables`) are read, never shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cost.all_reduce import wire_bytes
from sim.cost.gemm import gemms_on, roofline
from sim.cost.mlp_work import expected_experts
from sim.rates.priors import gpu_link
from sim.specs.gpu import GpuSpec
from sim.specs.precision import ACTIVATION_BYTES, STATE_BYTES
from studies.kernel_tables.gemm_fit import surfaces
from studies.kernel_tables.latency_tables import Table

Array = NDArray[np.float64]
LEAST_CALLS = 8
RUN_ERROR = 0.03  # log sd: a table is one run on one machine


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
    """A rate in a table: its name, the work of its calls (bytes or flops; 0 leaves a call out), and the datasheet's peak."""

    rate: str
    table: str
    work: Callable[[Table], Array]
    peak: Callable[[GpuSpec], float]


def _plain_attention(t: Table) -> Array:
    """1 for rows of grouped heads of 128 elements in 16 bits, without a window; 0 for others."""
    group = t.number("num_heads") / t.number("num_key_value_heads")
    sixteen = t.text("kv_cache_dtype", "bfloat16") == "bfloat16"
    return np.where(sixteen & (t.number("window_size", 0.0) == 0) & (t.number("head_dim") == 128) & (group >= 4) & (group <= 8), 1.0, 0.0)


def _kv_bytes(t: Table) -> Array:
    context = t.number("batch_size") * (t.number("step") + 1.0)
    kv = 2.0 * ACTIVATION_BYTES * context * t.number("num_key_value_heads") * t.number("head_dim")
    return np.where(kv > 2e8, kv, 0.0) * _plain_attention(t)


def _attention_flops(t: Table) -> Array:
    length = t.number("isl")
    flops = 2.0 * t.number("batch_size") * t.number("num_heads") * t.number("head_dim") * length**2
    return np.where(length >= 4096, flops, 0.0) * _plain_attention(t)


def _all_reduce_bytes(t: Table) -> Array:
    sizes = zip(t.number("num_gpus"), ACTIVATION_BYTES * t.number("message_size"), strict=True)
    moved = np.array([wire_bytes(float(size), int(gpus), t.gpu) for gpus, size in sizes])
    kept = (t.text("backend") == "vllm_graph") & (moved > 1e6) & (moved < 2e8)
    if not t.gpu.gpu_link_bandwidth:  # more than two cards share root complexes
        kept &= t.number("num_gpus") == 2
    return np.where(kept, moved, 0.0)


def _experts(t: Table) -> tuple[Array, Array, NDArray[np.bool_]]:
    """(weights of an expert, rows of all experts, whether a row is in 16 bits and on whole experts)."""
    one = 3.0 * t.number("hidden_size") * t.number("inter_size") / t.number("moe_tp_size")
    kept = (t.text("moe_dtype") == "bfloat16") & (t.number("moe_ep_size") == 1) & (t.number("moe_tp_size") <= 2)
    return one, t.number("num_tokens") * t.number("topk"), kept


def _expert_bytes(t: Table) -> Array:
    one, _, kept = _experts(t)
    tokens = t.number("num_tokens")
    read = ACTIVATION_BYTES * one * expected_experts(t.number("num_experts"), t.number("topk"), tokens)
    return np.where(kept & (tokens == 1) & (read > 1e8), read, 0.0)  # one token chooses as many experts under every distribution


def _expert_flops(t: Table) -> Array:
    one, rows, kept = _experts(t)
    return np.where(kept & (rows >= 512 * t.number("num_experts")), 2.0 * rows * one, 0.0)


def _state_bytes(t: Table) -> Array:
    state = t.number("batch_size") * t.number("num_v_heads") * t.number("head_k_dim") * t.number("head_v_dim")
    moved = 2.0 * STATE_BYTES * state
    recurrent = np.char.startswith(t.text("kernel_source"), "fused_recurrent") & (t.text("phase") == "generation")
    return np.where(recurrent & (moved > 2e8), moved, 0.0)


OPERATIONS = (
    _Operation("beta_expert", "moe_perf", _expert_bytes, lambda g: g.memory_bandwidth),
    _Operation("beta_kv", "generation_attention_perf", _kv_bytes, lambda g: g.memory_bandwidth),
    _Operation("beta_state", "gdn_perf", _state_bytes, lambda g: g.memory_bandwidth),
    _Operation("expert_flops_per_s", "moe_perf", _expert_flops, lambda g: g.flops["bf16"]),
    _Operation("attention_flops_per_s", "context_attention_perf", _attention_flops, lambda g: g.flops["bf16"]),
    _Operation("comm_bytes_per_s", "custom_allreduce_perf", _all_reduce_bytes, gpu_link),
)
BY_KERNELS = ("beta", "linear_flops_per_s", *(operation.rate for operation in OPERATIONS))
TABLES = ("gemm_perf", *dict.fromkeys(operation.table for operation in OPERATIONS))


def estimates(tables: Sequence[Table], left_out: str = "") -> list[Estimate]:
    """Estimates of every (GPU, rate) that the tables show; a rate that fewer than LEAST_CALLS calls show is left out. `left_out` is a GPU
    whose own GEMMs count for nothing.
    """
    found = [each for table in tables if table.name == "gemm_perf" for each in _of_gemm(table, left_out)]
    for operation in OPERATIONS:
        per_table = (_estimate(operation, table) for table in tables if table.name == operation.table)
        found += [each for each in per_table if each is not None]
    return found


def _of_gemm(table: Table, left_out: str) -> list[Estimate]:
    """Bandwidth and flops of the roofline that the GPU's GEMM efficiency is over: of our own GEMMs where there are some."""
    gpu, own = table.gpu, gemms_on(table.gpu) if table.gpu.name != left_out else None
    best = roofline(own) if own else surfaces(table)[gpu.name, "bf16"]
    shares = {"beta": best.bytes_per_s / gpu.memory_bandwidth, "linear_flops_per_s": best.flops_per_s / gpu.flops["bf16"]}
    return [Estimate(gpu.name, rate, float(np.log(share)), RUN_ERROR, len(table)) for rate, share in shares.items()]


def _estimate(operation: _Operation, table: Table) -> Estimate | None:
    work, seconds = operation.work(table), table.number("latency") / 1e3
    bound, shortest = work > 0, float(seconds.min())
    work, seconds = work[bound], seconds[bound]
    if work.size < LEAST_CALLS:
        return None
    # relative errors: weigh each call by 1/t, so that a large one does not decide alone; launching takes from nothing to the shortest call
    design = np.stack([1 / seconds, work / seconds], axis=1)
    launch, per_unit = np.linalg.lstsq(design, np.ones(work.size), rcond=None)[0]
    if not 0.0 <= launch <= shortest:
        launch = float(np.clip(launch, 0.0, shortest))
        per_unit = float(np.median((seconds - launch) / work))
    peak = operation.peak(table.gpu)
    shares = np.log(work / np.maximum(seconds - launch, 0.2 * seconds) / peak)
    centre = float(-np.log(per_unit * peak))
    sd = float(1.4826 * np.median(np.abs(shares - np.median(shares))))
    return Estimate(table.gpu.name, operation.rate, centre, max(sd, RUN_ERROR), int(work.size))

"""Seconds of a kernel table's rows by the formula: each row as the work of one call, priced at the rates of its GPU and dtype.

A row of a module (an MLA layer's attention, a layer of experts) is the work of that part of a layer, counted as `sim.cost.work` counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cost.all_reduce import wire_bytes
from sim.cost.gemm import GEMM_KERNELS, Gemm, at_rows, gemms_over_roofline
from sim.cost.rates import Rates
from sim.cost.step_time import all_reduce_s, attention_s, kernels_s, linear_s
from sim.cost.work import ATTENTION_KERNELS, EXPERT_KERNELS, Work, expected_experts
from sim.rates.posterior import rates_for
from sim.specs.gpu import GpuSpec
from sim.specs.model import LatentAttention
from sim.specs.precision import ACTIVATION_BYTES, DTYPE_BYTES, Precision
from studies.kernel_tables.latency_tables import Table

Array = NDArray[Any]
NO_WORK = Work(*([0.0] * len(Work._fields)))
# Weight dtypes as the tables name them; others are not predicted.
DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8", "int8": "int8", "nvfp4": "nvfp4", "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
}  # fmt: skip
KV_BYTES = {"bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0}
# DeepSeek-V3's attention, by heads of one GPU: what the tables of MLA modules are of.
MLA_HIDDEN, MLA = 7168, (1536, 512, 128, 64, 128)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Seconds of a table's rows [row], measured and by the formula, with what a report groups them by."""

    gpu: str
    operation: str
    dtype: Array
    size: Array  # rows of a GEMM, tokens, cached or new tokens, bytes: `axis` says which
    axis: str
    measured_s: Array
    predicted_s: Array


def predicted(table: Table) -> Predicted | None:
    """A table's rows by the formula, those of unknown dtypes left out; None for an operation that the formula has no term for."""
    operation = OPERATIONS.get(table.name)
    if operation is None:
        return None
    dtype = table.text(operation.dtype, "bfloat16")
    table = table.where(np.isin(dtype, list(DTYPES)) & (table.text("backend") != "vllm_eager"))
    dtype = table.text(operation.dtype, "bfloat16")
    seconds = np.empty(len(table))
    for name in np.unique(dtype):
        of = dtype == name
        weights = DTYPES[str(name)]
        work = operation.work(table.where(of), weights)
        seconds[of] = _busy_s(work, _rates(table.gpu, weights))
    return Predicted(table.gpu.name, operation.name, dtype, operation.size(table), operation.axis, table.number("latency") / 1e3, seconds)


@cache
def _rates(gpu: GpuSpec, weights: str) -> Rates:
    return rates_for(gpu, Precision(weights)).point


def _busy_s(work: Work, rates: Rates) -> Any:
    return kernels_s(work, rates) + linear_s(work, rates) + attention_s(work, rates) + all_reduce_s(work, rates)


def _gemm(t: Table, weights: str) -> Work:
    m, n, k = (t.number(name) for name in "mnk")
    over, kernels = np.ones(len(t)), np.zeros(len(t))
    for own_k, own_n in np.unique(np.stack([k, n], axis=1), axis=0):
        of = (k == own_k) & (n == own_n)
        known = gemms_over_roofline([(Gemm(int(own_k), int(own_n), False), 1)], Precision(weights), t.gpu)
        over[of], kernels[of] = at_rows(known, m[of]), GEMM_KERNELS if known is None else 0.0
    return NO_WORK._replace(kernels=kernels, linear_bytes=n * k * DTYPE_BYTES[weights] * over, linear_flops=2.0 * m * n * k * over)


def _quantise(t: Table, weights: str) -> Work:
    read, written = ACTIVATION_BYTES, DTYPE_BYTES["fp8"]
    return NO_WORK._replace(kernels=1.0, activation_bytes=t.number("m") * t.number("k") * (read + written))


def _kv_bytes(t: Table) -> Array:
    return np.array([KV_BYTES.get(name, ACTIVATION_BYTES) for name in t.text("kv_cache_dtype", "bfloat16")])


def _decode_attention(t: Table, weights: str) -> Work:
    window, context = t.number("window_size", 0.0), t.number("step") + 1.0
    read = t.number("batch_size") * np.where(window > 0, np.minimum(context, window), context) * t.number("head_dim")
    kv = read * 2.0 * t.number("num_key_value_heads") * _kv_bytes(t)
    return NO_WORK._replace(kernels=ATTENTION_KERNELS, kv_bytes=kv, attention_flops=4.0 * read * t.number("num_heads"))


def _prefill_attention(t: Table, weights: str) -> Work:
    window, length, cached = t.number("window_size", 0.0), t.number("isl"), t.number("step", 0.0)
    near = np.where(window > 0, np.minimum(window, length), length)
    pairs = near * (near + 1) / 2 + (length - near) * near + np.where(window > 0, 0.0, length * cached)
    per_token = t.number("batch_size") * t.number("head_dim")
    kv = (length + cached) * per_token * 2.0 * t.number("num_key_value_heads") * _kv_bytes(t)
    return NO_WORK._replace(kernels=ATTENTION_KERNELS, prefill_kv_bytes=kv, prefill_flops=4.0 * pairs * per_token * t.number("num_heads"))


def _experts(t: Table, weights: str) -> Work:
    tokens, top_k, tp, ep = (t.number(name) for name in ("num_tokens", "topk", "moe_tp_size", "moe_ep_size"))
    experts, one = t.number("num_experts"), 3.0 * t.number("hidden_size") * t.number("inter_size") / tp
    read = expected_experts(experts, top_k, tokens) / ep * one * DTYPE_BYTES[weights]
    return NO_WORK._replace(kernels=EXPERT_KERNELS, expert_bytes=read, expert_flops=2.0 * tokens * top_k / ep * one)


def _mla(t: Table, weights: str, tokens: Array) -> Work:
    """The layer's products and small kernels; attention itself is added by phase."""
    heads = t.number("num_heads")
    params = np.array([LatentAttention(int(h), *MLA).params(MLA_HIDDEN) for h in heads], dtype=float)
    return NO_WORK._replace(
        kernels=3.0 + ATTENTION_KERNELS + 5.0 * GEMM_KERNELS,
        linear_bytes=params * DTYPE_BYTES[weights],
        linear_flops=2.0 * params * tokens,
    )


def _mla_decode(t: Table, weights: str) -> Work:
    heads, batch, context = t.number("num_heads"), t.number("batch_size"), t.number("step") + 1.0
    one = LatentAttention(1, *MLA)
    kv = batch * context * one.kv_elements_per_token() * _kv_bytes(t)
    return _mla(t, weights, batch)._replace(kv_bytes=kv, attention_flops=batch * context * heads * one.attention_flops_per_pair())


def _mla_prefill(t: Table, weights: str) -> Work:
    heads, batch, length = t.number("num_heads"), t.number("batch_size"), t.number("isl")
    one = LatentAttention(1, *MLA)
    pairs = batch * (length * (length + 1) / 2 + length * t.number("step", 0.0))
    kv = batch * length * one.kv_elements_per_token() * _kv_bytes(t)
    work = _mla(t, weights, batch * length)
    return work._replace(prefill_kv_bytes=kv, prefill_flops=pairs * heads * one.prefill_flops_per_pair())


def _all_reduce(t: Table, weights: str) -> Work:
    sizes = zip(t.number("num_gpus"), ACTIVATION_BYTES * t.number("message_size"), strict=True)
    moved = np.array([wire_bytes(float(size), int(gpus), t.gpu) for gpus, size in sizes])
    return NO_WORK._replace(comm_bytes=moved, comm_ops=1.0)


@dataclass(frozen=True, slots=True)
class _Operation:
    name: str
    dtype: str  # the column that tells the dtype of weights
    axis: str
    size: Callable[[Table], Array]
    work: Callable[[Table, str], Work]


def _column(name: str) -> Callable[[Table], Array]:
    return lambda table: table.number(name)


OPERATIONS = {
    "gemm_perf": _Operation("GEMM", "gemm_dtype", "rows", _column("m"), _gemm),
    "scale_matrix_perf": _Operation("quantise", "", "rows", _column("m"), _quantise),
    "generation_attention_perf": _Operation("decode attention", "", "context", _column("step"), _decode_attention),
    "context_attention_perf": _Operation("prefill attention", "", "tokens", _column("isl"), _prefill_attention),
    "moe_perf": _Operation("experts", "moe_dtype", "tokens", _column("num_tokens"), _experts),
    "mla_generation_module_perf": _Operation("MLA decode", "gemm_type", "context", _column("step"), _mla_decode),
    "mla_context_module_perf": _Operation("MLA prefill", "gemm_type", "tokens", _column("isl"), _mla_prefill),
    "custom_allreduce_perf": _Operation("all-reduce", "", "bytes", lambda t: ACTIVATION_BYTES * t.number("message_size"), _all_reduce),
}

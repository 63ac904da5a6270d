"""Seconds of a kernel table's rows by the formula: each row as the work of one call, priced at the rates of its GPU and dtype.

A row of a module (an MLA layer's attention, a layer of experts) is the work of that part of a layer, counted as `sim.cost.work` counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cost.all_reduce import wire_bytes
from sim.cost.batch import ABSORBED_TOKENS, BatchShape
from sim.cost.coefficients import coefficients
from sim.cost.gemm import GEMM_KERNELS, Gemm, at_rows, gemms_on, gemms_over_roofline, roofline
from sim.cost.gemm_surface import surface_of
from sim.cost.mixer_work import ATTENTION_KERNELS
from sim.cost.mlp_work import EXPERT_KERNELS, expected_experts
from sim.cost.rates import Rates
from sim.cost.step_time import all_reduce_s, attention_s, kernels_s, linear_s
from sim.cost.traffic import ALL_TO_ALL_OPS
from sim.cost.work import Work, work_from
from sim.rates.posterior import rates_for
from sim.specs.gpu import GpuSpec
from sim.specs.model import Indexer, LatentAttention, LayerGroup, ModelSpec, NoMlp
from sim.specs.precision import ACTIVATION_BYTES, DTYPE_BYTES, STATE_BYTES, Precision
from studies.kernel_tables.latency_tables import Table

Array = NDArray[Any]
NO_WORK = Work(*([0.0] * len(Work._fields)))
# Weight dtypes as the tables name them; others are not predicted.
DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8", "int8": "int8", "nvfp4": "nvfp4", "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
}  # fmt: skip
KV_BYTES = {"bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0}
# Attention of DeepSeek-V3 and, with an indexer, V3.2, by heads of one GPU: what the tables of modules are of.
HIDDEN, MLA, SPARSE = 7168, (1536, 512, 128, 64, 128), Indexer(64, 128, 2048)
GDN_FLOPS = 7.0  # of an element of the state for each token
EAGER = 1.5  # calls below so many times the shortest, of kernels launched one by one, are the host's


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


def predicted(table: Table, alone: bool = False) -> list[Predicted]:
    """A table's rows by the formula, by operation, those of unknown dtypes left out; none for a table that the formula has no term for.

    `alone`: GEMMs at the flop rate that they were timed at, not at an engine's, which is 0.86 to 0.90 of it on Hopper.
    """
    return [_predicted(table, operation, alone) for operation in OPERATIONS if operation.table == table.name]


def _predicted(table: Table, operation: _Operation, alone: bool) -> Predicted:
    table = table.where(np.isin(table.text(operation.dtype, "bfloat16"), list(DTYPES)) & operation.kept(table))
    measured = table.number("latency") / 1e3 * operation.milliseconds
    if operation.eager:
        kernels = table.text("kernel_source")
        shortest = {name: measured[kernels == name].min() for name in np.unique(kernels)}
        bound = measured > EAGER * np.array([shortest[name] for name in kernels])
        table, measured = table.where(bound), measured[bound]
    dtype = table.text(operation.dtype, "bfloat16")
    seconds = np.empty(len(table))
    for name in np.unique(dtype):
        of = dtype == name
        weights = DTYPES[str(name)]
        seconds[of] = _busy_s(operation.work(table.where(of), weights), _rates(table.gpu, weights, alone))
    return Predicted(table.gpu.name, operation.name, dtype, operation.size(table), operation.axis, measured, seconds)


@cache
def _rates(gpu: GpuSpec, weights: str, alone: bool) -> Rates:
    rates = rates_for(gpu, Precision(weights)).point
    own = gemms_on(gpu)
    best = roofline(own) if own else surface_of(gpu, weights)
    return replace(rates, linear_flops_per_s=best.flops_per_s) if alone and best else rates


def _busy_s(work: Work, rates: Rates) -> Any:
    state = work.state_bytes / rates.beta_state
    return kernels_s(work, rates) + linear_s(work, rates) + attention_s(work, rates) + state + all_reduce_s(work, rates)


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


def _layer(mixer: Callable[[int], LatentAttention], shape: Callable[[Table], BatchShape], t: Table, weights: str) -> Work:
    """An attention layer without its MLP, by heads of one GPU."""
    found = np.zeros((len(Work._fields), len(t)))
    heads, cached = t.number("num_heads"), _kv_bytes(t)
    for count, size in np.unique(np.stack([heads, cached], axis=1), axis=0):
        of = (heads == count) & (cached == size)
        model = ModelSpec("", HIDDEN, 1, (LayerGroup(1, mixer(int(count)), NoMlp(), norms=0),), True, 1, final_norm=0)
        c = coefficients(model, Precision(weights, "bf16" if size == ACTIVATION_BYTES else "fp8"), 1, t.gpu)
        for i, field in enumerate(work_from(c, shape(t.where(of)))):
            found[i, of] = field
    return Work(*found)


def _decodes(t: Table) -> BatchShape:
    batch, context = t.number("batch_size"), t.number("step") + 1.0
    return BatchShape(batch, batch * context, batch * np.minimum(context, SPARSE.top_k), batch * context)


def _chunks(t: Table) -> BatchShape:
    batch, n, end = t.number("batch_size"), t.number("isl"), t.number("isl") + t.number("step", 0.0)
    ramp = np.clip(np.minimum(end, SPARSE.top_k) - (end - n), 0.0, None)
    near = ramp * (end - n + ramp) - ramp * (ramp - 1) / 2 + (n - ramp) * SPARSE.top_k
    pairs, as_heads = batch * (n * end - n * (n - 1) / 2), n > ABSORBED_TOKENS
    return BatchShape(
        prefill_seqs=batch, prefill_tokens=batch * n, prefill_context=batch * end, prefill_pairs=pairs,
        prefill_window_context=batch * np.minimum(end, SPARSE.top_k + n), prefill_window_pairs=batch * near,
        head_pairs=as_heads * pairs, head_cached=as_heads * batch * (end - n),
    )  # fmt: skip


def _recurrence(t: Table, weights: str) -> Work:
    """A convolution, or a recurrence: its state once a call, its rows read and written."""
    sequences, tokens = t.number("batch_size"), t.number("num_tokens")
    keys, values = (t.number(f"num_{of}_heads") * t.number(f"head_{of}_dim") for of in "kv")
    row, state = 2.0 * keys + values, values * t.number("head_k_dim")
    convolves = np.char.startswith(t.text("kernel_source"), "causal_conv1d")
    moved = np.where(convolves, row * (t.number("d_conv") - 1.0) * ACTIVATION_BYTES, state * STATE_BYTES)
    flops = np.where(convolves, 0.0, GDN_FLOPS * state * tokens)
    decodes = t.text("phase") != "context"
    return NO_WORK._replace(
        kernels=1.0,
        activation_bytes=tokens * ACTIVATION_BYTES * np.where(convolves, 2.0 * row, row + values),
        state_bytes=2.0 * sequences * moved,
        attention_flops=np.where(decodes, flops, 0.0),
        prefill_flops=np.where(decodes, 0.0, flops),
    )


def _swap(t: Table, weights: str) -> Work:
    """Tokens to the GPUs of their experts, or back: half of what `sim.cost.traffic` counts for a layer."""
    gpus = t.number("ep_size") * t.number("node_num")
    reached = (gpus - 1.0) * (1.0 - (1.0 - 1.0 / gpus) ** t.number("topk"))
    return NO_WORK._replace(
        comm_bytes=t.number("num_tokens") * reached * t.number("hidden_size") * ACTIVATION_BYTES, comm_ops=ALL_TO_ALL_OPS * gpus
    )


def _all_reduce(t: Table, weights: str) -> Work:
    sizes = zip(t.number("num_gpus"), ACTIVATION_BYTES * t.number("message_size"), strict=True)
    moved = np.array([wire_bytes(float(size), int(gpus), t.gpu) for gpus, size in sizes])
    return NO_WORK._replace(comm_bytes=moved, comm_ops=1.0)


@dataclass(frozen=True, slots=True)
class _Operation:
    """Rows of a table and their work. `eager`: kernels were launched one by one, so calls near the shortest show the host."""

    table: str
    name: str
    dtype: str  # the column that tells the dtype of weights
    axis: str
    size: Callable[[Table], Array]
    work: Callable[[Table, str], Work]
    kept: Callable[[Table], Array] = lambda t: t.text("backend") != "vllm_eager"
    milliseconds: float = 1.0  # a unit of `latency`
    eager: bool = False


def _column(name: str) -> Callable[[Table], Array]:
    return lambda table: table.number(name)


def _is(column: str, value: str) -> Callable[[Table], Array]:
    return lambda table: table.text(column) == value


def _sparse(heads: int) -> LatentAttention:
    return LatentAttention(heads, *MLA, indexer=SPARSE)


def _latent(heads: int) -> LatentAttention:
    return LatentAttention(heads, *MLA)


def _swaps(kernels: str, of: str) -> Callable[[Table], Array]:
    return lambda table: (table.text("comm_backend") == f"deepep_{kernels}") & (table.text("phase") == of)


STEP, NEW, TOKENS = _column("step"), _column("isl"), _column("num_tokens")
OPERATIONS = (
    _Operation("gemm_perf", "GEMM", "gemm_dtype", "rows", _column("m"), _gemm),
    _Operation("scale_matrix_perf", "quantise", "", "rows", _column("m"), _quantise),
    _Operation("generation_attention_perf", "decode attention", "", "context", STEP, _decode_attention),
    _Operation("context_attention_perf", "prefill attention", "", "tokens", NEW, _prefill_attention),
    _Operation("moe_perf", "experts", "moe_dtype", "tokens", TOKENS, _experts),
    _Operation("mla_generation_module_perf", "MLA decode", "gemm_type", "context", STEP, partial(_layer, _latent, _decodes)),
    _Operation("mla_context_module_perf", "MLA prefill", "gemm_type", "tokens", NEW, partial(_layer, _latent, _chunks)),
    _Operation("dsa_generation_module_perf", "DSA decode", "gemm_type", "context", STEP, partial(_layer, _sparse, _decodes)),
    _Operation("dsa_context_module_perf", "DSA prefill", "gemm_type", "tokens", NEW, partial(_layer, _sparse, _chunks), eager=True),
    *(
        _Operation(
            f"{table}_perf", f"{name} {of}", "", "tokens", TOKENS, _recurrence, _is("phase", phase), eager=(table, of) == ("kda", "prefill")
        )
        for table, name in (("gdn", "GDN"), ("kda", "KDA"))
        for of, phase in (("decode", "generation"), ("verify", "verify"), ("prefill", "context"))
    ),
    _Operation("custom_allreduce_perf", "all-reduce", "", "bytes", lambda t: ACTIVATION_BYTES * t.number("message_size"), _all_reduce),
    *(
        _Operation("moe_a2a_perf", f"{of} {kernels}", "", "tokens", TOKENS, _swap, _swaps(kernels, of), milliseconds=1e-3)
        for kernels in ("ll", "ht")
        for of in ("dispatch", "combine")
    ),
)

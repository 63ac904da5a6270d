"""Work of an iteration: what it moves and computes on each GPU. Bytes, flops and counts; never seconds.

A pure function of the model, the batch shape, the attention policy, the precision and the parallelism. Every field of the
shape may be a float, an array or a tensor; the same lines run for all.

    linear       weights and flops of all layers' GEMMs but routed experts', times their measured time over the roofline
    head         output projection, of the rows that are sampled
    expert       the expected number of distinct routed experts
    kernels      small kernels: norms, rotary, KV write, attention, activation, router; and the floor of a GEMM that was not measured
    activation   bytes that rows pass through memory between GEMMs
    kv           bytes read and written in HBM: full-context layers, sliding-window layers at min(context, window)
    attention    flops of decodes; prefill chunks' apart
    state        recurrent state of linear-attention layers, read and written: independent of the context
    summary      block summaries scanned to select (per-channel minimum and maximum of each unit)
    link         bytes crossing the host link, when the KV cache lives in host RAM
    comm         tensor-parallel all-reduces: two per layer; tokens to experts and back; activations to the next pipeline stage
    launch       layers that the host launches kernel by kernel
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.cost.all_reduce import wire_bytes
from sim.cost.batch import DENSE, BatchShape
from sim.cost.coefficients import Coefficients, coefficients
from sim.cost.gemm import at_rows
from sim.cost.mlp_work import busiest, busiest_experts, expected_experts
from sim.specs.attention_policy import AttentionPolicy
from sim.specs.gpu import GpuSpec
from sim.specs.lora import Lora
from sim.specs.model import ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel
from sim.specs.precision import Precision


class Work(NamedTuple):
    """One iteration's work per GPU. Bytes, flops and counts; never seconds."""

    sequences: Any
    has_prefill: Any
    kernels: Any
    activation_bytes: Any
    linear_bytes: Any
    linear_flops: Any
    head_bytes: Any
    head_flops: Any
    expert_bytes: Any
    expert_flops: Any
    kv_bytes: Any  # decodes'
    attention_flops: Any  # decodes'
    prefill_kv_bytes: Any
    prefill_flops: Any  # attention of prefill chunks
    state_bytes: Any
    summary_bytes: Any
    selecting_layers: Any
    selected_units: Any
    link_bytes: Any
    gathers: Any  # layers whose selected KV is gathered from host RAM
    link_hidden_bytes: Any  # of those bytes: may cross while layers compute
    comm_bytes: Any
    comm_ops: Any
    launch_layers: Any


def iteration_work(
    model: ModelSpec,
    shape: BatchShape,
    precision: Precision,
    policy: AttentionPolicy = DENSE,
    tp: int = 1,
    gpu: GpuSpec | None = None,
    parallel: Parallel = NO_PARALLEL,
    lora: Lora | None = None,
) -> Work:
    """The work of one iteration, or of the heaviest part of one, per GPU. Raises UsageError when the model does not split over `tp`."""
    return work_from(coefficients(model, precision, tp, gpu, parallel, lora), shape, policy)


class RowWork(NamedTuple):
    """The fields of Work that the number of rows decides."""

    kernels: Any
    activation_bytes: Any
    linear_bytes: Any
    linear_flops: Any
    expert_bytes: Any
    expert_flops: Any
    comm_bytes: Any
    comm_ops: Any


class HeadWork(NamedTuple):
    """The fields of Work that the number of sampled rows decides."""

    head_bytes: Any
    head_flops: Any


def row_work(c: Coefficients, rows: Any, others: Any = 0.0) -> RowWork:
    """Work of `rows` rows (float or array), beside `others` of other data-parallel ranks that pass the same experts."""
    efficiency = at_rows(c.over_roofline, rows)
    experts, routed = rows * 0.0, rows + others
    expert_rows: Any = routed
    for one_expert, count, top_k in c.experts:
        if c.expert_gpus > 1:  # whole experts: bytes are those of one, `expert_gpus` times the share of it in `one_expert`
            experts = experts + one_expert * c.expert_gpus * busiest_experts(count, top_k, routed, c.expert_gpus)
            expert_rows = busiest(routed * top_k / c.expert_gpus, c.expert_gpus) * c.expert_gpus / top_k
        else:
            experts = experts + one_expert * expected_experts(count, top_k, routed)
    linear_bytes: Any = c.linear_bytes
    kernels: Any = c.kernels + rows * c.row_kernels
    one_adapter, adapters, share, its_kernels = c.adapter
    if one_adapter:
        used = expected_experts(adapters, share, rows)
        linear_bytes, kernels = linear_bytes + one_adapter * used, kernels + its_kernels * used
    return RowWork(
        kernels=kernels,
        activation_bytes=rows * c.activation_bytes,
        linear_bytes=linear_bytes * efficiency,
        linear_flops=rows * c.linear_flops * efficiency,
        expert_bytes=experts,
        expert_flops=expert_rows * c.expert_flops,
        comm_bytes=rows * c.comm_row_bytes + c.reduces * wire_bytes(rows * c.reduce_row_bytes, c.reduce_gpus, c.reduce_on),
        comm_ops=c.comm_ops,
    )


def work_from(c: Coefficients, shape: BatchShape, policy: AttentionPolicy = DENSE) -> Work:
    """The work from coefficients already at hand, for those who ask for many."""
    by_rows = row_work(c, shape.decode_seqs + shape.prefill_tokens + shape.padding, shape.others)
    sequences = shape.decode_seqs + shape.prefill_seqs
    selecting_layers = shape.decode_seqs * 0.0 + c.kv_layers if policy.selects else 0.0
    attention = attention_work(c, shape, policy)
    return Work(
        sequences=sequences,
        has_prefill=shape.has_prefill,
        kernels=by_rows.kernels,
        activation_bytes=by_rows.activation_bytes,
        linear_bytes=by_rows.linear_bytes,
        linear_flops=by_rows.linear_flops,
        head_bytes=c.head_bytes,
        head_flops=shape.sampled * c.head_flops,
        expert_bytes=by_rows.expert_bytes,
        expert_flops=by_rows.expert_flops,
        kv_bytes=attention.kv_bytes,
        attention_flops=attention.attention_flops,
        prefill_kv_bytes=attention.prefill_kv_bytes,
        prefill_flops=attention.prefill_flops,
        state_bytes=sequences * c.state_seq_bytes,
        summary_bytes=shape.decode_context / policy.unit_tokens * c.summary_unit_bytes if policy.selects else 0.0,
        selecting_layers=selecting_layers,
        selected_units=selecting_layers * policy.k,  # budget in blocks: pages are paid for by the bytes that are scanned
        link_bytes=attention.link_bytes,
        gathers=selecting_layers if policy.on_host else 0.0,
        link_hidden_bytes=attention.link_hidden_bytes,
        comm_bytes=by_rows.comm_bytes,
        comm_ops=by_rows.comm_ops,
        launch_layers=launch_layers(c, shape),
    )


def launch_layers(c: Coefficients, shape: BatchShape) -> Any:
    """Layers that the host launches kernel by kernel: all of an eager iteration, some of one that carries prefill in pieces of graphs."""
    return shape.eager * c.launch_layers + shape.pieces * c.piece_layers


class AttentionWork(NamedTuple):
    """The fields of Work that contexts decide."""

    kv_bytes: Any
    attention_flops: Any
    prefill_kv_bytes: Any
    prefill_flops: Any
    link_bytes: Any
    link_hidden_bytes: Any


def attention_work(c: Coefficients, shape: BatchShape, policy: AttentionPolicy = DENSE) -> AttentionWork:
    """Bytes and flops of attention, of decodes and of prefill chunks, and the KV bytes that cross the host link.

    What arrives over the link while other layers compute is staged in HBM and read from there, so KV in host RAM is never faster; what a
    layer waits for is used as it comes. Prefill attends to everything, so a layer's earlier KV may come while the layer before computes.
    What is written goes the link's other way and is not counted.
    """
    written = c.kept_token_bytes + c.kept_window_token_bytes
    kept = shape.decode_kept * c.kv_token_bytes
    decode = shape.decode_window * c.window_token_bytes + shape.decode_seqs * written
    prefill = shape.prefill_context * c.kv_token_bytes + shape.prefill_window_context * c.window_token_bytes
    prefill = prefill + shape.prefill_tokens * written
    cached = shape.prefill_context - shape.prefill_tokens
    link = hidden = 0.0
    if policy.on_host:
        fetched = cached * c.kv_token_bytes
        link, hidden = kept + fetched, kept * policy.overlap + fetched
        decode, prefill = decode + kept * policy.overlap, prefill - fetched * (1.0 - policy.overlap)
    else:
        decode = decode + kept
    return AttentionWork(
        decode * c.kv_read + shape.head_cached * c.expanding_bytes,  # before attention: not behind the flops of chunks
        # beside chunks a decode's query rows get a block of their own, as wide as a chunk's
        shape.decode_kept * c.pair_flops * (1.0 + shape.has_prefill * (c.mixed_fill - 1.0))
        + shape.decode_window * c.window_pair_flops
        + shape.decode_seqs * c.state_token_flops,
        prefill * c.kv_read,
        shape.prefill_pairs * c.pair_flops
        + shape.head_pairs * (c.prefill_pair_flops - c.pair_flops)
        + shape.prefill_window_pairs * c.window_pair_flops
        + shape.prefill_tokens * c.state_token_flops
        + shape.head_cached * c.expanding_flops,
        link,
        hidden,
    )

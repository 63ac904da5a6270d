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

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cost.all_reduce import wire_bytes
from sim.cost.attention import kv_read_factor, mixed_fill, query_heads
from sim.cost.batch import DENSE, BatchShape
from sim.cost.gemm import GEMM_KERNELS, at_rows, gemms_on, over_roofline, quantised_gemm_surface
from sim.errors import UsageError
from sim.specs.attention_policy import AttentionPolicy
from sim.specs.gpu import GpuSpec
from sim.specs.lora import Lora
from sim.specs.model import LayerGroup, ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel
from sim.specs.precision import ACTIVATION_BYTES, STATE_BYTES, Precision, arithmetic, quantises
from sim.specs.stored import group_bytes, head_bytes, stored

# Launching a mixture-of-experts layer takes about 2.3 times a dense one (grids and served loads of one such model). An iteration that
# carries prefill in captured pieces of a graph has attention and the next piece launched layer by layer, which shows where the GPU is
# quicker: half of a layer's launches (one model over two H200s; served models of 1 to 30 GB of weights).
EXPERT_LAUNCHES, PIECES = 2.3, 0.5
# Latent attention takes 2.5 times what a dense layer does to launch on top outside a graph, a third of that in pieces of graphs (a grid of
# one such model on an H100). By a profile on an H200 it is 1.8 in one form, 2.5 in both or with cached tokens, as servers run it.
LATENT_LAUNCHES, LATENT_PIECES = 2.5, 0.8
# Keys and values of heads made anew from latents are copied together at half of the bandwidth, before attention starts; attention over
# them takes 0.77 of what its flops take where a query attends to all of them (chunks of 2,048 and 8,192 tokens of that grid).
EXPANDING_COPIES, HEAD_PAIRS = 2.0, 0.77
# A gated-DeltaNet layer takes three dense layers more to launch outside a graph and one in pieces of graphs, of which its kernels are no
# part: quickest first tokens of one hybrid beside those of the same kind of experts without it, on a host whose dense layers take 0.94 ms.
# Its decode has eight small kernels more than are counted: one stream of that hybrid.
DELTA_LAUNCHES, DELTA_PIECES, DELTA_KERNELS = 3.0, 1.0, 8.0
# Small kernels that take as long as attention does at a short context, and as a layer of experts beside its weights: choosing, sorting of
# rows, two grouped GEMMs, sum. In profiles of four models' decodes, priced so, the GPU is busy as measured within 1 % up to 8 sequences.
ATTENTION_KERNELS, EXPERT_KERNELS = 6.0, 10.0
# DeepSeek's sparse attention: small kernels of an indexer and its selection beside those of latent attention, one more for so many rows (a
# block selects for a row), and the query heads that FlashMLA computes at least. From tables of both modules on an H100 and an H200.
INDEX_KERNELS, INDEX_ROWS, SPARSE_HEADS = 62.0, 14.0, 64
# Experts in mxfp4 that Hopper computes in 16 bits take longer at any number of rows, counted in small kernels: one model's layer beside two
# in 16 bits that were timed as it was (docs/log/2026-11-25-kinds-never-measured.md).
MXFP4_KERNELS = 18.0


# Dispatch to experts on other GPUs, or combining what they return, over an all-reduce of a few kB, for each GPU: 80 us over eight H100s or
# H200s for 16 to 64 tokens (vLLM 0.24, DeepEP, published table); over two H100s of one host it was 2.8 for both. Handing a micro-batch to
# the next stage: declared, about 0.2 ms, mostly the host's; one stream over two stages took 0.25 ms longer.
ALL_TO_ALL_OPS, HAND_OVER_OPS = 9.0 / 8.0, 20.0


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


class Coefficients(NamedTuple):
    """Work of a (model, precision, tp, GPU) per token, pair or iteration. All per GPU."""

    linear_bytes: float  # read by every iteration
    linear_flops: float  # per row
    over_roofline: NDArray[np.float64] | None  # by rows, where the GEMMs of the model's layers were measured
    head_bytes: float
    head_flops: float  # per sampled row
    experts: tuple[tuple[float, int, int], ...]  # per MoE group: bytes of one expert x layers, experts, top_k
    expert_flops: float  # per row
    kernels: float
    row_kernels: float  # per row
    activation_bytes: float  # per row
    kv_token_bytes: float  # full-context layers
    kv_read: float  # time of reading cached bytes over that at the bandwidth of 16 bits
    window_token_bytes: float  # of layers that read no more than the window or a selection
    kept_token_bytes: float  # that a token adds to the cache for good
    kept_window_token_bytes: float  # while it is inside the window
    pair_flops: float
    window_pair_flops: float
    prefill_pair_flops: float  # of full-context layers, where long chunks are attended to in another form
    expanding_flops: float  # per cached token that a chunk attends to in that form
    expanding_bytes: float
    state_seq_bytes: float  # read + write
    state_token_flops: float
    summary_unit_bytes: float  # one unit's summary, all full-context layers
    kv_layers: int
    comm_row_bytes: float  # beside all-reduces
    comm_ops: float
    reduces: float  # all-reduces, in units of the slowest link's bytes
    reduce_row_bytes: float  # of one's message
    reduce_gpus: int
    reduce_on: GpuSpec | None
    launch_layers: float  # of an iteration outside a captured graph
    piece_layers: float  # of one that carries prefill and is in pieces of graphs
    mixed_fill: float
    adapter: tuple[float, int, float, float] = (0.0, 1, 0.0, 0.0)  # LoRA: bytes and kernels of one adapter, adapters, rows that use one
    expert_gpus: int = 1  # GPUs that hold different experts: the busiest is waited for


def check_tensor_parallel(model: ModelSpec, tp: int) -> None:
    """Raise UsageError unless the model's heads split evenly over `tp` GPUs."""
    if tp < 1:
        raise UsageError(f"tensor-parallel size must be at least 1, got {tp}")
    for group in model.groups:
        if group.mixer.kind != "none" and group.mixer.heads % tp:
            raise UsageError(f"{model.name}: {group.mixer.heads} heads do not split over tensor-parallel size {tp}")


def kv_shards(kv_heads: int, tp: int) -> int:
    """GPUs that a layer's KV heads spread over: fewer heads than GPUs are replicated, as engines do."""
    return min(kv_heads, tp)


@lru_cache(maxsize=256)
def coefficients(
    model: ModelSpec,
    precision: Precision,
    tp: int = 1,
    gpu: GpuSpec | None = None,
    parallel: Parallel = NO_PARALLEL,
    lora: Lora | None = None,
) -> Coefficients:
    """Per-GPU coefficients of the work, on a GPU or on any: of all layers, whatever stage they are in. Raises UsageError when the heads do
    not split over `tp`.
    """
    check_tensor_parallel(model, tp)
    hidden, weight = model.hidden, precision.weight_bytes
    measured, sharing = over_roofline(model, precision, tp, gpu), tp * parallel.dp
    with_quantising = measured is not None and quantised_gemm_surface(model, precision, gpu) is not None
    linear = flops = expert_flops = kernels = row_kernels = activation = launches = pieces = 0.0
    experts: list[tuple[float, int, int]] = []
    kv = window = summary = state = pair = prefill_pair = window_pair = state_flops = blocks = kept = near = 0.0
    expanding = expanded = 0.0
    found = stored(model, precision.weights)
    for group, size in zip(model.groups, group_bytes(model, precision), strict=True):
        n, mixer, mlp = group.count, group.mixer, group.mlp
        small, gemms, row_bytes, inputs = layer_kernels(group, hidden, tp)
        quantised = quantises(precision.weights, gpu) and not with_quantising
        kernels += n * (small + (0.0 if measured is not None else GEMM_KERNELS * gemms) + quantised * gemms)
        activation += n * (row_bytes + quantised * inputs * (ACTIVATION_BYTES + weight))  # read in 16 bits, written in 8
        linear += n * size.layer
        flops += n * 2.0 * (group.always_params(hidden) - group.norm_params(hidden))
        blocks += n * group.blocks
        pieces += n * PIECES
        launches += n
        if mlp.kind == "moe":
            expert_flops += n * 2.0 * mlp.top_k * mlp.expert_params(hidden)
            kernels += n * unpacks_experts(model, precision, gpu) * MXFP4_KERNELS
            experts.append((n * size.expert / sharing, mlp.experts, mlp.top_k))
            launches += n * (EXPERT_LAUNCHES - 1.0)
        if mixer.kind == "mla":
            launches += n * LATENT_LAUNCHES
            pieces += n * LATENT_PIECES
        if mixer.kind == "gdn" and gpu is not None:
            launches += n * DELTA_LAUNCHES
            pieces += n * DELTA_PIECES
            kernels += n * DELTA_KERNELS
        if mixer.kind == "none":
            continue
        if mixer.kind == "gdn" or mixer.kind == "recurrent":
            state += n * (mixer.state_elements() * STATE_BYTES + mixer.conv_elements() * ACTIVATION_BYTES)
            state_flops += n * mixer.flops_per_token()
            continue
        if mixer.kind == "compressed":
            near_bytes, own = n * mixer.window_elements() * precision.kv_bytes, n * mixer.head_dim * precision.kv_bytes
            index, entries = n * mixer.key_bytes(), n * mixer.kv_elements_per_token() * precision.kv_bytes
            pairs = n * mixer.attention_flops_per_pair() / tp
            window, near, kept = window + near_bytes, near + own, kept + index + entries
            window_pair += pairs * mixer.window_elements() / mixer.head_dim
            kv += index if mixer.index_heads else entries  # without an index every entry is read
            pair += n * mixer.index_flops_per_pair() / tp + (0.0 if mixer.index_heads or not mixer.ratio else pairs / mixer.ratio)
            continue
        # a latent cache has no heads to split: every GPU holds all of it
        shards = kv_shards(mixer.kv_heads, tp) if mixer.kind == "attention" else 1
        token_bytes = n * mixer.kv_elements_per_token() * precision.kv_bytes / shards
        pair_flops = n * mixer.attention_flops_per_pair() / tp
        keeps = token_bytes if mixer.kind == "mla" or mixer.kv_kept else 0.0
        if mixer.kind == "attention" and mixer.window:
            window, window_pair, near = window + token_bytes, window_pair + pair_flops, near + keeps
        elif mixer.kind == "mla" and mixer.indexer:
            # the indexer, whole on every GPU, scores every token by its key; attention reads what it selects; the whole cache is kept
            index, scores = n * mixer.indexer.key_bytes(), n * mixer.indexer.flops_per_pair()
            kv, pair, prefill_pair = kv + index, pair + scores, prefill_pair + scores
            window, kept = window + token_bytes, kept + token_bytes + index
            window_pair += pair_flops * max(1.0, SPARSE_HEADS * tp / mixer.heads)
            if not mixer.indexer.shared:
                kernels, row_kernels = kernels + n * INDEX_KERNELS, row_kernels + n / INDEX_ROWS
        else:
            kept += keeps
            kv, pair = kv + token_bytes, pair + pair_flops
            prefill_pair += n * mixer.prefill_flops_per_pair() / tp * (HEAD_PAIRS if mixer.kind == "mla" else 1.0)
            if mixer.kind == "mla":
                expanding += n * mixer.expanding_flops() / tp
                expanded += n * mixer.expanding_elements() * ACTIVATION_BYTES * EXPANDING_COPIES / tp
            # minimum and maximum per key channel, 16-bit: the bytes of two keys, that is of one token's K and V
            keys = mixer.kv_elements_per_token() if mixer.kind == "attention" else 2 * mixer.kv_elements_per_token()
            summary += n * keys * ACTIVATION_BYTES / shards
    adapter = (0.0, 1, 0.0, 0.0)
    if lora is not None:
        adapter = (lora.params(model) * ACTIVATION_BYTES / tp, lora.adapters, lora.share, lora.adapter_kernels(model))
        flops += lora.share * 2.0 * lora.params(model)
        kernels += lora.kernels(model)
        activation += lora.share * lora.row_bytes(model) / tp
        launches += lora.launches(model)
        pieces += lora.pieces(model)
    comm_bytes, comm_ops = traffic(model, blocks, tp, parallel)
    return Coefficients(
        linear_bytes=(linear + model.outer_params * (weight if found is None else ACTIVATION_BYTES)) / tp,
        linear_flops=flops / tp,
        over_roofline=measured,
        head_bytes=head_bytes(model, precision) / tp,
        head_flops=2.0 * model.lm_head_params / tp,
        experts=tuple(experts),
        expert_flops=expert_flops / sharing,
        kernels=kernels,
        row_kernels=row_kernels,
        activation_bytes=activation + hidden * ACTIVATION_BYTES,  # one row of the embedding
        kv_token_bytes=kv,
        kv_read=kv_read_factor(model, precision, gpu),
        window_token_bytes=window,
        kept_token_bytes=kept,
        kept_window_token_bytes=near,
        pair_flops=pair,
        window_pair_flops=window_pair,
        prefill_pair_flops=prefill_pair,
        expanding_flops=expanding,
        expanding_bytes=expanded,
        state_seq_bytes=2.0 * state / tp,
        state_token_flops=state_flops / tp,
        summary_unit_bytes=summary,
        kv_layers=model.kv_layers,
        comm_row_bytes=comm_bytes,
        comm_ops=comm_ops,
        reduces=blocks * parallel.all_reduce.byte,  # of one GPU with itself no byte
        reduce_row_bytes=hidden * ACTIVATION_BYTES,
        reduce_gpus=tp,
        reduce_on=gpu,
        launch_layers=launches,
        piece_layers=pieces,
        mixed_fill=mixed_fill(query_heads(model, tp)),
        adapter=adapter,
        expert_gpus=sharing if parallel.expert else 1,
    )


def traffic(model: ModelSpec, reduces: float, tp: int, parallel: Parallel = NO_PARALLEL) -> tuple[float, float]:
    """(bytes per row beside all-reduces, operations) between GPUs in one pass through all layers with `reduces` all-reduces, in units of
    the replica's slowest link.

    A token goes to each GPU that holds one of its experts, and comes back, once: n (1 - (1 - 1/n)**top_k) of n, its own left out.
    """
    reduce, swap, hand = parallel.all_reduce, parallel.all_to_all, parallel.hand_over
    moved = 0.0
    ops = (reduces if tp > 1 else 0.0) * reduce.latency
    if parallel.dp > 1:
        gpus = tp * parallel.dp
        for group in model.groups:
            if group.mlp.kind == "moe":
                ops += group.count * 2.0 * ALL_TO_ALL_OPS * gpus * swap.latency
                reached = (gpus - 1) * (1.0 - (1.0 - 1.0 / gpus) ** group.mlp.top_k)
                moved += group.count * 2.0 * reached * model.hidden * ACTIVATION_BYTES / tp * swap.byte
    if parallel.pp > 1:
        ops += parallel.pp * HAND_OVER_OPS * hand.latency
        moved += (parallel.pp - 1) * 2.0 * model.hidden * ACTIVATION_BYTES * hand.byte  # hidden states and residual
    return moved, ops


def layer_kernels(group: LayerGroup, hidden: int, tp: int = 1) -> tuple[float, float, float, float]:
    """(small kernels, GEMMs, bytes per row between them, elements per row that enter them) of one layer on one GPU, as vLLM
    fuses them.

    A norm adds the residual: it reads two rows and writes two. The bytes of a routed row: both halves of the gate and their product, every
    chosen expert's output twice, and the sum.
    """
    mixer, mlp = group.mixer, group.mlp
    small, gemms, row, inputs = float(group.norms), 2.0, 4.0 * hidden * group.norms, 2.0 * hidden
    if mixer.kind == "none":
        gemms, inputs = 0.0, hidden
    elif mixer.kind == "attention":
        q, kv = mixer.heads * mixer.head_dim / tp, mixer.kv_heads * mixer.head_dim / kv_shards(mixer.kv_heads, tp)
        small += 2.0 + ATTENTION_KERNELS + mixer.qk_norm + mixer.output_gate  # rotary, KV write
        row += 2.0 * (q + kv) * (1.0 + mixer.qk_norm) + 2.0 * kv + 2.0 * q
        inputs += q
    elif mixer.kind == "compressed":
        small += 8.0 + ATTENTION_KERNELS  # norms of ranks, rotary, compression, index, hyper-connections
        gemms += 6.0
        row += 4.0 * mixer.heads * mixer.head_dim / tp
    elif mixer.kind == "mla":
        small += 4.0 + ATTENTION_KERNELS  # two norms of ranks beside rotary and KV write
        gemms += 3.0
        row += 4.0 * mixer.heads * (mixer.kv_rank + mixer.rope_dim) / tp
    else:
        small += 4.0  # convolution, gates, recurrence, gated norm
        row += 6.0 * mixer.row_elements() / tp
    if mlp.kind == "moe":
        small += EXPERT_KERNELS
        gemms += 1.0 + 2.0 * (mlp.shared_intermediate > 0)
        row += 3.0 * (mlp.top_k * mlp.intermediate + mlp.shared_intermediate) / tp + (2.0 * mlp.top_k + 1.0) * hidden
        inputs += (mlp.top_k * mlp.intermediate + mlp.shared_intermediate) / tp
    elif mlp.kind == "none":
        inputs -= hidden
    else:
        small += 1.0
        gemms += 2.0
        row += 3.0 * mlp.intermediate / tp
        inputs += mlp.intermediate / tp
    return small, gemms, ACTIVATION_BYTES * row, inputs


def unpacks_experts(model: ModelSpec, precision: Precision, gpu: GpuSpec | None) -> bool:
    """Whether experts stored in mxfp4 are computed in 16 bits, on a GPU whose chip was measured at it."""
    stored_so = precision.weights == "mxfp4" or model.expert_bits is not None
    return stored_so and gpu is not None and gemms_on(gpu) is not None and arithmetic("mxfp4", gpu) != "fp4"


def expected_experts(experts: Any, top_k: Any, tokens: Any) -> Any:
    """Expected distinct experts that `tokens` tokens route to, each choosing top_k of `experts` uniformly."""
    return experts * (1.0 - (1.0 - top_k / experts) ** tokens)


def busiest(mean: Any, gpus: int) -> Any:
    """Load of the busiest of `gpus`, of tokens or experts that fall on them at random, `mean` on each: sqrt(2 ln(gpus) mean) more."""
    return mean + (2.0 * math.log(gpus) * mean) ** 0.5


def busiest_experts(experts: int, top_k: int, tokens: Any, gpus: int) -> Any:
    """Experts that the GPU with the most of them reads, of experts / gpus, when `tokens` tokens choose at random."""
    held, share = experts / gpus, expected_experts(experts, top_k, tokens) / experts
    most = held * share + (2.0 * math.log(gpus) * held * share * (1.0 - share)) ** 0.5
    return most - (most - held) * (most > held)  # none reads more than it holds; of numbers and arrays alike


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


def work_from(c: Coefficients, shape: BatchShape, policy: AttentionPolicy = DENSE) -> Work:
    """The work from coefficients already at hand, for those who ask for many."""
    rows = shape.decode_seqs + shape.prefill_tokens + shape.padding
    sequences = shape.decode_seqs + shape.prefill_seqs
    efficiency = at_rows(c.over_roofline, rows)
    experts, routed = rows * 0.0, rows + shape.others
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
    selecting_layers = shape.decode_seqs * 0.0 + c.kv_layers if policy.selects else 0.0
    attention = attention_work(c, shape, policy)
    return Work(
        sequences=sequences,
        has_prefill=shape.has_prefill,
        kernels=kernels,
        activation_bytes=rows * c.activation_bytes,
        linear_bytes=linear_bytes * efficiency,
        linear_flops=rows * c.linear_flops * efficiency,
        head_bytes=c.head_bytes,
        head_flops=shape.sampled * c.head_flops,
        expert_bytes=experts,
        expert_flops=expert_rows * c.expert_flops,
        kv_bytes=attention.kv_bytes,
        attention_flops=attention.attention_flops,
        prefill_kv_bytes=attention.prefill_kv_bytes,
        prefill_flops=attention.prefill_flops,
        state_bytes=sequences * c.state_seq_bytes,
        summary_bytes=shape.decode_context / policy.unit_tokens * c.summary_unit_bytes if policy.selects else 0.0,
        selecting_layers=selecting_layers,
        selected_units=selecting_layers * policy.units,
        link_bytes=attention.link_bytes,
        gathers=selecting_layers if policy.placement == "host" else 0.0,
        link_hidden_bytes=attention.link_hidden_bytes,
        comm_bytes=rows * c.comm_row_bytes + c.reduces * wire_bytes(rows * c.reduce_row_bytes, c.reduce_gpus, c.reduce_on),
        comm_ops=c.comm_ops,
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
    if policy.placement == "host":
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

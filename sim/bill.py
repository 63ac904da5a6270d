"""The bill: what one engine iteration moves and computes on each GPU.

A pure function of the model, the iteration's shape, the attention policy, the precision and the tensor-parallel degree. Every field of
the shape may be a float, an array or a tensor; the same lines run for all.

    weights    bytes really read: no input-embedding table (rows only), lm_head once, shared experts always
    experts    bytes of the expected number of distinct routed experts
    kv         KV bytes read and written in HBM: full-context layers, plus sliding-window layers at min(context, window); of decodes and
               of prefill chunks apart
    state      recurrent-state bytes, read and written, of linear-attention layers: independent of the context
    summaries  block-summary bytes scanned to select (per-channel minimum and maximum of each unit)
    link       bytes crossing the host link, when the KV cache lives in host RAM
    comm       tensor-parallel all-reduce traffic: two per layer
    idle       KV bytes of decodes that multiprocessors could have read when they had no more pieces of it (sim.dealing)
    last turn  attention flops that multiprocessors without a block could have done in a chunk's turns (sim.turns)
    tiles      linear flops of rows that the last tile of a matrix product lacks, where the library has few tiles to choose from
    choice     weight bytes that could have been read while matrix products take longer than their weights and flops say (sim.products)
    expert i/o what the rows of routed experts pass through memory between kernels
    spread     layers of an iteration over several GPUs that no full graph holds: what the host launches for all of them
    intake     prompt tokens of requests that the iteration takes in, where that falls into its time
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.dealing import idle_keys_of
from sim.errors import UsageError
from sim.namespaces import FLOAT
from sim.policy import AttentionPolicy, dense
from sim.precision import ACTIVATION_BYTES, STATE_BYTES, Precision
from sim.products import choice, choice_bytes
from sim.specs.model import ModelSpec
from sim.turns import BLOCK_ROWS, idle_share, query_heads

DENSE = dense()
# Engines replay CUDA graphs captured for these numbers of tokens (vLLM's sizes): an iteration runs the next size up, and its linear layers
# compute the rows in between for nobody. Prefill beyond the largest runs eagerly.
CAPTURED = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
GRAPH_TOKENS = CAPTURED[-1]
_CAPTURED = np.array(CAPTURED, dtype=float)
# Matrix products come in tiles of so many rows, from one of them up to eight: below, the library has narrower ones; above, as many heights
# to choose from that the last tile lacks little (docs/adr/0015).
TILE_ROWS, TILED_ROWS = 128, 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """One iteration as the sums the bill needs (float, array or tensor each; tokens unless said otherwise).

    A decode sequence computes one token and reads `context` cached ones. A prefill chunk of n tokens ending at context c reads c keys and
    has n*c - n*(n-1)/2 query-key pairs.
    """

    decode_seqs: Any = 0.0  # sequences
    decode_context: Any = 0.0  # sum of contexts
    decode_window: Any = 0.0  # sum of min(context, window); 0 for a model without sliding-window layers
    decode_kept: Any = 0.0  # sum of min(context, keep-set): equals decode_context when attention is dense
    prefill_seqs: Any = 0.0  # chunks
    prefill_tokens: Any = 0.0
    prefill_context: Any = 0.0  # sum over chunks of keys read
    prefill_pairs: Any = 0.0  # query-key pairs, full-context layers
    prefill_window_context: Any = 0.0
    prefill_window_pairs: Any = 0.0
    sampled: Any = 0.0  # rows of logits
    has_prefill: Any = 0.0  # 1 when the iteration carries any prefill
    eager: Any = 0.0  # 1 when its kernels are launched one by one, outside a captured graph
    padding: Any = 0.0  # rows that the captured graph computes beyond the iteration's tokens
    decode_spread: Any = 0.0  # how far decodes' contexts differ: their number squared times their variance (tokens squared)
    doublings: Any = 0.0  # of one sequence, up to those of the iteration
    prefill_idle_pairs: Any = 0.0  # query-key pairs that the turns of each chunk's blocks leave undone
    intake_tokens: Any = 0.0  # of prompts that the iteration takes in, placed context included
    runner2_tokens: Any = 0.0  # those of them that vLLM's second model runner takes in


class Bill(NamedTuple):
    """One iteration's bill per GPU. Bytes, flops and counts; never seconds."""

    iterations: Any
    sequences: Any
    has_prefill: Any
    weight_bytes: Any  # all but routed experts
    linear_flops: Any
    kv_bytes: Any  # decodes'
    attention_flops: Any  # decodes'
    prefill_kv_bytes: Any
    prefill_flops: Any  # attention of prefill chunks
    chunk_flops: Any  # of one query token against the keys of every prefill chunk: what a padded query row costs
    state_bytes: Any
    summary_bytes: Any
    finds: Any
    found_units: Any
    link_bytes: Any
    link_ops: Any
    gathers: Any
    link_overlap: float
    comm_bytes: Any
    comm_ops: Any
    expert_layers: Any  # mixture-of-experts layers
    expert_bytes: Any  # routed experts' weights
    expert_flops: Any  # routed experts' matrix products
    eager_layers: Any  # layers whose kernels the host launches one by one
    eager_expert_layers: Any  # mixture-of-experts layers among them
    doublings: Any  # of one sequence, up to those of the iteration, in every layer
    idle_kv_bytes: Any  # what multiprocessors without a piece of the decodes' left could have read besides
    last_turn_flops: Any  # idle in the last turn of prefill chunks' attention blocks
    intake_tokens: Any  # prompt tokens taken in
    spread_layers: Any  # layers that no full graph holds, over several GPUs
    spread_eager_layers: Any  # those of them that are launched kernel by kernel
    spread_intake_tokens: Any  # prompt tokens taken in over several GPUs
    runner2_intake_tokens: Any  # prompt tokens taken in by vLLM's second model runner
    second_runner_prefill: Any  # 1 when the iteration carries prefill of a model that it steps
    tile_flops: Any  # linear layers' of rows that the last tile lacks
    choice_bytes: Any  # what products take beyond a smooth maximum, where they were measured
    choice_known: float  # 1 where they were: what the last tile lacks is in it
    expert_io_bytes: Any  # what rows of routed experts pass through memory between kernels


class Coefficients(NamedTuple):
    """What a (model, precision, tp) contributes per token, pair or step. All per GPU."""

    always_bytes: float  # weights read by every step
    expert_bytes: tuple[tuple[float, int, int], ...]  # per MoE group: bytes of one expert x layers, experts, top_k
    embedding_row_bytes: float
    body_flops: float  # per token, without lm_head and routed experts
    expert_flops: float  # per token, routed experts
    expert_layers: int
    head_flops: float  # per sampled row
    kv_token_bytes: float  # full-context layers
    window_token_bytes: float
    pair_flops: float
    window_pair_flops: float
    state_seq_bytes: float  # read + write
    state_token_flops: float
    summary_unit_bytes: float  # one unit's summary, all full-context layers
    kv_layers: int
    layers: int
    hidden: int
    mixed_fill: float  # query rows of a block beside chunks, over those that one decode has
    expert_io_bytes: float  # per row
    runner2: float  # 1 for a model that vLLM steps with its second model runner
    kv_heads: int  # of full-context attention
    choice: NDArray[np.float64] | None  # bytes by rows, where the products of the model's layers were measured


def check_tensor_parallel(model: ModelSpec, tp: int) -> None:
    """Raise UsageError unless the model's heads split evenly over `tp` GPUs."""
    if tp < 1:
        raise UsageError(f"tensor-parallel size must be at least 1, got {tp}")
    for group in model.groups:
        heads = group.mixer.value_heads if group.mixer.kind == "gdn" else group.mixer.heads
        if heads % tp:
            raise UsageError(f"{model.name}: {heads} heads do not split over tensor-parallel size {tp}")


def kv_shards(kv_heads: int, tp: int) -> int:
    """GPUs that a layer's KV heads spread over: fewer heads than GPUs are replicated, as engines do."""
    return min(kv_heads, tp)


@lru_cache(maxsize=256)
def coefficients(model: ModelSpec, precision: Precision, tp: int = 1, gpu: str = "") -> Coefficients:
    """Per-GPU coefficients of the bill, on a GPU of a name that products were measured under (sim.products.known_to), or on any.

    Raises UsageError when the heads do not split over `tp`.
    """
    check_tensor_parallel(model, tp)
    hidden, w = model.hidden, precision.weight_bytes
    always = float(hidden)
    # checkpoints narrower than 16 bits leave the output projection in 16
    head_bytes = model.lm_head_params * max(w, ACTIVATION_BYTES)
    body = expert_body = 0.0
    expert_layers = 0
    expert_io = 0.0
    experts: list[tuple[float, int, int]] = []
    kv = window = summary = state = conv = 0.0
    pair = window_pair = state_flops = 0.0
    for group in model.groups:
        n, mixer, mlp = group.count, group.mixer, group.mlp
        mixer_params = mixer.params(hidden)
        always += n * (mixer_params + group.norms * hidden)
        body += n * 2.0 * mixer_params
        if mlp.kind == "moe":
            body += n * 2.0 * mlp.always_params(hidden)
            expert_body += n * 2.0 * mlp.top_k * mlp.expert_params(hidden)
            expert_layers += n
            # between kernels: both halves of the gate and their product, every chosen expert's output twice, and the sum
            expert_io += n * ACTIVATION_BYTES * (3.0 * mlp.top_k * mlp.intermediate / tp + (2.0 * mlp.top_k + 1.0) * hidden)
            always += n * mlp.always_params(hidden)
            experts.append((n * mlp.expert_bytes(hidden, w, model.expert_bits) / tp, mlp.experts, mlp.top_k))
        else:
            body += n * 2.0 * mlp.params(hidden)
            always += n * mlp.params(hidden)
        if mixer.kind == "gdn":
            state += n * mixer.state_elements()
            conv += n * mixer.conv_elements()
            state_flops += n * mixer.flops_per_token()
            continue
        # a latent cache has no heads to split: every GPU holds all of it
        shards = kv_shards(mixer.kv_heads, tp) if mixer.kind == "attention" else 1
        token_bytes = n * mixer.kv_elements_per_token() * precision.kv_bytes / shards
        flops = n * mixer.attention_flops_per_pair() / tp
        if mixer.kind == "attention" and mixer.window:
            window, window_pair = window + token_bytes, window_pair + flops
        else:
            kv, pair = kv + token_bytes, pair + flops
            # minimum and maximum per key channel, 16-bit: the bytes of two keys, that is of one token's K and V
            keys = mixer.kv_elements_per_token() if mixer.kind == "attention" else 2 * mixer.kv_elements_per_token()
            summary += n * keys * ACTIVATION_BYTES / shards
    kv_heads, group_rows = query_heads(model, tp)
    return Coefficients(
        always_bytes=(always * w + head_bytes) / tp,
        expert_bytes=tuple(experts),
        embedding_row_bytes=hidden * ACTIVATION_BYTES,
        body_flops=body / tp,
        expert_flops=expert_body / tp,
        expert_layers=expert_layers,
        head_flops=2.0 * model.lm_head_params / tp,
        kv_token_bytes=kv,
        window_token_bytes=window,
        pair_flops=pair,
        window_pair_flops=window_pair,
        state_seq_bytes=2.0 * (state * STATE_BYTES + conv * ACTIVATION_BYTES) / tp,
        state_token_flops=state_flops / tp,
        summary_unit_bytes=summary,
        kv_layers=model.kv_layers,
        layers=model.layers,
        hidden=hidden,
        mixed_fill=ceil(group_rows / BLOCK_ROWS) * BLOCK_ROWS / group_rows if group_rows else 1.0,
        expert_io_bytes=expert_io,
        runner2=float(model.second_runner),
        kv_heads=kv_heads,
        choice=choice(model, precision, tp, gpu) if gpu else None,
    )


def expected_experts(experts: int, top_k: int, tokens: Any) -> Any:
    """Expected distinct experts that `tokens` tokens route to, each choosing top_k of `experts` uniformly."""
    return experts * (1.0 - (1.0 - top_k / experts) ** tokens)


def routed_bytes(c: Coefficients, tokens: Any) -> Any:
    """Bytes of routed experts' weights that a step of `tokens` tokens is expected to read, per GPU."""
    total = tokens * 0.0
    for one_expert, experts, top_k in c.expert_bytes:
        total = total + one_expert * expected_experts(experts, top_k, tokens)
    return total


def captured_padding(tokens: Any) -> Any:
    """Rows that the graph captured for `tokens` tokens (a number or an array) computes beyond them; 0 past the largest graph."""
    if isinstance(tokens, (float, int)):
        return 0.0 if tokens > GRAPH_TOKENS else CAPTURED[bisect_left(CAPTURED, tokens)] - tokens if tokens > 0 else 0.0
    several = np.asarray(tokens, dtype=float)
    size = _CAPTURED[np.minimum(np.searchsorted(_CAPTURED, several), _CAPTURED.size - 1)]
    return np.where((several > 0) & (several <= GRAPH_TOKENS), size - several, 0.0)


def tile_gap(rows: Any) -> Any:
    """Rows (a number, array or tensor) that the last tile of a matrix product of so many lacks, where it may not be narrower."""
    return (-rows % TILE_ROWS) * (rows > TILE_ROWS) * (rows <= TILED_ROWS)


def spread(contexts: Sequence[float]) -> float:
    """How far contexts differ: their number squared times their variance, n * sum(c**2) - sum(c)**2. A constant added to every context
    changes nothing; of equal ones it is 0, rounded or not.
    """
    if not contexts or min(contexts) == max(contexts):
        return 0.0
    total = sum(contexts)
    return len(contexts) * sum(c * c for c in contexts) - total * total


def iteration_bill(
    model: ModelSpec, shape: Shape, precision: Precision, policy: AttentionPolicy = DENSE, tp: int = 1, gpu: str = ""
) -> Bill:
    """The bill of one iteration, per GPU. Raises UsageError when the model does not split over `tp`."""
    return bill_from(coefficients(model, precision, tp, gpu), shape, policy, tp)


def doublings(sequences: Any) -> Any:
    """How often one sequence doubles to give so many (a number or an array); 0 for none."""
    if isinstance(sequences, (float, int)):
        return log2(sequences) if sequences > 1 else 0.0
    return np.log2(np.maximum(np.asarray(sequences, dtype=float), 1.0))


def bill_from(c: Coefficients, shape: Shape, policy: AttentionPolicy = DENSE, tp: int = 1) -> Bill:
    """The bill from coefficients already at hand, for those who ask for many."""
    tokens = shape.decode_seqs + shape.prefill_tokens
    rows = tokens + shape.padding
    written = c.kv_token_bytes + c.window_token_bytes
    kept_bytes = shape.decode_kept * c.kv_token_bytes
    local_bytes = shape.decode_window * c.window_token_bytes + shape.decode_seqs * written
    on_host = policy.placement == "host"
    finds = shape.decode_seqs * 0.0 + c.kv_layers if policy.selects else 0.0
    # what arrives over the link is used from on-chip memory and is not read from HBM a second time
    kv_bytes = local_bytes if on_host else local_bytes + kept_bytes
    sequences = shape.decode_seqs + shape.prefill_seqs
    several = 1.0 if tp > 1 else 0.0
    ungraphed = shape.has_prefill + shape.eager - shape.has_prefill * shape.eager  # either
    return Bill(
        iterations=1.0,
        sequences=sequences,
        has_prefill=shape.has_prefill,
        weight_bytes=c.always_bytes + rows * c.embedding_row_bytes,
        linear_flops=rows * c.body_flops + shape.sampled * c.head_flops,
        kv_bytes=kv_bytes,
        # beside chunks a decode's query rows get a block of their own, as wide as a chunk's
        attention_flops=shape.decode_kept * c.pair_flops * (1.0 + shape.has_prefill * (c.mixed_fill - 1.0))
        + shape.decode_window * c.window_pair_flops
        + shape.decode_seqs * c.state_token_flops,
        prefill_kv_bytes=shape.prefill_context * c.kv_token_bytes
        + shape.prefill_window_context * c.window_token_bytes
        + shape.prefill_tokens * written,
        prefill_flops=shape.prefill_pairs * c.pair_flops
        + shape.prefill_window_pairs * c.window_pair_flops
        + shape.prefill_tokens * c.state_token_flops,
        chunk_flops=shape.prefill_context * c.pair_flops + shape.prefill_window_context * c.window_pair_flops,
        state_bytes=sequences * c.state_seq_bytes,
        summary_bytes=shape.decode_context / policy.unit_tokens * c.summary_unit_bytes if policy.selects else 0.0,
        finds=finds,
        found_units=finds * policy.units,
        link_bytes=kept_bytes if on_host else 0.0,
        link_ops=c.kv_layers if on_host else 0.0,
        gathers=finds if on_host else 0.0,
        link_overlap=policy.overlap,
        comm_bytes=2.0 * c.layers * rows * c.hidden * ACTIVATION_BYTES * 2.0 * (tp - 1) / tp,
        comm_ops=2.0 * c.layers if tp > 1 else 0.0,
        expert_layers=float(c.expert_layers),
        expert_bytes=routed_bytes(c, rows),
        expert_flops=rows * c.expert_flops,
        eager_layers=shape.eager * c.layers,
        eager_expert_layers=shape.eager * c.expert_layers,
        doublings=shape.doublings * c.layers,
        # keep-sets are read by kernels of their own
        idle_kv_bytes=idle_keys_of(c.kv_heads, shape.decode_seqs, shape.decode_context, shape.decode_spread) * c.kv_token_bytes
        if policy.kind == "dense" and not on_host
        else 0.0,
        last_turn_flops=shape.prefill_idle_pairs * c.pair_flops,
        intake_tokens=shape.intake_tokens,
        spread_layers=several * ungraphed * c.layers,
        spread_eager_layers=several * shape.eager * c.layers,
        spread_intake_tokens=several * shape.intake_tokens,
        runner2_intake_tokens=shape.runner2_tokens,
        second_runner_prefill=shape.has_prefill * c.runner2,
        tile_flops=tile_gap(rows) * c.body_flops,
        choice_bytes=choice_bytes(c.choice, rows),
        choice_known=float(c.choice is not None),
        expert_io_bytes=rows * c.expert_io_bytes,
    )


def decode_shape(model: ModelSpec, batch: Any, context: Any, policy: AttentionPolicy = DENSE, xp: Any = FLOAT) -> Shape:
    """A decode iteration of `batch` sequences, each with `context` cached tokens (floats, or arrays that broadcast)."""
    window = model.window
    return Shape(
        decode_seqs=batch,
        decode_context=batch * context,
        decode_window=batch * xp.minimum(context, float(window)) if window else 0.0,
        decode_kept=batch * policy.kept(context, xp),
        sampled=batch,
        padding=captured_padding(batch),
        doublings=doublings(batch),
    )


def chunk_pairs(tokens: float, end: float) -> float:
    """Causal query-key pairs of a chunk of `tokens` whose last token sits at context `end`."""
    return tokens * end - tokens * (tokens - 1) / 2


def chunk_window_pairs(tokens: float, end: float, window: float) -> float:
    """The same where a query sees at most `window` keys (its own included)."""
    start = end - tokens
    ramp = max(0.0, min(end, window) - start)  # queries whose whole past is inside the window
    return chunk_pairs(ramp, start + ramp) + (tokens - ramp) * window


def mixed_shape(
    model: ModelSpec,
    decode_contexts: Iterable[float],
    chunks: Iterable[tuple[float, float, bool]],
    policy: AttentionPolicy = DENSE,
    tp: int = 1,
) -> Shape:
    """An iteration of decodes (each reading `context` tokens) and prefill chunks (tokens, context at the chunk's end, whether it samples).

    `tp` is how many GPUs share the heads. Prefill attention is dense under every policy. Plain floats: this is the readable definition the
    fast paths are held to.
    """
    window = model.window
    seqs = context = kept = near = 0.0
    contexts = list(decode_contexts)
    for value in contexts:
        seqs += 1
        context += value
        kept += policy.kept(value, FLOAT)
        near += min(value, window) if window else 0.0
    heads = query_heads(model, tp)
    count = tokens = read = pairs = window_read = window_pairs = sampled = idle = 0.0
    for n, end, samples in chunks:
        count += 1
        tokens += n
        read += end
        own = chunk_pairs(n, end)
        pairs += own
        idle += own * idle_share(heads, n)
        sampled += samples
        if window:
            window_read += min(end, window + n)
            window_pairs += chunk_window_pairs(n, end, window)
    return Shape(
        seqs,
        context,
        near,
        kept,
        count,
        tokens,
        read,
        pairs,
        window_read,
        window_pairs,
        seqs + sampled,
        float(count > 0),
        float(count > 0 and seqs + tokens > GRAPH_TOKENS),
        captured_padding(seqs + tokens),
        spread(contexts),
        doublings(seqs + count),
        idle,
    )

"""Batch shape: one iteration as the sums that its work needs, and the one builder of them from contexts and chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sim.cost.graphs import GRAPH_TOKENS, captured_padding
from sim.namespaces import FLOAT
from sim.specs.attention_policy import AttentionPolicy, dense
from sim.specs.model import ModelSpec

DENSE = dense()
# Tokens of a chunk up to which vLLM's latent attention on Hopper (FlashAttention MLA, 0.23) computes it as decodes are, whatever else the
# iteration carries. It reads longer ones as heads.
ABSORBED_TOKENS = 512


class BatchShape(NamedTuple):
    """One iteration as sums over its sequences (float, array or tensor each; tokens unless said otherwise).

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
    pieces: Any = 0.0  # 1 when it carries prefill in captured pieces of a graph, attention launched between them
    padding: Any = 0.0  # rows that the captured graph computes beyond the iteration's tokens
    others: Any = 0.0  # rows of other data-parallel ranks, which pass the same experts
    head_pairs: Any = 0.0  # query-key pairs of chunks that latent attention reads as heads
    head_cached: Any = 0.0  # tokens cached before those chunks


def chunk_pairs(tokens: float, end: float) -> float:
    """Causal query-key pairs of a chunk of `tokens` whose last token sits at context `end`."""
    return tokens * end - tokens * (tokens - 1) / 2


def chunk_window_pairs(tokens: float, end: float, window: float) -> float:
    """The same where a query sees at most `window` keys (its own included)."""
    start = end - tokens
    ramp = max(0.0, min(end, window) - start)  # queries whose whole past is inside the window
    return chunk_pairs(ramp, start + ramp) + (tokens - ramp) * window


def decode_batch(model: ModelSpec, batch: Any, context: Any, policy: AttentionPolicy = DENSE, xp: Any = FLOAT) -> BatchShape:
    """A decode iteration of `batch` sequences, each with `context` cached tokens (floats, or arrays that broadcast)."""
    window = model.window
    return BatchShape(
        decode_seqs=batch,
        decode_context=batch * context,
        decode_window=batch * xp.minimum(context, float(window)) if window else 0.0,
        decode_kept=batch * policy.kept(context, xp),
        sampled=batch,
        padding=captured_padding(batch),
    )


def mixed_batch(
    model: ModelSpec,
    decode_contexts: Iterable[float],
    chunks: Iterable[tuple[float, float, float]],
    policy: AttentionPolicy = DENSE,
) -> BatchShape:
    """An iteration of decodes (each reading `context` tokens) and prefill chunks (tokens, context at the chunk's end, rows it samples).

    Prefill attention is dense under every policy.
    """
    window = model.window
    contexts = list(decode_contexts)
    kept = near = 0.0
    for value in contexts:
        kept += policy.kept(value, FLOAT)
        near += min(value, window) if window else 0.0
    sums = chunk_sums(chunks, window)
    return from_sums(float(len(contexts)), sum(contexts, 0.0), near, kept, sums)


ChunkSums = tuple[float, float, float, float, float, float, float, float, float]
"""Chunks, tokens, keys read, pairs, keys read in windows, pairs in windows, rows sampled; pairs of, and tokens cached before, chunks that
latent attention reads as heads."""


def chunk_sums(chunks: Iterable[tuple[float, float, float]], window: int | None) -> ChunkSums:
    """The sums of prefill chunks (tokens, context at the end, rows sampled)."""
    count = tokens = read = pairs = window_read = window_pairs = sampled = head_pairs = head_cached = 0.0
    for n, end, rows in chunks:
        count += 1.0
        tokens += n
        read += end
        pairs += chunk_pairs(n, end)
        sampled += rows
        if n > ABSORBED_TOKENS:
            head_pairs += chunk_pairs(n, end)
            head_cached += end - n
        if window:
            window_read += min(end, window + n)
            window_pairs += chunk_window_pairs(n, end, window)
    return count, tokens, read, pairs, window_read, window_pairs, sampled, head_pairs, head_cached


def from_sums(seqs: float, context: float, near: float, kept: float, chunks: ChunkSums) -> BatchShape:
    """The shape of decodes and chunks given as sums. A simulator that keeps sums comes in here."""
    count, tokens, read, pairs, window_read, window_pairs, sampled, head_pairs, head_cached = chunks
    return BatchShape(
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
        1.0 if count else 0.0,
        1.0 if count and seqs + tokens > GRAPH_TOKENS else 0.0,
        1.0 if count and seqs + tokens <= GRAPH_TOKENS else 0.0,
        captured_padding(seqs + tokens),
        0.0,
        head_pairs,
        head_cached,
    )

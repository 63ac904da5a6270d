"""Work of a token mixer: one function per kind, from its shape to a layer's bytes, flops, kernels and launches on one GPU.

In the formulas: H hidden size, h heads, g KV heads, d head width, e bytes of a KV element, a = 2 bytes of an activation, tp GPUs of tensor
parallelism, r latent rank, p rotary width. Kernels are vLLM's after fusion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.cost.layer_work import LayerWork, Setting
from sim.specs.mixers import Attention, CompressedAttention, ConstantState, GatedDeltaNet, LatentAttention, Mixer, NoMixer, Recurrence
from sim.specs.precision import ACTIVATION_BYTES, STATE_BYTES

# Decode attention at a short context, in small kernels' time. Profiles of four models' decodes on an H100: busy time of the GPU is then
# within 1 % up to 8 sequences.
ATTENTION_KERNELS = 6.0
# Launches of a latent-attention layer beyond a dense layer's. Outside a graph 2.5, in pieces of graphs 0.8: step times of one such model on
# an H100. A profile on an H200 gives 1.8 for one form of attention and 2.5 for both or for cached tokens, as servers run it.
LATENT_LAUNCHES, LATENT_PIECES = 2.5, 0.8
# Copies of the keys and values that long chunks expand from latents, at the memory bandwidth; and time of attention over them relative to
# its flops where every query attends to all of them. Chunks of 2,048 and 8,192 tokens of one model on an H100.
EXPANDING_COPIES, HEAD_PAIRS = 2.0, 0.77
# Launches of a gated-DeltaNet layer beyond a dense layer's, and its decode's small kernels beyond those counted. Fastest first tokens of
# one hybrid beside a model of the same experts without DeltaNet, on a host that takes 0.94 ms to launch a dense layer; one decode stream.
DELTA_LAUNCHES, DELTA_PIECES, DELTA_KERNELS = 3.0, 1.0, 8.0
# Launches of a Mamba-2 layer with a prompt beyond a dense layer's: iterations of one served hybrid, whose host takes 0.44 ms to launch a
# dense layer. Another hybrid on that machine, not learnt from, needs 4.1 and 3.4.
MAMBA2_LAUNCHES, MAMBA2_PIECES = 4.3, 3.1
# DeepSeek sparse attention: small kernels of indexer and selection, one more for so many rows (a block selects for one row), and the fewest
# query heads that FlashMLA computes. Kernel tables of both modules, H100 and H200.
INDEX_KERNELS, INDEX_ROWS, SPARSE_HEADS = 62.0, 14.0, 64


def mixer_work(mixer: Mixer, at: Setting) -> LayerWork:
    """The work of a mixer of any kind."""
    return MIXERS[mixer.kind](mixer, at)


def no_mixer(mixer: NoMixer, at: Setting) -> LayerWork:
    """A layer that is an MLP alone: nothing."""
    return LayerWork()


def attention(mixer: Attention, at: Setting) -> LayerWork:
    """Softmax attention with grouped KV heads, over the full context or a window of it."""
    return (window_attention if mixer.window else full_attention)(mixer, at)


def full_attention(mixer: Attention, at: Setting) -> LayerWork:
    """Attention over the full context.

    Cache: g (d_k + d_v) e / shards bytes per token; none is kept where a layer reads another's. A pair: 2 h (d_k + d_v) / tp flops.
    Block summaries hold each key channel's minimum and maximum in 16 bits, the bytes of a token's K and V.
    """
    shards = at.shards(mixer.kv_heads)
    token_bytes = mixer.kv_elements_per_token() * at.precision.kv_bytes / shards
    return _around_attention(mixer, at) + LayerWork(
        kv_token_bytes=token_bytes,
        kept_token_bytes=token_bytes if mixer.kv_kept else 0.0,
        pair_flops=mixer.attention_flops_per_pair() / at.tp,
        prefill_pair_flops=mixer.prefill_flops_per_pair() / at.tp,
        summary_unit_bytes=mixer.kv_elements_per_token() * ACTIVATION_BYTES / shards,
    )


def window_attention(mixer: Attention, at: Setting) -> LayerWork:
    """Sliding-window attention: bytes and pairs as of full attention, of min(context, window) tokens."""
    token_bytes = mixer.kv_elements_per_token() * at.precision.kv_bytes / at.shards(mixer.kv_heads)
    return _around_attention(mixer, at) + LayerWork(
        window_token_bytes=token_bytes,
        kept_window_token_bytes=token_bytes if mixer.kv_kept else 0.0,
        window_pair_flops=mixer.attention_flops_per_pair() / at.tp,
    )


def _around_attention(mixer: Attention, at: Setting) -> LayerWork:
    """Kernels: rotary, KV write, attention; norms of queries and keys; output gate. Rows of q, k, v are read and written around them:
    h d / tp and g d / shards elements.
    """
    q, kv = mixer.heads * mixer.head_dim / at.tp, mixer.kv_heads * mixer.head_dim / at.shards(mixer.kv_heads)
    return LayerWork(
        kernels=2.0 + ATTENTION_KERNELS + mixer.qk_norm + mixer.output_gate,
        gemms=2.0,
        row_bytes=ACTIVATION_BYTES * (2.0 * (q + kv) * (1.0 + mixer.qk_norm) + 2.0 * kv + 2.0 * q),
        row_inputs=at.hidden + q,
    )


def latent(mixer: LatentAttention, at: Setting) -> LayerWork:
    """Multi-head latent attention, over the full context or over the tokens that an indexer selects."""
    return (sparse_latent_attention if mixer.indexer else latent_attention)(mixer, at)


def latent_attention(mixer: LatentAttention, at: Setting) -> LayerWork:
    """Latent attention over the full context. Every GPU holds the whole cache: it has no heads to split.

    Cache: (r + p) e bytes per token. A pair: 2 h (2 r + p) / tp flops absorbed, as decodes and short chunks; 2 h (nope + p + v) / tp
    expanded, as long chunks, whose cached tokens are first expanded from latents.
    """
    return _around_latent(mixer, at) + LayerWork(
        kv_token_bytes=mixer.kv_elements_per_token() * at.precision.kv_bytes,
        kept_token_bytes=mixer.kv_elements_per_token() * at.precision.kv_bytes,
        pair_flops=mixer.attention_flops_per_pair() / at.tp,
        prefill_pair_flops=mixer.prefill_flops_per_pair() / at.tp * HEAD_PAIRS,
        expanding_flops=mixer.expanding_flops() / at.tp,
        expanding_bytes=mixer.expanding_elements() * ACTIVATION_BYTES * EXPANDING_COPIES / at.tp,
        summary_unit_bytes=2 * mixer.kv_elements_per_token() * ACTIVATION_BYTES,
    )


def sparse_latent_attention(mixer: LatentAttention, at: Setting) -> LayerWork:
    """DeepSeek sparse attention: an indexer, whole on every GPU, scores each token of the context by its key; attention reads `top_k`.

    The whole cache and the keys are kept. A pair: 2 h_index (d_index + 1) flops to score, 2 max(h, 64 tp) (2 r + p) / tp to attend.
    A layer with `shared` selection runs no indexer.
    """
    assert mixer.indexer
    token_bytes = mixer.kv_elements_per_token() * at.precision.kv_bytes
    index, scores = mixer.indexer.key_bytes(), mixer.indexer.flops_per_pair()
    return _around_latent(mixer, at) + LayerWork(
        kernels=INDEX_KERNELS * (not mixer.indexer.shared),
        row_kernels=(not mixer.indexer.shared) / INDEX_ROWS,
        kv_token_bytes=index,
        window_token_bytes=token_bytes,
        kept_token_bytes=token_bytes + index,
        pair_flops=scores,
        prefill_pair_flops=scores,
        window_pair_flops=mixer.attention_flops_per_pair() / at.tp * max(1.0, SPARSE_HEADS * at.tp / mixer.heads),
    )


def _around_latent(mixer: LatentAttention, at: Setting) -> LayerWork:
    """Kernels, rows and launches: two norms of ranks, rotary, KV write, attention; rows pass it as latents of every head."""
    return LayerWork(
        kernels=4.0 + ATTENTION_KERNELS,
        gemms=5.0,
        row_bytes=ACTIVATION_BYTES * 4.0 * mixer.heads * (mixer.kv_rank + mixer.rope_dim) / at.tp,
        row_inputs=at.hidden,
        launches=LATENT_LAUNCHES,
        pieces=LATENT_PIECES,
    )


def compressed_attention(mixer: CompressedAttention, at: Setting) -> LayerWork:
    """Attention over a window and over entries of `ratio` tokens (DeepSeek V4), all of them or those that an index selects.

    Cache: d e bytes per token of the window, d e / ratio of entries and the index's keys for good. A pair: 4 h d / tp flops; of an index
    2 h_index (d_index + 1) / ratio. Kernels: norms of ranks, rotary, compression, index, hyper-connections, attention.
    """
    e, pairs = at.precision.kv_bytes, mixer.attention_flops_per_pair() / at.tp
    index, entries = mixer.key_bytes(), mixer.kv_elements_per_token() * e
    return LayerWork(
        kernels=8.0 + ATTENTION_KERNELS,
        gemms=8.0,
        row_bytes=ACTIVATION_BYTES * 4.0 * mixer.heads * mixer.head_dim / at.tp,
        row_inputs=at.hidden,
        kv_token_bytes=index if mixer.index_heads else entries,  # without an index every entry is read
        window_token_bytes=mixer.window_elements() * e,
        kept_token_bytes=index + entries,
        kept_window_token_bytes=mixer.head_dim * e,
        pair_flops=mixer.index_flops_per_pair() / at.tp + (0.0 if mixer.index_heads or not mixer.ratio else pairs / mixer.ratio),
        window_pair_flops=pairs * mixer.window_elements() / mixer.head_dim,
    )


def recurrence(mixer: ConstantState, at: Setting) -> LayerWork:
    """A mixer with a constant state per sequence: Mamba, Mamba-2, Kimi delta, lightning attention, convolution.

    State: 2 (4 state + 2 convolution elements) / tp bytes per sequence, read and written. Kernels: convolution, gates, recurrence, norm.
    """
    state = mixer.state_elements() * STATE_BYTES + mixer.conv_elements() * ACTIVATION_BYTES
    scans = at.gpu is not None and isinstance(mixer, Recurrence) and mixer.name == "Mamba-2"
    return LayerWork(
        launches=MAMBA2_LAUNCHES * scans,
        pieces=MAMBA2_PIECES * scans,
        kernels=4.0,
        gemms=2.0,
        row_bytes=ACTIVATION_BYTES * 6.0 * mixer.row_elements() / at.tp,
        row_inputs=at.hidden,
        state_seq_bytes=2.0 * state / at.tp,
        state_token_flops=mixer.flops_per_token() / at.tp,
    )


def delta_net(mixer: GatedDeltaNet, at: Setting) -> LayerWork:
    """Gated DeltaNet: a recurrence whose layer launches more kernels, counted on a GPU that is known."""
    known = at.gpu is not None
    return recurrence(mixer, at) + LayerWork(kernels=DELTA_KERNELS * known, launches=DELTA_LAUNCHES * known, pieces=DELTA_PIECES * known)


MIXERS: dict[str, Callable[[Any, Setting], LayerWork]] = {
    "attention": attention,
    "mla": latent,
    "compressed": compressed_attention,
    "gdn": delta_net,
    "recurrent": recurrence,
    "none": no_mixer,
}

"""Recurrent mixers by their sizes: Mamba, Mamba-2, Kimi delta attention, lightning attention, gated short convolution, RG-LRU.

Shapes are those of the reference implementations in transformers; states are float32, convolution states 16-bit.
"""

from __future__ import annotations

from sim.specs.blocks import Matrix
from sim.specs.mixers import Recurrence


def mamba2(
    hidden: int,
    heads: int,
    head_dim: int,
    groups: int,
    state: int,
    conv: int,
    conv_bias: bool = True,
    bias: bool = False,
    norm: bool = True,
) -> Recurrence:
    """Mamba-2: one projection to gate, values, keys, queries and steps; a state of head_dim x state for each head."""
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    rows = inner + channels + heads
    small = 3 * heads + channels * (conv + conv_bias) + inner * norm + (rows + hidden) * bias
    matrices = (Matrix("mamba.in_proj", rows, hidden), Matrix("mamba.out_proj", hidden, inner))
    return Recurrence("Mamba-2", heads, matrices, small, channels, inner * state, channels * (conv - 1))


def mamba(hidden: int, inner: int, rank: int, state: int, conv: int, conv_bias: bool = True, norms: bool = False) -> Recurrence:
    """Mamba: `state` elements for each of `inner` channels, steps of rank `rank`; `norms` of steps, keys and queries (Jamba)."""
    small = inner * (state + 1 + conv + conv_bias + 1) + (rank + 2 * state) * norms
    matrices = (
        Matrix("mamba.in_proj", 2 * inner, hidden),
        Matrix("mamba.x_proj", rank + 2 * state, inner),
        Matrix("mamba.dt_proj", inner, rank),
        Matrix("mamba.out_proj", hidden, inner),
    )
    return Recurrence("Mamba", inner, matrices, small, inner, inner * state, inner * (conv - 1))


def delta_attention(hidden: int, heads: int, dim: int, conv: int, low_rank: bool = True) -> Recurrence:
    """Kimi delta attention: the gated delta rule with a decay for each channel; decay and gate of rank `dim`, or full."""
    width = heads * dim

    def gate(name: str) -> tuple[Matrix, ...]:
        if not low_rank:
            return (Matrix(f"self_attn.{name}_proj", width, hidden),)
        return Matrix(f"self_attn.{name}_a_proj", dim, hidden), Matrix(f"self_attn.{name}_b_proj", width, dim)

    matrices = (
        *(Matrix(f"self_attn.{name}_proj", width, hidden) for name in "qkv"),
        *gate("f"),
        *gate("g"),
        Matrix("self_attn.b_proj", heads, hidden, kept=True),
        Matrix("self_attn.o_proj", hidden, width),
    )
    small = 3 * width * conv + width + heads + dim
    return Recurrence("KDA", heads, matrices, small, 3 * width, width * dim, 3 * width * (conv - 1))


def lightning(hidden: int, heads: int, dim: int) -> Recurrence:
    """Lightning attention (MiniMax): linear attention with a fixed decay for each head, its output gated and normalised."""
    width = heads * dim
    matrices = (
        Matrix("self_attn.qkv_proj", 3 * width, hidden),
        Matrix("self_attn.output_gate", width, hidden),
        Matrix("self_attn.out_proj", hidden, width),
    )
    return Recurrence("lightning", heads, matrices, width, 3 * width, width * dim, 0, flops_per_state=5)


def short_conv(hidden: int, heads: int, width: int, bias: bool = False) -> Recurrence:
    """Gated short convolution (LFM2): the state is the last `width` - 1 inputs."""
    matrices = (Matrix("conv.in_proj", 3 * hidden, hidden), Matrix("conv.out_proj", hidden, hidden))
    small = hidden * width + bias * 5 * hidden
    return Recurrence("convolution", heads, matrices, small, hidden, 0, hidden * (width - 1))


def lru(hidden: int, heads: int, width: int, conv: int) -> Recurrence:
    """Gated linear recurrent unit (RecurrentGemma): one state for each channel, gates in blocks by head."""
    block = width // heads
    matrices = (
        Matrix("temporal_block.linear_x", width, hidden),
        Matrix("temporal_block.linear_y", width, hidden),
        Matrix("temporal_block.rg_lru", 2 * width, block, kept=True),
        Matrix("temporal_block.linear_out", hidden, width),
    )
    small = 2 * width + hidden + width * (conv + 1) + 3 * width
    return Recurrence("RG-LRU", heads, matrices, small, width, width, width * (conv - 1))

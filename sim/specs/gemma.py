"""Gemma 3n and Gemma 4: per-layer embeddings, layers that read an earlier layer's KV, wider heads in full layers, experts beside an MLP."""

from __future__ import annotations

from typing import Any

from sim.specs.blocks import Matrix
from sim.specs.context import context_length
from sim.specs.fields import Fields
from sim.specs.mixers import Attention, Mixer
from sim.specs.mlps import DenseMlp, Mlp, MoeMlp
from sim.specs.model import ModelSpec
from sim.specs.stacks import FULL, SLIDING, layer_count, layer_kinds, stacked

_ALTUP = 4  # streams of Gemma 3n's residual


def gemma3n(c: Fields) -> ModelSpec:
    """Gemma 3n: AltUp streams, LAuReL, per-layer embeddings; the last layers share KV."""
    hidden, per_layer, rank, streams = c.int("hidden_size"), _per_layer(c), c.int("laurel_rank", 64), c.int("altup_num_inputs", _ALTUP)
    extra = (
        Matrix("laurel.linear_left", rank, hidden),
        Matrix("laurel.linear_right", hidden, rank),
        Matrix("altup.modality_router", streams, hidden, kept=True),
        *_per_layer_matrices(hidden, per_layer),
    )
    # norms: four of the layer, LAuReL's, the per-layer input's, the router's, and the scale of the corrected output
    small = streams**2 + streams**3
    streams_params = 2 * (streams - 1) * hidden * hidden
    return _stack(c, per_layer, norms=8, extra=extra, small=small, beside=streams_params, every=5)


def gemma4(c: Fields) -> ModelSpec:
    """Gemma 4: per-layer embeddings where their width is not 0, keys as values and fewer wider heads in full layers."""
    per_layer = _per_layer(c)
    extra = _per_layer_matrices(c.int("hidden_size"), per_layer) if per_layer else ()
    experts = c.bool("enable_moe_block", False)
    norms = 4 + bool(per_layer) + 3 * experts
    return _stack(c, per_layer, norms, extra, small=0, beside=0, every=6, wide=c.int("global_head_dim", 512))


def _per_layer(c: Fields) -> int:
    unified = c.data.get("model_type") == "gemma4_unified_text"  # has none unless its file says so
    return c.int("hidden_size_per_layer_input", 0 if unified else 256, minimum=0)


def _per_layer_matrices(hidden: int, width: int) -> tuple[Matrix, ...]:
    return Matrix("per_layer_input_gate", width, hidden), Matrix("per_layer_projection", hidden, width)


def _stack(
    c: Fields, per_layer: int, norms: int, extra: tuple[Matrix, ...], small: int, beside: int, every: int, wide: int | None = None
) -> ModelSpec:
    layers, hidden = layer_count(c), c.int("hidden_size")
    kinds = layer_kinds(c, (FULL, SLIDING), lambda i: SLIDING if (i + 1) % every else FULL)
    shared = layers - c.int("num_kv_shared_layers", 0, minimum=0)
    members: dict[tuple[Mixer, Mlp, int], list[int]] = {}
    for layer, kind in enumerate(kinds):
        key = (_attention(c, kind, wide, kept=layer < shared), _mlp(c, layer, shared), norms)
        members.setdefault(key, []).append(layer)
    # the tables of per-layer embeddings are looked up, their projection is read once
    tables = per_layer * layers * (c.int("vocab_size_per_layer_input", c.int("vocab_size")) + hidden) + per_layer if per_layer else 0
    return stacked(c, members, True, {"extra": extra, "extra_params": small}, extra_params=tables + beside)


def _attention(c: Fields, kind: str, wide: int | None, kept: bool) -> Attention:
    """`wide` is the head size of full layers where it is another."""
    heads, kv_heads, head_dim = c.int("num_attention_heads"), c.int("num_key_value_heads"), c.int("head_dim", 256)
    key_is_value = c.bool("attention_k_eq_v", False) and kind == FULL
    if wide is not None and kind == FULL:
        head_dim = wide
        kv_heads = c.int("num_global_key_value_heads", kv_heads) if key_is_value else kv_heads
    size = c.int("sliding_window", 512)
    return Attention(
        heads,
        kv_heads,
        head_dim,
        window=size if kind == SLIDING and size < context_length(c) else None,
        qkv_bias=c.bool("attention_bias", False),
        out_bias=c.bool("attention_bias", False),
        qk_norm=True,
        qk_norm_elements=None if kept else head_dim,
        kv_kept=kept,
        value_is_key=key_is_value,
    )


def _mlp(c: Fields, layer: int, shared: int) -> Mlp:
    sizes: Any = c.get("intermediate_size")
    size = sizes[layer] if isinstance(sizes, list) and len(sizes) > layer else c.int("intermediate_size")
    if c.bool("use_double_wide_mlp", False) and layer >= shared:
        size *= 2
    if not c.bool("enable_moe_block", False):
        return DenseMlp(size)
    # a dense MLP runs beside the experts; the router scales its input and each expert's output
    hidden, experts = c.int("hidden_size"), c.int("num_experts")
    return MoeMlp(experts, c.int("top_k_experts"), c.int("moe_intermediate_size"), size, extra_params=hidden + experts)

"""Building blocks of architectures: layers read from configuration fields, and layers stacked into a ModelSpec."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from sim.specs.context import context_length
from sim.specs.fields import Fields
from sim.specs.model import Attention, DenseMlp, LayerGroup, Mixer, Mlp, ModelSpec, MoeMlp

MAX_LAYERS = 4096
FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"


def stack(
    c: Fields,
    mixer_at: Callable[[int], Mixer],
    mlp_at: Callable[[int], Mlp],
    tied: bool = False,
    norms: int = 2,
    expert_bits: float | None = None,
) -> ModelSpec:
    """Merge equal layers into groups, in order of first appearance."""
    members: dict[tuple[Mixer, Mlp], list[int]] = {}
    for layer in range(layer_count(c)):
        members.setdefault((mixer_at(layer), mlp_at(layer)), []).append(layer)
    return ModelSpec(
        name="",
        hidden=c.int("hidden_size"),
        vocab=c.int("vocab_size"),
        groups=tuple(LayerGroup(len(at), mixer, mlp, norms, indices=tuple(at)) for (mixer, mlp), at in members.items()),
        tied_embeddings=c.bool("tie_word_embeddings", tied),
        max_context=context_length(c),
        expert_bits=expert_bits,
    )


def layer_count(c: Fields) -> int:
    """num_hidden_layers, bounded so that a wrong file cannot make us build a list of a billion layers."""
    layers = c.int("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise c.fail("num_hidden_layers", f"must be at most {MAX_LAYERS}, not {layers}")
    return layers


def attention(
    c: Fields,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    output_gate: bool = False,
    sinks: bool = False,
) -> Attention:
    """Softmax attention over the whole context; the flags are what the architecture adds to it."""
    heads = c.int("num_attention_heads")
    kv_heads = c.int("num_key_value_heads", heads)
    if heads % kv_heads:
        raise c.fail("num_key_value_heads", f"must divide num_attention_heads = {heads}, not {kv_heads}")
    if not c.has("head_dim") and c.int("hidden_size") % heads:
        raise c.fail("head_dim", f"is missing and hidden_size is not a multiple of num_attention_heads = {heads}")
    head_dim = c.int("head_dim", c.int("hidden_size") // heads)
    return Attention(heads, kv_heads, head_dim, None, qkv_bias, out_bias, qk_norm, output_gate, sinks)


def layer_kinds(c: Fields, allowed: tuple[str, ...], default: Callable[[int], str]) -> list[str]:
    """The kind of each layer: `layer_types` when given, else the architecture's rule."""
    layers = layer_count(c)
    kinds = c.texts("layer_types", allowed) or [default(i) for i in range(layers)]
    if len(kinds) != layers:
        raise c.fail("layer_types", f"has {len(kinds)} entries for {layers} layers")
    return kinds


def windowed(
    c: Fields, base: Attention, slides: Callable[[int], bool], kind: str = SLIDING, size_field: str = "sliding_window"
) -> Callable[[int], Mixer]:
    """Attention per layer, with a window of `size_field` tokens where layer_types (or else the architecture's rule) says `kind`."""
    kinds = layer_kinds(c, (FULL, kind), lambda i: kind if slides(i) else FULL)
    if kind not in kinds:
        return lambda layer: base
    size = c.int(size_field)
    # A window no context can exceed (Phi-3.5: 262144 of 131072) limits nothing: the layer is a full-attention layer.
    local = replace(base, window=size if size < c.int("max_position_embeddings") else None)
    return lambda layer: local if kinds[layer] == kind else base


def dense_mlp(c: Fields, bias: bool = False) -> Callable[[int], Mlp]:
    """The same gated MLP in every layer."""
    mlp = DenseMlp(c.int("intermediate_size"), bias)
    return lambda layer: mlp


def sparse_every(c: Fields, moe: MoeMlp) -> Callable[[int], Mlp]:
    """Qwen's rule: every decoder_sparse_step-th layer is MoE, those in mlp_only_layers are dense."""
    step = c.int("decoder_sparse_step", 1)
    only = numbers(c, "mlp_only_layers")
    dense_layers = {i for i in range(layer_count(c)) if i in only or (i + 1) % step}
    return dense_where(c, dense_layers, "intermediate_size", moe)


def dense_where(c: Fields, layers: Collection[int], size_field: str, moe: MoeMlp) -> Callable[[int], Mlp]:
    """A dense MLP of `size_field` in these layers, the mixture in all others."""
    dense = DenseMlp(c.int(size_field)) if layers else None
    return lambda layer: dense if dense is not None and layer in layers else moe


def numbers(c: Fields, name: str) -> list[int]:
    """A list of whole numbers that speak of layers; empty when absent."""
    values = c.data.get(name) or []
    if not isinstance(values, list) or not all(isinstance(i, int) for i in values):
        raise c.fail(name, f"must be a list of layer numbers, not {values!r}")
    return values


EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")  # files saved by a newer transformers take another of them


def expert_mlp(c: Fields, count_field: str, intermediate: int, **more: bool | int) -> MoeMlp:
    """A mixture whose expert count stands in `count_field`, or under another's name; `more` are the other fields of MoeMlp."""
    count_field = next((name for name in (count_field, *EXPERT_COUNTS) if c.has(name)), count_field)
    experts, top_k = c.int(count_field), c.int("num_experts_per_tok")
    if top_k > experts:
        raise c.fail("num_experts_per_tok", f"must be at most {count_field} = {experts}, not {top_k}")
    return MoeMlp(experts, top_k, intermediate, **more)  # type: ignore[arg-type]

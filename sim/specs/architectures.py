"""One builder per decoder architecture: Hugging Face configuration fields in, layer groups out.

Defaults stand only where published configurations leave a field out and the reference implementation fills it in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sim.precision import DTYPE_BYTES
from sim.specs.fields import Fields
from sim.specs.model import (
    Attention,
    DenseMlp,
    GatedDeltaNet,
    LatentAttention,
    LayerGroup,
    Mixer,
    Mlp,
    ModelSpec,
    MoeMlp,
)
from sim.specs.vision import pixtral_projector_params, qwen_vision_params, siglip_projector_params

MAX_LAYERS = 4096
_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"


def build(config: Fields) -> ModelSpec:
    """The ModelSpec (unnamed) of a configuration. Raises UsageError naming the field that is missing or unsupported."""
    kind = config.text("model_type")
    if kind in _WRAPPERS:
        text_type, tied, tower = _WRAPPERS[kind]
        text = config.section("text_config")
        if text.text("model_type", text_type) not in DECODERS:
            raise text.fail("model_type", f"is unsupported: {text.text('model_type')!r}")
        spec = DECODERS[text.text("model_type", text_type)](text)
        if not text.has("tie_word_embeddings") or config.has("tie_word_embeddings"):
            spec = replace(spec, tied_embeddings=config.bool("tie_word_embeddings", tied))
        extra = tower(config, spec.hidden) if config.has("vision_config") else 0
        return replace(spec, extra_params=extra)
    if kind not in DECODERS:
        raise config.fail("model_type", f"is unsupported: {kind!r} (supported: {', '.join(supported())})")
    return DECODERS[kind](config)


def supported() -> list[str]:
    """The `model_type` values that can be read."""
    return sorted({*DECODERS, *_WRAPPERS})


def _stack(
    c: Fields,
    mixer_at: Callable[[int], Mixer],
    mlp_at: Callable[[int], Mlp],
    tied: bool = False,
    norms: int = 2,
    expert_bits: float | None = None,
) -> ModelSpec:
    """Merge equal layers into groups, in order of first appearance."""
    counts: dict[tuple[Mixer, Mlp], int] = {}
    for layer in range(_layers(c)):
        pair = (mixer_at(layer), mlp_at(layer))
        counts[pair] = counts.get(pair, 0) + 1
    return ModelSpec(
        name="",
        hidden=c.int("hidden_size"),
        vocab=c.int("vocab_size"),
        groups=tuple(LayerGroup(count, mixer, mlp, norms) for (mixer, mlp), count in counts.items()),
        tied_embeddings=c.bool("tie_word_embeddings", tied),
        max_context=c.int("max_position_embeddings"),
        expert_bits=expert_bits,
    )


def _layers(c: Fields) -> int:
    layers = c.int("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise c.fail("num_hidden_layers", f"must be at most {MAX_LAYERS}, not {layers}")
    return layers


def _attention(
    c: Fields,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    output_gate: bool = False,
    sinks: bool = False,
) -> Attention:
    heads = c.int("num_attention_heads")
    kv_heads = c.int("num_key_value_heads", heads)
    if heads % kv_heads:
        raise c.fail("num_key_value_heads", f"must divide num_attention_heads = {heads}, not {kv_heads}")
    if not c.has("head_dim") and c.int("hidden_size") % heads:
        raise c.fail("head_dim", f"is missing and hidden_size is not a multiple of num_attention_heads = {heads}")
    head_dim = c.int("head_dim", c.int("hidden_size") // heads)
    return Attention(heads, kv_heads, head_dim, None, qkv_bias, out_bias, qk_norm, output_gate, sinks)


def _kinds(c: Fields, allowed: tuple[str, ...], default: Callable[[int], str]) -> list[str]:
    """The kind of each layer: `layer_types` when given, else the architecture's rule."""
    layers = _layers(c)
    kinds = c.texts("layer_types", allowed) or [default(i) for i in range(layers)]
    if len(kinds) != layers:
        raise c.fail("layer_types", f"has {len(kinds)} entries for {layers} layers")
    return kinds


def _windowed(c: Fields, base: Attention, slides: Callable[[int], bool], window: int = 4096) -> Callable[[int], Mixer]:
    """Attention per layer, with the sliding window where layer_types (or else the architecture's rule) says so."""
    kinds = _kinds(c, (_FULL, _SLIDING), lambda i: _SLIDING if slides(i) else _FULL)
    if _SLIDING not in kinds:
        return lambda layer: base
    size = c.int("sliding_window", window)
    # A window no context can exceed (Phi-3.5: 262144 of 131072) limits nothing: the layer is a full-attention layer.
    sliding = replace(base, window=size if size < c.int("max_position_embeddings") else None)
    return lambda layer: sliding if kinds[layer] == _SLIDING else base


def _dense(c: Fields, bias: bool = False) -> Callable[[int], Mlp]:
    mlp = DenseMlp(c.int("intermediate_size"), bias)
    return lambda layer: mlp


def _sparse_every(c: Fields, moe: MoeMlp) -> Callable[[int], Mlp]:
    """Qwen's rule: every decoder_sparse_step-th layer is MoE, those in mlp_only_layers are dense."""
    step = c.int("decoder_sparse_step", 1)
    only = c.data.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(isinstance(i, int) for i in only):
        raise c.fail("mlp_only_layers", f"must be a list of layer numbers, not {only!r}")
    dense_layers = {i for i in range(_layers(c)) if i in only or (i + 1) % step}
    dense = DenseMlp(c.int("intermediate_size")) if dense_layers else None
    return lambda layer: dense if dense is not None and layer in dense_layers else moe


def _llama(c: Fields) -> ModelSpec:
    bias = c.bool("attention_bias", False)
    base = _attention(c, qkv_bias=bias, out_bias=bias)
    return _stack(c, lambda layer: base, _dense(c, c.bool("mlp_bias", False)))


def _mistral(c: Fields) -> ModelSpec:
    return _stack(c, _windowed(c, _attention(c), lambda layer: c.has("sliding_window")), _dense(c))


def _seed_oss(c: Fields) -> ModelSpec:
    base = _attention(c, qkv_bias=c.bool("attention_bias", True), out_bias=c.bool("attention_out_bias", False))
    return _stack(c, lambda layer: base, _dense(c, c.bool("mlp_bias", False)))


def _mixtral(c: Fields) -> ModelSpec:
    moe = _experts(c, "num_local_experts", c.int("intermediate_size"))
    return _stack(c, _windowed(c, _attention(c), lambda layer: c.has("sliding_window")), lambda layer: moe)


def _experts(c: Fields, count_field: str, intermediate: int, **more: bool | int) -> MoeMlp:
    experts, top_k = c.int(count_field), c.int("num_experts_per_tok")
    if top_k > experts:
        raise c.fail("num_experts_per_tok", f"must be at most {count_field} = {experts}, not {top_k}")
    return MoeMlp(experts, top_k, intermediate, **more)  # type: ignore[arg-type]


def _qwen_window(c: Fields, base: Attention) -> Callable[[int], Mixer]:
    slides = c.bool("use_sliding_window", False)
    first = c.int("max_window_layers", 28, minimum=0)
    return _windowed(c, base, lambda layer: slides and layer >= first)


def _qwen2(c: Fields) -> ModelSpec:
    return _stack(c, _qwen_window(c, _attention(c, qkv_bias=True)), _dense(c))


def _qwen3_attention(c: Fields) -> Attention:
    bias = c.bool("attention_bias", False)
    return _attention(c, qkv_bias=bias, out_bias=bias, qk_norm=True)


def _qwen3(c: Fields) -> ModelSpec:
    return _stack(c, _qwen_window(c, _qwen3_attention(c)), _dense(c))


def _qwen2_moe(c: Fields) -> ModelSpec:
    shared = c.int("shared_expert_intermediate_size")
    moe = _experts(c, "num_experts", c.int("moe_intermediate_size"), shared_intermediate=shared, shared_gate=True)
    base = _attention(c, qkv_bias=c.bool("qkv_bias", True))
    return _stack(c, _qwen_window(c, base), _sparse_every(c, moe))


def _qwen3_moe(c: Fields) -> ModelSpec:
    moe = _experts(c, "num_experts", c.int("moe_intermediate_size"))
    return _stack(c, _qwen_window(c, _qwen3_attention(c)), _sparse_every(c, moe))


def _gemma(c: Fields) -> ModelSpec:
    base = _attention(c)
    return _stack(c, lambda layer: base, _dense(c), tied=True)


def _gemma2(c: Fields) -> ModelSpec:
    bias = c.bool("attention_bias", False)
    base = _attention(c, qkv_bias=bias, out_bias=bias)
    return _stack(c, _windowed(c, base, lambda layer: layer % 2 == 0), _dense(c), tied=True, norms=4)


# Multimodal Gemma 3 configurations leave these to the implementation.
_GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}


def _gemma3(c: Fields) -> ModelSpec:
    given = {name: value for name, value in c.data.items() if value is not None}
    c = Fields(_GEMMA3_DEFAULTS | given, c.where, c.prefix)
    bias = c.bool("attention_bias", False)
    base = _attention(c, qkv_bias=bias, out_bias=bias, qk_norm=True)
    pattern = c.int("sliding_window_pattern", 6)
    slides = _windowed(c, base, lambda layer: (layer + 1) % pattern != 0)
    return _stack(c, slides, _dense(c), tied=True, norms=4)


def _phi3(c: Fields) -> ModelSpec:
    return _stack(c, _windowed(c, _attention(c), lambda layer: c.has("sliding_window")), _dense(c))


def _gpt_oss(c: Fields) -> ModelSpec:
    bias = c.bool("attention_bias", True)
    base = _attention(c, qkv_bias=bias, out_bias=bias, sinks=True)
    moe = _experts(c, "num_local_experts", c.int("intermediate_size"), router_bias=True, expert_bias=True)
    bits = None
    if c.has("quantization_config"):
        method = c.section("quantization_config").text("quant_method")
        bits = 8 * DTYPE_BYTES["mxfp4"] if method == "mxfp4" else None
    windows = _windowed(c, base, lambda layer: layer % 2 == 0, window=128)
    return _stack(c, windows, lambda layer: moe, expert_bits=bits)


def _deepseek_moe(c: Fields, router_bias: bool) -> Callable[[int], Mlp]:
    first, every = c.int("first_k_dense_replace", 0, minimum=0), c.int("moe_layer_freq", 1)
    inner = c.int("moe_intermediate_size")
    shared = inner * c.int("n_shared_experts", 0, minimum=0)
    moe = _experts(c, "n_routed_experts", inner, shared_intermediate=shared, router_bias=router_bias)
    if first == 0 and every == 1:
        return lambda layer: moe
    dense = DenseMlp(c.int("intermediate_size"))
    return lambda layer: moe if layer >= first and layer % every == 0 else dense


def _deepseek(c: Fields) -> ModelSpec:
    if c.bool("attention_bias", False):
        raise c.fail("attention_bias", "is unsupported with latent attention")
    mixer = LatentAttention(
        heads=c.int("num_attention_heads"),
        q_rank=c.int("q_lora_rank") if c.has("q_lora_rank") else None,
        kv_rank=c.int("kv_lora_rank"),
        nope_dim=c.int("qk_nope_head_dim"),
        rope_dim=c.int("qk_rope_head_dim"),
        v_dim=c.int("v_head_dim"),
    )
    # Version 3 balances experts with a learned per-expert bias instead of an auxiliary loss.
    return _stack(c, lambda layer: mixer, _deepseek_moe(c, router_bias=c.text("model_type") != "deepseek_v2"))


def _glm4_moe(c: Fields) -> ModelSpec:
    base = _attention(c, qkv_bias=c.bool("attention_bias", False), qk_norm=c.bool("use_qk_norm", False))
    return _stack(c, lambda layer: base, _deepseek_moe(c, router_bias=True))


def _hybrid_mixers(c: Fields) -> Callable[[int], Mixer]:
    """Gated DeltaNet with a full-attention layer (output-gated) every `full_attention_interval`-th."""
    every = c.int("full_attention_interval", 4)
    kinds = _kinds(c, (_FULL, _LINEAR), lambda i: _LINEAR if (i + 1) % every else _FULL)
    bias = c.bool("attention_bias", False)
    full = _attention(c, qkv_bias=bias, out_bias=bias, qk_norm=True, output_gate=True)
    linear = GatedDeltaNet(
        key_heads=c.int("linear_num_key_heads"),
        value_heads=c.int("linear_num_value_heads"),
        key_dim=c.int("linear_key_head_dim"),
        value_dim=c.int("linear_value_head_dim"),
        conv_width=c.int("linear_conv_kernel_dim", 4),
    )
    return lambda layer: full if kinds[layer] == _FULL else linear


def _hybrid_moe(c: Fields) -> ModelSpec:
    shared = c.int("shared_expert_intermediate_size")
    moe = _experts(c, "num_experts", c.int("moe_intermediate_size"), shared_intermediate=shared, shared_gate=True)
    return _stack(c, _hybrid_mixers(c), _sparse_every(c, moe))


def _hybrid_dense(c: Fields) -> ModelSpec:
    return _stack(c, _hybrid_mixers(c), _dense(c))


DECODERS: dict[str, Callable[[Fields], ModelSpec]] = {
    "llama": _llama,
    "granite": _llama,
    "mistral": _mistral,
    "seed_oss": _seed_oss,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "glm4_moe": _glm4_moe,
    "qwen3_next": _hybrid_moe,
    "qwen3_5_text": _hybrid_dense,
    "qwen3_5_moe_text": _hybrid_moe,
}
# model_type of a multimodal checkpoint -> (its text decoder, tied embeddings by default, parameters of its vision tower).
_WRAPPERS: dict[str, tuple[str, bool, Callable[[Fields, int], int]]] = {
    "gemma3": ("gemma3_text", True, siglip_projector_params),
    "mistral3": ("mistral", False, pixtral_projector_params),
    "qwen3_5": ("qwen3_5_text", False, qwen_vision_params),
    "qwen3_5_moe": ("qwen3_5_moe_text", False, qwen_vision_params),
}

"""One builder per decoder architecture: Hugging Face configuration fields in, layer groups out.

Defaults stand only where published configurations leave a field out and the reference implementation fills it in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sim.specs.fields import Fields
from sim.specs.gemma import gemma3n, gemma4
from sim.specs.looped import dory, hrm_text
from sim.specs.model import Attention, DenseMlp, GatedDeltaNet, LatentAttention, Mixer, Mlp, ModelSpec
from sim.specs.precision import DTYPE_BYTES
from sim.specs.reader import read_blocks
from sim.specs.stacks import (
    CHUNKED,
    FULL,
    LINEAR,
    attention,
    dense_mlp,
    dense_where,
    expert_mlp,
    layer_count,
    layer_kinds,
    numbers,
    sparse_every,
    stack,
    windowed,
)
from sim.specs.traits import SAME, TRAITS
from sim.specs.unusual import deepseek_v4, longcat, nemotron_nas, zamba2
from sim.specs.vision import llama4_projector_params, pixtral_projector_params, qwen_vision_params, siglip_projector_params

# Decoders that vLLM 0.23 steps with its second model runner, by the kernels in their profiles; Qwen2 and Qwen3's mixture of experts
# with its first.
SECOND_RUNNER = ("llama", "qwen3")


def build(config: Fields) -> ModelSpec:
    """The ModelSpec (unnamed) of a configuration. Raises UsageError naming the field that is missing or unsupported."""
    kind = config.text("model_type")
    if kind in _WRAPPERS and config.has("text_config"):
        text_type, tied, tower = _WRAPPERS[kind]
        text = config.section("text_config")
        read = _decoder(text.text("model_type", text_type))
        if read is None:
            raise text.fail("model_type", _unsupported(text.text("model_type")))
        spec = read(text)
        if not text.has("tie_word_embeddings") or config.has("tie_word_embeddings"):
            spec = replace(spec, tied_embeddings=config.bool("tie_word_embeddings", tied))
        extra = tower(config, spec.hidden) if config.has("vision_config") else 0
        return replace(spec, extra_params=extra)
    part = next((name for name in TEXT_PARTS if config.has(name)), None)
    if part is not None and (_decoder(kind) is None or not config.has("hidden_size")):  # some wrap a decoder of their own name
        return _text_part(config, part)
    read = _decoder(kind)
    if read is None:
        raise config.fail("model_type", _unsupported(kind))
    spec = replace(read(config), second_runner=kind in SECOND_RUNNER)
    others = [name for name in _OTHER_PARTS if config.has(name)]
    return replace(spec, notes=(*spec.notes, f"{', '.join(others)}: not counted.")) if others else spec


# Where multimodal checkpoints keep the configuration of their text decoder.
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_OTHER_PARTS = (
    "vision_config",
    "audio_config",
    "vit_config",
    "visual_tokenizer_config",
    "talker_config",
    "code2wav_config",
    "encoder_config",
)


# The decoders of wrappers whose text part may leave its model_type out.
UNNAMED = {
    "minimax_m3_vl": "minimax_m3",
    "llava": "llama",
    "llava_next": "llama",
    "mllama": "llama",
    "qwen3_vl": "qwen3",
    "internvl": "qwen2",
}


def _decoder(kind: str) -> Callable[[Fields], ModelSpec] | None:
    """The reader of a decoder: its own, or blocks put together by its traits."""
    kind = SAME.get(kind, kind)
    if kind in DECODERS:
        return DECODERS[kind]
    return (lambda c: read_blocks(c, TRAITS[kind], kind)) if kind in TRAITS else None


def _unsupported(kind: str) -> str:
    return f"is unsupported: {kind!r} (supported: {len(supported())} types and wrappers of them, on the coverage page)"


def _text_part(config: Fields, part: str) -> ModelSpec:
    """The text decoder of a multimodal checkpoint, and a note of what else it holds: nothing of that is counted."""
    text = config.section(part)
    if part == "thinker_config" and text.has("text_config"):
        text = text.section("text_config")
    outer = config.text("model_type")
    kind = text.text("model_type", UNNAMED[outer]) if outer in UNNAMED else text.text("model_type")
    read = _decoder(kind)
    if read is None:
        raise text.fail("model_type", _unsupported(kind))
    spec = read(Fields({**text.data, "model_type": kind}, text.where, text.prefix))
    if config.has("tie_word_embeddings"):
        spec = replace(spec, tied_embeddings=config.bool("tie_word_embeddings", False))
    extra, others = 0, [name for name in _OTHER_PARTS if config.has(name)]
    if (
        config.text("model_type") in _TOWERS
        and "vision_config" in others
        and config.section("vision_config").has("num_position_embeddings")
    ):
        extra = _TOWERS[config.text("model_type")](config, spec.hidden)
        others.remove("vision_config")
    said = f"{', '.join(others)}: not counted; {config.text('model_type')} is read by its text part ({kind})."
    return replace(spec, extra_params=spec.extra_params + extra, notes=(*spec.notes, *([said] if others else [])))


def supported() -> list[str]:
    """The `model_type` values that can be read; a wrapper of one of them is read by its text part."""
    return sorted({*DECODERS, *_WRAPPERS, *TRAITS, *SAME})


def _llama(c: Fields) -> ModelSpec:
    bias = c.bool("attention_bias", False)
    base = attention(c, qkv_bias=bias, out_bias=bias)
    return stack(c, lambda layer: base, dense_mlp(c, c.bool("mlp_bias", False)))


def _llama4(c: Fields) -> ModelSpec:
    bias = c.bool("attention_bias", False)
    base = attention(c, qkv_bias=bias, out_bias=bias)  # queries and keys are normalized without weights
    layers, inner = layer_count(c), c.int("intermediate_size")
    moe = expert_mlp(c, "num_local_experts", inner, shared_intermediate=inner)
    step = c.int("interleave_moe_layer_step", 1)
    sparse = numbers(c, "moe_layers") if c.has("moe_layers") else range(step - 1, layers, step)
    mlps = dense_where(c, set(range(layers)) - set(sparse), "intermediate_size_mlp", moe)
    # A window of the chunk's size: a token reads its chunk up to itself, so this is the most that it can read.
    return stack(c, windowed(c, base, _llama4_chunks(c), CHUNKED, "attention_chunk_size"), mlps)


def _llama4_chunks(c: Fields) -> Callable[[int], bool]:
    """Layers with rotary positions attend within their chunk, those without to all. `no_rope_layers` holds 1 where there are positions."""
    every, given = c.int("no_rope_layer_interval", 4), numbers(c, "no_rope_layers")
    if given and len(given) != layer_count(c):
        raise c.fail("no_rope_layers", f"has {len(given)} entries for {layer_count(c)} layers")
    return lambda layer: bool(given[layer]) if given else (layer + 1) % every != 0


def _mistral(c: Fields) -> ModelSpec:
    return stack(c, windowed(c, attention(c), lambda layer: c.has("sliding_window")), dense_mlp(c))


def _seed_oss(c: Fields) -> ModelSpec:
    base = attention(c, qkv_bias=c.bool("attention_bias", True), out_bias=c.bool("attention_out_bias", False))
    return stack(c, lambda layer: base, dense_mlp(c, c.bool("mlp_bias", False)))


def _mixtral(c: Fields) -> ModelSpec:
    moe = expert_mlp(c, "num_local_experts", c.int("intermediate_size"))
    return stack(c, windowed(c, attention(c), lambda layer: c.has("sliding_window")), lambda layer: moe)


def _qwen_window(c: Fields, base: Attention) -> Callable[[int], Mixer]:
    slides = c.bool("use_sliding_window", False)
    first = c.int("max_window_layers", 28, minimum=0)
    return windowed(c, base, lambda layer: slides and layer >= first)


def _qwen2(c: Fields) -> ModelSpec:
    return stack(c, _qwen_window(c, attention(c, qkv_bias=True)), dense_mlp(c))


def _qwen3_attention(c: Fields) -> Attention:
    bias = c.bool("attention_bias", False)
    return attention(c, qkv_bias=bias, out_bias=bias, qk_norm=True)


def _qwen3(c: Fields) -> ModelSpec:
    return stack(c, _qwen_window(c, _qwen3_attention(c)), dense_mlp(c))


def _qwen2_moe(c: Fields) -> ModelSpec:
    shared = c.int("shared_expert_intermediate_size")
    moe = expert_mlp(c, "num_experts", c.int("moe_intermediate_size"), shared_intermediate=shared, shared_gate=True)
    base = attention(c, qkv_bias=c.bool("qkv_bias", True))
    return stack(c, _qwen_window(c, base), sparse_every(c, moe))


def _qwen3_moe(c: Fields) -> ModelSpec:
    moe = expert_mlp(c, "num_experts", c.int("moe_intermediate_size"))
    return stack(c, _qwen_window(c, _qwen3_attention(c)), sparse_every(c, moe))


def _gemma(c: Fields) -> ModelSpec:
    base = attention(c)
    return stack(c, lambda layer: base, dense_mlp(c), tied=True)


def _gemma2(c: Fields) -> ModelSpec:
    bias = c.bool("attention_bias", False)
    base = attention(c, qkv_bias=bias, out_bias=bias)
    return stack(c, windowed(c, base, lambda layer: layer % 2 == 0), dense_mlp(c), tied=True, norms=4)


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
    base = attention(c, qkv_bias=bias, out_bias=bias, qk_norm=True)
    pattern = c.int("sliding_window_pattern", 6)
    slides = windowed(c, base, lambda layer: (layer + 1) % pattern != 0)
    return stack(c, slides, dense_mlp(c), tied=True, norms=4)


def _phi3(c: Fields) -> ModelSpec:
    return stack(c, windowed(c, attention(c), lambda layer: c.has("sliding_window")), dense_mlp(c))


def _gpt_oss(c: Fields) -> ModelSpec:
    bias = c.bool("attention_bias", True)
    base = attention(c, qkv_bias=bias, out_bias=bias, sinks=True)
    moe = expert_mlp(c, "num_local_experts", c.int("intermediate_size"), router_bias=True, expert_bias=True)
    bits = None
    if c.has("quantization_config"):
        method = c.section("quantization_config").text("quant_method")
        bits = 8 * DTYPE_BYTES["mxfp4"] if method == "mxfp4" else None
    windows = windowed(c, base, lambda layer: layer % 2 == 0)
    return stack(c, windows, lambda layer: moe, expert_bits=bits)


def _deepseek_moe(c: Fields, router_bias: bool) -> Callable[[int], Mlp]:
    first, every = c.int("first_k_dense_replace", 0, minimum=0), c.int("moe_layer_freq", 1)
    inner = c.int("moe_intermediate_size")
    shared = inner * c.int("n_shared_experts", 0, minimum=0)
    moe = expert_mlp(c, "n_routed_experts", inner, shared_intermediate=shared, router_bias=router_bias)
    if first == 0 and every == 1:
        return lambda layer: moe
    dense = DenseMlp(c.int("intermediate_size"))
    return lambda layer: moe if layer >= first and layer % every == 0 else dense


def _query_rank(c: Fields) -> int | None:
    """Null says that queries are not compressed; an absent field says nothing, and is refused."""
    return None if "q_lora_rank" in c.data and not c.has("q_lora_rank") else c.int("q_lora_rank")


def _deepseek(c: Fields) -> ModelSpec:
    if c.bool("attention_bias", False):
        raise c.fail("attention_bias", "is unsupported with latent attention")
    mixer = LatentAttention(
        heads=c.int("num_attention_heads"),
        q_rank=_query_rank(c),
        kv_rank=c.int("kv_lora_rank"),
        nope_dim=c.int("qk_nope_head_dim"),
        rope_dim=c.int("qk_rope_head_dim"),
        v_dim=c.int("v_head_dim"),
    )
    # Version 3 balances experts with a learned per-expert bias instead of an auxiliary loss.
    return stack(c, lambda layer: mixer, _deepseek_moe(c, router_bias=c.text("model_type") != "deepseek_v2"))


def _glm4_moe(c: Fields) -> ModelSpec:
    base = attention(c, qkv_bias=c.bool("attention_bias", False), qk_norm=c.bool("use_qk_norm", False))
    return stack(c, lambda layer: base, _deepseek_moe(c, router_bias=True))


def _hybrid_mixers(c: Fields) -> Callable[[int], Mixer]:
    """Gated DeltaNet with a full-attention layer (output-gated) every `full_attention_interval`-th."""
    every = c.int("full_attention_interval", 4)
    kinds = layer_kinds(c, (FULL, LINEAR), lambda i: LINEAR if (i + 1) % every else FULL)
    bias = c.bool("attention_bias", False)
    full = attention(c, qkv_bias=bias, out_bias=bias, qk_norm=True, output_gate=True)
    linear = GatedDeltaNet(
        key_heads=c.int("linear_num_key_heads"),
        value_heads=c.int("linear_num_value_heads"),
        key_dim=c.int("linear_key_head_dim"),
        value_dim=c.int("linear_value_head_dim"),
        conv_width=c.int("linear_conv_kernel_dim", 4),
    )
    return lambda layer: full if kinds[layer] == FULL else linear


def _hybrid_moe(c: Fields) -> ModelSpec:
    shared = c.int("shared_expert_intermediate_size")
    moe = expert_mlp(c, "num_experts", c.int("moe_intermediate_size"), shared_intermediate=shared, shared_gate=True)
    return stack(c, _hybrid_mixers(c), sparse_every(c, moe))


def _hybrid_dense(c: Fields) -> ModelSpec:
    return stack(c, _hybrid_mixers(c), dense_mlp(c))


DECODERS: dict[str, Callable[[Fields], ModelSpec]] = {
    "llama": _llama,
    "granite": _llama,
    "llama4_text": _llama4,
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
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4,
    "deepseek_v4": deepseek_v4,
    "deepseek_ref": deepseek_v4,
    "longcat_flash": longcat,
    "longcat_flash_ngram": longcat,
    "nemotron-nas": nemotron_nas,
    "zamba2": zamba2,
    "hrm_text": hrm_text,
    "dory": dory,
}
# model_type of a multimodal checkpoint -> (its text decoder, tied embeddings by default, parameters of its vision tower).
_WRAPPERS: dict[str, tuple[str, bool, Callable[[Fields, int], int]]] = {
    "llama4": ("llama4_text", False, llama4_projector_params),
    "gemma3": ("gemma3_text", True, siglip_projector_params),
    "mistral3": ("mistral", False, pixtral_projector_params),
    "qwen3_5": ("qwen3_5_text", False, qwen_vision_params),
    "qwen3_5_moe": ("qwen3_5_moe_text", False, qwen_vision_params),
}
_TOWERS: dict[str, Callable[[Fields, int], int]] = {"qwen3_vl": qwen_vision_params, "qwen3_vl_moe": qwen_vision_params}

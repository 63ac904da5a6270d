"""The ModelSpec of a Hugging Face configuration: by the traits of its architecture, or by a reader of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sim.specs.fields import Fields
from sim.specs.gemma import gemma3n, gemma4
from sim.specs.looped import dory, hrm_text
from sim.specs.model import ModelSpec
from sim.specs.precision import DTYPE_BYTES
from sim.specs.reader import read_blocks
from sim.specs.stacks import CHUNKED, FULL, SLIDING, layer_count, layer_kinds, numbers
from sim.specs.traits import SAME, TRAITS
from sim.specs.unusual import deepseek_v4, longcat, nemotron_nas, zamba2
from sim.specs.vision import (
    gemma4_vision_params,
    llama4_projector_params,
    pixtral_projector_params,
    qwen_image_bytes,
    qwen_vision_params,
    siglip_projector_params,
)

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
        spec = replace(read(text), model_type=text.text("model_type", text_type))
        if not text.has("tie_word_embeddings") or config.has("tie_word_embeddings"):
            spec = replace(spec, tied_embeddings=config.bool("tie_word_embeddings", tied))
        if not config.has("vision_config"):
            return spec
        extra = tower(config, spec.hidden)
        return replace(spec, extra_params=extra, tower_params=extra, image_bytes=_image_bytes(config, tower))
    part = next((name for name in TEXT_PARTS if config.has(name)), None)
    if part is not None and (_decoder(kind) is None or not config.has("hidden_size")):  # some wrap a decoder of their own name
        return _text_part(config, part)
    read = _decoder(kind)
    if read is None:
        raise config.fail("model_type", _unsupported(kind))
    spec = replace(read(config), second_runner=kind in SECOND_RUNNER, model_type=kind)
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
    extra, image, others = 0, (0.0, 0.0), [name for name in _OTHER_PARTS if config.has(name)]
    if (
        config.text("model_type") in _TOWERS
        and "vision_config" in others
        and config.section("vision_config").has(_TOWER_FIELD[config.text("model_type")])
    ):
        tower = _TOWERS[config.text("model_type")]
        extra, image = tower(config, spec.hidden), _image_bytes(config, tower)
        others.remove("vision_config")
    said = f"{', '.join(others)}: not counted; {config.text('model_type')} is read by its text part ({kind})."
    notes = (*spec.notes, *([said] if others else []))
    spec = replace(spec, extra_params=spec.extra_params + extra, tower_params=extra, image_bytes=image)
    return replace(spec, model_type=kind, notes=notes)


def _image_bytes(config: Fields, tower: Callable[[Fields, int], int]) -> tuple[float, float]:
    return qwen_image_bytes(config) if tower is qwen_vision_params else (0.0, 0.0)


def supported() -> list[str]:
    """The `model_type` values that can be read; a wrapper of one of them is read by its text part."""
    return sorted({*DECODERS, *_WRAPPERS, *TRAITS, *SAME})


def _llama4(c: Fields) -> ModelSpec:
    """Chunks are windows of their size, the most that a token reads; queries and keys are normalized without weights."""
    layers, inner = layer_count(c), c.int("intermediate_size")
    step = c.int("interleave_moe_layer_step", 1)
    sparse = numbers(c, "moe_layers") if c.has("moe_layers") else range(step - 1, layers, step)
    every, given = c.int("no_rope_layer_interval", 4), numbers(c, "no_rope_layers")  # which holds 1 where there are rotary positions
    if given and len(given) != layers:
        raise c.fail("no_rope_layers", f"has {len(given)} entries for {layers} layers")
    rotary = given or [(layer + 1) % every for layer in range(layers)]
    kinds = layer_kinds(c, (FULL, CHUNKED), lambda layer: CHUNKED if rotary[layer] else FULL)
    own = {
        "layer_types": [SLIDING if kind == CHUNKED else FULL for kind in kinds],
        "sliding_window": c.int("attention_chunk_size") if CHUNKED in kinds else None,
        "mlp_layer_types": ["sparse" if layer in sparse else "dense" for layer in range(layers)],
        "dense_intermediate_size": c.int("intermediate_size_mlp") if set(range(layers)) - set(sparse) else None,
        "shared_intermediate_size": inner,
        "use_qk_norm": False,
    }
    return read_blocks(Fields({**c.data, **own}, c.where, c.prefix), TRAITS["llama4_text"], "llama4_text")


def _gpt_oss(c: Fields) -> ModelSpec:
    bits = None
    if c.has("quantization_config"):
        method = c.section("quantization_config").text("quant_method")
        bits = 8 * DTYPE_BYTES["mxfp4"] if method == "mxfp4" else None
    return replace(read_blocks(c, TRAITS["gpt_oss"], "gpt_oss"), expert_bits=bits)


DECODERS: dict[str, Callable[[Fields], ModelSpec]] = {
    "llama4_text": _llama4,
    "gpt_oss": _gpt_oss,
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
_TOWERS: dict[str, Callable[[Fields, int], int]] = {
    "qwen3_vl": qwen_vision_params,
    "qwen3_vl_moe": qwen_vision_params,
    "gemma4": gemma4_vision_params,
}
# The field without which a configuration says too little of its tower.
_TOWER_FIELD = {"qwen3_vl": "num_position_embeddings", "qwen3_vl_moe": "num_position_embeddings", "gemma4": "intermediate_size"}

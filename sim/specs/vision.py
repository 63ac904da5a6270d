"""Parameters of the vision towers that multimodal checkpoints carry: resident in memory, not read by a text decode step."""

from __future__ import annotations

from sim.specs.fields import Fields
from sim.specs.stacks import numbers


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def siglip_projector_params(config: Fields, text_hidden: int) -> int:
    """Gemma 3: a SigLIP encoder without pooling head, then RMSNorm and one projection matrix to the text width."""
    vision = config.section("vision_config")
    if vision.bool("vision_use_head", False):
        raise vision.fail("vision_use_head", "is unsupported when true")
    hidden, inner, patch = vision.int("hidden_size"), vision.int("intermediate_size"), vision.int("patch_size")
    patches = (vision.int("image_size") // patch) ** 2
    embedding = _linear(vision.int("num_channels", 3) * patch * patch, hidden) + patches * hidden
    attention = 4 * _linear(hidden, hidden)
    mlp = _linear(hidden, inner) + _linear(inner, hidden)
    layer = attention + mlp + 2 * 2 * hidden  # two LayerNorms, weight and bias each
    tower = embedding + vision.int("num_hidden_layers") * layer + 2 * hidden
    return tower + hidden + hidden * text_hidden


def pixtral_projector_params(config: Fields, text_hidden: int) -> int:
    """Mistral Small 3.1: a Pixtral encoder (gated MLP, RMSNorm, no biases), patch merger and a two-layer projector."""
    vision = config.section("vision_config")
    hidden, inner, patch = vision.int("hidden_size"), vision.int("intermediate_size"), vision.int("patch_size")
    merge = config.int("spatial_merge_size", 2)
    bias = config.bool("multimodal_projector_bias", False)
    layer = 4 * hidden * hidden + 3 * hidden * inner + 2 * hidden
    tower = vision.int("num_channels", 3) * patch * patch * hidden + hidden + vision.int("num_hidden_layers") * layer
    merger = merge * merge * hidden * hidden + hidden
    return tower + merger + _linear(hidden, text_hidden, bias) + _linear(text_hidden, text_hidden, bias)


def llama4_projector_params(config: Fields, text_hidden: int) -> int:
    """Llama 4: a ViT with a class token and learned positions, a pixel-shuffle adapter, and one projection to the text width."""
    vision = config.section("vision_config")
    hidden, inner, patch = vision.int("hidden_size"), vision.int("intermediate_size"), vision.int("patch_size")
    tokens = (vision.int("image_size") // patch) ** 2 + 1
    embedding = vision.int("num_channels", 3) * patch * patch * hidden + hidden + tokens * hidden
    attention = 4 * _linear(hidden, hidden)
    mlp = _linear(hidden, inner) + _linear(inner, hidden)
    layer = attention + mlp + 2 * 2 * hidden  # two LayerNorms, weight and bias each
    tower = embedding + vision.int("num_hidden_layers") * layer + 2 * 2 * hidden
    shuffled, out = vision.int("projector_input_dim"), vision.int("projector_output_dim")
    return tower + inner * shuffled + out * out + vision.int("vision_output_dim") * text_hidden


def qwen_vision_params(config: Fields, text_hidden: int) -> int:
    """Qwen3.5/3.6: 3-D patch embedding, learned positions, pre-LayerNorm blocks and one patch merger to the text width."""
    vision = config.section("vision_config")
    hidden, inner, patch = vision.int("hidden_size"), vision.int("intermediate_size"), vision.int("patch_size")
    pixels = vision.int("in_channels", 3) * vision.int("temporal_patch_size", 2) * patch * patch
    merged = hidden * vision.int("spatial_merge_size", 2) ** 2
    embedding = _linear(pixels, hidden) + vision.int("num_position_embeddings") * hidden
    block = _linear(hidden, 3 * hidden) + _linear(hidden, hidden) + _linear(hidden, inner) + _linear(inner, hidden)
    merger = 2 * hidden + _linear(merged, merged) + _linear(merged, vision.int("out_hidden_size", text_hidden))
    # Qwen3-VL hands features of some layers on, each through a merger of its own that norms what it has merged
    deep = len(numbers(vision, "deepstack_visual_indexes")) * (merger - 2 * hidden + 2 * merged)
    return embedding + vision.int("depth") * (block + 4 * hidden) + merger + deep


# Tokens of the largest image of these models' own image processor (16,777,216 pixels), which vLLM encodes when it measures memory
LARGEST_IMAGE = 16384


def qwen_image_bytes(config: Fields) -> tuple[float, float]:
    """Bytes of a GPU while Qwen's tower encodes the largest image: (on each GPU, divided by tensor parallelism).

    The widest moment of a block (vLLM 0.33, qwen3_vl.py): the input and its norm, the MLP's inner width before and after its activation,
    and the pixels, in 16 bits, for each patch.
    """
    vision = config.section("vision_config")
    hidden, inner, patch = vision.int("hidden_size"), vision.int("intermediate_size"), vision.int("patch_size")
    pixels = vision.int("in_channels", 3) * vision.int("temporal_patch_size", 2) * patch * patch
    patches = LARGEST_IMAGE * vision.int("spatial_merge_size", 2) ** 2
    return 2.0 * patches * (2 * hidden + pixels), 2.0 * patches * 2 * inner


def gemma4_vision_params(config: Fields, text_hidden: int) -> int:
    """Gemma 4: a ViT with gated MLPs, four norms a layer and none of its matrices biased, and one projection to the text width.

    Positions are a table of two coordinates, its length not in every configuration: not counted.
    """
    vision = config.section("vision_config")
    hidden, inner, patch = vision.int("hidden_size"), vision.int("intermediate_size"), vision.int("patch_size")
    layer = 4 * hidden * hidden + 3 * hidden * inner + 4 * hidden
    return 3 * patch * patch * hidden + vision.int("num_hidden_layers") * layer + hidden * text_hidden

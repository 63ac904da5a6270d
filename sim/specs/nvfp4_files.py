"""NVFP4 checkpoints by family: which matrices their makers leave in 16 bits, or store in 8.

As the `hf_quant_config.json` of NVIDIA's checkpoints say (25 of them, 2026-11): of most mixtures of experts, only the experts are narrow.
Others' files of the same base follow them; of a family that no file was read of, every linear layer is narrow.
"""

from __future__ import annotations

import re
from typing import Any

_ATTENTION = r"re:.*\.self_attn\."
_STATES = r"re:.*\.linear_attn\."
_SHARED = r"re:.*\.shared_experts?\."
_LATENT = r"re:.*\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|indexer)"  # but for the output projection
_DENSE = tuple(f"model.layers.{layer}" for layer in range(3))  # layers in front, without experts

# Words of a name or of its base, the first that fits -> modules in 16 bits
_LEFT_OUT: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"deepseek-(v3|r1)", (_LATENT,)),
    (r"glm-5\.[1-9]", (_ATTENTION, _SHARED, *_DENSE)),
    (r"glm-5", (_ATTENTION,)),
    (r"kimi-k2\.[6-9]", (_ATTENTION, _SHARED, _DENSE[0])),
    (r"kimi-k2", (_ATTENTION,)),
    (r"minimax-m2", (_ATTENTION,)),
    (r"gemma-4-26b-a4b", (_ATTENTION, _SHARED)),
    (r"gemma-4-31b", (_ATTENTION,)),
    (r"qwen3\.5-\d+b-a\d+b", (_ATTENTION, _STATES, _SHARED)),
)
_MIXED = r"qwen3\.[68]-(27b|35b-a3b)"  # attention and states in fp8, MLPs and the output projection in nvfp4
_FLOAT = {"type": "float", "dynamic": False}
_GROUPS = {
    "attention": {
        "targets": [r"re:.*\.(self_attn|linear_attn)\.([qkvo]_proj|qkv_proj|in_proj_qkv|in_proj_z|out_proj)$"],
        "weights": {**_FLOAT, "num_bits": 8, "strategy": "tensor"},
        "input_activations": {**_FLOAT, "num_bits": 8, "strategy": "tensor"},
    },
    "mlp": {
        "targets": [r"re:.*\.mlp\.", "lm_head"],
        "weights": {**_FLOAT, "num_bits": 4, "strategy": "tensor_group", "group_size": 16},
    },
}


def config_of(name: str, base: str) -> dict[str, Any]:
    """The `quantization_config` of the NVFP4 checkpoint of this name, of this base shape."""
    said = f"{name.rpartition('/')[2]} {base}".casefold()
    if re.search(_MIXED, said):
        return {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": _GROUPS}
    left_out = next((modules for words, modules in _LEFT_OUT if re.search(words, said)), ())
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": list(left_out)}


def leaves_out(base: str) -> bool:
    """Whether published NVFP4 files of a base keep linear layers in more bits than 4."""
    config = config_of(base, base)
    return "config_groups" in config or bool(config["exclude_modules"])

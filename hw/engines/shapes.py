"""Model shapes as an engine's `config.json`, so that it starts with random weights and no download.

Only shapes stand here: the time of a decode step depends on sizes and dtypes, not on what the weights say. The dimensions are
those of the catalogue of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.specs.models import catalogue_config, get_model

# What a config.json of a kind says beside the sizes in the catalogue.
_KINDS: dict[str, dict[str, Any]] = {
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "rope_theta": 1e7, "intermediate_size": 6144, "norm_topk_prob": True,
                  "decoder_sparse_step": 1, "mlp_only_layers": []},
    "llama": {"architectures": ["LlamaForCausalLM"], "rope_theta": 5e5, "rms_norm_eps": 1e-5},
    "mistral": {"architectures": ["MistralForCausalLM"], "rms_norm_eps": 1e-5, "sliding_window": None},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "rms_norm_eps": 1e-5, "sliding_window": None},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "rms_norm_eps": 1e-5, "pad_token_id": 0, "partial_rotary_factor": 1.0},
    "gemma3_text": {"architectures": ["Gemma3ForCausalLM"], "rope_local_base_freq": 1e4, "hidden_activation": "gelu_pytorch_tanh",
                    "tie_word_embeddings": True, "attention_bias": False},
    "deepseek_v2": {"architectures": ["DeepseekV2ForCausalLM"], "rope_theta": 1e4, "num_key_value_heads": 16, "norm_topk_prob": False,
                    "topk_method": "greedy", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
                    "attention_bias": False},
    "gpt_oss": {"architectures": ["GptOssForCausalLM"], "rms_norm_eps": 1e-5, "swiglu_limit": 7.0, "sliding_window_pattern": 2,
                "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                    "truncate": False, "original_max_position_embeddings": 4096}},
    # Gated DeltaNet with experts, text alone: the class of Qwen3-Next takes these sizes.
    "qwen3_5_moe_text": {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "rope_theta": 1e7,
                         "partial_rotary_factor": 0.25, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
                         "intermediate_size": 5120, "attention_bias": False},
}  # fmt: skip
# Quantized checkpoints: what their config.json says, by the name that --quantization takes. Other names are the engine's own.
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
        "modules_in_block_to_quantize": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 128,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    },
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
}
_EVERY = {
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONTEXT = 131072
UTILIZATION = 0.9  # of the GPU memory that the engine takes
MARGIN = 0.97  # of a card that no start was seen on, less is free than predicted
_NAMES = ("qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen3-8b", "qwen3-14b", "qwen3-coder-30b-a3b", "llama3.1-8b", "llama3.2-1b",
          "mistral-7b", "mistral-24b", "mixtral-8x7b", "phi-4", "gemma3-4b", "gemma3-12b", "gemma3-27b",
          "deepseek-v2-lite", "gpt-oss-20b", "qwen3.6-35b-a3b", "llama3.1-70b", "qwen2.5-72b", "qwen3-235b-a22b")  # fmt: skip
# Our own: about 25 M parameters, enough for a laptop core to take milliseconds per token.
_TINY = {
    "model_type": "llama", "hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 1280, "vocab_size": 8192, "torch_dtype": "float32", "max_position_embeddings": 8192,
}  # fmt: skip


def _whole(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of these sizes."""
    config = _EVERY | dict(sizes) | _KINDS[sizes["model_type"]]
    if pattern := config.get("sliding_window_pattern"):
        layers, head_dim = config["num_hidden_layers"], config["head_dim"]
        config["layer_types"] = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)]
    if sizes["model_type"] == "gemma3_text":
        config["query_pre_attn_scalar"] = 168 if head_dim == 128 else head_dim
    return config


def _catalogued(name: str) -> dict[str, Any]:
    """The config.json of a catalogue model's text decoder, for CONTEXT tokens at least."""
    config = catalogue_config(get_model(name).name)
    sizes = config.get("text_config", config)
    return _whole(sizes | {"max_position_embeddings": max(sizes["max_position_embeddings"], CONTEXT)})


def _shrunk(name: str, layers: int) -> dict[str, Any]:
    """The config.json of a catalogue model cut to its first layers, so that several servers fit side by side."""
    config = _catalogued(name)
    kinds = {"layer_types": config["layer_types"][:layers]} if "layer_types" in config else {}
    return config | {"num_hidden_layers": layers} | kinds


SHAPES = {
    **{name: _catalogued(name) for name in _NAMES},
    "qwen3-coder-20-layers": _shrunk("qwen3-coder-30b-a3b", 20),
    "qwen3.6-20-layers": _shrunk("qwen3.6-35b-a3b", 20),
    "tiny-25m": _whole(_TINY),
}


def named(name: str) -> str:
    """The shape's name here, given as the catalogue of models writes it, too: 'Llama-3.1-8B' is llama3.1-8b. Unknown names stay."""
    return next((known for known in SHAPES if _plain(known) == _plain(name)), name)


def _plain(name: str) -> str:
    return name.lower().replace("-", "")


def shape(name: str) -> dict[str, Any]:
    """The config.json of a model by name. Raises UsageError for an unknown name, listing the known ones."""
    if name not in SHAPES:
        raise UsageError(f"unknown model shape {name!r}; known: {', '.join(SHAPES)}")
    return SHAPES[name]


def longest_context(config: Mapping[str, Any]) -> int:
    """Tokens of context that an engine is started for: the model's own, 131,072 at most."""
    return min(int(config["max_position_embeddings"]), CONTEXT)


def fitting_context(config: Mapping[str, Any], memory_bytes: float, tensor_parallel: int, max_num_seqs: int, budget: int) -> int:
    """Tokens of context that an engine starts with on GPUs of so many bytes each: `longest_context`, or what its KV cache holds, for an
    engine refuses a length of which not one request fits. Raises SimctlError where not even the weights do.
    """
    from sim.specs.gpus import get_gpu
    from sim.specs.hf_config import spec_from_config
    from sim.specs.precision import Precision
    from sim.study.deployment import Deployment, Limits, plan_engine

    longest = longest_context(config)
    gpu = replace(get_gpu("H100"), memory_bytes=MARGIN * memory_bytes)
    limits = Limits(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, gpu_memory_utilization=UTILIZATION, max_model_len="auto")
    model = spec_from_config({**config, "max_position_embeddings": longest}, "measured", "a shape")
    planned, _ = plan_engine(Deployment(model, gpu, Precision(), tensor_parallel, limits))
    return min(longest, planned.max_model_len)


def engine_flags(quantization: str | None) -> dict[str, str]:
    """The engine's setting for weights quantized so; none where a checkpoint's config.json says it."""
    return {"quantization": quantization} if quantization and quantization not in CHECKPOINTS else {}


def routed(config: Mapping[str, Any]) -> bool:
    """Whether a config.json has experts."""
    return any(name in config for name in ("num_experts", "num_local_experts", "n_routed_experts"))


def write_model(name: str, root: Path, *, tokenizer: bool = False, quantization: str | None = None) -> Path:
    """Write `root/name/config.json`, and `root/name/tokenizer` with one word per token when asked. Returns the folder.

    Where `quantization` is one of CHECKPOINTS, the file says that the weights are quantized so.
    The tokenizer needs the `tokenizers` package; token-id prompts need none. It has a folder of its own, because beside a config.json
    a library takes the model family's own class of tokenizer for it, which splits text otherwise.
    """
    config = shape(name)
    if quantization in CHECKPOINTS:
        config = config | {"quantization_config": CHECKPOINTS[str(quantization)]}
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    if tokenizer:
        (folder / "tokenizer").mkdir(exist_ok=True)
        _write_tokenizer(folder / "tokenizer", config["vocab_size"], config["max_position_embeddings"])
    return folder


def _write_tokenizer(folder: Path, vocab_size: int, max_length: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # A word carries the space before it: text that a client decodes from token ids has the same ids when the server encodes it.
    words = {f"\N{LOWER ONE EIGHTH BLOCK}w{i}": i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=next(iter(words))))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": word for name, word in zip(("unk", "bos", "eos"), words, strict=False)},
        "model_max_length": max_length,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))

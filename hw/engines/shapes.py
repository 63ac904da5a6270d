"""Model shapes as an engine's `config.json`, so that it starts with random weights and no download.

Only shapes stand here: the time of a decode step depends on sizes and dtypes, not on what the weights say. The dimensions are
those of the public model cards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.errors import UsageError

# Architecture and base of the rotary embedding.
_KINDS = {
    "qwen2": ("Qwen2ForCausalLM", 1e6),
    "qwen3": ("Qwen3ForCausalLM", 1e6),
    "qwen3_moe": ("Qwen3MoeForCausalLM", 1e7),
    "llama": ("LlamaForCausalLM", 5e5),
    "mistral": ("MistralForCausalLM", 1e6),
    "gemma3_text": ("Gemma3ForCausalLM", 1e6),
}


def _decoder(kind: str, hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocab: int, **more: Any) -> dict[str, Any]:
    """The part of a config.json every decoder shares; `more` adds or overrides keys."""
    config = {
        "architectures": [_KINDS[kind][0]],
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
        "rope_theta": _KINDS[kind][1],
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return config | more


def _gemma3(hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, intermediate: int) -> dict[str, Any]:
    """Gemma 3 text decoder: every sixth layer sees the whole context, the others a window of 1024 tokens."""
    return _decoder(
        "gemma3_text", hidden, layers, heads, kv_heads, intermediate, 262208,
        head_dim=head_dim, sliding_window=1024, sliding_window_pattern=6, rope_local_base_freq=1e4,
        query_pre_attn_scalar=168 if head_dim == 128 else head_dim, hidden_activation="gelu_pytorch_tanh",
        tie_word_embeddings=True, attention_bias=False,
        layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)],
    )  # fmt: skip


SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-7b": _decoder("qwen2", 3584, 28, 28, 4, 18944, 152064),
    "qwen2.5-14b": _decoder("qwen2", 5120, 48, 40, 8, 13824, 152064),
    "qwen2.5-32b": _decoder("qwen2", 5120, 64, 40, 8, 27648, 152064),
    "qwen3-14b": _decoder("qwen3", 5120, 40, 40, 8, 17408, 151936, head_dim=128),
    "qwen3-coder-30b-a3b": _decoder(
        "qwen3_moe", 2048, 48, 32, 4, 6144, 151936,
        head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[], max_position_embeddings=262144,
    ),
    "llama3.1-8b": _decoder("llama", 4096, 32, 32, 8, 14336, 128256, rms_norm_eps=1e-5),
    "mistral-7b": _decoder("mistral", 4096, 32, 32, 8, 14336, 32768, rms_norm_eps=1e-5, sliding_window=None),
    "mistral-24b": _decoder(
        "mistral", 5120, 40, 32, 8, 32768, 131072, head_dim=128, rms_norm_eps=1e-5, sliding_window=None
    ),
    "gemma3-4b": _gemma3(2560, 34, 8, 4, 256, 10240),
    "gemma3-12b": _gemma3(3840, 48, 16, 8, 256, 15360),
    "gemma3-27b": _gemma3(5376, 62, 32, 16, 128, 21504),
    # Our own: about 25 M parameters, enough for a laptop core to take milliseconds per token.
    "tiny-25m": _decoder(
        "llama", 384, 8, 6, 2, 1280, 8192, rms_norm_eps=1e-5, torch_dtype="float32", max_position_embeddings=8192
    ),
}  # fmt: skip


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
    return min(int(config["max_position_embeddings"]), 131072)


def write_model(name: str, root: Path, *, tokenizer: bool = False) -> Path:
    """Write `root/name/config.json`, and `root/name/tokenizer` with one word per token when asked. Returns the folder.

    The tokenizer needs the `tokenizers` package; token-id prompts need none. It has a folder of its own, because beside a config.json
    a library takes the model family's own class of tokenizer for it, which splits text otherwise.
    """
    config = shape(name)
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

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

# every: fields of all; kinds: those that a model_type adds to the sizes in the catalogue (qwen3_5_moe_text: the class of Qwen3-Next takes
# its sizes); checkpoints: `quantization_config` by the name that --quantization takes, others being the engine's own; tiny: about
# 25 M parameters, enough for a laptop core to take milliseconds per token; names: of the catalogue.
_DATA: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
CHECKPOINTS: dict[str, dict[str, Any]] = _DATA["checkpoints"]
CONTEXT = 131072
UTILIZATION = 0.9  # of the GPU memory that the engine takes
MARGIN = 0.97  # of a card that no start was seen on, less is free than predicted


def _whole(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of these sizes."""
    config: dict[str, Any] = _DATA["every"] | dict(sizes) | _DATA["kinds"][sizes["model_type"]]
    if pattern := config.get("sliding_window_pattern"):
        layers, head_dim = config["num_hidden_layers"], config["head_dim"]
        config["layer_types"] = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)]
    if layers := config.get("layer_types", config.get("hybrid_override_pattern")):
        config["num_hidden_layers"] = len(layers)
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
    **{name: _catalogued(name) for name in _DATA["names"]},
    "qwen2.5-7b-14-layers": _shrunk("qwen2.5-7b", 14),
    "qwen3-coder-20-layers": _shrunk("qwen3-coder-30b-a3b", 20),
    "qwen3.6-20-layers": _shrunk("qwen3.6-35b-a3b", 20),
    "tiny-25m": _whole(_DATA["tiny"]),
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

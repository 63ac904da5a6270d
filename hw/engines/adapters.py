"""LoRA adapters of random weights for a model by its config.json, in the files that PEFT writes."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SHARE = 0.5  # of the requests that ask for an adapter, any of them as often; the others ask for the model itself
SIZE = 1e-3  # standard deviation of the weights: the model answers about as it does without


def adapter_flags(flags: Sequence[str], config: Mapping[str, Any], folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """(flags that name the adapters, their names) of a server started with `flags`: as many as its --max-loras, of its --max-lora-rank.
    None without --enable-lora.
    """
    if "--enable-lora" not in flags:
        return [], ()
    rank, count = (int(_value(flags, name)) for name in ("max-lora-rank", "max-loras"))
    path = write_adapter(config, folder / "adapter", rank)  # alike: a server keeps each by its name
    names = tuple(f"adapter-{i}" for i in range(count))
    return ["--lora-modules", *(f"{name}={path}" for name in names)], names


def _value(flags: Sequence[str], name: str) -> str:
    found = re.search(rf"--{name}[ =](\d+)", " ".join(flags))
    return found[1] if found else {"max-lora-rank": "16", "max-loras": "1"}[name]


def write_adapter(config: Mapping[str, Any], folder: Path, rank: int) -> Path:
    """Write an adapter of every projection of attention and MLP in float16, scaled by 1. Returns the folder."""
    shapes: dict[str, tuple[int, int]] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in _projections(config).items():
            stem = f"base_model.model.model.layers.{layer}.{name}"
            shapes |= {f"{stem}.lora_A.weight": (rank, inputs), f"{stem}.lora_B.weight": (outputs, rank)}
    folder.mkdir(parents=True, exist_ok=True)
    _write_safetensors(folder / "adapter_model.safetensors", shapes)
    targets = sorted({name.rpartition(".")[2] for name in _projections(config)})
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}))
    return folder


def _projections(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """(in, out) of each linear layer of one layer of a dense model."""
    hidden, heads, intermediate = (config[name] for name in ("hidden_size", "num_attention_heads", "intermediate_size"))
    head_dim = config.get("head_dim", hidden // heads)
    q, kv = heads * head_dim, config["num_key_value_heads"] * head_dim
    attention = {"q_proj": (hidden, q), "k_proj": (hidden, kv), "v_proj": (hidden, kv), "o_proj": (q, hidden)}
    mlp = {"gate_proj": (hidden, intermediate), "up_proj": (hidden, intermediate), "down_proj": (intermediate, hidden)}
    return {f"self_attn.{k}": v for k, v in attention.items()} | {f"mlp.{k}": v for k, v in mlp.items()}


def _write_safetensors(path: Path, shapes: Mapping[str, tuple[int, int]]) -> None:
    """Tensors of float16 noise: the length of a JSON header, the header, the numbers."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * shape[1]
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text, rng = json.dumps(header).encode(), np.random.default_rng(0)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            out.write((SIZE * rng.standard_normal(shape, np.float32)).astype("<f2").tobytes())

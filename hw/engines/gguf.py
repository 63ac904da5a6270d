"""A GGUF file of random weights in the shape of a Llama-like config.json, written from the format alone (version 3).

llama.cpp loads it as it would a real model. The tokenizer is one word per token; prompts are token ids, and every token decodes to
text, so that a streaming server has something to send for each.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import UsageError

ALIGNMENT = 32
_F32, _STRING, _ARRAY, _U32, _FLOAT, _INT32, _BOOL = 0, 8, 9, 4, 6, 5, 7
SILENT = 3  # the first token ids decode to no text
NORMAL, UNKNOWN, CONTROL = 1, 2, 3  # token types


def write_random(config: Mapping[str, Any], path: Path, seed: int = 0) -> Path:
    """Write `path` with float32 weights drawn from `seed`. Raises UsageError for another architecture, OSError on a full disk."""
    if config["model_type"] != "llama":
        raise UsageError(f"random GGUF files are written for llama shapes, not {config['model_type']}")
    rng = np.random.default_rng(seed)
    shapes = list(_tensors(config))
    temporary = path.with_suffix(".gguf.tmp")
    try:
        with temporary.open("wb") as file:
            meta = _metadata(config)
            file.write(b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(meta)))
            file.write(b"".join(_string(name) + value for name, value in meta.items()))
            offset = 0
            for name, dims in shapes:
                file.write(_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, _F32, offset))
                offset += _padded(4 * int(np.prod(dims)))
            file.write(b"\0" * (_padded(file.tell()) - file.tell()))
            for name, dims in shapes:
                values = np.ones(dims) if name.endswith("norm.weight") else rng.standard_normal(int(np.prod(dims))) * dims[0] ** -0.5
                if name == "output.weight":  # rows of the tokens that decode to nothing: never the most likely
                    values[: SILENT * dims[0]] = 0.0
                raw = values.astype("<f4").tobytes()
                file.write(raw + b"\0" * (_padded(len(raw)) - len(raw)))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _tensors(c: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, dimensions with the contiguous one first) of every weight."""
    hidden, ffn, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    kv = c["num_key_value_heads"] * (hidden // c["num_attention_heads"])
    yield "token_embd.weight", (hidden, vocab)
    for i in range(c["num_hidden_layers"]):
        yield f"blk.{i}.attn_norm.weight", (hidden,)
        yield f"blk.{i}.attn_q.weight", (hidden, hidden)
        yield f"blk.{i}.attn_k.weight", (hidden, kv)
        yield f"blk.{i}.attn_v.weight", (hidden, kv)
        yield f"blk.{i}.attn_output.weight", (hidden, hidden)
        yield f"blk.{i}.ffn_norm.weight", (hidden,)
        yield f"blk.{i}.ffn_gate.weight", (hidden, ffn)
        yield f"blk.{i}.ffn_up.weight", (hidden, ffn)
        yield f"blk.{i}.ffn_down.weight", (ffn, hidden)
    yield "output_norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "output.weight", (hidden, vocab)


def _metadata(c: Mapping[str, Any]) -> dict[str, bytes]:
    vocab = c["vocab_size"]
    words = ["<unk>", "<s>", "</s>", *(f"\u2581w{i}" for i in range(SILENT, vocab))]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[NORMAL] * (vocab - SILENT)]
    return {
        "general.architecture": _text("llama"),
        "general.name": _text("random weights"),
        "llama.block_count": _u32(c["num_hidden_layers"]),
        "llama.context_length": _u32(c["max_position_embeddings"]),
        "llama.embedding_length": _u32(c["hidden_size"]),
        "llama.feed_forward_length": _u32(c["intermediate_size"]),
        "llama.attention.head_count": _u32(c["num_attention_heads"]),
        "llama.attention.head_count_kv": _u32(c["num_key_value_heads"]),
        "llama.attention.layer_norm_rms_epsilon": _float(c["rms_norm_eps"]),
        "llama.rope.dimension_count": _u32(c["hidden_size"] // c["num_attention_heads"]),
        "llama.rope.freq_base": _float(c["rope_theta"]),
        "llama.vocab_size": _u32(vocab),
        "tokenizer.ggml.model": _text("llama"),
        "tokenizer.ggml.tokens": struct.pack("<IIQ", _ARRAY, _STRING, vocab) + b"".join(map(_string, words)),
        "tokenizer.ggml.scores": struct.pack("<IIQ", _ARRAY, _FLOAT, vocab) + np.zeros(vocab, "<f4").tobytes(),
        "tokenizer.ggml.token_type": struct.pack("<IIQ", _ARRAY, _INT32, vocab) + np.array(kinds, "<i4").tobytes(),
        "tokenizer.ggml.unknown_token_id": _u32(0),
        "tokenizer.ggml.bos_token_id": _u32(c["bos_token_id"]),
        "tokenizer.ggml.eos_token_id": _u32(c["eos_token_id"]),
        "tokenizer.ggml.add_bos_token": struct.pack("<I?", _BOOL, False),
    }


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _text(value: str) -> bytes:
    return struct.pack("<I", _STRING) + _string(value)


def _u32(value: int) -> bytes:
    return struct.pack("<II", _U32, value)


def _float(value: float) -> bytes:
    return struct.pack("<If", _FLOAT, value)

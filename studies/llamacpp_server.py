"""A llama.cpp server on one thread of this CPU, and its model: `python llamacpp_server.py MODEL.gguf SHAPE.json SLOTS SLOT_TOKENS`.

Runs with the packages of .venv-llamacpp alone (xllamacpp, which holds llama.cpp's own server, and gguf, its converter's). The model is a
Llama of the shape's config.json with random weights of 16 bits, whose words are single tokens; it is written where it is not there. Prints
the address that the server listens on, and serves until it is ended.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

BYTE_TOKENS = 256  # of the tokenizer: what stands for text that is no word of it


def write_model(path: Path, shape: dict[str, Any]) -> None:
    """A GGUF file of random weights. The file appears whole, or not."""
    import gguf
    import numpy as np

    hidden, inner, layers, vocab = (shape[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"))
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(path) + ".part", "llama")
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_words(writer, vocab)
    rng = np.random.default_rng(0)
    kv = hidden // heads * kv_heads
    matrices = {"token_embd": (vocab, hidden), "output": (vocab, hidden)}
    for layer in range(layers):
        inside = {"attn_q": (hidden, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, hidden)}
        inside |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
        matrices |= {f"blk.{layer}.{name}": size for name, size in inside.items()}
    for name, size in matrices.items():
        writer.add_tensor(f"{name}.weight", (0.02 * rng.standard_normal(size)).astype(np.float16))
    for name in ["output_norm", *(f"blk.{layer}.{norm}_norm" for layer in range(layers) for norm in ("attn", "ffn"))]:
        writer.add_tensor(f"{name}.weight", np.ones(hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(str(path) + ".part", path)


def _add_words(writer: Any, vocab: int) -> None:
    """A tokenizer of words w0, w1, ...: unknown, begin and end, bytes, then words, the first the likeliest."""
    import gguf

    kinds = gguf.TokenType
    special = [(b"<unk>", kinds.UNKNOWN), (b"<s>", kinds.CONTROL), (b"</s>", kinds.CONTROL)]
    special += [(f"<0x{byte:02X}>".encode(), kinds.BYTE) for byte in range(BYTE_TOKENS)]
    words = [(f"\u2581w{i}".encode(), kinds.NORMAL) for i in range(vocab - len(special))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token for token, _ in special + words])
    writer.add_token_types([int(kind) for _, kind in special + words])
    writer.add_token_scores([-1e3] * len(special) + [-float(i) for i in range(len(words))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def serve(path: Path, slots: int, slot_tokens: int) -> None:
    """Serve the model on a free port of this host until the process is ended."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.n_parallel, settings.n_ctx = slots, slots * slot_tokens
    settings.n_batch = settings.n_ubatch = 512
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.cache_ram_mib = 0  # prompts are found in the slots alone
    settings.port = 0
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    if not file.is_file():
        write_model(file, json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    serve(file, int(sys.argv[3]), int(sys.argv[4]))

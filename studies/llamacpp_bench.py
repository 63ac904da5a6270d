"""Steps of llama.cpp on a CUDA card: `python llamacpp_bench.py OUT.csv MODEL:TYPE...`, as `8b:q4_k_m 14b:q4_k_m`.

Runs alone, where the packages cffi, gguf and numpy are, and a library of llama.cpp built for cffi: the wheel of llama-cpp-cffi has one (its
module's folder and name in LCP_DIR and LCP_MODULE; it wants cuBLAS 12). Models are Llamas of the shapes below with random blocks of bytes
for weights, whole on the GPU, attention by FlashAttention, micro-batches of 512 tokens. A line of OUT is one call of llama_decode.
"""

from __future__ import annotations

import csv
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = ("model", "kind", "sequences", "context", "tokens", "seconds")
BLOCKS = {"q4_k": (256, 144, 12), "q6_k": (256, 210, 14), "q8_0": (32, 34, 8)}  # weights, bytes and number of a type's block
MIXED = {"q4_k_m": ("q4_k", "q6_k"), "q8_0": ("q8_0", "q8_0")}  # of most tensors, and of those that the type keeps wider
SHAPES = {
    "8b": {"hidden": 4096, "inner": 14336, "layers": 32, "heads": 32, "kv": 8, "head": 128, "vocab": 128256},
    "14b": {"hidden": 5120, "inner": 17408, "layers": 40, "heads": 40, "kv": 8, "head": 128, "vocab": 151936},
    "30b-a3b": {"hidden": 2048, "inner": 768, "layers": 48, "heads": 32, "kv": 4, "head": 128, "vocab": 151936, "experts": 128, "used": 8},
}
DECODES = [(1, 64), (1, 2048), (1, 8192), *((n, 64) for n in (2, 4, 8, 16, 32)), (8, 2048), (1, 32768)]  # sequences, context
PROMPTS = (128, 512, 2048)
CHUNK, STEPS, WARM = 512, 28, 6


def blocks_of(kind: str, weights: int) -> NDArray[np.uint8]:
    """Bytes of so many weights: random, with small scales."""
    per, size, _ = BLOCKS[kind]
    raw = np.random.default_rng(0).integers(0, 256, (min(weights // per, 1 << 16), size), dtype=np.uint8)
    at, scale = {"q4_k": (0, 2e-4), "q6_k": (208, 2e-5), "q8_0": (0, 2e-4)}[kind]
    raw[:, at : at + 2] = np.array([scale], np.float16).view(np.uint8)
    if kind == "q4_k":
        raw[:, 2:4] = raw[:, 0:2]
    return np.resize(raw, (weights // per, size)).reshape(-1)


def tensors(s: dict[str, int], dtype: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """(name, shape, type) of the matrices, as llama.cpp's quantiser mixes types."""
    most, wider = MIXED[dtype]
    queries, keys, hidden, layers = s["heads"] * s["head"], s["kv"] * s["head"], s["hidden"], s["layers"]
    experts, suffix = ((s["experts"],), "_exps") if "experts" in s else ((), "")
    yield "token_embd", (s["vocab"], hidden), most
    yield "output", (s["vocab"], hidden), wider
    for i in range(layers):
        kept = wider if i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2 else most
        yield f"blk.{i}.attn_q", (queries, hidden), most
        yield f"blk.{i}.attn_k", (keys, hidden), most
        yield f"blk.{i}.attn_v", (keys, hidden), kept
        yield f"blk.{i}.attn_output", (hidden, queries), most
        yield f"blk.{i}.ffn_gate{suffix}", (*experts, s["inner"], hidden), most
        yield f"blk.{i}.ffn_up{suffix}", (*experts, s["inner"], hidden), most
        yield f"blk.{i}.ffn_down{suffix}", (*experts, hidden, s["inner"]), kept


def write_model(path: Path, s: dict[str, int], dtype: str) -> None:
    """A GGUF file of the shape. Tensors of one type share their bytes."""
    import gguf

    w = gguf.GGUFWriter(str(path), "llama")
    w.add_context_length(131072)
    w.add_embedding_length(s["hidden"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s["inner"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv"])
    w.add_key_length(s["head"])
    w.add_value_length(s["head"])
    w.add_rope_dimension_count(s["head"])
    w.add_rope_freq_base(500000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(s["vocab"])
    if "experts" in s:
        w.add_expert_count(s["experts"])
        w.add_expert_used_count(s["used"])
        w.add_expert_feed_forward_length(s["inner"])
    kinds = gguf.TokenType
    words = [(b"<unk>", kinds.UNKNOWN), (b"<s>", kinds.CONTROL), (b"</s>", kinds.CONTROL)]
    words += [(f"<0x{byte:02X}>".encode(), kinds.BYTE) for byte in range(256)]
    words += [(f"\u2581w{i}".encode(), kinds.NORMAL) for i in range(s["vocab"] - len(words))]
    w.add_tokenizer_model("llama")
    w.add_token_list([word for word, _ in words])
    w.add_token_types([int(kind) for _, kind in words])
    w.add_token_scores([-float(i) for i in range(len(words))])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    wanted = list(tensors(s, dtype))
    filled = {kind: blocks_of(kind, max(int(np.prod(shape)) for _, shape, its in wanted if its == kind)) for kind in set(MIXED[dtype])}
    for name, shape, kind in wanted:
        per, size, number = BLOCKS[kind]
        row = shape[-1] // per * size
        raw = filled[kind][: int(np.prod(shape[:-1])) * row].reshape(*shape[:-1], row)
        w.add_tensor(f"{name}.weight", raw, raw_dtype=gguf.GGMLQuantizationType(number))
    if "experts" in s:
        gate = np.random.default_rng(1).standard_normal((s["experts"], s["hidden"])).astype(np.float32)
        for i in range(s["layers"]):
            w.add_tensor(f"blk.{i}.ffn_gate_inp.weight", gate)
    for name in ["output_norm", *(f"blk.{i}.{norm}_norm" for i in range(s["layers"]) for norm in ("attn", "ffn"))]:
        w.add_tensor(f"{name}.weight", np.ones(s["hidden"], np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Context:
    """A context of a loaded model that holds so many tokens of so many sequences."""

    def __init__(self, native: Any, model: Any, tokens: int, sequences: int) -> None:
        self.lib = lib = native.lib
        options = lib.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch, options.n_seq_max = tokens, 2048, CHUNK, sequences
        options.n_threads = options.n_threads_batch = int(os.environ.get("LCP_THREADS", "4"))
        options.flash_attn, options.offload_kqv, options.no_perf = True, True, True
        self.handle = lib.llama_init_from_model(model, options)
        self.batch = lib.llama_batch_init(2048, 0, 1)

    def decode(self, rows: Sequence[tuple[int, int, bool]]) -> float:
        """Seconds of one call with (sequence, position, whether its logits are wanted)."""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (sequence, position, logits) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = 300 + (i * 7 + position * 13) % 1500, position, 1, logits
            b.seq_id[i][0] = sequence
        begun = time.perf_counter()
        failed = self.lib.llama_decode(self.handle, b)
        self.lib.llama_synchronize(self.handle)
        if failed:
            raise RuntimeError(f"llama_decode returned {failed}")
        return time.perf_counter() - begun

    def sample(self, vocabulary_chain: Any) -> float:
        """Seconds of sampling the last logits."""
        begun = time.perf_counter()
        self.lib.llama_sampler_sample(vocabulary_chain, self.handle, 0)
        return time.perf_counter() - begun

    def close(self) -> None:
        """Free it."""
        self.lib.llama_batch_free(self.batch)
        self.lib.llama_free(self.handle)


def measured(native: Any, model: Any) -> Iterator[tuple[str, int, int, int, float]]:
    """(kind, sequences, context at the end, tokens of each, seconds) of decodes, chunks on the way to them, prompts and sampling."""
    for sequences, depth in DECODES:
        context = Context(native, model, (sequences * (depth + 96) // 256 + 1) * 256, sequences)
        for sequence in range(sequences):
            for at in range(0, depth, CHUNK):
                n = min(CHUNK, depth - at)
                seconds = context.decode([(sequence, at + j, j == n - 1) for j in range(n)])
                if n == CHUNK and sequence == 0:
                    yield "chunk", 1, at + n, n, seconds
        times = [context.decode([(sequence, depth + k, True) for sequence in range(sequences)]) for k in range(STEPS)]
        yield from (("decode", sequences, depth + k, 1, seconds) for k, seconds in enumerate(times) if k >= WARM)
        context.close()
    for n in PROMPTS:
        context = Context(native, model, 4096, 1)
        for _ in range(WARM):
            native.lib.llama_kv_cache_clear(context.handle)
            yield "prompt", 1, n, n, context.decode([(0, j, j == n - 1) for j in range(n)])
        context.close()
    context, lib = Context(native, model, 512, 1), native.lib
    context.decode([(0, 0, True)])
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for each in (lib.llama_sampler_init_top_k(40), lib.llama_sampler_init_top_p(0.95, 0), lib.llama_sampler_init_min_p(0.05, 0)):
        lib.llama_sampler_chain_add(chain, each)
    for each in (lib.llama_sampler_init_temp(0.8), lib.llama_sampler_init_dist(0)):
        lib.llama_sampler_chain_add(chain, each)
    yield from (("sampling", 1, 1, 1, context.sample(chain)) for _ in range(2 * WARM))
    lib.llama_sampler_free(chain)
    context.close()


def main(out: Path, names: Sequence[str]) -> None:
    """Measure models one after the other; each is written, and gone when it is done."""
    sys.path.insert(0, os.environ["LCP_DIR"])
    native = importlib.import_module(os.environ["LCP_MODULE"])
    native.lib.llama_backend_init()
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(HEADER)
        for name in names:
            shape, _, dtype = name.partition(":")
            path = Path(os.environ.get("LCP_TMP", "/dev/shm")) / f"{shape}-{dtype}.gguf"
            write_model(path, SHAPES[shape], dtype)
            options = native.lib.llama_model_default_params()
            options.n_gpu_layers = 999
            model = native.lib.llama_model_load_from_file(str(path).encode(), options)
            path.unlink()
            for row in measured(native, model):
                table.writerow((name, *row[:-1], f"{row[-1]:.7f}"))
                file.flush()
            native.lib.llama_model_free(model)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

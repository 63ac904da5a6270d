"""The GGUF of random weights is laid out as the format says; where llama.cpp's wheel is installed, the real client streams from it."""

import asyncio
import struct
from pathlib import Path

import numpy as np
import pytest

from hw.engines import llamacpp_server
from hw.engines.gguf import ALIGNMENT, write_random
from hw.engines.shapes import SHAPES
from hw.serve import load, windows
from hw.serve.client import Target
from sim.errors import UsageError

SMALL = {
    "num_hidden_layers": 2, "vocab_size": 512, "hidden_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 128
}  # fmt: skip
TINY = SHAPES["tiny-25m"] | SMALL


def test_every_tensor_lies_aligned_inside_the_file(tmp_path: Path) -> None:
    raw = write_random(TINY, tmp_path / "t.gguf").read_bytes()
    magic, version, tensors, keys = struct.unpack_from("<4sIQQ", raw)
    assert (magic, version, tensors, keys) == (b"GGUF", 3, 2 * 9 + 3, 20)
    at = raw.index(struct.pack("<Q", 17) + b"token_embd.weight")
    sizes, last = [], 0
    for _ in range(tensors):
        (length,) = struct.unpack_from("<Q", raw, at)
        name = raw[at + 8 : at + 8 + length].decode()
        at += 8 + length
        (count,) = struct.unpack_from("<I", raw, at)
        *dims, kind, offset = struct.unpack_from(f"<{count}QIQ", raw, at + 4)
        at += 4 + 8 * count + 12
        assert kind == 0
        assert offset % ALIGNMENT == 0
        assert offset == last
        last = -(-(offset + 4 * int(np.prod(dims))) // ALIGNMENT) * ALIGNMENT
        sizes.append((name, offset, dims))
    start = -(-at // ALIGNMENT) * ALIGNMENT
    assert start + last == len(raw)
    name, offset, dims = sizes[-1]
    values = np.frombuffer(raw, "<f4", int(np.prod(dims)), start + offset).reshape(dims[::-1])
    assert name == "output.weight"
    assert (values[:3] == 0).all()  # tokens without text are never chosen
    assert values[3:].std() == pytest.approx(64**-0.5, rel=0.02)


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    assert write_random(TINY, tmp_path / "a").read_bytes() == write_random(TINY, tmp_path / "b").read_bytes()


def test_what_cannot_be_served_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="llama shapes, not qwen2"):
        write_random(SHAPES["qwen2.5-7b"], tmp_path / "q")
    with pytest.raises(UsageError, match="runs with --hw cpu"), llamacpp_server.serve("tiny-25m", tmp_path, device="cuda"):
        pass
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"llm-simctl\[llamacpp\]"), llamacpp_server.serve("tiny-25m", tmp_path, device="cpu"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_client_streams_from_the_real_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setitem(SHAPES, "tiny-25m", TINY)
    with llamacpp_server.serve("tiny-25m", tmp_path, device="cpu", flags=["--parallel", "4", "--batch", "64"]) as server:
        records = asyncio.run(load.wave(Target(server.url, server.model), load.Prompts(512, 1), 4, 32, 24))
    assert windows.void_reason(records) == ""
    assert [len(r.token_s) for r in records] == [24] * 4
    assert server.facts["kv_tokens"] == 4 * llamacpp_server.SLOT_TOKENS

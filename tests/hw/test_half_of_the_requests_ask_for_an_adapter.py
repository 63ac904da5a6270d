"""A server with LoRA gets as many adapters as it holds, of every projection, and half of the requests ask for one of them."""

import json
import struct
from collections import Counter

import numpy as np

from hw.engines.adapters import adapter_flags
from hw.engines.shapes import shape
from hw.serve.client import Target, _payload
from hw.serve.load_patterns import Prompts

CONFIG = shape("tiny-25m")


def test_adapters_are_named_and_written(tmp_path):
    assert adapter_flags(["--max-loras", "3"], CONFIG, tmp_path) == ([], ())
    flags, names = adapter_flags(["--enable-lora", "--max-loras", "3", "--max-lora-rank", "8"], CONFIG, tmp_path)
    assert names == ("adapter-0", "adapter-1", "adapter-2")
    assert flags == ["--lora-modules", *(f"{name}={tmp_path / 'adapter'}" for name in names)]
    data = (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    assert len(header) == 8 * 7 * 2  # layers, projections, A and B
    ends = [tensor["data_offsets"][1] for tensor in header.values()]
    assert len(data) == 8 + length + max(ends)
    down = header["base_model.model.model.layers.7.mlp.down_proj.lora_A.weight"]
    assert down["shape"] == [8, 1280]
    start, end = (8 + length + at for at in down["data_offsets"])
    assert 5e-4 < np.frombuffer(data[start:end], "<f2").std() < 2e-3
    said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert said["r"] == said["lora_alpha"] == 8


def test_half_ask_for_the_model_itself():
    target, prompts = Target("http://x", "base", adapters=("a", "b")), Prompts(32000, 0)
    asked = Counter(_payload(target, prompts.draw(i, 4), 1)["model"] for i in range(400))
    assert set(asked) == {"base", "a", "b"}
    assert 160 < asked["base"] < 240
    assert _payload(Target("http://x", "base"), [7, 8], 1)["model"] == "base"

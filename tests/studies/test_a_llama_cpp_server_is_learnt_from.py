"""`make loop-llamacpp`: what one request alone says of a core, and a server that does not start. The server needs a wheel of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sim.specs.gpus import get_gpu
from studies import llamacpp_loop, llamacpp_server


def test_a_core_has_the_rates_that_one_request_alone_reaches(tmp_path: Path):
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps(llamacpp_loop.SHAPE))
    hidden, inner, vocab, layers = 512, 1536, 4096, 8
    matrices = layers * (hidden * (2 * hidden + 2 * hidden // 2) + 3 * hidden * inner)  # half as many heads of keys and values
    norms = (2 * layers + 1) * hidden
    (tmp_path / "core.yaml").write_text(llamacpp_loop.datasheet(shape, (0.01, 0.02)))
    core = get_gpu(str(tmp_path / "core.yaml"))
    assert core.memory_bandwidth == pytest.approx(2 * (matrices + norms + vocab * hidden) / 0.02)
    assert core.flops["fp16"] == pytest.approx(2 * (matrices + norms) / 0.01)


def test_a_server_that_does_not_start_is_one_line(tmp_path: Path):
    command = [sys.executable, "-m", "studies.llamacpp_loop", "/bin/false", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"llamacpp_loop: the server did not start: {tmp_path}/out/server.log says why\n"


def test_the_converters_package_reads_the_model_back(tmp_path: Path):
    gguf = pytest.importorskip("gguf")
    llamacpp_server.write_model(tmp_path / "model.gguf", llamacpp_loop.SHAPE)
    tensors = {tensor.name: list(tensor.shape) for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert tensors["blk.7.ffn_down.weight"] == [1536, 512]
    assert tensors["output.weight"] == [512, 4096]

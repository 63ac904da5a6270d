"""SGLang's OpenAI-compatible server as a child process on the loopback, with a config-only model."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hw.engines.shapes import longest_context, shape, write_model
from hw.engines.vllm_server import RunningServer, free_port, running
from hw.serve.client import Target
from hw.serve.identify import describe
from sim.errors import UsageError

# What `served` says to an engine, in this one's words; its context length and KV cache are counted in tokens.
FLAGS = {
    "--max-num-seqs": "--max-running-requests",
    "--max-num-batched-tokens": "--chunked-prefill-size",
    "--tensor-parallel-size": "--tp-size",
}
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"}  # experts are drawn uniformly, as with vLLM


@contextmanager
def serve(
    model: str, folder: Path, *, flags: Sequence[str] = (), max_model_len: int | None = None, quantization: str | None = None,
    log: Path, start_timeout_s: float = 420.0,
) -> Iterator[RunningServer]:  # fmt: skip
    """Start the server on a GPU, wait until it is healthy, stop it at the end. `flags` as vLLM names them, or the engine's own.

    Grammars are left out, and sampling is PyTorch's: neither takes part in a measured load. Raises UsageError when SGLang is absent,
    SimctlError when it dies or does not get healthy in time; the end of its log is in the message.
    """
    if importlib.util.find_spec("sglang") is None:
        raise UsageError("SGLang is not installed: install it, or unpack a bundle (docs/air-gapped.md)")
    config, port = shape(model), free_port()
    path = write_model(model, folder, tokenizer=True, quantization=quantization)
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(path), "--tokenizer-path", str(path / "tokenizer")]
    command += ["--served-model-name", model, "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy"]
    command += ["--dtype", config["torch_dtype"], "--context-length", str(max_model_len or longest_context(config))]
    command += ["--grammar-backend", "none", "--sampling-backend", "pytorch", "--enable-cache-report"]
    command += [FLAGS.get(word, word) for word in flags]
    url = f"http://127.0.0.1:{port}"
    env = ENVIRONMENT | {"SGLANG_GRPC_PORT": str(free_port())} | dict(os.environ)  # by default 10,000 above the other, which may be none
    with running(command, url, log, env, start_timeout_s) as start_s:
        facts = asyncio.run(describe(Target(url, model)))
        facts |= {"path": "served", "server_start_s": round(start_s, 1), "server_flags": " ".join(command[3:])}
        yield RunningServer(url, model, facts, path)

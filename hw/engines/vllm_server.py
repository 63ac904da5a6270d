"""vLLM's OpenAI-compatible server as a child process on the loopback, with a config-only model."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hw.engines.server_process import Server, free_port, running
from hw.engines.shapes import shape, write_model
from hw.serve.iterations import LOG_ENVIRONMENT
from hw.serve.recording import SCHEDULER
from sim.errors import UsageError


@contextmanager
def serve(
    model: str,
    folder: Path,
    *,
    device: str,
    flags: Sequence[str] = (),
    max_model_len: int | None = None,
    start_timeout_s: float = 300.0,
    log: Path | None = None,
    iterations: Path | None = None,
) -> Iterator[Server]:
    """Start the server, wait until it is healthy, stop it at the end.

    `flags` are the engine's own, appended last. With `iterations` its scheduler appends to that file what every iteration carries
    (hw.serve.iterations). Raises UsageError when vLLM is absent, SimctlError when it dies or does not get
    healthy in time; the end of its log is in the message.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(f"vLLM is not installed: pip install 'llm-simctl[{'engine' if device == 'cuda' else 'engine-cpu'}]'")
    config, path, port = shape(model), write_model(model, folder, tokenizer=True), free_port()
    log = log or folder / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(path), "--served-model-name", model]
    command += ["--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--dtype", config["torch_dtype"]]
    command += ["--max-model-len", str(max_model_len or min(config["max_position_embeddings"], 131072)), "--enable-prompt-tokens-details"]
    command += ["--enforce-eager"] if device == "cpu" else []
    environment = _environment(device)
    if iterations is not None:
        command += ["--scheduler-cls", SCHEDULER]
        environment |= {LOG_ENVIRONMENT: str(iterations.resolve())}
    command += list(flags)
    url = f"http://127.0.0.1:{port}"
    with running(command, url, log, environment, start_timeout_s) as start_s:
        facts = log_facts(log.read_text(errors="replace"))
        facts |= {"path": "served", "server_start_s": round(start_s, 1), "server_flags": " ".join(command[5:])}
        yield Server(url, model, facts)


def log_facts(text: str) -> dict[str, Any]:
    """KV capacity, engine version and scheduling mode as the server's log prints them; absent lines are left out."""
    facts: dict[str, Any] = {}
    if found := re.search(r"KV cache size:\s*([\d,]+)\s*tokens", text):
        facts["kv_tokens"] = int(found[1].replace(",", ""))
    if found := re.search(r"# GPU blocks:\s*(\d+)", text):
        facts["kv_blocks"] = int(found[1])
    if found := re.search(r"version\s+v?(\d+\.\d+\.\d+\S*)", text):
        facts["engine_version"] = found[1]
    if found := re.search(r"Asynchronous scheduling is (enabled|disabled)", text):
        facts["async_scheduling"] = int(found[1] == "enabled")
    return facts | {"engine": "vllm"}


def _environment(device: str) -> dict[str, str]:
    extra = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if device == "cpu":
        extra |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "0", "OMP_NUM_THREADS": "1"}
    else:
        extra |= {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    # its own log is where the KV capacity it got is printed
    return extra | dict(os.environ) | {"VLLM_LOGGING_LEVEL": "INFO"}

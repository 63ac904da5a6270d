"""vLLM's OpenAI-compatible server as a child process on the loopback, with a config-only model."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hw.engines.adapters import SHARE, adapter_flags
from hw.engines.shapes import longest_context, shape, write_model
from hw.serve.recording import LOG_ENVIRONMENT, SCHEDULER
from sim.errors import SimctlError, UsageError
from sim.extras import install_hint


@dataclass(frozen=True)
class RunningServer:
    """A running server: its URL, the name it serves the model under, and what it says it got; where its model files lie, its
    tokenizer among them; and the names of the adapters it serves beside the model."""

    url: str
    model: str
    facts: dict[str, Any]
    folder: Path | None = None
    adapters: tuple[str, ...] = ()


def require_vllm(device: str) -> None:
    """Raise UsageError when vLLM is absent, naming the extra."""
    if importlib.util.find_spec("vllm") is None:
        extra = "engine" if device == "cuda" else "engine-cpu"
        raise UsageError(f"vLLM is not installed: {install_hint(extra)}, or unpack a bundle (docs/air-gapped.md)")


def environment(device: str, log_level: str) -> dict[str, str]:
    """The environment of an engine: offline; on "cpu" one pinned thread. What is set already stays.

    Experts are drawn uniformly: a router of random weights may send every token to the same ones.
    """
    extra = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": log_level}
    extra |= {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}  # the host may share its switches with others: no multicast
    if device == "cpu":
        extra |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "0", "OMP_NUM_THREADS": "1"}
    else:
        extra |= {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}
    return extra | dict(os.environ)


@contextmanager
def serve(
    model: str, folder: Path, *, device: str, flags: Sequence[str] = (), max_model_len: int | None = None, start_timeout_s: float = 420.0,
    log: Path, iterations: Path | None = None, quantization: str | None = None, extra: Mapping[str, str] | None = None,
) -> Iterator[RunningServer]:  # fmt: skip
    """Start the server, wait until it is healthy, stop it at the end.

    `flags` are the engine's own, appended last; `extra` goes into its environment. With `iterations` its scheduler appends to that file
    what every iteration carries (hw.serve.recording). Raises UsageError when vLLM is absent, SimctlError when it dies or does not get
    healthy in time; the end of its log is in the message.
    """
    require_vllm(device)
    config, port, path = shape(model), free_port(), folder / model
    if not path.exists():
        write_model(model, folder, tokenizer=True, quantization=quantization)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(path), "--served-model-name", model]
    command += ["--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--dtype", config["torch_dtype"]]
    command += ["--tokenizer", str(path / "tokenizer")]
    command += ["--max-model-len", str(max_model_len or longest_context(config)), "--enable-prompt-tokens-details"]
    command += ["--enforce-eager"] if device == "cpu" else []
    env = environment(device, log_level="INFO") | {"VLLM_LOGGING_LEVEL": "INFO"}  # its log tells the KV capacity it got
    if iterations is not None:
        command += ["--scheduler-cls", SCHEDULER]
        env |= {LOG_ENVIRONMENT: str(iterations.resolve())}
    env |= extra or {}
    named, adapters = adapter_flags(flags, config, path)
    command += [*flags, *named]
    url = f"http://127.0.0.1:{port}"
    with running(command, url, log, env, start_timeout_s) as start_s:
        facts = log_facts(log.read_text(errors="replace"))
        facts |= {"path": "served", "server_start_s": round(start_s, 1), "server_flags": " ".join(command[5:])}
        facts |= {"lora_share": SHARE} if adapters else {}
        yield RunningServer(url, model, facts, path, adapters)


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: Sequence[str], url: str, log: Path, env: Mapping[str, str], start_timeout_s: float) -> Iterator[float]:
    """Run `command`, its output going to `log`, until the block ends. Yields the seconds it took to get healthy.

    Raises SimctlError when it dies or does not get healthy in time; the end of its log is in the message.
    """
    start = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        _await_health(process, url, log, start_timeout_s)
        yield time.monotonic() - start
    finally:
        _stop(process)


def _await_health(process: subprocess.Popen[bytes], url: str, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SimctlError(f"the server ended with code {process.returncode}: {_tail(log)}")
        with contextlib.suppress(OSError), opener.open(f"{url}/health", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise SimctlError(f"the server was not healthy after {timeout_s:.0f} s: {_tail(log)}")


def _tail(log: Path, characters: int = 600) -> str:
    return " ".join(log.read_text(errors="replace")[-characters:].split())


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and the engine process it started: they share a process group of their own."""
    for sign, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        with contextlib.suppress(ProcessLookupError):  # children that outlived it
            os.killpg(process.pid, signal.SIGKILL)
        return

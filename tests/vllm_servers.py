"""Real vLLM servers on the loopback: its CPU build, a tiny model of random weights, one thread each."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hw.engines.vllm_server import environment, free_port

ROOT = Path(__file__).parents[1]
MODEL, MAX_NUM_SEQS, BUDGET = "tiny-25m", 16, 2048
START_S = 240.0
# Written by the engine's own interpreter: a tokenizer needs a package that nothing else here does.
WRITE = f"from pathlib import Path; from hw.engines.shapes import write_model; write_model({MODEL!r}, Path.cwd(), tokenizer=True)"
SHEET = """name: one-core
memory_bytes: 25.0e+9
memory_bandwidth: 40.0e+9
flops: {fp32: 200.0e+9}
host_link_bandwidth: 20.0e+9
source: one core of a virtual machine
"""


@dataclass
class VllmServer:
    """A server that runs until `kill`, or until the test ends."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it and the engine process that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


def interpreter() -> str:
    """Python with vLLM's CPU build. Skips the test where there is none: `make test-all` installs one."""
    chosen = [os.environ.get("VLLM_PYTHON", ""), str(ROOT / ".venv-vllm/bin/python")]
    if importlib.util.find_spec("vllm"):
        chosen.append(sys.executable)
    found = next((path for path in chosen if Path(path).is_file()), None)
    if found is None:
        pytest.skip("no engine here: make test-all installs one")
    return found


def deployment_words(folder: Path) -> list[str]:
    """Options that say what the servers run, with a datasheet of their core."""
    (folder / "one-core.yaml").write_text(SHEET)
    return ["--gpu", str(folder / "one-core.yaml"), "--model", str(folder / MODEL / "config.json"), "--dtype", "fp32",
            "--max-num-seqs", str(MAX_NUM_SEQS), "--max-num-batched-tokens", str(BUDGET)]  # fmt: skip


@contextlib.contextmanager
def vllm_servers(folder: Path, count: int) -> Iterator[list[VllmServer]]:
    """`count` servers of one model, started together. RuntimeError with the end of the log where one does not come up."""
    python, env = interpreter(), environment("cpu", "INFO") | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([python, "-c", WRITE], cwd=folder, env=env, check=True, timeout=120)
    env |= {"VLLM_CPU_KVCACHE_SPACE": "1"}
    found = []
    try:
        for core in range(count):
            port, log = free_port(), folder / f"server{core}.log"
            command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--tokenizer", f"{MODEL}/tokenizer",
                       "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--dtype", "float32", "--enforce-eager",
                       "--max-model-len", "2048", "--max-num-seqs", str(MAX_NUM_SEQS), "--max-num-batched-tokens", str(BUDGET),
                       "--enable-prompt-tokens-details"]  # fmt: skip
            own = env | {"VLLM_CPU_OMP_THREADS_BIND": str(core % (os.cpu_count() or 1))}
            with log.open("wb") as sink:
                process = subprocess.Popen(command, cwd=folder, env=own, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
            found.append(VllmServer(f"http://127.0.0.1:{port}", process))
        for core, server in enumerate(found):
            _await(server, folder / f"server{core}.log")
        yield found
    finally:
        for server in found:
            server.kill()


def _await(server: VllmServer, log: Path) -> None:
    deadline = time.monotonic() + START_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and server.process.poll() is None:
        with contextlib.suppress(OSError), opener.open(f"{server.url}/health", timeout=60) as answer:
            if answer.status == 200:
                return
        time.sleep(0.3)
    raise RuntimeError(f"no server after {START_S:g} s, exit {server.process.poll()}: {log.read_text(errors='replace')[-600:]}")

"""Several of vLLM's servers on the GPUs of one host behind the vLLM project's own router: replicas, or a prefill and a decode pool."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hw.engines import vllm_server
from hw.engines.shapes import write_model
from hw.engines.vllm_server import RunningServer
from sim.errors import UsageError

POLICY = "round_robin"
CONNECTOR = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'  # moves KV from GPU to GPU; the router tells it what and where
SIDE_CHANNEL = 5600  # first of the ports on which servers tell each other where their KV lies
HEALTHY_S = 60.0  # the router asks its servers first


def environments(replicas: int, tensor_parallel: int, *, connected: bool) -> list[dict[str, str]]:
    """Environment of each server: its GPUs, in order; where KV moves, its side channel."""
    found = []
    for index in range(replicas):
        gpus = range(index * tensor_parallel, (index + 1) * tensor_parallel)
        found.append({"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))})
        if connected:
            found[-1] |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL + 100 * index)}
    return found


def router_command(urls: Sequence[str], prefill: int, port: int) -> list[str]:
    """The router's command line: round robin over all servers, or prompts to the first `prefill` and their answers from the others."""
    command = [sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(port), "--policy", POLICY]
    command += ["--prometheus-port", str(vllm_server.free_port()), "--log-level", "warning"]
    if not prefill:
        return [*command, "--worker-urls", *urls]
    command += ["--vllm-pd-disaggregation"]
    for url in urls[:prefill]:
        command += ["--prefill", url]
    for url in urls[prefill:]:
        command += ["--decode", url]
    return command


@contextmanager
def serve(
    model: str, folder: Path, *, replicas: int, prefill: int, tensor_parallel: int, flags: Sequence[str], max_model_len: int | None,
    log: Path, quantization: str | None = None,
) -> Iterator[RunningServer]:  # fmt: skip
    """Start all servers at once and the router once they are healthy; stop all at the end. The URL is the router's.

    `flags` go to every server. Raises UsageError when the router or NIXL is absent, and what hw.engines.vllm_server.serve raises.
    """
    for module, package in (("vllm_router", "vllm-router"), *([("nixl", "nixl")] if prefill else [])):
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"{package} is not installed: pip install {package}")
    # one path: servers whose models' paths differ refuse each other's KV
    write_model(model, folder, tokenizer=True, quantization=quantization)
    flags = [*flags, "--kv-transfer-config", CONNECTOR] if prefill else flags
    with ExitStack() as stack, ThreadPoolExecutor(replicas) as starting:

        def start(index: int, extra: dict[str, str]) -> RunningServer:
            limits: dict[str, Any] = {"flags": flags, "max_model_len": max_model_len, "extra": extra}
            return stack.enter_context(vllm_server.serve(model, folder, device="cuda", log=log.with_suffix(f".{index}.log"), **limits))

        extras = environments(replicas, tensor_parallel, connected=prefill > 0)
        servers = [each.result() for each in [starting.submit(start, i, extra) for i, extra in enumerate(extras)]]
        port = vllm_server.free_port()
        url, command = f"http://127.0.0.1:{port}", router_command([server.url for server in servers], prefill, port)
        env = vllm_server.environment("cuda", "INFO")
        stack.enter_context(vllm_server.running(command, url, log.with_suffix(".router.log"), env, HEALTHY_S))
        facts: dict[str, Any] = servers[0].facts | {"replicas": replicas, "prefill_replicas": prefill, "router": f"vllm-router, {POLICY}"}
        yield RunningServer(url, servers[0].model, facts, servers[0].folder)

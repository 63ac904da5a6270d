"""Arguments of vllm-router, the proxy in front of several vLLM servers or between prefill and decode."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from sim.planning.servers import PORT, Server, startup_s

RELEASE = "vllm-router==0.1.17"
ROUTER_IMAGE = "python:3.12.11-slim-bookworm"
POLICIES = {
    "round-robin": "round_robin",
    "random": "random",
    "power-of-two": "power_of_two",
    "vllm-router": "cache_aware",
    "kubernetes-service": "random",
}
NEAREST = dict.fromkeys(("prefix-affinity", "lmetric", "unified", "sglang-router", "llm-d", "dynamo"), "cache_aware")  # others weigh load


def router_arguments(servers: Sequence[Server], urls: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """(arguments, what they cannot say), `urls` of the replicas by the server's name."""
    router = servers[0].deployment.router
    policy = POLICIES.get(router) or NEAREST.get(router, "power_of_two")
    said = [] if router in POLICIES else [f"vllm-router has no {router}: {policy} is its nearest, and has other latencies."]
    patience_s = max(startup_s(server) for server in servers)
    found = ["--host", "0.0.0.0", "--port", str(PORT), "--policy", policy, "--worker-startup-timeout-secs", str(patience_s)]
    if any(server.role == "prefill" for server in servers):
        found.append("--vllm-pd-disaggregation")
        for server in servers:
            for url in urls[server.name]:
                found += [f"--{server.role}", url]
        return found, said
    return [*found, "--worker-urls", *(url for server in servers for url in urls[server.name])], said


def router_command(arguments: Sequence[str]) -> list[str]:
    """The router in a plain Python image."""
    return ["sh", "-c", f"pip install --quiet {RELEASE} && exec vllm-router {shlex.join(arguments)}"]

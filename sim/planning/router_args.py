"""Arguments of vllm-router, the proxy in front of several vLLM servers or between prefill and decode; SGLang's router reads the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from sim.planning.servers import PORT, Server, startup_s

ROUTERS = {  # by engine: release, words that start it
    "vllm": ("vllm-router==0.1.17", ["vllm-router"]),
    "sglang": ("sglang-router==0.3.2", ["python3", "-m", "sglang_router.launch_router"]),
}
ROUTER_IMAGE = "python:3.12.11-slim-bookworm"
POLICIES = {
    "round-robin": "round_robin",
    "random": "random",
    "power-of-two": "power_of_two",
    "kubernetes-service": "random",
}
CACHE_AWARE = "cache_aware"  # either router's own, under the name of the router
OWN_FLAGS = ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold")  # of cache_aware
PREFIX_AWARE = ("prefix-affinity", "lmetric", "unified", "sglang-router", "vllm-router", "llm-d", "dynamo")  # others weigh load


def router_arguments(servers: Sequence[Server], urls: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """(arguments, what they cannot say), `urls` of the replicas by the server's name."""
    router = servers[0].deployment.router
    front = f"{servers[0].engine}-router"
    policy = POLICIES.get(router) or (CACHE_AWARE if router in PREFIX_AWARE else "power_of_two")
    said = [] if router in (*POLICIES, front) else [f"{front} has no {router}: {policy} is its nearest, and has other latencies."]
    patience_s = max(startup_s(server) for server in servers)
    found = ["--host", "0.0.0.0", "--port", str(PORT), "--policy", policy, "--worker-startup-timeout-secs", str(patience_s)]
    own = servers[0].deployment.router_options if router == front else {}
    found += [word for name in OWN_FLAGS if name in own for word in (f"--{name.replace('_', '-')}", str(own[name]))]
    if any(server.role == "prefill" for server in servers):
        found.append("--vllm-pd-disaggregation")
        for server in servers:
            for url in urls[server.name]:
                found += [f"--{server.role}", url]
        return found, said
    return [*found, "--worker-urls", *(url for server in servers for url in urls[server.name])], said


def router_words(servers: Sequence[Server]) -> list[str]:
    """The words that start the router of these servers' engine."""
    return ROUTERS[servers[0].engine][1]


def router_command(servers: Sequence[Server], arguments: Sequence[str]) -> list[str]:
    """The router in a plain Python image."""
    release, words = ROUTERS[servers[0].engine]
    return ["sh", "-c", f"pip install --quiet {release} && exec {shlex.join([*words, *arguments])}"]

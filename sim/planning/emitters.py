"""Launch files by format: what each writes of a plan's servers, and what it cannot say."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

from sim.errors import UsageError
from sim.planning.kubernetes import dynamo, kserve, kubernetes, llm_d
from sim.planning.router_args import ROUTER_IMAGE, router_arguments, router_command, router_words
from sim.planning.servers import PORT, Server, one_node, prefills, settings, startup_s, yaml_documents

RESTART = "unless-stopped"
HEALTHY = ["CMD", "python3", "-c", f"import urllib.request as r; r.urlopen('http://localhost:{PORT}/health', timeout=4)"]
Written = tuple[str, list[str]]
RAY_NAMES = ("V100", "T4", "L4", "L40S", "A100-40G", "A100-80G", "H100", "H200", "H20", "B200", "B300", "GB200", "GB300")


def commands(servers: Sequence[Server]) -> Written:
    """One command a pool, and the router's."""
    lines = []
    for server in servers:
        lines.append(f"# {server.name}: {server.replicas} of these, each on {server.deployment.placed}")
        lines += [f"# {name}: {value}" for name, value in server.labels.items()]
        lines += _lines_of(server)
    urls = {server.name: [f"http://{server.name}-{i}:{PORT}" for i in range(server.replicas)] for server in servers}
    said: list[str] = []
    if sum(server.replicas for server in servers) > 1 and (prefills(servers) or len(servers) == 1):
        arguments, said = router_arguments(servers, urls)
        lines += ["# in front of them:", shlex.join([*router_words(servers), *arguments])]
    return "\n".join(lines) + "\n", said


def _lines_of(server: Server) -> list[str]:
    """The command of a replica, on each of its nodes where it has several."""
    words, nodes = [*server.entrypoint, *server.arguments], server.deployment.links.nodes(server.deployment.gpus)
    if nodes == 1:
        return [shlex.join([*words, *server.ending])]
    first = f"{server.name}-node-0"
    meet = ["--master-addr", first] if server.engine == "vllm" else ["--dist-init-addr", f"{first}:{PORT - 1}"]
    found = [f"# of each: one command on each of {nodes} nodes, of which the first is called {first}"]
    for rank in range(nodes):
        quiet = ["--headless"] if rank and server.engine == "vllm" else []
        found.append(shlex.join([*words, "--nnodes", str(nodes), "--node-rank", str(rank), *meet, *(quiet or server.ending)]))
    return found


def compose(servers: Sequence[Server]) -> Written:
    """One service a replica, each with GPUs of its own, and the router. One host alone."""
    one_node(servers, "compose")
    wanted = sum(server.replicas * server.deployment.gpus for server in servers)
    links = servers[0].deployment.links
    if links.nodes(wanted) > 1:
        raise UsageError(f"--emit compose starts one host of {links.gpus_per_node} GPUs; the plan has {wanted}: --emit k8s")
    services: dict[str, Any] = {}
    urls: dict[str, list[str]] = {}
    first = 0
    for server in servers:
        for i in range(server.replicas):
            name, gpus = f"{server.name}-{i}", server.deployment.gpus
            devices = {"driver": "nvidia", "device_ids": [str(first + k) for k in range(gpus)], "capabilities": ["gpu"]}
            services[name] = {
                "image": server.image,
                # vLLM's image starts with its own entry point, SGLang's with none
                "command": [*([] if server.engine == "vllm" else server.entrypoint), *server.arguments, *server.ending],
                "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **({"VLLM_NIXL_SIDE_CHANNEL_HOST": name} if server.role != "serve" else {})},
                "ipc": "host",
                "restart": RESTART,
                "healthcheck": {"test": HEALTHY, "interval": "10s", "timeout": "5s", "start_period": f"{startup_s(server)}s"},
                "volumes": ["weights:/root/.cache/huggingface"],
                "labels": {"simctl/gpu": server.deployment.gpu.name, "simctl/role": server.role, **server.labels},
                "deploy": {"resources": {"reservations": {"devices": [devices]}}},
            }
            urls.setdefault(server.name, []).append(f"http://{name}:{PORT}")
            first += gpus
    said = ["Gated weights need HF_TOKEN in the environment."]
    if prefills(servers) or len(services) > 1 == len(servers):
        arguments, more = router_arguments(servers, urls)
        front = {"image": ROUTER_IMAGE, "command": router_command(servers, arguments), "ports": [f"{PORT}:{PORT}"], "restart": RESTART}
        services["router"] = front | {"depends_on": {name: {"condition": "service_healthy"} for name in services}}
        said += more
    else:
        for i, server in enumerate(servers):
            services[f"{server.name}-0"]["ports"] = [f"{PORT + i}:{PORT}"]
    return yaml_documents([{"services": services, "volumes": {"weights": {}}}]), said


def ray(servers: Sequence[Server]) -> Written:
    """A Ray Serve LLM configuration: an application a pool, or one of prefill and decode."""
    one_node(servers, "ray", "vllm")
    said = ["Ray Serve routes by its own request router: power of two choices. HF_TOKEN stands in the cluster's environment."]
    configs = {server.name: _llm_config(server, said) for server in servers}
    if prefills(servers):
        pairs = {f"{server.role}_config": configs[server.name] for server in servers}
        applications = [_application("vllm", "build_pd_openai_app", pairs, "/")]
    else:
        prefixes = ["/"] if len(servers) == 1 else [f"/{name}" for name in configs]
        parts = zip(configs.items(), prefixes, strict=True)
        applications = [_application(name, "build_openai_app", {"llm_configs": [config]}, prefix) for (name, config), prefix in parts]
    return yaml_documents([{"applications": applications}]), said


def _llm_config(server: Server, said: list[str]) -> dict[str, Any]:
    gpu = server.deployment.gpu.name
    accelerator = {"A10": "A10G"}.get(gpu, gpu)
    found: dict[str, Any] = {"model_loading_config": {"model_id": server.model, "model_source": server.model}}
    if accelerator in RAY_NAMES or accelerator == "A10G":
        found["accelerator_type"] = accelerator
    else:
        said.append(f"Ray has no name for {gpu}: nothing keeps replicas off other cards.")
    if server.labels:  # the one field that takes any name
        found["runtime_env"] = {"env_vars": server.labels}
    return found | {"deployment_config": {"num_replicas": server.replicas}, "engine_kwargs": settings(server.flags)}


def _application(name: str, builder: str, args: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {"name": name, "route_prefix": prefix, "import_path": f"ray.serve.llm:{builder}", "args": args}


KINDS: dict[str, Callable[[Sequence[Server]], Written]] = {
    "vllm": commands,
    "compose": compose,
    "k8s": kubernetes,
    "kserve": kserve,
    "llm-d": llm_d,
    "dynamo": dynamo,
    "ray": ray,
}

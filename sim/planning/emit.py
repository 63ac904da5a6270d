"""Launch commands and manifests of a plan's winner: `vllm serve`, Kubernetes, or values of llm-d's modelservice chart."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.errors import UsageError

if TYPE_CHECKING:
    from sim.planning.choices import Choice
    from sim.planning.race import RaceResult
    from sim.study.deployment import Deployment
    from sim.study.fleet_spec import PoolSpec

KINDS = ("vllm", "k8s", "llm-d")
PORT = 8000
IMAGES = {"k8s": "vllm/vllm-openai:latest", "llm-d": "ghcr.io/llm-d/llm-d-cuda:latest"}
SIXTEEN = {"bf16": "bfloat16", "fp16": "float16"}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}  # KV from prefill to decode replicas
COMMENT = 100  # columns


@dataclass(frozen=True, slots=True)
class Server:
    """Equal replicas and how each is started."""

    name: str
    role: str
    replicas: int
    deployment: Deployment
    arguments: list[str]


def check_emits(choices: Sequence[Choice]) -> None:
    """Raises UsageError for choices that no vLLM can be started as."""
    for choice in choices:
        for pool in choice.study.whole_fleet.pools:
            serve_arguments(pool)


def serve_arguments(pool: PoolSpec) -> list[str]:
    """Arguments of `vllm serve`, every limit that the simulation took written out. Raises UsageError for what vLLM does not have."""
    from sim.errors import SimctlError
    from sim.study.deployment import plan_engine

    d = pool.deployment
    limits, precision = d.limits, d.precision
    if limits.engine != "vllm":
        raise UsageError(f"--emit writes what starts vLLM, not {limits.engine}")
    if limits.attention.kind != "dense" or limits.attention.placement != "hbm" or limits.draft or limits.options:
        raise UsageError("--emit knows dense attention in HBM, and no drafts or engine options")
    try:
        config = plan_engine(d)[0]
    except (SimctlError, UsageError):  # does not fit: it will not win
        return []
    found = [repository(d.model.source, d.model.name)]
    if d.model.checkpoint is not None and precision.weights == d.model.checkpoint.dtype:
        pass  # vLLM reads it from the checkpoint
    elif precision.weights in SIXTEEN:
        found += ["--dtype", SIXTEEN[precision.weights]]
    elif precision.weights == "fp8":
        found += ["--quantization", "fp8"]
    if precision.kv not in SIXTEEN:  # also where the checkpoint asks for it: saying it twice is no harm
        found += ["--kv-cache-dtype", precision.kv]
    seqs, budget = d.batch_limits()
    found += ["--tensor-parallel-size", str(d.tp)]
    found += ["--pipeline-parallel-size", str(d.parallel.pp)] if d.parallel.pp > 1 else []
    found += ["--data-parallel-size", str(d.parallel.dp)] if d.parallel.dp > 1 else []
    found += ["--enable-expert-parallel"] if d.parallel.expert else []
    if limits.lora is not None:
        found += ["--enable-lora", "--max-lora-rank", str(limits.lora.rank), "--max-loras", str(limits.lora.adapters)]
    found += ["--enforce-eager"] if limits.enforce_eager else []
    found += ["--max-num-seqs", str(seqs), "--max-num-batched-tokens", str(budget), "--max-model-len", str(config.max_model_len)]
    found += ["--gpu-memory-utilization", f"{limits.memory_share:g}", "--block-size", str(config.block_size)]
    found += ["--enable-prefix-caching" if config.enable_prefix_caching else "--no-enable-prefix-caching"]
    found += ["--enable-chunked-prefill" if config.enable_chunked_prefill else "--no-enable-chunked-prefill"]
    if config.policy != "fcfs":
        found += ["--scheduling-policy", config.policy]
    if config.long_prefill_token_threshold:
        found += ["--long-prefill-token-threshold", str(config.long_prefill_token_threshold)]
    if config.prefill_schedule_interval > 1:
        found += ["--prefill-schedule-interval", str(config.prefill_schedule_interval)]
    if limits.num_gpu_blocks is not None:
        found += ["--num-gpu-blocks-override", str(limits.num_gpu_blocks)]
    if limits.kv_offloading_size is not None:
        found += ["--kv-offloading-size", f"{limits.kv_offloading_size:g}"]
    if pool.role != "serve":
        found += ["--kv-transfer-config", json.dumps(NIXL)]
    return found


def repository(source: str, name: str) -> str:
    """The model's repository on Hugging Face, as its catalogue entry names it; else its name."""
    found = re.search(r"config\.json of ([\w.-]+/[\w.-]+) on Hugging Face", source)
    return found[1] if found else name


def emitted(plan: RaceResult, kind: str, answer: str) -> str:
    """What starts the winner, the answer above it as comments."""
    import textwrap

    assert plan.winner is not None
    choice = plan.choices[plan.winner.choice]
    pools = choice.study_of(plan.winner.replicas).whole_fleet.pools
    counts = choice.replicas(plan.winner.replicas)
    servers = [
        Server(pool.name if choice.study.fleet else "vllm", pool.role, n, pool.deployment, serve_arguments(pool))
        for pool, n in zip(pools, counts, strict=True)
    ]
    notes = [answer.removeprefix("=> "), *_notes(pools)]
    head = "".join(f"{line}\n" for note in notes for line in textwrap.wrap(note, COMMENT, initial_indent="# ", subsequent_indent="# "))
    if kind != "vllm" and (several := [s for s in servers if s.deployment.links.nodes(s.deployment.gpus) > 1]):
        raise UsageError(
            f"--emit {kind} writes replicas of one node; {several[0].deployment.gpus} GPUs are more: --emit vllm has the command"
        )
    body = {"vllm": _commands, "k8s": _manifests, "llm-d": _values}[kind](servers)
    return head + body


def _notes(pools: Sequence[PoolSpec]) -> list[str]:
    """What the engine's arguments do not say of the plan."""
    d = pools[0].deployment
    notes = [f"The plan sends requests by {d.router}; a front door that does otherwise has other latencies."]
    if pools[0].max_prompt_tokens is not None:
        notes.append(f"The front door sends prompts of up to {pools[0].max_prompt_tokens} tokens to the first pool, others to the second.")
    if any(pool.deployment.precision.weights not in (*SIXTEEN, "fp8") for pool in pools):
        notes.append(f"Weights in {d.precision.weights}: name a checkpoint that has them.")
    return notes


def _commands(servers: Sequence[Server]) -> str:
    lines = []
    for server in servers:
        d = server.deployment
        lines.append(f"# {server.name}: {server.replicas} of these, each on {d.placed}")
        lines.append(f"vllm serve {shlex.join(server.arguments)} --port {PORT}")
    return "\n".join(lines) + "\n"


def _manifests(servers: Sequence[Server]) -> str:
    return _documents([document for server in servers for document in (_deployment(server), _service(server))])


def _deployment(server: Server) -> dict[str, Any]:
    labels = {"app": f"simctl-{server.name}"}
    container = {
        "name": "vllm",
        "image": IMAGES["k8s"],
        "command": ["vllm", "serve"],
        "args": [*server.arguments, "--port", str(PORT)],
        "ports": [{"containerPort": PORT, "name": "http"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
        "resources": _resources(server),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    product = next((alias for alias in server.deployment.gpu.aliases if alias.startswith("NVIDIA ")), "")
    spec: dict[str, Any] = {"nodeSelector": {"nvidia.com/gpu.product": product.replace(" ", "-")}} if product else {}
    spec |= {"containers": [container], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": labels["app"], "labels": labels, "annotations": {"simctl/gpu": server.deployment.gpu.name}},
        "spec": {
            "replicas": server.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _service(server: Server) -> dict[str, Any]:
    name = f"simctl-{server.name}"
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": ports}}


def _resources(server: Server) -> dict[str, Any]:
    gpus = str(server.deployment.gpus)
    return {"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}}


def _values(servers: Sequence[Server]) -> str:
    """Values of the chart llm-d-modelservice. It has one decode and one prefill role: other pools are releases of their own."""
    documents = []
    for group in [servers] if servers[0].role == "prefill" else [[server] for server in servers]:
        model = group[0].arguments[0]
        values: dict[str, Any] = {
            "modelArtifacts": {"uri": f"hf://{model}", "name": model},
            "accelerator": {"type": "nvidia"},
            "routing": {"servicePort": PORT, **({"proxy": {"connector": "nixlv2"}} if len(group) > 1 else {})},
        }
        for server in group:
            role = "prefill" if server.role == "prefill" else "decode"
            container = {
                "name": "vllm",
                "image": IMAGES["llm-d"],
                "modelCommand": "vllmServe",
                "args": server.arguments[1:],
                "resources": _resources(server),
                "mountModelVolume": True,
            }
            parallelism = {"tensor": server.deployment.tp}
            p = server.deployment.parallel
            parallelism |= {name: size for name, size in (("pipeline", p.pp), ("data", p.dp)) if size > 1}
            values[role] = {"create": True, "replicas": server.replicas, "parallelism": parallelism, "containers": [container]}
        if len(group) == 1:
            values["prefill"] = {"create": False}
        documents.append(values)
    return _documents(documents)


def _documents(documents: Sequence[dict[str, Any]]) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes out what is said twice."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump_all(documents, Dumper=Plain, sort_keys=False, width=120)

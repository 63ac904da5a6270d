"""Servers of a plan: equal replicas, and the arguments of `vllm serve` or `sglang.launch_server` that start each."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.deployment.memory import resident_weight_bytes
from sim.engine.server_flags import HOST_RULES
from sim.engine.versions import NEWEST
from sim.errors import UsageError
from sim.planning import sglang_args
from sim.specs.context import OF_YARN
from sim.specs.linear_kernels import AUTO
from sim.specs.stored import stored

if TYPE_CHECKING:
    from sim.engine.config import EngineConfig
    from sim.study.deployment import Deployment
    from sim.study.fleet_spec import PoolSpec

PORT = 8000
IMAGES = {"vllm": f"vllm/vllm-openai:v{NEWEST}.0", "sglang": sglang_args.IMAGE}
DEFAULT_ROUTER = "round-robin"
SIXTEEN_BYTES = 2.0
DOWNLOAD_BYTES_PER_S, LOADING_S = 50e6, 1800
SIXTEEN = {"bf16": "bfloat16", "fp16": "float16"}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}  # KV from prefill to decode replicas


@dataclass(frozen=True, slots=True)
class Server:
    """Equal replicas and how each is started: the model, then the flags."""

    name: str
    role: str
    replicas: int
    deployment: Deployment
    arguments: list[str]
    max_prompt_tokens: int | None = None

    @property
    def labels(self) -> dict[str, str]:
        """What formats have no field for and simctl reads back, beside the GPU."""
        router, own = self.deployment.router, self.deployment.router_options
        found = {} if self.max_prompt_tokens is None else {"simctl/max-prompt-tokens": str(self.max_prompt_tokens)}
        found |= {} if router == DEFAULT_ROUTER else {"simctl/router": router}
        return found | ({"simctl/router-options": ",".join(f"{name}={value}" for name, value in own.items())} if own else {})

    @property
    def engine(self) -> str:
        return self.deployment.limits.engine

    @property
    def image(self) -> str:
        return IMAGES[self.engine]

    @property
    def entrypoint(self) -> list[str]:
        """The words before the model."""
        if self.engine == "sglang":
            return ["python3", "-m", "sglang.launch_server", "--model-path"]
        return ["vllm", "serve"]

    @property
    def ending(self) -> list[str]:
        """Where it listens; SGLang does so on loopback alone, if nothing is said."""
        return [*(["--host", "0.0.0.0"] if self.engine == "sglang" else []), "--port", str(PORT)]

    @property
    def model(self) -> str:
        return self.arguments[0]

    @property
    def flags(self) -> list[str]:
        return self.arguments[1:]


def serve_arguments(pool: PoolSpec) -> list[str]:
    """The model and the engine's flags, every limit that the simulation took written out. UsageError for what no flag of it sets."""
    from sim.errors import SimctlError
    from sim.study.deployment import plan_engine

    d = pool.deployment
    limits, precision = d.limits, d.precision
    if limits.engine not in IMAGES:
        raise UsageError(f"--emit writes what starts {' or '.join(IMAGES)}, not {limits.engine}")
    if limits.attention.kind != "dense" or limits.attention.placement != "hbm" or limits.draft:
        raise UsageError("--emit knows dense attention in HBM, and no drafts")
    if limits.engine == "sglang":
        sglang_args.check(pool)
    elif limits.options.keys() - HOST_RULES.values():
        raise UsageError("--emit knows no engine options of vLLM but those of its host RAM")
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
        found += ["--kv-cache-dtype", precision.kv if limits.engine == "vllm" else "fp8_e4m3"]
    if limits.engine == "sglang":
        return found + sglang_args.flags(pool, config)
    return found + _vllm_flags(d, config) + _connectors(d, pool.role)


def _connectors(d: Deployment, role: str) -> list[str]:
    """What moves KV between servers, and to host RAM; of both at once `--kv-offloading-size` would take the other's place."""
    size, options = d.limits.kv_offloading_size, d.limits.options
    rules = {theirs: options[ours] for theirs, ours in HOST_RULES.items() if ours in options}
    if size is not None and role == "serve" and not rules:
        return ["--kv-offloading-size", f"{size:g}"]
    wanted: list[dict[str, Any]] = [NIXL] if role != "serve" else []
    if size is not None:
        extra = {"cpu_bytes_to_use": int(size * 2**30), **rules}
        wanted.append({"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra})
    if not wanted:
        return []
    both = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": wanted}}
    return ["--kv-transfer-config", json.dumps(wanted[0] if len(wanted) == 1 else both)]


def _vllm_flags(d: Deployment, config: EngineConfig) -> list[str]:
    """Limits of a deployment as vLLM's flags; those at a default of every version are left out."""
    limits, found = d.limits, list[str]()
    seqs, budget = d.batch_limits()
    found += ["--tensor-parallel-size", str(d.tp)]
    found += ["--pipeline-parallel-size", str(d.parallel.pp)] if d.parallel.pp > 1 else []
    found += ["--data-parallel-size", str(d.parallel.dp)] if d.parallel.dp > 1 else []
    found += ["--enable-expert-parallel"] if d.parallel.expert else []
    if limits.lora is not None:
        found += ["--enable-lora", "--max-lora-rank", str(limits.lora.rank), "--max-loras", str(limits.lora.adapters)]
    found += ["--linear-backend", limits.linear_backend] if limits.linear_backend != AUTO else []
    found += ["--enforce-eager"] if limits.enforce_eager else []
    found += ["--max-num-seqs", str(seqs), "--max-num-batched-tokens", str(budget), "--max-model-len", str(config.max_model_len)]
    if d.model.started is not None and d.model.started[1] == OF_YARN and config.max_model_len > (d.started or config.max_model_len):
        found += ["--hf-overrides", json.dumps({"max_position_embeddings": d.model.max_context})]  # of which 0.30 and later serve no more
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
    return found


def repository(source: str, name: str) -> str:
    """The model's repository on Hugging Face, as the question or its catalogue entry names it; else its name."""
    found = re.search(r"hub name ([\w.-]+/[\w.:-]+): ", source) or re.search(r"config\.json of ([\w.-]+/[\w.-]+) on Hugging Face", source)
    return found[1] if found else name


def one_node(servers: Sequence[Server], kind: str, *engines: str) -> None:
    """Raises UsageError for a replica of more GPUs than a node has: no pod or container spans nodes; and for other engines than these."""
    for server in servers:
        if engines and server.engine not in engines:
            raise UsageError(f"--emit {kind} starts {' or '.join(engines)}, not {server.engine}: --emit vllm, compose and k8s start both")
        d = server.deployment
        if d.links.nodes(d.gpus) > 1:
            raise UsageError(f"--emit {kind} writes replicas of one node; {d.gpus} GPUs are more: --emit vllm has the command")


def prefills(servers: Sequence[Server]) -> bool:
    """Whether some servers hand their prompts over to others."""
    return any(server.role == "prefill" for server in servers)


def download_bytes(d: Deployment) -> float:
    """Bytes of the checkpoint on disk: as it stores its weights, else 16 bits each, whatever they are quantised to while loading."""
    if stored(d.model, d.precision.weights) is not None:
        return resident_weight_bytes(d.model, d.precision)
    return d.model.resident_bytes(SIXTEEN_BYTES)


def storage_gib(server: Server) -> int:
    """GiB of disk for the weights, with room for the files beside them."""
    return int(1.2 * download_bytes(server.deployment) / 2**30) + 10


def startup_s(server: Server) -> int:
    """Seconds that a server may take to its first answer: a slow download, then loading, compiling and capturing graphs."""
    return int(download_bytes(server.deployment) / DOWNLOAD_BYTES_PER_S) + LOADING_S


def yaml_documents(documents: Sequence[dict[str, Any]]) -> str:
    """YAML documents, what is said twice written out."""
    import yaml

    class Plain(yaml.SafeDumper):
        """Knows no references."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump_all(documents, Dumper=Plain, sort_keys=False, width=120)


def settings(flags: Sequence[str]) -> dict[str, Any]:
    """Flags as the engine's own arguments by name, their values as YAML has them."""
    found: dict[str, Any] = {}
    rest = list(flags)
    while rest:
        name = rest.pop(0).removeprefix("--")
        if rest and not rest[0].startswith("--"):
            found[name.replace("-", "_")] = _value(rest.pop(0))
        else:
            found[name.removeprefix("no-").replace("-", "_")] = not name.startswith("no-")
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

"""Deployment files: what a `vllm serve` or SGLang command, docker compose, Kubernetes, KServe, llm-d, Dynamo or Ray file says of a server.

Read as defaults of the command's own options, so that what the command line says wins. What the file says that an answer would depend on
and that no option here stands for is named; what only concerns names, ports and logs is passed over.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.files import text_of
from sim.yaml_text import read_yaml

MOST_BYTES = 1 << 18
SERVERS = {
    "vllm": r"\bvllm\s+serve\b|vllm\.entrypoints|\bdynamo\.vllm\b|\brun\b.*\bvllm/vllm-openai\b",
    "sglang": r"\bsglang\s+serve\b|sglang\.launch_server|\bdynamo\.sglang\b",
}
IMAGES = re.compile(r"(^|/)(vllm/vllm-openai|lmsysorg/sglang)(:|@|$)")
PRODUCTS = (
    "simctl/gpu",
    "accelerator_type",
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "gpu.nvidia.com/class",
    "accelerator",
)
COUNTS = ("nvidia.com/gpu", "amd.com/gpu", "gpu")
NO_MATTER = re.compile(
    r"m|host|port|uds|served-model-name|model-name|api-key|trust-remote-code|download-dir|tokenizer.*|chat-template.*|.*log.*|revision|seed|"
    r"root-path|allowed-.*|ssl-.*|enable-auto-tool-choice|tool-call-parser|reasoning-parser|uvicorn.*|response-role|load-format|"
    r"middleware|lora-modules|enable-metrics|model-id|model-dir|is-prefill-worker|is-decode-worker|stream-interval"
)


def _text(value: str) -> str:
    return value


def _dtype(value: str) -> str | None:
    return {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "auto": None}.get(value, value)


def _kv(value: str) -> str | None:
    return "fp8" if value.startswith("fp8") else _dtype(value)


def _quantization(value: str) -> str | None:
    return "fp8" if value == "fp8" else None  # others are the checkpoint's own


Reader = Callable[[str], Any]
SHARED: dict[str, tuple[str, Reader]] = {
    "tensor-parallel-size": ("tp", int),
    "tp": ("tp", int),
    "pipeline-parallel-size": ("pipeline_parallel_size", int),
    "pp": ("pipeline_parallel_size", int),
    "data-parallel-size": ("data_parallel_size", int),
    "dp": ("data_parallel_size", int),
    "dtype": ("dtype", _dtype),
    "quantization": ("dtype", _quantization),
    "kv-cache-dtype": ("kv_dtype", _kv),
}
FLAGS: dict[str, dict[str, tuple[str, Reader]]] = {
    "vllm": SHARED
    | {
        "model": ("model", _text),
        "model_id": ("model", _text),
        "max-num-seqs": ("max_num_seqs", _text),
        "max-num-batched-tokens": ("max_num_batched_tokens", int),
        "max-model-len": ("max_model_len", _text),
        "gpu-memory-utilization": ("gpu_memory_utilization", _text),
        "block-size": ("block_size", int),
        "long-prefill-token-threshold": ("long_prefill_token_threshold", int),
        "scheduling-policy": ("policy", _text),
        "num-gpu-blocks-override": ("num_gpu_blocks", int),
        "kv-offloading-size": ("kv_offloading_size", float),
        "prefill-schedule-interval": ("prefill_schedule_interval", int),
        "max-lora-rank": ("max_lora_rank", int),
        "max-loras": ("max_loras", int),
    },
    "sglang": SHARED
    | {
        "model-path": ("model", _text),
        "model": ("model", _text),
        "tp-size": ("tp", int),
        "dp-size": ("data_parallel_size", int),
        "max-running-requests": ("max_num_seqs", _text),
        "chunked-prefill-size": ("max_num_batched_tokens", int),
        "context-length": ("max_model_len", _text),
        "mem-fraction-static": ("gpu_memory_utilization", _text),
        "page-size": ("block_size", int),
    },
}
SWITCHES: dict[str, tuple[str, Any]] = {
    "enable-expert-parallel": ("enable_expert_parallel", True),
    "enable-prefix-caching": ("enable_prefix_caching", True),
    "no-enable-prefix-caching": ("enable_prefix_caching", False),
    "disable-radix-cache": ("enable_prefix_caching", False),
    "enable-chunked-prefill": ("enable_chunked_prefill", True),
    "no-enable-chunked-prefill": ("enable_chunked_prefill", False),
    "enforce-eager": ("enforce_eager", True),
    "enable-lora": ("enable_lora", True),
    "no-async-scheduling": ("engine_option", ["async_scheduling=false"]),
}
# How a proxy in front is told to route -> our routers
FRONTS = (
    (r"vllm-router\b.*\s--policy[\s']+(\w+)", {"random": "random", "power_of_two": "power-of-two", "cache_aware": "prefix-affinity"}),
    (r"--router-mode['\s-]+([\w-]+)", {"random": "random", "power-of-two": "power-of-two", "least-loaded": "least-requests"}),
)
SIZES = {
    "tensor": "tp",
    "pipeline": "pipeline_parallel_size",
    "data": "data_parallel_size",
    "expert": "enable_expert_parallel",
}
DRAFTERS = {"ngram": "ngram", "eagle": "eagle", "eagle3": "eagle", "mtp": "eagle", "draft_model": "draft_model"}


@dataclass(slots=True)
class Found:
    """Options by parameter name, and what the file says beyond them."""

    options: dict[str, Any] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def read_deployment(path: Path) -> Found:
    """Settings of a deployment file. UsageError where no server is in it, or a value is none; OSError when it cannot be read."""
    text = text_of(path, MOST_BYTES, path.name)
    if (engine := _engine(re.sub(r"\\\s*\n", " ", text))) and not re.search(r"^\s*[\w.-]+:(\s|$)", text, re.MULTILINE):
        found = _server(path.name, [(engine, _words(path.name, text))], Found())
    else:
        found = read_server(path.name, documents_of(path.name, text))
    found.options |= {"router": router} if (router := front_of(text)) else {}
    return found


def front_of(text: str) -> str | None:
    """Our router for how a proxy in this text is told to route; None where it says nothing, or what we take anyway."""
    fronts = ((re.search(pattern, text), names) for pattern, names in FRONTS)
    return next((names[front[1]] for front, names in fronts if front and front[1] in names), None)


def documents_of(name: str, text: str) -> list[Any]:
    """The documents of a YAML text."""
    return [read_yaml(each, name) for each in re.split(r"^---\s*$", text, flags=re.MULTILINE) if each.strip()]


def read_server(name: str, documents: Sequence[Any]) -> Found:
    """Settings of the first server in these documents, and what they say around it. UsageError as of `read_deployment`."""
    found, commands = Found(), []
    for document in documents:
        commands += commands_of(name, document)
        _around(name, document, found)
    if not commands:
        raise UsageError(f"{name}: no `vllm serve` or SGLang server in it: neither a command line nor args of a container")
    return _server(name, commands, found)


def _server(name: str, commands: Sequence[tuple[str, list[str]]], found: Found) -> Found:
    engine, words = commands[0]
    found.options["engine"] = engine
    _flags(name, engine, words, found)
    same = sum(each == words for _, each in commands)
    if same > 1:  # one service a replica
        found.options["replicas"] = same
    found.unused += [f"another server ({' '.join(each[:4])} ...: --fleet reads all)" for _, each in commands[1:] if each != words]
    if "model" not in found.options:
        raise UsageError(f"{name}: its server names no model")
    _check_gpus(found)
    return found


def _engine(text: str) -> str | None:
    return next((name for name, pattern in SERVERS.items() if re.search(pattern, text)), None)


def _words(name: str, text: str) -> list[str]:
    """Words of the command line in a text, its continued lines joined."""
    lines = re.sub(r"\\\s*\n", " ", text).splitlines()
    line = next((each for each in lines if _engine(each) and not each.lstrip().startswith("#")), lines[0])
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{name}: its command line: {error}") from None
    image = next((i for i, word in enumerate(words) if IMAGES.search(word)), -1)
    return words[image + 1 :]  # what stands before is docker's


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings of a document, the outer first."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(each)


def commands_of(name: str, document: Any) -> list[tuple[str, list[str]]]:
    """Servers among a document's containers: command and args of each, with the engine that they, or its image, name."""
    found = []
    for each in walk(document):
        words: list[str] = []
        for part in (each.get("command"), each.get("args")):
            words += (
                _words(name, part)
                if isinstance(part, str) and part.strip()
                else [str(word) for word in part]
                if isinstance(part, list)
                else []
            )
        if (len(words) >= 3 and words[-2:-1] == ["-c"]) or (words and "\n" in words[-1]):
            words = _words(name, words[-1])
        image = str(each.get("image", ""))
        if "dynamo.frontend" in words:  # routes, in the engine's image
            continue
        if isinstance(each.get("engine_kwargs"), dict):
            loading = each.get("model_loading_config")
            source = (loading.get("model_source") or loading.get("model_id")) if isinstance(loading, dict) else None
            found.append(("vllm", [*(["--model", str(source)] if source else []), *_flags_of(each["engine_kwargs"])]))
            continue
        engine = _engine(" ".join(words)) or next((engine for engine in SERVERS if engine in image), None)
        kind = each.get("modelFormat")
        if engine is None and isinstance(kind, dict) and kind.get("name") in ("huggingface", "vLLM", "vllm"):
            engine = "vllm"
        if engine and (words or each.get("storageUri")):
            uri = str(each.get("storageUri", ""))
            found.append((engine, words + (["--model", uri.removeprefix("hf://")] if uri.startswith("hf://") else [])))
    return found


def _flags_of(arguments: Mapping[str, Any]) -> list[str]:
    """An engine's arguments by name, as flags."""
    words: list[str] = []
    for name, value in arguments.items():
        flag = str(name).replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return words


def _around(name: str, document: Any, found: Found) -> None:
    """Settings outside of containers: the GPU's name, how many, replicas, parallelism, and where weights come from."""
    for each in walk(document):
        for key in PRODUCTS:
            if isinstance(each.get(key), str):
                found.options.setdefault("gpu", each[key])
        for key in COUNTS:
            if str(each.get(key, "")).isdigit():
                found.options.setdefault("gpus", int(each[key]))
        own = each if isinstance(each.get("replicas"), int) else each.get("deployment_config") or each.get("deploy") or each
        for key in ("replicas", "minReplicas", "num_replicas"):  # of what holds the server, not of a router beside it
            if isinstance(own, dict) and isinstance(own.get(key), int) and own[key] > 0 and commands_of(name, each):
                found.options.setdefault("replicas", own[key])
        if isinstance(each.get("maxReplicas"), int):
            found.unused.append(f"maxReplicas {each['maxReplicas']} (autoscaling: a fleet file's `scaling`)")
        sizes = each.get("parallelism")
        for key, size in sizes.items() if isinstance(sizes, dict) else ():
            if key in SIZES and isinstance(size, int):
                found.options.setdefault(SIZES[key], size)
            elif size not in (1, False, None):
                found.unused.append(f"parallelism {key} {size}")
        if isinstance(each.get("nodeCount"), int) and each["nodeCount"] > 1:
            found.unused.append(f"nodeCount {each['nodeCount']} (--parallel topology=FILE)")
        uri = each.get("uri")
        if isinstance(uri, str) and uri.startswith("hf://"):
            found.options.setdefault("model", uri.removeprefix("hf://"))
        if isinstance(each.get("prefill"), dict) and each["prefill"].get("replicas"):
            found.unused.append(f"prefill of {each['prefill']['replicas']} replicas (--fleet reads both)")


def _flags(name: str, engine: str, words: list[str], found: Found) -> None:
    """Options of a server's words; a word before any option, after `serve`, is the model."""
    known = FLAGS[engine]
    rest, before = list(words), ""
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if "model" not in found.options and (before == "serve" or ("/" in word and not word.startswith(("/", "./")))):
                _model(word, found)
            before = word
            continue
        flag, equals, value = word.lstrip("-").partition("=")
        flag = flag if flag == "model_id" else flag.replace("_", "-")
        if flag in SWITCHES and not (equals and value.lower() == "false"):
            option, setting = SWITCHES[flag]
            found.options[option] = setting
            continue
        if not equals and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        if flag == "speculative-config":
            _drafts(name, value, found)
        elif flag in known and known[flag][0] == "model":
            _model(value, found)
        elif flag in known:
            option, read = known[flag]
            try:
                setting = read(value)
            except ValueError:
                raise UsageError(f"{name}: --{flag} is no number: {value[:40]!r}") from None
            if setting is not None:
                found.options[option] = setting
            elif flag == "quantization":
                found.unused.append(f"--quantization {value} (the checkpoint's own is taken)")
        elif not NO_MATTER.fullmatch(flag):
            found.unused.append(f"--{flag}")


def _model(value: str, found: Found) -> None:
    """A model by its repository; of a folder that is not here, what it is called, unless the file names one elsewhere."""
    if not value.startswith(("/", "./", "~")) or Path(value).exists():
        found.options["model"] = value
    elif "model" not in found.options:
        found.options["model"] = Path(value).name
        found.unused.append(f"the folder {value} (its name is taken for the model's)")


def _drafts(name: str, text: str, found: Found) -> None:
    try:
        said = json.loads(text)
        drafts = int(said["num_speculative_tokens"])
        method = str(said.get("method") or ("draft_model" if said.get("model") else "ngram"))
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{name}: --speculative-config needs num_speculative_tokens in a JSON object") from None
    if method not in DRAFTERS:
        found.unused.append(f"--speculative-config of method {method}")
        return
    options = [f"draft_tokens={drafts}", f"drafter={DRAFTERS[method]}"]
    found.options["engine_option"] = [*found.options.get("engine_option", []), *options]
    if method == "draft_model" and said.get("model"):
        found.options["draft_model"] = str(said["model"])


def _check_gpus(found: Found) -> None:
    """GPUs that the file asks for beside those that the engine uses."""
    options = found.options
    asked = options.pop("gpus", None)
    used = options.get("tp", 1) * options.get("pipeline_parallel_size", 1) * options.get("data_parallel_size", 1)
    if asked is not None and asked != used:
        found.unused.append(f"{asked} GPUs are asked for, and {used} used")


def defaults_for(found: Found, known: set[str]) -> tuple[Mapping[str, Any], list[str]]:
    """(defaults of a command with these parameters, what it does not use of the file)."""
    strange = [f"{name.replace('_', '-')} {value}" for name, value in found.options.items() if name not in known and name != "replicas"]
    strange += [f"replicas {found.options['replicas']}"] if found.options.get("replicas", 1) > 1 and "replicas" not in known else []
    return {name: value for name, value in found.options.items() if name in known}, found.unused + strange

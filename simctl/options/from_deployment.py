"""Deployment files: what the command of a server (vLLM, SGLang, llama.cpp), vLLM's configuration file, docker compose, Kubernetes, KServe,
llm-d, Dynamo or Ray say of it.

Read as defaults of the command's own options, so that what the command line says wins. What the file says that an answer would depend on
and that no option here stands for is named; what only concerns names, ports and logs is passed over.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.engine.server_flags import FLAGS, read_flag, split_flags
from sim.engine.versions import NEWEST
from sim.errors import UsageError
from sim.files import text_of
from sim.yaml_text import read_yaml

MOST_BYTES = 1 << 18
SERVERS = {
    "vllm": r"\bvllm\s+serve\b|vllm\.entrypoints|\bdynamo\.vllm\b|\brun\b.*\bvllm/vllm-openai\b",
    "sglang": r"\bsglang\s+serve\b|sglang\.launch_server|\bdynamo\.sglang\b",
    "llamacpp": r"\bllama-server\b|\bllama\.cpp:(server|full)",
}
VERSIONS = {"apps": ("v1",), "serving.kserve.io": ("v1alpha1", "v1alpha2", "v1beta1"), "nvidia.com": ("v1alpha1", "v1beta1")}
IMAGES = re.compile(r"(^|/)(vllm/vllm-openai|lmsysorg/sglang|llama\.cpp)(:|@|$)")
VERSION = re.compile(r"vllm/vllm-openai:v?(\d+\.\d+(?:\.\d+)?)")
# Variables of an engine, and those that change no time: keys, logs, caches, where it listens
VARIABLES = re.compile(
    r"\b((?:VLLM|SGLANG|SGL|NCCL|TORCH|LLAMA_ARG)_(?!API_KEY|LOGG|CONFIGURE_LOGG|USE_V1|HOST|PORT|NO_USAGE|DO_NOT|CONFIG_ROOT)(?!\w*CACHE)\w+)"
)
PRODUCTS = (
    "simctl/gpu",
    "accelerator_type",
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "gpu.nvidia.com/class",
    "accelerator",
)
COUNTS = ("nvidia.com/gpu", "amd.com/gpu", "gpu")
# How a proxy in front is set to route -> our routers
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


@dataclass(slots=True)
class Found:
    """Options by parameter name, and what the file says beyond them."""

    options: dict[str, Any] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def read_deployment(path: Path) -> Found:
    """Settings of a deployment file. UsageError where no server is in it, or a value is none; OSError when it cannot be read."""
    text = text_of(path, MOST_BYTES, path.name)
    if (engine := _engine(re.sub(r"\\\s*\n", " ", text))) and not re.search(r"^\s*[\w.-]+:(\s|$)", text, re.MULTILINE):
        found = Found(unused=list(dict.fromkeys(VARIABLES.findall(re.sub(r"^\s*#.*", "", text, flags=re.MULTILINE)))))
        found = _server(path.name, [(engine, _with_config(path, _words(path.name, text)))], found)
    else:
        found = read_server(path.name, documents_of(path.name, text))
    found.options |= {"router": router} if (router := front_of(text)) else {}
    return found


def _with_config(path: Path, words: list[str]) -> list[str]:
    """The words, before them those of the YAML file that `--config` names beside this one."""
    for i, word in enumerate(words):
        file = (
            word.removeprefix("--config=")
            if word.startswith("--config=")
            else words[i + 1]
            if word == "--config" and words[i + 1 :]
            else ""
        )
        if file and (beside := path.parent / file).is_file():
            settings = read_yaml(text_of(beside, MOST_BYTES, file), file)
            if not isinstance(settings, dict):
                raise UsageError(f"{file}: must be a mapping of flags")
            return _flags_of(settings) + words[:i] + words[i + (1 if "=" in word else 2) :]
    return words


def front_of(text: str) -> str | None:
    """Our router for how a proxy in this text is set to route; None where it says nothing, or what we take anyway."""
    fronts = ((re.search(pattern, text), names) for pattern, names in FRONTS)
    return next((names[front[1]] for front, names in fronts if front and front[1] in names), None)


def documents_of(name: str, text: str) -> list[Any]:
    """The documents of a YAML text. UsageError for a version of a known API that is not read."""
    documents = [read_yaml(each, name) for each in re.split(r"^---\s*$", text, flags=re.MULTILINE) if each.strip()]
    for document in documents:
        group, _, version = str(document.get("apiVersion", "") if isinstance(document, dict) else "").rpartition("/")
        if version not in VERSIONS.get(group, (version,)):
            raise UsageError(f"{name}: {group}/{version} is not read; versions read are {', '.join(VERSIONS[group])}")
    return documents


def read_server(name: str, documents: Sequence[Any]) -> Found:
    """Settings of the first server in these documents, and what they say around it. UsageError as of `read_deployment`."""
    found, commands = Found(), []
    for document in documents:
        commands += commands_of(name, document)
        _around(name, document, found)
    if not commands and len(documents) == 1 and isinstance(documents[0], dict):  # the file of --config alone
        words = _flags_of(documents[0])
        commands = [(engine, words) for engine, key in (("vllm", "--model"), ("sglang", "--model-path")) if key in words]
    if not commands:
        raise UsageError(f"{name}: no `vllm serve`, SGLang or llama-server in it: neither a command line nor args of a container")
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
    if engine == "sglang":
        _ranks_of_sglang(words, found)
    if engine == "llamacpp":
        _slots(found)
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
    version = VERSION.search(words[image]) if image >= 0 else None
    return words[image + 1 :] + _of_version(version)  # what stands before is docker's


def _of_version(image: re.Match[str] | None) -> list[str]:
    """The flag that says an image's version, where that is not the newest."""
    return ["--engine-version", image[1]] if image and not f"{image[1]}.".startswith(f"{NEWEST}.") else []


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
        engine = _engine(f"{' '.join(words)} {image}") or next((engine for engine in SERVERS if engine in image), None)
        kind = each.get("modelFormat")
        if engine is None and isinstance(kind, dict) and kind.get("name") in ("huggingface", "vLLM", "vllm"):
            engine = "vllm"
        if engine and (words or each.get("storageUri")):
            uri = str(each.get("storageUri", ""))
            words = words + (_of_version(VERSION.search(image)) if engine == "vllm" else [])
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
        if (most := str(each.get("simctl/max-prompt-tokens", ""))).isdigit():
            found.options.setdefault("max_prompt_tokens", int(most))
        if (said := each.get("environment") or each.get("env")) and commands_of(name, each):
            listed = said if isinstance(said, dict) else [v.get("name", "") if isinstance(v, dict) else v for v in said]
            found.unused += [match[1] for variable in listed if (match := VARIABLES.match(str(variable)))]
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
    before, known = "", FLAGS[engine]
    for flag, value in split_flags(engine, words):
        if not flag and value is not None:
            if "model" not in found.options and (before == "serve" or ("/" in value and not value.startswith(("/", "./")))):
                _model(value, found)
            before = value
        elif value is not None and known.get(flag, ("",))[0] == "model":
            _model(known[flag][1](value), found)
        elif unused := read_flag(name, engine, flag, value, found.options):
            found.unused.append(unused)
    if options := found.options.pop("options", None):
        found.options["engine_option"] = [f"{key}={str(setting).lower()}" for key, setting in options.items()]


def _model(value: str, found: Found) -> None:
    """A model by its repository; of a folder that is not here, what it is called, unless the file names one elsewhere."""
    if not value.startswith(("/", "./", "~")) or Path(value).exists():
        found.options["model"] = value
    elif "model" not in found.options:
        found.options["model"] = Path(value).name
        found.unused.append(f"the folder {value} (its name is taken for the model's)")


def _ranks_of_sglang(words: Sequence[str], found: Found) -> None:
    """SGLang's --dp-size is whole replicas or, with --enable-dp-attention, ranks among the GPUs of --tp-size."""
    ranks = found.options.pop("data_parallel_size", 1)
    if "--enable-dp-attention" in words:
        found.options |= {"tp": max(1, found.options.get("tp", 1) // ranks), "data_parallel_size": ranks}
        found.unused.remove("--enable-dp-attention")
    elif ranks > 1:
        found.options["replicas"] = ranks * found.options.get("replicas", 1)


def _slots(found: Found) -> None:
    """llama.cpp's context is that of all its slots; its file's name says the type of its weights."""
    o = found.options
    o["model"], _, kind = o["model"].partition(":")
    o |= {"dtype": {"f16": "fp16"}.get(kind, kind)} if kind else {}
    o.pop("all_layers", None)
    if o.get("max_model_len"):
        o["max_model_len"] = str(o["max_model_len"] // o.get("max_num_seqs", 1))


def _check_gpus(found: Found) -> None:
    """GPUs that the file asks for beside those that the engine uses."""
    options = found.options
    requested = options.pop("gpus", None)
    used = options.get("tp", 1) * options.get("pipeline_parallel_size", 1) * options.get("data_parallel_size", 1)
    if requested is not None and requested != used:
        found.unused.append(f"{requested} GPUs are asked for, and {used} used")


def defaults_for(found: Found, known: set[str]) -> tuple[Mapping[str, Any], list[str]]:
    """(defaults of a command with these parameters, what it does not use of the file)."""
    strange = [f"{name.replace('_', '-')} {value}" for name, value in found.options.items() if name not in known and name != "replicas"]
    strange += [f"replicas {found.options['replicas']}"] if found.options.get("replicas", 1) > 1 and "replicas" not in known else []
    return {name: value for name, value in found.options.items() if name in known}, found.unused + strange

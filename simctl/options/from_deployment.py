"""Deployment files: what the command of a server (vLLM, SGLang, llama.cpp), vLLM's configuration file, docker compose, Kubernetes, KServe,
llm-d, Dynamo or Ray say of it.

Read as defaults of the command's own options, so that what the command line says wins. What the file says that an answer would depend on
and that no option here stands for is named; what only concerns names, ports and logs is passed over.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.cluster.router import ROUTERS
from sim.engine.other_flags import SILENT
from sim.engine.registry import NOT_SIMULATED
from sim.engine.server_flags import FLAGS, read_flag, split_flags
from sim.engine.versions import NEWEST, known_version
from sim.errors import UsageError
from sim.files import text_of
from sim.specs.models import get_model, list_shapes
from sim.yaml_text import read_yaml
from simctl.options.deployment_forms import MORE_ARGUMENTS, canonical, environment, flags_of, with_config_maps, with_runtimes
from simctl.options.shell_text import MOST_BYTES, Command, commands, engine_in, environment_of, unset_in
from simctl.options.unit_files import dockerfile_commands, unit_commands

VERSIONS = {"apps": ("v1",), "serving.kserve.io": ("v1alpha1", "v1alpha2", "v1beta1"), "nvidia.com": ("v1alpha1", "v1beta1")}
VERSION = re.compile(r"(?:\bvllm-openai(?:-rocm)?[:_]v?|\bvllm(?:\[[\w,-]+\])?==|\brocm/vllm:\S*?vllm_)(\d+\.\d+(?:\.\d+)?)")
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
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
    "beta.amd.com/gpu.product-name",
    "amd.com/gpu.product-name",
    "accelerator",
)
COUNTS = ("nvidia.com/gpu", "amd.com/gpu", "gpu")
# What a file's name or text shows -> why it is not read
NOT_READ = {
    r"\A.*\.py$": "a Python program, which is not run: give a file with the command that it starts",
    r"\A.*\.pbtxt$": "a model of Triton, whose engine is built elsewhere: give the command of a vLLM, SGLang or llama.cpp server",
    r"\A.*\.(nomad|hcl|tf)$|^\s*(job|resource)\s+\".*\{\s*$": "HCL (Nomad, Terraform) is not read: give the command that it starts",
    r"^apiVersion:\s*kaito\.sh/": "a preset of KAITO brings settings of its own: give the command that its pod starts",
    r"nvidia\.com/gpu\.shared": "a card that several servers share (time slices) is not simulated; ask for the whole card",
    r"amazonaws\.com/neuron|aws\.amazon\.com/neuron|huawei\.com/Ascend": "Neuron and Ascend are not simulated",
    r"nvidia\.com/mig-\d|\bMIG-[0-9a-f]": (
        "a slice of a card (MIG) is not simulated; as a card of its own, a YAML file for --gpu describes it"
    ),
}
FOLDER = "the folder"
NO_SERVER = "no `vllm serve`, SGLang or llama-server in it: neither a command line nor args of a container"
POWER = "the rates are those of cards at their own limit; take it out to ask for that"
MOST_COPIES = 1024
ROLES = ("prefill", "decode")
LABELS = ("simctl/role", "llm-d.ai/role", "type", "subComponentType", "name")
OF_ONE = ("replicas", "minReplicas", "parallelism")  # what a mapping says of its own server, not of the prefill inside of it
SETS = "a .env beside the file may set it"
BLOCK = 16  # tokens, where no page size is said
LMCACHE_GB = 5.0  # host memory of a rank, where no setting gives it
# How a proxy in front is set to route -> our routers
PLANNED = re.compile(r"simctl/router[\"']?:\s*[\"']?([a-z-]+)")  # what a plan was made with
PLANNED_OPTIONS = re.compile(r"simctl/router-options[\"']?:\s*[\"']?([\w.,=-]+)")
FRONTS = (
    (r"vllm-router\b.*\s--policy[\s']+(\w+)", {"random": "random", "power_of_two": "power-of-two", "cache_aware": "vllm-router"}),
    (
        r"(?:--router-mode|DYN_ROUTER_MODE)(?:[\"'\s:=,-]|\bvalue:)+([\w-]+)",
        {"random": "random", "power-of-two": "power-of-two", "least-loaded": "least-requests", "kv": "dynamo"},
    ),
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
    servers = servers_of_text(path, text)
    if servers is None:
        documents = documents_of(path, text)
        roles = [role for document in documents for role, _ in servers_apart(path.name, document)]
        if "prefill" in roles and len(set(roles)) > 1:
            raise UsageError(f"{path.name}: prefill and decode are servers of their own: --fleet {path.name} reads both")
        words = [words for document in documents for _, words in commands_of(path.name, document)]
        found = read_server(path.name, documents)
    else:
        words = [each.words for each in servers]
        found = found_of(path, servers)
    if role := next(iter({role_of_words(each) for each in words}), None):
        raise UsageError(f"{path.name}: a server for {role} alone, which no request is served by: give the other one, too, and --fleet")
    if found.options["engine"] == "vllm" and "engine_version" not in found.options:  # of what is installed before it starts
        found.options |= _installed(re.sub(r"^\s*#.*", "", text, flags=re.MULTILINE))
    found.options |= front_of(text)
    return found


def _installed(text: str) -> dict[str, str]:
    """The version of vLLM that a text names once, where it is known and not the newest."""
    said = set(VERSION.findall(text))
    version = known_version(said.pop()) if len(said) == 1 else None
    return {"engine_version": version} if version and not f"{version}.".startswith(f"{NEWEST}.") else {}


def servers_of_text(path: Path, text: str) -> list[Command] | None:
    """Servers of a script, a unit, a Dockerfile or a command line; None for a document of YAML or JSON. UsageError for what is not read."""
    for pattern, what in NOT_READ.items():
        if re.search(pattern, f"{path.name}\n{text}", re.MULTILINE):
            raise UsageError(f"{path.name}: {what}")
    if re.search(r"^\s*(ExecStart\s*=|\[program:|\[Container\])", text, re.MULTILINE):
        return unit_commands(path.name, text, path.parent)
    if re.match(r"(\s*#.*\n|\s*ARG\s.*\n|\s*\n)*\s*FROM\s+\S", text):
        return dockerfile_commands(path.name, text, path.parent)
    script = text.startswith("#!") or path.suffix in (".sh", ".bash")
    if not script and re.search(r"^\s*(?:-\s+)?[\w./-]+:(\s|$)", text, re.MULTILINE) and not re.match(r"\s*(docker|podman|vllm)\s", text):
        return None
    if engine_in(re.sub(r"\\\s*\n", " ", text)) is None:
        return [] if script else None
    return commands(path.name, text, environment_of(path.parent))


def found_of(path: Path, servers: Sequence[Command]) -> Found:
    """Settings of the first of these servers, and how many start alike."""
    named = [match for each in servers for match in VARIABLES.findall(" ".join(each.variables))]
    text = re.sub(r"^\s*#.*", "", text_of(path, MOST_BYTES, path.name), flags=re.MULTILINE)
    if power := re.search(r"nvidia-smi\b.*(?:-pl|--power-limit)[\s=]+(\d+)", text):
        raise UsageError(f"{path.name}: nvidia-smi sets a power limit of {power[1]} W: {POWER}")
    found = Found(unused=list(dict.fromkeys([*VARIABLES.findall(text), *named])))
    if size := re.search(r"LMCACHE_MAX_LOCAL_CPU_SIZE=[\"']?(\d+(?:\.\d+)?)", text):
        found.options["lmcache_gb"] = float(size[1])
    if not servers:
        raise UsageError(f"{path.name}: {NO_SERVER}")
    if {"prefill", "decode"} <= {role_of_words(each.words) for each in servers}:
        raise UsageError(f"{path.name}: prefill and decode are servers of their own: --fleet {path.name} reads both")
    pairs = [
        (each.engine, _with_config(path, each.words) + _of_version(each.image))
        for each in servers
        for _ in range(min(each.copies, MOST_COPIES))
    ]
    return _server(path.name, pairs, found)


def _with_config(path: Path, words: list[str]) -> list[str]:
    """The words, before them those of the YAML file that `--config` names beside this one."""
    for i, word in enumerate(words):
        file = (
            word.removeprefix("--config=") if word.startswith("--config=") else "".join(words[i + 1 : i + 2]) if word == "--config" else ""
        )
        if file and (beside := path.parent / file).is_file():
            settings = read_yaml(text_of(beside, MOST_BYTES, file), file)
            if not isinstance(settings, dict):
                raise UsageError(f"{file}: must be a mapping of flags")
            return flags_of(settings) + words[:i] + words[i + (1 if "=" in word else 2) :]
    return words


def front_of(text: str) -> dict[str, Any]:
    """Our router and its settings, for how a proxy in this text is set to route; none where it says nothing, or what we take anyway."""
    own = {"router_option": said[1].split(",")} if (said := PLANNED_OPTIONS.search(text)) else {}
    if (planned := PLANNED.search(text)) and planned[1] in ROUTERS:
        return {"router": planned[1], **own}
    fronts = ((re.search(pattern, text), names) for pattern, names in FRONTS)
    return own | next(({"router": names[front[1]]} for front, names in fronts if front and front[1] in names), {})


def documents_of(path: Path, text: str) -> list[Any]:
    """The documents of a YAML text, their servers as containers. UsageError for a version of a known API that is not read."""
    name = path.name
    if re.search(r"\{\{(?!\s*\.(?:Name|Namespace|Annotations|Labels)\b).*\}\}", text) and "apiVersion" in text:  # those are KServe's own
        raise UsageError(f"{name}: a template of a Helm chart: give the chart's values, or what `helm template` prints")
    documents = [read_yaml(each, name) for each in re.split(r"^---\s*$", text, flags=re.MULTILINE) if each.strip()]
    for document in documents:
        group, _, version = str(document.get("apiVersion", "") if isinstance(document, dict) else "").rpartition("/")
        if version not in VERSIONS.get(group, (version,)):
            raise UsageError(f"{name}: {group}/{version} is not read; versions read are {', '.join(VERSIONS[group])}")
    return [canonical(name, document, path.parent) for document in with_runtimes(with_config_maps(documents))]


def read_server(name: str, documents: Sequence[Any]) -> Found:
    """Settings of the first server in these documents, and what they say around it. UsageError as of `read_deployment`."""
    found, servers = Found(), []
    for document in documents:
        servers += commands_of(name, document)
        _around(name, document, found)
    found.options |= _scaled_by(documents)
    if not servers:
        raise UsageError(f"{name}: {NO_SERVER}")
    return _server(name, servers, found)


def _scaled_by(documents: Sequence[Any]) -> dict[str, int]:
    """Replicas that an autoscaler of Kubernetes or KEDA starts with, whatever its Deployment says."""
    kinds = ("HorizontalPodAutoscaler", "ScaledObject")
    specs = [
        each["spec"] for each in documents if isinstance(each, dict) and each.get("kind") in kinds and isinstance(each.get("spec"), dict)
    ]
    least = [each.get("minReplicas", each.get("minReplicaCount")) for each in specs]
    return {"replicas": least[0]} if len(least) == 1 and isinstance(least[0], int) and least[0] > 0 else {}


def _server(name: str, servers: Sequence[tuple[str, list[str]]], found: Found) -> Found:
    servers = [each for each in servers if not _follows(each[1])] or servers
    engine, words = servers[0]
    if engine not in FLAGS:
        raise UsageError(f"{name}: {NOT_SIMULATED[engine]}")
    found.options["engine"] = engine
    _flags(name, engine, words, found)
    same = sum(each == words for _, each in servers)
    if same > 1:  # one service a replica
        found.options["replicas"] = same
    found.unused += [f"another server ({' '.join(each[:4])} ...: --fleet reads all)" for _, each in servers[1:] if each != words]
    if "model" not in found.options:
        raise UsageError(f"{name}: its server names no model")
    _settled(name, found)
    if engine == "sglang":
        _ranks_of_sglang(words, found)
    if engine == "llamacpp":
        _slots(name, found)
    _check_gpus(found)
    return found


def _follows(words: Sequence[str]) -> bool:
    """Whether these are the words of a further node of a replica, whose first one has them, too."""
    return re.search(r"--node-rank[ =][1-9]", " ".join(words)) is not None


def _settled(name: str, found: Found) -> None:
    """What depends on several settings: LMCache's host memory, a quantisation that the model's name does not say, variables nobody set."""
    o = found.options
    if (router := o.get("router", "random")) not in ROUTERS:
        if o.get("replicas", 1) > 1:
            raise UsageError(f"{name}: no router here is {router}: take it out of the file and choose one by --router NAME")
        del o["router"]
    seqs, most = str(o.get("max_num_seqs", "")), o.pop("most_at_once", None)
    if most and not (seqs.isdecimal() and int(seqs) <= most):
        o["max_num_seqs"] = str(most)
    for option, value in o.items():
        if isinstance(value, str) and (variable := unset_in(value)) is not None:
            raise UsageError(f"{name}: {option.replace('_', '-')}: {variable} is not set; {SETS}")
    if (flag := o.pop("positions", None)) is not None:
        if "max_model_len" not in o:
            raise UsageError(f"{name}: --{flag} changes positions: how long may a context be? --max-model-len N in the file says it")
        found.unused.append(f"--{flag} (positions alone: the length is --max-model-len's)")
    cached, size = o.pop("lmcache", False), o.pop("lmcache_gb", None)
    if cached:
        found.unused.append("LMCache's own rules (answered as vLLM's host tier of its size and chunks)")
    if cached and "kv_offloading_size" not in o:  # of each rank
        o["kv_offloading_size"] = (size or LMCACHE_GB) * o.get("tp", 1) * o.get("pipeline_parallel_size", 1)
    if (method := o.pop("quantization", None)) is None:
        return
    try:
        spec = get_model(o["model"])
    except UsageError:
        return  # said where the model is read
    if spec.checkpoint is not None or spec.expert_bits is not None:
        found.unused.append(f"--quantization {method} (the checkpoint's own is taken)")
    elif method == "bitsandbytes":
        o["dtype"] = "int4"
    else:
        raise UsageError(
            f"{name}: --quantization {method}: {o['model']} has weights of 16 bits by its name: name the checkpoint, or --dtype int4"
        )


def role_of_words(words: Sequence[str]) -> str | None:
    """prefill or decode, where a server's flags give it one of these: --disaggregation-mode, kv_role, Dynamo's older switches."""
    text = " ".join(words)
    if match := re.search(r"--disaggregation-mode[\s=]+(prefill|decode)\b", text):
        return match[1]
    if match := re.search(r"--is-(prefill|decode)-worker\b", text):
        return match[1]
    match = re.search(r"[\"']?kv_role[\"']?\s*[:=]\s*[\"']?kv_(producer|consumer)", text)
    return {"producer": "prefill", "consumer": "decode"}[match[1]] if match else None


def servers_apart(name: str, value: Any, role: str = "") -> Iterator[tuple[str, Any]]:
    """(role, part of the document with one server alone), the server's siblings that hold none with it."""
    servers = commands_of(name, value)
    if len(servers) == 1:
        yield role or role_of_words(servers[0][1]) or _role(value), value
    elif isinstance(value, list):
        for each in value:
            yield from servers_apart(name, each, role)
    elif isinstance(value, dict) and servers:
        holding = {key: each for key, each in value.items() if commands_of(name, each)}
        siblings = {key: each for key, each in value.items() if key not in holding}
        split = any(str(key).startswith("prefill") for key in holding)
        for key, each in holding.items():
            inner = "prefill" if str(key).startswith("prefill") else "decode" if split else role
            kept = {k: v for k, v in siblings.items() if inner != "prefill" or k not in OF_ONE}
            for kind, part in servers_apart(name, each, inner):
                yield kind, {**kept, key: part}


def _role(value: Any) -> str:
    labelled = (str(each[label]) for each in walk(value) for label in LABELS if each.get(label) in ROLES)
    return next(labelled, "serve")


def _of_version(said: str) -> list[str]:
    """The flag that says the version of an image of vLLM, where that is not the newest."""
    image = VERSION.search(said)
    return ["--engine-version", image[1]] if image and not f"{image[1]}.".startswith(f"{NEWEST}.") else []


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings of a document, the outer first."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(each)


def commands_of(name: str, document: Any) -> list[tuple[str, list[str]]]:
    """Servers among a document's containers: command and args of each, with the engine that they, or its image, name."""
    found: list[tuple[str, list[str]]] = []
    for each in walk(document):
        if isinstance(each.get("engine_kwargs"), dict):
            loading = each.get("model_loading_config")
            source = (loading.get("model_source") or loading.get("model_id")) if isinstance(loading, dict) else None
            found.append(("vllm", [*(["--model", str(source)] if source else []), *flags_of(each["engine_kwargs"])]))
            continue
        found += _of_container(name, each)
    return found


def _of_container(name: str, each: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The server of a container: by its command and arguments, else by its image or KServe's format."""
    parts = [each.get("command"), each.get("args")]
    words = [word for part in parts for word in _words_of(name, part)]
    image = str(each.get("image", ""))
    if (other := engine_in(image)) in NOT_SIMULATED:
        return [(str(other), words)]
    if (
        any(re.match(r"dynamo\.(?!vllm|sglang|trtllm)", word) for word in words)
        or (words and re.fullmatch(r"(.*/)?(ba)?sh", words[0]) and not engine_in(" ".join(words)))
        or (not words and "model" not in each and not each.get("storageUri"))
    ):
        return []
    variables = environment(each)
    version = _of_version(image)
    script = next((word for word in words if engine_in(word) and re.search(r"\s", word.strip())), None)
    if script is not None:
        servers = commands(name, script, variables)
        return [(one.engine, one.words + (version if one.engine == "vllm" else [])) for one in servers]
    engine = engine_in(f"{' '.join(words)} {image}") or next((engine for engine in FLAGS if engine in image), None)
    kind = each.get("modelFormat")
    if engine is None and isinstance(kind, dict) and kind.get("name") in ("huggingface", "vLLM", "vllm"):
        engine = "vllm"
    uri = str(each.get("storageUri", ""))
    if engine is None or not (words or uri):
        return []
    plain = commands(name, shlex.join(words), variables) if words else []
    words = plain[0].words if plain else words
    weights = ["--model", _of_uri(uri)] if uri else []
    return [(engine, words + (version if engine == "vllm" else []) + weights)]


def _of_uri(uri: str) -> str:
    """The model that a place holds: its repository, what an image is tagged with, or the last folder."""
    if uri.startswith("hf://"):
        return uri.removeprefix("hf://")
    last = uri.rstrip("/").rpartition("/")[2]
    return last.partition(":")[2] or last if uri.startswith("oci://") else last


def _words_of(name: str, part: Any) -> list[str]:
    if isinstance(part, list):
        return [str(word) for word in part]
    if not isinstance(part, str) or not part.strip():
        return []
    try:
        return shlex.split(re.sub(r"\\\s*\n", " ", part), comments=True)
    except ValueError as error:
        raise UsageError(f"{name}: its command line: {error}") from None


def _around(name: str, document: Any, found: Found) -> None:
    """Settings outside of containers: the GPU's name, how many, replicas, parallelism, and where weights come from."""
    for each in walk(document):
        for key in PRODUCTS:
            if isinstance(each.get(key), str):
                found.options.setdefault("gpu", each[key])
        for key in COUNTS:
            if str(each.get(key, "")).isdigit():
                found.options.setdefault("gpus", int(each[key]))
        if isinstance(each.get("devices"), list):  # compose's
            for device in each["devices"]:
                ids = device.get("device_ids") if isinstance(device, dict) else None
                if isinstance(ids, list) or (isinstance(device, dict) and str(device.get("count", "")).isdigit()):
                    found.options.setdefault("gpus", len(ids) if isinstance(ids, list) else int(device["count"]))
        if re.fullmatch(r"\d+(\.\d+)?", size := environment(each).get("LMCACHE_MAX_LOCAL_CPU_SIZE", "")):
            found.options.setdefault("lmcache_gb", float(size))
        if isinstance(each.get("router"), str) and (each["router"] in ROUTERS or "services" in each):  # a chart's, beside its servers
            found.options.setdefault("router", each["router"])
        if isinstance(each.get("gpus-of-a-group"), int):
            found.options.setdefault("gpus_of_a_group", each["gpus-of-a-group"])
        if (most := str(each.get("simctl/max-prompt-tokens", ""))).isdigit():
            found.options.setdefault("max_prompt_tokens", int(most))
        if (said := each.get("environment") or each.get("env")) and commands_of(name, each):
            every = said if isinstance(said, dict | list) else [said]
            listed = [each.get("name", "") if isinstance(each, dict) else each for each in every]
            names = [match[1] for variable in listed if (match := VARIABLES.match(str(variable)))]
            found.unused += [variable for variable in names if variable not in (*MORE_ARGUMENTS, *found.unused)]
        if isinstance(each.get("lora_config"), dict) and "enable_lora" not in (each.get("engine_kwargs") or {}):  # Ray's
            found.unused.append("lora_config (adapters: engine_kwargs with enable_lora and max_loras say what is loaded at once)")
        bound = each["deployment_config"].get("max_ongoing_requests") if isinstance(each.get("deployment_config"), dict) else None
        if isinstance(bound, int) and bound > 0:  # Ray's, of a replica
            found.options.setdefault("most_at_once", bound)
        _replicas_around(name, each, found)
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


def _replicas_around(name: str, each: Mapping[str, Any], found: Found) -> None:
    own = each if isinstance(each.get("replicas"), int) else each.get("deployment_config") or each.get("deploy") or each
    if isinstance(own, dict) and isinstance(own.get("autoscaling_config"), dict):
        own = {
            "minReplicas": own["autoscaling_config"].get("min_replicas"),
            "maxReplicas": own["autoscaling_config"].get("max_replicas"),
        }
    for key in ("replicas", "minReplicas", "num_replicas", "replicaCount"):  # of what holds the server, not of a router beside it
        if isinstance(own, dict) and isinstance(own.get(key), int) and own[key] > 0 and commands_of(name, each):
            if each.get("name") in ROLES:  # of a group of roles, of which there may be several
                found.options["replicas"] = own[key] * found.options.get("replicas", 1)
            found.options.setdefault("replicas", own[key])
    scaled = own if isinstance(own, dict) and "maxReplicas" in own else each
    if isinstance(scaled.get("maxReplicas"), int) and scaled["maxReplicas"] != scaled.get("minReplicas"):
        said = f"maxReplicas {scaled['maxReplicas']} (autoscaling: a fleet file's `scaling`)"
        found.unused += [said] if said not in found.unused else []


def _flags(name: str, engine: str, words: list[str], found: Found) -> None:
    """Options of a server's words; a word before any option, after `serve`, is the model, and so is a first one of the catalogue."""
    before, known = "", FLAGS[engine]
    for flag, value in split_flags(engine, words):
        if not flag and value is not None:
            named = before == "serve" or ("/" in value and not value.startswith(("/", "./")))
            if "model" not in found.options and (named or (value == words[0] and value in list_shapes())):
                _model(value, found)
            before = value
        elif value and not SILENT.fullmatch(flag) and (variable := unset_in(value)) is not None:
            raise UsageError(f"{name}: --{flag}: {variable} is not set; {SETS}")
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
        found.unused = [said for said in found.unused if not said.startswith(FOLDER)]
    elif "model" not in found.options:
        found.options["model"] = Path(value).name
        found.unused.append(f"{FOLDER} {value} (its name is taken for the model's)")


def _ranks_of_sglang(words: Sequence[str], found: Found) -> None:
    """SGLang's --dp-size is whole replicas or, with --enable-dp-attention, ranks among the GPUs of --tp-size."""
    ranks = found.options.pop("data_parallel_size", 1)
    if "--enable-dp-attention" in words:  # no option of its own
        found.options |= {"tp": max(1, found.options.get("tp", 1) // ranks), "data_parallel_size": ranks}
    elif ranks > 1:
        found.options["replicas"] = ranks * found.options.get("replicas", 1)
    if tokens := found.options.pop("max_total_tokens", None):  # of its pool, in place of what memory leaves
        found.options["num_gpu_blocks"] = max(2, tokens // found.options.get("block_size", BLOCK))


def _slots(name: str, found: Found) -> None:
    """llama.cpp's context is that of all its slots; its file's name says the type of its weights. UsageError where keys and values of the
    cache have different types.
    """
    o = found.options
    keys, values = o.pop("key_dtype", "fp16"), o.pop("value_dtype", "fp16")
    if keys != values:
        raise UsageError(f"{name}: a cache of keys in {keys} and values in {values} is not simulated: give --ctk and --ctv one type")
    o |= {} if keys == "fp16" else {"kv_dtype": keys}
    o["model"], _, kind = o["model"].partition(":")
    o |= {"dtype": {"f16": "fp16"}.get(kind, kind)} if kind else {}
    o.pop("all_layers", None)
    if o.get("max_model_len") and "kv_unified=true" not in o.get("engine_option", ()):  # with it, a slot may have all
        o["max_model_len"] = str(o["max_model_len"] // o.get("max_num_seqs", 1))


def _check_gpus(found: Found) -> None:
    """GPUs that the file asks for beside those that the engine uses."""
    options = found.options
    options.pop("lmcache_gb", None)
    requested = options.pop("gpus", None)
    used = options.get("tp", 1) * options.get("pipeline_parallel_size", 1) * options.get("data_parallel_size", 1)
    if (group := options.pop("gpus_of_a_group", 1)) > 1 and requested is not None:
        requested *= group
    if requested is not None and requested != used:
        found.unused.append(f"{requested} GPUs are asked for, and {used} used")


def listing(name: str, servers: Sequence[tuple[str, Mapping[str, Any]]], unused: Sequence[str]) -> list[str]:
    """Three lines at most on what was taken of a file: its servers, their settings, and what was let be."""
    heads, rest = [], []
    for label, options in servers:
        gpus = options.get("tp", 1) * options.get("pipeline_parallel_size", 1) * options.get("data_parallel_size", 1)
        place = f" on {gpus} x {options['gpu']}" if "gpu" in options else ""
        several = f"{options['replicas']} replicas of " if options.get("replicas", 1) > 1 else ""
        heads.append(f"{label}{several}{options.get('model', '')} ({options.get('engine', 'vllm')}){place}")
        said = [
            f"{key.replace('_', '-')} {_shown(value)}"
            for key, value in options.items()
            if key not in ("model", "engine", "gpu", "replicas")
        ]
        rest.append(f"{label}{', '.join(said) or 'defaults'}")
    lines = [f"{name}: {'; '.join(heads)}", f"{name}: taken: {'; '.join(rest)}"]
    return [*lines, f"{name}: not used: {', '.join(unused)}"] if unused else lines


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def defaults_for(found: Found, known: set[str]) -> tuple[Mapping[str, Any], list[str]]:
    """(defaults of a command with these parameters, what it does not use of the file)."""
    strange = [f"{name.replace('_', '-')} {value}" for name, value in found.options.items() if name not in known and name != "replicas"]
    strange += [f"replicas {found.options['replicas']}"] if found.options.get("replicas", 1) > 1 and "replicas" not in known else []
    return {name: value for name, value in found.options.items() if name in known}, found.unused + strange

"""Deployment files as plain containers: variables put in, and the forms of charts, KServe, llm-d and Ray turned into `command` and `args`.

Forms read: docker compose (extension fields, entrypoint, `env_file`), Helm values of vLLM's production stack and of llm-d's model service,
KServe InferenceService and LLMInferenceService, Dynamo graphs, Ray Serve LLM (alone, or in a RayService), SkyPilot tasks, llama-swap,
an engine's own --config file, plain Kubernetes objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sim.errors import UsageError
from sim.files import text_of
from sim.yaml_text import read_yaml
from simctl.options.shell_text import MOST_BYTES, engine_in, environment_of, expanded

# Variables by which charts hand further flags to the server
MORE_ARGUMENTS = ("VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS", "VLLM_ARGS", "EXTRA_ARGS", "LLAMA_ARGS", "SGLANG_ARGS")
# llama.cpp's own, each a flag's name but for these
LLAMA, LLAMA_FLAGS = "LLAMA_ARG_", {"N_PARALLEL": "parallel", "BATCH": "batch-size", "UBATCH": "ubatch-size", "ENDPOINT_METRICS": "metrics"}
# How vLLM's production stack routes -> our routers
ROUTING = {"roundrobin": "round-robin", "prefixaware": "prefix-affinity", "kvaware": "prefix-affinity"}
_NO_CONTAINER = ("image", "command", "args", "services", "kind", "pools")


def canonical(name: str, document: Any, folder: Path) -> Any:
    """A document whose servers all stand as containers. UsageError naming the file for a part that cannot be read."""
    if not isinstance(document, dict):
        return document
    document = {key: value for key, value in document.items() if not str(key).startswith("x-")}  # compose's extension fields
    if isinstance(document.get("services"), dict):
        document["services"] = {key: _extended(name, each, document["services"], folder) for key, each in document["services"].items()}
    document = _with_variables(document, environment_of(folder), {}, folder)
    if flag := _flag_of_model(document):
        engine = {"model": ["vllm", "serve"], "model-path": ["sglang", "serve"]}[flag]
        return {"command": engine, "args": flags_of(document)}
    if isinstance(document.get("models"), dict) and all(isinstance(each, dict) and "cmd" in each for each in document["models"].values()):
        return _llama_swap(document)
    if isinstance(document.get("run"), str) and engine_in(document["run"]):
        return _sky_pilot(document)
    if isinstance(document.get("servingEngineSpec"), dict):
        return _production_stack(name, document)
    if isinstance(document.get("spec"), dict) and isinstance(document["spec"].get("serveConfigV2"), str):
        served = read_yaml(document["spec"]["serveConfigV2"], f"{name}: serveConfigV2")
        document = {key: value for key, value in document.items() if key != "spec"} | {"spec": served}
    return _reduced(name, document, document)


def _extended(name: str, service: Any, services: Mapping[str, Any], folder: Path, most: int = 8) -> Any:
    """A service of docker compose over the one that it `extends`, here or in a file beside. UsageError where that one is not there."""
    if not isinstance(service, dict) or "extends" not in service:
        return service
    said = service["extends"] if isinstance(service["extends"], dict) else {"service": service["extends"]}
    file, wanted = str(said.get("file", "")), str(said.get("service"))
    beside = folder / file
    if file and not beside.is_file():
        raise UsageError(f"{name}: extends {file}, which is not beside it")
    others = _at(read_yaml(text_of(beside, MOST_BYTES, file), file), "services") if file else services
    if not isinstance(_at(others, wanted), dict) or not most:
        raise UsageError(f"{name}: extends {wanted}: {file or 'the file'} has no such service")
    base = _extended(name, others[wanted], others, beside.parent if file else folder, most - 1)
    own = {key: each for key, each in service.items() if key != "extends"}
    both = [key for key in own if isinstance(own[key], dict) and isinstance(base.get(key), dict)]
    return base | own | {key: base[key] | own[key] for key in both}


def _flag_of_model(document: Mapping[str, Any]) -> str | None:
    """The flag that names the model, where a document is the file of an engine's own --config, or Triton's model.json for vLLM."""
    if any(key in document for key in _NO_CONTAINER):
        return None
    flags = (str(key).replace("_", "-") for key, value in document.items() if isinstance(value, str))
    return next((flag for flag in flags if flag in ("model", "model-path")), None)


def flags_of(arguments: Mapping[str, Any]) -> list[str]:
    """An engine's arguments by name, as flags."""
    words: list[str] = []
    for name, value in arguments.items():
        flag = str(name).replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return words


def _llama_swap(document: Mapping[str, Any]) -> dict[str, Any]:
    """llama-swap's models, one of which runs at a time: the command of each, its macros put in."""
    macros = {str(name): str(text) for name, text in _mapping(document, "macros").items()} | {"PORT": "8080"}
    each = document["models"].items()
    return {"services": {str(name): {"command": ["sh", "-c", " ".join(expanded(str(of["cmd"]), macros).split())]} for name, of in each}}


def with_runtimes(documents: Sequence[Any]) -> list[Any]:
    """The documents, each KServe model with command and arguments of the ServingRuntime among them that it names."""
    named = [(_at(each, "metadata", "name"), each) for each in documents if str(_at(each, "kind")).endswith("ServingRuntime")]
    runtimes = {name: each for name, each in named if isinstance(name, str)}
    used, found = [], []
    for document in documents:
        model = _at(document, "spec", "predictor", "model")
        wanted = _at(model, "runtime")
        runtime = runtimes.get(wanted) if isinstance(wanted, str) else None
        containers = _at(runtime, "spec", "containers")
        if isinstance(containers, list) and containers and isinstance(containers[0], dict):
            base = containers[0]
            model = base | model | {"args": [*_listed(base.get("args")), *_listed(model.get("args"))]}
            document = document | {"spec": {**document["spec"], "predictor": {**document["spec"]["predictor"], "model": model}}}
            used.append(runtime)
        found.append(document)
    return [each for each in found if not any(each is one for one in used)]


def with_config_maps(documents: Sequence[Any]) -> list[Any]:
    """The documents, variables that a container takes from a ConfigMap among them in its `env`."""
    maps = {_at(each, "metadata", "name"): each.get("data") or {} for each in documents if _at(each, "kind") == "ConfigMap"}
    return [_from_maps(each, maps) for each in documents] if maps else list(documents)


def _from_maps(value: Any, maps: Mapping[Any, Mapping[str, Any]]) -> Any:
    if isinstance(value, list):
        return [_from_maps(each, maps) for each in value]
    if not isinstance(value, dict):
        return value
    value = {key: _from_maps(each, maps) for key, each in value.items()}
    if isinstance(chosen := _at(value, "valueFrom", "configMapKeyRef"), dict):
        text = maps.get(chosen.get("name"), {}).get(str(chosen.get("key")))
        return value if text is None else {"name": value.get("name"), "value": text}
    taken = [maps.get(_at(each, "configMapRef", "name"), {}) for each in _listed(value.get("envFrom"))]
    if any(taken):
        named = [{"name": name, "value": text} for data in taken for name, text in data.items()]
        value["env"] = [*named, *_listed(value.get("env"))]
    return value


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _with_variables(value: Any, variables: Mapping[str, str], own: Mapping[str, str], folder: Path) -> Any:
    """Texts with variables put in: `${NAME}` by `.env` beside the file, as compose does, and `$(NAME)` by the container's own `env`, as
    Kubernetes does. What a shell in the container puts in stays.
    """
    if isinstance(value, dict):
        files = value.get("env_file")
        named = [each.get("path") if isinstance(each, dict) else each for each in (files if isinstance(files, list) else [files])]
        more = environment_of(folder, *map(str, filter(None, named))) if any(named) else {}
        own = {**own, **more, **environment(value, variables)}
        found = {key: _with_variables(each, variables, own, folder) for key, each in value.items()}
        return found | ({"environment": own} if more else {})
    if isinstance(value, list):
        return [_with_variables(each, variables, own, folder) for each in value]
    if isinstance(value, str) and "$" in value:
        text = re.sub(r"\$\((\w+)\)", lambda match: own.get(match[1], match[0]), value)
        text = expanded(text, variables)
        return int(text) if text != value and text.isdecimal() and len(text) < 10 else text
    return value


def environment(value: Mapping[str, Any], variables: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Variables that a mapping gives its own container: compose's `environment`, Kubernetes' `env`, Dynamo's `envs`."""
    found: dict[str, str] = {}
    for said in (value.get("environment"), value.get("env"), value.get("envs")):
        if isinstance(said, dict):
            found |= {str(name): str(setting) for name, setting in said.items() if setting is not None}
        for each in said if isinstance(said, list) else ():
            if isinstance(each, dict) and "value" in each:
                found[str(each.get("name"))] = str(each["value"])
            elif isinstance(each, str) and "=" in each:
                name, _, setting = each.partition("=")
                found[name] = setting
    return {name: expanded(setting, variables) for name, setting in found.items()}


def _reduced(name: str, value: Any, root: Mapping[str, Any]) -> Any:
    """A part of a document with its special forms as plain ones."""
    if isinstance(value, list):
        return [_reduced(name, each, root) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("create") is False or value.get("enabled") is False or value.get("replicas") == 0:
        return {}
    if "key" in value and isinstance(value.get("values"), list) and value.get("operator", "In") == "In" and len(value["values"]) == 1:
        return {str(value["key"]): value["values"][0]}
    value = {key: _reduced(name, each, root) for key, each in value.items()}
    if "entrypoint" in value and ("image" in value or "build" in value):
        value = _after_entrypoint(value)
    if value.get("modelCommand") == "vllmServe":
        value["command"] = ["vllm", "serve", *_model_of(root)]
    if isinstance(group := value.get("leaderWorkerTemplate"), dict) and isinstance(group.get("size"), int):
        value["gpus-of-a-group"] = group["size"]
    if isinstance(value.get("scale"), int) and "image" in value:
        value["replicas"] = value["scale"]
    if root.get("kind") == "LLMInferenceService" and isinstance(value.get("model"), dict) and "uri" in value["model"]:
        value = _llm_inference_service(value)
    own = environment(value)
    more = [setting for variable, setting in own.items() if variable in MORE_ARGUMENTS]
    if more:
        value["args"] = [*_listed(value.get("args")), *" ".join(more).split()]
    if "llama.cpp:" in str(value.get("image")) and (given := {each: own.pop(each) for each in [*own] if each.startswith(LLAMA)}):
        value = {key: each for key, each in value.items() if key != "env"} | {"environment": own}
        flags = {LLAMA_FLAGS.get(flag := each.removeprefix(LLAMA), flag): text for each, text in given.items()}
        before = [f"--{flag.lower().replace('_', '-')}={text}" for flag, text in flags.items()]
        value["args"] = [*before, *_listed(value.get("args") or value.pop("command", None))]
    return value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else str(value).split()


def _after_entrypoint(value: dict[str, Any]) -> dict[str, Any]:
    """A compose service's entrypoint as its command, and its command as the arguments."""
    entry, command = value["entrypoint"], value.get("command")
    rest = {key: each for key, each in value.items() if key != "entrypoint"}
    return rest | {"command": entry, "args": command} if entry else rest


def _model_of(root: Mapping[str, Any]) -> list[str]:
    artifacts = root.get("modelArtifacts")
    uri = str(artifacts.get("uri", "")) if isinstance(artifacts, dict) else ""
    return [re.sub(r"^(?:hf|pvc\+hf)://", "", uri)] if uri else []


def _mapping(part: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The mapping of that name, empty where there is none."""
    found = part.get(name)
    return found if isinstance(found, dict) else {}


def _llm_inference_service(spec: dict[str, Any]) -> dict[str, Any]:
    """KServe starts vLLM in a container named main where the template gives it no command."""
    model = re.sub(r"^(?:hf|oci|s3|pvc)://", "", str(spec["model"]["uri"]))

    def with_command(part: dict[str, Any]) -> dict[str, Any]:
        template, containers = _mapping(part, "template"), _mapping(part, "template").get("containers")
        given = containers if isinstance(containers, list) else []
        listed = [each if isinstance(each, dict) else {} for each in given] or [{"name": "main"}]
        for i, each in enumerate(listed):
            if not each.get("command") and (each.get("name") == "main" or len(listed) == 1):
                listed[i] = each | {"command": ["vllm", "serve", model]}
        return part | {"template": {**template, "containers": listed}}

    spec = with_command(spec)
    if isinstance(spec.get("prefill"), dict) and spec["prefill"]:
        spec["prefill"] = with_command(spec["prefill"])
    return spec | ({"router": "llm-d"} if "scheduler" in _mapping(spec, "router") else {})


def _sky_pilot(task: Mapping[str, Any]) -> dict[str, Any]:
    """A SkyPilot task: its script in a container, on the accelerators of its resources (the first where there is a choice)."""
    asked = _mapping(task, "resources").get("accelerators")
    first = next(iter(asked.items() if isinstance(asked, dict) else asked if isinstance(asked, list) else [asked]), None)
    said = f"{first[0]}:{first[1] or ''}" if isinstance(first, tuple) else str(first or "")  # {H100: 4}, {H100:4} and H100:4
    gpu, _, asked_for = said.strip(":").partition(":")
    count = max(1, int(asked_for)) if asked_for.isdecimal() else 1
    own = environment({"env": task.get("envs")}) | {"SKYPILOT_NUM_GPUS_PER_NODE": str(count)}
    service = _mapping(task, "service")
    policy = _mapping(service, "replica_policy")
    replicas = service.get("replicas") or policy.get("min_replicas") or 1
    scaled = {"minReplicas": replicas, "maxReplicas": policy["max_replicas"]} if "max_replicas" in policy else {"replicas": replicas}
    container = {"command": ["bash", "-c", task["run"]], "environment": own}
    nodes = {"nodeCount": task["num_nodes"]} if isinstance(task.get("num_nodes"), int) else {}
    return container | scaled | nodes | ({"accelerator": gpu} if gpu else {}) | {"nvidia.com/gpu": count}


def _production_stack(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Helm values of vLLM's production stack: one deployment for each entry of `servingEngineSpec.modelSpec`."""
    models = values["servingEngineSpec"].get("modelSpec")
    if not isinstance(models, list) or not models:
        raise UsageError(f"{name}: servingEngineSpec.modelSpec lists no model")
    services: dict[str, Any] = {}
    for i, model in enumerate(models):
        if not isinstance(model, dict):
            raise UsageError(f"{name}: servingEngineSpec.modelSpec[{i}] must be a mapping")
        services[str(model.get("name", f"model-{i}"))] = _of_model_spec(name, f"servingEngineSpec.modelSpec[{i}]", model)
    routing = str(_mapping(values, "routerSpec").get("routingLogic") or "")
    return {"services": services} | ({"router": ROUTING.get(routing, routing)} if routing else {})


def _of_model_spec(name: str, place: str, model: Mapping[str, Any]) -> dict[str, Any]:
    config = model.get("vllmConfig") or {}
    cache = model.get("lmcacheConfig") or {}
    if not isinstance(config, dict) or not isinstance(cache, dict):
        raise UsageError(f"{name}: {place}: vllmConfig and lmcacheConfig must be mappings")
    words = ["vllm", "serve", str(model.get("modelURL", ""))]
    for key, setting in config.items():
        if key in ("extraArgs", "v0", "v1"):
            continue
        flag = re.sub(r"([A-Z]+)", lambda match: f"-{match[1].lower()}", str(key).replace("LoRA", "Lora"))
        if isinstance(setting, bool):
            words.append(f"--{flag}" if setting else f"--no-{flag}")
        elif setting is not None:
            words += [f"--{flag}", str(setting)]
    words += [str(word) for word in _listed(config.get("extraArgs"))]
    if cache.get("enabled") and cache.get("cpuOffloadingBufferSize"):
        size = {"max_local_cpu_size": re.sub(r"[^\d.]", "", str(cache["cpuOffloadingBufferSize"]))}
        words += ["--kv-transfer-config", json.dumps({"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": size})]
    if cache.get("enabled") and cache.get("kvRole") in ("kv_producer", "kv_consumer"):
        words += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": cache["kvRole"]})]
    found: dict[str, Any] = {"image": f"{model.get('repository', '')}:{model.get('tag', 'latest')}", "command": words}
    if isinstance(model.get("replicaCount"), int):
        found["replicas"] = model["replicaCount"]
    if str(model.get("requestGPU", "")).isdecimal():
        found["nvidia.com/gpu"] = model["requestGPU"]
    return found | {"nodes": _reduced(name, model.get("nodeSelectorTerms"), {})} | ({"env": model["env"]} if "env" in model else {})

"""Kubernetes objects of a plan's servers: plain ones, KServe's, llm-d's and Dynamo's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.planning.router_args import PREFIX_AWARE, ROUTER_IMAGE, router_arguments, router_command
from sim.planning.servers import PORT, Server, one_node, prefills, startup_s, storage_gib, yaml_documents

DYNAMO_IMAGE = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1"
SIDECAR_IMAGE = "ghcr.io/llm-d/llm-d-routing-sidecar:v0.4.0"
SECRET = "hf-token"
TOKEN_NOTE = f"Gated weights: kubectl create secret generic {SECRET} --from-literal=HF_TOKEN=..."
HEALTHY = {"httpGet": {"path": "/health", "port": "http"}}
PERIOD_S = 10
CACHE = "/root/.cache/huggingface"
DYNAMO_MODES = {
    "round-robin": "round-robin",
    "random": "random",
    "power-of-two": "power-of-two",
    "least-requests": "least-loaded",
    "dynamo": "kv",
}
Written = tuple[str, list[str]]


def kubernetes(servers: Sequence[Server]) -> Written:
    """A StatefulSet of each pool, whose pods have names for a router, and the router."""
    one_node(servers, "k8s")
    documents = [document for server in servers for document in (_stateful_set(server), _service(server))]
    urls = {
        server.name: [f"http://simctl-{server.name}-{i}.simctl-{server.name}:{PORT}" for i in range(server.replicas)] for server in servers
    }
    said = [TOKEN_NOTE]
    if prefills(servers) or len(servers) == 1 < servers[0].replicas:
        arguments, more = router_arguments(servers, urls)
        documents += _router(router_command(servers, arguments))
        said += [*more, "The router is told its replicas by name: change both to scale."]
    return yaml_documents(documents), said


def _pod(server: Server, command: list[str], args: list[str], name: str = "vllm") -> dict[str, Any]:
    """A pod of one server: its GPUs, the token for gated weights, and disk for them."""
    gpus = {"nvidia.com/gpu": str(server.deployment.gpus)}
    container: dict[str, Any] = {
        "name": name,
        "image": server.image,
        "command": command,
        "args": args,
        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "HF_TOKEN", "optional": True}}}],
        "ports": [{"containerPort": PORT, "name": "http"}],
        "startupProbe": {**HEALTHY, "periodSeconds": PERIOD_S, "failureThreshold": startup_s(server) // PERIOD_S},
        "livenessProbe": {**HEALTHY, "periodSeconds": PERIOD_S, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {**HEALTHY, "periodSeconds": 5},
        "resources": {"limits": gpus, "requests": gpus},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "weights", "mountPath": CACHE}],
    }
    if server.role != "serve":  # where others fetch KV from
        container["env"].append({"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return {**_on_gpu(server), "containers": [container], "volumes": volumes}


def _on_gpu(server: Server) -> dict[str, Any]:
    product = next((alias for alias in server.deployment.gpu.aliases if alias.startswith("NVIDIA ")), "")
    return {"nodeSelector": {"nvidia.com/gpu.product": product.replace(" ", "-")}} if product else {}


def _annotations(group: Sequence[Server]) -> dict[str, Any]:
    """The GPU of an object's servers, where they have one; their nodes are selected by what a driver calls it. And their labels."""
    gpus = {server.deployment.gpu.name for server in group}
    noted = ({"simctl/gpu": gpus.pop()} if len(gpus) == 1 else {}) | group[0].labels
    return {"annotations": noted} if noted else {}


def _claim(server: Server) -> dict[str, Any]:
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": f"{storage_gib(server)}Gi"}}}


def _own_disk(server: Server) -> dict[str, Any]:
    """A volume of the pod's own, made and deleted with it."""
    return {"name": "weights", "ephemeral": {"volumeClaimTemplate": {"spec": _claim(server)}}}


def _object(api: str, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def _replicas(count: int, labels: dict[str, str], pod: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": count, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}


def _stateful_set(server: Server) -> dict[str, Any]:
    name = f"simctl-{server.name}"
    labels = {"app": name, "simctl/role": server.role}
    pod = _pod(server, server.entrypoint, [*server.arguments, *server.ending], name=server.engine)
    spec = {"serviceName": name, "podManagementPolicy": "Parallel", **_replicas(server.replicas, labels, pod)}
    spec["volumeClaimTemplates"] = [{"metadata": {"name": "weights"}, "spec": _claim(server)}]
    return _object("apps/v1", "StatefulSet", name, spec, labels=labels, **_annotations([server]))


def _service(server: Server) -> dict[str, Any]:
    name = f"simctl-{server.name}"
    ports = [{"name": "http", "port": PORT, "targetPort": "http"}]
    return _object("v1", "Service", name, {"clusterIP": "None", "selector": {"app": name}, "ports": ports})


def _router(command: list[str]) -> list[dict[str, Any]]:
    name = "simctl-router"
    labels, ports = {"app": name}, [{"containerPort": PORT, "name": "http"}]
    container: dict[str, Any] = {"name": "router", "image": ROUTER_IMAGE, "command": command, "ports": ports}
    container |= {"readinessProbe": {**HEALTHY, "periodSeconds": 5}}
    service = {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}
    deployment = _object("apps/v1", "Deployment", name, _replicas(1, labels, {"containers": [container]}), labels=labels)
    return [deployment, _object("v1", "Service", name, service)]


def kserve(servers: Sequence[Server]) -> Written:
    """LLMInferenceService objects: one, prefill inside of it, or one a pool. Its scheduler routes."""
    one_node(servers, "kserve", "vllm")
    groups = [servers] if prefills(servers) else [[server] for server in servers]
    documents = []
    for group in groups:
        main = next(server for server in group if server.role != "prefill")
        spec = {"model": {"uri": f"hf://{main.model}", "name": main.model}, **_kserve_part(main)}
        spec |= {"router": {"gateway": {}, "route": {}, "scheduler": {}}}
        for server in group:
            if server.role == "prefill":
                spec["prefill"] = _kserve_part(server)
        noted = {"simctl/router": main.deployment.router} | _annotations(group).get("annotations", {})  # the scheduler's own is llm-d's
        documents.append(_object("serving.kserve.io/v1alpha2", "LLMInferenceService", f"simctl-{main.name}", spec, annotations=noted))
    return yaml_documents(documents), [TOKEN_NOTE, _scheduler_note(servers)]


def _kserve_part(server: Server) -> dict[str, Any]:
    p = server.deployment.parallel
    sizes = {"tensor": server.deployment.tp}
    sizes |= {name: size for name, size in (("pipeline", p.pp), ("data", p.dp)) if size > 1}
    pod = _pod(server, ["vllm", "serve", "/mnt/models"], [*server.flags, "--port", str(PORT)], name="main")
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]  # KServe's own initializer brings the weights to /mnt/models
    pod["containers"][0]["volumeMounts"] = mounts
    return {"replicas": server.replicas, "parallelism": sizes | ({"expert": True} if p.expert else {}), "template": pod}


def _scheduler_note(servers: Sequence[Server]) -> str:
    router = servers[0].deployment.router
    if router == "llm-d":
        return "The endpoint picker's default scorers are those of the plan."
    return f"The plan sends requests by {router}; the endpoint picker scores replicas by load and prefix: other latencies."


def llm_d(servers: Sequence[Server]) -> Written:
    """A kustomization, Deployments with llm-d's labels, and the InferencePool that its endpoint picker serves."""
    one_node(servers, "llm-d", "vllm")
    disaggregated = prefills(servers)
    documents = [_llm_d_deployment(server, disaggregated) for server in servers]
    names = list(dict.fromkeys(_pool_name(server, disaggregated) for server in servers))
    documents += [_inference_pool(name) for name in names]
    said = [
        TOKEN_NOTE,
        _scheduler_note(servers),
        "Save as resources.yaml beside a kustomization.yaml of `resources: [resources.yaml]`, kubectl apply -k, and install the endpoint "
        f"picker of each pool ({', '.join(f'{name}-epp' for name in names)}) with the inferencepool chart.",
    ]
    return yaml_documents(documents), said


def _pool_name(server: Server, disaggregated: bool) -> str:
    return "simctl" if disaggregated else f"simctl-{server.name}"


def _llm_d_deployment(server: Server, disaggregated: bool) -> dict[str, Any]:
    role = server.role if disaggregated else "both"
    pool = _pool_name(server, disaggregated)
    labels = {"llm-d.ai/inferenceServing": "true", "llm-d.ai/role": role, "llm-d.ai/pool": pool}
    port = PORT + 200 if role == "decode" else PORT  # the sidecar has the decode pod's own port, and asks for prefill elsewhere
    pod = _pod(server, ["vllm", "serve"], [*server.arguments, "--port", str(port)])
    if role == "decode":
        pod["containers"][0]["ports"] = [{"containerPort": port, "name": "http"}]
        sidecar = {
            "name": "routing-proxy",
            "image": SIDECAR_IMAGE,
            "args": [f"--port={PORT}", f"--vllm-port={port}", "--connector=nixlv2"],
            "ports": [{"containerPort": PORT, "name": "proxy"}],
            "restartPolicy": "Always",
        }
        pod["initContainers"] = [sidecar]
    pod["volumes"].append(_own_disk(server))
    spec = _replicas(server.replicas, labels, pod)
    return _object("apps/v1", "Deployment", f"simctl-{server.name}", spec, labels=labels, **_annotations([server]))


def _inference_pool(name: str) -> dict[str, Any]:
    picker = {"name": f"{name}-epp", "port": {"number": 9002}}
    spec = {"targetPorts": [{"number": PORT}], "selector": {"matchLabels": {"llm-d.ai/pool": name}}, "endpointPickerRef": picker}
    return _object("inference.networking.k8s.io/v1", "InferencePool", name, spec)


def dynamo(servers: Sequence[Server]) -> Written:
    """DynamoGraphDeployments: a frontend that routes and a worker, or prefill and decode workers; one a pool."""
    one_node(servers, "dynamo", "vllm")
    groups = [servers] if prefills(servers) else [[server] for server in servers]
    router = servers[0].deployment.router
    mode = "kv" if router in PREFIX_AWARE else DYNAMO_MODES.get(router, "least-loaded")
    said = [f"Gated weights: kubectl create secret generic {SECRET} --from-literal=HF_TOKEN=..."]
    if router not in DYNAMO_MODES:
        said.append(f"The frontend has no {router}: {mode} is its nearest, and has other latencies.")
    documents = []
    for group in groups:
        front = _component("Frontend", "frontend", 1, ["python3"], ["-m", "dynamo.frontend", "--router-mode", mode], {})
        components = [front, *(_worker(server) for server in group)]
        name = "simctl" if len(group) > 1 else f"simctl-{group[0].name}"
        documents.append(_object("nvidia.com/v1beta1", "DynamoGraphDeployment", name, {"components": components}, **_annotations(group)))
    return yaml_documents(documents), said


def _worker(server: Server) -> dict[str, Any]:
    role = [] if server.role == "serve" else ["--disaggregation-mode", server.role]
    kind = "worker" if server.role == "serve" else server.role
    gpus = {"nvidia.com/gpu": str(server.deployment.gpus)}
    disk = {"ephemeral-storage": f"{storage_gib(server)}Gi"}
    args = ["--model", server.model, *server.flags, *role]
    found = _component(
        server.name, kind, server.replicas, ["python3", "-m", "dynamo.vllm"], args, {"limits": gpus, "requests": gpus | disk}
    )
    found["podTemplate"]["spec"] |= _on_gpu(server)
    return found


def _component(name: str, kind: str, replicas: int, command: list[str], args: list[str], resources: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": DYNAMO_IMAGE, "command": command, "args": args}
    container |= {"envFrom": [{"secretRef": {"name": SECRET, "optional": True}}]}
    container |= {"resources": resources} if resources else {}
    return {"name": name, "type": kind, "replicas": replicas, "podTemplate": {"spec": {"containers": [container]}}}

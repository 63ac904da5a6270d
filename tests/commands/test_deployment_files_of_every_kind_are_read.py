"""Deployment files as people have them: compose, charts, KServe, llm-d, Dynamo, Ray, scripts, units and pasted commands."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.errors import UsageError
from simctl.from_options.deployment_pools import pools_of
from simctl.options.from_deployment import Found, read_deployment
from simctl.options.shell_text import commands
from tests.cli import run

FILES = Path(__file__).parents[1] / "data" / "deployments"
# What each file says of its server, read by eye
SERVERS = {
    "compose-shell.yml": {"model": "Qwen/Qwen3-32B-AWQ", "tp": 2, "dtype": "fp16", "max_num_seqs": "16"},
    "production-stack.yaml": {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "NVIDIA-A100-SXM4-80GB",
        "replicas": 3,
        "tp": 1,
        "max_model_len": "16384",
        "max_num_seqs": "128",
        "gpu_memory_utilization": "0.85",
        "kv_dtype": "fp8",
        "kv_offloading_size": 60.0,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "router": "prefix-affinity",
        "engine_option": ["chunk_tokens=256"],
    },
    "chart-helm.yaml": {"model": "Qwen2.5-7B-Instruct", "dtype": "bf16", "replicas": 2},
    "kserve-isvc.yaml": {
        "model": "Llama-3.1-8B-Instruct",
        "gpu": "NVIDIA-L40S",
        "replicas": 2,
        "max_model_len": "8192",
        "max_num_seqs": "64",
        "enforce_eager": True,
    },
    "kserve-llm.yaml": {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "nvidia-l4", "replicas": 3, "tp": 2, "max_num_seqs": "48"}
    | {"router": "llm-d"},
    "ray-serve.yaml": {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "gpu": "A10G",
        "replicas": 2,
        "tp": 2,
        "max_model_len": "8192",
        "enable_prefix_caching": False,
        "max_num_seqs": "40",
    },
    "ray-service.yaml": {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "L4", "replicas": 1, "tp": 4},
    "leader-worker-set.yaml": {
        "model": "meta-llama/Llama-3.1-405B-Instruct-FP8",
        "gpu": "nvidia-h100-80gb",
        "replicas": 1,
        "tp": 8,
        "pipeline_parallel_size": 2,
    },
    "deployment.yaml": {
        "model": "Qwen/Qwen2.5-32B-Instruct",
        "gpu": "NVIDIA-A100-SXM4-80GB",
        "replicas": 2,
        "tp": 2,
        "kv_offloading_size": 64.0,
    },
    "serve.sh": {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "replicas": 4,
        "max_num_seqs": "96",
        "enable_prefix_caching": True,
        "kv_dtype": "fp8",
        "max_num_batched_tokens": 16384,
        "max_model_len": "16384",
        "block_size": 32,
    },
    "docker-run.txt": {
        "model": "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
        "tp": 2,
        "max_model_len": "32768",
        "engine_version": "0.24.0",
    },
    "functions.sh": {"model": "Qwen/Qwen3-8B", "replicas": 4, "kv_dtype": "fp8", "max_model_len": "16384", "gpu_memory_utilization": "0.9"},
    "Dockerfile": {"model": "google/gemma-3-27b-it", "max_model_len": "16384", "tp": 2, "engine_version": "0.11.0"},
    "supervisord.conf": {"model": "Qwen/Qwen2.5-72B-Instruct-AWQ", "max_model_len": "16384", "tp": 2, "replicas": 2},
    "vllm-config.yaml": {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "tp": 4,
        "max_model_len": "32768",
        "enable_expert_parallel": False,
        "enforce_eager": False,
        "engine_option": ["draft_tokens=4", "drafter=ngram"],
    },
    "llama-swap.yaml": {
        "engine": "llamacpp",
        "model": "Qwen3-30B-A3B",
        "dtype": "q4_k_m",
        "kv_dtype": "q8_0",
        "max_model_len": "8192",
        "max_num_seqs": 4,
    },
    "vllm.container": {
        "model": "Qwen/Qwen3-14B-AWQ",
        "max_model_len": "20000",
        "gpu_memory_utilization": "0.88",
        "engine_version": "0.24.0",
    },
    "vllm@.service": {"model": "mistralai/Mistral-Small-24B-Instruct-2501", "tp": 2, "max_model_len": "16384"},
    "llama.sh": {
        "engine": "llamacpp",
        "model": "Qwen3-30B-A3B-Instruct-2507",
        "dtype": "q4_k_m",
        "kv_dtype": "q8_0",
        "max_model_len": "16384",
        "max_num_seqs": 4,
    },
}
# And of those with several: (role, replicas, model, further settings of that pool)
POOLS = {
    "compose-fleet.yml": [
        ("serve", 1, "Qwen/Qwen3-8B", {"tp": 2}),
        ("serve", 2, "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", {"max-num-seqs": "32"}),
    ],
    "llm-d-values.yaml": [("decode", 1, "Qwen/Qwen3-32B", {"tp": 4}), ("prefill", 4, "Qwen/Qwen3-32B", {"tp": 1})],
    "dynamo.yaml": [
        ("decode", 2, "Qwen/Qwen3-8B", {"max-num-seqs": "128"}),
        ("prefill", 1, "Qwen/Qwen3-8B", {"max-num-batched-tokens": 16384}),
    ],
    "dynamo-planner.yaml": [
        ("decode", 2, "Qwen/Qwen3-8B", {"max-num-seqs": "64", "router": "dynamo"}),
        ("prefill", 1, "Qwen/Qwen3-8B", {"router": "dynamo"}),
    ],
    "dynamo-sglang.yaml": [("prefill", 1, "Qwen/Qwen3-8B", {"engine": "sglang"}), ("decode", 2, "Qwen/Qwen3-8B", {"engine": "sglang"})],
    "dynamo-router.yaml": [
        ("prefill", 2, "Qwen/Qwen3-14B", {"router": "dynamo", "tp": 1}),
        ("decode", 1, "Qwen/Qwen3-14B", {"router": "dynamo", "tp": 2}),
    ],
    "roles.sh": [
        ("prefill", 1, "Qwen/Qwen3-8B", {"max-num-batched-tokens": 16384}),
        ("decode", 1, "Qwen/Qwen3-8B", {"max-num-seqs": "64"}),
    ],
}
# Which schema of Kubernetes holds the pods of a file
PODS = {
    "deployment.yaml": ("spec", "template", "spec"),
    "leader-worker-set.yaml": ("spec", "leaderWorkerTemplate", "leaderTemplate", "spec"),
}


def read(tmp_path: Path, name: str, text: str, env: str = "") -> Found:
    (tmp_path / name).write_text(text)
    if env:
        (tmp_path / ".env").write_text(env)
    return read_deployment(tmp_path / name)


def test_every_example_is_expected_somewhere():
    assert {file.name for file in FILES.iterdir()} == {*SERVERS, *POOLS}


@pytest.mark.parametrize(("name", "expected"), SERVERS.items(), ids=SERVERS)
def test_one_server_of_each_kind(name, expected):
    found = read_deployment(FILES / name)
    assert found.options == {"engine": "vllm"} | expected


@pytest.mark.parametrize(("name", "expected"), POOLS.items(), ids=POOLS)
def test_several_servers_are_pools(name, expected, tmp_path):
    file = tmp_path / name
    shutil.copy(FILES / name, file)
    (tmp_path / ".env").write_text("CHAT_MODEL=Qwen/Qwen3-8B\n")
    pools = pools_of(file, file.read_text())["pools"]
    assert [(pool["role"], pool.get("replicas", 1), pool["model"]) for pool in pools] == [each[:3] for each in expected]
    for pool, (*_, more) in zip(pools, expected, strict=True):
        assert pool.items() >= more.items()


@pytest.mark.parametrize("name", PODS)
def test_the_examples_are_what_kubernetes_takes(name):
    schema = json.loads((FILES.parent / "kubernetes.json").read_text())
    pod = yaml.safe_load((FILES / name).read_text())
    for key in PODS[name]:
        pod = pod[key]
    jsonschema.validate(pod, schema | {"$ref": "#/$defs/io.k8s.api.core.v1.PodSpec"})


def ran_by_bash(tmp_path: Path, script: str) -> list[list[str]]:
    """The words of each server that bash itself starts, by a stub that writes its arguments down."""
    for name in ("vllm", "nohup", "docker"):
        stub = tmp_path / name
        told = 'exec "$@"' if name == "nohup" else f'python3 -c "import json,sys; print(json.dumps(sys.argv[1:]))" "$@" >> {tmp_path}/told'
        stub.write_text(f"#!/bin/sh\n{told}\n")
        stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "script").write_text(script)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    subprocess.run(["bash", "script"], cwd=tmp_path, env=env, check=True, capture_output=True, timeout=60)
    return [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]


@pytest.mark.parametrize("name", ["serve.sh", "docker-run.txt", "functions.sh"])
def test_a_script_is_read_as_bash_runs_it(name, tmp_path):
    text = (FILES / name).read_text()
    told = ran_by_bash(tmp_path, text)
    found = commands(name, text, {})
    assert sum(each.copies for each in found) == len(told)
    words = [word for word in found[0].words if "${" not in word]
    assert set(words) <= set(told[0])


VALUES = st.sampled_from(["8", "16 32", '{"a": 1}', "a'b", "", "x$y", "--flag 3"])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES, other=VALUES, quoted=st.booleans(), how=st.sampled_from(["${A}", "$A", "${A:-d e}", "${B:-$A}", "${B-z}", "${A:+y}"]))
def test_variables_are_put_in_as_bash_does(value, other, quoted, how, tmp_path):
    """Words of the server equal bash's own, for any value, quoted or not."""
    (tmp_path / "told").unlink(missing_ok=True)
    quote = lambda text: "'" + text.replace("'", "'\\''") + "'"  # noqa: E731
    used = f'"{how}"' if quoted else how
    script = f"A={quote(value)}\nLIST=({quote(other)} last)\nvllm serve {used} --list \"${{LIST[@]}}\" '$A'\n"
    assert [each.words for each in commands("script", script, {})] == ran_by_bash(tmp_path, script)


CONDITIONS = ['[[ "$A" -gt 1 ]]', '[ "$A" = 2 ]', '[ "$A" != 2 ]', '[ -n "$B" ]', '[ -z "$B" ]', '! test "$A" -le 2', '[[ "$B" == "" ]]']
BRANCHES = [
    "if %s; then L+=(--one); fi",
    "if %s; then L+=(--one); else L+=(--other two); fi",
    "if %s; then\n  if [ $A -eq 3 ]; then L+=(--three); fi\n  X=9\nelse\n  X=8\nfi",
    "if [ $A -eq 0 ]; then L+=(--zero); elif %s; then L+=(--one); else L+=(--last); fi",
    "%s && L+=(--one)",
    "%s || X=7",
    "%s && X=1 || X=0",
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    a=st.integers(0, 3),
    b=st.sampled_from(["", "b"]),
    lines=st.lists(st.tuples(st.sampled_from(BRANCHES), st.sampled_from(CONDITIONS)), max_size=4),
)
def test_conditions_that_the_text_settles_are_followed_as_bash_does(a, b, lines, tmp_path):
    (tmp_path / "told").unlink(missing_ok=True)
    body = "\n".join(branch % test for branch, test in lines)
    script = f"A={a}\nB='{b}'\nX=5\nL=(--first)\n{body}\nvllm serve m --x $X \"${{L[@]}}\"\n"
    assert [each.words for each in commands("script", script, {})] == ran_by_bash(tmp_path, script)


def test_a_sky_pilot_task_is_read(tmp_path):
    text = """
resources: {accelerators: "L40S:2"}
envs: {MODEL: Qwen/Qwen3-14B}
service: {replica_policy: {min_replicas: 2, max_replicas: 5}}
run: |
  vllm serve $MODEL --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE --max-model-len 8192
"""
    found = read(tmp_path, "task.yaml", text)
    wanted = {"model": "Qwen/Qwen3-14B", "tp": 2, "gpu": "L40S", "replicas": 2, "max_model_len": "8192"}
    assert {name: found.options.get(name) for name in wanted} == wanted
    assert any("maxReplicas 5" in each for each in found.unused)


@pytest.mark.parametrize("asked", ["{H100:4, A100-80GB:8}", "{H100: 4}", "[H100:4, A100-80GB:8]", "H100:4"])
def test_accelerators_of_a_sky_pilot_task_are_read_in_all_their_forms(tmp_path, asked):
    text = f"resources: {{accelerators: {asked}}}\nrun: vllm serve Qwen/Qwen3-14B -tp $SKYPILOT_NUM_GPUS_PER_NODE\n"
    options = read(tmp_path, "task.yaml", text).options
    assert (options["gpu"], options["tp"]) == ("H100", 4)


@pytest.mark.parametrize(("bound", "seqs"), [(32, "32"), (128, "48")])
def test_rays_bound_of_requests_at_a_replica_is_taken_where_it_binds(tmp_path, bound, seqs):
    loading, given = "model_loading_config: {model_id: Qwen/Qwen3-8B}", "engine_kwargs: {max_num_seqs: 48}"
    text = f"applications: [{{args: {{llm_configs: [{{{loading}, {given}, deployment_config: {{max_ongoing_requests: {bound}}}}}]}}}}]\n"
    assert read(tmp_path, "serve.yaml", text).options["max_num_seqs"] == seqs


def test_a_service_of_compose_extends_another_here_or_in_a_file_beside(tmp_path):
    text = "services: {own: {extends: near, environment: {B: 2}}, near: {extends: {file: base.yml, service: far}, scale: 2}}"
    with pytest.raises(UsageError, match=r"^compose\.yml: extends base.yml, which is not beside it"):
        read(tmp_path, "compose.yml", text)
    (tmp_path / "base.yml").write_text("services: {far: {image: vllm/vllm-openai, command: --model Qwen/Qwen3-8B, environment: {A: 1}}}")
    options = read(tmp_path, "compose.yml", text).options
    assert (options["model"], options["replicas"]) == ("Qwen/Qwen3-8B", 2)
    with pytest.raises(UsageError, match=r"extends elsewhere: base\.yml has no such service"):
        read(tmp_path, "compose.yml", text.replace("far", "elsewhere"))


def test_roles_of_several_documents_are_no_one_server(tmp_path):
    pod = "{metadata: {labels: {llm-d.ai/role: ROLE}}, spec: {containers: [{command: [vllm, serve, Qwen/Qwen3-8B]}]}}"
    one = f"kind: Deployment\nspec: {{template: {pod}}}\n"
    with pytest.raises(UsageError, match="prefill and decode are servers of their own"):
        read(tmp_path, "roles.yaml", "---\n".join(one.replace("ROLE", role) for role in ("decode", "prefill")))


def test_a_group_of_roles_is_there_as_often_as_it_says(tmp_path):
    (file := tmp_path / "storm.yaml").write_text("""
kind: StormService
spec:
  replicas: 2
  template:
    spec:
      roles:
      - {name: prefill, replicas: 3, template: {spec: {containers: [{command: [vllm, serve, Qwen/Qwen3-8B]}]}}}
      - {name: decode, replicas: 1, template: {spec: {containers: [{command: [vllm, serve, Qwen/Qwen3-8B]}]}}}
""")
    pools = pools_of(file, file.read_text())["pools"]
    assert [(pool["role"], pool.get("replicas", 1)) for pool in pools] == [("prefill", 6), ("decode", 2)]


def test_variables_of_a_config_map_are_put_in(tmp_path):
    text = """
kind: ConfigMap
metadata: {name: a}
data: {MODEL: Qwen/Qwen3-8B, LENGTH: "8192"}
---
kind: Deployment
spec:
  template:
    spec:
      containers:
      - image: vllm/vllm-openai:latest
        args: ["--model", $(MODEL), "--max-model-len", $(LENGTH), "--max-num-seqs", $(SEQS)]
        envFrom: [{configMapRef: {name: a}}]
        env: [{name: SEQS, valueFrom: {configMapKeyRef: {name: b, key: seqs}}}, {name: LENGTH, value: "4096"}]
---
kind: ConfigMap
metadata: {name: b}
data: {seqs: 12}
"""
    options = read(tmp_path, "all.yaml", text).options
    assert (options["model"], options["max_model_len"], options["max_num_seqs"]) == ("Qwen/Qwen3-8B", "4096", "12")


def test_variables_of_llama_cpp_are_its_flags(tmp_path):
    given = "{LLAMA_ARG_MODEL: /m/Qwen3-8B-Q4_K_M.gguf, LLAMA_ARG_CTX_SIZE: 16384, LLAMA_ARG_N_PARALLEL: 2, LLAMA_ARG_N_GPU_LAYERS: 99}"
    text = f"services:\n  a:\n    image: ghcr.io/ggml-org/llama.cpp:server-cuda\n    environment: {given}\n"
    options = read(tmp_path, "compose.yml", text).options
    assert options == {"engine": "llamacpp", "model": "Qwen3-8B", "dtype": "q4_k_m", "max_model_len": "8192", "max_num_seqs": 2}


def test_a_chart_names_flags_of_adapters_in_its_own_case(tmp_path):
    model = "{name: a, modelURL: Qwen/Qwen3-8B, replicaCount: 1, vllmConfig: {enableLoRA: true, maxLoras: 4, maxLoraRank: 32}}"
    options = read(tmp_path, "values.yaml", f"servingEngineSpec: {{modelSpec: [{model}]}}").options
    assert (options["max_loras"], options["max_lora_rank"]) == (4, 32)


def test_a_server_that_is_started_again_when_it_ends_is_one(tmp_path):
    assert "replicas" not in read(tmp_path, "serve.sh", "#!/bin/sh\nwhile true; do vllm serve Qwen/Qwen3-8B; sleep 5; done\n").options


def test_a_serving_runtime_gives_its_models_command_and_arguments(tmp_path):
    text = """
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: vllm-runtime}
spec:
  containers:
  - image: quay.io/modh/vllm:rhoai-2.20-cuda
    command: [python, -m, vllm.entrypoints.openai.api_server]
    args: [--model=/mnt/models, "--served-model-name={{.Name}}", --max-num-seqs=96]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
spec:
  predictor:
    minReplicas: 2
    model:
      modelFormat: {name: vLLM}
      runtime: vllm-runtime
      storageUri: oci://quay.io/catalog/models:granite-3.1-8b-instruct
      args: ["--max-model-len=16384"]
"""
    found = read(tmp_path, "isvc.yaml", text)
    wanted = {"model": "granite-3.1-8b-instruct", "max_num_seqs": "96", "max_model_len": "16384", "replicas": 2}
    assert {name: found.options.get(name) for name in wanted} == wanted
    assert not any("another server" in each for each in found.unused)


def test_a_file_beside_sets_what_the_text_does_not(tmp_path):
    text = "#!/bin/sh\nvllm serve $MODEL --tensor-parallel-size ${TP:-2}\n"
    found = read(tmp_path, "serve.sh", text, "MODEL=Qwen/Qwen3-8B\nexport TP='4'\n# TP=8\n")
    assert (found.options["model"], found.options["tp"]) == ("Qwen/Qwen3-8B", 4)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("serve.sh", "#!/bin/sh\nvllm serve Qwen/Qwen3-8B -tp $TP\n", "serve.sh: --tp: TP is not set; a .env beside the file"),
        ("compose.yml", 'services: {a: {image: vllm/vllm-openai, command: ["--model", "${M}"]}}', "compose.yml: --model: M is not set"),
        (
            "serve.sh",
            '#!/bin/sh\nTP=1\nif [ -n "$BIG" ]; then TP=4; fi\nvllm serve Qwen/Qwen3-8B -tp $TP\n',
            "serve.sh: line 4: TP hangs on a condition",
        ),
        (
            "serve.sh",
            '#!/bin/bash\nL=(--max-num-seqs 8)\nif [ -n "$BIG" ]; then L+=(-tp 4); fi\nvllm serve Qwen/Qwen3-8B "${L[@]}"\n',
            "serve.sh: line 4: L hangs on a condition",
        ),
        ("serve.sh", "#!/bin/sh\nfor i in $(seq 4); do vllm serve Qwen/Qwen3-8B; done\n", "line 2: a loop of unknown length"),
        ("serve.sh", "#!/bin/sh\nnvidia-smi -pl 250\nvllm serve Qwen/Qwen3-8B\n", "power limit of 250 W"),
        ("roles.sh", (FILES / "roles.sh").read_text(), "prefill and decode are servers of their own: --fleet roles.sh"),
        ("dynamo.yaml", (FILES / "dynamo.yaml").read_text(), "prefill and decode are servers of their own: --fleet dynamo.yaml"),
        ("chart.yaml", "apiVersion: apps/v1\nspec: {{ .Values.x }}\n", "a template of a Helm chart"),
        ("serve.sh", "#!/bin/sh\ntrtllm-serve Qwen/Qwen3-8B --tp_size 2\n", "TensorRT-LLM is not simulated; --engine vllm"),
        (
            "run.txt",
            "docker run ghcr.io/huggingface/text-generation-inference:3.0 --model-id Qwen/Qwen3-8B",
            "text-generation-inference is not",
        ),
        (
            "isvc.yaml",
            "{kind: ServingRuntime, metadata: {name: [a]}}\n---\nspec: {predictor: {model: {runtime: {b: c}}}}",
            "no `vllm serve`",
        ),
        ("compose.yml", "services: {a: {image: ollama/ollama}}", "Ollama runs llama.cpp: --engine llamacpp"),
        ("compose.yml", "services: {a: {image: nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8}}", "a NIM chooses its engine"),
        ("config.pbtxt", 'backend: "tensorrtllm"', "config.pbtxt: a model of Triton"),
        ("vllm.nomad", 'job "a" {\n  config { image = "vllm/vllm-openai" }\n}', "vllm.nomad: HCL (Nomad, Terraform) is not read"),
        (
            "values.yaml",
            "{servingEngineSpec: {modelSpec: [{modelURL: Qwen/Qwen3-8B, replicaCount: 2}]}, routerSpec: {routingLogic: session}}",
            "values.yaml: no router here is session",
        ),
        ("serve.sh", "#!/bin/sh\nwhile read p; do vllm serve Qwen/Qwen3-8B --port $p; done\n", "line 2: a loop of unknown length"),
        ("serve.py", "cmd = ['vllm', 'serve']", "a Python program, which is not run"),
        ("serve.sh", "CUDA_VISIBLE_DEVICES=MIG-4ae2 vllm serve Qwen/Qwen3-8B", "a slice of a card (MIG) is not simulated"),
        ("pod.yaml", "resources: {limits: {nvidia.com/mig-1g.10gb: 1}}", "a slice of a card (MIG) is not simulated"),
        ("values.yaml", "servingEngineSpec: {modelSpec: []}", "servingEngineSpec.modelSpec lists no model"),
    ],
)
def test_what_cannot_be_read_names_its_place(tmp_path, name, text, says):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, name, text)
    assert says in str(caught.value)


def test_two_roles_of_different_models_are_refused(tmp_path):
    file = tmp_path / "roles.sh"
    text = (FILES / "roles.sh").read_text()
    file.write_text(text.replace("vllm serve $MODEL --port 8200", "vllm serve Qwen/Qwen3-4B --port 8200"))
    with pytest.raises(UsageError, match=r"roles\.sh: prefill serves Qwen/Qwen3-8B, decode Qwen/Qwen3-4B"):
        pools_of(file, file.read_text())


def test_the_gpu_is_asked_for_once_and_three_lines_say_what_was_taken(tmp_path):
    done = run("simulate", "--fleet", str(FILES / "roles.sh"), "--gpu", "H100", "--num-prompts", "8", "--draws", "0", "--no-iterations")
    assert done.code == 0
    assert done.stderr.splitlines() == [
        "roles.sh: prefill Qwen/Qwen3-8B (vllm); decode Qwen/Qwen3-8B (vllm)",
        "roles.sh: taken: prefill max-num-batched-tokens 16384; decode max-num-seqs 64",
    ]
    assert "pool prefill (prefill): Qwen3-8B on 1 x H100" in done.stdout
    both = run("simulate", "--fleet", str(FILES / "dynamo.yaml"), "--gpu", "H100", "--num-prompts", "8")
    assert both.code == 2
    assert "--gpu: with --fleet, a pool of dynamo.yaml says that" in both.stderr


DOCUMENTS = [file.name for file in sorted(FILES.iterdir()) if file.suffix in (".yaml", ".yml")]
ODD = [
    None,
    True,
    0,
    -1,
    3.5,
    "",
    "x y",
    [],
    {},
    [None],
    [[1]],
    {"a": None},
    "${A}",
    "'",
    ["--model"],
    {"command": ["vllm", "serve", "a/b"]},
]
KEYS = [
    "command",
    "args",
    "replicas",
    "prefill",
    "env",
    "image",
    "resources",
    "parallelism",
    "autoscaling_config",
    "engine_kwargs",
    "devices",
]


def places(value, path=()):
    """Paths of all values inside a document."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(each, (*path, key))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(DOCUMENTS), at=st.floats(0, 1, exclude_max=True), odd=st.sampled_from(ODD), key=st.sampled_from([None, *KEYS]))
def test_any_value_anywhere_is_read_or_a_usage_error(name, at, odd, key, tmp_path):
    document = yaml.safe_load((FILES / name).read_text())
    every = list(places(document))
    *path, last = every[int(at * len(every))]
    holder = document
    for each in path:
        holder = holder[each]
    holder[key if key and isinstance(holder, dict) else last] = odd
    file = tmp_path / name
    file.write_text(yaml.safe_dump(document))
    for reading in (lambda: read_deployment(file), lambda: pools_of(file, file.read_text())):
        with contextlib.suppress(UsageError):
            reading()

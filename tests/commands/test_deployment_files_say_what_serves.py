"""`--from-deployment`: model, GPU and flags of a server as its deployment file says them; what no option stands for is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.errors import UsageError
from simctl.options.from_deployment import Found, read_deployment
from tests.cli import run

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
COMMAND = f"""#!/bin/sh
# how we serve
exec vllm serve {MODEL} --port 8000 --tensor-parallel-size=2 \\
    --max-num-seqs 64 --kv-cache-dtype fp8 --no-enable-prefix-caching --api-key sk-secret --guided-decoding-backend xgrammar
"""
SGLANG = (
    f"python3 -m sglang.launch_server --model-path {MODEL} --tp 2 --max-running-requests 64 --kv-cache-dtype fp8_e5m2 --disable-radix-cache"
)
DOCKER = f"""docker run --runtime nvidia --gpus all -p 8000:8000 --ipc=host -v ~/.cache/huggingface:/root/.cache/huggingface \\
    --env "HF_TOKEN=secret" vllm/vllm-openai:v0.33.0 \\
    --model {MODEL} -tp 2 --max-num-seqs 64 --kv-cache-dtype fp8 --no-enable-prefix-caching
"""
COMPOSE = f"""
services:
  llm:
    image: vllm/vllm-openai:v0.33.0
    command: --model {MODEL} --tensor-parallel-size 2 --max-num-seqs 64 --kv-cache-dtype fp8 --no-enable-prefix-caching
  web:
    image: nginx
"""
KUBERNETES = f"""
apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 3
  template:
    spec:
      nodeSelector:
        nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
      containers:
      - name: vllm
        image: vllm/vllm-openai:latest
        command: ["/bin/sh", "-c"]
        args: ["vllm serve {MODEL} --tensor-parallel-size 2 --max-num-seqs 64 --kv-cache-dtype fp8 --no-enable-prefix-caching"]
        resources:
          limits:
            nvidia.com/gpu: "4"
"""
KSERVE = f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
spec:
  predictor:
    minReplicas: 2
    maxReplicas: 8
    model:
      modelFormat: {{name: huggingface}}
      args: ["--model_name=llama", "--tensor-parallel-size=2", "--max-num-seqs=64", "--kv-cache-dtype=fp8", "--no-enable-prefix-caching"]
      storageUri: hf://{MODEL}
"""
LLM_D = f"""
modelArtifacts:
  uri: hf://{MODEL}
decode:
  replicas: 2
  parallelism: {{tensor: 2}}
  containers:
  - image: ghcr.io/llm-d/llm-d-cuda
    command: [vllm, serve]
    args: ["--max-num-seqs", "64", "--kv-cache-dtype", "fp8", "--no-enable-prefix-caching"]
prefill:
  replicas: 0
"""
DYNAMO = f"""
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
spec:
  services:
    Frontend: {{replicas: 1}}
    VllmWorker:
      replicas: 1
      extraPodSpec:
        mainContainer:
          command: ["python3", "-m", "dynamo.vllm"]
          args: ["--model", "{MODEL}", "--tensor-parallel-size", "2", "--max-num-seqs", "64", "--kv-cache-dtype", "fp8",
                 "--no-enable-prefix-caching"]
"""


def read(tmp_path: Path, text: str) -> Found:
    path = tmp_path / "deployment"
    path.write_text(text)
    return read_deployment(path)


@pytest.mark.parametrize("text", [COMMAND, SGLANG, DOCKER, COMPOSE, KUBERNETES, KSERVE, LLM_D, DYNAMO])
def test_every_form_says_the_same_server(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text).options
    assert (found["model"], found["tp"], str(found["max_num_seqs"])) == (MODEL, 2, "64")
    assert (found["kv_dtype"], found["enable_prefix_caching"]) == ("fp8", False)
    assert found["engine"] == ("sglang" if text is SGLANG else "vllm")


def test_what_is_not_used_is_named_and_no_secret_is(tmp_path: Path) -> None:
    unused = read(tmp_path, COMMAND).unused
    assert unused == ["--guided-decoding-backend (acts on requests with a grammar alone)"]
    found = read(tmp_path, KUBERNETES)
    assert (found.options["gpu"], found.options["replicas"]) == ("NVIDIA-H100-80GB-HBM3", 3)
    assert found.unused == ["4 GPUs are asked for, and 2 used"]
    assert any("maxReplicas 8" in each for each in read(tmp_path, KSERVE).unused)


def test_a_folder_of_weights_is_known_by_its_name(tmp_path: Path) -> None:
    for text in ("vllm serve /models/Llama-3.1-8B --max-num-seqs 8", "python3 -m sglang.launch_server --model-path ./Llama-3.1-8B"):
        found = read(tmp_path, text)
        assert found.options["model"] == "Llama-3.1-8B"
        assert "its name is taken" in found.unused[0]
    assert read(tmp_path, "vllm serve gpt2 --max-num-seqs 8").options["model"] == "gpt2"


def test_every_size_of_parallelism_is_read_or_named(tmp_path: Path) -> None:
    text = KSERVE.replace("model:\n", "parallelism: {pipeline: 2, data: 4, expert: true, context: 2}\n    model:\n", 1)
    found = read(tmp_path, text)
    sizes = ("tp", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel")
    assert [found.options[name] for name in sizes] == [2, 2, 4, True]
    assert "parallelism context 2" in found.unused


def test_short_flags_of_parallelism_and_switches_of_sglang(tmp_path: Path) -> None:
    assert read(tmp_path, f"vllm serve {MODEL} -tp 2 -dp=2 -ep").options["enable_expert_parallel"] is True
    found = read(tmp_path, f"{SGLANG} --disable-cuda-graph --dp-size 4 --ep-size 1 --stream-interval 8 --random-seed 3")
    assert found.unused == ["--stream-interval (tokens are sent one by one, which is too slow in crowds: --host-rate token_s=S)"]
    assert (found.options["enforce_eager"], found.options["replicas"], found.options["enable_expert_parallel"]) == (True, 4, False)
    ranks = read(tmp_path, f"{SGLANG} --dp-size 2 --enable-dp-attention")
    assert (ranks.options["tp"], ranks.options["data_parallel_size"], ranks.unused) == (1, 2, [])


@pytest.mark.parametrize("command", ["vllm serve --config serve.yaml --max-num-seqs 8", ""])
def test_vllms_own_configuration_file(tmp_path: Path, command: str) -> None:
    """Beside the command, whose flags win, or alone."""
    file = tmp_path / "serve.yaml"
    file.write_text(f"model: {MODEL}\ntensor-parallel-size: 2\nmax_num_seqs: 64\nenable-prefix-caching: false\n")
    found = (read(tmp_path, command) if command else read_deployment(file)).options
    assert (found["model"], found["tp"], found["enable_prefix_caching"]) == (MODEL, 2, False)
    assert str(found["max_num_seqs"]) == ("8" if command else "64")


def test_an_image_says_its_version_and_variables_of_an_engine_are_named(tmp_path: Path) -> None:
    old = COMPOSE.replace("v0.33.0", "v0.11.2").replace(
        "    command", "    environment: {VLLM_MOE_DP_CHUNK_SIZE: 1, HF_TOKEN: s}\n    command", 1
    )
    found = read(tmp_path, old)
    assert found.options["engine_version"] == "0.11.2"
    assert found.unused == ["VLLM_MOE_DP_CHUNK_SIZE"]
    assert read(tmp_path, f"export NCCL_P2P_DISABLE=1\n{COMMAND}").unused[0] == "NCCL_P2P_DISABLE"
    assert "--engine-version 9.1" in read(tmp_path, COMPOSE.replace("v0.33.0", "v9.1")).unused


@pytest.mark.parametrize("model", ["-m models/llama-3.1-8b-instruct-q4_k_m.gguf", "-hf bartowski/llama-3.1-8b-instruct-GGUF:Q4_K_M"])
def test_llama_cpps_context_is_that_of_all_slots(tmp_path: Path, model: str) -> None:
    found = read(tmp_path, f"llama-server {model} -c 32768 -np 4 -ngl 99 -ub 256 -ctk q8_0 -ctv q8_0")
    assert found.options == {
        "engine": "llamacpp",
        "model": "llama-3.1-8b-instruct",
        "dtype": "q4_k_m",
        "max_model_len": "8192",
        "max_num_seqs": 4,
        "engine_option": ["n_ubatch=256"],
        "kv_dtype": "q8_0",
    }
    assert "max_model_len" not in read(tmp_path, f"llama-server {model} -c 0 -np -1 -kvu").options  # the model's own
    with pytest.raises(UsageError, match="keys in q8_0 and values in fp16 is not simulated"):
        read(tmp_path, f"llama-server {model} -ctk q8_0")
    with pytest.raises(UsageError, match="layers on the CPU are not simulated"):
        read(tmp_path, f"llama-server {model} -ngl 20")


def test_drafts_become_the_engines_options(tmp_path: Path) -> None:
    text = f"""vllm serve {MODEL} --speculative-config '{{"method": "eagle3", "num_speculative_tokens": 3}}'"""
    assert read(tmp_path, text).options["engine_option"] == ["draft_tokens=3", "drafter=eagle3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services: {web: {image: nginx}}", "no `vllm serve`, SGLang or llama-server in it"),
        ("vllm serve --port 1", "names no model"),
        (f"vllm serve {MODEL} --tensor-parallel-size two", "--tensor-parallel-size must be a whole number from 1 up"),
        (f"vllm serve '{MODEL}", "its command line"),
        (f"vllm serve {MODEL} --speculative-config '{{}}'", "needs num_speculative_tokens"),
    ],
)
def test_what_is_no_server_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"^deployment: ") as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_the_command_line_wins_and_the_rest_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "k8s.yaml"
    path.write_text(KUBERNETES)
    simulate = ("simulate", "--num-prompts", "20", "--request-rate", "5", "--draws", "0", "--from-deployment", str(path))
    done = run(*simulate, "--max-num-seqs", "32")
    assert done.code == 0
    assert "Llama-3.1-8B on 3 replicas of 2 x H100" in done.stdout
    assert "max_num_seqs 32" in done.stdout
    assert "k8s.yaml: not used: 4 GPUs are asked for, and 2 used" in done.stderr


@pytest.mark.parametrize("text", [KSERVE, DYNAMO], ids=["kserve", "dynamo"])
def test_a_manifest_of_another_version_is_one_line(text, tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(text.replace("/v1beta1", "/v9").replace("/v1alpha1", "/v9"))
    result = run("simulate", "--from-deployment", str(path), "--gpu", "H100", "--num-prompts", "2")
    assert result.code == 2
    assert result.stderr.count("\n") == 1
    assert "/v9 is not read; versions read are v1alpha1, " in result.stderr


@pytest.mark.parametrize(("extra", "gib"), [("", 5.0), (', "kv_connector_extra_config": {"lmcache.max_local_cpu_size": 8}', 8.0)])
def test_lmcache_is_said_to_be_answered_as_the_engines_own_tier(tmp_path: Path, extra: str, gib: float) -> None:
    found = read(tmp_path, f"""vllm serve {MODEL} --kv-transfer-config '{{"kv_connector": "LMCacheConnectorV1"{extra}}}'""")
    assert found.options["kv_offloading_size"] == gib
    assert found.options["engine_option"] == ["chunk_tokens=256"]
    assert any("answered as vLLM's host tier" in each for each in found.unused)


@pytest.mark.parametrize("line", ["pip install -q vllm==0.24.0", "# as before\nIMAGE=/images/vllm-openai_v0.24.0.sif"])
def test_what_a_script_installs_is_its_version(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, f"#!/bin/sh\n{line}\nvllm serve {MODEL}\n").options["engine_version"] == "0.24.0"


@pytest.mark.parametrize("words", ["--disaggregation-mode prefill", "--is-decode-worker"])
def test_one_of_two_roles_is_no_server(tmp_path: Path, words: str) -> None:
    with pytest.raises(UsageError, match=r"a server for (prefill|decode) alone"):
        read(tmp_path, f"python3 -m dynamo.vllm --model {MODEL} {words}")


def test_positions_are_overridden_where_a_length_is_said(tmp_path: Path) -> None:
    text = f"""vllm serve {MODEL} --hf-overrides '{{"rope_scaling": {{"factor": 4}}}}'"""
    assert read(tmp_path, f"{text} --max-model-len 131072").options["max_model_len"] == "131072"
    with pytest.raises(UsageError, match="how long may a context be"):
        read(tmp_path, text)


def test_rays_adapters_are_named(tmp_path: Path) -> None:
    server = f"model_loading_config: {{model_id: {MODEL}}}, engine_kwargs: {{}}, lora_config: {{max_num_adapters_per_replica: 4}}"
    assert any("lora_config" in each for each in read(tmp_path, f"llm_configs: [{{{server}}}]").unused)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('limits: {nvidia.com/gpu.shared: 1}\nargs: ["--model", "x"]', "that several servers share"),
        ("command: vllm serve x\nresources: {limits: {aws.amazon.com/neuron: 1}}", "Neuron and Ascend"),
        ('command: [python3, -m, dynamo.trtllm]\nargs: ["--model-path", "x"]', "TensorRT-LLM is not simulated"),
    ],
)
def test_what_no_engine_here_runs_on_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read(tmp_path, text)


def test_an_autoscalers_least_counts(tmp_path: Path) -> None:
    deployment = f"kind: Deployment\nspec: {{replicas: 1, args: [vllm, serve, {MODEL}]}}\n"
    text = f"{deployment}---\nkind: HorizontalPodAutoscaler\nspec: {{minReplicas: 3}}"
    assert read(tmp_path, text).options["replicas"] == 3


def test_images_of_rocm_say_their_version(tmp_path: Path) -> None:
    assert read(tmp_path, f"image: rocm/vllm:rocm7.0_vllm_0.11.0\ncommand: vllm serve {MODEL}").options["engine_version"] == "0.11.0"


def test_sglangs_total_tokens_are_its_pool(tmp_path: Path) -> None:
    assert read(tmp_path, f"sglang serve --model-path {MODEL} --max-total-tokens 100000 --page-size 64").options["num_gpu_blocks"] == 1562


def test_a_unified_cache_is_open_to_every_slot(tmp_path: Path) -> None:
    for words, tokens in (("", "4096"), (" -kvu", "16384")):
        found = read(tmp_path, f"llama-server -m Qwen3-8B-Q4_K_M.gguf -c 16384 -np 4{words}")
        assert str(found.options["max_model_len"]) == tokens

"""`--emit` prints files that the Kubernetes schema takes, with a router, a token, room for weights, and images of one version."""

import json
import re
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml

from sim.errors import UsageError
from sim.planning.emit import emitted
from sim.planning.race import Candidate, CandidateState, RaceResult
from sim.planning.trials import Trial
from sim.workload.workload import Workload
from tests.cli import run
from tests.planning.offered import choices as offered
from tests.planning.synthetic import TTFT

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "kubernetes.json").read_text())
REFERENCES = {
    ("apps/v1", "Deployment"): "io.k8s.api.apps.v1.Deployment",
    ("apps/v1", "StatefulSet"): "io.k8s.api.apps.v1.StatefulSet",
    ("v1", "Service"): "io.k8s.api.core.v1.Service",
}
POD = "io.k8s.api.core.v1.PodSpec"
ASKED = ["--gpu", "H100,L40S", "--model", "Llama-3.1-8B", "--num-prompts", "10", "--random-length-cv", "1", "--reserve", "replica"]


@cache
def validator(reference):
    """Made once: jsonschema.validate checks the whole schema at every call."""
    return jsonschema.validators.validator_for(SCHEMA)(SCHEMA | {"$ref": f"#/$defs/{reference}"})


def valid(document, reference):
    validator(reference).validate(document)


def documents_of(plan, kind):
    return list(yaml.safe_load_all(emitted(plan, kind, "=> the answer")))


def plan_of(pools):
    """Two units of the last choice win."""
    choices = offered(Workload.drawn(10, length_cv=1.0), "H100,L40S", pools, "replica")
    win = Candidate(len(choices) - 1, 2)
    win.add([Trial((0.5,))] * 100)
    return RaceResult(choices, TTFT, [CandidateState() for _ in choices], win)


@pytest.mark.parametrize("pools", ["one", "prefill-decode", "split"])
@pytest.mark.parametrize("kind", ["k8s", "llm-d"])
def test_kubernetes_takes_the_manifests(kind, pools):
    plan = plan_of(pools)
    documents = [each for each in documents_of(plan, kind) if each["kind"] != "InferencePool"]
    for document in documents:
        valid(document, REFERENCES[document["apiVersion"], document["kind"]])
    pods = [each for each in documents if each["kind"] != "Service" and each["metadata"]["name"] != "simctl-router"]
    assert [each["spec"]["replicas"] for each in pods] == plan.choices[plan.winner.choice].replicas(2)
    assert pods[-1]["spec"]["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L40S"}


@pytest.mark.parametrize("pools", ["one", "prefill-decode"])
def test_a_router_is_told_every_replica(pools):
    """Prefill and decode meet nowhere without a proxy, and replicas share no address of their own."""
    plan = plan_of(pools)
    documents = documents_of(plan, "k8s")
    router = next(each for each in documents if each["kind"] == "Deployment")
    command = router["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    names = [each["metadata"]["name"] for each in documents if each["kind"] == "StatefulSet"]
    for name, count in zip(names, plan.choices[plan.winner.choice].replicas(2), strict=True):
        assert [f"{name}-{i}.{name}:8000" in command for i in range(count + 1)] == [True] * count + [False]
    assert ("--vllm-pd-disaggregation" in command) == (pools == "prefill-decode")


@pytest.mark.parametrize("kind", ["k8s", "kserve", "llm-d", "dynamo"])
def test_weights_have_a_token_and_room_and_images_a_version(kind):
    text = emitted(plan_of("prefill-decode"), kind, "")
    assert ":latest" not in text
    assert "hf-token" in text
    if kind != "kserve":  # whose own initializer brings the weights
        sizes = [int(size) for size in re.findall(r"storage: (\d+)Gi", text)]
        assert sizes
        assert min(sizes) > 16.1e9 / 2**30


@pytest.mark.parametrize("kind", ["kserve", "dynamo"])
@pytest.mark.parametrize("pools", ["one", "prefill-decode", "split"])
def test_pods_inside_of_other_kinds_are_kubernetes_own(kind, pools):
    plan, found = plan_of(pools), []
    for document in documents_of(plan, kind):
        spec = document["spec"]
        found += [spec, *([spec["prefill"]] if "prefill" in spec else [])] if kind == "kserve" else spec["components"][1:]
    for part in found:
        valid(part["template"] if kind == "kserve" else part["podTemplate"]["spec"], POD)
    assert sorted(part["replicas"] for part in found) == sorted(plan.choices[plan.winner.choice].replicas(2))


@pytest.mark.parametrize("kind", ["k8s", "llm-d", "kserve"])
def test_servers_get_the_time_that_a_download_takes(kind):
    """16 GB at 50 MB/s, and half an hour to load; a plain probe would kill the server before."""
    text = emitted(plan_of("one"), kind, "")
    assert [int(each) for each in re.findall(r"failureThreshold: (\d+)", text)] == [(1800 + 16_060_522_496 // 50_000_000) // 10, 6]


def test_one_host_waits_for_its_servers_and_starts_them_again():
    services = yaml.safe_load(emitted(plan_of("one"), "compose", ""))["services"]
    assert {each["restart"] for each in services.values()} == {"unless-stopped"}
    servers = services.keys() - {"router"}
    assert services["router"]["depends_on"] == {name: {"condition": "service_healthy"} for name in servers}
    assert all(services[name]["healthcheck"]["start_period"] == f"{1800 + 16_060_522_496 // 50_000_000}s" for name in servers)
    words = services["router"]["command"][-1].split()
    assert int(words[words.index("--worker-startup-timeout-secs") + 1]) > 1800


def test_a_field_that_there_is_not_is_refused_by_the_schema():
    document = documents_of(plan_of("one"), "k8s")[0]
    document["spec"]["replica"] = 2
    with pytest.raises(jsonschema.ValidationError):
        valid(document, REFERENCES["apps/v1", "StatefulSet"])


def test_one_host_starts_what_it_has_gpus_for():
    with pytest.raises(UsageError, match="one host of 8 GPUs; the plan has 10"):
        emitted(plan_of("prefill-decode"), "compose", "")
    services = yaml.safe_load(emitted(plan_of("one"), "compose", ""))["services"]
    devices = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for name, each in services.items() if "vllm" in name]
    assert devices == [["0"], ["1"], ["2"]]


def test_a_command_for_each_pool_with_the_answer_above():
    text = emitted(plan_of("split"), "vllm", "=> the answer")
    assert text.startswith("# the answer\n")
    assert text.count("\nvllm serve meta-llama/Llama-3.1-8B --dtype bfloat16 --tensor-parallel-size 1") == 2
    assert "sends prompts of up to" in text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--engine", "llamacpp"), "--emit writes what starts vllm or sglang, not llamacpp"),
        (("--attention", "blocks:32"), "--emit knows dense attention in HBM"),
    ],
)
def test_what_vllm_does_not_have_is_refused_before_the_race(wrong, said):
    result = run("plan", *ASKED, "--slo", "ttft:p99<2s", "--emit", "vllm", *wrong)
    assert said in result.stderr
    assert not result.stdout

"""`--emit k8s` prints manifests that the Kubernetes schema takes; `--emit` prints commands and values that start what the plan says."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from sim.planning.emit import emitted
from sim.planning.race import RaceResult, Standing, Tried
from sim.planning.trials import Trial
from sim.workload.workload import Workload
from tests.cli import run
from tests.planning.offered import choices as offered
from tests.planning.synthetic import TTFT

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "kubernetes.json").read_text())
REFERENCES = {("apps/v1", "Deployment"): "io.k8s.api.apps.v1.Deployment", ("v1", "Service"): "io.k8s.api.core.v1.Service"}
ASKED = ["--gpu", "H100,L40S", "--model", "Llama-3.1-8B", "--num-prompts", "10", "--random-length-cv", "1", "--reserve", "replica"]


def plan_of(pools):
    """Two units of the last choice win."""
    choices = offered(Workload.drawn(10, length_cv=1.0), "H100,L40S", pools, "replica")
    win = Tried(len(choices) - 1, 2)
    win.add([Trial((0.5,))] * 100)
    return RaceResult(choices, TTFT, [Standing() for _ in choices], win)


@pytest.mark.parametrize("pools", ["one", "prefill-decode", "split"])
def test_kubernetes_takes_the_manifests(pools):
    plan = plan_of(pools)
    documents = list(yaml.safe_load_all(emitted(plan, "k8s", "=> the answer")))
    for document in documents:
        jsonschema.validate(document, SCHEMA | {"$ref": "#/$defs/" + REFERENCES[document["apiVersion"], document["kind"]]})
    deployments = [document for document in documents if document["kind"] == "Deployment"]
    assert [each["spec"]["replicas"] for each in deployments] == plan.choices[plan.winner.choice].replicas(2)
    assert deployments[-1]["spec"]["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L40S"}


def test_a_field_that_there_is_not_is_refused_by_the_schema():
    document = next(yaml.safe_load_all(emitted(plan_of("one"), "k8s", "")))
    document["spec"]["replica"] = 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA | {"$ref": "#/$defs/io.k8s.api.apps.v1.Deployment"})


def test_values_of_the_chart_have_both_roles():
    values = yaml.safe_load(emitted(plan_of("prefill-decode"), "llm-d", ""))
    counts = [values["prefill"]["replicas"], values["decode"]["replicas"]]
    assert counts == [6 + 1, 2 + 1]  # three times as many prefill as decode replicas, one of each standing by
    assert values["modelArtifacts"]["uri"] == "hf://meta-llama/Llama-3.1-8B"


def test_a_command_for_each_pool_with_the_answer_above():
    text = emitted(plan_of("split"), "vllm", "=> the answer")
    assert text.startswith("# the answer\n")
    assert text.count("\nvllm serve meta-llama/Llama-3.1-8B --dtype bfloat16 --tensor-parallel-size 1") == 2
    assert "sends prompts of up to" in text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--engine", "sglang"), "--emit writes what starts vLLM, not sglang"),
        (("--attention", "blocks:32"), "--emit knows dense attention in HBM"),
    ],
)
def test_what_vllm_does_not_have_is_refused_before_the_race(wrong, said):
    result = run("plan", *ASKED, "--slo", "ttft:p99<2s", "--emit", "vllm", *wrong)
    assert said in result.stderr
    assert not result.stdout

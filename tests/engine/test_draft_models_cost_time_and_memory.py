"""Draft models: its weights and KV share the GPU, its decode steps precede every verification, its tokens count."""

import json

import pytest

from sim.deployment.memory import block_bytes, device_memory, loaded_weight_bytes
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Deployment, Limits, plan_engine
from tests.cli import run

BASE = ("--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "20", "--request-rate", "2", "--random-output-len", "64")
DRAFTS = ("--engine-option", "draft_tokens=3", "--engine-option", "acceptance=0.8")


def simulated(*arguments: str) -> dict:
    result = run("simulate", *BASE, *arguments, "--json", "--draws", "0")
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)


def test_weights_and_kv_share_the_gpu():
    model, draft, gpu, bf16 = get_model("Llama-3.1-8B"), get_model("Llama-3.2-1B"), get_gpu("H100"), Precision()
    config, memory = plan_engine(Deployment(model, gpu, limits=Limits(draft=draft, options={"draft_tokens": 3, "drafter": "draft_model"})))
    alone = device_memory(model, gpu, bf16, token_budget=8192, max_num_seqs=1024)
    assert memory.weights == alone.weights + loaded_weight_bytes(draft, bf16)
    per_block = block_bytes(model, bf16, 16)[0] + block_bytes(draft, bf16, 16)[0]
    assert config.num_gpu_blocks == int((alone.free - loaded_weight_bytes(draft, bf16)) // per_block)


def test_its_steps_cost_time_that_the_gain_may_be_worth():
    plain, free, drafted = simulated(), simulated(*DRAFTS), simulated(*DRAFTS, "--engine-option", "draft-model=Llama-3.2-1B")
    assert free["mean_tpot_ms"] < drafted["mean_tpot_ms"] < plain["mean_tpot_ms"]
    # a larger draft model takes longer for the same drafts
    assert drafted["mean_tpot_ms"] < simulated(*DRAFTS, "--engine-option", "draft-model=Llama-3.2-3B")["mean_tpot_ms"]
    assert drafted["provenance"]["draft_model"] == "Llama-3.2-1B"
    assert drafted["provenance"]["engine_drafter"] == "draft_model"


def test_accepted_drafts_count_as_output():
    drafted = simulated("--engine-option", "draft_tokens=3", "--engine-option", "acceptance=1.0", "--request-rate", "inf")
    assert drafted["duration"] < 1.0
    assert drafted["max_output_tokens_per_s"] == 20 * 64  # all in the first second


@pytest.mark.parametrize("arguments", [(), ("--engine-option", "draft_tokens=0"), ("--engine", "sglang")])
def test_a_draft_model_without_drafts_is_refused(arguments):
    result = run("simulate", *BASE, "--engine-option", "draft-model=Llama-3.2-1B", *arguments)
    assert result.code == 2
    assert "draft-model needs" in result.stderr

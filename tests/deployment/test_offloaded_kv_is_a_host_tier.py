"""`kv-offloading-size=GIB`: host RAM that keeps prefix blocks, as vLLM's option of that name; refused where there can be none."""

import json

import pytest

from sim.deployment.memory import block_bytes
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Deployment, plan_engine
from tests.cli import run

SESSIONS = ("--num-prompts", "60", "--request-rate", "4", "--turns", "3", "--think-time", "20", "--random-input-len", "2000")
STARVED = ("simulate", "--model", "Llama-3.1-8B", "--gpu", "H100", "--engine-option", "num-gpu-blocks=1500", *SESSIONS, "--draws", "0")


def host_blocks(**limits):
    return plan_engine(Deployment.of("Llama-3.1-8B", "H100", **limits))[0].options.get("host_blocks")


def test_the_size_is_in_gib_over_the_gpus_of_a_replica():
    block = block_bytes(get_model("Llama-3.1-8B"), Precision("bf16"), 16)[0]
    assert host_blocks() is None
    assert host_blocks(kv_offloading_size=64) == 64 * 2**30 // block
    assert host_blocks(kv_offloading_size=64, tp=2) == 64 * 2**30 // block
    assert host_blocks(kv_offloading_size=64, block_size=32) == 64 * 2**30 // (2 * block)


def test_it_is_the_host_tier_of_as_many_blocks():
    offloaded = run(*STARVED, "--engine-option", "kv-offloading-size=32", "--json")
    tiered = run(*STARVED, "--engine-option", "host_blocks=16384", "--json")
    assert offloaded.code == 0, offloaded.stderr
    assert json.loads(offloaded.stdout) == json.loads(tiered.stdout)


def test_sessions_come_back_from_it_sooner():
    with_tier, without = (json.loads(run(*STARVED, *more, "--json").stdout) for more in (("--engine-option", "kv-offloading-size=32"), ()))
    assert with_tier["kv_hit_rate_host"] > 0.1
    assert with_tier["mean_ttft_ms"] < without["mean_ttft_ms"]


def test_the_answer_says_what_it_keeps():
    above = run(*STARVED, "--engine-option", "kv-offloading-size=32").stdout
    assert "KV blocks kept in host RAM: 16384" in above


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine-option", "kv-offloading-size=0"), "GiB above 0"),
        (("--engine-option", "kv-offloading-size=-3"), "GiB above 0"),
        (("--engine-option", "kv-offloading-size=nan"), "GiB above 0"),
        (("--engine-option", "kv-offloading-size=inf"), "GiB above 0"),
        (("--engine-option", "kv-offloading-size=lots"), "not a valid float"),
        (("--engine-option", "kv-offloading-size=0.0001"), "0.0001 GiB of host RAM hold no KV block of 16 tokens"),
        (("--engine-option", "kv-offloading-size=9", "--engine", "sglang"), "is vllm's; sglang has none"),
        (("--engine-option", "kv-offloading-size=9", "--engine-option", "host_blocks=9"), "give one of them"),
        (("--engine-option", "kv-offloading-size=9", "--gpu", "GB10"), "one memory for CPU and GPU"),
        (("--engine-option", "kv-offloading-size=9", "--engine-option", "host-kv=64"), "in host RAM already"),
        (("--engine-option", "kv-offloading-size=9", "--no-enable-prefix-caching"), "needs prefix caching"),
        (("--engine-option", "kv-offloading-size=9", "--model", "Qwen3-Next-80B-A3B", "--dtype", "int4"), "needs prefix caching"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, message):
    result = run(*STARVED, *arguments)
    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr

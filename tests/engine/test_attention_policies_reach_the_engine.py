"""`--attention` and `host-kv`: what a decode reads, where KV lives, and how much of it there is room for."""

import json
from dataclasses import replace

import pytest

from sim.cost.batch import DENSE, mixed_batch
from sim.cost.coefficients import coefficients
from sim.cost.step_time import step_time_s
from sim.cost.work import work_from
from sim.deployment.memory import device_memory
from sim.engine.step_clock import StepTime
from sim.rates.priors import prior_rates
from sim.specs.attention_policy import blocks, dense, pages, sink_window
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Deployment, Limits, plan_engine
from sim.ticks import TICK_S
from tests.cli import run

MODEL, BF16 = "Qwen2.5-7B-1M", Precision()
LONG = (
    "--model",
    MODEL,
    "--max-model-len",
    "auto",
    "--num-prompts",
    "4",
    "--request-rate",
    "inf",
    "--random-input-len",
    "60000",
    "--random-output-len",
    "200",
)


def simulated(*arguments: str) -> dict:
    result = run("simulate", *arguments, "--json", "--draws", "0")
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)


def block_count(gpu: str, **limits) -> int:
    return plan_engine(Deployment.of(MODEL, gpu, max_num_batched_tokens=2048, max_num_seqs=64, **limits))[0].num_gpu_blocks


def test_blocks_are_those_of_the_smaller_memory():
    model, gpu = get_model(MODEL), get_gpu("A10")
    c = coefficients(model, BF16)
    free = device_memory(model, gpu, BF16, token_budget=2048, max_num_seqs=64).free
    assert block_count("A10") == free // (16 * c.kv_token_bytes)
    # a page of 16 tokens has one summary beside it
    assert block_count("A10", attention=pages(8)) == free // (16 * c.kv_token_bytes + c.summary_unit_bytes)
    assert block_count("A10", attention=dense("host"), host_kv_bytes=50e9) == 50e9 // (16 * c.kv_token_bytes)
    # with very much host RAM the summaries in HBM are what is scarce: one per block of 128 tokens
    assert block_count("A10", attention=blocks(8, "host"), host_kv_bytes=1e15) == free // (16 / 128 * c.summary_unit_bytes)


def test_host_ram_holds_what_hbm_cannot():
    refused = run("simulate", "--gpu", "A10", *LONG, "--random-input-len", "200000")
    assert refused.code == 2
    assert "more than max_model_len" in refused.stderr
    served = simulated("--gpu", "A10", *LONG, "--random-input-len", "200000", "--engine-option", "host-kv=200", "--attention", "blocks:32")
    assert served["completed"] == 4
    assert served["cost_shares"]["host link"] > 0
    assert served["provenance"]["attention"] == "top 32 blocks of 128 (KV in host RAM)"


@pytest.mark.parametrize("policy", [dense("host"), blocks(8, "host"), sink_window("host")], ids=lambda policy: policy.kind)
def test_prefill_fetches_what_earlier_chunks_left_in_host_ram(policy):
    model, rates = get_model(MODEL), prior_rates(get_gpu("A10"), BF16, draws=2).point
    c = coefficients(model, BF16)
    steps = StepTime(model, BF16, rates, policy=policy)
    first, later = (mixed_batch(model, [], [(2048, end, False)], policy) for end in (2048, 102_400))
    work, without = steps.work(later), work_from(c, later, replace(policy, placement="hbm"))
    past = (102_400 - 2048) * c.kv_token_bytes
    assert steps.work(first).link_bytes == 0.0
    assert work.link_bytes == past
    # what a policy brings ahead of time is staged in HBM, and read from there
    assert work.prefill_kv_bytes == pytest.approx(without.prefill_kv_bytes - past * (1.0 - policy.overlap))
    # streamed layer by layer, all of it may hide behind the layers' work; over a slow link it cannot
    assert work.link_hidden_bytes == past
    slow = StepTime(model, BF16, replace(rates, link_bytes_per_s=1e9), policy=policy)
    compute_s, fetch_s = step_time_s(without, rates), past / 1e9
    # the fetch hides all of the layers' work; per-iteration costs stay beside it
    assert fetch_s < slow.priced(later) * TICK_S < fetch_s + 0.2 * compute_s


def test_decodes_that_select_still_wait_for_what_they_select_beside_prefill():
    model, policy = get_model(MODEL), blocks(8, "host")
    steps = StepTime(model, BF16, prior_rates(get_gpu("A10"), BF16, draws=2).point, policy=policy)
    beside = mixed_batch(model, [50_000.0], [(512, 4096, False)], policy)
    alone = mixed_batch(model, [50_000.0], [], policy)
    work = steps.work(beside)
    assert work.link_bytes > steps.work(alone).link_bytes > 0.0
    assert steps.work(alone).link_hidden_bytes == 0.0
    assert 0.0 < work.link_hidden_bytes < work.link_bytes


def test_selection_pays_at_long_contexts_and_costs_at_short_ones():
    short = ("--random-input-len", "500")
    times = {
        (policy, length): simulated("--gpu", "H100", *LONG, *length, "--attention", policy)["median_itl_ms"]
        for policy in ("dense", "blocks:8")
        for length in ((), short)
    }
    assert times["blocks:8", ()] < times["dense", ()]
    assert times["blocks:8", short] > times["dense", short]


def test_dense_in_hbm_is_what_it_was_without_the_option():
    base = ("--gpu", "H100", *LONG)
    assert simulated(*base) == simulated(*base, "--attention", "dense")
    assert Limits().attention == DENSE == dense()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "A10", "--attention", "pages"), "none of dense, sink-window"),
        (("--gpu", "A10", "--attention", "dense:8"), "none of dense, sink-window"),
        (("--gpu", "A10", "--attention", "blocks:0"), "K from 1 to 4096"),
        (("--gpu", "A10", "--engine-option", "host-kv=nan"), "gigabytes above 0"),
        (("--gpu", "A10", "--engine-option", "host-kv=-1"), "gigabytes above 0"),
        (("--gpu", "GB10", "--engine-option", "host-kv=64"), "one memory for CPU and GPU"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, message):
    result = run("simulate", *LONG, *arguments)
    assert result.code == 2
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_too_little_host_ram_says_so():
    result = run("simulate", *LONG, "--gpu", "A10", "--engine-option", "host-kv=0.000001")
    assert result.code == 1
    assert "hold no KV block" in result.stderr

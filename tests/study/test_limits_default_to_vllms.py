"""Limits not given are what vLLM's server takes on that GPU, and KV blocks what its memory leaves."""

from dataclasses import replace

import pytest

from sim.deployment.memory import block_bytes
from sim.engine.registry import make_scheduler
from sim.errors import SimctlError, UsageError
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Deployment, plan_engine
from sim.study.simulate_question import simulate
from sim.workload.workload import Workload

LLAMA = get_model("Llama-3.1-8B")


def plan(gpu, model=LLAMA, tp=1, **limits):
    return plan_engine(Deployment.of(model, gpu, tp=tp, **limits))


@pytest.mark.parametrize(
    ("gpu", "expected"), [("H100", (1024, 8192)), ("A10", (256, 2048)), ("A100-80G", (256, 2048)), ("H200", (1024, 8192))]
)
def test_batch_limits(gpu, expected):
    config, _ = plan(gpu)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == expected


def test_llamacpp_takes_its_servers_slots_and_each_has_its_share_of_the_kv():
    config, _ = plan("A10", engine="llamacpp")
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (4, 2048)
    assert config.max_model_len == config.kv_capacity_tokens // 4
    make_scheduler(config)
    with pytest.raises(UsageError, match=r"8 slots of \d+ tokens each are more than"):
        make_scheduler(replace(config, max_num_seqs=8))
    make_scheduler(replace(config, max_num_seqs=8, options={"kv_unified": True}))


def test_one_limit_given_bends_the_other():
    assert plan("H100", max_num_batched_tokens=512)[0].max_num_seqs == 512
    assert plan("A100-80G", max_num_seqs=4096)[0].max_num_batched_tokens == 4096


def test_blocks_fill_what_is_left_and_grow_with_utilisation():
    config, memory = plan("H100")
    assert config.num_gpu_blocks == int(memory.free // block_bytes(LLAMA, Precision(), 16)[0])
    assert plan("H100", gpu_memory_utilization=0.95)[0].num_gpu_blocks > config.num_gpu_blocks
    assert plan("H100", num_gpu_blocks=99)[0].num_gpu_blocks == 99


def test_a_model_that_does_not_fit_says_what_it_needs():
    with pytest.raises(SimctlError, match=r"Llama-3\.1-70B does not fit on 1 x A10: weights and activations need 14[0-9]"):
        plan("A10", get_model("Llama-3.1-70B"))
    config, _ = plan("H100", get_model("Llama-3.1-70B"), tp=4)
    assert config.num_gpu_blocks > 1000


def test_recurrent_state_takes_slots_out_of_the_same_memory():
    hybrid = get_model("Qwen3-Next-80B-A3B")
    config, memory = plan("B200", hybrid)
    layout = Deployment.of(hybrid, "B200").layout
    assert config.max_num_seqs < 1024
    assert config.max_num_seqs * layout.request_blocks(1) * layout.block_bytes <= memory.free
    assert not config.enable_prefix_caching
    assert plan("B200", hybrid, enable_prefix_caching=True)[0].enable_prefix_caching
    assert plan("B200")[0].enable_prefix_caching
    with pytest.raises(SimctlError, match=r"max_num_seqs 5000 is more than the \d+ blocks for recurrent states: vLLM \S+ would not start"):
        plan("B200", hybrid, max_num_seqs=5000, max_num_batched_tokens=8192)
    assert plan("B200", hybrid, max_num_seqs=5000, max_num_batched_tokens=8192, engine_version="0.24")[0].max_num_seqs == 5000
    with pytest.raises(SimctlError, match="5000 slots of recurrent state"):
        plan("B200", hybrid, max_num_seqs=5000, engine="llamacpp", max_num_batched_tokens=8192)


def test_a_budget_beyond_all_kv_takes_no_memory():
    d = Deployment.of("Llama-3.1-8B", "A10", max_num_batched_tokens=2**53, max_model_len=4096, num_gpu_blocks=2000)
    assert simulate(d, Workload.drawn(3, request_rate=4.0), draws=0).summary["completed"] == 3

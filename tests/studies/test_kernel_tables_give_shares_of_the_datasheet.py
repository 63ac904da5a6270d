"""From tables of kernel latencies made with a known rate and launch cost, the share of the datasheet's peak comes back."""

from pathlib import Path

import numpy as np
import pytest

from sim.cost.all_reduce import wire_bytes
from sim.cost.smooth import smooth_max
from sim.rates.priors import gpu_link
from sim.specs.gpus import get_gpu
from studies.kernel_tables.latency_tables import Table
from studies.population.kernel_efficiency import BY_KERNELS, efficiencies, estimates

GPUS = ("A100-80G", "L40S")  # with a link between GPUs and without; none of them has products of ours
SHARE = {
    "beta": 0.8, "linear_flops_per_s": 0.7, "beta_expert": 0.75, "beta_kv": 0.9, "beta_state": 0.85, "expert_flops_per_s": 0.45,
    "attention_flops_per_s": 0.5, "comm_bytes_per_s": 0.6,
}  # fmt: skip
LAUNCH_S = 5e-6


def table(gpu, name, rows):
    keys = rows[0]
    return Table(gpu, name, "1", Path("made"), {key: np.array([row[key] for row in rows]) for key in keys})


def tables(gpu, rng):
    bandwidth, flops = gpu.memory_bandwidth, gpu.flops["bf16"]

    def ms(seconds):
        return (LAUNCH_S + seconds * np.exp(0.003 * rng.standard_normal())) * 1e3

    gemm = []
    for n in (16384, 28672):
        for k in (8192, 16384):
            for m in (1, 64, 8192):
                best = smooth_max(2 * n * k / (0.8 * bandwidth), 2 * m * n * k / (0.7 * flops))
                gemm.append({"m": m, "n": n, "k": k, "gemm_dtype": "bfloat16", "latency": 1e3 * best})
    decode, prefill, reduce, experts, state = [], [], [], [], []
    shape = {"num_key_value_heads": 8, "num_heads": 32, "head_dim": 128, "kv_cache_dtype": "bfloat16"}
    for batch in (8, 16, 32):
        for length in (8192, 16384, 32768):
            kv, pairs = 4 * batch * length * 8 * 128, 2 * batch * 32 * 128 * length**2
            decode.append({**shape, "batch_size": batch, "step": length - 1, "latency": ms(kv / (0.9 * bandwidth))})
            prefill.append({**shape, "batch_size": batch, "isl": length, "latency": ms(pairs / (0.5 * flops))})
            moved = 8 * batch * 64 * 32 * 128 * 128
            state.append({
                "kernel_source": "fused_recurrent_x", "phase": "generation", "batch_size": batch * 64, "num_v_heads": 32, "head_k_dim": 128,
                "head_v_dim": 128, "latency": ms(moved / (0.85 * bandwidth)),
            })  # fmt: skip
    for count in (2, 4, 8):
        for size in (2**i for i in range(19, 27)):
            moved = wire_bytes(2.0 * size, count, gpu)
            row = {"backend": "vllm_graph", "num_gpus": count, "message_size": size}
            reduce.append({**row, "latency": ms(moved / (0.6 * gpu_link(gpu)))})
    for inner in (2048, 4096, 6144, 8192, 10240, 12288, 14336, 16384):
        one, mixture = 3.0 * 4096 * inner, {"moe_dtype": "bfloat16", "moe_tp_size": 1, "moe_ep_size": 1, "hidden_size": 4096}
        mixture |= {"inter_size": inner, "topk": 2, "num_experts": 8, "distribution": "balanced"}
        experts.append({**mixture, "num_tokens": 1, "latency": ms(4 * one / (0.75 * bandwidth))})
        experts.append({**mixture, "num_tokens": 8192, "latency": ms(4 * 8192 * one / (0.45 * flops))})
    named = {
        "gemm_perf": gemm, "generation_attention_perf": decode, "context_attention_perf": prefill, "custom_allreduce_perf": reduce,
        "moe_perf": experts, "gdn_perf": state,
    }  # fmt: skip
    return [table(gpu, name, rows) for name, rows in named.items()]


@pytest.mark.parametrize("name", GPUS)
def test_shares_come_back_for_every_rate(name):
    found = estimates(efficiencies(tables(get_gpu(name), np.random.default_rng(0))))
    assert {e.rate for e in found} == set(SHARE) == set(BY_KERNELS)
    for estimate in found:
        assert estimate.gpu == name
        assert np.exp(estimate.log_value) == pytest.approx(SHARE[estimate.rate], rel=0.03), estimate


def test_a_rate_that_few_calls_show_is_not_estimated():
    whole = tables(get_gpu("L40S"), np.random.default_rng(0))
    few = [t.where(np.arange(len(t)) < 5) if t.name == "generation_attention_perf" else t for t in whole]
    assert "beta_kv" not in {e.rate for e in estimates(efficiencies(few))}

"""From tables of kernel latencies made with a known rate and launch cost, the share of the datasheet's peak comes back."""

import csv

import numpy as np
import pytest

from calibrate.population.kernels import SYSTEMS, estimates
from sim.errors import UsageError
from sim.specs.gpus import get_gpu

SHARE = {"beta": 0.8, "linear_flops_per_s": 0.7, "beta_kv": 0.9, "attention_flops_per_s": 0.5, "comm_bytes_per_s": 0.6}
LAUNCH_S = 5e-6


def write(folder, name, rows):
    with open(folder / f"{name}.csv", "w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def tables(folder, rng):
    gemm, decode, prefill, reduce = [], [], [], []

    def ms(work, peak, share):
        return (LAUNCH_S + work / (share * peak) * np.exp(0.003 * rng.standard_normal())) * 1e3

    for system, name in SYSTEMS.items():
        gpu = get_gpu(name)
        for n in (16384, 20480, 28672):
            for k in (8192, 12288, 16384):
                gemm.append({"system": system, "m": 4, "n": n, "k": k, "latency_ms": ms(2 * n * k, gpu.memory_bandwidth, 0.8)})
                gemm.append({"system": system, "m": 4096, "n": n, "k": k, "latency_ms": ms(8192 * n * k, gpu.flops["bf16"], 0.7)})
        for batch in (8, 16, 32):
            for length in (8192, 16384, 32768):
                shape = {"system": system, "batch_size": batch, "num_key_value_heads": 8, "num_heads": 32, "head_dim": 128}
                kv = 4 * batch * length * 8 * 128
                decode.append({**shape, "context_len": length, "latency_ms": ms(kv, gpu.memory_bandwidth, 0.9)})
                flops = 2 * batch * 32 * 128 * length**2
                prefill.append({**shape, "isl": length, "latency_ms": ms(flops, gpu.flops["bf16"], 0.5)})
        for count in (2, 4, 8):
            for size in (2**22, 2**24, 2**26, 2**28):
                moved = 2 * (count - 1) / count * size
                row = {"system": system, "backend": "vllm_graph", "num_gpus": count, "bytes": size}
                reduce.append({**row, "latency_ms": ms(moved, gpu.gpu_link_bandwidth, 0.6)})
    for name, rows in (
        ("gemm_bf16_subset", gemm),
        ("decode_attention_bf16_gqa", decode),
        ("prefill_attention_bf16_gqa", prefill),
        ("allreduce_bf16", reduce),
    ):
        write(folder, name, rows)


def test_shares_come_back_for_every_gpu_and_rate(tmp_path):
    tables(tmp_path, np.random.default_rng(0))
    found = estimates(tmp_path)
    assert {(e.gpu, e.rate) for e in found} == {(g, r) for g in SYSTEMS.values() for r in SHARE}
    for estimate in found:
        assert np.exp(estimate.log_value) == pytest.approx(SHARE[estimate.rate], rel=0.03), estimate
        assert estimate.error < 0.02


def test_a_missing_table_and_too_few_calls_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match="no table"):
        estimates(tmp_path)
    tables(tmp_path, np.random.default_rng(0))
    with open(tmp_path / "decode_attention_bf16_gqa.csv") as handle:
        rows = list(csv.DictReader(handle))
    write(tmp_path, "decode_attention_bf16_gqa", rows[:5])
    with pytest.raises(UsageError, match="5 calls show beta_kv of A100-80G"):
        estimates(tmp_path)

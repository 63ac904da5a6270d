"""The byte bill, the three-parameter model and the tiering figures of the long-context report follow from our bill and its price.

Facts: scenarios/data/reference/brl07; identifiers as in scenarios/data/reference/checks.md.
"""

import csv
from dataclasses import replace
from importlib.resources import files

import pytest

from sim import Deployment
from sim.closed_form.knee import closed_form_knee
from sim.closed_form.what_if import WhatIf, crossover_context
from sim.cost.batch import decode_batch
from sim.cost.coefficients import coefficients
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.deployment.memory import resident_weight_bytes, sequence_bytes
from sim.rates.priors import c1_rates, prior_rates
from sim.specs.attention_policy import blocks, dense
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.units import parse_tokens

MODEL = get_model("Qwen2.5-7B")
BF16 = Precision()
RATES = prior_rates(get_gpu("H100"), BF16).point


def table(name):
    with files("scenarios").joinpath(f"data/reference/brl07/{name}.csv").open() as handle:
        return list(csv.DictReader(handle))


def fact(name, **where):
    (row,) = [r for r in table(name) if all(r[key] == value for key, value in where.items())]
    return float(row["value"])


def published(symbol, k=""):
    return fact("cost_model_params", symbol=symbol, k_blocks=k)


def step_s(batch, context, policy=None):
    used = policy or dense()
    return step_time_s(iteration_work(MODEL, decode_batch(MODEL, float(batch), float(context), used), BF16, used), RATES)


def kernels_s(rates):
    """Small kernels of an iteration, and the floors of products that nobody measured."""
    return coefficients(MODEL, BF16).kernels * rates.kernel_s


@pytest.mark.parametrize("label", ["128K", "1M"])
def test_b01_kv_bytes_per_sequence(label):
    in_hbm, _ = sequence_bytes(MODEL, parse_tokens(label), BF16, dense())
    assert coefficients(MODEL, BF16).kv_token_bytes == 57344
    assert in_hbm / 1e9 == pytest.approx(fact("byte_bill", item="dense_kv_read", context_label=label), rel=1e-2)


def test_b02_weights_and_total_bill():
    weights = resident_weight_bytes(MODEL, BF16)
    assert MODEL.params == 7_615_616_512
    assert weights / 1e9 == pytest.approx(fact("byte_bill", item="model_weights"), rel=2e-3)
    total = weights + sequence_bytes(MODEL, 8192, BF16, dense())[0]
    assert total / 1e9 == pytest.approx(fact("byte_bill", item="total_bill_batch1"), rel=2e-3)


def test_rates_of_the_h100_are_the_published_fit():
    """The published c0 goes with all parameters read and holds small kernels; ours has the embedding table's time, and they their own."""
    embedding_s = MODEL.embedding_params * 2 / RATES.beta
    assert RATES.beta == published("beta") * 1e12
    assert RATES.c0_s + kernels_s(RATES) - embedding_s == pytest.approx(published("c0") * 1e-3, rel=1e-9)
    for k in (8, 32):
        assert 28 * (RATES.c1_s + k * RATES.c1_unit_s) == pytest.approx(published("c1", str(k)) * 1e-3, rel=1e-9)


def test_b03_sparse_over_dense_at_8k_batch_1():
    ratio = step_s(1, 8192) / step_s(1, 8192, blocks(8))
    assert ratio == pytest.approx(fact("end_to_end", metric="sparse_over_dense", context_label="8K"), abs=0.02)


@pytest.mark.parametrize("label", ["8K", "32K", "128K"])
def test_b04_sparse_rate_is_flat_in_context(label):
    assert 1 / step_s(1, parse_tokens(label), blocks(8)) == pytest.approx(
        fact("end_to_end", metric="sparse_per_seq_throughput_approx"), rel=0.03
    )


def test_b05_dense_grid_of_the_three_parameter_model():
    for row in table("derived_h100_cost_model_grid"):
        ours = step_s(int(row["batch"]), int(row["context_tokens"])) * 1e3
        assert ours == pytest.approx(float(row["dense_step_ms"]), rel=0.05)


def test_b06_dense_operator_bandwidth_at_1m_batch_8():
    one_layer = 8 * sequence_bytes(MODEL, 2**20, BF16, dense())[0] / 28
    latency_s = fact("op_level", series="dense", metric="latency", context_label="1M") * 1e-6
    peak = fact("op_level", metric="peak_bandwidth") * 1e12
    assert get_gpu("H100").memory_bandwidth == peak
    assert one_layer / latency_s / peak == pytest.approx(0.96, abs=0.01)


def test_b09_a10_tiering_identities():
    rate, floor = (fact("tiering", metric=m) for m in ("tiered_sparse_decode", "dense_from_host_floor"))
    cache = sequence_bytes(MODEL, 2**20, BF16, dense("host"))[1]
    assert rate / floor == pytest.approx(fact("tiering", metric="advantage"), rel=0.02)
    assert floor * cache == pytest.approx(24e9, rel=0.02)
    assert cache / (fact("tiering", metric="gpu_memory") * 1e9) == pytest.approx(fact("tiering", metric="cache_over_gpu_memory"), rel=0.02)


def test_b10_best_dense_backend_is_86_to_96_percent_of_peak():
    peak = get_gpu("H100").memory_bandwidth / 1e12
    for end in ("min", "max"):
        share = 100 * fact("op_level", metric=f"bandwidth_{end}") / peak
        assert share == pytest.approx(fact("op_level", metric=f"roofline_{end}"), abs=1.0)


@pytest.mark.parametrize(("k", "batch", "thousands"), [(8, 1, 90), (32, 1, 176), (8, 8, 11), (32, 8, 22)])
def test_b11_crossover_is_c1_beta_over_k(k, batch, thousands):
    """Without the keep-set's and the summaries' bytes the formula's crossover is c1 beta / (k batch); with them it is a little later."""
    question = WhatIf(Deployment(MODEL, get_gpu("H100")), 2**20)
    closed = published("c1", str(k)) * 1e-3 * published("beta") * 1e12 / 57344 / batch
    assert round(closed / 1e3) == thousands
    crossing = crossover_context(question, blocks(k), batch, RATES)
    # the keep-set (k blocks, sink, window) is read whatever the context, and one key's worth of bytes per 128 tokens is scanned
    keep = 128 * k + 128 + 512
    assert crossing == pytest.approx((closed + keep) / (1 - 1 / 128), rel=0.01)


def test_b12_h200_rates_are_those_the_published_ratios_imply():
    implied = {row["parameter"]: float(row["value"]) for row in table("derived_h200_implied_params")}
    rates = prior_rates(get_gpu("H200"), BF16).point
    embedding_s = MODEL.embedding_params * 2 / rates.beta
    assert rates.beta / 1e12 == implied["beta"]
    assert 0.86 <= rates.beta / get_gpu("H200").memory_bandwidth <= 0.96
    assert (rates.c0_s + kernels_s(rates) - embedding_s) * 1e3 == pytest.approx(implied["c0"], rel=1e-9)
    assert 28 * (rates.c1_s + 32 * rates.c1_unit_s) * 1e3 == pytest.approx(implied["c1_k32_at_128k"], rel=1e-9)


def test_find_rates_pass_through_both_published_points():
    base, per_unit = c1_rates(1.7e-3, 3.3e-3)
    assert 28 * (base + 8 * per_unit) == pytest.approx(1.7e-3)
    assert 28 * (base + 32 * per_unit) == pytest.approx(3.3e-3)


def test_two_term_knee_is_the_formula_without_fixed_costs():
    """With host costs, small kernels and compute taken away, the formula's efficiency is the published eta, its knee the closed form."""
    bare = replace(RATES, c0_s=0.0, c_seq_s=0.0, kernel_s=0.0, linear_flops_per_s=1e30, attention_flops_per_s=1e30)
    one = iteration_work(MODEL, decode_batch(MODEL, 1.0, 8192.0), BF16)._replace(activation_bytes=0.0)
    r = 8192 * 57344 / (one.linear_bytes + one.head_bytes)
    knee = closed_form_knee(r)
    many = iteration_work(MODEL, decode_batch(MODEL, knee, 8192.0), BF16)._replace(activation_bytes=0.0)
    assert step_time_s(one, bare) / step_time_s(many, bare) == pytest.approx(0.65, rel=1e-3)

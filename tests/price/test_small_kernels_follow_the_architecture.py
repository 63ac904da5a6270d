"""Small kernels and launches: counted per layer by architecture."""

from dataclasses import replace

import pytest

from sim.cost.attention import mixed_fill, query_heads
from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.coefficients import layer_work
from sim.cost.layer_work import PIECES, Setting
from sim.cost.mixer_work import ATTENTION_KERNELS
from sim.cost.mlp_work import EXPERT_KERNELS, EXPERT_LAUNCHES
from sim.cost.work import iteration_work
from sim.specs.checkpoint import GroupBytes
from sim.specs.model import Attention, DenseMlp, LayerGroup, MoeMlp
from sim.specs.precision import Precision
from tests.price.shapes import HYBRID_MOE, LATENT, QWEN_7B, SLIDING

DENSE = LayerGroup(1, Attention(32, 8, 128), DenseMlp(14336))


def of_layer(group, hidden=4096, tp=1):
    """Small kernels, GEMMs, bytes per row and elements per row that enter GEMMs."""
    found = layer_work(group, GroupBytes(0.0), Setting(hidden, Precision(), tp))
    return found.kernels, found.gemms, found.row_bytes, found.row_inputs


def test_a_dense_layer_has_two_norms_rotary_kv_write_activation_and_attention_as_six():
    small, gemms, row_bytes, inputs = of_layer(DENSE)
    assert (small, gemms) == (5.0 + ATTENTION_KERNELS, 4.0)
    norms, attention, mlp = 8 * 4096, 2 * (4096 + 1024) + 2 * 1024 + 2 * 4096, 3 * 14336
    assert row_bytes == 2.0 * (norms + attention + mlp)
    assert inputs == 3 * 4096 + 14336


def test_norms_of_queries_and_keys_pass_over_them_once_more():
    plain, normed = (of_layer(replace(DENSE, mixer=replace(DENSE.mixer, qk_norm=on))) for on in (False, True))
    assert [b - a for a, b in zip(plain, normed, strict=True)] == [1.0, 0.0, 2.0 * 2 * (4096 + 1024), 0.0]


def test_a_layer_of_experts_has_more():
    small, gemms, *_ = of_layer(replace(DENSE, mlp=MoeMlp(64, 4, 1024)))
    assert (small, gemms) == (4.0 + ATTENTION_KERNELS + EXPERT_KERNELS, 3.0)
    shape = mixed_batch(HYBRID_MOE, [], [(1000, 1000, 1)])
    experts = sum(g.count for g in HYBRID_MOE.groups if g.mlp.kind == "moe")
    work = iteration_work(HYBRID_MOE, shape, Precision())
    assert work.launch_layers == pytest.approx(HYBRID_MOE.layers + experts * (EXPERT_LAUNCHES - 1.0))
    # experts are inside the captured pieces of a graph; attention between them, which the host launches, is not
    pieces = iteration_work(HYBRID_MOE, mixed_batch(HYBRID_MOE, [], [(100, 100, 1)]), Precision())
    assert pieces.launch_layers == pytest.approx(PIECES * HYBRID_MOE.layers)
    assert iteration_work(HYBRID_MOE, mixed_batch(HYBRID_MOE, [100.0], []), Precision()).launch_layers == 0.0


def test_activations_are_quantised_before_each_product_by_a_kernel_that_reads_16_bits_and_writes_8():
    shape, layers = mixed_batch(QWEN_7B, [], [(1000, 1000, 1)]), QWEN_7B.layers
    plain, quantised = (iteration_work(QWEN_7B, shape, Precision(dtype)) for dtype in ("bf16", "fp8"))
    assert quantised.launch_layers == plain.launch_layers
    assert quantised.kernels == pytest.approx(plain.kernels + 4 * layers)
    _, _, _, inputs = of_layer(QWEN_7B.groups[0], QWEN_7B.hidden)
    assert quantised.activation_bytes == pytest.approx(plain.activation_bytes + 1000 * 3.0 * inputs * layers)


def test_several_gpus_share_what_is_between_products_but_the_residual_stream():
    whole, half = of_layer(DENSE)[2], of_layer(DENSE, tp=2)[2]
    assert half == pytest.approx((whole - 16 * 4096) / 2 + 16 * 4096)


def test_heads_are_those_of_full_context_attention_on_one_gpu():
    assert query_heads(QWEN_7B) == (4, 7)
    assert query_heads(QWEN_7B, 7) == (1, 4)  # KV heads fewer than GPUs are replicated
    assert query_heads(SLIDING) == (4, 2)
    assert query_heads(LATENT) == (0, 0)
    assert mixed_fill((4, 7)) == pytest.approx(128 / 7)


def test_equal_contexts_are_a_batch_of_their_mean():
    assert mixed_batch(QWEN_7B, [700.0] * 5, []) == decode_batch(QWEN_7B, 5.0, 700.0)

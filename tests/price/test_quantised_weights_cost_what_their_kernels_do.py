"""Quantised weights on a GPU whose kernels were measured cost what layers of an engine took; elsewhere they cost as before."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from calibrate.measurement import model_of, open_measurement, precision_of
from sim.cost.coefficients import coefficients
from sim.cost.gemm import REPLAY_S, kernel_surface, quantised_gemm_surface
from sim.cost.gemm_surface import packaged
from sim.specs.gpus import get_gpu
from sim.specs.hf_config import spec_from_config
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.kernel_tables.quantised_fit import line, surface

MEASURED = Path(str(files("scenarios"))) / "data" / "measured" / "validation"
KERNELS = {"gptq": "machete", "awq_marlin": "marlin", "fp8-block": "cutlass"}
H100 = get_gpu("H100")


@pytest.mark.parametrize("name", KERNELS)
def test_the_packaged_surface_is_that_of_the_measured_layers(name):
    key, found = surface(KERNELS[name], MEASURED / f"h100_layers_llama3.1-8b_{name}.nc")
    assert key == ("H100", KERNELS[name])
    kept, rows = packaged()[key], np.array([1.0, 64.0, 512.0, 8192.0])
    for weights in (2.0**24, 2.0**27):
        assert kept.seconds(weights, rows) == pytest.approx(found.seconds(weights, rows), rel=0.01)


@pytest.mark.parametrize("name", KERNELS)
def test_a_layer_takes_what_was_measured(name):
    data = open_measurement(MEASURED / f"h100_layers_llama3.1-8b_{name}.nc")
    model, precision = model_of(data.attrs, "made"), precision_of(data.attrs)
    found, products = quantised_gemm_surface(model, precision, H100), data["n"].values > 0
    for rows in (4, 16, 512, 4096):
        at = products & (data["rows"].values == rows)
        weights, seconds = (data["k"].values * data["n"].values)[at], data["time_s_median"].values[at] - REPLAY_S
        predicted = sum(found.seconds(float(each), np.arange(1.0, rows + 1.0))[-1] for each in weights)
        assert predicted == pytest.approx(seconds.sum(), rel=0.06)


def test_a_line_through_a_floor_and_a_bandwidth_is_found():
    weights = 2.0 ** np.array([24.0, 25.0, 27.0])
    assert line(weights, 1e-5 + weights * 2e-13) == pytest.approx((1e-5, 2e-13), rel=1e-6)


def test_experts_in_four_bits_cost_more_kernels_where_that_was_measured():
    model, stored = get_model("gpt-oss-20b"), Precision("mxfp4")
    extra = coefficients(model, stored, 1, H100).kernels - coefficients(replace(model, expert_bits=None), Precision(), 1, H100).kernels
    assert extra > model.layers * 10
    assert coefficients(model, stored, 1, get_gpu("B200")).kernels == coefficients(model, stored).kernels


def test_experts_alone_in_four_bits_leave_the_layers_around_them_as_they_were():
    config = {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 4,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True,
                                "modules_to_not_convert": ["self_attn", "lm_head"]},
    }  # fmt: skip
    model = spec_from_config(config, "made", "made")
    assert quantised_gemm_surface(model, Precision("int4"), H100) is None


def on_h200(kernel):
    """Surfaces of a kernel on an H100 and on an H200, an H100 with other memory."""
    here, there = packaged()["H100", kernel], kernel_surface(kernel, get_gpu("H200"))
    assert there is not None
    return here, there


def test_memory_alone_makes_kernels_of_a_measured_chip_faster():
    """Beyond the roofline a kernel takes as long, and a prompt's many rows do, too."""
    here, there = on_h200("marlin")
    rows = np.array([1.0, 8192.0])
    (few, many), (few_there, many_there) = here.seconds(2.0**26, rows), there.seconds(2.0**26, rows)
    saved = 2.0**26 * here.width * (1 / here.bytes_per_s - 1 / there.bytes_per_s)
    assert few - few_there == pytest.approx(saved, rel=0.02)
    assert many_there == pytest.approx(many, rel=0.01)


def test_machete_gains_nothing_by_memory():
    here, there = on_h200("machete")
    assert there.bytes_per_s > 1.3 * here.bytes_per_s
    for rows in (1.0, 64.0, 8192.0):
        assert there.seconds(2.0**27, np.array([rows])) == pytest.approx(here.seconds(2.0**27, np.array([rows])))

"""The kernel of quantised weights follows engine, version, format and card; another can be asked for, or is refused."""

import numpy as np
import pytest

from sim import Deployment
from sim.errors import UsageError
from sim.rates.load import load_rates
from sim.rates.other_kernels import log_ratios
from sim.specs.gpus import get_gpu
from sim.specs.hf_config import spec_from_config
from sim.specs.linear_kernels import linear_kernel
from sim.specs.models import catalogue_config

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def model(quantisation, name="Llama-3.1-8B"):
    return spec_from_config({**catalogue_config(name), "quantization_config": quantisation}, name, "made")


@pytest.mark.parametrize(
    ("storage", "gpu", "engine", "version", "kernel"),
    [
        ("int4", "H100", "vllm", "0.33", "machete"),
        ("int4", "H200", "vllm", "0.12", "machete"),
        ("awq", "H100", "vllm", "0.19", "machete"),
        ("awq", "GH200", "vllm", "0.18.1", "marlin"),
        ("awq", "A100-80G", "vllm", "0.33", "marlin"),
        ("int4", "H100", "sglang", "", "marlin"),
        ("fp8-block", "H100", "vllm", "0.33", "deep_gemm"),
        ("fp8-block", "L40S", "vllm", "0.33", "triton"),
        ("bf16", "H100", "vllm", "0.33", ""),
    ],
)
def test_the_default_is_the_engines(storage, gpu, engine, version, kernel):
    assert linear_kernel(storage, get_gpu(gpu), engine, version) == kernel


@pytest.mark.parametrize(
    ("storage", "gpu", "backend", "words"),
    [
        ("int4", "A100-80G", "machete", "no kernel for the A100-80G"),
        ("int4", "H100", "deep_gemm", "no kernel of int4 weights; there are machete, marlin"),
        ("bf16", "H100", "marlin", "bf16 weights have no such choice"),
        ("int4", "H100", "exllama", "must be auto, machete"),
    ],
)
def test_a_kernel_that_is_not_there_is_refused(storage, gpu, backend, words):
    with pytest.raises(UsageError, match=words):
        linear_kernel(storage, get_gpu(gpu), backend=backend)


def test_marlin_takes_twice_as_long_over_prompts_on_hopper_and_less_at_one_row():
    def seconds(backend, rows):
        from sim.cost.gemm import gemms_of, quantised_gemm_surface

        d = Deployment.of(model(AWQ), "H100", linear_backend=backend)
        surface = quantised_gemm_surface(d.model, d.precision, d.gpu)
        return sum(layers * surface.seconds(float(g.k * g.n), np.arange(1.0, rows + 1.0))[-1] for g, layers in gemms_of(d.model))

    assert seconds("auto", 2048) == seconds("machete", 2048)
    assert seconds("marlin", 2048) > 1.8 * seconds("machete", 2048)
    assert seconds("marlin", 1) < seconds("machete", 1)


@pytest.mark.parametrize(
    ("unknown", "known", "low", "high"),
    [
        ({"linear_backend": "deep_gemm"}, {"linear_backend": "cutlass"}, 0.55, 1.45),
        ({"engine": "tests.engine.test_engines_by_name.LastComeFirst"}, {}, 0.05, 0.95),
    ],
    ids=["a kernel that one server showed", "either of two"],
)
def test_an_interval_of_a_kernel_that_was_not_timed_is_about_what_it_may_take(unknown, known, low, high):
    weights = model(BLOCKS if "linear_backend" in unknown else AWQ)
    known, unknown = (Deployment.of(weights, "H100", **given) for given in (known, unknown))
    few = log_ratios(unknown).few
    assert log_ratios(known) is None
    assert abs(few) > 0.1
    ours, theirs = (load_rates(d, draws=200) for d in (unknown, known))
    over = np.log(ours.draws.beta / theirs.draws.beta)
    assert np.quantile(over, (0.05, 0.95)) == pytest.approx(sorted((-low * few, -high * few)), abs=0.03)

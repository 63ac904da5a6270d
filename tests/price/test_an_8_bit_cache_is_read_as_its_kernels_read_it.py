"""An 8-bit KV cache halves the bytes; on Hopper its kernel reads at most so many elements a second. Elsewhere nothing changes."""

import pytest

from sim.cost.attention import HOPPER_8_BIT_ELEMENTS_PER_S, READ_SHARE
from sim.cost.batch import decode_batch
from sim.cost.work import iteration_work
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision


def kv_bytes(model, kv, gpu):
    spec = get_model(model)
    return iteration_work(spec, decode_batch(spec, 8.0, 32_000.0), Precision("bf16", kv), gpu=get_gpu(gpu)).kv_bytes


@pytest.mark.parametrize("gpu", ["L40S", "B200", "A100-80G", "MI300X"])
def test_eight_bits_halve_the_time_elsewhere(gpu):
    assert kv_bytes("Llama-3.1-8B", "fp8", gpu) == pytest.approx(0.5 * kv_bytes("Llama-3.1-8B", "bf16", gpu))


@pytest.mark.parametrize("gpu", ["H100", "H200", "GH200"])
def test_on_hopper_elements_bound_it(gpu):
    spec = get_gpu(gpu)
    most = READ_SHARE * spec.memory_bandwidth / HOPPER_8_BIT_ELEMENTS_PER_S
    assert kv_bytes("Llama-3.1-8B", "fp8", gpu) == pytest.approx(0.5 * kv_bytes("Llama-3.1-8B", "bf16", gpu) * max(most, 1.0))


def test_sixteen_bits_and_latent_caches_are_as_they_were():
    assert kv_bytes("Llama-3.1-8B", "bf16", "H200") == kv_bytes("Llama-3.1-8B", "bf16", "L40S")
    assert kv_bytes("DeepSeek-V3", "fp8", "H200") == kv_bytes("DeepSeek-V3", "fp8", "L40S")

"""`gemm_time` of a model's GEMMs, as often as its layers compute them, is the time of its linear layers."""

import pytest

from sim import gemm_time, get_gpu, get_model
from sim.cost.batch import decode_batch
from sim.cost.gemm import gemms_of
from sim.cost.step_time import linear_s
from sim.cost.work import iteration_work
from sim.rates.posterior import rates_for
from sim.specs.precision import Precision

MODEL = get_model("Llama-3.1-8B")  # no biases


@pytest.mark.parametrize(("gpu", "dtype"), [("H100", "bf16"), ("H100", "fp8"), ("L40S", "bf16"), ("L40S", "fp8"), ("T4", "fp16")])
@pytest.mark.parametrize("rows", [1, 64, 512])
def test_linear_layers_are_their_gemms(gpu, dtype, rows):
    card, precision = get_gpu(gpu), Precision(dtype)
    rates = rates_for(card, precision, draws=20)
    gemms = [(layers, gemm_time(gpu, p.k, p.n, rows, dtype, rates)) for p, layers in gemms_of(MODEL)]
    work = iteration_work(MODEL, decode_batch(MODEL, float(rows), 128.0), precision, gpu=card)
    assert sum(layers * price.terms["linear layers"] for layers, price in gemms) == pytest.approx(linear_s(work, rates.point), rel=2e-3)
    assert all(price.low <= price.seconds <= price.high for _, price in gemms)
    assert all(sum(price.terms.values()) == pytest.approx(price.seconds) for _, price in gemms)

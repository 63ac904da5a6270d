"""A dtype without arithmetic on a GPU is refused, or read narrow and computed in 16 bits, and the answer says so."""

import numpy as np
import pytest

from sim import Deployment, UsageError, get_gpu, list_gpus, load_rates
from sim.cost.batch import decode_batch
from sim.rates.load import scope_notes
from sim.specs.precision import DTYPE_BYTES, arithmetic
from tests.cli import run

MODEL = "Llama-3.2-1B"


@pytest.mark.parametrize("gpu", ["T4", "V100"])
def test_bf16_is_refused_where_there_is_none_and_fp16_is_the_default(gpu):
    assert Deployment.of(MODEL, gpu).precision.weights == Deployment.of(MODEL, gpu).precision.kv == "fp16"
    with pytest.raises(UsageError, match=f"{gpu} has no bf16"):
        Deployment.of(MODEL, gpu, dtype="bf16")
    with pytest.raises(UsageError, match="has no bf16"):
        Deployment.of(MODEL, gpu, kv_dtype="bf16")


@pytest.mark.parametrize(("gpu", "measured"), [("B200", False), ("H100", True), ("H200", True)])
def test_weight_only_kernels_not_measured_there_are_slower_and_less_certain(gpu, measured):
    """A chip's own surface is taken where there is one; elsewhere what kernels of older matrix units reach."""
    d, plain = Deployment.of("Llama-3.1-8B", gpu, dtype="int4"), Deployment.of("Llama-3.1-8B", gpu, dtype="bf16")
    rates, other = load_rates(d, draws=200), load_rates(plain, draws=200)
    ratio = rates.point.linear_flops_per_s / other.point.linear_flops_per_s
    assert any("of the 16-bit rate" in note for note in scope_notes(d, rates)) is not measured
    assert (ratio < 0.7) is not measured
    spread, usual = (np.log(each.draws.linear_flops_per_s).std() for each in (rates, other))
    assert (spread > usual + 0.1) is not measured


def test_engines_spellings():
    asked = {("half", "fp8_e5m2"): ("fp16", "fp8"), ("bfloat16", "auto"): ("bf16", "bf16"), ("auto", "float16"): ("bf16", "fp16")}
    for (dtype, kv), own in asked.items():
        found = Deployment.of(MODEL, "H100", dtype=dtype, kv_dtype=kv).precision
        assert (found.weights, found.kv) == own


@pytest.mark.parametrize("dtype", ["fp8", "int8", "mxfp4", "nvfp4"])
def test_a_card_without_kernels_for_it_refuses(dtype):
    with pytest.raises(UsageError, match=f"V100 runs no {dtype} weights"):
        Deployment.of(MODEL, "V100", dtype=dtype)


@pytest.mark.parametrize(
    ("gpu", "dtype", "used"), [("A10", "fp8", "bf16"), ("H100", "nvfp4", "bf16"), ("T4", "fp8", "fp16"), ("B200", "int4", "bf16")]
)
def test_weight_only_kernels_read_narrow_and_compute_wide(gpu, dtype, used):
    d, wide = Deployment.of(MODEL, gpu, dtype=dtype), Deployment.of(MODEL, gpu, dtype=used)
    assert arithmetic(dtype, d.gpu) == used
    assert any(f"computed in {used}" in note for note in scope_notes(d, load_rates(d, draws=4)))
    narrow, plain = (each.work(decode_batch(each.model, 1.0, 1024.0, xp=np)) for each in (d, wide))
    assert narrow.linear_bytes < plain.linear_bytes


@pytest.mark.parametrize(("gpu", "dtype"), [("H100", "fp8"), ("B200", "nvfp4"), ("A10", "int8"), ("H100", "bf16"), ("H100", "fp16")])
def test_a_dtype_with_arithmetic_of_its_own_needs_no_word(gpu, dtype):
    d = Deployment.of(MODEL, gpu, dtype=dtype)
    assert not any("computed in" in note for note in scope_notes(d, load_rates(d, draws=4)))


def test_only_products_of_quantised_rows_pay_for_quantising_them():
    with_it, without = (Deployment.of(MODEL, gpu, dtype="fp8") for gpu in ("L40S", "A40"))
    shape = decode_batch(with_it.model, 1.0, 1024.0, xp=np)
    assert with_it.work(shape).activation_bytes > without.work(shape).activation_bytes


def test_every_gpu_of_the_catalogue_runs_its_default_dtype():
    for spec in list_gpus():
        engine = "llamacpp" if get_gpu(spec).source.startswith("Apple") else "vllm"  # the only one that runs there
        d = Deployment.of(MODEL, spec, engine=engine)
        assert DTYPE_BYTES[d.precision.weights] == 2.0


def test_the_command_says_it_in_one_line():
    answer = run("what-if", "--gpu", "T4", "--model", MODEL, "--dtype", "bf16", "--ctx", "8K")
    assert (answer.code, answer.stderr) == (2, "simctl: T4 has no bf16: engines refuse it there; use fp16\n")
    assert get_gpu("T4").flops.get("bf16") is None

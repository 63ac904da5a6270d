"""At packaged rates a prompt of more tokens is cheaper on cards whose GEMMs were measured, as far as those fall, and nowhere else."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import deployments, load_rates
from sim.cost.batch import mixed_batch
from sim.cost.coefficients import coefficients
from sim.cost.gemm import by_rows, gemms_of, gemms_on
from sim.cost.step_time import step_terms, step_time_s
from sim.cost.work import work_from
from tests.examples import examples

MODELS = ("Llama-3.1-8B", "Qwen2.5-7B", "Qwen3-14B")
MEASURED, OTHERS = ("H100", "H200"), ("A100-80G", "B200", "L40S", "A10", "L4")


@cache
def asked(gpu, model, dtype="bf16"):
    """What an iteration of the model costs on the GPU: coefficients, draws of the rates, and the model."""
    (d,) = deployments(model, [gpu], dtype=(dtype,)).values()
    return coefficients(d.model, d.precision, 1, d.gpu), load_rates(d, draws=20).draws, d.model


def seconds(gpu, model, tokens, draw):
    c, draws, spec = asked(gpu, model)
    return step_time_s(work_from(c, mixed_batch(spec, [], [(tokens, tokens, 1)])), draws.at(draw))


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=examples(60))
@given(gpu=st.sampled_from(OTHERS), tokens=st.integers(1, 8192), more=st.integers(1, 600), draw=st.integers(0, 19))
def test_no_fall_by_tables_of_kernels_or_without_any(model, gpu, tokens, more, draw):
    assert seconds(gpu, model, tokens + more, draw) >= seconds(gpu, model, tokens, draw) * (1 - 1e-12)


@cache
def deepest_fall(gpu, model):
    """By which share the model's measured GEMMs together fall below what they took for fewer rows."""
    _, _, spec = asked(gpu, model)
    (card,) = {d.gpu for d in deployments(model, [gpu], dtype=("bf16",)).values()}
    known, rows = gemms_on(card), np.arange(1.0, 8193.0)
    took = sum(layers * by_rows(known[gemm], rows) for gemm, layers in gemms_of(spec))
    return float((1 - took / np.maximum.accumulate(took)).max())


@pytest.mark.parametrize("gpu", MEASURED)
@settings(max_examples=examples(60))
@given(model=st.sampled_from(MODELS[:2]), tokens=st.integers(1, 8192), more=st.integers(1, 600), draw=st.integers(0, 19))
def test_a_measured_card_falls_as_far_as_its_gemms_do(gpu, model, tokens, more, draw):
    fall = 1 - seconds(gpu, model, tokens + more, draw) / seconds(gpu, model, tokens, draw)
    assert fall <= deepest_fall(gpu, model) < 0.4


@settings(max_examples=examples(100))
@given(
    gpu=st.sampled_from(MEASURED + OTHERS),
    model=st.sampled_from(MODELS),
    tokens=st.integers(1, 8192),
    more=st.integers(1, 600),
    draw=st.integers(0, 19),
)
def test_in_8_bits_only_linear_layers_fall_and_by_less_than_a_quarter(gpu, model, tokens, more, draw):
    """A library that has another kernel for more rows, or a tile that fills up. Launches hide behind what takes longer."""
    c, draws, spec = asked(gpu, model, "fp8")
    before, after = (step_terms(work_from(c, mixed_batch(spec, [], [(n, n, 1)])), draws.at(draw)) for n in (tokens, tokens + more))
    assert after.weights >= before.weights * (1 - 1e-12 if gpu in ("A100-80G", "A10", "L4") else 0.75)
    rest = set(before._fields) - {"weights", "launch"}
    assert all(getattr(after, name) >= getattr(before, name) * (1 - 1e-12) for name in rest)

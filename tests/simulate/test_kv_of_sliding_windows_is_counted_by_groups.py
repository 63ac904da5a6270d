"""vLLM allots KV of hybrid models by groups of layers: windows hold what they reach, and groups that do not divide are filled up."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import simulate
from sim.cost.coefficients import coefficients
from sim.deployment.memory import block_bytes, filled, kv_groups, longest_tokens
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Deployment, groups_kv, mean_context, plan_engine
from sim.workload.workload import Workload

BF16 = Precision()
HYBRID = ["Gemma-3-12B", "Gemma-3-27B", "gpt-oss-20b", "Llama-4-Scout"]


@pytest.mark.parametrize("name", HYBRID)
@given(contexts=st.tuples(st.integers(1, 200_000), st.integers(1, 200_000)))
def test_blocks_shrink_with_the_context_to_those_of_full_layers(name, contexts):
    model, c = get_model(name), coefficients(get_model(name), BF16)
    short, long = (block_bytes(model, BF16, 16, context=float(each))[0] for each in sorted(contexts))
    groups, size = kv_groups(model)
    layer = c.kept_token_bytes / model.kv_layers
    assert short >= long > 16 * c.kept_token_bytes
    assert short <= 16 * groups * size * layer * (1 + 1e-9)
    assert block_bytes(model, BF16, 16, context=float(model.window))[0] == pytest.approx(16 * groups * size * layer)


@pytest.mark.parametrize("name", HYBRID)
@given(free=st.floats(1e9, 1e11))
def test_the_longest_request_fits_and_one_a_little_longer_does_not(name, free):
    model = get_model(name)
    groups, size = kv_groups(model)
    block = 16 * size * coefficients(model, BF16).kept_token_bytes / model.kv_layers
    windows = ceil(model.window_layers / size)

    def held(tokens):
        near = ceil(min(tokens, model.window - 1 + 4096) / 16) + 1
        return block * (1 + (groups - windows) * ceil(tokens / 16) + windows * near)

    longest = longest_tokens(model, BF16, free, 16, 4096)
    assert longest == 0 or held(longest) <= free
    assert free < held(longest + 32)


def test_groups_are_those_of_vllm():
    """Gemma 3 27B: 52 layers with a window and 10 without are six groups of ten and one: room for 60 of the 52."""
    assert filled(get_model("Gemma-3-27B")) == (1.0, 60 / 52)
    assert filled(get_model("Gemma-3-12B")) == (1.0, 1.0)


def test_a_pool_holds_more_long_requests():
    d = Deployment.of("Gemma-3-12B", "H100")
    short, long = (plan_engine(d, (context, 1))[0].num_gpu_blocks for context in (500.0, 32_000.0))
    assert 3 * short < long < 6 * short


def test_one_long_request_among_short_ones_is_served():
    """Blocks of short requests hold fewer tokens than one long request that fits."""
    d = Deployment.of("Gemma-3-12B", "A10", dtype="int4")
    short, longest = plan_engine(d, (500.0, 600))[0], plan_engine(d)[0].max_model_len
    assert short.kv_capacity_tokens < longest
    prompts = [500] * 7 + [longest - 4]
    run = simulate(d, Workload.from_arrays([0.1 * i for i in range(8)], prompts, [4] * 8), draws=0)
    assert run.summary["completed"] == 8


def test_only_where_vllm_does_so():
    assert groups_kv(Deployment.of("Gemma-3-12B", "H100"))
    assert not groups_kv(Deployment.of("Llama-3.1-8B", "H100"))
    assert not groups_kv(Deployment.of("Gemma-3-12B", "H100", engine="sglang"))
    assert not groups_kv(Deployment.of("Gemma-3-12B", "H100", kv_offloading_size=10.0))  # a connector takes one group


def test_a_mean_context_is_over_decode_steps():
    assert mean_context(Workload.drawn(3, input_len=100, output_len=50).trace) == 125.0

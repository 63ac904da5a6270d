"""vLLM allots KV by groups of layers: windows hold what they reach, states one block, groups that do not divide are filled up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import simulate
from sim.deployment.kv_layout import layers_of, vllm_layout
from sim.deployment.pool import KvPool, mean_blocks
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Deployment, mean_context, plan_engine
from sim.workload.workload import Workload

BF16, FP8 = Precision(), Precision("bf16", "fp8")
WINDOWED = ["Gemma-3-12B", "Gemma-3-27B", "gpt-oss-20b", "Llama-4-Scout", "Gemma-4-31B", "Gemma-4-E2B"]
STATES = ["Qwen3.6-27B", "Qwen3.6-35B-A3B", "Qwen3-Next-80B-A3B"]
GIB = 2.0**30


@pytest.mark.parametrize("name", [*WINDOWED, *STATES])
@given(contexts=st.tuples(st.integers(1, 200_000), st.integers(1, 200_000)))
def test_a_longer_request_holds_no_fewer_blocks_and_no_more_than_of_whole_contexts(name, contexts):
    model = get_model(name)
    layout, whole = vllm_layout(model, BF16), vllm_layout(model, BF16, whole=True)
    short, long = (layout.request_blocks(each) * layout.block_bytes for each in sorted(contexts))
    assert short <= long
    room = len(layout.groups) * layout.block_bytes * 2  # a block begun in each group, and one that a window may begin inside of
    filled = 1.0 if name in STATES else 1.3  # layers that a group has room for over those that there are
    assert long <= filled * whole.request_blocks(max(contexts)) * whole.block_bytes + room


@pytest.mark.parametrize("name", [*WINDOWED, *STATES])
@given(free=st.floats(1e9, 1e11))
def test_the_longest_request_fits_and_one_block_longer_does_not(name, free):
    pool = KvPool(vllm_layout(get_model(name), BF16), free, 4096)
    longest = pool.longest(2**40)
    held = pool.layout.request_blocks
    assert longest == 0 or held(longest, 4096) < pool.blocks
    assert longest == 2**40 or held(longest + 1, 4096) >= pool.blocks


def test_groups_are_those_of_vllm():
    """Gemma 3 27B: 52 layers with a window and 10 without are six groups of ten and one: room for 60 of the 52."""
    groups = {name: len(vllm_layout(get_model(name), BF16).groups) for name in ("Gemma-3-12B", "Gemma-3-27B", "Gemma-3-4B", "Qwen2.5-7B")}
    assert groups == {"Gemma-3-12B": 6, "Gemma-3-27B": 7, "Gemma-3-4B": 7, "Qwen2.5-7B": 1}


@pytest.mark.parametrize(
    ("name", "kv", "drafts", "tokens"),
    [
        ("Qwen3.6-35B-A3B", "bf16", 0, 1056),
        ("Qwen3.6-35B-A3B", "bf16", 15, 1168),
        ("Qwen3-Next-80B-A3B", "fp8", 0, 1072),  # its states are kept in 16 bits
        ("Qwen3.6-27B", "bf16", 0, 784),
    ],
)
def test_states_set_the_length_of_attention_blocks(name, kv, drafts, tokens):
    """Lengths that starts logged."""
    assert vllm_layout(get_model(name), Precision("bf16", kv), draft_tokens=drafts).block_tokens == tokens


@pytest.mark.parametrize(
    ("name", "gib", "length", "in_flight", "requests", "shared_out"),
    [
        ("Qwen3.6-35B-A3B", 47.55, 131072, 0, 18.44, 623_040),
        ("Gemma-4-26B-A4B", 40.61, 8192, 4096, 35.75, 177_440),
        ("Gemma-4-E2B", 9.92, 8192, 2048, 129.66, None),
    ],
)
def test_pools_are_those_that_starts_logged(name, gib, length, in_flight, requests, shared_out):
    layout = vllm_layout(get_model(name), BF16)
    assert layout.at_once(gib * GIB, length, in_flight) == pytest.approx(requests, rel=2e-3)
    assert shared_out is None or layout.logged_tokens(gib * GIB, length, in_flight, True) == pytest.approx(shared_out, rel=2e-4)


def test_sparse_latent_attention_takes_656_bytes_in_fp8():
    layout = vllm_layout(get_model("GLM-5.1"), FP8, tp=8)
    assert layout.block_bytes == 16 * 78 * (656 + 132)


@pytest.mark.parametrize("name", [*WINDOWED, *STATES])
@given(context=st.integers(1, 100_000))
def test_what_decodes_holds_less_than_what_starts_are_checked_for(name, context):
    for group in vllm_layout(get_model(name), BF16).groups:
        assert mean_blocks(group, context) <= group.blocks(context, 4096) + 0.5


def test_layers_that_read_another_layers_kv_keep_none():
    assert sum(each.number for each in layers_of(get_model("Gemma-4-E2B"), BF16)) == 15  # of 35


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
    assert len(Deployment.of("Gemma-3-12B", "H100").layout.groups) == 6
    assert len(Deployment.of("Gemma-3-12B", "H100", engine="sglang").layout.groups) == 1
    assert len(Deployment.of("Gemma-3-12B", "H100", kv_offloading_size=10.0).layout.groups) == 1  # a connector takes one group


def test_states_leave_room_for_few_short_requests():
    """A request of Qwen3.6-27B holds a block in each of three groups of states and in one of KV: a quarter of the blocks run."""
    d = Deployment.of("Qwen3.6-27B", "H100-NVL", gpu_memory_utilization=0.9)
    seqs, _ = d.batch_limits()
    assert seqs == (d.pool_in(d.memory_for(1024, 8192).free, 8192).blocks - 1) // 4
    assert 145 <= seqs <= 160


def test_a_mean_context_is_over_decode_steps():
    assert mean_context(Workload.drawn(3, input_len=100, output_len=50).trace) == 125.0

"""Query blocks beyond the multiprocessors make a turn of their own; over several GPUs a chunk has fewer, and a host launches for all."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from sim.bill import decode_shape, iteration_bill, mixed_shape
from sim.precision import Precision
from sim.price import step_terms, step_time_s
from sim.specs.model import Attention, DenseMlp, LayerGroup, ModelSpec
from sim.turns import BLOCK_ROWS, MULTIPROCESSORS, idle_share, query_heads, turns
from tests.price.shapes import HYBRID_MOE, LATENT, QWEN_7B, SLIDING, plausible_rates

FORTY = ModelSpec("forty heads", 5120, 152064, (LayerGroup(40, Attention(40, 8, 128), DenseMlp(17408)),), False, 2**17)
RATES = plausible_rates()


def chunk(model, tokens, past, tp=1):
    return iteration_bill(model, mixed_shape(model, [], [(tokens, past + tokens, True)], tp=tp), Precision(), tp=tp)


def test_heads_are_those_of_full_context_attention_per_gpu():
    assert query_heads(FORTY) == (8, 5)
    assert query_heads(FORTY, 8) == (1, 5)
    assert query_heads(QWEN_7B, 7) == (1, 4)  # KV heads fewer than GPUs are replicated
    assert query_heads(SLIDING) == (4, 2)
    assert query_heads(HYBRID_MOE) == (2, 8)
    assert query_heads(LATENT) == (0, 0)


def test_512_tokens_of_40_heads_take_two_turns_and_of_32_one():
    assert turns((8, 5), 512.0) == 2.0
    assert idle_share((8, 5), 512.0) == pytest.approx(2 * 132 / 160 - 1)
    assert turns((8, 4), 512.0) == 1.0
    assert idle_share((0, 0), 512.0) == 0.0
    wide = chunk(FORTY, 512.0, 1e5)
    assert wide.last_turn_flops == pytest.approx((2 * 132 / 160 - 1) * wide.prefill_flops)
    half = chunk(FORTY, 512.0, 1e5, tp=2)  # 80 blocks a GPU: their keys in two parts are 160
    assert half.last_turn_flops == pytest.approx((132 / 80 - 1) * half.prefill_flops)


@given(kv_heads=st.integers(1, 16), group=st.integers(1, 16), tokens=st.integers(1, 8192))
def test_work_and_idle_are_whole_turns_of_parts(kv_heads, group, tokens):
    heads = (kv_heads, group)
    share = idle_share(heads, float(tokens))
    assert share >= 0.0
    blocks = kv_heads * -(-tokens * group // BLOCK_ROWS)
    whole = turns(heads, float(tokens))
    assert whole >= blocks / MULTIPROCESSORS
    if blocks >= MULTIPROCESSORS:
        assert whole == -(-blocks // MULTIPROCESSORS)
    else:
        assert whole <= 1.0  # splitting is never dearer than not
    assert tokens * (1 + share) == pytest.approx(whole * MULTIPROCESSORS * BLOCK_ROWS / (kv_heads * group))


@pytest.mark.parametrize(
    ("name", "heads"),
    [("llama3.1-8b", (8, 4)), ("qwen2.5-7b", (4, 7)), ("qwen3-14b", (8, 5)), ("qwen3-coder-30b-a3b", (4, 8))],  # the last two came later
)
def test_turns_are_those_of_the_attention_kernel_as_profiled(name, heads):
    """112,000 tokens of context, chunks of 64 to 2,048: the kernel's time in a layer, over that of one turn."""
    path = Path(str(files("scenarios") / "data" / "measured" / "h100" / f"profile_{name}.nc"))
    with xr.open_dataset(path) as opened:
        profile = opened.load()
    attention = np.char.find(profile.kernel_name.values.astype(str), "FlashAttnFwdSm90") >= 0
    layers = json.loads(profile.attrs["model_config"])["num_hidden_layers"]
    tokens = profile["chunk_tokens"].values
    # of less, the bytes of the cache take longer; of more, contexts grow within the chunk
    asked = (profile["offset_tokens"].values == 112000) & (profile["chunks"].values == 1) & (tokens >= 64) & (tokens <= 2048)
    found = np.flatnonzero(asked & (profile["batch"].values == 0))
    assert sorted(tokens[found]) == [64, 128, 256, 512, 1024, 2048]
    for cell in found:
        assert profile.calls.values[cell, attention].sum() == layers
        per_layer = float(profile.us.values[cell, attention].sum()) / layers
        assert per_layer / 1490 == pytest.approx(turns(heads, float(tokens[cell])), rel=0.09)


def test_a_host_of_several_gpus_is_priced_for_several_only():
    decode = iteration_bill(QWEN_7B, decode_shape(QWEN_7B, 4.0, 1000.0), Precision(), tp=2)
    small, large = (chunk(QWEN_7B, tokens, 0.0, tp=2) for tokens in (64.0, 600.0))
    assert (decode.spread_layers, small.spread_layers, large.spread_layers) == (0.0, 28.0, 28.0)
    assert (decode.spread_eager_layers, small.spread_eager_layers, large.spread_eager_layers) == (0.0, 0.0, 28.0)
    assert not any(getattr(chunk(QWEN_7B, 600.0, 0.0), name) for name in small._fields if name.startswith("spread"))
    assert step_terms(small, RATES).launch > step_terms(small._replace(spread_layers=0.0), RATES).launch


def test_taking_in_a_prompt_costs_by_its_tokens_and_more_over_several():
    one = chunk(QWEN_7B, 64.0, 0.0)._replace(intake_tokens=1e5)
    two = one._replace(spread_intake_tokens=1e5)
    nothing = one._replace(intake_tokens=0.0)
    assert step_time_s(one, RATES) - step_time_s(nothing, RATES) == pytest.approx(1e5 * RATES.intake_s)
    assert step_time_s(two, RATES) - step_time_s(one, RATES) == pytest.approx(1e5 * RATES.spread_intake_s)
    second = one._replace(runner2_intake_tokens=1e5)
    assert step_time_s(second, RATES) - step_time_s(one, RATES) == pytest.approx(1e5 * RATES.runner2_intake_s)

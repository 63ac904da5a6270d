"""Rows that tiles and blocks lack are counted, what experts' rows pass on is, and a model runner carries prefill at its price."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.bill import TILE_ROWS, TILED_ROWS, coefficients, decode_shape, iteration_bill, mixed_shape, tile_gap
from sim.precision import Precision
from sim.price import step_terms, step_time_s
from sim.rates import Rates
from sim.specs.model import Attention, DenseMlp, LayerGroup, ModelSpec, MoeMlp
from sim.specs.models import get_model
from tests.price.shapes import HYBRID_MOE, LATENT, QWEN_7B, plausible_rates

RATES = plausible_rates()
ROUTED = ModelSpec("routed", 1024, 32_000, (LayerGroup(10, Attention(8, 4, 64), MoeMlp(64, 4, 512)),), False, 2**15)


def prefill(model, tokens, tp=1, decodes=()):
    return iteration_bill(model, mixed_shape(model, decodes, [(tokens, tokens, True)], tp=tp), Precision(), tp=tp)


@given(rows=st.integers(1, 4096))
def test_the_last_tile_is_full_at_whole_tiles_and_lacks_the_rest_below_eight_of_them(rows):
    gap = tile_gap(float(rows))
    assert gap == np.asarray(tile_gap(np.array([float(rows)])))[0]
    if TILE_ROWS < rows <= TILED_ROWS:
        assert 0 <= gap < TILE_ROWS
        assert (rows + gap) % TILE_ROWS == 0
    else:
        assert gap == 0


def test_513_rows_are_priced_as_part_of_five_tiles_and_512_as_four():
    full, over = prefill(QWEN_7B, 512.0), prefill(QWEN_7B, 513.0)
    body = coefficients(QWEN_7B, Precision()).body_flops
    assert (full.tile_flops, over.tile_flops) == (0.0, pytest.approx(127 * body))
    shown = step_terms(over, RATES).weights - step_terms(over._replace(tile_flops=0.0), RATES).weights
    whole = RATES.tile_share * 127 * body / RATES.linear_flops_per_s
    assert 0.5 * whole < shown <= whole


def test_padding_of_the_captured_graph_counts_among_a_tiles_rows():
    bill = prefill(QWEN_7B, 257.0)  # the graph of 272 rows, three tiles
    assert bill.tile_flops == pytest.approx(112 * coefficients(QWEN_7B, Precision()).body_flops)


def test_beside_a_chunk_a_decode_has_a_block_of_its_own():
    alone = iteration_bill(QWEN_7B, decode_shape(QWEN_7B, 2.0, 1000.0), Precision())
    beside = prefill(QWEN_7B, 64.0, decodes=[1000.0, 1000.0])
    assert beside.attention_flops == pytest.approx(alone.attention_flops * 128 / 7)  # seven query heads to a KV head
    assert beside.kv_bytes == alone.kv_bytes
    wide = ModelSpec("wide", 4096, 32_000, (LayerGroup(4, Attention(160, 1, 64), DenseMlp(4096)),), False, 2**15)
    assert coefficients(wide, Precision()).mixed_fill == pytest.approx(256 / 160)
    assert coefficients(LATENT, Precision()).mixed_fill == 1.0


def test_rows_of_experts_pass_through_memory():
    c = coefficients(ROUTED, Precision())
    assert c.expert_io_bytes == 10 * 2 * (3 * 4 * 512 + 9 * 1024)
    assert coefficients(ROUTED, Precision(), 2).expert_io_bytes == 10 * 2 * (3 * 4 * 512 / 2 + 9 * 1024)
    assert coefficients(QWEN_7B, Precision()).expert_io_bytes == 0.0
    bill = prefill(ROUTED, 100.0)
    assert bill.expert_io_bytes == 104 * c.expert_io_bytes  # the captured graph's rows
    without = step_time_s(bill._replace(expert_io_bytes=0.0), RATES)
    assert step_time_s(bill, RATES) - without == pytest.approx(bill.expert_io_bytes / RATES.expert_io_bytes_per_s)
    assert coefficients(HYBRID_MOE, Precision()).expert_io_bytes > 0


def test_the_second_runner_carries_prefill_at_its_price():
    second = replace(QWEN_7B, second_runner=True)
    one, other = prefill(QWEN_7B, 64.0), prefill(second, 64.0)
    assert step_terms(other, RATES).prefill == pytest.approx(step_terms(one, RATES).prefill * (1 + RATES.runner2_prefill))
    decode = [iteration_bill(m, decode_shape(m, 4.0, 1000.0), Precision()) for m in (QWEN_7B, second)]
    assert step_time_s(decode[0], RATES) == step_time_s(decode[1], RATES)


def test_which_models_it_steps_is_told_by_their_decoder():
    assert get_model("Llama-3.1-8B").second_runner
    assert not get_model("Qwen2.5-7B").second_runner
    assert not get_model("Qwen3-Coder-30B-A3B").second_runner


def test_no_rate_and_no_term_of_the_bill_share_a_name():
    """The compiled density knows both by name."""
    bill = prefill(QWEN_7B, 64.0)
    assert not set(bill._fields) & set(Rates.__dataclass_fields__)

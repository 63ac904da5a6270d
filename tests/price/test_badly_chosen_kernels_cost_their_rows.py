"""Products take longer at numbers of rows for which the library chooses badly, where that was measured; elsewhere nothing is added."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.bill import CAPTURED, GRAPH_TOKENS, decode_shape, iteration_bill, mixed_shape
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S
from sim.precision import Precision
from sim.price import step_time_s
from sim.products import EXPONENT, GRAPHS, Measured, Product, bytes_beyond, known_to, measured, nearest, products_of, smooth_s
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from tests.price.shapes import plausible_rates

RATES = plausible_rates()
BF16 = Precision()
GRIDS = ("Llama-3.1-8B", "Qwen2.5-7B", "Qwen3-14B")


def choice_of(model: str, rows: float, gpu: str = "H100", precision: Precision = BF16, tp: int = 1) -> tuple[float, float]:
    bill = iteration_bill(get_model(model), mixed_shape(get_model(model), [], [(rows, rows, True)]), precision, tp=tp, gpu=gpu)
    return bill.choice_bytes, bill.choice_known


@pytest.mark.parametrize("model", GRIDS)
def test_of_448_rows_an_h100_makes_far_more_than_of_its_neighbours(model: str) -> None:
    before, there, after = (
        step_time_s(iteration_bill(get_model(model), mixed_shape(get_model(model), [], [(n, n, True)]), BF16, gpu="H100"), RATES)
        for n in (432.0, 448.0, 464.0)
    )
    assert there > 1.2 * before
    assert there > 1.15 * after


@pytest.mark.parametrize(
    ("model", "gpu", "precision", "tp"),
    [
        ("Llama-3.1-8B", "A100", BF16, 1),
        ("Llama-3.1-8B", "", BF16, 1),
        ("Llama-3.1-8B", "H100", Precision("fp8"), 1),
        ("Llama-3.1-8B", "H100", BF16, 2),
        ("Llama-3.1-70B", "H100", BF16, 1),
    ],
)
def test_what_was_not_measured_is_charged_for_tiles_alone(model: str, gpu: str, precision: Precision, tp: int) -> None:
    assert choice_of(model, 448.0, gpu, precision, tp) == (0.0, 0.0)
    shape = mixed_shape(get_model(model), [], [(520.0, 520.0, True)])
    bill = iteration_bill(get_model(model), shape, precision, tp=tp, gpu=gpu)
    assert step_time_s(bill, RATES) > step_time_s(bill, replace(RATES, tile_share=0.0))


def test_what_was_measured_is_not_charged_for_tiles_as_well() -> None:
    model = get_model("Llama-3.1-8B")
    bill = iteration_bill(model, mixed_shape(model, [], [(520.0, 520.0, True)]), BF16, gpu="H100")
    assert bill.tile_flops > 0
    assert step_time_s(bill, RATES) == step_time_s(bill, replace(RATES, tile_share=0.0))


def test_a_datasheet_of_ones_own_has_no_measured_products() -> None:
    assert known_to(get_gpu("H100")) == "H100"
    assert known_to(replace(get_gpu("H100"), origin="mine.yaml")) == ""


@given(st.integers(1, 10_000), st.sampled_from(GRIDS), st.sampled_from(("H100", "H200")))
def test_arrays_are_billed_as_floats(rows: int, model: str, gpu: str) -> None:
    spec = get_model(model)
    several = iteration_bill(spec, decode_shape(spec, np.array([float(rows), 3.0]), 100.0, xp=np), BF16, gpu=gpu)
    one = iteration_bill(spec, decode_shape(spec, float(rows), 100.0), BF16, gpu=gpu)
    assert several.choice_bytes[0] == one.choice_bytes >= 0.0


def test_every_captured_size_was_measured_and_stands_for_itself() -> None:
    assert GRAPHS == GRAPH_TOKENS
    for products in measured().values():
        for seen in products.values():
            rows = np.array(CAPTURED, dtype=float)
            assert (seen.rows[nearest(seen.rows, rows)] == rows).all()


def test_beyond_the_graphs_other_numbers_take_the_nearest_that_no_multiple_of_eight_is() -> None:
    at = np.array([448.0, 512, 520, 523, 528, 541, 2304, 2560])
    found = at[nearest(at, np.array([500.0, 520, 521, 524, 526, 533, 536, 2000, 2400, 2500]))]
    assert found.tolist() == [512, 520, 523, 523, 523, 541, 541, 2304, 2304, 2560]


@given(st.floats(0.5, 3.0), st.integers(1, 8))
def test_bytes_beyond_smooth_are_the_time_beyond_at_the_bandwidth_of_large_weights(factor: float, place: int) -> None:
    product, rows = Product(1024, 4096, False), np.arange(8.0, 73.0, 8.0)
    smooth = smooth_s(product, rows, 1e12, 1e14)
    seconds = smooth.copy()
    seconds[place] *= factor
    found = bytes_beyond(product, Measured(rows, seconds, 1e12, 1e14, 2e12), rows)
    assert found[place] == pytest.approx(max(factor - 1.0, 0.0) * smooth[place] * 2e12)
    assert np.delete(found, place) == pytest.approx(0.0, abs=1e-3)


def test_smooth_is_the_larger_side_where_one_is_far_larger() -> None:
    product = Product(4096, 4096, False)
    assert smooth_s(product, 1.0, 1e12, 1e15) == pytest.approx(2 * 4096**2 / 1e12, rel=1e-6)
    assert smooth_s(product, 1e6, 1e12, 1e15) == pytest.approx(2 * 4096**2 * 1e6 / 1e15, rel=1e-6)
    assert EXPONENT == 3.0


def test_layers_that_engines_fuse_otherwise_have_no_products_here() -> None:
    assert products_of(get_model("DeepSeek-V3")) == []
    assert len(products_of(get_model("Qwen3-Coder-30B-A3B"))) == 2  # routed experts are no dense products


def test_a_simulation_charges_them() -> None:
    model = get_model("Qwen2.5-7B")
    on, off = (StepTime(model, BF16, RATES, gpu=gpu).mixed(8, 8192, 0, 8192, [(440, 440, 1)]) for gpu in ("H100", ""))
    assert (on - off) * TICK_S > 3e-3

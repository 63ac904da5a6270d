"""Where a model's matrix products were measured, its linear layers cost their times at the roofline's rates, at every number of rows."""

from dataclasses import replace

import numpy as np
import pytest

from sim.cost.batch import BatchShape, decode_batch
from sim.cost.coefficients import coefficients
from sim.cost.gemm import (
    EIGHT_BIT_TILE,
    FLOOR_S,
    GEMM_KERNELS,
    HELD_OUT,
    REPLAY_S,
    Gemm,
    Measured,
    at_rows,
    by_rows,
    gemms_of,
    gemms_on,
    in_engine_s,
    measured,
    nearest,
    over_roofline,
    roofline,
    smooth_s,
    sum_over_roofline,
    typical_s,
)
from sim.cost.graphs import CAPTURED
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import linear_s
from sim.cost.work import iteration_work
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision

MODEL, GPU = get_model("Llama-3.1-8B"), get_gpu("H100")


@pytest.mark.parametrize("rows", [1, 16, 448, 512, 1000, 8192])
def test_linear_layers_take_their_measured_times_at_the_rooflines_rates(rows):
    known = measured()["H100"]
    best = roofline(known)
    rates = replace(Rates(*[1.0] * len(UNITS)), beta=best.bytes_per_s, linear_flops_per_s=best.flops_per_s)
    work = iteration_work(MODEL, BatchShape(prefill_tokens=float(rows)), Precision(), gpu=GPU)
    seconds = sum(layers * in_engine_s(known[p])[nearest(known[p].rows, np.array([rows]))[0]] for p, layers in gemms_of(MODEL))
    norms = 1.001  # norm weights and biases are read, too
    assert seconds <= float(linear_s(work, rates)) <= seconds * norms


def test_no_product_is_faster_than_the_roofline():
    for gpu in measured():
        for product, seen in measured()[gpu].items():
            best, bytes_moved = roofline(measured()[gpu]), 2.0 * product.k * product.n
            assert bytes_moved / in_engine_s(seen).min() <= best.bytes_per_s * 1.0001
            assert (bytes_moved * seen.rows / in_engine_s(seen)).max() <= best.flops_per_s
            assert seen.seconds.min() > 2 * REPLAY_S


@pytest.mark.parametrize("gpu", [None, replace(GPU, origin="mine.yaml"), get_gpu("A10")], ids=["any", "a user's own", "not measured"])
def test_elsewhere_every_product_has_a_floor_of_small_kernels(gpu):
    with_table, without = coefficients(MODEL, Precision(), 1, GPU), coefficients(MODEL, Precision(), 1, gpu)
    assert over_roofline(MODEL, Precision(), 1, gpu) is None
    assert without.kernels - with_table.kernels == pytest.approx(GEMM_KERNELS * 4 * MODEL.layers)
    work = iteration_work(MODEL, decode_batch(MODEL, 8.0, 100.0), Precision(), gpu=gpu)
    assert work.linear_bytes == without.linear_bytes


def above_floor(weights):
    """Seconds of the model's products by rows, from 1, above the floor of each."""
    table, products = over_roofline(MODEL, Precision(weights), 1, GPU), gemms_of(MODEL)
    rows = np.arange(1.0, table.size)
    roofline_s = smooth_s(sum(layers * p.k * p.n for p, layers in products), rows, roofline(gemms_on(GPU)))
    return rows, table[1:] * roofline_s * Precision(weights).weight_bytes / 2 - FLOOR_S * sum(layers for _, layers in products)


def test_8_bits_take_half_of_16_above_a_floor_and_quantise():
    (rows, half), (_, whole) = above_floor("fp8"), above_floor("bf16")
    tiles = (rows <= EIGHT_BIT_TILE) | (rows % EIGHT_BIT_TILE == 0)
    np.testing.assert_allclose(half[tiles], whole[tiles] / 2, rtol=1e-9)
    assert over_roofline(MODEL, Precision("w8a16"), 1, GPU) is None  # computed in 16 bits, by kernels of their own
    narrow, wide = (coefficients(MODEL, Precision(weights), 1, None) for weights in ("fp8", "bf16"))
    assert narrow.kernels - wide.kernels == 4 * MODEL.layers


def test_8_bits_compute_whole_tiles_and_padding_takes_twice_as_long():
    _, seconds = above_floor("fp8")
    for last in (512, 2048, 8192):
        inside = np.arange(last - EIGHT_BIT_TILE + 1, last + 1)
        np.testing.assert_allclose(seconds[inside - 1], seconds[last - 1] * (2.0 - inside / last), rtol=1e-9)


def test_every_captured_size_was_measured_and_stands_for_itself():
    for products in measured().values():
        for seen in products.values():
            rows = np.array(CAPTURED, dtype=float)
            assert set(CAPTURED) <= set(seen.rows.tolist())
            np.testing.assert_array_equal(seen.rows[nearest(seen.rows, rows)], rows)


def test_beyond_the_table_its_last_value_holds():
    known = {Gemm(8, 8, False): Measured(np.array([1.0, 2.0]), np.array([2e-5, 2e-5]))}
    table = sum_over_roofline([(product, 1) for product in known], known, roofline(known))
    assert at_rows(table, 50.0) == table[-1]
    np.testing.assert_array_equal(at_rows(table, np.array([1.0, 2.0, 50.0])), table[[1, 2, 2]])
    assert at_rows(None, 3.0) == 1.0


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_a_product_that_was_not_measured_is_typical_of_its_size_and_never_falls(gpu):
    """Each measured product left out in turn: at one row and at two thousand within 6 % for half of them, 20 % for nine of ten."""
    known, rows = measured()[gpu], np.arange(1, 2049)
    best, errors = roofline(known), []
    for product in list(known)[::4]:
        told = typical_s(product, {p: seen for p, seen in known.items() if p != product}, best, rows)
        assert (np.diff(told) >= 0).all()
        errors += [told[i] / by_rows(known[product], rows)[i] - 1 for i in (0, 1999)]
    assert np.quantile(np.abs(errors), 0.9) < 0.2
    assert np.median(np.abs(errors)) < 0.06


def test_a_model_that_is_held_out_does_not_know_its_own_slow_sizes():
    held_out = replace(GPU, origin=HELD_OUT)
    own, others = over_roofline(MODEL, Precision(), 1, GPU), over_roofline(MODEL, Precision(), 1, held_out)
    assert own is not None
    assert others is not None
    assert own[448] > 1.1 * others[448]
    np.testing.assert_allclose(np.median(others / own), 1.0, atol=0.05)


def test_no_rows_are_at_the_roofline_and_a_replays_ends_are_taken_off():
    assert over_roofline(MODEL, Precision(), 1, GPU)[0] == 1.0
    assert in_engine_s(Measured(np.array([1.0]), np.array([1e-5]))) == pytest.approx(1e-5 - REPLAY_S)

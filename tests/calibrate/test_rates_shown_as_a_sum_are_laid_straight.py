"""Rates that cells show as a sum, and each badly: along the sampler's coordinates the sum stays as it is, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.steps.approximate import approximate
from calibrate.steps.bend import Bend, Lay
from calibrate.steps.model import free_rates
from calibrate.steps.rates import value
from calibrate.steps.sums import Io, Late
from tests.calibrate.steps import PRIORS, TRUE_RATES, synthetic

MEMORY = replace(TRUE_RATES, expert_io_bytes_per_s=1e12)  # as measured: well below the peak
CELLS = synthetic(np.random.default_rng(1), MEMORY, sigma=0.03, models=("Qwen2.5-7B", "Qwen3-Coder-30B-A3B"))
FREE = free_rates(CELLS)
STRAIGHT = 0.2  # as much of what one of the two does may show in their sum, far from where they are expected


@pytest.fixture(scope="module")
def lay() -> Lay:
    return approximate(CELLS, PRIORS).lay


@pytest.fixture(scope="module")
def bend(lay: Lay) -> Bend:
    return Bend.of(CELLS, PRIORS, FREE, lay)


def rates(bend: Bend, places: np.ndarray) -> dict[str, float]:
    z, _, _ = bend.scores(dict(zip(FREE, places, strict=True)), (), np)
    return {name: float(value(PRIORS[name], z[name])) for name in FREE}


def moved(bend: Bend, lay: Lay, name: str, by: float) -> list[dict[str, float]]:
    """Rates below, at and above the middle of the lay, along the coordinate of that name."""
    middle, move = bend.straight(lay)["middle"], np.eye(len(FREE))[FREE.index(name)]
    return [rates(bend, middle + step * move) for step in (-by, 0.0, by)]


def only_the_parts_move(part: np.ndarray, together: np.ndarray) -> None:
    assert np.ptp(part) > 0.1 * together[1], "what hardly moves would prove nothing"
    assert np.ptp(together) < STRAIGHT * np.ptp(part)


def test_products_of_routed_experts_and_what_their_rows_pass_take_together_as_long(bend: Bend, lay: Lay) -> None:
    io = next(shift for shift in bend.shifts if isinstance(shift, Io))
    along = moved(bend, lay, "expert_flops_per_s", 0.4)
    products = np.array([io.flops / at["expert_flops_per_s"] for at in along])
    only_the_parts_move(products, products + [io.io_bytes / at["expert_io_bytes_per_s"] for at in along])


def test_padding_and_intake_of_a_late_chunk_take_together_as_long(bend: Bend, lay: Lay) -> None:
    late = next(shift for shift in bend.shifts if isinstance(shift, Late))
    along = moved(bend, lay, "chunk_pad_tokens", 1.5)
    padded = np.array([late.pad_s * at["chunk_pad_tokens"] for at in along])
    only_the_parts_move(padded, padded + [late.tokens * at["intake_s"] for at in along])


@pytest.mark.parametrize("score", [-6.0, -2.0, 2.0, 6.0])
def test_however_long_products_take_memory_keeps_to_its_peak(bend: Bend, score: float) -> None:
    io = next(shift for shift in bend.shifts if isinstance(shift, Io))
    peak = PRIORS["expert_io_bytes_per_s"].upper
    found = value(PRIORS["expert_io_bytes_per_s"], io.score({"expert_flops_per_s": score}, None, PRIORS, np))
    assert 0 < found < peak


def test_places_give_the_scores_expected_and_keep_their_volume(bend: Bend, lay: Lay) -> None:
    assert {"expert_io_bytes_per_s", "intake_s"} <= {shift.name for shift in bend.shifts}, "nothing bent would prove nothing"

    def scores(places: np.ndarray) -> np.ndarray:
        z, _, _ = bend.scores(dict(zip(FREE, places, strict=True)), (), np)
        return np.array([z[name] for name in FREE])

    def volume_and_determinant(places: np.ndarray) -> np.ndarray:
        units = 1e-5 * np.eye(len(places))
        slopes = np.stack([(scores(places + unit) - scores(places - unit)) / 2e-5 for unit in units], axis=1)
        return np.array([bend.scores(dict(zip(FREE, places, strict=True)), (), np)[2], np.linalg.slogdet(slopes)[1]])

    laid = bend.straight(lay)
    np.testing.assert_allclose(scores(laid["middle"]), lay.middle, rtol=1e-9, atol=1e-9)
    here, there = (volume_and_determinant(laid["middle"] + laid["width"] @ np.full(len(FREE), size)) for size in (0.0, 1.0))
    assert there[0] - here[0] == pytest.approx(there[1] - here[1], abs=1e-5)

"""The sampler's coordinates are others for the same scores: what bends them is undone exactly, and its change of volume is counted."""

import numpy as np
import pytest

from calibrate.steps.approximate import approximate
from calibrate.steps.bend import Bend, Lay
from calibrate.steps.model import free_rates
from tests.calibrate.steps import PRIORS, synthetic

CELLS = synthetic(np.random.default_rng(0), sigma=0.03)  # so that some costs stay uncertain
FREE = free_rates(CELLS)


@pytest.fixture(scope="module")
def lay() -> Lay:
    return approximate(CELLS, PRIORS).lay


@pytest.fixture(scope="module")
def bend(lay: Lay) -> Bend:
    found = Bend.of(CELLS, PRIORS, FREE, lay)
    assert found.shifts, "nothing bent would prove nothing"
    assert found.warps
    return found


def scores(bend: Bend, places: np.ndarray) -> np.ndarray:
    z, _ = bend.scores(dict(zip(FREE, places, strict=True)), None, np)
    return np.array([z[name] for name in FREE])


def test_where_the_posterior_is_expected_the_places_give_its_scores(bend: Bend, lay: Lay) -> None:
    other = Lay(lay.middle + 0.1 * np.sqrt(np.diag(lay.covariance)), lay.covariance)
    for expected in (lay, other):
        np.testing.assert_allclose(scores(bend, bend.straight(expected)["middle"]), expected.middle, rtol=1e-9, atol=1e-9)


def test_the_width_is_that_of_the_scores_to_first_order(bend: Bend, lay: Lay) -> None:
    laid = bend.straight(lay)
    step = 1e-4
    turn = np.stack([(scores(bend, laid["middle"] + step * column) - lay.middle) / step for column in laid["width"].T], axis=1)
    np.testing.assert_allclose(turn @ turn.T, lay.covariance, rtol=1e-2, atol=1e-2 * np.diag(lay.covariance).max())


def test_the_volume_is_the_determinants_logarithm(bend: Bend, lay: Lay) -> None:
    def volume_and_determinant(places: np.ndarray) -> np.ndarray:
        units = 1e-5 * np.eye(len(places))
        slopes = np.stack([(scores(bend, places + unit) - scores(bend, places - unit)) / 2e-5 for unit in units], axis=1)
        return np.array([bend.scores(dict(zip(FREE, places, strict=True)), None, np)[1], np.linalg.slogdet(slopes)[1]])

    laid = bend.straight(lay)
    here, there = (volume_and_determinant(laid["middle"] + laid["width"] @ np.full(len(FREE), size)) for size in (0.0, 1.5))
    assert abs(here[0] - there[0]) > 0.01
    assert there[0] - here[0] == pytest.approx(there[1] - here[1], abs=1e-5)

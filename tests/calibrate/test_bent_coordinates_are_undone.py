"""The sampler's coordinates are others for the same scores: what bends them is undone exactly, and its change of volume is counted."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.steps.approximate import approximate
from calibrate.steps.bend import Bend, Lay
from calibrate.steps.cells import StepCells
from calibrate.steps.model import free_rates
from calibrate.steps.rates import value
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
    z, _, _ = bend.scores(dict(zip(FREE, places, strict=True)), (), np)
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
        return np.array([bend.scores(dict(zip(FREE, places, strict=True)), (), np)[2], np.linalg.slogdet(slopes)[1]])

    laid = bend.straight(lay)
    here, there = (volume_and_determinant(laid["middle"] + laid["width"] @ np.full(len(FREE), size)) for size in (0.0, 3.0))
    assert abs(here[0] - there[0]) > 0.01
    assert there[0] - here[0] == pytest.approx(there[1] - here[1], abs=1e-5)


@pytest.fixture(scope="module")
def of_two_models() -> StepCells:
    """Two runs, each of a model of its own."""
    return replace(CELLS, run=CELLS.model)


def test_hosts_of_runs_that_share_no_model_are_undone_and_counted_too(of_two_models: StepCells) -> None:
    lay = approximate(of_two_models, PRIORS).lay
    bend = Bend.of(of_two_models, PRIORS, FREE, lay)
    size = len(FREE)

    def known(places: np.ndarray) -> np.ndarray:
        z, hosts, _ = bend.scores(dict(zip(FREE, places[:size], strict=True)), list(places[size:]), np)
        return np.array([*(z[name] for name in FREE), *hosts])

    places = bend.straight(lay)["middle"]
    assert np.abs(places[size:] - lay.middle[size:]).max() > 0.01, "nothing bent would prove nothing"
    np.testing.assert_allclose(known(places), lay.middle, rtol=1e-9, atol=1e-9)

    def volume_and_determinant(at: np.ndarray) -> np.ndarray:
        units = 1e-5 * np.eye(len(at))
        slopes = np.stack([(known(at + unit) - known(at - unit)) / 2e-5 for unit in units], axis=1)
        return np.array([bend.scores(dict(zip(FREE, at[:size], strict=True)), list(at[size:]), np)[2], np.linalg.slogdet(slopes)[1]])

    here, there = (volume_and_determinant(places + shift) for shift in (0.0, 0.1))
    assert there[0] - here[0] == pytest.approx(there[1] - here[1], abs=1e-5)


def test_where_runs_share_models_hosts_are_as_they_are() -> None:
    runs = np.array([f"{model} {i % 2}" for i, model in enumerate(CELLS.model.tolist())])
    assert not Bend.of(replace(CELLS, run=runs), PRIORS, FREE).starts


def test_along_the_valley_the_lean_decode_of_every_such_run_takes_as_long(of_two_models: StepCells) -> None:
    """Where the weights' bandwidth moves, so does what each run's host must be."""
    lay = approximate(of_two_models, PRIORS).lay
    bend = Bend.of(of_two_models, PRIORS, FREE, lay)
    places = bend.straight(lay)["middle"]
    i = FREE.index("beta")
    for start in bend.starts:
        left = []
        for beta in (places[i] - 0.2, places[i] + 0.2):
            at = dict(zip(FREE, places, strict=False)) | {"beta": beta}
            z, hosts, _ = bend.scores(at, list(places[len(FREE) :]), np)
            fixed = value(PRIORS["c0_s"], z["c0_s"]) * np.exp(hosts[start.lean.run])
            left.append(float(fixed + start.lean.read_bytes / value(PRIORS["beta"], z["beta"])))
        assert left[0] == pytest.approx(left[1], rel=0.01)

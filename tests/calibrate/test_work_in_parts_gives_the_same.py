"""Draws worked out a few at a time, and folds fitted in a worker process, give the digits that the whole gives here."""

import numpy as np
import pytest

from calibrate.steps import model
from calibrate.steps.held_out import cell_folds, held_out
from calibrate.steps.rates import prior_draws
from calibrate.workers import begun, worker_processes
from sim.errors import UsageError
from tests.calibrate.steps import PRIORS, synthetic

CELLS = synthetic(np.random.default_rng(0))


def test_draws_worked_out_a_few_at_a_time_are_alike(monkeypatch):
    rng = np.random.default_rng(1)
    rates = prior_draws(PRIORS, 7, rng)
    for hosts in (None, rng.uniform(0.8, 1.2, (7, len(CELLS))), rng.uniform(0.8, 1.2, (7, 1)), np.full((1, len(CELLS)), 1.1)):
        whole = model.log_times(CELLS, rates, hosts)
        assert whole.shape == (7, len(CELLS))
        with monkeypatch.context() as small:
            small.setattr(model, "AT_ONCE", 2 * len(CELLS))
            np.testing.assert_array_equal(model.log_times(CELLS, rates, hosts), whole)


def test_folds_are_predicted_alike_here_and_in_a_worker():
    labels = cell_folds(CELLS, 2, np.random.default_rng(0))
    with worker_processes() as workers:
        there = begun(workers, held_out, CELLS, PRIORS, labels, 0.1, seed=2)()
    here = begun(None, held_out, CELLS, PRIORS, labels, 0.1, seed=2)()
    for name in ("low_s", "median_s", "high_s", "fold"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))


def test_what_goes_wrong_there_is_raised_here():
    with worker_processes() as workers, pytest.raises(UsageError, match="no measurements"):
        begun(workers, model_of_nothing)()


def model_of_nothing() -> None:
    raise UsageError("no measurements")

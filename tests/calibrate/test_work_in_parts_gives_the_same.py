"""Draws worked out a few at a time give the digits that the whole gives."""

import numpy as np

from calibrate.steps import step_model as model
from calibrate.steps.random_rates import prior_draws
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

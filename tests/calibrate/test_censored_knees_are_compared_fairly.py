"""Censored knees enter as bounds, and the predictor that made the knees is ranked first."""

import numpy as np
import pytest
from scipy import stats

from calibrate.sampling import Settings
from sim.errors import UsageError
from studies.knees import censored as censored_knees
from studies.knees.censored import compare, knee_model, log_density, standardised
from tests.calibrate.approximated import instead_of_sampling


@pytest.mark.parametrize(
    "users", [pytest.param([censored_knees], id="approximated"), pytest.param([], id="sampled", marks=pytest.mark.slow)]
)
def test_the_predictor_that_made_the_knees_is_best_and_its_scatter_is_found(users):
    rng = np.random.default_rng(0)
    true, other = rng.normal(size=30), rng.normal(size=30)
    knees = np.exp(2.5 + 0.8 * true + 0.1 * rng.standard_normal(30))
    censored = knees > 40
    batch = np.where(censored, 40.0, knees)
    assert 0 < censored.sum() < 10
    quick = Settings(draws=400, tune=400, chains=2, seed=1, target_accept=0.9)
    with instead_of_sampling(*users):
        first, second = compare(batch, censored, {"noise": other, "truth": true}, quick)
    assert (first.predictor, second.predictor) == ("truth", "noise")
    assert first.below_best == 0.0
    assert second.below_best > 2 * second.below_best_error
    assert 0.06 < first.sigma < 0.16


def test_the_density_of_a_censored_knee_is_the_chance_to_lie_beyond():
    value = log_density(np.log([40.0, 8.0]), np.array([True, False]), np.log([30.0, 9.0]), np.array(0.3))
    beyond = stats.norm.logsf(np.log(40.0), np.log(30.0), 0.3)
    np.testing.assert_allclose(value, [beyond, stats.norm.logpdf(np.log(8.0), np.log(9.0), 0.3)], rtol=1e-12)


def test_scores_are_standardised_in_log_and_a_constant_is_zero():
    np.testing.assert_allclose(standardised(np.array([1.0, np.e])), [-1, 1])
    assert (standardised(np.ones(4)) == 0).all()


def test_too_few_or_impossible_knees_are_usage_errors():
    with pytest.raises(UsageError, match="too few"):
        knee_model(np.array([4.0, 64.0, 64.0, 64.0]), np.array([False, True, True, True]), np.zeros(4))
    with pytest.raises(UsageError, match="positive"):
        knee_model(np.array([4.0, -1.0, 3.0, 5.0]), np.zeros(4, dtype=bool), np.zeros(4))

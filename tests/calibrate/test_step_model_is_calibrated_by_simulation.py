"""Simulation-based calibration: rates drawn from the prior have uniform ranks in the posteriors of their own data."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from calibrate.sampling import Settings
from calibrate.steps.model import SIGMA_SCALE, log_price, predictive
from calibrate.steps.rates import prior_draws
from tests.calibrate.steps import PRIORS


def ranks(step_fit, runs, draws, seed):
    """Rank in 0..1 of each true rate among its posterior draws, [run, rate]."""
    rng = np.random.default_rng(seed)
    truths = prior_draws(PRIORS, runs, rng)
    found = np.empty((runs, len(step_fit.free)))
    for run in range(runs):
        sigma = np.abs(rng.normal(0, SIGMA_SCALE, size=(1, 3)))
        times = predictive(step_fit.cells, log_price(step_fit.cells, truths.at(run)), sigma, rng)[0]
        cells = dataclasses.replace(step_fit.cells, step_s=times)
        posterior = step_fit.posterior(cells, Settings(draws=draws, tune=500, chains=1, cores=1, seed=int(rng.integers(2**31))))
        for i, name in enumerate(step_fit.free):
            thinned = getattr(posterior.rates, name)[:: max(1, draws // 50)]
            found[run, i] = (thinned < getattr(truths, name)[run]).mean()
    return found


def check_uniform(found, names):
    for i, name in enumerate(names):
        # a fixed seed: this is one draw of a test that a calibrated sampler fails once in a thousand, for each of eight rates
        assert stats.kstest(found[:, i], "uniform").pvalue > 1e-3, (name, np.sort(found[:, i]))


@pytest.fixture(scope="module")
def small_run(step_fit):
    return ranks(step_fit, runs=24, draws=250, seed=10)


def test_ranks_are_uniform_in_a_small_run(step_fit, small_run):
    check_uniform(small_run, step_fit.free)


def test_the_check_would_notice_a_posterior_that_is_too_narrow(step_fit, small_run):
    # overconfidence pushes ranks to the ends: what a posterior of a third of the width would give
    narrow = stats.norm.cdf(3 * stats.norm.ppf(np.clip(small_run, 0.01, 0.99)))
    with pytest.raises(AssertionError):
        check_uniform(narrow, step_fit.free)


@pytest.mark.slow
def test_ranks_are_uniform_in_a_long_run(step_fit):
    check_uniform(ranks(step_fit, runs=300, draws=400, seed=11), step_fit.free)

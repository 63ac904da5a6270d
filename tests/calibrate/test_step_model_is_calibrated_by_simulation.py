"""Simulation-based calibration: rates drawn from the prior have uniform ranks in the posteriors of their own data."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from calibrate.sampling import Settings
from calibrate.sbc.ranks import family_p, judge, rank
from calibrate.sbc.sampled import KEPT
from calibrate.steps.model import log_price, predictive, sigma_draws
from calibrate.steps.rates import prior_draws
from tests.calibrate.steps import PRIORS

RUNS, DRAWS = 24, 250


@pytest.fixture(scope="module")
def ranks(step_fit):
    """{rate: [run]} through the fit that the command uses (priors, sampler, rates without evidence)."""
    rng = np.random.default_rng(10)
    truths = prior_draws(PRIORS, RUNS, rng)
    found = {name: np.empty(RUNS) for name in step_fit.free}
    for run in range(RUNS):
        times = predictive(step_fit.cells, log_price(step_fit.cells, truths.at(run)), sigma_draws(1, rng), rng)[0]
        cells = dataclasses.replace(step_fit.cells, step_s=times)
        posterior = step_fit.posterior(cells, Settings(draws=DRAWS, tune=500, chains=1, cores=1, seed=int(rng.integers(2**31))))
        for name in step_fit.free:
            found[name][run] = rank(getattr(truths, name)[run], getattr(posterior.rates, name)[:: DRAWS // KEPT], rng)
    return found


def test_ranks_are_uniform(ranks):
    # a fixed seed: one draw of a test that a calibrated sampler fails once in a thousand
    assert family_p(judge(ranks)) > 1e-3


def test_the_check_would_notice_posteriors_that_are_too_narrow(ranks):
    # overconfidence pushes ranks to the ends: what posteriors of a third of the width would give
    narrow = {name: stats.norm.cdf(3 * stats.norm.ppf(np.clip(values, 0.01, 0.99))) for name, values in ranks.items()}
    assert family_p(judge(narrow)) < 1e-3

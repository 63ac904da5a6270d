"""Simulation-based calibration: rates drawn from the prior have uniform ranks in the posteriors of their own data."""

import numpy as np
import pytest
from scipy import stats

from calibrate.sampling import Settings
from studies.sbc.ranks import family_p, judge
from studies.sbc.studies import STUDIES

RUNS = 24


def around(laplace, settings):
    """As calibrate.steps.fit.sampled, of the approximation that tells the sampler where to look: a hundredth of the time."""
    rng = np.random.default_rng(settings.seed)
    return rng.multivariate_normal(laplace.mode, laplace.covariance, (settings.chains, settings.draws)), None


@pytest.fixture(scope="module", params=["approximated", pytest.param("sampled", marks=pytest.mark.slow)])
def ranks(request):
    """{rate or model error: [run]}."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "approximated":
            patch.setattr("calibrate.steps.fit.sampled", around)
        return STUDIES["step"](RUNS, np.random.default_rng(10), Settings(draws=100, tune=100, chains=1, cores=1, target_accept=0.8))


def test_ranks_are_uniform(ranks):
    # a fixed seed: one draw of a test that a calibrated sampler fails once in a thousand
    assert family_p(judge(ranks)) > 1e-3


def test_the_check_would_notice_posteriors_of_a_quarter_of_the_width(ranks):
    # power at this number of runs and parameters, not the luck of one family:
    # of a third of the width it notices seven in ten, of half one in ten
    rng = np.random.default_rng(0)
    narrow = [{name: stats.norm.cdf(4 * rng.standard_normal(RUNS)) for name in ranks} for _ in range(100)]
    assert np.mean([family_p(judge(family)) < 1e-3 for family in narrow]) > 0.9

"""A step-time posterior has the groups that ArviZ compares, checks and draws: by names of rates, kinds and cells."""

import numpy as np
import pytest

from calibrate.sampling import Diagnostics
from calibrate.steps.fit import Posterior
from calibrate.steps.inference import inference_data
from calibrate.steps.iterations import KINDS


@pytest.fixture(scope="module")
def idata(step_fit):
    """Of draws of the approximate posterior, as two chains: nothing is sampled for it."""
    rates, hosts, sigma = step_fit.around.draws(400, np.random.default_rng(0))
    fine = Diagnostics(1.0, 400.0, 0)
    return inference_data(step_fit, Posterior(rates, hosts, sigma, step_fit.model.free, fine, 2, np.zeros((2, 200))), draws=300)


def test_the_groups_are_labelled(idata, step_fit):
    assert {"posterior", "prior", "posterior_predictive", "prior_predictive", "log_likelihood", "observed_data"} <= set(
        getattr(idata, "children", None) or idata.groups()
    )
    assert set(idata.posterior.data_vars) == {*step_fit.model.free, "sigma"} == set(idata.prior.data_vars)
    assert (idata.posterior.sizes["chain"], idata.posterior.sizes["draw"]) == (2, 200)
    assert idata.posterior["sigma"].coords["kind"].values.tolist() == list(KINDS)
    assert idata.log_likelihood["log_step_s"].dims == ("chain", "draw", "cell")


def test_predictives_hold_what_was_observed_and_the_posteriors_is_narrower(idata):
    seen = idata.observed_data["log_step_s"].values
    width = {}
    for group in ("prior_predictive", "posterior_predictive"):
        low, high = np.quantile(idata[group]["log_step_s"].values.reshape(-1, seen.size), [0.05, 0.95], axis=0)
        assert np.mean((low <= seen) & (seen <= high)) > 0.8, group
        width[group] = np.median(high - low)
    assert width["posterior_predictive"] < 0.2 * width["prior_predictive"]


# a few dozen cells for a dozen rates: single ones weigh much, and ArviZ says so
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution:UserWarning")
def test_leaving_one_cell_out_is_reckoned_without_fitting_again(idata):
    from calibrate.backend import arviz

    loo = arviz().loo(idata)
    elpd, p = (loo.elpd, loo.p) if "elpd" in dir(loo) else (loo.elpd_loo, loo.p_loo)  # ArviZ 1, and before
    assert np.isfinite(elpd)
    assert 0 < p < 2 * len(idata.posterior.data_vars)

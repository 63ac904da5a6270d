"""One compiled step-time model for the whole folder: compiling costs more than all the sampling together."""

import numpy as np
import pytest

from tests.calibrate.steps import PRIORS, synthetic


@pytest.fixture(scope="session")
def step_fit():
    """The model of synthetic H100 cells (1 % error, two models), ready to sample on any replacement of them."""
    from calibrate.sampling import Settings
    from calibrate.steps.fit import StepFit

    return StepFit(synthetic(np.random.default_rng(0)), PRIORS, Settings(draws=1000, tune=700, chains=2, seed=1))


@pytest.fixture(scope="session")
def step_posterior(step_fit):
    return step_fit.posterior()

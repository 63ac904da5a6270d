"""Models are compiled once for the whole folder: compiling one costs more than all the sampling of it together."""

from pathlib import Path

import numpy as np
import pytest

from tests.calibrate.compiled_once import CompiledOnce
from tests.calibrate.steps import PRIORS, synthetic


@pytest.fixture(scope="session", autouse=True)
def compiled_once():
    """A pm.Model that has been compiled already, with whatever data, is not compiled again."""
    from calibrate import sampling

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling.Graph, "for_nutpie", CompiledOnce(sampling.Graph.for_nutpie))
        yield


@pytest.fixture(scope="session", autouse=True)
def packaged_read_once():
    """A packaged measurement is opened once: a tenth of a second each, and no test changes one."""
    from calibrate import measurement
    from calibrate.measured_files import packaged_measurements

    packaged, known, read = set(packaged_measurements()), {}, measurement._by_hdf5

    def once(path, only):
        if Path(path) not in packaged or only is not None:
            return read(path, only)
        if path not in known:
            known[path] = read(path, None)
        return known[path].copy(deep=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "_by_hdf5", once)
        yield


@pytest.fixture(scope="session")
def step_fit():
    """The model of synthetic H100 cells (1 % error, two models), ready to sample on any replacement of them."""
    from calibrate.sampling import Settings
    from calibrate.steps.fit import StepFit

    return StepFit(
        synthetic(np.random.default_rng(0)), PRIORS, Settings(draws=1000, tune=300, chains=2, seed=1, target_accept=0.9, again=2000)
    )


@pytest.fixture(scope="session")
def step_posterior(step_fit):
    return step_fit.posterior()

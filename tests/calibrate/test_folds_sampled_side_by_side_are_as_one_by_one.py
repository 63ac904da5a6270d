"""Several data sets of one compiled model: what a fit gives does not depend on which others were sampled at the same time."""

import dataclasses

import numpy as np
import pytest

from calibrate import backend
from calibrate.sampling import Compiled, Sampler, Settings

SETTINGS = Settings(draws=100, tune=100, chains=1, seed=3)


def compiled(sampler: Sampler) -> Compiled:
    pm = backend.pymc()
    with pm.Model() as model:
        seen = pm.Data("seen", np.zeros(5))
        pm.Normal("x", pm.Normal("mean", 0.0, 10.0), 1.0, observed=seen)
    return Compiled(model, sampler)


@pytest.mark.parametrize("sampler", ["nutpie", "pymc"])
def test_together_as_alone(sampler: Sampler) -> None:
    if sampler == "nutpie" and backend.nutpie() is None:
        pytest.skip("nutpie is not installed")
    model = compiled(sampler)
    data = [{"seen": np.full(5, centre)} for centre in (-20.0, 0.0, 20.0)]
    together = model.sample_each(dataclasses.replace(SETTINGS, cores=3), data)
    for each, sampled in zip(data, together, strict=True):
        alone = model.sample(SETTINGS, each)
        assert np.array_equal(sampled.posterior["mean"].values, alone.posterior["mean"].values)
        assert float(sampled.posterior["mean"].mean()) == pytest.approx(float(each["seen"][0]), abs=1.5)

"""Every packaged posterior loads, converged and small; every catalogue GPU gets rates from one, below its datasheet."""

import numpy as np
import pytest

from sim.cost.rates import UNITS
from sim.rates.posterior import packaged_posterior, packaged_posteriors, rates_for, read_posterior
from sim.specs.gpus import get_gpu, list_gpus


@pytest.mark.parametrize("path", packaged_posteriors(), ids=lambda p: p.stem)
def test_it_loads_converged_and_small(path):
    file = read_posterior(path)
    assert int(file.attrs["converged"]) == 1
    assert float(file.attrs["rhat_max"]) <= 1.01
    assert float(file.attrs["ess_min"]) >= 400
    assert int(file.attrs["divergences"]) == 0
    assert path.stat().st_size < 300_000
    assert len(file.variables["beta"]) >= 500


@pytest.mark.parametrize("name", list_gpus())
def test_every_gpu_has_a_posterior_and_stays_near_its_datasheet(name):
    gpu = get_gpu(name)
    rates = rates_for(gpu, draws=400)
    assert rates.summary.startswith("posterior")
    assert set(rates.basis) == set(UNITS)
    # a draw may pass the peak by its model error, the median may not
    assert 0.4 * gpu.memory_bandwidth < rates.point.beta <= gpu.memory_bandwidth
    assert all((getattr(rates.draws, rate) > 0).all() for rate in UNITS)


def test_what_was_never_measured_is_wider_than_what_was():
    def width(name):
        return np.std(np.log(rates_for(get_gpu(name), draws=800).draws.beta))

    assert packaged_posterior("H100") is not None
    assert packaged_posterior("L4") is None
    assert width("H100") < width("A100-80G") < width("L4")


def test_rates_follow_the_datasheet_of_the_gpu_asked_for():
    slow, fast = (rates_for(get_gpu(n), draws=200).point.beta for n in ("L4", "RTX 3090"))
    assert fast / slow == pytest.approx(get_gpu("RTX 3090").memory_bandwidth / get_gpu("L4").memory_bandwidth, rel=1e-6)

"""A GPU without packaged grids starts from the hierarchy over GPUs, which a few of its cells narrow; one with grids from its datasheet."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.sampling import Settings
from calibrate.steps.fit import StepFit
from calibrate.steps.gpu_priors import OTHER_PRODUCTS, like, population_priors, starting_priors
from calibrate.steps.random_rates import value
from calibrate.steps.step_model import log_times
from sim.cost.provenance import GIVEN
from sim.cost.rates import UNITS, Rates
from sim.rates.posterior import rates_for
from sim.rates.priors import priors as declared
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision
from studies.sbc.cells import step_cells
from tests.calibrate.grids import write_grid
from tests.cli import run


@pytest.mark.parametrize(("name", "pooled"), [("H100", False), ("H200", False), ("L4", True), ("A100-80G", True), ("A10", True)])
def test_only_gpus_without_grids_of_their_own_start_from_the_hierarchy(name, pooled):
    _, start = starting_priors(get_gpu(name), Precision())
    assert start.pooled == pooled
    assert ("hierarchy" if pooled else f"the datasheet of {name}") in start.basis
    assert not starting_priors(get_gpu(name), Precision(), datasheet=True)[1].pooled


def test_a_prior_has_the_quantiles_of_the_draws_it_is_made_like():
    rng = np.random.default_rng(0)
    cost = 2e-3 * np.exp(0.4 * rng.standard_normal(4000))
    share = 3e12 / (1 + np.exp(-(1.2 + 0.7 * rng.standard_normal(4000))))
    for draws, upper in ((cost, np.inf), (share, 3e12)):
        prior = like(draws, upper, 0.0, GIVEN)
        found = [float(value(prior, z)) for z in (-1.6449, 0.0, 1.6449)]
        np.testing.assert_allclose(found, np.quantile(draws, [0.05, 0.5, 0.95]), rtol=0.04)
    wider = like(cost, np.inf, 0.3, GIVEN)
    assert wider.sigma == pytest.approx(np.hypot(0.4, 0.3), rel=0.05)
    at_the_peak = like(np.full(100, 3e12), 3e12, 0.0, GIVEN)
    assert 0.99 * 3e12 < at_the_peak.median < 3e12


def test_what_the_population_has_draws_of_is_a_gpus_prior():
    gpu, share = get_gpu("L4"), 0.8 + 0.02 * np.random.default_rng(0).standard_normal(1000)
    found = {"beta": share, "linear_flops_per_s": share, "c0_s": 3e-3 * np.exp(0.1 * np.random.default_rng(1).standard_normal(1000))}
    sixteen, eight = (population_priors(found, gpu, Precision(dtype)) for dtype in ("bf16", "fp8"))
    assert sixteen["beta"].median == pytest.approx(0.8 * gpu.memory_bandwidth, rel=0.01)
    assert sixteen["c0_s"].median == pytest.approx(3e-3, rel=0.02)
    assert sixteen["c0_s"].sigma == pytest.approx(0.1, rel=0.1)
    assert sixteen["kernel_s"] == declared(gpu, Precision(), published=False)["kernel_s"]
    assert sixteen["linear_flops_per_s"].sigma < eight["linear_flops_per_s"].sigma == OTHER_PRODUCTS


def test_products_of_a_dtype_that_no_engine_ran_keep_the_datasheet():
    sixteen, eight = (starting_priors(get_gpu("L4"), Precision(dtype))[0] for dtype in ("bf16", "fp8"))
    assert "hierarchy" in sixteen["linear_flops_per_s"].basis
    assert eight["linear_flops_per_s"].basis.startswith("datasheet fp8")


@pytest.mark.parametrize("sampled", [pytest.param(False, id="approximated"), pytest.param(True, id="sampled", marks=pytest.mark.slow)])
def test_eight_cells_narrow_what_the_hierarchy_says_and_hold_the_truth(sampled):
    gpu = get_gpu("L4")
    known, every = rates_for(gpu, draws=200, seed=3), step_cells()
    priors, _ = starting_priors(gpu, Precision())
    before, inside = np.std(log_times(every, known.draws), axis=0), []
    for draw in range(17, 25):  # the cells of one truth are off together: few truths say little
        truth = log_times(every, Rates(**{name: float(getattr(known.draws, name)[draw]) for name in UNITS}))[0]
        seen = replace(every, step_s=np.exp(truth + 0.004 * np.random.default_rng(1).standard_normal(len(every))))
        few = seen.take(np.linspace(0, len(seen) - 1, 8).round().astype(int))
        fit = StepFit(few, priors, Settings(draws=250, tune=200, chains=2, seed=1, target_accept=0.8))
        rates = fit.posterior().rates if sampled else fit.around.draws(500, np.random.default_rng(2))[0]
        after = log_times(every, rates)
        assert np.median(np.std(after, axis=0) / before) < 0.5
        low, high = np.quantile(after, [0.005, 0.995], axis=0)
        inside.append(np.mean((low <= truth) & (truth <= high)))
    assert np.mean(inside) > 0.85, inside


def test_the_command_says_where_it_started(tmp_path):
    grid = write_grid(tmp_path / "engine-grid_x.nc", np.random.default_rng(0), gpu_name="NVIDIA L4")
    asked = (
        "calibrate",
        "--hw",
        "l4",
        "--from",
        str(grid),
        *(part for each in ("folds=0", "draws=100", "chains=2") for part in ("--fit-option", each)),
    )
    assert "  before them: posterior for GPUs never measured from the hierarchy" in run(*asked, "--allow-unconverged").stdout

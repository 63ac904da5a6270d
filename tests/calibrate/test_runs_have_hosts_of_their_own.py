"""Runs of a grid differ by their hosts: the fit tells hosts from rates, allows another host what hosts differ by, and answers carry it."""

import dataclasses
from statistics import NormalDist

import h5netcdf
import numpy as np
import pytest
from scipy.stats import chi2

from calibrate.measured_files import engine_grids
from calibrate.steps.held_out import cell_folds, held_out
from calibrate.steps.iterations import StepCells, concatenate
from calibrate.steps.laplace import HOST_SD, fitted, host_log_sd
from calibrate.steps.random_rates import calibration_priors
from calibrate.steps.step_model import log_times
from sim.cost.rates import OF_HOST, UNITS, at_host
from sim.rates.posterior import host_factors, packaged_posterior, rates_from_file
from sim.specs.gpus import get_gpu
from tests.calibrate.steps import PRIORS, TRUE, TRUE_RATES, synthetic

FACTORS = {"a": 0.8, "b": 1.0, "c": 1.25}


def run_on(factor: float, name: str, rng: np.random.Generator) -> StepCells:
    cells = synthetic(rng, rates=at_host(TRUE_RATES, factor))
    return dataclasses.replace(cells, run=np.full(len(cells), name))


@pytest.fixture(scope="module")
def runs() -> StepCells:
    rng = np.random.default_rng(0)
    return concatenate([run_on(factor, name, rng) for name, factor in FACTORS.items()])


def test_factors_and_rates_are_told_apart(runs: StepCells) -> None:
    found = fitted(runs, PRIORS, 0.2)
    assert found.model.runs == tuple(FACTORS)
    ratios = found.hosts / found.hosts[1]
    assert ratios == pytest.approx(list(FACTORS.values()), rel=0.05)
    rates, hosts, _ = found.draws(2000, np.random.default_rng(1))
    assert hosts.shape == (2000, 3)
    logs = {name: np.log(getattr(rates, name)) for name in found.model.free}
    off = {name: (np.log(TRUE[name]) - log.mean()) / log.std() for name, log in logs.items()}
    # all of them together in 99.6 of 100 such sets of cells: none further off than that share of each allows, nor all by more than chance
    assert max(map(abs, off.values())) < NormalDist().inv_cdf(1 - 0.002 / len(off)), off
    assert np.mean(np.square(list(off.values()))) < chi2.ppf(0.996, len(off)) / len(off), off


def test_a_run_left_out_is_on_a_host_that_nobody_saw(runs: StepCells) -> None:
    known = held_out(runs, PRIORS, cell_folds(runs, 3, np.random.default_rng(0)), 0.2, seed=0)
    left_out = held_out(runs, PRIORS, runs.run, 0.2, seed=0)
    lean = runs.kind == "decode"
    width = [np.median(np.log(h.high_s / h.low_s)[lean]) for h in (known, left_out)]
    assert width[1] > 1.2 * width[0]
    assert known.scores(runs).median < 0.02
    assert left_out.scores(runs).coverage >= 0.85


def test_one_run_has_no_factor(runs: StepCells) -> None:
    alone = runs.take(runs.run == "b")
    assert fitted(alone, PRIORS).model.runs == ()
    assert host_log_sd(alone, PRIORS) == HOST_SD


def test_the_approximation_is_what_the_sampler_finds(step_fit, step_posterior) -> None:
    rates, _, sigma = fitted(step_fit.cells, PRIORS).draws(4000, np.random.default_rng(2))
    for name in step_fit.model.free:
        ours, sampled = (np.log(getattr(r, name)) for r in (rates, step_posterior.rates))
        assert abs(np.median(ours) - np.median(sampled)) < 0.35 * np.std(sampled), name
        assert 1 / 1.6 < np.std(ours) / np.std(sampled) < 1.6, name
    assert np.median(sigma[:, 0]) == pytest.approx(np.median(step_posterior.sigma[:, 0]), rel=0.15)


def test_the_typical_spread_is_that_of_the_packaged_runs() -> None:
    gpu = get_gpu("H100")
    grids = engine_grids(gpu)
    cells = concatenate([grid.cells for grid in grids])
    assert len(np.unique(cells.run)) == len(grids) >= 10
    assert host_log_sd(cells, calibration_priors(gpu, grids[0].precision)) == pytest.approx(HOST_SD, rel=0.1)


def test_a_host_moves_what_hosts_do_and_nothing_else(runs: StepCells) -> None:
    there = at_host(TRUE_RATES, 1.3)
    for name in UNITS:
        assert getattr(there, name) == getattr(TRUE_RATES, name) * (1.3 if name in OF_HOST else 1.0)
    slower = log_times(runs, TRUE_RATES, np.full((1, len(runs)), 1.3))
    np.testing.assert_allclose(slower, log_times(runs, there))


def test_answers_carry_what_hosts_differ_by_until_a_host_is_known() -> None:
    assert np.log(host_factors(0.1, 4000, 0)).std() == pytest.approx(0.1, rel=0.05)
    for name in ("H100", "H200", "population"):
        path = packaged_posterior(name)
        assert path is not None
        with h5netcdf.File(path, "r") as file:
            assert 0.05 < float(file.attrs["host_sd"]) < 0.3
        gpu = get_gpu("H100" if name == "population" else name)
        rates = rates_from_file(path, gpu)
        assert np.log(rates.host).std() > 0.05
        bare = rates.at_median_host()
        assert bare.host is None
        np.testing.assert_allclose(bare.draws.c_seq_s * rates.host, rates.draws.c_seq_s)

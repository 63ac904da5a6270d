"""Machines of one card, each left out of the fit to the others, lie apart as what-if's spread of machines says."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import t as student

from calibrate.steps.decode_cells import floor_priors, read_decode
from calibrate.steps.iterations import concatenate
from calibrate.steps.laplace import fitted
from sim.cost.step_time import step_time_s
from sim.files import package_path
from sim.rates.stack_rates import MACHINE_SD, stack_priors
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision

DOF = 5  # of sim.rates.posterior.model_errors
MACHINES = {
    "H100": ("h100/decode_qwen2.5-7b", "kernels/kernels_h100", "validation/h100_decode_qwen2.5-7b", "validation/h100_decode_qwen2.5-7b_1"),
    "H200": ("h200/decode_qwen2.5-7b", "h200/decode_qwen2.5-7b_1", "kernels/kernels_h200", "validation/h200_decode_qwen2.5-7b"),
}


@pytest.fixture(scope="module")
def offsets():
    """Mean log error of each machine's steps, by rates learnt from the other machines of its card."""
    return np.array([each for card, files in MACHINES.items() for each in left_out(get_gpu(card), files)])


def left_out(gpu, files):
    steps = [read_decode(package_path("scenarios", "data", "measured", f"{name}.nc"), gpu).cells for name in files]
    priors = floor_priors(stack_priors(gpu, Precision()), [], gpu)
    for i, held in enumerate(steps):
        rates = fitted(concatenate([*steps[:i], *steps[i + 1 :]]), priors).rates
        yield np.mean(np.log(held.step_s / step_time_s(held.as_work(), rates, np)))


def test_the_spread_is_the_likeliest_one_and_holds_as_many_machines_as_it_says(offsets):
    def unlikely(scale):
        return len(offsets) * np.log(scale) - student.logpdf(offsets / scale, DOF).sum()

    likeliest = minimize_scalar(unlikely, bounds=(1e-4, 0.1), method="bounded").x
    assert likeliest == pytest.approx(MACHINE_SD, rel=0.25)
    assert np.sum(np.abs(offsets) <= MACHINE_SD * student.ppf(0.95, DOF)) == 7


def test_no_spread_learnt_from_the_other_machines_predicts_one_better(offsets):
    """Beside the spread that was there before any of these: the root mean square of the others, alone or with that as three machines."""

    def others(i, weight):
        rest = np.delete(offsets, i)
        return np.sqrt((weight * MACHINE_SD**2 + np.sum(rest**2)) / (weight + len(rest)))

    def score(scales):
        return np.sum(student.logpdf(offsets / scales, DOF) - np.log(scales))

    learnt = [score(np.array([others(i, weight) for i in range(len(offsets))])) for weight in (0, 3)]
    assert score(np.full(len(offsets), MACHINE_SD)) > max(learnt)

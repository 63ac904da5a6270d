"""Synthetic step-time cells with known rates."""

import numpy as np

from calibrate.steps.iterations import StepCells, make_cells
from calibrate.steps.step_model import log_times
from sim.cost.rates import UNITS, Rates
from sim.rates.priors import priors
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision
from studies.sbc.cells import compositions

GPU = get_gpu("H100")
PRIORS = priors(GPU, Precision(), published=False)
TRUE = {
    **{name: prior.median for name, prior in PRIORS.items()},
    "c0_s": 2.2e-3,
    "c_seq_s": 17e-6,
    "c_prefill_s": 1.3e-3,
    "beta": 2.955e12,
    "beta_kv": 2.9e12,
    "linear_flops_per_s": 640e12,
    "attention_flops_per_s": 430e12,
}
TRUE_RATES = Rates(**TRUE)


def synthetic(rng, rates=TRUE_RATES, sigma=0.01, models=("Qwen2.5-7B", "Qwen2.5-3B")) -> StepCells:
    """Cells whose times are the formula's, times log-normal error of `sigma`."""
    works, kinds, names, labels = zip(*compositions(models), strict=True)
    clean = make_cells(works, np.ones(len(works)), kind=kinds, model=names, cell=labels)
    times = np.exp(log_times(clean, rates)[0] + sigma * rng.standard_normal(len(works)))
    return make_cells(works, times, kind=kinds, model=names, cell=labels)


def scalar(values):
    """Rates of floats from a mapping, other rates at their prior medians."""
    return Rates(**{name: float(values.get(name, TRUE[name])) for name in UNITS})

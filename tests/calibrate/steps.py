"""Synthetic step-time cells with known rates."""

import numpy as np

from calibrate.steps.cells import StepCells, make_cells
from calibrate.steps.model import log_price
from sim.bill import decode_shape, iteration_bill, mixed_shape
from sim.precision import Precision
from sim.priors import priors
from sim.rates import UNITS, Rates
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model

GPU = get_gpu("H100")
PRIORS = priors(GPU, Precision(), published=False)
TRUE = {
    **{name: prior.median for name, prior in PRIORS.items()},
    "c0_s": 2.2e-3,
    "c_seq_s": 17e-6,
    "c_prefill_s": 1.3e-3,
    "beta": 2.99e12,
    "beta_kv": 2.9e12,
    "linear_flops_per_s": 640e12,
    "attention_flops_per_s": 430e12,
    "smooth_p": 3.2,
}
TRUE_RATES = Rates(**TRUE)


def compositions(models=("Qwen2.5-7B", "Qwen2.5-3B")):
    """(bill, kind, model, label) over batch, context, prompt and mixed iterations."""
    for name in models:
        model = get_model(name)
        for batch in (1, 8, 32, 128):
            for context in (128, 2048, 16384):
                shape = decode_shape(model, float(batch), float(context))
                yield iteration_bill(model, shape, Precision()), "decode", name, f"{batch}x{context}"
        for tokens in (64, 512, 2048, 8192):
            for start in (0, 16384):
                shape = mixed_shape(model, [], [(tokens, start + tokens, True)])
                yield iteration_bill(model, shape, Precision()), "prefill", name, f"{tokens}@{start}"
        for batch in (8, 64):
            for tokens in (256, 2048):
                shape = mixed_shape(model, [2048.0] * batch, [(tokens, tokens, True)])
                yield iteration_bill(model, shape, Precision()), "mixed", name, f"{batch}+{tokens}"


def synthetic(rng, rates=TRUE_RATES, sigma=0.01, models=("Qwen2.5-7B", "Qwen2.5-3B")) -> StepCells:
    """Cells whose times are the formula's, times log-normal error of `sigma`."""
    bills, kinds, names, labels = zip(*compositions(models), strict=True)
    clean = make_cells(bills, np.ones(len(bills)), kind=kinds, model=names, cell=labels)
    times = np.exp(log_price(clean, rates)[0] + sigma * rng.standard_normal(len(bills)))
    return make_cells(bills, times, kind=kinds, model=names, cell=labels)


def scalar(values):
    """Rates of floats from a mapping, other rates at their prior medians."""
    return Rates(**{name: float(values.get(name, TRUE[name])) for name in UNITS})

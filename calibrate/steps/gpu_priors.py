"""Priors of a GPU's rates from the hierarchy over GPUs, before its own cells are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from calibrate.measured_files import packaged_measurements
from calibrate.steps.grid_cells import SUITE
from calibrate.steps.random_rates import calibration_priors
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import OF_HOST, UNITS
from sim.rates.posterior import best_posterior, rates_from_file, read_posterior
from sim.rates.priors import GEMM_RATES, Prior, priors
from sim.specs.gpu import GpuSpec
from sim.specs.precision import Precision

Array = NDArray[np.float64]
OTHER_PRODUCTS = 1.0  # log sd of the share of a peak that GEMMs reach in a dtype that no measured engine ran
NORMAL_95 = 1.645  # standard normal quantile
NOTHING = 1e-20  # s: of costs that a served engine hides whole, whose logarithm is wanted
CLOSEST = 0.995  # largest share of a peak that a draw may have: at the peak itself its logit is infinite
SIXTEEN_BIT = ("bf16", "fp16")
POOLED = Provenance(Origin.POPULATION, "hierarchy over GPUs")


@dataclass(frozen=True, slots=True)
class StartingPriors:
    """Source of priors, in words, and whether other GPUs went into them."""

    basis: str
    pooled: bool


def starting_priors(gpu: GpuSpec, precision: Precision, *, datasheet: bool = False) -> tuple[dict[str, Prior], StartingPriors]:
    """(prior of every rate, where they come from).

    A GPU with packaged engine grids starts from its datasheet: the grids are in the hierarchy, and would count twice. So does every GPU
    with `datasheet`. Any other starts from its packaged posterior or the population's, plus what hosts differ by. Rates outside the
    hierarchy keep their declared priors.
    """
    chosen, path = calibration_priors(gpu, precision), best_posterior(gpu)
    if datasheet or path is None or _measured(gpu):
        return chosen, StartingPriors(f"the datasheet of {gpu.name} and weak host costs", pooled=False)
    found = rates_from_file(path, gpu, precision, model_error=False)
    host_sd = read_posterior(path).number("host_sd", 0.0)
    for name in UNITS:
        source = found.sources[name]
        if not (source.measured or source.origin is Origin.POPULATION):
            continue
        if name in GEMM_RATES and precision.weights not in SIXTEEN_BIT:
            continue  # a share of a peak that no measured engine ran at
        values = np.asarray(getattr(found.draws, name), dtype=float)
        chosen[name] = like(values, chosen[name].upper, host_sd if name in OF_HOST else 0.0, source)
    return chosen, StartingPriors(found.summary, pooled=True)


def population_priors(found: Mapping[str, Array], gpu: GpuSpec, precision: Precision) -> dict[str, Prior]:
    """The prior of every rate of a GPU: like the population's draws of it where there are any, else as declared."""
    chosen = priors(gpu, precision, published=False)
    for name, draws in found.items():
        upper = chosen[name].upper
        prior = like(draws * (upper if np.isfinite(upper) else 1.0), upper, 0.0, POOLED)
        unknown = name in GEMM_RATES and precision.weights not in SIXTEEN_BIT
        chosen[name] = replace(prior, sigma=OTHER_PRODUCTS) if unknown else prior
    return chosen


def like(values: Array, upper: float, further: float, source: Provenance) -> Prior:
    """The prior with the median and standard deviation of draws [draw]; `further` is a log standard deviation on top."""
    if not np.isfinite(upper):
        logs = np.log(np.maximum(values, NOTHING))
        return Prior(float(np.exp(logs.mean())), float(np.hypot(logs.std(), further)), source.text(), upper, source.origin)
    scores = logit(np.minimum(values / upper, CLOSEST))
    low, median = np.quantile(scores, [0.05, 0.5])  # draws at the peak say nothing of how far below it others lie
    share = float(expit(median))
    # the slope of the logarithm at the median, as calibrate.steps.random_rates.value takes it
    sigma = float(np.hypot((median - low) / NORMAL_95 * (1 - share), further))
    return Prior(share * upper, sigma, source.text(), upper, source.origin)


def _measured(gpu: GpuSpec) -> bool:
    return gpu.origin == "catalogue" and any(path.name.startswith(SUITE) for path in packaged_measurements(gpu))

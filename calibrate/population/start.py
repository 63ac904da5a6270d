"""What is known of a GPU before its own cells are looked at: the hierarchy over GPUs where none of its cells went into that."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from calibrate.sources import packaged_measurements
from calibrate.steps.engine_grid import SUITE
from calibrate.steps.population import calibration_priors
from sim.posterior import PRODUCTS, best_posterior, rates_from_file, read_posterior
from sim.precision import Precision
from sim.priors import Prior
from sim.rates import OF_HOST, UNITS
from sim.specs.gpu import GpuSpec

Array = NDArray[np.float64]
SMOOTH_SPREAD = 0.1  # of the smooth maximum's exponent, in the logarithm: GPUs do not tell it better apart, and chains lose their way
CLOSEST = 0.995  # share of a peak that a draw may have: at the peak itself its logit is infinite
SIXTEEN_BIT = ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Start:
    """Where priors come from, in words, and whether other GPUs went into them."""

    said: str
    pooled: bool


def starting_priors(gpu: GpuSpec, precision: Precision, *, datasheet: bool = False) -> tuple[dict[str, Prior], Start]:
    """(prior of every rate, where they come from).

    A GPU whose own engine grids are packaged starts from its datasheet: they are in the hierarchy, and would be counted twice. So does
    every GPU where `datasheet` says so. Any other starts from what is packaged of it: the hierarchy, with its own kernels or published
    numbers where there are some, and with what hosts differ by on top. Rates that the hierarchy does not know keep their declared priors.
    """
    chosen, path = calibration_priors(gpu, precision), best_posterior(gpu)
    if datasheet or path is None or _measured(gpu):
        return chosen, Start(f"the datasheet of {gpu.name} and weak host costs", pooled=False)
    found = rates_from_file(path, gpu, precision, model_error=False)
    host_sd = read_posterior(path).number("host_sd", 0.0)
    for name in UNITS:
        said = found.basis[name]
        if not ("hierarchy over GPUs" in said or said.startswith("learnt")):
            continue
        if name in PRODUCTS and precision.weights not in SIXTEEN_BIT:
            continue  # a share of a peak that no measured engine ran at
        values = np.asarray(getattr(found.draws, name), dtype=float)
        chosen[name] = like(values, chosen[name].upper, host_sd if name in OF_HOST else 0.0, said)
    chosen["smooth_p"] = replace(chosen["smooth_p"], sigma=min(chosen["smooth_p"].sigma, SMOOTH_SPREAD))
    return chosen, Start(found.summary, pooled=True)


def like(values: Array, upper: float, further: float, basis: str) -> Prior:
    """The prior whose median and spread draws [draw] have; `further` is a log standard deviation on top."""
    if not np.isfinite(upper):
        return Prior(float(np.exp(np.mean(np.log(values)))), float(np.hypot(np.std(np.log(values)), further)), basis, upper)
    scores = logit(np.minimum(values / upper, CLOSEST))
    share = float(expit(np.mean(scores)))
    # the slope of the logarithm at the median, as calibrate.steps.rates.value takes it
    return Prior(share * upper, float(np.hypot(np.std(scores) * (1 - share), further)), basis, upper)


def _measured(gpu: GpuSpec) -> bool:
    return gpu.origin == "catalogue" and any(path.name.startswith(SUITE) for path in packaged_measurements(gpu))

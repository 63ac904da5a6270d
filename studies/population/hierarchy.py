"""Hierarchy over GPUs: shares of the datasheet's peaks and host costs, partially pooled.

    log kernel[gpu, rate] = mean[rate] + slope[rate] * size[gpu] + N(0, between[rate])    seen through kernel tables
    log engine[gpu, rate] = log kernel[gpu, rate] + stack[rate] + N(0, ENGINE_NOISE)      seen through engine grids

A rate that a datasheet bounds enters as its share of that peak, any other one (a host cost) as it is. `stack` is what an engine loses
against single kernels, common to all GPUs; it is 0 for rates without a peak, which no kernel table shows. A GPU seen only through kernels
gets its engine's rates from its own kernels and the others' stack; one never seen gets the population's spread on top. `slope` is how
shares of GEMMs fall with `size`, the log of the datasheet's flops over an H100's: power limits larger units first.

Given mean, slope, stack and between all of this is normal. A GPU's own rates are integrated out and drawn afterwards (`drawn`), so that
the sampler meets no funnel of a spread that few GPUs show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.sampling import Diagnostics, Settings, diagnose, sample
from calibrate.steps.random_rates import calibration_priors
from sim.cost.rates import UNITS
from sim.errors import UsageError
from sim.rates.priors import GEMM_RATES, flops_for
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision
from studies.population.kernel_efficiency import Estimate

Array = NDArray[np.float64]
ENGINE_NOISE = 0.05  # log spread of an engine's share around its kernels' and the common stack
STACK, STACK_SD, SLOPE_SD = -0.1, 0.15, 0.15
MEAN_SD, BETWEEN = {True: 0.4, False: 0.8}, {True: 0.2, False: 0.4}  # of rates with a datasheet's peak, and of those without
REFERENCE = "H100"
PARAMETERS = ("mean", "between", "slope", "stack")


@dataclass(frozen=True)
class Population:
    """Parameters of the population [draw, rate], the estimates they were learnt from, and diagnostics."""

    rates: tuple[str, ...]
    found: Mapping[str, Array]
    kernels: Sequence[Estimate]
    engines: Sequence[Estimate]
    diagnostics: Diagnostics
    settings: Settings

    def of(self, gpu: str) -> dict[str, Array]:
        """Rates [draw] of one GPU, shares (at most 1) where a datasheet bounds them; a GPU never seen is drawn from the population."""
        values = drawn(self.rates, self.found, gpu, self.kernels, self.engines, np.random.default_rng([self.settings.seed, 7]))
        peaks = bounded(self.rates)
        return {rate: np.exp(np.minimum(values[:, i], 0.0 if peaks[i] else np.inf)) for i, rate in enumerate(self.rates)}


def learn(kernels: Sequence[Estimate], engines: Sequence[Estimate], settings: Settings) -> Population:
    """Sample the hierarchy of the rates that some estimate shows."""
    idata = sample(population_model(kernels, engines), settings)
    posterior = idata.posterior.stack(sample=("chain", "draw"))
    found = {name: np.asarray(posterior[name].transpose("sample", ...).values, dtype=float) for name in PARAMETERS}
    return Population(rates_of(kernels, engines), found, kernels, engines, diagnose(idata), settings)


def rates_of(*estimates: Sequence[Estimate]) -> tuple[str, ...]:
    """The rates that estimates show, in the formula's order."""
    seen = {e.rate for part in estimates for e in part}
    return tuple(rate for rate in UNITS if rate in seen)


def bounded(rates: Sequence[str]) -> NDArray[np.bool_]:
    """Whether a datasheet's peak bounds each rate [rate]."""
    declared = calibration_priors(get_gpu(REFERENCE), Precision())
    return np.array([np.isfinite(declared[rate].upper) for rate in rates], dtype=bool)


def size(gpu: str) -> float:
    """Log of a GPU's 16-bit matrix flops over those of an H100; 0 for one that no catalogue knows."""
    try:
        return float(np.log(flops_for(get_gpu(gpu), "bf16")[0] / flops_for(get_gpu(REFERENCE), "bf16")[0]))
    except UsageError:
        return 0.0


def drawn(
    rates: Sequence[str],
    found: Mapping[str, Array],
    gpu: str,
    kernels: Sequence[Estimate],
    engines: Sequence[Estimate],
    rng: np.random.Generator,
) -> Array:
    """Log rates of a GPU's engine [draw, rate], given the population's parameters and the estimates of that GPU, if any."""
    mean, variance = found["mean"] + found["slope"] * size(gpu), np.square(found["between"])
    mean, variance = _updated(mean, variance, [e for e in kernels if e.gpu == gpu], rates)
    mean, variance = mean + found["stack"], variance + ENGINE_NOISE**2
    mean, variance = _updated(mean, variance, [e for e in engines if e.gpu == gpu], rates)
    return np.asarray(mean + np.sqrt(variance) * rng.standard_normal(mean.shape))


def _updated(mean: Array, variance: Array, seen: Sequence[Estimate], rates: Sequence[str]) -> tuple[Array, Array]:
    """Normal means and variances [draw, rate] after estimates of one GPU."""
    mean, variance = mean.copy(), variance.copy()
    for e in seen:
        i = rates.index(e.rate)
        gain = variance[:, i] / (variance[:, i] + e.error**2)
        mean[:, i] += gain * (e.log_value - mean[:, i])
        variance[:, i] *= 1 - gain
    return mean, variance


def population_model(kernels: Sequence[Estimate], engines: Sequence[Estimate]) -> Any:
    """pm.Model with dims rate and peak; pm.Data `kernel_values` and `engine_values` may be replaced."""
    pm, pt = backend.pymc(), backend.tensor()
    rates = rates_of(kernels, engines)
    peaks, declared = bounded(rates), calibration_priors(get_gpu(REFERENCE), Precision())
    centre = np.log([declared[r].median / (declared[r].upper if peak else 1.0) for r, peak in zip(rates, peaks, strict=True)])
    centre -= STACK * peaks  # declared efficiencies are those of engines
    scale = {name: np.array([sd[bool(p)] for p in peaks]) for name, sd in (("mean", MEAN_SD), ("between", BETWEEN))}
    sized = np.isin(rates, GEMM_RATES).astype(float)
    with pm.Model(coords={"rate": list(rates), "peak": [r for r, peak in zip(rates, peaks, strict=True) if peak]}) as model:
        mean = pm.Normal("mean", centre, scale["mean"], dims="rate")
        between = pm.HalfNormal("between", scale["between"], dims="rate")
        loss = pm.Normal("loss", STACK, STACK_SD, dims="peak")
        stack = pm.Deterministic("stack", pt.set_subtensor(pt.zeros(len(rates))[np.flatnonzero(peaks)], loss), dims="rate")
        slope = pm.Deterministic("slope", pm.Normal("slope_of_products", 0.0, SLOPE_SD) * sized, dims="rate")

        def expected(seen: _Seen) -> tuple[Any, Any]:
            return mean[seen.rate] + slope[seen.rate] * seen.size, between[seen.rate] ** 2

        first = _Seen(kernels, rates)
        if kernels:
            kernel_mean, kernel_variance = expected(first)
            kernel_variance = kernel_variance + first.errors**2
            values = pm.Data("kernel_values", first.values)
            kernel = pm.Normal("kernel_seen", kernel_mean, pt.sqrt(kernel_variance), observed=values)
        if engines:
            second = _Seen(engines, rates)
            engine_mean, variance = expected(second)
            places = np.array([first.keys.index(key) if key in first.keys else -1 for key in second.keys])
            if (places >= 0).any():  # a GPU seen both ways: its engine after what its kernels say
                at = np.maximum(places, 0)
                gain = pt.switch(places >= 0, variance / kernel_variance[at], 0.0)
                engine_mean, variance = engine_mean + gain * (kernel[at] - kernel_mean[at]), variance * (1 - gain)
            sd = pt.sqrt(variance + ENGINE_NOISE**2 + second.errors**2)
            pm.Normal("engine_seen", engine_mean + stack[second.rate], sd, observed=pm.Data("engine_values", second.values))
    return model


class _Seen:
    """Estimates as arrays [n]: values, errors, places of their rates, sizes of their GPUs."""

    def __init__(self, seen: Sequence[Estimate], rates: Sequence[str]) -> None:
        self.keys = [(e.gpu, e.rate) for e in seen]
        self.rate = np.array([rates.index(e.rate) for e in seen], dtype=np.int64)
        self.values, self.errors = np.array([e.log_value for e in seen]), np.array([e.error for e in seen])
        self.size = np.array([size(e.gpu) for e in seen])

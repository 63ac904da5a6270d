"""The hierarchy over GPUs: shares of the datasheet's peaks and host costs, partially pooled.

    kernel share   log k[gpu, rate] = mean[rate] + slope[rate] * log size[gpu] + N(0, between[rate])    seen through kernel tables
    engine share   log e[gpu, rate] = log k[gpu, rate] + stack[rate] + N(0, ENGINE_NOISE)               seen through engine grids
    host cost      log h[gpu, cost] = mean[cost] + N(0, between[cost])                                  seen through engine grids

A kernel alone does better than an engine built of many: `stack` is what is lost, shared by all GPUs. A GPU seen only through kernels
gets its engine's rates from its own kernels and the others' stack; one never seen gets the population's spread on top. The larger a
GPU's matrix units, the less of their peak its power allows: `slope` over `size`, the datasheet's flops against an H100's, for the shares
of matrix products alone.

Given the means, slopes and spreads all of this is normal, so a GPU's own shares and costs are integrated out and drawn afterwards
(`drawn`): what is sampled are some forty smooth parameters, without the funnels of a spread that few GPUs show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.population.kernels import Estimate
from calibrate.sampling import Diagnostics, Settings, diagnose, sample
from sim.errors import UsageError
from sim.priors import flops_for
from sim.specs.gpus import get_gpu

Array = NDArray[np.float64]
SHARES = ("beta", "beta_expert", "beta_kv", "linear_flops_per_s", "attention_flops_per_s", "expert_flops_per_s", "comm_bytes_per_s")
# Prior medians of the kernel shares and of the host costs; the spreads are wide enough for stacks of any quality.
SHARE_MEDIAN = {"attention_flops_per_s": 0.55, "expert_flops_per_s": 0.45, "comm_bytes_per_s": 0.65}
COSTS = {
    "c0_s": 1.5e-3,
    "c_seq_s": 16e-6,
    "c_prefill_s": 1e-3,
    "eager_layer_s": 0.4e-3,
    "eager_expert_layer_s": 0.35e-3,
    "chunk_pad_tokens": 30.0,
    "smooth_p": 3.0,
    "expert_layer_s": 35e-6,
    "doubling_s": 1.8e-6,
}
ENGINE_NOISE = 0.05  # log spread of an engine's share around its kernels' and the common stack
SHARE_SPREAD, SLOPE_SPREAD = 0.2, 0.15
REFERENCE = "H100"
SIZED = np.array([float(rate in ("linear_flops_per_s", "expert_flops_per_s")) for rate in SHARES])
PARAMETERS = ("share_mean", "share_sd", "slope", "stack", "cost_mean", "cost_sd")


@dataclass(frozen=True)
class Population:
    """Draws [draw] of engine shares and host costs of the GPUs seen, the population's parameters [draw, ...], and diagnostics."""

    shares: Mapping[str, Mapping[str, Array]]  # gpu -> rate -> share of the datasheet's peak, at most 1
    costs: Mapping[str, Mapping[str, Array]]  # gpu -> cost -> value
    diagnostics: Diagnostics
    settings: Settings
    idata: Any
    found: Mapping[str, Array]

    def rates(self, gpu: str) -> dict[str, Array]:
        """Shares and costs of one GPU, one never seen included."""
        if gpu in self.shares:
            return {**self.shares[gpu], **self.costs[gpu]}
        log_engine, log_cost = drawn(self.found, gpu, (), (), np.random.default_rng([self.settings.seed, 8]))
        shares = {rate: np.exp(np.minimum(log_engine[:, i], 0.0)) for i, rate in enumerate(SHARES)}
        return shares | {cost: np.exp(log_cost[:, i]) for i, cost in enumerate(COSTS)}


def learn(kernels: Sequence[Estimate], engines: Sequence[Estimate], settings: Settings) -> Population:
    """Sample the hierarchy. `engines` are the same kind of estimates from engine grids; host costs' `log_share` is a log value."""
    gpus = sorted({e.gpu for e in (*kernels, *engines)})
    idata = sample(population_model(kernels, engines), settings)
    posterior = idata.posterior.stack(sample=("chain", "draw"))
    rng = np.random.default_rng([settings.seed, 7])
    found = {name: np.asarray(posterior[name].transpose("sample", ...).values, dtype=float) for name in PARAMETERS}
    shares: dict[str, dict[str, Array]] = {}
    costs: dict[str, dict[str, Array]] = {}
    for gpu in gpus:
        log_engine, log_cost = drawn(found, gpu, kernels, engines, rng)
        shares[gpu] = {rate: np.exp(np.minimum(log_engine[:, i], 0.0)) for i, rate in enumerate(SHARES)}
        costs[gpu] = {cost: np.exp(log_cost[:, i]) for i, cost in enumerate(COSTS)}
    return Population(shares, costs, diagnose(idata), settings, idata, found)


def drawn(
    found: Mapping[str, Array], gpu: str, kernels: Sequence[Estimate], engines: Sequence[Estimate], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Log engine shares [draw, share] and log host costs [draw, cost] of a GPU (any of the catalogue), given the population's parameters
    and what was seen of that GPU, if anything: precision-weighted normals, one draw for each of the parameters'.
    """
    mean = found["share_mean"] + found["slope"] * size(gpu)
    variance = np.square(found["share_sd"])
    mean, variance = _updated(mean, variance, kernels, gpu, SHARES)
    mean, variance = mean + found["stack"], variance + ENGINE_NOISE**2
    mean, variance = _updated(mean, variance, engines, gpu, SHARES)
    cost, spread = _updated(found["cost_mean"], np.square(found["cost_sd"]), engines, gpu, tuple(COSTS))
    return (
        mean + np.sqrt(variance) * rng.standard_normal(mean.shape),
        cost + np.sqrt(spread) * rng.standard_normal(cost.shape),
    )


def _updated(mean: Array, variance: Array, seen: Sequence[Estimate], gpu: str, axis: Sequence[str]) -> tuple[Array, Array]:
    """Normal means and variances [draw, axis] after the estimates of one GPU."""
    mean, variance = mean.copy(), variance.copy()
    for e in seen:
        if e.gpu == gpu and e.rate in axis:
            i = list(axis).index(e.rate)
            gain = variance[:, i] / (variance[:, i] + e.error**2)
            mean[:, i] += gain * (e.log_share - mean[:, i])
            variance[:, i] *= 1 - gain
    return mean, variance


def size(gpu: str) -> float:
    """Log of a GPU's 16-bit matrix flops over those of an H100; 0 for one that no catalogue knows."""
    try:
        return float(np.log(flops_for(get_gpu(gpu), "bf16")[0] / flops_for(get_gpu(REFERENCE), "bf16")[0]))
    except UsageError:
        return 0.0


def population_model(kernels: Sequence[Estimate], engines: Sequence[Estimate]) -> Any:
    """pm.Model with dims share and cost; pm.Data `kernel_values`, `engine_values` and `host_values` may be replaced."""
    pm, pt = backend.pymc(), backend.tensor()
    share_median = np.log([SHARE_MEDIAN.get(rate, 0.8) for rate in SHARES])
    cost_median = np.log(list(COSTS.values()))
    with pm.Model(coords={"share": list(SHARES), "cost": list(COSTS)}) as model:
        mean = pm.Normal("share_mean", share_median, 0.3, dims="share")
        between = pm.HalfNormal("share_sd", SHARE_SPREAD, dims="share")
        stack = pm.Normal("stack", -0.1, 0.15, dims="share")
        slope = pm.Deterministic("slope", pm.Normal("slope_of_products", 0.0, SLOPE_SPREAD) * SIZED, dims="share")
        cost_mean = pm.Normal("cost_mean", cost_median, 0.8, dims="cost")
        cost_between = pm.HalfNormal("cost_sd", 0.4, dims="cost")
        of_kernels = _Seen(kernels, SHARES)
        if of_kernels.values.size:
            middle = mean[of_kernels.axis] + slope[of_kernels.axis] * of_kernels.size
            variance = between[of_kernels.axis] ** 2 + of_kernels.errors**2
            feed = pm.Data("kernel_values", of_kernels.values)
            kernel = pm.Normal("kernel_seen", middle, pt.sqrt(variance), observed=feed)
        of_engines = _Seen([e for e in engines if e.rate in SHARES], SHARES)
        if of_engines.values.size:
            middle_e = mean[of_engines.axis] + slope[of_engines.axis] * of_engines.size
            variance_e = between[of_engines.axis] ** 2
            twin = of_engines.twins(of_kernels)
            if (twin >= 0).any():  # a GPU seen both ways: its engine after what its kernels say
                known, at = twin >= 0, np.maximum(twin, 0)
                gain = pt.switch(known, variance_e / variance[at], 0.0)
                middle_e, variance_e = middle_e + gain * (kernel[at] - middle[at]), variance_e * (1 - gain)
            spread = pt.sqrt(variance_e + ENGINE_NOISE**2 + of_engines.errors**2)
            pm.Normal("engine_seen", middle_e + stack[of_engines.axis], spread, observed=pm.Data("engine_values", of_engines.values))
        of_hosts = _Seen([e for e in engines if e.rate in COSTS], tuple(COSTS))
        if of_hosts.values.size:
            spread = pt.sqrt(cost_between[of_hosts.axis] ** 2 + of_hosts.errors**2)
            pm.Normal("host_seen", cost_mean[of_hosts.axis], spread, observed=pm.Data("host_values", of_hosts.values))
    return model


class _Seen:
    """Estimates as arrays: values, errors, place along an axis of rates, and the size of the GPU."""

    def __init__(self, seen: Sequence[Estimate], axis: Sequence[str]) -> None:
        kept = [e for e in seen if e.rate in axis]
        self.keys = [(e.gpu, e.rate) for e in kept]
        self.axis = np.array([list(axis).index(e.rate) for e in kept], dtype=np.int64)
        self.values, self.errors = np.array([e.log_share for e in kept]), np.array([e.error for e in kept])
        self.size = np.array([size(e.gpu) for e in kept])

    def twins(self, others: _Seen) -> NDArray[np.int64]:
        """Place among `others` of the same GPU and rate, -1 without."""
        return np.array([others.keys.index(key) if key in others.keys else -1 for key in self.keys], dtype=np.int64)

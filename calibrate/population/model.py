"""The hierarchy over GPUs: shares of the datasheet's peaks and host costs, partially pooled.

    kernel share   log k[gpu, rate] = mean[rate] + between[rate] * z[gpu, rate]      seen through kernel tables
    engine share   log e[gpu, rate] = log k[gpu, rate] + stack[rate] + noise         seen through engine grids
    host cost      log h[gpu, cost] = mean[cost] + between[cost] * z[gpu, cost]      seen through engine grids

A kernel alone does better than an engine built of many: `stack` is what is lost, shared by all GPUs. A GPU seen only through kernels
gets its engine's rates from its own kernels and the others' stack; one never seen gets the population's spread on top.
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
    "chunk_pad_tokens": 110.0,
    "smooth_p": 3.0,
    "expert_layer_s": 35e-6,
    "doubling_s": 1.8e-6,
    "uneven": 0.12,
}
ENGINE_NOISE = 0.05  # log spread of an engine's share around its kernels' and the common stack
NEW = "a GPU never measured"


@dataclass(frozen=True)
class Population:
    """Draws [draw] of engine shares and host costs by GPU (NEW among them), with diagnostics."""

    shares: Mapping[str, Mapping[str, Array]]  # gpu -> rate -> share of the datasheet's peak, at most 1
    costs: Mapping[str, Mapping[str, Array]]  # gpu -> cost -> value
    diagnostics: Diagnostics
    settings: Settings
    idata: Any

    def rates(self, gpu: str) -> dict[str, Array]:
        """Shares and costs of one GPU."""
        return {**self.shares[gpu], **self.costs[gpu]}


def learn(kernels: Sequence[Estimate], engines: Sequence[Estimate], settings: Settings) -> Population:
    """Sample the hierarchy. `engines` are the same kind of estimates from engine grids; host costs' `log_share` is a log value."""
    gpus = sorted({e.gpu for e in (*kernels, *engines)})
    idata = sample(population_model(kernels, engines, gpus), settings)
    draws = idata.posterior.stack(sample=("chain", "draw"))
    size = draws.sizes["sample"]
    rng = np.random.default_rng([settings.seed, 7])

    def column(name: str, **where: str) -> Array:
        out: Array = np.asarray(draws[name].sel(**where).values, dtype=float)
        return out

    shares: dict[str, dict[str, Array]] = {}
    costs: dict[str, dict[str, Array]] = {}
    for gpu in (*gpus, NEW):
        shares[gpu], costs[gpu] = {}, {}
        for rate in SHARES:
            if gpu == NEW:
                log_kernel = column("share_mean", share=rate) + column("share_sd", share=rate) * rng.standard_normal(size)
                log_engine = log_kernel + column("stack", share=rate) + ENGINE_NOISE * rng.standard_normal(size)
            else:
                log_engine = column("log_engine", gpu=gpu, share=rate)
            shares[gpu][rate] = np.exp(np.minimum(log_engine, 0.0))
        for cost in COSTS:
            if gpu == NEW:
                log_cost = column("cost_mean", cost=cost) + column("cost_sd", cost=cost) * rng.standard_normal(size)
            else:
                log_cost = column("log_cost", gpu=gpu, cost=cost)
            costs[gpu][cost] = np.exp(log_cost)
    return Population(shares, costs, diagnose(idata), settings, idata)


def population_model(kernels: Sequence[Estimate], engines: Sequence[Estimate], gpus: Sequence[str]) -> Any:
    """pm.Model with dims gpu, share and cost; pm.Data `kernel_values`, `engine_values` and `host_values` may be replaced."""
    pm = backend.pymc()
    share_median = np.log([SHARE_MEDIAN.get(rate, 0.8) for rate in SHARES])
    cost_median = np.log(list(COSTS.values()))
    coords = {"gpu": list(gpus), "share": list(SHARES), "cost": list(COSTS)}
    with pm.Model(coords=coords) as model:
        mean = pm.Normal("share_mean", share_median, 0.3, dims="share")
        between = pm.HalfNormal("share_sd", 0.2, dims="share")
        kernel = mean + between * pm.Normal("share_z", dims=("gpu", "share"))
        stack = pm.Normal("stack", -0.1, 0.15, dims="share")
        engine = pm.Deterministic(
            "log_engine", kernel + stack + ENGINE_NOISE * pm.Normal("engine_z", dims=("gpu", "share")), dims=("gpu", "share")
        )
        cost_mean = pm.Normal("cost_mean", cost_median, 0.8, dims="cost")
        cost_between = pm.HalfNormal("cost_sd", 0.4, dims="cost")
        cost = pm.Deterministic("log_cost", cost_mean + cost_between * pm.Normal("cost_z", dims=("gpu", "cost")), dims=("gpu", "cost"))
        for name, surface, seen in (
            ("kernel", kernel, [e for e in kernels if e.rate in SHARES]),
            ("engine", engine, [e for e in engines if e.rate in SHARES]),
            ("host", cost, [e for e in engines if e.rate in COSTS]),
        ):
            if seen:
                axis = list(COSTS) if name == "host" else list(SHARES)
                rows, columns = [gpus.index(e.gpu) for e in seen], [axis.index(e.rate) for e in seen]
                values, errors = np.array([e.log_share for e in seen]), np.array([e.error for e in seen])
                pm.Normal(f"{name}_seen", surface[rows, columns], errors, observed=pm.Data(f"{name}_values", values))
    return model
